package txn

import (
	"errors"
	"sync"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Pending has the rest of a command that replies before the set has decided about its commits, because its
// wtimeout or maxTimeMS has passed or it was killed. The units keep their claims themselves; everything else that
// the command holds is kept until the decision: the locks of its collections, so that no migration or catalog
// change overtakes the writes, and what a retry of the same statements needs.
type Pending struct {
	Why  error
	runs []Run // of a retryable write: the statements that are executed if its unit commits

	mu   sync.Mutex
	open int               // number of undecided units
	ts   storage.Timestamp // of the newest committed unit
	err  error             // of a unit that failed
	work []func()
	// Decided is closed when a retryable write or transaction is decided and the session has been updated.
	Decided chan struct{}
}

func NewPending(why error) *Pending {
	return &Pending{Why: why, Decided: make(chan struct{})}
}

// Add adds a unit.
func (l *Pending) Add(u *storage.Detached) {
	l.mu.Lock()
	l.open++
	l.mu.Unlock()
	u.Then(func(ts storage.Timestamp, err error) { l.unitDecided(ts, err) })
}

func (l *Pending) unitDecided(ts storage.Timestamp, err error) {
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

// Then runs f once all units are decided, in the order of the calls.
func (l *Pending) Then(f func()) {
	l.mu.Lock()
	if l.open > 0 {
		l.work = append(l.work, f)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	f()
}

// outcome returns the time of the newest commit, and the error of one that failed; it may be called in Then
// or after Decided.
func (l *Pending) outcome() (storage.Timestamp, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ts, l.err
}

// Executed finds the run that a statement belongs to.
func (l *Pending) Executed(stmt int32) (Run, bool) {
	return findRun(l.runs, stmt)
}

// Ran records statements that are executed if the unit commits.
func (l *Pending) Ran(r Run) { l.runs = withRun(l.runs, r) }

// Await waits for the decision as long as an operation with that wtimeout may; timedOut reports that the wtimeout has passed.
func (l *Pending) Await(op *command.Op, wtimeout time.Duration) (timedOut bool, err error) {
	var limit <-chan time.Time
	if wtimeout > 0 {
		t := time.NewTimer(wtimeout)
		defer t.Stop()
		limit = t.C
	}
	select {
	case <-l.Decided:
		return false, nil
	case <-limit:
		return true, nil
	case <-op.Done():
		return false, op.Err()
	}
}

// Refusal returns the error for a statement after a detached commit; the statement is not executed.
func (l *Pending) Refusal() error {
	e := mongoerr.From(l.Why)
	if e.Code != mongoerr.WriteConcernTimeout {
		return e
	}
	return mongoerr.New(e.Code, e.Message+", so that this statement was not executed")
}

// Follow makes l the session's unfinished write; it returns false if it already is.
func (s *Session) Follow(l *Pending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == l {
		return false
	}
	s.pending = l
	return true
}

// Undecided returns the session's unfinished write, nil for none.
func (s *Session) Undecided() *Pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}

// Settle ends an unfinished write, unless a newer one of the session has begun. Its statements were recorded as their
// units became visible.
func (s *Session) Settle(l *Pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != l {
		return
	}
	s.pending = nil
}

// IsDetached reports whether a commit's error means that it is detached.
func IsDetached(err error) (*storage.Detached, bool) {
	var l *storage.Detached
	ok := errors.As(err, &l)
	return l, ok
}
