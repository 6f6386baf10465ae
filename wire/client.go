package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// aLongTimeAgo is a deadline that makes a blocked read or write return at once.
var aLongTimeAgo = time.Unix(1, 0)

const clientReadBuffer = 4 << 10

// ClientConn is one connection to a server. One goroutine uses it at a time.
type ClientConn struct {
	conn     net.Conn
	host     string
	r        *bufio.Reader
	w        []byte
	lastID   int32
	broken   bool // a partial frame may be on the wire: the connection is unusable
	idle     time.Time
	compress CompressorID
	packed   bool

	// State belongs to the connection's owner (for results of the handshake).
	State any
}

// Dial connects to host (host:port or a UNIX socket's path).
func Dial(ctx context.Context, host string) (*ClientConn, error) {
	network := "tcp"
	if len(host) > 0 && host[0] == '/' {
		network = "unix"
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, host)
	if err != nil {
		return nil, hostError(ctx, host, err)
	}
	return NewClientConn(nc, host), nil
}

// NewClientConn wraps an established connection.
func NewClientConn(nc net.Conn, host string) *ClientConn {
	return &ClientConn{conn: nc, host: host, r: bufio.NewReaderSize(nc, clientReadBuffer)}
}

// SetCompressor makes requests compressed from now on; both sides must have agreed on it.
func (cc *ClientConn) SetCompressor(id CompressorID) { cc.compress, cc.packed = id, true }

// Host returns the dialled address.
func (cc *ClientConn) Host() string { return cc.host }

// LocalAddr returns this side's address.
func (cc *ClientConn) LocalAddr() net.Addr { return cc.conn.LocalAddr() }

// Usable reports whether the connection has had no error.
func (cc *ClientConn) Usable() bool { return !cc.broken }

// Close ends the connection.
func (cc *ClientConn) Close() error {
	cc.broken = true
	return cc.conn.Close()
}

// RoundTrip sends m and waits for its reply. m's RequestID is set. The reply owns its memory. The errors are
// *mongoerr.Error: HostUnreachable, NetworkTimeout, or the context's.
func (cc *ClientConn) RoundTrip(ctx context.Context, m *Message) (*Message, error) {
	if err := cc.Send(ctx, m); err != nil || !m.WantsReply() {
		return nil, err
	}
	return cc.Receive(ctx)
}

// Send writes m without waiting for its reply, which Receive reads.
func (cc *ClientConn) Send(ctx context.Context, m *Message) error {
	cc.lastID++
	m.RequestID = cc.lastID
	cc.w = AppendMessage(cc.w[:0], m)
	frame := cc.w
	if cc.packed {
		out, err := appendCompressed(nil, cc.compress, frame)
		if err != nil {
			return err
		}
		frame = out
	}
	done, err := cc.watch(ctx)
	if err != nil {
		return err
	}
	_, err = cc.conn.Write(frame)
	done()
	if cap(cc.w) > maxKeptReply {
		cc.w = nil
	}
	return cc.outcome(ctx, err)
}

// Receive reads the next reply: the answer to Send, or one more of several (flag MoreToCome).
func (cc *ClientConn) Receive(ctx context.Context) (*Message, error) {
	done, err := cc.watch(ctx)
	if err != nil {
		return nil, err
	}
	m, err := cc.readMessage()
	done()
	if err != nil {
		return nil, cc.outcome(ctx, err)
	}
	return m, nil
}

func (cc *ClientConn) readMessage() (*Message, error) {
	head, err := cc.r.Peek(4)
	if err != nil {
		return nil, err
	}
	n, err := frameLength(head, MaxInternalMessage)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, n)
	if _, err := io.ReadFull(cc.r, frame); err != nil {
		return nil, err
	}
	m := new(Message)
	if err := parseFrame(m, frame); err != nil {
		return nil, err
	}
	if m.ResponseTo != cc.lastID {
		return nil, frameErrorf("reply to request %d, expected one to %d", m.ResponseTo, cc.lastID)
	}
	if m.Flags&MoreToCome != 0 {
		cc.lastID = m.RequestID // the next reply of the chain answers this one
	}
	return m, nil
}

