package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ErrClosed reports that the client has disconnected.
var ErrClosed = errors.New("connection is closed")

const (
	maxInline      = 4 << 10                // larger frames go straight to a worker
	maxQueuedBytes = 256 << 20              // requests sent ahead without waiting for replies; a client that exceeds this is disconnected
	queuedCost     = 600                    // the memory of a queued request in addition to its bytes, at most
	firstRead      = 64 << 10               // buffer for a frame of which only the length has arrived
	readGrowth     = 16                     // factor by which that buffer grows as the frame arrives
	maxStall       = 100 * time.Millisecond // between two checks whether a slow client has received its replies
	maxDirectRead  = 4 << 20                // bytes read for one connection before the loop turns to the others
)

// Conn is one client connection.
type Conn struct {
	// State belongs to the handler: the running request, Opened and Closed may read and write it.
	State any

	id            int64
	srv           *Server
	gc            gnet.Conn
	fd            int
	remote, local net.Addr
	ctx           context.Context
	cancel        context.CancelFunc
	held          atomic.Bool // it waits to be admitted
	member        atomic.Bool // its messages may have up to MaxInternalMessage
	waiter        *waiter     // nil if it did not have to wait
	tls           atomic.Pointer[tlsSession]
	trusted       atomic.Bool // see Trust
	firstMessage  atomic.Pointer[time.Timer]
	proxyState

	// in is used only by the event loop.
	in struct {
		buf     *buffer // a partially received frame, or the buffer for its beginning
		want    int     // the frame's length
		spoken  bool    // whether the first bytes were those of a message
		fill    int
		backlog bool // gnet has buffered bytes that the socket did not accept
	}
	queue struct {
		mu    sync.Mutex
		busy  bool // a request is being handled; further ones wait
		waits []*buffer
		bytes int
	}
	out struct {
		mu      sync.Mutex
		closing bool // Close was called
		closed  bool
		pending int  // writes queued for the event loop, which must precede any direct one
		backlog bool // the same as in.backlog, for writers
	}
}

// AllowInternal accepts messages of up to MaxInternalMessage from now on: the connection is another node's.
func (c *Conn) AllowInternal() { c.member.Store(true) }

// proxyState describes the origin of a connection. It changes in the event loop only, before the handler receives the connection.
type proxyState struct {
	overTCP     bool     // the socket is not a UNIX socket
	awaitsProxy bool     // a load balancer's header has to come first
	via         net.Addr // the load balancer; nil without
}

// ID numbers the connections of a server from 1.
func (c *Conn) ID() int64 { return c.id }

// RemoteAddr returns the client's address.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// LocalAddr returns the address that the client connected to.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// Context returns a context that ends when the client disconnects or the server stops.
func (c *Conn) Context() context.Context { return c.ctx }

// Done returns a channel that is closed when the client disconnects or the server stops.
func (c *Conn) Done() <-chan struct{} { return c.ctx.Done() }

// Close ends the connection. It may be called from any goroutine; what has been written before is still sent, but
// not the reply to a running request: the event loop needs a moment to close the socket, and a client that
// received a reply meanwhile would consider the connection usable.
func (c *Conn) Close() {
	c.cancel()
	if t := c.tls.Load(); t != nil && t.up.Load() {
		_ = t.conn.CloseWrite() // announces the regular end; an error means that the client has disconnected
	}
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.closing = true
	if !c.out.closed { // after that, gnet's wake-up descriptor may be reused
		_ = c.gc.Close()
	}
}

// stalled reports whether the client has not yet taken replies written before.
func (c *Conn) stalled() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return !c.out.closed && (c.out.pending > 0 || c.out.backlog)
}

// awaitReader returns when the client has received what was written before, so that a client that sends requests
// without reading replies has at most one reply in memory. It blocks the worker: later requests queue up, within
// maxQueuedBytes.
func (c *Conn) awaitReader() {
	for pause := time.Millisecond; c.stalled() && !c.srv.stopping.Load(); pause = min(2*pause, maxStall) {
		c.out.mu.Lock()
		if !c.out.closed {
			_ = c.gc.Wake(nil) // read updates the backlog
		}
		c.out.mu.Unlock()
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-c.ctx.Done():
			t.Stop()
			return
		}
	}
}

// SendMore sends what has been appended to r as one of several replies to m, whose flags allow exhaust, and resets r
// for the next. The last reply is the one that Handle leaves in r.
func (c *Conn) SendMore(m *Message, r *Reply) error {
	c.awaitReader()
	frame := r.seal(c, m, MoreToCome)
	err := c.write(frame, r)
	r.Reset()
	return err
}

