package wire

import (
	"container/list"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Admission limits how fast connections are established. The zero value means no limit.
type Admission struct {
	Enabled   bool
	PerSecond float64
	Burst     float64                  // how many seconds' worth of connections may arrive at once
	Queue     int                      // how many may wait; further ones are closed
	Exempt    func(addr net.Addr) bool // nil if no address is exempt
}

// admission is a bucket of tokens, of which each new connection takes one, and a queue of those that found none.
type admission struct {
	rules atomic.Pointer[Admission]
	mu    struct {
		sync.Mutex
		tokens float64
		last   time.Time
		queue  list.List   // of *waiter, in order of arrival
		timer  *time.Timer // for the first of the queue; nil for none
	}
	attempts, admitted, rejected, exempted, queued, dequeued, interrupted, queuedMicros atomic.Int64
}

// waiter is a connection in the queue.
type waiter struct {
	admit func() // called once, unless the waiter has left before
	since time.Time
	place *list.Element // nil once it has left the queue; guarded by admission.mu
}

// maxHeld is the number of bytes that a connection may send before it is admitted: a handshake is shorter.
const maxHeld = 256 << 10

// set changes the limits. The bucket is full if there were none before. Waiting connections continue under the new
// limits, at once if the limit has been removed.
func (a *admission) set(r Admission) {
	now := time.Now()
	a.mu.Lock()
	if was := a.rules.Load(); was != nil && was.Enabled {
		a.refill(was, now)
		a.mu.tokens = min(a.mu.tokens, r.capacity())
	} else {
		a.mu.tokens, a.mu.last = r.capacity(), now
	}
	a.rules.Store(&r)
	next := a.next(now)
	a.mu.Unlock()
	admitAll(next)
}

func (r *Admission) capacity() float64 { return max(r.PerSecond*r.Burst, 1) }

// refill adds the tokens of the time that has passed; a.mu must be held.
func (a *admission) refill(r *Admission, now time.Time) {
	a.mu.tokens = min(a.mu.tokens+max(now.Sub(a.mu.last).Seconds(), 0)*r.PerSecond, r.capacity())
	a.mu.last = now
}

// enter takes a token for a connection from an address. If there is none, the connection waits, as w, until admit is called; if
// the queue is full it has to be closed.
func (a *admission) enter(addr net.Addr, now time.Time, admit func()) (w *waiter, ok bool) {
	r := a.rules.Load()
	if r == nil || !r.Enabled {
		return nil, true
	}
	a.attempts.Add(1)
	if r.Exempt != nil && r.Exempt(addr) {
		a.exempted.Add(1)
		return nil, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refill(r, now)
	waiting := a.mu.queue.Len()
	switch {
	case a.mu.tokens >= 1 && waiting == 0:
		a.mu.tokens--
		a.admitted.Add(1)
		return nil, true
	case waiting >= r.Queue:
		a.rejected.Add(1)
		return nil, false
	}
	a.queued.Add(1)
	w = &waiter{admit: admit, since: now}
	w.place = a.mu.queue.PushBack(w)
	if waiting == 0 {
		a.wait(r)
	}
	return w, true
}

// wait starts the timer for the next token of the first connection in the queue; a.mu must be held.
func (a *admission) wait(r *Admission) {
	d := min((1-a.mu.tokens)/r.PerSecond, time.Hour.Seconds())
	a.mu.timer = time.AfterFunc(time.Duration(math.Ceil(max(d, 0)*float64(time.Second))), func() {
		a.mu.Lock()
		next := a.next(time.Now())
		a.mu.Unlock()
		admitAll(next)
	})
}

// next removes from the queue the connections for which there are tokens; a.mu must be held.
func (a *admission) next(now time.Time) (out []*waiter) {
	r := a.rules.Load()
	if a.mu.timer != nil {
		a.mu.timer.Stop()
		a.mu.timer = nil
	}
	a.refill(r, now)
	for a.mu.queue.Len() > 0 && (a.mu.tokens >= 1 || !r.Enabled) {
		w := a.mu.queue.Front().Value.(*waiter)
		a.drop(w, now)
		if r.Enabled {
			a.mu.tokens--
		}
		a.admitted.Add(1)
		out = append(out, w)
	}
	if a.mu.queue.Len() > 0 {
		a.wait(r)
	}
	return out
}

// drop removes a waiter from the queue; a.mu must be held.
func (a *admission) drop(w *waiter, now time.Time) {
	a.mu.queue.Remove(w.place)
	w.place = nil
	a.dequeued.Add(1)
	a.queuedMicros.Add(now.Sub(w.since).Microseconds())
}

func admitAll(list []*waiter) {
	for _, w := range list {
		w.admit()
	}
}

// leave removes a connection that has ended from the queue, so that later ones move up; false if it had left
// the queue already.
func (a *admission) leave(w *waiter) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w == nil || w.place == nil {
		return false
	}
	a.drop(w, time.Now())
	a.interrupted.Add(1)
	return true
}

// waiting returns the number of connections in the queue.
func (a *admission) waiting() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(a.mu.queue.Len())
}

// AdmissionStats counts the connections that were subject to the limit.
type AdmissionStats struct {
	Attempts, Admitted, Rejected, Exempted, Interrupted int64
	Queued, Dequeued                                    int64 // connections that had to wait, and those of them that have left the queue
	Waiting                                             int64
	QueuedMicros                                        int64 // the total time that those of Dequeued have waited
	Tokens                                              float64
}

func (a *admission) stats() AdmissionStats {
	st := AdmissionStats{Attempts: a.attempts.Load(), Admitted: a.admitted.Load(), Rejected: a.rejected.Load(), Exempted: a.exempted.Load(),
		Interrupted: a.interrupted.Load(), Queued: a.queued.Load(), Dequeued: a.dequeued.Load(), QueuedMicros: a.queuedMicros.Load(), Waiting: a.waiting()}
	if r := a.rules.Load(); r != nil {
		a.mu.Lock()
		a.refill(r, time.Now())
		st.Tokens = a.mu.tokens
		a.mu.Unlock()
	}
	return st
}

// SetAdmission changes how fast connections are established from now on.
func (s *Server) SetAdmission(r Admission) { s.admission.set(r) }

// established counts a connection and reads what it has sent while it was held.
func (s *Server) established(c *Conn, held bool) {
	s.stats.current.Add(1)
	s.stats.created.Add(1)
	c.limitFirstMessage()
	if c.held.Store(false); held && c.ctx.Err() == nil {
		_ = c.gc.Wake(nil) // nothing to do if the connection is closed
	}
}
