package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// keepAlive detects clients that have disappeared without closing their connection.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Minute, Interval: 24 * time.Second, Count: 5}

const (
	acceptPause  = 10 * time.Millisecond // after an accept that failed for lack of a descriptor or memory
	refusedEvery = time.Second           // between two calls of Options.Refused
)

// listener accepts the connections of one address. The event loops have no listeners of their own: gnet ends its engine, with all connections, when an accept
// fails for lack of a descriptor, and registers all connections of a burst before it reads from any other. Here a goroutine for each address
// accepts one connection at a time and waits until an event loop has registered it, between two rounds of reading. Hazard: a loop empties its
// queue before it reads again, so only one connection at a time may be in that queue (Server.taking).
//
// A connection therefore waits for all that arrived at its address before it, some 30 µs each; established connections wait for none of them. The
// queue is the kernel's and first come first served: the process cannot take a connection out of turn, since it knows nothing of it but its position.
// More acceptors on one address would not shorten it, since a loop registers one connection per round in any case. Clients that must get in during a
// flood need an address with a queue of its own (a UNIX socket, a loadBalancerPort); the ingressConnectionEstablishment parameters, which hold back
// what has been accepted, do not change the order either.
type listener struct {
	net.Listener
	balanced bool // load balancers begin connections with a PROXY header
}

// arrival describes a new connection to the event loop.
type arrival struct {
	remote, local net.Addr
	balanced      bool
}

// listen binds an address: host:port, or the path of a UNIX socket.
func (s *Server) listen(addr string) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	if addr[0] == '/' {
		return s.listenUnix(&lc, addr)
	}
	to, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	network := "tcp"
	switch {
	case to.IP.To4() != nil:
		network = "tcp4"
	case to.IP != nil:
		network = "tcp6" // of this family alone, so that 0.0.0.0 may be bound beside ::
	}
	return lc.Listen(context.Background(), network, to.String())
}

// listenUnix binds a UNIX socket in place of one that an earlier process may have left.
func (s *Server) listenUnix(lc *net.ListenConfig, path string) (net.Listener, error) {
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s exists and is not a socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil || s.opts.SocketMode == 0 {
		return l, err
	}
	if err := os.Chmod(path, s.opts.SocketMode); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// acceptAll accepts connections until the listener is closed.
func (s *Server) acceptAll(l *listener) {
	defer s.acceptors.Done()
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			s.take(c, l.balanced)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			s.acceptSpare(l, err)
		}
	}
}

// take hands a connection to an event loop, which has registered it when take returns.
func (s *Server) take(nc net.Conn, balanced bool) {
	if s.full(nc.RemoteAddr()) {
		s.refused(errTooMany)
		_ = nc.Close()
		return
	}
	a := &arrival{remote: ownAddr(nc.RemoteAddr()), local: ownAddr(nc.LocalAddr()), balanced: balanced}
	s.taking.Lock()
	defer s.taking.Unlock()
	if _, err := s.engine.EnrollContext(nc, a); err != nil { // which closes nc in any case
		s.refused(err)
	}
}

// ownAddr copies an address: gnet changes that of a UNIX socket, and reuses the memory of an IPv6 zone when the connection ends.
func ownAddr(a net.Addr) net.Addr {
	switch a := a.(type) {
	case *net.TCPAddr:
		own := *a
		a.Zone = ""
		if own.IP.To4() != nil {
			own.IP = own.IP.To4()
		}
		return &own
	case *net.UnixAddr:
		own := *a
		return &own
	}
	return a
}

var errTooMany = errors.New("too many open connections")

// full reports whether one more connection from an address would exceed a limit.
func (s *Server) full(from net.Addr) bool {
	n := s.stats.current.Load() + s.admission.waiting()
	return n >= int64(s.opts.MaxConnections) && !s.opts.exempt(from) || openConnections.Load() >= s.descriptors
}

// refused counts a refused connection, and calls Options.Refused at most once per refusedEvery.
func (s *Server) refused(err error) {
	s.stats.rejected.Add(1)
	if s.opts.Refused == nil {
		return
	}
	r := &s.refusals
	r.mu.Lock()
	r.n++
	n := r.n
	log := time.Since(r.logged) >= refusedEvery
	if log {
		r.n, r.logged = 0, time.Now()
	}
	r.mu.Unlock()
	if log {
		s.opts.Refused(err, n)
	}
}

// refusals counts the connections refused since the last call of Options.Refused.
type refusals struct {
	mu     sync.Mutex
	n      int
	logged time.Time
}

// spare is a reserved descriptor. When the process has no other, it is released so that a waiting connection can be accepted and closed: its
// client gets an error at once, instead of waiting until there are descriptors again.
type spare struct {
	mu   sync.Mutex
	file *os.File
}

// open reserves the descriptor unless that has been done; it returns false if the process has none left.
func (f *spare) open() bool {
	if f.file == nil {
		f.file, _ = os.Open(os.DevNull)
	}
	return f.file != nil
}

// acceptSpare is called after a failed accept, which fails for lack of a descriptor even if no connection waits. It refuses a connection that
// arrives within acceptPause, unless there are descriptors again.
func (s *Server) acceptSpare(l *listener, why error) {
	f := &s.spare
	f.mu.Lock()
	defer f.mu.Unlock()
	d, ok := l.Listener.(interface{ SetDeadline(time.Time) error })
	if !ok || !f.open() {
		time.Sleep(acceptPause) // without a spare descriptor connections have to wait
		return
	}
	_ = f.file.Close()
	f.file = nil
	_ = d.SetDeadline(time.Now().Add(acceptPause))
	c, err := l.Accept()
	_ = d.SetDeadline(time.Time{})
	switch {
	case err != nil:
	case f.open():
		s.take(c, l.balanced)
	default:
		_ = c.Close()
		s.refused(why)
	}
	f.open()
}

func (f *spare) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.file.Close() // nil returns an error
	f.file = nil
}
