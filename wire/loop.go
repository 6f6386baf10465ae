package wire

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"
)

// keepAlive is set on each connection instead of by gnet's option, which hides the error of a failed bind in v2.10.0.
const keepAlive = 2 * time.Minute

// loop receives gnet's events. All methods but OnBoot run in an event loop, one connection always in the same.
type loop struct {
	srv    *Server
	booted chan error
}

// OnBoot is called when all listeners are bound.
func (l *loop) OnBoot(e gnet.Engine) gnet.Action {
	l.srv.engine = e
	l.booted <- nil
	return gnet.None
}

// OnShutdown is called when the engine has been told to stop.
func (l *loop) OnShutdown(gnet.Engine) {}

// OnTick is never called: no ticker is configured.
func (l *loop) OnTick() (time.Duration, gnet.Action) { return time.Hour, gnet.None }

// OnOpen makes the Conn of a new connection.
func (l *loop) OnOpen(gc gnet.Conn) ([]byte, gnet.Action) {
	s := l.srv
	if s.stopping.Load() {
		return nil, gnet.Close
	}
	n := s.stats.current.Load() + s.admission.waiting()
	if n >= int64(s.opts.MaxConnections) && !s.opts.exempt(gc.RemoteAddr()) || openConnections.Load() >= s.descriptors {
		s.stats.rejected.Add(1)
		return nil, gnet.Close
	}
	c := &Conn{
		id: s.connID.Add(1), srv: s, gc: gc, fd: gc.Fd(),
		remote: ownAddr(gc.RemoteAddr()), local: reachedAt(gc),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.held.Store(true)
	var ok bool
	if c.waiter, ok = s.admission.enter(c.remote, time.Now(), func() { s.established(c, true) }); !ok {
		c.cancel()
		return nil, gnet.Close
	}
	gc.SetContext(c)
	openConnections.Add(1)
	if _, c.overTCP = c.remote.(*net.TCPAddr); c.overTCP {
		c.awaitsProxy = s.fromBalancer(gc.LocalAddr())
		_ = gc.SetKeepAlivePeriod(keepAlive) // best effort: without it a dead client is detected later
	}
	s.conns.mu.Lock()
	s.conns.all[c.id] = c
	s.conns.mu.Unlock()
	if !c.awaitsProxy {
		s.open(c)
	}
	if c.waiter == nil {
		s.established(c, false)
	}
	return nil, gnet.None
}

// ownAddr copies an address whose memory gnet reuses when the connection ends.
func ownAddr(a net.Addr) net.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return &net.TCPAddr{IP: append(net.IP(nil), t.IP...), Port: t.Port, Zone: strings.Clone(t.Zone)}
	}
	return a
}

// reachedAt returns the address that the client dialled. The event loop knows the listener's, which may be that of
// all interfaces.
func reachedAt(gc gnet.Conn) net.Addr {
	a := ownAddr(gc.LocalAddr())
	t, ok := a.(*net.TCPAddr)
	if !ok || len(t.IP) > 0 && !t.IP.IsUnspecified() {
		return a
	}
	sa, err := unix.Getsockname(gc.Fd())
	if err != nil {
		return a // the client is gone already
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		t.IP = net.IPv4(sa.Addr[0], sa.Addr[1], sa.Addr[2], sa.Addr[3])
	case *unix.SockaddrInet6:
		if t.IP = append(net.IP(nil), sa.Addr[:]...); t.IP.To4() != nil {
			t.IP = t.IP.To4()
		}
	}
	return t
}

// OnTraffic is called when the socket has bytes.
func (l *loop) OnTraffic(gc gnet.Conn) gnet.Action {
	c, _ := gc.Context().(*Conn)
	if c == nil {
		return gnet.Close
	}
	if c.held.Load() {
		if gc.InboundBuffered() > maxHeld {
			return gnet.Close
		}
		return gnet.None
	}
	if err := c.read(); err != nil {
		var bad *FrameError
		var foreign *ForeignError
		if errors.As(err, &bad) || errors.As(err, &foreign) {
			l.srv.badFrame(c, err)
		}
		return gnet.Close
	}
	return gnet.None
}

// OnClose is called before the descriptor is closed.
func (l *loop) OnClose(gc gnet.Conn, _ error) gnet.Action {
	c, _ := gc.Context().(*Conn)
	if c == nil {
		return gnet.None
	}
	s := l.srv
	openConnections.Add(-1)
	c.closed()
	if !s.admission.leave(c.waiter) {
		s.stats.current.Add(-1)
	}
	s.conns.mu.Lock()
	delete(s.conns.all, c.id)
	s.conns.mu.Unlock()
	if !c.awaitsProxy { // else the handler never heard of it
		s.close(c)
	}
	return gnet.None
}
