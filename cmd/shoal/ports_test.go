package main

import (
	"math/rand"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Servers whose port has to be known before they start get one from here. A port that the system hands out, and that is closed
// again for the server, may be handed out a second time before the server listens, to a connection or to another test. These lie
// below the system's range, and each process of tests has a block of its own: the process that listens on the first port of a block may
// give out the others.
const (
	firstBlock = 10000
	blocks     = 16 // up to 26000: the real ports of servers are none of them
	blockSize  = 1000
)

var portBlock struct {
	sync.Mutex
	guard net.Listener
	first int
	next  int // offset in the block
}

// freePorts returns the first of n neighbouring ports on which nothing listens. They are not given out again before the block's others.
func freePorts(t testing.TB, n int) int {
	t.Helper()
	b := &portBlock
	b.Lock()
	defer b.Unlock()
	for at := rand.Intn(blocks); b.guard == nil; at++ {
		if at == 2*blocks {
			t.Fatal("other processes have all blocks of ports")
		}
		first := firstBlock + at%blocks*blockSize
		if l, err := net.Listen("tcp", loopback(first)); err == nil {
			b.guard, b.first = l, first
		}
	}
	found := 0
	for range 2 * blockSize {
		if b.next = b.next%(blockSize-1) + 1; b.next == 1 {
			found = 0 // those before are at the other end
		}
		l, err := net.Listen("tcp", loopback(b.first+b.next))
		if err != nil {
			found = 0
			continue
		}
		_ = l.Close()
		if found++; found == n {
			return b.first + b.next - n + 1
		}
	}
	t.Fatalf("no %d neighbouring ports are free", n)
	return 0
}

func freePort(t testing.TB) string { return strconv.Itoa(freePorts(t, 1)) }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// No port is given out twice while another has not been.
func TestFreePorts(t *testing.T) {
	seen := map[int]bool{}
	for _, n := range []int{1, 3, 9, 1, 1} {
		first := freePorts(t, n)
		for p := first; p < first+n; p++ {
			if seen[p] {
				t.Errorf("port %d is given out twice", p)
			}
			seen[p] = true
		}
	}
}
