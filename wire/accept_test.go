package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain also is the server of TestNoDescriptorIsLeft, as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("SHOAL_FEW_DESCRIPTORS") != "" {
		serveWithFewDescriptors()
		return
	}
	os.Exit(m.Run())
}

// serveWithFewDescriptors serves with 100 descriptors. Upon a line "fill" it takes all that are left, upon "free" it gives them back.
func serveWithFewDescriptors() {
	limit := unix.Rlimit{Cur: 100, Max: 100}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		fmt.Println(err)
		return
	}
	var refused atomic.Int64
	s, err := Listen(Options{Addrs: []string{"127.0.0.1:0"}, Refused: func(err error, n int) {
		if errors.Is(err, syscall.EMFILE) {
			refused.Add(int64(n))
		}
	}}, &echo{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Addrs()[0])
	var taken []int
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "fill":
			for {
				fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					break
				}
				taken = append(taken, fd)
			}
		case "free":
			for _, fd := range taken {
				_ = unix.Close(fd)
			}
			taken = nil
		}
		fmt.Println(len(taken), refused.Load())
	}
}

// When files have taken the last descriptor of the process, connections are refused and the old ones go on; once there are descriptors
// again, connections are accepted. The listener, and all connections with it, ended with the first one that could not be accepted.
func TestNoDescriptorIsLeft(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SHOAL_FEW_DESCRIPTORS=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = in.Close(), cmd.Wait() }()
	lines := bufio.NewScanner(out)
	say := func(what string) (taken, refused int) {
		_, _ = io.WriteString(in, what+"\n")
		lines.Scan()
		if _, err := fmt.Sscan(lines.Text(), &taken, &refused); err != nil {
			t.Fatalf("%s: %q", what, lines.Text())
		}
		return taken, refused
	}
	lines.Scan()
	addr := lines.Text()
	dial := func() net.Conn {
		c, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	served := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write(request(1, doc("x", 1))); err != nil {
			return err
		}
		_, err := readFrame(c)
		return err
	}
	var old []net.Conn
	for range 10 {
		c := dial()
		if err := served(c); err != nil {
			t.Fatal(err)
		}
		old = append(old, c)
	}
	for round := range 3 {
		if taken, _ := say("fill"); taken < 50 {
			t.Fatalf("only %d descriptors were left", taken)
		}
		for i := range 40 {
			if c := dial(); !closedBy(c, 10*time.Second) {
				t.Fatalf("round %d: connection %d is neither accepted nor refused", round, i)
			}
		}
		for i, c := range old {
			if err := served(c); err != nil {
				t.Fatalf("round %d: connection %d, which was there before: %v", round, i, err)
			}
		}
		if _, refused := say("free"); refused == 0 {
			t.Errorf("round %d: nobody is told that connections are refused", round)
		}
		c := dial()
		if err := served(c); err != nil {
			t.Fatalf("round %d: a connection made when there are descriptors again: %v", round, err)
		}
		old = append(old, c) // were it closed, its descriptor would come back some time in the next round
	}
}

// slowToOpen takes a while for each new connection.
type slowToOpen struct {
	echo
	opened atomic.Int64
}

func (h *slowToOpen) Opened(*Conn) {
	for end := time.Now().Add(time.Millisecond); time.Now().Before(end); { // it has work to do
	}
	h.opened.Add(1)
}

// Connected clients are served between two connections of a burst, not after it.
func TestNewConnectionsDelayNobody(t *testing.T) {
	const burst = 1000
	h := &slowToOpen{echo: echo{inline: true}}
	s, err := Listen(Options{Addrs: []string{"127.0.0.1:0", "127.0.0.1:0"}}, h)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(0)
	c := dialTest(t, s)
	ping := func() {
		send(t, c, &Message{RequestID: 1, Body: doc("ping", 1)})
		receive(t, c)
	}
	ping()
	dialled := make(chan struct{})
	go func() {
		defer close(dialled)
		for i := range burst {
			if n, err := net.Dial("tcp", s.Addrs()[i%2].String()); err == nil {
				t.Cleanup(func() { _ = n.Close() })
			}
		}
	}()
	waitFor(t, func() bool { return h.opened.Load() > 10 })
	pings := 0
	for h.opened.Load() < burst {
		ping()
		pings++
	}
	<-dialled
	t.Logf("%d pings", pings)
	if pings < burst/10 {
		t.Errorf("%d pings were answered while %d connections were opened", pings, burst)
	}
}

// A UNIX socket has the permissions that were asked for and replaces one that was left behind; any other file stays.
func TestUnixSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mongodb-1.sock")
	for range 2 {
		s, err := Listen(Options{Addrs: []string{path}, SocketMode: 0o700}, &echo{})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", st.Mode(), err)
		}
		for _, l := range s.listeners {
			l.Listener.(*net.UnixListener).SetUnlinkOnClose(false) // as when the process is killed
		}
		s.Stop(0)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("a letter"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Listen(Options{Addrs: []string{path}}, &echo{}); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file that is not a socket: %v", err)
		s.Stop(0)
	}
	if b, _ := os.ReadFile(path); string(b) != "a letter" {
		t.Error("a file that is not a socket is gone")
	}
}
