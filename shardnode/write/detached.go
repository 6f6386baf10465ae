package write

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// mayFollow returns an error if the command must not continue after a detached commit: the client has stopped it
// (maxTimeMS, killOp), or too many undecided writes would accumulate.
func (w *Command) mayFollow() error {
	if w.pending == nil || w.chain != nil && !w.chain.Full() && mongoerr.CodeOf(w.pending.Why) == mongoerr.WriteConcernTimeout {
		return nil
	}
	return w.pending.Refusal()
}

// ErrBlocked ends a statement that would change records that an undecided commit has claimed.
var ErrBlocked = mongoerr.New(mongoerr.WriteConcernTimeout,
	"waiting for replication timed out: another write to the same document waits for it, so that this statement was not executed")

// ErrLocked is ErrBlocked for a command that needs a whole collection, or a collection that such a command holds.
var ErrLocked = mongoerr.New(mongoerr.WriteConcernTimeout,
	"waiting for replication timed out: another write to the same collection waits for it, so that this command was not executed")

// detach records a commit that the command no longer waits for. writeConcernError reports the reason to the client.
func (w *Command) detach(u *storage.Detached) {
	if w.pending == nil {
		w.pending = txn.NewPending(u.Unwrap())
	}
	w.chain = w.chain.Follow(u)
	w.pending.Add(u)
	w.Op.SetWriteConcernError(mongoerr.From(w.pending.Why))
}

// AfterCommit runs f now or, if the command has a detached commit, once that is decided.
func (w *Command) AfterCommit(f func()) {
	if w.pending == nil {
		f()
		return
	}
	if w.Op.Stats.Locks != nil { // f releases the locks, possibly while their statistics are read
		frozen := command.FrozenLocks(w.Op.Stats.Locks.Stats())
		w.Op.Stats.Locks = &frozen
	}
	w.pending.Then(f)
}

// followDetached makes a retryable write's session follow the detached commit.
func (w *Command) followDetached() {
	l, s := w.pending, w.session
	if l == nil || s == nil || !s.Follow(l) {
		return
	}
	l.Then(func() {
		s.Settle(l)
		close(l.Decided)
	})
}

// awaitDetached waits, on a retry of a command whose first run the set has not decided yet, for the decision. If its
// wtimeout is too short for that, it returns the result of the first run.
func (w *Command) awaitDetached() error {
	l := w.session.Undecided()
	if l == nil {
		return nil
	}
	timedOut, err := l.Await(w.Op, w.Concern.Timeout)
	if timedOut {
		w.pending = l
		w.Op.SetWriteConcernError(storage.ErrWaitTimeout)
	}
	return err
}

// Discard drops a collection that a command of several steps created for itself and will not finish. It waits for
// the drop only briefly: without a majority the drop follows the command's detached commits.
func (w *Command) Discard(ctx context.Context, find func(*catalog.Snapshot) *catalog.Collection) {
	_ = retryConflicts(w.Op, func() error {
		c := find(w.Catalog())
		if c == nil {
			return nil
		}
		u := w.newUnit(nil)
		defer u.Rollback()
		if err := u.DropCollection(c); err != nil {
			return err
		}
		_, err := w.writer.Set.Commit(context.WithoutCancel(ctx), u, replication.WriteConcern{W: 1, MayDetach: true, Timeout: DiscardWait})
		return err
	})
}

const DiscardWait = 50 * time.Millisecond
