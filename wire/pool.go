package wire

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// PoolLimits are the sizes and times of a pool for one host.
type PoolLimits struct {
	Min, Max    int           // connections
	Connecting  int           // connections that are being made or checked at a time
	HostTimeout time.Duration // a host that has not been called for this time loses its connections
	Refresh     time.Duration // a connection that has been idle for this time is checked, or closed if there are more than Min
	Setup       time.Duration // how long making or checking one may take, and waiting for one
}

// DefaultPoolLimits are those of a pool without PoolOptions.Limits.
var DefaultPoolLimits = PoolLimits{Min: 1, Max: 1<<31 - 1, Connecting: 2, HostTimeout: 5 * time.Minute, Refresh: time.Minute, Setup: 20 * time.Second}

// PoolOptions configure a Pool. Its functions may be called from any goroutine, and Limits and Urgent must not call the pool.
type PoolOptions struct {
	// Handshake runs on each new connection before it is used.
	Handshake func(ctx context.Context, cc *ClientConn) error
	// Dial makes a connection; nil for this package's Dial.
	Dial func(ctx context.Context, host string) (*ClientConn, error)
	// Check exchanges a message with the host of an idle connection; nil for none.
	Check func(ctx context.Context, cc *ClientConn) error
	// Limits returns the limits in force for a host; nil for DefaultPoolLimits.
	Limits func(host string) PoolLimits
	// Urgent reports whether others may be waiting for what a call does, so that it must not wait for their connections; nil means that no
	// call is.
	Urgent func(ctx context.Context) bool
	// Follow returns the hosts that are to have more connections than the minimum, and how many; nil for none.
	Follow func(hosts map[string]HostLoad) map[string]int
}

// HostLoad has the number of connections to a host, and of those in use.
type HostLoad struct{ Open, InUse int }

// Pool keeps connections to many hosts. Its methods may be called from any goroutine.
//
// A call takes an idle connection, or waits for the first that another call puts back or that has been made meanwhile, in the order of
// arrival. At most PoolLimits.Connecting are made at a time, so that many calls at once do not overwhelm a host with handshakes; calls
// that overlap only briefly then use each other's connections.
//
// Invariant: no call waits forever. Connecting ends within PoolLimits.Setup, and a call that still waits after that time gets an error.
// Hazard: calls that hold all connections to a host (PoolLimits.Max) may wait there for something that only another call to it brings about:
// the next statement of a transaction whose locks they wait for, the decision of a prepared one, or what a node asks in the course of
// serving one of them. Such calls are urgent: they come before the others, and over the limit where everything is in use. Calls that are not
// urgent hold no resources that others wait for, so they may wait. Rejected: a limit for all calls alike, with which the calls of a transaction
// wait for connections that are held by operations that wait for its locks.
type Pool struct {
	opts PoolOptions
	life context.Context // of connections that are being made
	end  context.CancelCauseFunc
	wg   sync.WaitGroup // goroutines of the pool

	mu struct {
		sync.Mutex
		hosts   map[string]*hostPool
		tending bool
		closed  bool
	}
}

type hostPool struct {
	host     string
	idle     []*ClientConn // the most recently used one is last
	used     map[*ClientConn]struct{}
	dials    map[*dialing]struct{}
	checks   int       // connections that are being checked
	urgent   list.List // of *caller
	waiting  list.List // of *caller
	called   time.Time // when a connection was last put back
	failed   time.Time // when making one last failed
	followed int       // the minimum by PoolOptions.Follow

	created, refreshed, unused, rejected int64
	waits                                [waitSteps]int64
}

// dialing is an attempt to make a connection.
type dialing struct {
	cancel context.CancelCauseFunc
	began  time.Time
}

// slowDial is the time after which an attempt is no longer counted on: its packets may have been lost, and another attempt may get through.
const slowDial = time.Second

// caller is a call that waits for a connection.
type caller struct {
	got   chan given // has room for one
	since time.Time
	in    *list.List
	at    *list.Element // nil once it has got something, or has left
}

type given struct {
	cc  *ClientConn
	err error
}

// HostStats counts the connections to one host.
type HostStats struct {
	Host                          string
	InUse, Idle, Created, Dialing int64 // Dialing: being made or checked

	Refreshed, NeverUsed, Rejected int64 // successful checks, connections closed unused, calls that got none in time
	// Waits counts calls by how long they waited for a connection, in steps of WaitStep; the last counts all that waited longer.
	Waits [waitSteps]int64
}

// WaitStep is the width of the steps of HostStats.Waits.
const WaitStep = 50 * time.Millisecond

