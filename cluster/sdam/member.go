package sdam

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Timing are the monitor's intervals.
type Timing struct {
	Heartbeat  time.Duration // how long a hello is awaited: heartbeatFrequencyMS
	Timeout    time.Duration // how long an answer may be late
	MinBetween time.Duration // minHeartbeatFrequencyMS: between checks of a member that does not answer
	Select     time.Duration // how long a call waits for a member that it can go to
}

// DefaultTiming is what the real router uses.
var DefaultTiming = Timing{Heartbeat: 10 * time.Second, Timeout: 5 * time.Second, MinBetween: 500 * time.Millisecond, Select: 15 * time.Second}

// member watches one member of a set.
type member struct {
	host string
	set  *Set
	wake chan struct{} // asks for a check now
	stop context.CancelFunc
	ctx  context.Context
	done chan struct{}

	mu struct {
		sync.Mutex
		abort context.CancelFunc // ends the hello under way
	}
	known *Server // what the last hello said; the goroutine's own
	rtt   time.Duration
}

func newMember(s *Set, host string) *member {
	m := &member{host: host, set: s, wake: make(chan struct{}, 1), done: make(chan struct{})}
	m.ctx, m.stop = context.WithCancel(context.Background())
	go m.run()
	return m
}

// check asks for a look at the member now: its hello under way, if one is awaited, is given up.
func (m *member) check() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
	m.mu.Lock()
	if m.mu.abort != nil {
		m.mu.abort()
	}
	m.mu.Unlock()
}

// run asks the member for its state until it is stopped: a plain hello, whose time is the round trip's, then one that is
// answered when something changes.
func (m *member) run() {
	defer close(m.done)
	for m.ctx.Err() == nil {
		s := m.plain()
		for s != nil && s.versioned && m.ctx.Err() == nil {
			m.known = s
			m.set.update(s)
			if s = m.awaited(); s == nil {
				break
			}
			if s.Kind != Unknown && s.process == m.known.process && s.counter == m.known.counter {
				m.known = s
				m.set.update(s)
				break // nothing happened for a heartbeat: measure the round trip again
			}
		}
		if s == nil || m.ctx.Err() != nil {
			continue // asked to look again, or to end
		}
		if s.Kind == Unknown {
			m.set.update(s)
			if m.known == nil {
				m.pause(m.set.timing.MinBetween)
			}
			m.known = nil // one that has just answered is asked again at once: a connection may break alone
			continue
		}
		if !s.versioned {
			m.set.update(s)
			m.pause(m.set.timing.Heartbeat)
		}
	}
}

// pause waits between two checks, or until one is asked for. Even then a member that failed is left alone for a moment.
func (m *member) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.ctx.Done():
	case <-m.wake:
		t.Reset(min(d, m.set.timing.MinBetween/5))
		select {
		case <-t.C:
		case <-m.ctx.Done():
		}
	}
}

// plain asks without waiting for a change.
func (m *member) plain() *Server {
	select {
	case <-m.wake:
	default:
	}
	start := time.Now()
	s := m.hello(helloPlain, m.set.timing.Timeout)
	if s != nil && s.Kind != Unknown {
		s.RTT = m.average(time.Since(start))
	}
	return s
}

// average is the moving average of the drivers' specification "Server Selection".
func (m *member) average(sample time.Duration) time.Duration {
	if m.set.net.Local(m.host) {
		return 0
	}
	if m.rtt == 0 {
		m.rtt = sample
	} else {
		m.rtt = (sample + 4*m.rtt) / 5
	}
	return m.rtt
}

var helloPlain = value.Doc(value.F("hello", value.NewInt32(1)), value.F("$db", value.NewString("admin")))

// awaited asks to be answered when the member is no more what it was, or after a heartbeat.
func (m *member) awaited() *Server {
	version := value.Doc(value.F("processId", value.NewObjectID(m.known.process)), value.F("counter", value.NewInt64(m.known.counter)))
	t := m.set.timing
	return m.hello(value.Doc(
		value.F("hello", value.NewInt32(1)),
		value.F("topologyVersion", value.NewDocument(version)),
		value.F("maxAwaitTimeMS", value.NewInt64(t.Heartbeat.Milliseconds())),
		value.F("$db", value.NewString("admin"))), t.Heartbeat+t.Timeout)
}

// hello asks once. nil means that the question was given up: a check was asked for, or the member is stopped.
func (m *member) hello(cmd []byte, limit time.Duration) *Server {
	late := mongoerr.Newf(mongoerr.NetworkTimeout, "%s did not answer hello within %v", m.host, limit)
	ctx, cancel := context.WithTimeoutCause(m.ctx, limit, late)
	defer cancel()
	m.mu.Lock()
	m.mu.abort = cancel
	m.mu.Unlock()
	if len(m.wake) > 0 {
		cancel() // asked for before abort was there to be called
	}
	reply, _, err := m.set.net.Call(ctx, m.host, &wire.Message{OpCode: wire.OpMsg, Body: cmd}, nil)
	m.mu.Lock()
	m.mu.abort = nil
	m.mu.Unlock()
	if err == nil {
		err = cluster.ReplyError(reply)
	}
	if err == nil {
		s := parseHello(m.host, reply, time.Now())
		s.member, s.RTT = m, m.rtt
		return s
	}
	if m.ctx.Err() != nil || ctx.Err() == context.Canceled {
		return nil
	}
	return &Server{Host: m.host, Kind: Unknown, Updated: time.Now(), member: m, Err: err}
}
