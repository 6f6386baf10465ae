package wire

import (
	"crypto/tls"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// alive reports whether an idle connection has neither been closed nor received unexpected data. It makes one
// non-blocking peek, so that a request is not lost on a connection whose other end has restarted.
func alive(c net.Conn) bool {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn() // unrequested TLS records come with the handshake, before the first reply
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	ok = false
	err = rc.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, rerr := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ok = rerr == unix.EAGAIN || rerr == unix.EINTR
		return true
	})
	return err == nil && ok
}