const waitSteps = 21

// NewPool returns a pool, without connections yet.
func NewPool(opts PoolOptions) *Pool {
	if opts.Limits == nil {
		opts.Limits = func(string) PoolLimits { return DefaultPoolLimits }
	}
	if opts.Dial == nil {
		opts.Dial = Dial
	}
	p := &Pool{opts: opts}
	p.life, p.end = context.WithCancelCause(context.Background())
	p.mu.hosts = map[string]*hostPool{}
	return p
}

// RoundTrip sends m to host on a pooled connection and returns the reply. Idle connections that the server has
// closed are detected and skipped before m is sent; after later errors, retrying is up to the caller.
func (p *Pool) RoundTrip(ctx context.Context, host string, m *Message) (*Message, error) {
	cc, err := p.Get(ctx, host)
	if err != nil {
		return nil, err
	}
	reply, err := cc.RoundTrip(ctx, m)
	p.Put(cc)
	return reply, err
}

// Get returns an idle connection to host, or waits for one. Put returns it, usable or not.
func (p *Pool) Get(ctx context.Context, host string) (*ClientConn, error) {
	for {
		cc, w, err := p.take(ctx, host)
		if err != nil {
			return nil, err
		}
		if cc == nil {
			return p.await(ctx, host, w)
		}
		if alive(cc.conn) {
			return cc, nil
		}
		_ = cc.Close()
		p.Put(cc)
	}
}

// take returns an idle connection, or joins the queue for one.
func (p *Pool) take(ctx context.Context, host string) (*ClientConn, *caller, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, nil, errPoolClosed
	}
	h := p.host(host)
	if n := len(h.idle); n > 0 {
		cc := h.idle[n-1]
		h.idle = h.idle[:n-1]
		h.used[cc] = struct{}{}
		h.waits[0]++
		return cc, nil, nil
	}
	w := &caller{got: make(chan given, 1), since: time.Now(), in: &h.waiting}
	if p.opts.Urgent != nil && p.opts.Urgent(ctx) {
		w.in = &h.urgent
	}
	w.at = w.in.PushBack(w)
	p.grow(h)
	return nil, w, nil
}

var errPoolClosed = mongoerr.New(mongoerr.ShutdownInProgress, "the connection pool is closed")

// host finds or makes the entry of a host; mu must be held.
func (p *Pool) host(host string) *hostPool {
	h := p.mu.hosts[host]
	if h == nil {
		h = &hostPool{host: host, used: map[*ClientConn]struct{}{}, dials: map[*dialing]struct{}{}, called: time.Now()}
		p.mu.hosts[host] = h
		if !p.mu.tending {
			p.mu.tending = true
			p.wg.Go(p.tend)
		}
	}
	return h
}

// warmPoll is the interval at which Warm checks the pool.
const warmPoll = 5 * time.Millisecond

// Warm makes the connections that the minimum of each host asks for. It returns once they are there, or cannot be made, or ctx ends.
func (p *Pool) Warm(ctx context.Context, hosts []string) {
	for {
		cold := false
		p.mu.Lock()
		for _, name := range hosts {
			h, l := p.host(name), p.opts.Limits(name)
			p.grow(h)
			cold = cold || h.failed.IsZero() && len(h.idle)+len(h.used) < min(l.Min, l.Max)
		}
		cold = cold && !p.mu.closed
		p.mu.Unlock()
		if !cold {
			return
		}
		select {
		case <-time.After(warmPoll):
		case <-ctx.Done():
			return
		}
	}
}

// await waits for a connection until the call ends.
func (p *Pool) await(ctx context.Context, host string, w *caller) (*ClientConn, error) {
	setup := p.opts.Limits(host).Setup
	late := time.NewTimer(setup)
	defer late.Stop()
	var err error
	select {
	case g := <-w.got:
		return g.cc, g.err
	case <-ctx.Done():
		err = contextError(ctx)
	case <-late.C:
		err = mongoerr.Newf(mongoerr.PooledConnectionAcquisitionExceededTimeLimit, "Couldn't get a connection to %s within the time limit of %v: all are in use", host, setup)
	}
	p.mu.Lock()
	if w.at != nil {
		w.in.Remove(w.at)
		w.at = nil
		if h := p.mu.hosts[host]; h != nil {
			h.rejected++
		}
		w.got <- given{err: err}
	}
	p.mu.Unlock()
	g := <-w.got // it may have come at the last moment
	if g.cc != nil && ctx.Err() != nil {
		p.Put(g.cc)
		return nil, contextError(ctx)
	}
	return g.cc, g.err
}