// watch makes the connection's blocking calls end with ctx, until the returned function is called.
func (cc *ClientConn) watch(ctx context.Context) (func(), error) {
	if cc.broken {
		return nil, mongoerr.Newf(mongoerr.HostUnreachable, "connection to %s is closed", cc.host)
	}
	if err := ctx.Err(); err != nil {
		return nil, contextError(ctx)
	}
	if ctx.Done() == nil {
		return func() {}, nil
	}
	stop := context.AfterFunc(ctx, func() { _ = cc.conn.SetDeadline(aLongTimeAgo) })
	return func() {
		if !stop() {
			cc.broken = true // the deadline in the past may be set after this call returns
		}
	}, nil
}

// outcome marks the connection as unusable after an error and returns the error to report.
func (cc *ClientConn) outcome(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	cc.broken = true
	return hostError(ctx, cc.host, err)
}

// hostError maps a network error to one with a code that callers distinguish.
func hostError(ctx context.Context, host string, err error) error {
	var own *mongoerr.Error
	var ne net.Error
	switch {
	case errors.As(err, &own):
		return err
	case ctx.Err() != nil:
		return contextError(ctx)
	case errors.As(err, &ne) && ne.Timeout():
		return mongoerr.Newf(mongoerr.NetworkTimeout, "Couldn't get a connection within the time limit or reply from %s: %v", host, err)
	}
	return mongoerr.Newf(mongoerr.HostUnreachable, "Error connecting to %s :: caused by :: %v", host, err)
}

// contextError returns why ctx ended: its cause if that is a *mongoerr.Error, else deadline or interruption.
func contextError(ctx context.Context) error {
	var own *mongoerr.Error
	if err := context.Cause(ctx); errors.As(err, &own) {
		return own
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit")
	}
	return mongoerr.New(mongoerr.Interrupted, "operation was interrupted")
}

// PoolOptions configure a Pool.
type PoolOptions struct {
	// Handshake runs on each new connection before it is used.
	Handshake func(ctx context.Context, cc *ClientConn) error
	// Dial makes a connection; nil for this package's Dial.
	Dial func(ctx context.Context, host string) (*ClientConn, error)

	MaxIdle     int           // idle connections kept per host; 0 means 64
	IdleTimeout time.Duration // how long an unused one is kept; 0 means a minute
	DialTimeout time.Duration // 0 means 20 seconds
}

// Pool keeps connections to many hosts. Its methods may be called from any goroutine.
type Pool struct {
	opts PoolOptions

	mu struct {
		sync.Mutex
		hosts  map[string]*hostPool
		closed bool
	}
}

type hostPool struct {
	idle    []*ClientConn // the most recently used one is last
	used    map[*ClientConn]struct{}
	dials   map[*context.CancelCauseFunc]struct{} // what ends each attempt to connect
	created atomic.Int64
}

// HostStats counts the connections to one host.
type HostStats struct {
	Host                          string
	InUse, Idle, Created, Dialing int64
}

