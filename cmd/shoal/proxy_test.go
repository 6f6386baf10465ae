package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// network is between the members of a set: each is reached at an address of its own in 127.0.0.0/8, where a proxy
// forwards bytes to the member's port, or holds them while the link between two members is cut. Members recognize any
// address of their machine with their own port as themselves, so the network is invisible to them.
type network struct {
	mu      sync.Mutex
	cut     map[[2]int]bool // from, to
	healed  chan struct{}   // closed when a link comes back
	pids    []int           // of the members, 0 while one is down
	proxies []net.Listener
	conns   sync.WaitGroup
}

// client is the source of a connection that no member opened.
const client = -1

// newNetwork returns a network that ends with the test, after the servers in it.
func newNetwork(t testing.TB) *network {
	n := &network{cut: map[[2]int]bool{}, healed: make(chan struct{})}
	t.Cleanup(n.close)
	return n
}

// join returns the number of a new member of the network.
func (n *network) join() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pids = append(n.pids, 0)
	return len(n.pids) - 1
}

// serve makes member i, which listens on port, reachable for the others, and returns its address.
func (n *network) serve(t testing.TB, i, port int) string {
	at := fmt.Sprintf("127.0.0.%d:%d", 11+i, port)
	l, err := net.Listen("tcp", at)
	if errors.Is(err, syscall.EADDRINUSE) {
		t.Fatal(err)
	}
	if err != nil {
		t.Skipf("this machine has no further loopback addresses: %v", err)
	}
	n.proxies = append(n.proxies, l)
	n.conns.Add(1)
	go func() {
		defer n.conns.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.conns.Add(1)
			go func() {
				defer n.conns.Done()
				n.pass(c, i, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			}()
		}
	}()
	return at
}

// close ends the proxies. The members must have ended.
func (n *network) close() {
	n.heal()
	for _, l := range n.proxies {
		_ = l.Close()
	}
	n.conns.Wait()
}

// isolate cuts a member off from all others, in both directions.
func (n *network) isolate(i int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for j := range n.pids {
		if j != i {
			n.cut[[2]int{i, j}], n.cut[[2]int{j, i}] = true, true
		}
	}
}

// sever cuts one link in one direction.
func (n *network) sever(from, to int) {
	n.mu.Lock()
	n.cut[[2]int{from, to}] = true
	n.mu.Unlock()
}

// heal restores all links.
func (n *network) heal() {
	n.mu.Lock()
	clear(n.cut)
	close(n.healed)
	n.healed = make(chan struct{})
	n.mu.Unlock()
}

// open waits until bytes may pass from one to another.
func (n *network) open(from, to int) {
	for {
		n.mu.Lock()
		cut, healed := n.cut[[2]int{from, to}], n.healed
		n.mu.Unlock()
		if !cut {
			return
		}
		<-healed
	}
}

func (n *network) setPID(i, pid int) {
	n.mu.Lock()
	n.pids[i] = pid
	n.mu.Unlock()
}

// pass forwards a connection to member to, while the link is not cut.
func (n *network) pass(in net.Conn, to int, addr string) {
	from := n.source(in)
	n.open(from, to)
	out, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		_ = in.Close()
		return
	}
	var both sync.WaitGroup
	both.Add(2)
	forward := func(dst, src net.Conn, from, to int) {
		defer both.Done()
		buf := make([]byte, 64<<10)
		for {
			k, err := src.Read(buf)
			if k > 0 {
				n.open(from, to)
				if _, werr := dst.Write(buf[:k]); werr != nil {
					err = werr
				}
			}
			if err != nil {
				break
			}
		}
		_, _ = dst.Close(), src.Close()
	}
	go forward(out, in, from, to)
	go forward(in, out, to, from)
	both.Wait()
}

// source finds the member that opened a connection, by the process that has the socket.
func (n *network) source(c net.Conn) int {
	inode := socketInode(c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr))
	if inode == "" {
		return client
	}
	n.mu.Lock()
	pids := append([]int(nil), n.pids...)
	n.mu.Unlock()
	for i, pid := range pids {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && to == "socket:["+inode+"]" {
				return i
			}
		}
	}
	return client
}
