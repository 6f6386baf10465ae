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

// reserve finds a free port for an address that leaves the choice to the system.
func reserve(addr string) (chosen string, free func(), err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return addr, func() {}, err
	}
	n, free, err := bindPort(addr)
	return net.JoinHostPort(host, strconv.Itoa(n)), free, err
}

// bindPort binds the port of an address, or one that the system chooses for 0, and does not listen on it: nobody's connection is taken and then reset, which
// whoever waits for the server would take for a server that listens. Until free is called the system does not choose the port for others, but a process that
// asks for it may listen.
func bindPort(addr string) (port int, free func(), err error) {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return 0, nil, err
	}
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: tcp.Port})
	if ip := tcp.IP.To4(); ip != nil {
		sa = &unix.SockaddrInet4{Port: tcp.Port, Addr: [4]byte(ip)}
	} else if tcp.IP != nil {
		to := &unix.SockaddrInet6{Port: tcp.Port, Addr: [16]byte(tcp.IP)}
		if tcp.Zone != "" {
			link, err := net.InterfaceByName(tcp.Zone)
			if err != nil {
				return 0, nil, err
			}
			to.ZoneId = uint32(link.Index)
		}
		family, sa = unix.AF_INET6, to
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	unix.CloseOnExec(fd) // macOS has no SOCK_CLOEXEC; nothing is started in between
	port, err = bind(fd, family, sa)
	if err != nil {
		_ = unix.Close(fd)
		return 0, nil, &net.OpError{Op: "listen", Net: "tcp", Addr: tcp, Err: err}
	}
	return port, func() { _ = unix.Close(fd) }, nil
}

func bind(fd, family int, sa unix.Sockaddr) (port int, err error) {
	if family == unix.AF_INET6 { // :: is listened on beside 0.0.0.0
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return 0, os.NewSyscallError("setsockopt", err)
		}
	}
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