// NewPool returns a pool, without connections yet.
func NewPool(opts PoolOptions) *Pool {
	if opts.MaxIdle == 0 {
		opts.MaxIdle = 64
	}
	if opts.IdleTimeout == 0 {
		opts.IdleTimeout = time.Minute
	}
	if opts.DialTimeout == 0 {
		opts.DialTimeout = 20 * time.Second
	}
	if opts.Dial == nil {
		opts.Dial = Dial
	}
	p := &Pool{opts: opts}
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

// Get returns an idle connection to host, or opens one. Put returns it, usable or not.
func (p *Pool) Get(ctx context.Context, host string) (*ClientConn, error) {
	for {
		cc, h, err := p.takeIdle(host)
		if err != nil {
			return nil, err
		}
		if cc == nil {
			return p.connect(ctx, h, host)
		}
		if alive(cc.conn) {
			return cc, nil
		}
		p.mu.Lock()
		delete(h.used, cc)
		p.mu.Unlock()
		_ = cc.Close()
	}
}

func (p *Pool) takeIdle(host string) (*ClientConn, *hostPool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, nil, mongoerr.New(mongoerr.ShutdownInProgress, "the connection pool is closed")
	}
	h := p.mu.hosts[host]
	if h == nil {
		h = &hostPool{used: map[*ClientConn]struct{}{}, dials: map[*context.CancelCauseFunc]struct{}{}}
		p.mu.hosts[host] = h
	}
	n := len(h.idle)
	if n == 0 {
		return nil, h, nil
	}
	cc := h.idle[n-1]
	h.idle = h.idle[:n-1]
	h.used[cc] = struct{}{}
	return cc, h, nil
}

// connect makes a connection for the pool, an attempt that Sever ends: a process that is stopped takes connections and never
// answers their handshake.
func (p *Pool) connect(ctx context.Context, h *hostPool, host string) (*ClientConn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.mu.Lock()
	h.dials[&cancel] = struct{}{}
	p.mu.Unlock()
	cc, err := p.Connect(ctx, host)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(h.dials, &cancel)
	if err != nil {
		return nil, err
	}
	h.created.Add(1)
	h.used[cc] = struct{}{}
	return cc, nil
}

// Connect makes a connection like those of the pool, which belongs to the caller, who closes it.
func (p *Pool) Connect(ctx context.Context, host string) (*ClientConn, error) {
	dctx, cancel := context.WithTimeoutCause(ctx, p.opts.DialTimeout,
		mongoerr.Newf(mongoerr.NetworkTimeout, "Couldn't connect to %s within %v", host, p.opts.DialTimeout))
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
	now := time.Now()
	var stale []*ClientConn
	p.mu.Lock()
	h := p.mu.hosts[cc.host]
	switch {
	case h == nil || p.mu.closed || cc.broken || len(h.idle) >= p.opts.MaxIdle:
		stale = append(stale, cc)
	default:
		cc.idle = now
		h.idle = append(h.idle, cc)
		k := 0
		for k < len(h.idle) && now.Sub(h.idle[k].idle) > p.opts.IdleTimeout {
			k++
		}
		stale = append(stale, h.idle[:k]...)
		h.idle = append(h.idle[:0], h.idle[k:]...)
	}
	if h != nil {
		delete(h.used, cc)
	}
	p.mu.Unlock()
	for _, c := range stale {
		_ = c.Close()
	}
}

// Drop closes the idle connections to host, as after a step-down or a failed request.
func (p *Pool) Drop(host string) {
	p.mu.Lock()
	var idle []*ClientConn
	if h := p.mu.hosts[host]; h != nil {
		idle, h.idle = h.idle, nil
	}
	p.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
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
		for cancel := range h.dials {
			(*cancel)(mongoerr.Newf(mongoerr.HostUnreachable, "connections to %s are being closed", host))
		}
	}
}

// Stats lists the hosts and their connections (command connPoolStats).
func (p *Pool) Stats() []HostStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]HostStats, 0, len(p.mu.hosts))
	for host, h := range p.mu.hosts {
		out = append(out, HostStats{host, int64(len(h.used)), int64(len(h.idle)), h.created.Load(), int64(len(h.dials))})
	}
	return out
}

// Close closes all idle connections; those in use are closed when they are put back.
func (p *Pool) Close() {
	p.mu.Lock()
	p.mu.closed = true
	hosts := p.mu.hosts
	p.mu.hosts = map[string]*hostPool{}
	p.mu.Unlock()
	for _, h := range hosts {
		for _, c := range h.idle {
			_ = c.Close()
		}
	}
}
