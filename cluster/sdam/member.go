package sdam

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Timing has the monitor's intervals.
type Timing struct {
	Heartbeat  time.Duration // the longest time between two streamed hellos: heartBeatFrequencyMs
	Timeout    time.Duration // how long connecting may take, and how late a hello may be: connectTimeoutMs
	MinBetween time.Duration // minHeartbeatFrequencyMS: between checks of a member that does not reply
	Select     time.Duration // how long a call waits for an eligible member: defaultFindReplicaSetHostTimeoutMS
	Window     time.Duration // how much slower than the fastest an eligible member may be: localThresholdMs
	Poll       bool          // hello is sent once per heartbeat instead of being streamed: replicaSetMonitorProtocol sdam
}

// DefaultTiming is the timing of the real router.
var DefaultTiming = Timing{
	Heartbeat: 10 * time.Second, Timeout: 10 * time.Second, MinBetween: 500 * time.Millisecond,
	Select: 15 * time.Second, Window: 15 * time.Millisecond,
}

// member monitors one member of a set.
type member struct {
	host string
	set  *Set
	wake chan struct{} // requests a check soon
	stop context.CancelFunc
	ctx  context.Context
	done chan struct{}

	mu struct {
		sync.Mutex
		abort context.CancelFunc // ends the wait for a streamed hello
		again bool               // the next wait is to be ended before it begins
		rtt   time.Duration
	}
	// Owned by the goroutine: the connection to the member, whether it streams, its last reply, and its ping loop.
	watch  Watch
	more   bool
	known  *Server
	pinger sync.WaitGroup
	pings  bool
}

func newMember(s *Set, host string) *member {
	m := &member{host: host, set: s, wake: make(chan struct{}, 1), done: make(chan struct{})}
	m.ctx, m.stop = context.WithCancel(context.Background())
	go m.run()
	return m
}

// request requests a check soon. A member that streams needs none: it reports changes by itself.
func (m *member) request() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// check requests a check of the member over a new connection, instead of waiting for what it streams.
func (m *member) check() {
	m.mu.Lock()
	if m.mu.again = true; m.mu.abort != nil {
		m.mu.abort()
	}
	m.mu.Unlock()
	m.request()
}

// run follows the member until it is stopped: a first hello on a connection that is the monitor's own, then those that
// the member streams whenever it changes.
func (m *member) run() {
	defer close(m.done)
	defer m.pinger.Wait()
	defer m.hangUp()
	for m.ctx.Err() == nil {
		s := m.look()
		if s == nil {
			continue // a check was requested, or the member is to stop
		}
		m.set.update(s)
		was := m.known
		m.known = s
		switch {
		case s.Kind == Unknown:
			m.known = nil
			if was == nil {
				m.pause(m.set.timing().MinBetween)
			} // a member that has just replied is checked again at once: only its connection may have failed
		case s.versioned && !m.set.timing().Poll:
			m.measure()
		default:
			m.pause(m.set.timing().Heartbeat)
		}
	}
}

// pause waits between two checks, or until one is requested. Even then a member that failed is not checked again at once.
func (m *member) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.ctx.Done():
	case <-m.wake:
		t.Reset(min(d, m.set.timing().MinBetween/5))
		select {
		case <-t.C:
		case <-m.ctx.Done():
		}
	}
}

// look returns the member's state: at once if there is no connection or the member does not stream, otherwise as
// soon as the state changes or a heartbeat has passed. nil means that the check was abandoned.
func (m *member) look() *Server {
	t := m.set.timing()
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	var reply []byte
	var err error
	switch {
	case m.watch == nil:
		reply, err = m.connect(ctx, m.checkTimeout(*t))
	case m.more:
		defer m.abortable(cancel)()
		reply, err = m.within(ctx, t.Heartbeat+t.Timeout, func(ctx context.Context) ([]byte, bool, error) { return m.watch.Next(ctx) })
	case t.Poll || !m.known.versioned:
		reply, err = m.within(ctx, t.Timeout, func(ctx context.Context) ([]byte, bool, error) { return m.watch.Ask(ctx, helloPlain, false) })
	default:
		defer m.abortable(cancel)()
		cmd := awaitedHello(m.known, t.Heartbeat)
		reply, err = m.within(ctx, t.Heartbeat+t.Timeout, func(ctx context.Context) ([]byte, bool, error) { return m.watch.Ask(ctx, cmd, true) })
	}
	if err == nil {
		err = cluster.ReplyError(reply)
	}
	if err == nil {
		s := parseHello(m.host, reply, time.Now())
		s.member, s.RTT = m, m.average()
		return s
	}
	m.hangUp()
	if ctx.Err() != nil {
		return nil
	}
	return &Server{Host: m.host, Kind: Unknown, Updated: time.Now(), member: m, Err: err}
}

