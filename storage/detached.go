package storage

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Detached is the error of a commit that its caller stopped waiting for. The unit's outcome is not known yet: it
// is in the queue or on its way through the replicated log, and still holds its claims. The engine owns the unit
// from then on; its caller must not touch it, and registers with Then what must follow the outcome.
type Detached struct {
	cause error
	unit  *UnitOfWork
	mu    sync.Mutex
	over  bool
	ts    Timestamp
	err   error
	then  []func(Timestamp, error)
}

// DetachedBecause returns a Detached, and the function that reports its outcome.
func DetachedBecause(cause error) (d *Detached, end func(Timestamp, error)) {
	d = &Detached{cause: cause}
	return d, d.end
}

// Error returns the text of why the wait ended.
func (d *Detached) Error() string { return d.cause.Error() }

// Unwrap returns why the wait ended: ErrWaitTimeout, or the context's error.
func (d *Detached) Unwrap() error { return d.cause }

// Then calls f with what Commit would have returned, once that is known: on a goroutine that Engine.Close waits
// for, or at once if it is known already.
func (d *Detached) Then(f func(ts Timestamp, err error)) {
	d.mu.Lock()
	if !d.over {
		d.then = append(d.then, f)
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	f(d.ts, d.err)
}

func (d *Detached) end(ts Timestamp, err error) {
	d.mu.Lock()
	d.over, d.ts, d.err = true, ts, err
	then := d.then
	d.then = nil
	d.mu.Unlock()
	for _, f := range then {
		f(ts, err)
	}
}

// ErrWaitTimeout reports that a write concern's wtimeout has passed.
var ErrWaitTimeout = mongoerr.New(mongoerr.WriteConcernTimeout, "waiting for replication timed out")

// detaching holds whether and when a unit's commit may be detached, and whether the unit keeps its claims if it
// fails.
type detaching struct {
	limit  time.Duration // how long the commit waits; 0 for no limit
	may    bool
	atOnce bool // see DetachAtOnce
	done   bool
	keeps  bool // claims survive a failed commit
	// adopted are units whose writes this one repeats: what they have sent ahead protects its keys until this one ends.
	adopted []*stager
}

// MayDetach allows Commit to return a *Detached while the replicated log has not decided: when its context ends,
// or after limit if that is not 0.
func (u *UnitOfWork) MayDetach(limit time.Duration) { u.detach.may, u.detach.limit = true, limit }

// DetachAtOnce makes Commit return a *Detached as soon as the unit has its place in the replicated log, before whatever is committed
// next. It does not count as abandoned by its client, so writers do not conclude that the majority is lost.
func (u *UnitOfWork) DetachAtOnce() { u.detach.may, u.detach.atOnce = true, true }

// CanDetach returns what MayDetach has set.
func (u *UnitOfWork) CanDetach() (limit time.Duration, may bool) { return u.detach.limit, u.detach.may }

const (
	// firstWait is the time that a commit waits before it looks at its context. Obtaining an operation's Done channel
	// costs more than the whole wait of a commit that meets no trouble.
	firstWait = 20 * time.Millisecond
	// maxDetached bounds what clients with short timeouts can accumulate while there is no majority: further
	// commits wait.
	maxDetached = 10_000
)

// waiter lets a unit wait for others to commit it. Each engine reuses its own.
type waiter struct {
	wake  chan wakeUp
	timer *time.Timer // for units that may be detached
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

// seeThrough follows a queued unit until it ends, leading when its turn comes.
func (e *Engine) seeThrough(u *UnitOfWork) {
	for <-u.wait.wake == wakeLead && !e.lead(u) {
	}
}

// awaitOrDetach is seeThrough for a unit that may be detached; it returns non-nil if the unit was.
func (e *Engine) awaitOrDetach(ctx context.Context, u *UnitOfWork) *Detached {
	if u.detach.atOnce {
		detached := e.detach(u, ErrWaitTimeout)
		if detached == nil {
			e.seeThrough(u)
		}
		return detached
	}
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
		// A member that steps down is about to decide the unit's outcome.
		if !mongoerr.CodeOf(why).In(mongoerr.CategoryNotPrimary) {
			if detached := e.detach(u, why); detached != nil {
				return detached
			}
		}
		e.seeThrough(u)
		return nil
	}
}

// detach lets a goroutine take the place of the unit's caller. It returns nil if that is not possible.
//
// Invariant: exactly one goroutine follows each queued unit. Hazard: the unit at the head of the queue is woken to
// lead, so a unit that no goroutine follows would stall all commits behind it; a caller cannot simply stop waiting.
//
// Rejected: taking the unit back out of the queue. That works only until a leader has taken it; from then on the log
// may commit it whatever its client wants, so the caller would still need a way to stop waiting for a unit whose
// outcome is unknown. One rule for both cases is enough.
func (e *Engine) detach(u *UnitOfWork, why error) *Detached {
	c := &e.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || e.detached.Load() >= maxDetached {
		return nil
	}
	u.detach.done = true
	counts := int64(1)
	if u.detach.atOnce {
		counts = 0
	}
	e.detached.Add(counts)
	c.owners.Add(1)
	detached, end := DetachedBecause(why)
	detached.unit = u
	go func() {
		defer c.owners.Done()
		e.seeThrough(u)
		ts, err := u.wait.ts, u.wait.err
		e.waiters.Put(u.wait.waiter)
		e.detached.Add(-counts)
		end(ts, err)
	}()
	return detached
}

// DetachedCommits returns the number of detached units whose outcome is not known.
func (e *Engine) DetachedCommits() int { return int(e.detached.Load()) }
