package shardnode

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

// mayFollow refuses to go on behind a detached commit where the client wants nothing more done (maxTimeMS, killOp), or
// too much would pile up.
func (w *writeOp) mayFollow() error {
	if w.pending == nil || w.chain != nil && !w.chain.Full() && mongoerr.CodeOf(w.pending.Why) == mongoerr.WriteConcernTimeout {
		return nil
	}
	return w.pending.Refusal()
}

// errBlocked ends a statement that would change what a commit without a decision holds.
var errBlocked = mongoerr.New(mongoerr.WriteConcernTimeout,
	"waiting for replication timed out: another write to the same document waits for it, so that this statement was not executed")

// errLocked is errBlocked for a command that needs a collection as a whole, or one that such a command has.
var errLocked = mongoerr.New(mongoerr.WriteConcernTimeout,
	"waiting for replication timed out: another write to the same collection waits for it, so that this command was not executed")

// leaveBehind takes note of a commit that the command was told to wait for no longer. The client learns why in writeConcernError.
func (w *writeOp) leaveBehind(u *storage.Detached) {
	if w.pending == nil {
		w.pending = txn.NewPending(u.Unwrap())
	}
	w.chain = w.chain.Follow(u)
	w.pending.Add(u)
	w.op.SetWriteConcernError(mongoerr.From(w.pending.Why))
}

// afterCommit runs f now, or, where the command has left a commit behind, once that is decided.
func (w *writeOp) afterCommit(f func()) {
	if w.pending == nil {
		f()
		return
	}
	if w.op.Stats.Locks != nil { // f gives them back while somebody may look at them
		frozen := command.FrozenLocks(w.op.Stats.Locks.Stats())
		w.op.Stats.Locks = &frozen
	}
	w.pending.Then(f)
}

// followDetached has a retryable write's session follow the detached commit.
func (w *writeOp) followDetached() {
	l, s := w.pending, w.session
	if l == nil || s == nil || !s.Follow(l) {
		return
	}
	l.Then(func() {
		s.Settle(l)
		close(l.Decided)
	})
}

// awaitDetached is for a command that is sent again while the set has not decided about its first run: it waits for the
// decision. Where its wtimeout is too short for that it answers what the first run did.
func (w *writeOp) awaitDetached() error {
	l := w.session.Undecided()
	if l == nil {
		return nil
	}
	timedOut, err := l.Await(w.op, w.wc.Timeout)
	if timedOut {
		w.pending = l
		w.op.SetWriteConcernError(storage.ErrWaitTimeout)
	}
	return err
}

// discard drops a collection that a command of several steps made for itself and will not finish. It is waited for no longer
// than for a moment: without a majority the drop follows what was left of the command.
func (w *writeOp) discard(ctx context.Context, find func(*catalog.Snapshot) *catalog.Collection) {
	_ = retryConflicts(w.op, func() error {
		c := find(w.catalog())
		if c == nil {
			return nil
		}
		u := w.newUnit(nil)
		defer u.Rollback()
		if err := u.DropCollection(c); err != nil {
			return err
		}
		_, err := w.n.Set.Commit(context.WithoutCancel(ctx), u, replication.WriteConcern{W: 1, MayDetach: true, Timeout: discardWait})
		return err
	})
}

const discardWait = 50 * time.Millisecond
