package replication

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// flowControl throttles writers when the majority falls behind in applying committed entries, so that reads on it
// do not become ever more stale. The rate is halved while the lag is above its target, and grows while it is not.
type flowControl struct {
	limit   atomic.Int64 // commits per second; 0 is no limit
	commits atomic.Int64

	mu      sync.Mutex
	status  FlowStatus
	next    time.Time // when the next commit may start
	before  int64     // commits at the last sample
	sampled time.Time
	since   time.Time // since when the majority lags
}

func (f *flowControl) init() { f.status.Tickets = maxTickets }

// maxTickets is the number reported when there is no limit.
const maxTickets = 1_000_000_000

// admit delays a commit as the rate requires.
func (f *flowControl) admit(ctx context.Context) error {
	f.commits.Add(1)
	rate := f.limit.Load()
	if rate == 0 {
		return nil
	}
	now := time.Now()
	f.mu.Lock()
	f.next = f.next.Add(time.Second / time.Duration(rate))
	if earliest := now.Add(-100 * time.Millisecond); f.next.Before(earliest) {
		f.next = earliest // part of the unused allowance is kept
	}
	d := f.next.Sub(now)
	f.mu.Unlock()
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sample measures the majority's lag, about once a second, on the primary.
func (f *flowControl) sample(p Params, primary bool, lag time.Duration, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Enabled = p.FlowControl
	if now.Sub(f.sampled) < time.Second {
		return
	}
	commits := f.commits.Load()
	rate := int64(float64(commits-f.before) / now.Sub(f.sampled).Seconds())
	f.before, f.sampled = commits, now
	lagged := primary && p.FlowControl && lag >= time.Duration(float64(p.FlowTargetLag)*p.FlowThreshold)
	if lagged && !f.status.Lagged {
		f.status.LaggedCount++
		f.since = now
	} else if f.status.Lagged {
		f.status.LaggedMicros += now.Sub(f.since).Microseconds()
		f.since = now
	}
	f.status.Lagged = lagged
	limit := f.limit.Load()
	switch {
	case lagged && lag >= p.FlowTargetLag:
		limit = max(rate/2, int64(p.FlowMinTickets))
	case lagged && limit == 0:
		limit = max(rate, int64(p.FlowMinTickets))
	case lagged || limit == 0:
	case limit > 10*max(rate, 1000) || !primary || !p.FlowControl:
		limit = 0
	default:
		limit += limit/4 + 100
	}
	f.limit.Store(limit)
	if f.status.Tickets = int(limit); limit == 0 {
		f.status.Tickets = maxTickets
	}
}

func (f *flowControl) show() FlowStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}
