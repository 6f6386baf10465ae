package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/logging"
	"golang.org/x/sys/unix"
)

const readBuffer = 64 << 10 // how much an event loop reads at a time; one such buffer per loop

// DefaultMaxConnections is the default of Options.MaxConnections.
const DefaultMaxConnections = 1000000

// Handler handles requests.
type Handler interface {
	// Handle replies to m by appending one document to r.Buf. It runs on a worker goroutine and may block. m and r
	// are valid until it returns. If the message requests no reply, r is discarded.
	Handle(c *Conn, m *Message, r *Reply)
	// HandleInline may handle m in the event loop, like Handle, and then returns true. It must not block. If it
	// returns false, m is passed to Handle.
	HandleInline(c *Conn, m *Message, r *Reply) bool
	// Opened is called for a new connection before its first request, Closed when it has ended. Both run in the
	// event loop; a request may still be running when Closed is called.
	Opened(c *Conn)
	Closed(c *Conn)
}

// Options configure a Server.
type Options struct {
	Addrs          []string // host:port, or the path of a UNIX socket (it begins with /); port 0 means any free port
	MaxConnections int      // 0 means DefaultMaxConnections
	Loops          int      // event loops; 0 means one per four cores
	TLS            *TLS     // nil: a ClientHello is refused
	Balanced       []string // those of Addrs, of TCP, at which load balancers begin connections with a PROXY header
	Strangers      Strangers
	Exempt         func(addr net.Addr) bool // whom MaxConnections does not hold up; nil for nobody

	BadFrame func(c *Conn, err error)                       // a malformed frame, or another protocol (ForeignError); the connection is being closed
	Panicked func(c *Conn, m *Message, v any, stack []byte) // Handle panicked; the reply is an error
}

// Server accepts connections and passes their requests to a Handler.
type Server struct {
	opts    Options
	handler Handler
	engine  gnet.Engine
	workers *workers
	stats   counters

	descriptors int64 // descriptorsForConnections when the server began

	admission admission
	nextID    atomic.Int32
	connID    atomic.Int64
	addrs     []net.Addr
	balanced  map[string]bool // the listeners of Balanced, as connections name them

	stopping   atomic.Bool
	drained    chan struct{}  // while stopping: closed when the last running request has ended
	handshakes sync.WaitGroup // goroutines of TLS handshakes
	ended      chan struct{}  // the engine has stopped
	conns      struct {
		mu  sync.Mutex
		all map[int64]*Conn
	}
}

// ErrAddressInUse is part of Listen's error if a port is in use.
var ErrAddressInUse = syscall.EADDRINUSE

// openConnections counts the connections of all servers of the process, which share its descriptors.
var openConnections atomic.Int64

// descriptorsForConnections returns how many of the process's descriptors may be connections: four fifths (manual:
// net.maxIncomingConnections). The others are for files, and to accept connections with, be it to close them at once. Hazard: gnet takes an
// accept that fails for want of a descriptor as the end of its engine, and the server goes on without a listener; it accepts all
// connections of a burst before the first of them can be closed.
func descriptorsForConnections() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return 1 << 30
	}
	return max(int(limit.Cur)*4/5, 1)
}

// Listen binds all addresses and starts serving; when it returns without an error, the ports accept connections.
func Listen(opts Options, h Handler) (*Server, error) {
	if opts.MaxConnections <= 0 {
		opts.MaxConnections = DefaultMaxConnections
	}
	descriptors := descriptorsForConnections()
	opts.MaxConnections = min(opts.MaxConnections, descriptors)
	s := &Server{opts: opts, handler: h, descriptors: int64(descriptors), drained: make(chan struct{}, 1), ended: make(chan struct{})}
	s.conns.all = map[int64]*Conn{}
	s.workers = newWorkers(func(j *job) { j.conn.serve(j) })
	protos := make([]string, len(opts.Addrs))
	for i, a := range opts.Addrs {
		protos[i] = protoAddr(a)
	}
	s.balanced = map[string]bool{}
	for _, a := range opts.Balanced {
		if t, err := net.ResolveTCPAddr("tcp", a); err == nil {
			s.balanced[listenerOf(t)] = true
		}
	}
	loop := &loop{srv: s, booted: make(chan error, 1)}
	failed := make(chan error, 1)
	go func() {
		defer close(s.ended)
		failed <- gnet.Rotate(loop, protos, s.engineOptions()...)
	}()
	var err error
	select {
	case err = <-loop.booted:
	case err = <-failed:
		if err == nil {
			err = errors.New("the event loop ended at once")
		}
	}
	if err != nil {
		s.workers.close()
		return nil, fmt.Errorf("listen on %v: %w", opts.Addrs, err)
	}
	if err := s.readAddrs(protos); err != nil {
		s.Stop(0)
		return nil, err
	}
	return s, nil
}