// checkTimeout returns how long the member may take to report its state. A primary that another has replaced gets less
// time: calls to it may be waiting for a paused process, and those that can be repeated go to the new primary once
// their connections are closed.
func (m *member) checkTimeout(t Timing) time.Duration {
	if cur := m.set.Topology().server(m.host); cur != nil && cur.Err == errDemoted {
		return min(t.Timeout, t.MinBetween)
	}
	return t.Timeout
}

// abortable lets check end a wait by calling cancel, and returns a function that undoes that.
func (m *member) abortable(cancel context.CancelFunc) func() {
	m.mu.Lock()
	m.mu.abort = cancel
	if m.mu.again {
		cancel()
	}
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		m.mu.abort = nil
		m.mu.Unlock()
	}
}

// within runs one exchange, which may take as long as limit.
func (m *member) within(ctx context.Context, limit time.Duration, f func(context.Context) ([]byte, bool, error)) (reply []byte, err error) {
	late := mongoerr.Newf(mongoerr.NetworkTimeout, "%s did not answer hello within %v", m.host, limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	reply, m.more, err = f(ctx)
	return reply, err
}

// connect opens a connection and asks for the member's state, which takes a round trip.
func (m *member) connect(ctx context.Context, limit time.Duration) ([]byte, error) {
	select {
	case <-m.wake:
	default:
	}
	defer func() {
		m.mu.Lock()
		m.mu.again = false // this one satisfies a check that was requested meanwhile
		m.mu.Unlock()
	}()
	return m.within(ctx, limit, func(ctx context.Context) ([]byte, bool, error) {
		w, err := m.set.net.Watch(ctx, m.host)
		if err != nil {
			return nil, false, err
		}
		m.watch = w
		return m.ping(ctx, w, helloPlain)
	})
}

func (m *member) hangUp() {
	if m.watch != nil {
		m.watch.Close()
		m.watch, m.more = nil, false
	}
}

// ping sends one hello and records how long the reply took.
func (m *member) ping(ctx context.Context, w Watch, hello []byte) ([]byte, bool, error) {
	start := time.Now()
	reply, _, err := w.Ask(ctx, hello, false)
	if err == nil && cluster.ReplyError(reply) == nil {
		m.sample(time.Since(start))
	}
	return reply, false, err
}

// sample adds a round trip to the moving average of the drivers' specification "Server Selection".
func (m *member) sample(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.set.net.Local(m.host):
		m.mu.rtt = 0
	case m.mu.rtt == 0:
		m.mu.rtt = took
	default:
		m.mu.rtt = (took + 4*m.mu.rtt) / 5
	}
}

func (m *member) average() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.rtt
}

// pingEvery is the longest time between two pings. The member relies on them, too: a process that hangs
// although its connections remain sends none.
const pingEvery = 2 * time.Second

// measure starts to measure round trips periodically on a separate connection: streamed hellos do not show them. A
// call within the process takes no measurable time.
func (m *member) measure() {
	if m.pings || m.set.net.Local(m.host) {
		return
	}
	m.pings = true
	m.pinger.Go(m.runPings)
}

// runPings measures until the member is stopped. Errors here do not count against the member: its stream decides.
func (m *member) runPings() {
	var w Watch
	defer func() {
		if w != nil {
			w.Close()
		}
	}()
	for m.ctx.Err() == nil {
		t := m.set.timing()
		every := min(t.Heartbeat, pingEvery)
		ctx, cancel := context.WithTimeout(m.ctx, t.Timeout)
		var err error
		if w == nil {
			w, err = m.set.net.Watch(ctx, m.host)
		}
		if err == nil {
			if _, _, err = m.ping(ctx, w, cluster.HelloEvery(every)); err != nil {
				w.Close()
				w = nil
			}
		}
		cancel()
		select {
		case <-time.After(every):
		case <-m.ctx.Done():
		}
	}
}

var helloPlain = msg.Doc(new(msg.Hello))

// awaitedHello requests a reply when the member's state changes, or after a heartbeat.
func awaitedHello(known *Server, heartbeat time.Duration) []byte {
	return msg.Doc(&msg.Hello{Known: &msg.TopologyVersion{Process: known.process, Counter: known.counter}, Await: heartbeat.Milliseconds()})
}
