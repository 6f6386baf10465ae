package wire

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/panjf2000/gnet/v2"
)

// loop receives gnet's events. All methods but OnBoot run in an event loop, one connection always in the same.
type loop struct{ srv *Server }

// OnBoot is called before the loops start.
func (l *loop) OnBoot(gnet.Engine) gnet.Action { return gnet.None }

// OnShutdown is called when the engine has been told to stop.
func (l *loop) OnShutdown(gnet.Engine) {}

// OnTick is never called: no ticker is configured.
func (l *loop) OnTick() (time.Duration, gnet.Action) { return time.Hour, gnet.None }

// OnOpen makes the Conn of a new connection.
func (l *loop) OnOpen(gc gnet.Conn) ([]byte, gnet.Action) {
	s := l.srv
	a, _ := gc.Context().(*arrival)
	if a == nil || s.stopping.Load() {
		return nil, gnet.Close
	}
	if s.full(a.remote) { // others may have come since it was accepted
		s.refused(errTooMany)
		return nil, gnet.Close
	}
	c := &Conn{id: s.connID.Add(1), srv: s, gc: gc, fd: gc.Fd(), remote: a.remote, local: a.local}
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
		c.awaitsProxy = a.balanced
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
	if !c.awaitsProxy { // otherwise the handler does not know it
		s.close(c)
	}
	return gnet.None
}