// read reads what the socket has and splits it into frames. It runs in the event loop.
func (c *Conn) read() error {
	if c.in.backlog && c.gc.OutboundBuffered() == 0 {
		c.in.backlog = false
		c.out.mu.Lock()
		c.out.backlog = false
		c.out.mu.Unlock()
	}
	for {
		if t := c.tls.Load(); t != nil {
			return c.readTLS(t)
		}
		if c.in.buf == nil {
			if err := c.cut(); err != nil || c.in.buf == nil && c.tls.Load() == nil {
				return err
			}
			continue
		}
		n, _ := c.gc.Read(c.in.buf.b[c.in.fill:])
		c.in.fill += n
		if err := c.readDirect(); err != nil {
			return err
		}
		if c.in.fill < len(c.in.buf.b) {
			return nil
		}
		if c.in.fill < c.in.want {
			c.grow()
			continue
		}
		if err := c.acceptFilled(); err != nil {
			return err
		}
	}
}

// acceptFilled accepts the frame that has arrived completely.
func (c *Conn) acceptFilled() error {
	frame := c.in.buf
	c.in.buf, c.in.fill = nil, 0
	return c.accept(frame)
}

// cut prepares the buffer for the next frame as soon as its length is known.
func (c *Conn) cut() error {
	if c.gc.InboundBuffered() < 4 {
		return nil
	}
	if c.awaitsProxy {
		if done, err := c.readProxy(); err != nil || !done {
			return err
		}
		return c.cut()
	}
	head, err := c.gc.Peek(4)
	if err != nil {
		return nil
	}
	if !c.in.spoken {
		if err := c.sniff(head); err != nil || !c.in.spoken {
			return err
		}
	}
	n, err := c.nextLength(head)
	if err != nil {
		return err
	}
	c.in.buf, c.in.want, c.in.fill = getBuffer(min(n, firstRead)), n, 0
	return nil
}

// grow enlarges the buffer of a frame whose beginning has arrived: memory is allocated for bytes received, not for bytes announced.
func (c *Conn) grow() {
	old := c.in.buf
	c.in.buf = getBuffer(min(c.in.want, readGrowth*len(old.b)))
	copy(c.in.buf.b, old.b)
	old.free()
}

// readDirect reads the rest of a large frame directly into its buffer, bypassing gnet's.
func (c *Conn) readDirect() error {
	for turn := 0; len(c.in.buf.b)-c.in.fill >= readBuffer && turn < maxDirectRead; {
		n, err := unix.Read(c.fd, c.in.buf.b[c.in.fill:])
		switch {
		case err == unix.EAGAIN:
			return nil
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		}
		c.in.fill += n
		turn += n
	}
	return nil
}

// accept starts handling a whole frame, or queues it after the one being handled.
func (c *Conn) accept(frame *buffer) error {
	if c.srv.stopping.Load() {
		frame.free()
		return ErrClosed
	}
	c.firstMessageArrived()
	c.srv.stats.requests.Add(1)
	c.srv.stats.bytesIn.Add(int64(len(frame.b)))
	q := &c.queue
	q.mu.Lock()
	if q.busy {
		q.waits = append(q.waits, frame)
		q.bytes += len(frame.b) + queuedCost
		over := q.bytes > maxQueuedBytes
		q.mu.Unlock()
		if over {
			return frameErrorf("more than %d bytes of requests sent ahead of their replies", maxQueuedBytes)
		}
		return nil
	}
	q.busy = true
	q.mu.Unlock()
	j := getJob(c, frame)
	if len(frame.b) <= maxInline && ReadHeader(frame.b).OpCode == OpMsg && !c.stalled() && c.inline(j) {
		return nil
	}
	c.srv.workers.submit(j)
	return nil
}

// inline tries to handle a small request in the event loop.
func (c *Conn) inline(j *job) bool {
	if j.parse() != nil {
		return false
	}
	if !c.srv.handler.HandleInline(c, &j.msg, &j.reply) {
		j.reply.Reset()
		return false
	}
	j.finish()
	c.queue.mu.Lock()
	c.queue.busy = false // nothing can be queued: only the event loop queues
	c.queue.mu.Unlock()
	return true
}

// serve runs a request on a worker, and then those that have queued up in the meantime.
func (c *Conn) serve(j *job) {
	st := &c.srv.stats
	st.active.Add(1)
	defer func() {
		if st.active.Add(-1) == 0 && c.srv.stopping.Load() {
			c.srv.signalDrained()
		}
	}()
	for {
		c.awaitReader()
		j.handle()
		q := &c.queue
		q.mu.Lock()
		if len(q.waits) == 0 {
			q.busy, q.waits = false, nil
			q.mu.Unlock()
			return
		}
		frame := q.waits[0]
		q.waits[0] = nil
		q.waits = q.waits[1:]
		q.bytes -= len(frame.b) + queuedCost
		q.mu.Unlock()
		j = getJob(c, frame)
	}
}

