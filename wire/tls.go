package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

const (
	handshakeTimeout = 30 * time.Second
	maxHandshake     = 256 << 10 // how much a client may send before its handshake is done; certificate chains are shorter
)

// TLS is how a server accepts encrypted connections. They share the port with plain ones: a connection that begins with
// a ClientHello is encrypted (tls.Server over the event loop's bytes), every other is plain.
type TLS struct {
	// Config returns the configuration for the next connection, so that certificates can change while the server
	// runs.
	Config func() *tls.Config
	// Require reports whether plain connections over TCP are refused. Those over UNIX sockets do not leave the
	// machine.
	Require func() bool
	// Accepted, if not nil, is called after each handshake, from a goroutine of the connection.
	Accepted func(c *Conn, state tls.ConnectionState)
}

var errPlain = &ForeignError{mongoerr.New(mongoerr.SSLHandshakeFailed, "The server is configured to only allow SSL connections")}

// errWouldBlock is returned by the transport in the event loop when there are no bytes. crypto/tls keeps a partial
// record across an error that is Temporary, and continues with the next call.
var errWouldBlock net.Error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "no bytes have arrived" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// tlsSession is the encrypted side of a connection, and the transport (net.Conn) beneath it.
//
// crypto/tls cannot suspend a handshake, so a goroutine runs it, fed by the event loop through raw. From then on
// (up) only the event loop reads: the transport takes bytes directly from gnet and returns errWouldBlock if
// there are none. Writes come from any goroutine: crypto/tls serialises them, and the transport never blocks.
type tlsSession struct {
	c    *Conn
	conn *tls.Conn
	up   atomic.Bool // the handshake is done

	// head is used only by the event loop: it has as much of the next frame's length as has arrived.
	head struct {
		b    [4]byte
		fill int
	}
	mu struct {
		sync.Mutex
		arrived sync.Cond
		raw     []byte // what arrived during the handshake and has not been read yet
		closed  bool
	}
}

// startTLS begins the handshake of a connection whose first bytes are a ClientHello. It runs in the event loop.
func (c *Conn) startTLS() {
	t := &tlsSession{c: c}
	t.mu.arrived.L = &t.mu
	t.conn = tls.Server(t, c.srv.opts.TLS.Config())
	c.tls.Store(t)
	c.srv.handshakes.Add(1)
	go t.handshake()
}

func (t *tlsSession) handshake() {
	s := t.c.srv
	defer s.handshakes.Done()
	ctx, cancel := context.WithTimeout(t.c.ctx, handshakeTimeout)
	defer cancel()
	if err := t.conn.HandshakeContext(ctx); err != nil {
		if t.c.ctx.Err() == nil { // otherwise the client has disconnected, or the server is stopping
			s.badFrame(t.c, &ForeignError{mongoerr.New(mongoerr.SSLHandshakeFailed, err.Error())})
		}
		t.c.Close()
		return
	}
	state := t.conn.ConnectionState()
	s.stats.handshake(state.Version)
	if accepted := s.opts.TLS.Accepted; accepted != nil {
		accepted(t.c, state)
	}
	t.up.Store(true)
	t.c.out.mu.Lock()
	defer t.c.out.mu.Unlock()
	if !t.c.out.closed {
		_ = t.c.gc.Wake(nil) // requests may have arrived with the last bytes of the handshake
	}
}

// TLS returns the TLS state of the connection; nil if it is not, or not yet, encrypted.
func (c *Conn) TLS() *tls.ConnectionState {
	t := c.tls.Load()
	if t == nil || !t.up.Load() {
		return nil
	}
	state := t.conn.ConnectionState()
	return &state
}

// readTLS reads what the socket has and splits it into frames. It runs in the event loop.
func (c *Conn) readTLS(t *tlsSession) error {
	if !t.up.Load() {
		return t.feed()
	}
	for {
		if c.in.buf == nil {
			if more, err := c.cutTLS(t); !more {
				return err
			}
		}
		n, err := t.conn.Read(c.in.buf.b[c.in.fill:])
		c.in.fill += n
		switch {
		case err != nil:
			return tlsReadError(err)
		case c.in.fill < len(c.in.buf.b):
		case c.in.fill < c.in.want:
			c.grow()
		default:
			if err := c.acceptFilled(); err != nil {
				return err
			}
		}
	}
}

