package shardnode

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// leftCommit is what a command leaves behind that answers before the set has decided about its commits: its wtimeout or
// maxTimeMS has passed, or somebody has killed it. The units keep their claims by themselves; what else the command holds
// stays until the decision, by then: the locks of its collections, so that no migration or catalog change passes the
// writes, and what a retry of the same statements has to know.
type leftCommit struct {
	why  error
	runs []stmtRun // of a retryable write: what is executed if its unit commits

	mu   sync.Mutex
	open int               // units that are not decided
	ts   storage.Timestamp // of the newest that has committed
	err  error             // of one that has not
	work []func()
	// decided is closed when a retryable write or transaction is, and what it means for the session is noted.
	decided chan struct{}
}

func newLeftCommit(why error) *leftCommit {
	return &leftCommit{why: why, decided: make(chan struct{})}
}

// add notes one more unit.
func (l *leftCommit) add(u *storage.Left) {
	l.mu.Lock()
	l.open++
	l.mu.Unlock()
	u.Then(func(ts storage.Timestamp, err error) { l.unitDecided(ts, err) })
}

func (l *leftCommit) unitDecided(ts storage.Timestamp, err error) {
	l.mu.Lock()
	if l.ts = max(l.ts, ts); err != nil {
		l.err = err
	}
	l.open--
	var work []func()
	if l.open == 0 {
		work, l.work = l.work, nil
	}
	l.mu.Unlock()
	for _, f := range work {
		f()
	}
}

// then runs f once all units are decided, in the order in which it was asked.
func (l *leftCommit) then(f func()) {
	l.mu.Lock()
	if l.open > 0 {
		l.work = append(l.work, f)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	f()
}

// outcome is the time of the newest commit, and the error of one that failed; it is asked for by then or after decided.
func (l *leftCommit) outcome() (storage.Timestamp, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ts, l.err
}

// executed finds the run that a statement belongs to.
func (l *leftCommit) executed(stmt int32) (stmtRun, bool) {
	for _, r := range l.runs {
		if r.has(stmt) {
			return r, true
		}
	}
	return stmtRun{}, false
}

// await waits for the decision as long as an operation with that wtimeout may; timedOut is about the wtimeout.
func (l *leftCommit) await(op *command.Op, wtimeout time.Duration) (timedOut bool, err error) {
	var limit <-chan time.Time
	if wtimeout > 0 {
		t := time.NewTimer(wtimeout)
		defer t.Stop()
		limit = t.C
	}
	select {
	case <-l.decided:
		return false, nil
	case <-limit:
		return true, nil
	case <-op.Done():
		return false, op.Err()
	}
}

// mayFollow refuses to go on behind a commit that was left where the client wants nothing more done (maxTimeMS, killOp), or
// too much would pile up.
func (w *writeOp) mayFollow() error {
	if w.left == nil || w.trail != nil && !w.trail.Full() && mongoerr.CodeOf(w.left.why) == mongoerr.WriteConcernTimeout {
		return nil
	}
	return w.left.refusal()
}

// refusal is the answer to a statement behind a commit that was left, which is not executed.
func (l *leftCommit) refusal() error {
	e := mongoerr.From(l.why)
	if e.Code != mongoerr.WriteConcernTimeout {
		return e
	}
	return mongoerr.New(e.Code, e.Message+", so that this statement was not executed")
}

// errBlocked ends a statement that would change what a commit without a decision holds.
var errBlocked = mongoerr.New(mongoerr.WriteConcernTimeout,
	"waiting for replication timed out: another write to the same document waits for it, so that this statement was not executed")

// errLocked is errBlocked for a command that needs a collection as a whole, or one that such a command has.
var errLocked = mongoerr.New(mongoerr.WriteConcernTimeout,
	"waiting for replication timed out: another write to the same collection waits for it, so that this command was not executed")

// leaveBehind takes note of a commit that the command was told to wait for no longer. The client learns why in writeConcernError.
func (w *writeOp) leaveBehind(u *storage.Left) {
	if w.left == nil {
		w.left = newLeftCommit(u.Unwrap())
	}
	w.trail = w.trail.Follow(u)
	w.left.add(u)
	w.op.SetWriteConcernError(mongoerr.From(w.left.why))
}

// afterCommit runs f now, or, where the command has left a commit behind, once that is decided.
func (w *writeOp) afterCommit(f func()) {
	if w.left == nil {
		f()
		return
	}
	w.left.then(f)
}

// leaveSession has a retryable write's session follow the commit that was left.
func (w *writeOp) leaveSession() {
	l, s := w.left, w.session
	if l == nil || s == nil || !s.follow(l) {
		return
	}
	l.then(func() {
		s.settle(l)
		close(l.decided)
	})
}

// follow makes l the session's unfinished write; false where it is already.
func (s *retrySession) follow(l *leftCommit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == l {
		return false
	}
	s.left = l
	return true
}

// undecided is the session's unfinished write, nil for none.
func (s *retrySession) undecided() *leftCommit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// settle ends an unfinished write, unless a newer one of the session has begun. Its statements were noted as their units
// became visible.
func (s *retrySession) settle(l *leftCommit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left != l {
		return
	}
	s.left = nil
}

// awaitLeft is for a command that is sent again while the set has not decided about its first run: it waits for the
// decision. Where its wtimeout is too short for that it answers what the first run did.
func (w *writeOp) awaitLeft() error {
	l := w.session.undecided()
	if l == nil {
		return nil
	}
	timedOut, err := l.await(w.op, w.wc.Timeout)
	if timedOut {
		w.left = l
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
		_, err := w.n.Set.Commit(context.WithoutCancel(ctx), u, replication.WriteConcern{W: 1, MayLeave: true, Timeout: discardWait})
		return err
	})
}

const discardWait = 50 * time.Millisecond

// isLeft takes a commit's error for what it is.
func isLeft(err error) (*storage.Left, bool) {
	var l *storage.Left
	ok := errors.As(err, &l)
	return l, ok
}
