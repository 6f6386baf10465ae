package wire

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Admission bounds how fast connections are established. The zero value bounds nothing.
type Admission struct {
	Enabled   bool
	PerSecond float64
	Burst     float64                  // how many seconds' worth of connections may come at once
	Queue     int                      // how many may wait for their turn; the next ones are closed
	Exempt    func(addr net.Addr) bool // nil for nobody
}

// admission is a bucket of tokens, of which each new connection takes one. It may go below zero by those that wait.
type admission struct {
	rules atomic.Pointer[Admission]
	mu    struct {
		sync.Mutex
		tokens float64
		last   time.Time
	}
	waiting, rejected, exempted, admitted atomic.Int64
}

// set changes the rules; the bucket is full again.
func (a *admission) set(r Admission) {
	a.mu.Lock()
	a.mu.tokens, a.mu.last = r.capacity(), time.Now()
	a.mu.Unlock()
	a.rules.Store(&r)
}

func (r *Admission) capacity() float64 { return max(r.PerSecond*r.Burst, 1) }

// enter takes a token for a connection from an address: it may go on after wait, or has to go.
func (a *admission) enter(addr net.Addr, now time.Time) (wait time.Duration, ok bool) {
	r := a.rules.Load()
	if r == nil || !r.Enabled {
		return 0, true
	}
	if r.Exempt != nil && r.Exempt(addr) {
		a.exempted.Add(1)
		return 0, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.tokens = min(a.mu.tokens+now.Sub(a.mu.last).Seconds()*r.PerSecond, r.capacity())
	a.mu.last = now
	switch {
	case a.mu.tokens >= 1:
		a.mu.tokens--
		a.admitted.Add(1)
		return 0, true
	case a.waiting.Load() >= int64(r.Queue), r.PerSecond <= 0: // with a rate of nothing a turn never comes
		a.rejected.Add(1)
		return 0, false
	}
	a.mu.tokens--
	a.waiting.Add(1)
	return time.Duration(-a.mu.tokens / r.PerSecond * float64(time.Second)), true
}

// SetAdmission changes how fast connections are established from now on.
func (s *Server) SetAdmission(r Admission) { s.admission.set(r) }

// hold keeps a connection's bytes unread until it is its turn.
func (s *Server) hold(c *Conn, wait time.Duration) {
	c.held.Store(true)
	time.AfterFunc(wait, func() {
		s.admission.waiting.Add(-1)
		s.admission.admitted.Add(1)
		c.held.Store(false)
		if c.ctx.Err() == nil {
			_ = c.gc.Wake(nil) // what has arrived is read now; a connection that has gone needs nothing
		}
	})
}
