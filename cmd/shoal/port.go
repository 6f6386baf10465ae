package main

import (
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// choosePort finds the port of a server that leaves the choice to the system: a member of a set must know its address
// before it listens, since a configuration identifies it by that. The port is reserved until free is called.
func (c *config) choosePort() (free func(), err error) {
	if c.Port != 0 {
		return func() {}, nil
	}
	addr, free, err := reserve(c.Addrs()[0])
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		c.Port, err = strconv.Atoi(port)
	}
	c.Unix.On = false // a socket is named after a port only if the port was given
	return free, err
}

// reserve finds a free port for an address that leaves the choice to the system. The port is bound, but not listened on,
// until free is called: the system does not choose it for others, but a process that asks for it may listen.
func reserve(addr string) (chosen string, free func(), err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return addr, func() {}, err
	}
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{})
	if ip := tcp.IP.To4(); ip != nil {
		sa = &unix.SockaddrInet4{Addr: [4]byte(ip)}
	} else if tcp.IP != nil {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte(tcp.IP)}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return "", nil, os.NewSyscallError("socket", err)
	}
	unix.CloseOnExec(fd) // macOS has no SOCK_CLOEXEC; nothing is started in between
	n, err := bindAnyPort(fd, sa)
	if err != nil {
		_ = unix.Close(fd)
		return "", nil, err
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), func() { _ = unix.Close(fd) }, nil
}

func bindAnyPort(fd int, sa unix.Sockaddr) (port int, err error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, sa); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	switch sa, err := unix.Getsockname(fd); sa := sa.(type) {
	case *unix.SockaddrInet4:
		return sa.Port, nil
	case *unix.SockaddrInet6:
		return sa.Port, nil
	default:
		return 0, os.NewSyscallError("getsockname", err)
	}
}
