package storage

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Detached is the error of a commit that its caller stopped waiting for. What becomes of the unit is not known yet: it is in
// the queue, or on its way through the replicated log, and still holds its claims. The unit is the engine's from then on;
// its caller leaves it alone, and asks Then to do what has to wait for the outcome.
type Detached struct {
	cause error
	unit  *UnitOfWork
	mu    sync.Mutex
	over  bool
	ts    Timestamp
	err   error
	then  []func(Timestamp, error)
}

// DetachedBecause makes a Detached, and the function that tells of the outcome.
func DetachedBecause(cause error) (l *Detached, end func(Timestamp, error)) {
	l = &Detached{cause: cause}
	return l, l.end
}

// Error is that of why the wait ended.
func (l *Detached) Error() string { return l.cause.Error() }

// Unwrap gives the reason: ErrWaitTimeout, or why the context ended.
func (l *Detached) Unwrap() error { return l.cause }

// Then has f called with what Commit would have returned, once that is known: on a goroutine that Engine.Close waits for,
// or at once where it is known already.
func (l *Detached) Then(f func(ts Timestamp, err error)) {
	l.mu.Lock()
	if !l.over {
		l.then = append(l.then, f)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	f(l.ts, l.err)
}

func (l *Detached) end(ts Timestamp, err error) {
	l.mu.Lock()
	l.over, l.ts, l.err = true, ts, err
	then := l.then
	l.then = nil
	l.mu.Unlock()
	for _, f := range then {
		f(ts, err)
	}
}

// ErrWaitTimeout is that a write concern's wtimeout has passed.
var ErrWaitTimeout = mongoerr.New(mongoerr.WriteConcernTimeout, "waiting for replication timed out")

// detaching says whether a unit's commit may be detached, and when without being asked, and what the unit keeps where it fails.
type detaching struct {
	limit time.Duration // 0 for none
	may   bool
	done  bool
	keeps bool // its claims
}

// MayDetach allows Commit to return a *Detached while the replicated log has not decided: when its context ends, or after
// limit, where that is not 0.
func (u *UnitOfWork) MayDetach(limit time.Duration) { u.detach.may, u.detach.limit = true, limit }

// CanDetach is what MayDetach has set.
func (u *UnitOfWork) CanDetach() (limit time.Duration, may bool) { return u.detach.limit, u.detach.may }

const (
	// firstWait is how long a commit waits before it looks after its context. Asking an operation for its Done channel
	// costs more than the whole wait of a commit that nothing is wrong with.
	firstWait = 20 * time.Millisecond
	// maxDetached bounds what clients with short time-outs can pile up while there is no majority: further commits wait.
	maxDetached = 10_000
)

// waiter is how a unit waits for others to commit it. Each engine reuses its own.
type waiter struct {
	wake  chan wakeUp
	timer *time.Timer // of units that may be detached
}

func newWaiter() any { return &waiter{wake: make(chan wakeUp, 1)} }

// after starts the timer.
func (w *waiter) after(d time.Duration) *time.Timer {
	if w.timer == nil {
		w.timer = time.NewTimer(d)
	} else {
		w.timer.Reset(d)
	}
	return w.timer
}

// seeThrough follows a queued unit to its end, and leads when it is its turn.
func (e *Engine) seeThrough(u *UnitOfWork) {
	for <-u.wait.wake == wakeLead && !e.lead(u) {
	}
}

// awaitOrDetach is seeThrough for a unit that may be detached: then the result is not nil.
func (e *Engine) awaitOrDetach(ctx context.Context, u *UnitOfWork) *Detached {
	limit, slice := u.detach.limit, firstWait
	if limit > 0 {
		slice = min(slice, limit)
	}
	t := u.wait.after(slice)
	var done <-chan struct{}
	for {
		var why error
		select {
		case w := <-u.wait.wake:
			if w == wakeDone || e.lead(u) {
				t.Stop()
				return nil
			}
			continue
		case <-done:
			why = context.Cause(ctx)
		case <-t.C:
			if limit == 0 || slice < limit {
				done = ctx.Done()
				if limit > 0 {
					slice, limit = limit-slice, limit-slice
					t.Reset(slice)
				}
				continue
			}
			why = ErrWaitTimeout
		}
		t.Stop()
		// A member that steps down is about to tell what becomes of the unit.
		if !mongoerr.CodeOf(why).In(mongoerr.CategoryNotPrimary) {
			if left := e.detach(u, why); left != nil {
				return left
			}
		}
		e.seeThrough(u)
		return nil
	}
}

// detach puts a goroutine in its caller's place; nil where that cannot be.
func (e *Engine) detach(u *UnitOfWork, why error) *Detached {
	c := &e.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || e.detached.Load() >= maxDetached {
		return nil
	}
	u.detach.done = true
	e.detached.Add(1)
	c.owners.Add(1)
	left, end := DetachedBecause(why)
	left.unit = u
	go func() {
		defer c.owners.Done()
		e.seeThrough(u)
		ts, err := u.wait.ts, u.wait.err
		e.waiters.Put(u.wait.waiter)
		e.detached.Add(-1)
		end(ts, err)
	}()
	return left
}

// DetachedCommits is the number of units whose callers have left them and whose outcome is not known.
func (e *Engine) DetachedCommits() int { return int(e.detached.Load()) }
