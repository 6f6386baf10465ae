package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A client waits for a majority no longer than its wtimeout: the run continues without it. A run may wait for a majority of its own set, which
// stores the state document; of the config server, which stops migrations; of a shard that builds indexes, which itself reports that the time
// has passed; or of any other node that it has sent a request. A node that has not answered for that long is asked whether it has a majority, since it may
// merely wait for writers, or be busy.

// stall describes what a run waits for; guarded by m.mu.
type stall struct {
	since    time.Time // when it began to wait for a majority; zero if it waits for none
	failing  time.Time // since when attempts at the phase have failed for lack of a primary; zero if the last one did not
	timedOut bool      // a shard has reported that the command's wtimeout has passed
	asked    []*asked  // requests without an answer
	behind   *run      // another run that it waits for; nil for none
}

// asked is a request to a node that has not answered it.
type asked struct {
	peer  cluster.Peer
	since time.Time
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

// asks notes that the run waits for a node's answer until the returned function is called.
func (r *run) asks(peer cluster.Peer) (end func()) {
	one := &asked{peer, time.Now()}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.stall.asked = append(r.stall.asked, one)
	return func() {
		r.m.mu.Lock()
		defer r.m.mu.Unlock()
		r.stall.asked = slices.DeleteFunc(r.stall.asked, func(o *asked) bool { return o == one })
	}
}

// unanswered returns the nodes that have not answered a request for longer than a wtimeout.
func (r *run) unanswered(limit time.Duration) (peers []cluster.Peer) {
	m := r.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for ; r != nil; r = r.stall.behind {
		for _, one := range r.stall.asked {
			if time.Since(one.since) >= limit {
				peers = append(peers, one.peer)
			}
		}
	}
	return peers
}

// noteAttempt notes how an attempt at a phase has ended.
func (r *run) noteAttempt(err error) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.stall.timedOut = mongoerr.CodeOf(err) == mongoerr.WriteConcernTimeout
	switch {
	case err == nil || !cluster.Retryable(err):
		r.stall.failing = time.Time{}
	case r.stall.failing.IsZero():
		r.stall.failing = time.Now()
	}
}

// stalled reports whether the run has been waiting for a majority for longer than a wtimeout.
func (r *run) stalled(limit time.Duration) bool {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	long := func(t time.Time) bool { return !t.IsZero() && time.Since(t) >= limit }
	for x := r; x != nil; x = x.stall.behind {
		if x.stall.timedOut || long(x.stall.since) || long(x.stall.failing) {
			return true
		}
	}
	return false
}

// follow waits for the end of another run, or until ready is closed. Meanwhile the run is stalled if the other one is.
func (r *run) follow(ctx context.Context, other *run, ready <-chan struct{}) error {
	set := func(o *run) {
		r.m.mu.Lock()
		r.stall.behind = o
		r.m.mu.Unlock()
	}
	set(other)
	defer set(nil)
	select {
	case <-other.done:
		return nil
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errGoesOn ends a client's command whose run waits for a majority.
var errGoesOn = mongoerr.New(mongoerr.WriteConcernTimeout, "waiting for replication timed out: the operation has not finished, and will continue once there is a majority")

// errBehind ends a client's command that waits for the locks of a run which waits for a majority.
var errBehind = mongoerr.New(mongoerr.WriteConcernTimeout, "waiting for replication timed out: another operation on the namespace has not finished, and will continue once there is a majority; this one has not begun")

// lockFor takes the locks of a client's operation. It waits for a run that waits for a majority no longer than the client's wtimeout.
func (m *Coordinators) lockFor(ctx context.Context, op *command.Op, o operation) (*held, error) {
	limit := op.Req.AskedConcern().Timeout
	if limit <= 0 {
		return m.lock(ctx, o, lockWait)
	}
	for until := time.Now().Add(lockWait); ; {
		for r := m.inTheWay(o); r != nil; r = m.inTheWay(o) {
			shown := op.ShowAwaitsLocks()
			err := r.end(ctx, op)
			shown()
			switch {
			case err == errGoesOn:
				return nil, errBehind
			case err != nil:
				return nil, err
			case r.err == errSteppedDown: // the next primary continues it
				return nil, errSteppedDown
			}
		}
		h, err := m.lock(ctx, o, max(limit, leastProbe))
		if mongoerr.CodeOf(err) != mongoerr.LockBusy || time.Now().After(until) {
			return h, err
		}
	}
}

// inTheWay returns a run that holds a lock incompatible with an operation's; nil for none.
func (m *Coordinators) inTheWay(o operation) *run {
	names := namesOf(o)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.mu.runs {
		if conflict(names, r.locks.list) {
			return r
		}
	}
	return nil
}

// end waits for the end of a run, at most as long as ctx, which is op's own or ends before it.
func (r *run) end(ctx context.Context, op *command.Op) error {
	var tick <-chan time.Time
	limit := op.Req.AskedConcern().Timeout
	if limit > 0 {
		t := time.NewTicker(stallTick)
		defer t.Stop()
		tick = t.C
	}
	p := probe{limit: limit}
	defer p.stop()
	for {
		select {
		case <-r.done:
			return nil
		case <-ctx.Done():
			if err := op.Err(); err != nil {
				return err
			}
			return context.Cause(ctx)
		case <-tick:
			if r.stalled(max(limit, leastStall)) {
				return errGoesOn
			}
			p.begin(op, r)
		case err := <-p.answer:
			if err != nil {
				return errGoesOn
			}
			p.stop()
		case <-p.over:
			return errGoesOn
		}
	}
}

// leastStall is the minimum time for which a run has to wait for a majority before its client is told so, however short the wtimeout: an operation that is about to
// succeed must not be reported as one that has not finished.
const leastStall = 250 * time.Millisecond

// leastProbe is the minimum time that a node has to show that it has a majority, however short the wtimeout: a busy node must not be taken for one that has none.
const leastProbe = time.Second

// probe finds out whether the nodes that a run waits for have a majority.
type probe struct {
	limit  time.Duration
	next   time.Time       // when it may be begun again
	answer <-chan error    // of the nodes; nil while none are asked
	over   <-chan struct{} // closed when they should have answered
	cancel func()
}

// begin asks the nodes that have not answered for longer than the limit, if there are any, unless some have just been asked. Each is asked about a critical
// section that no run has, which a primary answers only after a write that a majority has, or a read that a majority has confirmed.
func (p *probe) begin(op *command.Op, r *run) {
	if p.answer != nil || time.Now().Before(p.next) {
		return
	}
	peers := r.unanswered(p.limit)
	if len(peers) == 0 {
		return
	}
	within := max(p.limit, leastProbe)
	p.next = time.Now().Add(2 * within)
	ctx, cancel := context.WithTimeout(op, within)
	answer := make(chan error, 1)
	p.answer, p.over, p.cancel = answer, ctx.Done(), cancel
	ask := msg.Doc(&msg.HoldsCriticalSection{ID: cluster.NewUUID()})
	go func() { // the client does not wait for a call that ignores its context
		var err error
		for _, peer := range peers {
			if err == nil {
				_, err = cluster.Run(ctx, peer, ask)
			}
		}
		answer <- err
	}()
}

// stop cancels the requests.
func (p *probe) stop() {
	if p.cancel != nil {
		p.cancel()
	}
	p.answer, p.over, p.cancel = nil, nil, nil
}