// write sends a frame that borrows from r: immediately as far as the socket accepts it, the remainder through the
// event loop, which then owns the memory.
func (c *Conn) write(frame []byte, r *Reply) error {
	st := &c.srv.stats
	st.bytesOut.Add(int64(len(frame)))
	st.logicOut.Add(int64(len(r.Buf) - ReplyRoom + msgPrefixLen))
	if t := c.tls.Load(); t != nil {
		return c.writeTLS(t, frame)
	}
	o := &c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.closing {
		return ErrClosed
	}
	if o.pending == 0 && !o.backlog {
		n, err := writeSocket(c.fd, frame)
		if err != nil {
			_ = c.gc.Close()
			return err
		}
		if frame = frame[n:]; len(frame) == 0 {
			return nil
		}
	}
	o.pending++
	r.Buf, r.scratch = nil, nil
	r.Reset()
	return c.gc.AsyncWrite(frame, c.asyncWritten)
}

// asyncWritten runs in the event loop after a queued write. What the socket did not accept is in gnet's buffer; direct
// writes remain disabled until read finds that buffer empty, which it is when the client sends its next request.
func (c *Conn) asyncWritten(gc gnet.Conn, err error) error {
	o := &c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending--
	if err == nil && gc.OutboundBuffered() > 0 {
		o.backlog, c.in.backlog = true, true
	}
	return nil
}

// writeSocket writes without blocking and returns how much the socket accepted.
func writeSocket(fd int, b []byte) (n int, err error) {
	for n < len(b) {
		k, err := unix.Write(fd, b[n:])
		switch err {
		case nil:
			n += k
		case unix.EINTR:
		case unix.EAGAIN:
			return n, nil
		default:
			return n, err
		}
	}
	return n, nil
}

// closed is called by the event loop before it closes the descriptor.
func (c *Conn) closed() {
	c.out.mu.Lock()
	c.out.closed = true
	c.out.mu.Unlock()
	c.firstMessageArrived()
	c.cancel()
	c.in.buf.free()
	c.in.buf = nil
}

// job is one request being handled: its frame, message and reply, reused together.
type job struct {
	conn   *Conn
	frame  *buffer
	parsed bool
	err    error // from parsing
	msg    Message
	reply  Reply
}

var jobs = sync.Pool{New: func() any { return new(job) }}

func getJob(c *Conn, frame *buffer) *job {
	j := jobs.Get().(*job)
	j.conn, j.frame = c, frame
	j.reply.Reset()
	return j
}

func (j *job) parse() error {
	if j.parsed {
		return j.err
	}
	j.parsed = true
	j.msg.frame = j.frame
	if most, untrusted := j.conn.maxMessage(); untrusted {
		j.msg.most = most
	}
	j.err = parseFrame(&j.msg, j.frame.b)
	j.reply.responseTo = j.msg.RequestID
	st := &j.conn.srv.stats
	if !j.msg.hasComp {
		st.logicalIn.Add(int64(len(j.frame.b)))
	} else if in := j.msg.inflated; in != nil {
		st.logicalIn.Add(int64(len(in.b)))
		if j.err == nil {
			k := &st.compress[j.msg.compressor]
			k.decompressIn.Add(int64(len(j.frame.b) - compPrefix))
			k.decompressOut.Add(int64(len(in.b) - headerLen))
		}
	}
	return j.err
}

// handle runs the request through the handler and sends the reply.
func (j *job) handle() {
	c := j.conn
	if err := j.parse(); err != nil {
		var fatal *FrameError
		if errors.As(err, &fatal) {
			c.srv.badFrame(c, err)
			c.Close()
			j.release()
			return
		}
		j.reply.setParseError(err)
	} else {
		j.call()
	}
	j.finish()
}

// call runs the handler; a panic becomes an error reply and does not affect other clients.
func (j *job) call() {
	c := j.conn
	defer func() {
		if v := recover(); v != nil {
			c.srv.panicked(c, &j.msg, v)
			j.reply.SetError(mongoerr.Newf(mongoerr.InternalError, "internal error while running %q", j.msg.CommandName()))
		}
	}()
	c.srv.handler.Handle(c, &j.msg, &j.reply)
}

// finish sends the reply and releases the job's memory.
func (j *job) finish() {
	if j.msg.WantsReply() {
		frame := j.reply.seal(j.conn, &j.msg, 0)
		_ = j.conn.write(frame, &j.reply) // an error means that the client has disconnected
	}
	j.release()
}

func (j *job) release() {
	j.msg.release()
	j.reply.recycle()
	j.conn, j.frame, j.parsed, j.err = nil, nil, false, nil
	jobs.Put(j)
}
