package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
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
	broken   bool      // a partial frame may be on the wire: the connection is unusable
	idle     time.Time // in a pool: since when nobody uses it
	used     bool      // a call of a pool has used it
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
	if len(frame) > MaxInternalMessage { // the other side would close the connection, which looks like a failure that may pass
		return mongoerr.Newf(mongoerr.BSONObjectTooLarge, "a message of %d bytes to %s is too large: at most %d", len(frame), cc.host, MaxInternalMessage)
	}
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
		cc.broken = true // the reply is still to come, and nobody reads it
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
	if err := ctx.Err(); err != nil { // first: if ctx has ended as a message had just been sent, the connection is broken for that reason
		return nil, contextError(ctx)
	}
	if cc.broken {
		return nil, mongoerr.Newf(mongoerr.HostUnreachable, "connection to %s is closed", cc.host)
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
