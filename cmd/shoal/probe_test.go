package main

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// Whoever waits for a server tries to connect to it. While the server only finds out whether its port is free, no connection is taken: it would be reset.
func TestProbedPortsTakeNoConnections(t *testing.T) {
	port := freePorts(t, 1)
	addr := loopback(port)
	c := &config{Program: isMongod, Port: port, BindIP: []string{"127.0.0.1"}}
	if !slices.Equal(c.Addrs(), []string{addr}) {
		t.Fatalf("addresses: %v", c.Addrs())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 5000 {
			if err := probePorts(c); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for tries, over := 0, false; !over || tries < 1000; tries++ {
		if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("a connection was taken: %v", err)
		}
		select {
		case <-ended:
			over = true
		default:
		}
	}
	for _, at := range []string{addr, net.JoinHostPort("::1", strconv.Itoa(port))} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Logf("%s is not tried: %v", at, err)
			continue
		}
		if _, _, err := bindPort(at); err == nil {
			t.Errorf("%s is in use, and was bound", at)
		}
		_ = l.Close()
		if _, free, err := bindPort(at); err != nil {
			t.Error(err)
		} else {
			free()
		}
	}
}
