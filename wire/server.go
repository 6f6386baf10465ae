package wire

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
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
	Balanced       []string // the TCP ones of Addrs at which load balancers begin connections with a PROXY header
	Untrusted      UntrustedLimits
	Exempt         func(addr net.Addr) bool // addresses to which MaxConnections does not apply; nil for none
	SocketMode     os.FileMode              // permissions of UNIX sockets; 0 for what the process's umask leaves

	// Refused is called after connections were refused, once a second at most, with the reason of the last and the number since the last call.
	Refused func(err error, n int)

	BadFrame func(c *Conn, err error)                       // a malformed frame, or another protocol (ForeignError); the connection is being closed
	Panicked func(c *Conn, m *Message, v any, stack []byte) // Handle panicked; the reply is an error
}

// Server accepts connections and passes their requests to a Handler.
type Server struct {
	opts    Options
	handler Handler
	engine  *gnet.Client // event loops without listeners
	workers *workers
	stats   counters

	descriptors int64 // descriptorsForConnections when the server began

	admission admission
	nextID    atomic.Int32
	connID    atomic.Int64
	listeners []*listener // in the order of Options.Addrs
	acceptors sync.WaitGroup
	taking    sync.Mutex // held while an event loop takes a connection
	spare     spare
	refusals  refusals

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
// net.maxIncomingConnections). The others are for files and for connections to other nodes.
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
	if err := s.bind(); err != nil {
		s.closeListeners()
		return nil, fmt.Errorf("listen on %v: %w", opts.Addrs, err)
	}
	s.workers = newWorkers(func(j *job) { j.conn.serve(j) })
	var err error
	if s.engine, err = gnet.NewClient(&loop{srv: s}, s.engineOptions()...); err == nil {
		err = s.engine.Start()
	}
	if err != nil {
		s.closeListeners()
		s.workers.close()
		return nil, fmt.Errorf("start the event loops: %w", err)
	}
	s.spare.open()
	s.acceptors.Add(len(s.listeners))
	for _, l := range s.listeners {
		go s.acceptAll(l)
	}
	return s, nil
}

// bind opens the listeners of all addresses.
func (s *Server) bind() error {
	for _, a := range s.opts.Addrs {
		l, err := s.listen(a)
		if err != nil {
			return err
		}
		s.listeners = append(s.listeners, &listener{Listener: l, balanced: slices.Contains(s.opts.Balanced, a)})
	}
	return nil
}

// closeListeners closes the listeners, and waits until nothing accepts any more.
func (s *Server) closeListeners() {
	for _, l := range s.listeners {
		_ = l.Close()
	}
	s.acceptors.Wait()
}

func (s *Server) engineOptions() []gnet.Option {
	loops := s.opts.Loops
	if loops <= 0 {
		loops = max(1, runtime.NumCPU()/4)
	}
	return []gnet.Option{
		gnet.WithNumEventLoop(loops), gnet.WithReadBufferCap(readBuffer), gnet.WithLogger(quiet{}), gnet.WithLogLevel(logging.FatalLevel),
	}
}

// exempt reports whether MaxConnections does not apply to an address.
func (o *Options) exempt(addr net.Addr) bool { return o.Exempt != nil && o.Exempt(addr) }

// open introduces a connection to the handler.
func (s *Server) open(c *Conn) {
	if c.via != nil {
		s.stats.balanced.Add(1)
	}
	s.handler.Opened(c)
}

// close informs the handler of the end of a connection that it knows.
func (s *Server) close(c *Conn) {
	if c.via != nil {
		s.stats.balanced.Add(-1)
	}
	s.handler.Closed(c)
}

// Addrs returns the addresses that the server listens on, in the order of Options.Addrs, with the ports that the system chose.
func (s *Server) Addrs() (out []net.Addr) {
	for _, l := range s.listeners {
		out = append(out, l.Addr())
	}
	return out
}

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
	s.closeListeners() // the loops are still there for what has been accepted
	if s.stats.active.Load() > 0 {
		t := time.NewTimer(wait)
		select {
		case <-s.drained:
		case <-t.C:
		}
		t.Stop()
	}
	s.Each(func(c *Conn) { c.cancel() })
	_ = s.engine.Stop()
	close(s.ended)
	s.handshakes.Wait()
	s.workers.close()
	s.spare.close()
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
