package coordinator

import (
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A client waits for a majority no longer than its wtimeout: the run goes on without it. What a run waits for is the majority of its own set, which
// stores the state document, that of the config server, which stops migrations, and that of a shard that builds indexes, which reports itself that the time
// has passed.

// stall is what a run waits for; guarded by m.mu.
type stall struct {
	since    time.Time // when it began to wait for a majority; zero if it waits for none
	timedOut bool      // a shard has reported that the command's wtimeout has passed
}

// stallTick is the interval at which a client with a wtimeout checks the state of the run.
const stallTick = 5 * time.Millisecond

// awaits notes that the run waits for a majority until the returned function is called.
func (r *run) awaits() (end func()) {
	set := func(t time.Time) {
		r.m.mu.Lock()
		r.stall.since = t
		r.m.mu.Unlock()
	}
	set(time.Now())
	return func() { set(time.Time{}) }
}

// noteAttempt notes how an attempt at a phase has ended.
func (r *run) noteAttempt(err error) {
	r.m.mu.Lock()
	r.stall.timedOut = mongoerr.CodeOf(err) == mongoerr.WriteConcernTimeout
	r.m.mu.Unlock()
}

// stalled reports whether the run has been waiting for a majority for longer than a wtimeout.
func (r *run) stalled(limit time.Duration) bool {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.stall.timedOut || !r.stall.since.IsZero() && time.Since(r.stall.since) >= limit
}

// errGoesOn ends a client's command whose run waits for a majority.
var errGoesOn = mongoerr.New(mongoerr.WriteConcernTimeout, "waiting for replication timed out: the operation has not finished, and will continue once there is a majority")

// end waits for the end of a run.
func (r *run) end(op *command.Op) error {
	var tick <-chan time.Time
	limit := op.Req.AskedConcern().Timeout
	if limit > 0 {
		t := time.NewTicker(stallTick)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-r.done:
			return nil
		case <-op.Done():
			return op.Err()
		case <-tick:
			if r.stalled(limit) {
				return errGoesOn
			}
		}
	}
}