func (s *Server) engineOptions() []gnet.Option {
	loops := s.opts.Loops
	if loops <= 0 {
		loops = max(1, runtime.NumCPU()/4)
	}
	return []gnet.Option{
		gnet.WithNumEventLoop(loops), gnet.WithReuseAddr(true), gnet.WithReadBufferCap(readBuffer),
		gnet.WithLoadBalancing(gnet.LeastConnections),
		gnet.WithLogger(quiet{}), gnet.WithLogLevel(logging.FatalLevel),
	}
}

func protoAddr(a string) string {
	if len(a) > 0 && a[0] == '/' {
		return "unix://" + a
	}
	return "tcp://" + a
}

// readAddrs reads the addresses of the listening sockets, to learn the ports that the system chose.
func (s *Server) readAddrs(protos []string) error {
	for i, p := range protos {
		if s.opts.Addrs[i][0] == '/' {
			s.addrs = append(s.addrs, &net.UnixAddr{Name: s.opts.Addrs[i], Net: "unix"})
			continue
		}
		fd, err := s.engine.DupListener("tcp", p[len("tcp://"):])
		if err != nil {
			return fmt.Errorf("address of %s: %w", p, err)
		}
		sa, err := unix.Getsockname(fd)
		_ = unix.Close(fd)
		if err != nil {
			return os.NewSyscallError("getsockname", err)
		}
		switch a := sa.(type) {
		case *unix.SockaddrInet4:
			s.addrs = append(s.addrs, &net.TCPAddr{IP: append(net.IP(nil), a.Addr[:]...), Port: a.Port})
		case *unix.SockaddrInet6:
			s.addrs = append(s.addrs, &net.TCPAddr{IP: append(net.IP(nil), a.Addr[:]...), Port: a.Port})
		}
	}
	return nil
}

// listenerOf names a listener by its port: a process has a port once.
func listenerOf(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok {
		return strconv.Itoa(t.Port)
	}
	return ""
}

// fromBalancer reports whether a listener is one for load balancers.
func (s *Server) fromBalancer(local net.Addr) bool {
	return len(s.balanced) > 0 && s.balanced[listenerOf(local)]
}

// exempt reports whether an address is not held up by the bound of connections.
func (o *Options) exempt(addr net.Addr) bool { return o.Exempt != nil && o.Exempt(addr) }

// open introduces a connection to the handler.
func (s *Server) open(c *Conn) {
	if c.via != nil {
		s.stats.balanced.Add(1)
	}
	s.handler.Opened(c)
}

// close tells the handler of the end of a connection that it knows.
func (s *Server) close(c *Conn) {
	if c.via != nil {
		s.stats.balanced.Add(-1)
	}
	s.handler.Closed(c)
}

// Addrs returns the addresses that the server listens on, in the order of Options.Addrs, with the ports that the system chose.
func (s *Server) Addrs() []net.Addr { return s.addrs }

// Each calls f for every open connection.
func (s *Server) Each(f func(*Conn)) {
	s.conns.mu.Lock()
	all := make([]*Conn, 0, len(s.conns.all))
	for _, c := range s.conns.all {
		all = append(all, c)
	}
	s.conns.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}

// Stop accepts no more connections, lets running requests finish for up to wait, then closes all connections.
func (s *Server) Stop(wait time.Duration) {
	if s.stopping.Swap(true) {
		<-s.ended
		return
	}
	if s.stats.active.Load() > 0 {
		t := time.NewTimer(wait)
		select {
		case <-s.drained:
		case <-t.C:
		}
		t.Stop()
	}
	s.Each(func(c *Conn) { c.cancel() })
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _ = s.engine.Stop(ctx) }() // it triggers the end at once, but detects it only by polling
	<-s.ended
	cancel()
	s.handshakes.Wait()
	s.workers.close()
}

func (s *Server) badFrame(c *Conn, err error) {
	if s.opts.BadFrame != nil {
		s.opts.BadFrame(c, err)
	}
}

func (s *Server) panicked(c *Conn, m *Message, v any) {
	if s.opts.Panicked != nil {
		s.opts.Panicked(c, m, v, debug.Stack())
	}
}

func (s *Server) signalDrained() {
	select {
	case s.drained <- struct{}{}:
	default:
	}
}

// quiet discards gnet's own log; what matters is reported through Opened, Closed and BadFrame.
type quiet struct{}

func (quiet) Debugf(string, ...any) {}
func (quiet) Infof(string, ...any)  {}
func (quiet) Warnf(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}