// open counts the connections to a host, with those that are being made.
func (h *hostPool) open() int { return len(h.idle) + len(h.used) + h.checks + len(h.dials) }

// grow begins to make the connections that are needed; mu must be held.
func (p *Pool) grow(h *hostPool) {
	if p.mu.closed {
		return
	}
	l, soon := p.opts.Limits(h.host), h.checks
	for d := range h.dials {
		if time.Since(d.began) < slowDial {
			soon++
		}
	}
	for ; len(h.dials)+h.checks < max(1, l.Connecting); soon++ {
		few := h.open() < min(l.Max, max(l.Min, h.followed)) && time.Since(h.failed) > l.Setup/4
		if !few && h.urgent.Len()+h.waiting.Len() <= soon || h.open() >= max(1, l.Max) && h.urgent.Len() <= len(h.dials) {
			return
		}
		ctx, cancel := context.WithCancelCause(p.life)
		d := &dialing{cancel, time.Now()}
		h.dials[d] = struct{}{}
		p.wg.Go(func() { p.dial(ctx, h, d) })
	}
}

// dial makes a connection for whichever call is first in the queue when it is ready.
//
// If that fails, all waiting calls get the error: each of them would otherwise wait for an attempt of its own, one after another, to find
// out that a host does not answer.
func (p *Pool) dial(ctx context.Context, h *hostPool, d *dialing) {
	cc, err := p.Connect(ctx, h.host)
	d.cancel(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, current := h.dials[d] // not if Sever has cancelled it
	delete(h.dials, d)
	switch {
	case err != nil:
		if current {
			h.failed = time.Now()
			h.fail(err)
		}
	case !current || p.mu.closed || p.mu.hosts[h.host] != h:
		_ = cc.Close()
	default:
		h.created++
		h.give(cc)
	}
	if err == nil { // otherwise the next calls try again
		p.grow(h)
	}
}

// give hands a connection to the call that has waited longest, urgent ones first, or keeps it as idle. mu must be held.
func (h *hostPool) give(cc *ClientConn) {
	for _, q := range []*list.List{&h.urgent, &h.waiting} {
		if e := q.Front(); e != nil {
			w := q.Remove(e).(*caller)
			w.at = nil
			h.used[cc] = struct{}{}
			h.waits[min(int(time.Since(w.since)/WaitStep), len(h.waits)-1)]++
			w.got <- given{cc: cc}
			return
		}
	}
	cc.idle = time.Now()
	h.idle = append(h.idle, cc)
}

// fail ends all calls that wait for a connection; mu must be held.
func (h *hostPool) fail(err error) {
	for _, q := range []*list.List{&h.urgent, &h.waiting} {
		for e := q.Front(); e != nil; e = q.Front() {
			w := q.Remove(e).(*caller)
			w.at = nil
			own := err
			var e *mongoerr.Error
			if errors.As(err, &e) {
				one := *e // callers add to their errors
				own = &one
			}
			w.got <- given{err: own}
		}
	}
}

// Connect makes a connection like those of the pool, which the caller owns and must close.
func (p *Pool) Connect(ctx context.Context, host string) (*ClientConn, error) {
	setup := p.opts.Limits(host).Setup
	dctx, cancel := context.WithTimeoutCause(ctx, setup, mongoerr.Newf(mongoerr.NetworkTimeout, "Couldn't connect to %s within %v", host, setup))
	defer cancel()
	cc, err := p.opts.Dial(dctx, host)
	if err == nil && p.opts.Handshake != nil {
		if err = p.opts.Handshake(dctx, cc); err != nil {
			_ = cc.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	return cc, nil
}

// Put returns a connection to the pool.
func (p *Pool) Put(cc *ClientConn) {
	cc.used = true
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.mu.hosts[cc.host]
	if h == nil {
		_ = cc.Close()
		return
	}
	if _, ours := h.used[cc]; !ours {
		_ = cc.Close() // of an entry that has been closed since
		return
	}
	delete(h.used, cc)
	h.called = time.Now()
	waiting := h.urgent.Len()+h.waiting.Len() > 0
	switch {
	case cc.broken:
		_ = cc.Close()
		if waiting {
			p.grow(h)
		}
	case h.urgent.Len() == 0 && h.open() >= max(1, p.opts.Limits(h.host).Max):
		_ = cc.Close() // one too many: it was made for an urgent call, or the limit has been lowered
	default:
		h.give(cc)
	}
}

// tend maintains the idle connections until the pool is closed.
func (p *Pool) tend() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			p.tendAll(time.Now())
		case <-p.life.Done():
			return
		}
	}
}