// cutTLS is cut for an encrypted connection; false if the next frame's length has not arrived.
func (c *Conn) cutTLS(t *tlsSession) (more bool, err error) {
	h := &t.head
	for h.fill < len(h.b) {
		n, err := t.conn.Read(h.b[h.fill:])
		h.fill += n
		if err != nil {
			return false, tlsReadError(err)
		}
	}
	n, err := c.nextLength(h.b[:])
	if err != nil {
		return false, err
	}
	h.fill = 0
	c.in.buf, c.in.want = getBuffer(min(n, firstRead)), n
	c.in.fill = copy(c.in.buf.b, h.b[:])
	return true, nil
}

func tlsReadError(err error) error {
	var ne net.Error
	if errors.As(err, &ne) && ne == errWouldBlock {
		return nil
	}
	return err
}

// feed passes what has arrived to the handshake. It runs in the event loop.
func (t *tlsSession) feed() error {
	n := t.c.gc.InboundBuffered()
	if n == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mu.raw)+n > maxHandshake {
		return frameErrorf("more than %d bytes sent before the end of the TLS handshake", maxHandshake)
	}
	b, err := t.c.gc.Next(n)
	if err != nil {
		return err
	}
	t.mu.raw = append(t.mu.raw, b...)
	t.mu.arrived.Signal()
	return nil
}

// Read implements net.Conn for crypto/tls.
func (t *tlsSession) Read(p []byte) (int, error) {
	t.mu.Lock()
	for len(t.mu.raw) == 0 && !t.up.Load() && !t.mu.closed {
		t.mu.arrived.Wait()
	}
	if n := copy(p, t.mu.raw); n > 0 {
		if t.mu.raw = t.mu.raw[n:]; len(t.mu.raw) == 0 {
			t.mu.raw = nil
		}
		t.mu.Unlock()
		return n, nil
	}
	closed := t.mu.closed
	t.mu.Unlock()
	switch {
	case closed:
		return 0, io.ErrUnexpectedEOF
	case t.c.gc.InboundBuffered() == 0:
		return 0, errWouldBlock
	}
	return t.c.gc.Read(p)
}

// Write implements net.Conn for crypto/tls: it writes as much as the socket accepts at once, and the rest through the event loop.
func (t *tlsSession) Write(b []byte) (int, error) {
	o := &t.c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return 0, ErrClosed
	}
	n := 0
	if o.pending == 0 && !o.backlog {
		var err error
		if n, err = writeSocket(t.c.fd, b); err != nil {
			_ = t.c.gc.Close()
			return n, err
		}
	}
	if n == len(b) {
		return n, nil
	}
	o.pending++
	rest := append([]byte(nil), b[n:]...) // crypto/tls reuses its buffer
	if err := t.c.gc.AsyncWrite(rest, t.c.asyncWritten); err != nil {
		return n, err
	}
	return len(b), nil
}

// writeTLS sends a frame; crypto/tls is done with its memory when it returns.
func (c *Conn) writeTLS(t *tlsSession, frame []byte) error {
	c.out.mu.Lock()
	ended := c.out.closed || c.out.closing
	c.out.mu.Unlock()
	if ended {
		return ErrClosed
	}
	_, err := t.conn.Write(frame)
	return err
}

// Close implements net.Conn: it ends a handshake that has timed out. The socket is closed by the Conn.
func (t *tlsSession) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	t.mu.Unlock()
	t.mu.arrived.Broadcast()
	return nil
}

// LocalAddr implements net.Conn.
func (t *tlsSession) LocalAddr() net.Addr { return t.c.local }

// RemoteAddr implements net.Conn.
func (t *tlsSession) RemoteAddr() net.Addr { return t.c.remote }

// SetDeadline implements net.Conn: nothing here blocks except the handshake, which is limited by its context.
func (t *tlsSession) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn, as SetDeadline.
func (t *tlsSession) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn, as SetDeadline.
func (t *tlsSession) SetWriteDeadline(time.Time) error { return nil }

// DialTLS returns a dial function whose connections are encrypted; config is called for each one, and nil leaves it plain.
// UNIX sockets remain plain.
func DialTLS(config func(host string) *tls.Config) func(ctx context.Context, host string) (*ClientConn, error) {
	return func(ctx context.Context, host string) (*ClientConn, error) {
		cc, err := Dial(ctx, host)
		if err != nil || len(host) > 0 && host[0] == '/' {
			return cc, err
		}
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			name = host
		}
		cfg := config(name)
		if cfg == nil {
			return cc, nil
		}
		conn := tls.Client(cc.conn, cfg)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = cc.Close()
			return nil, hostError(ctx, host, err)
		}
		return NewClientConn(conn, host), nil
	}
}