// tendAll closes and checks connections that have been idle for long, and makes those that the minimum of a host asks for.
func (p *Pool) tendAll(now time.Time) {
	load := p.load(now)
	var follow map[string]int
	if p.opts.Follow != nil {
		follow = p.opts.Follow(load)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return
	}
	for name := range follow {
		p.host(name)
	}
	for name, h := range p.mu.hosts {
		h.followed = follow[name]
		if _, called := load[name]; !called && h.followed == 0 && h.open() == len(h.idle) {
			h.discard(len(h.idle))
			delete(p.mu.hosts, name)
			continue
		}
		p.rest(h, now)
		p.grow(h)
	}
}

// load counts the connections to the hosts that have been called lately.
func (p *Pool) load(now time.Time) map[string]HostLoad {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]HostLoad, len(p.mu.hosts))
	for name, h := range p.mu.hosts {
		if n := h.open(); n > len(h.idle) || now.Sub(h.called) < p.opts.Limits(name).HostTimeout {
			out[name] = HostLoad{n, len(h.used)}
		}
	}
	return out
}

// discard closes the n connections that have been idle longest; mu must be held.
func (h *hostPool) discard(n int) {
	for _, cc := range h.idle[:n] {
		if !cc.used {
			h.unused++
		}
		_ = cc.Close()
	}
	h.idle = slices.Delete(h.idle, 0, n)
}

// rest closes the connections to a host that have been idle too long, as far as there are enough others, and has the remaining ones checked. mu must
// be held.
func (p *Pool) rest(h *hostPool, now time.Time) {
	l := p.opts.Limits(h.host)
	rested := 0
	for rested < len(h.idle) && now.Sub(h.idle[rested].idle) >= l.Refresh {
		rested++
	}
	h.discard(min(rested, max(0, h.open()-max(l.Min, h.followed))))
	for len(h.idle) > 0 && now.Sub(h.idle[0].idle) >= l.Refresh && len(h.dials)+h.checks < max(1, l.Connecting) {
		cc := h.idle[0]
		h.idle = slices.Delete(h.idle, 0, 1)
		h.checks++
		p.wg.Go(func() { p.check(h, cc, l.Setup) })
	}
}

// check finds out whether the host of an idle connection still answers.
func (p *Pool) check(h *hostPool, cc *ClientConn, limit time.Duration) {
	ctx, cancel := context.WithTimeout(p.life, limit)
	defer cancel()
	ok := alive(cc.conn) && (p.opts.Check == nil || p.opts.Check(ctx, cc) == nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	h.checks--
	if !ok || cc.broken || p.mu.closed || p.mu.hosts[h.host] != h {
		_ = cc.Close()
	} else {
		h.refreshed++
		h.give(cc)
		p.rest(h, time.Now())
	}
	p.grow(h)
}

// Drop closes the idle connections to host, as after a step-down or a failed request.
func (p *Pool) Drop(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.mu.hosts[host]; h != nil {
		h.discard(len(h.idle))
	}
}

// Sever closes all connections to host, those that are being made too: calls that wait for one, or for a reply on one, fail.
func (p *Pool) Sever(host string) {
	p.Drop(host)
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.mu.hosts[host]; h != nil {
		for cc := range h.used {
			_ = cc.conn.Close() // the connection's user marks it as broken
		}
		err := mongoerr.Newf(mongoerr.HostUnreachable, "connections to %s are being closed", host)
		for d := range h.dials {
			d.cancel(err)
		}
		clear(h.dials)
		h.fail(err)
	}
}

// Stats lists the hosts and their connections (command connPoolStats).
func (p *Pool) Stats() []HostStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]HostStats, 0, len(p.mu.hosts))
	for host, h := range p.mu.hosts {
		out = append(out, HostStats{
			Host: host, InUse: int64(len(h.used)), Idle: int64(len(h.idle)), Created: h.created, Dialing: int64(len(h.dials) + h.checks),
			Refreshed: h.refreshed, NeverUsed: h.unused, Rejected: h.rejected, Waits: h.waits,
		})
	}
	return out
}

// Close closes all idle connections; those in use are closed when they are put back.
func (p *Pool) Close() {
	p.mu.Lock()
	p.mu.closed = true
	for _, h := range p.mu.hosts {
		h.discard(len(h.idle))
		h.fail(errPoolClosed)
	}
	p.mu.hosts = map[string]*hostPool{}
	p.mu.Unlock()
	p.end(errPoolClosed)
	p.wg.Wait()
}
