package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// proxy2 makes a header of version 2.
func proxy2(command, family byte, payload []byte) []byte {
	b := append([]byte(nil), proxySignature...)
	b = append(b, 0x20|command, family)
	b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	return append(b, payload...)
}

func TestProxyHeaders(t *testing.T) {
	four := []byte{10, 1, 2, 3, 10, 0, 0, 1, 0x12, 0x34, 0x69, 0x89}
	six := append(append(append([]byte{0x20, 1, 0xd, 0xb8, 15: 9}, make([]byte, 16)...), 0, 80), 0, 81)
	path := append([]byte("/tmp/client"), make([]byte, 216-11)...)
	for _, tc := range []struct {
		in, src string // src: an address, "" for unknown, "error", or "more"
	}{
		{"PROXY TCP4 10.1.2.3 10.0.0.1 4660 27017\r\n", "10.1.2.3:4660"},
		{"PROXY TCP6 2001:db8::9 ::1 80 81\r\nrest", "[2001:db8::9]:80"},
		{"PROXY UNKNOWN\r\n", ""},
		{"PROXY UNKNOWN ff:f::1 x 1 2\r\n", ""},
		{"", "more"}, {"P", "more"}, {"PROXY TCP4 10.1.2.3", "more"}, {"\r\n\r\n", "more"}, {string(proxySignature), "more"},
		{"PROXY TCP4 10.1.2.3 10.0.0.1 4660 270170\r\n", "error"},
		{"PROXY TCP4 10.1.2.3 10.0.0.1 04660 27017\r\n", "error"},
		{"PROXY TCP4 10.1.2.3 10.0.0.1 -1 27017\r\n", "error"},
		{"PROXY TCP4 ::1 10.0.0.1 1 2\r\n", "error"},
		{"PROXY TCP6 ::ffff:1.2.3.4%eth0 ::1 1 2\r\n", "error"},
		{"PROXY TCP4  10.1.2.3 10.0.0.1 1 2\r\n", "error"},
		{"PROXY UDP4 10.1.2.3 10.0.0.1 1 2\r\n", "error"},
		{"PROXYTCP4\r\n", "error"},
		{"PROXY TCP4 " + strings.Repeat("1", 200), "error"},
		{"GET / HTTP/1.0\r\n\r\n", "error"},
		{string(doc("hello", 1)), "error"},
		{string(proxy2(1, proxyTCP4, four)), "10.1.2.3:4660"},
		{string(proxy2(1, proxyTCP4, append(four, 0x20, 0, 1, 7))), "10.1.2.3:4660"},
		{string(proxy2(1, proxyTCP6, six)), "[2001:db8::9]:80"},
		{string(proxy2(1, proxyUnix, path)), "/tmp/client"},
		{string(proxy2(0, proxyTCP4, four)), ""},
		{string(proxy2(1, 0, nil)), ""},
		{string(proxy2(1, proxyTCP4, four)[:27]), "more"},
		{string(proxy2(1, proxyTCP4, four[:11])), "error"},
		{string(proxy2(1, proxyTCP6, four)), "error"},
		{string(proxy2(2, proxyTCP4, four)), "error"},
		{string(proxy2(1, 0x44, four)), "error"},
		{string(proxy2(1, proxyTCP4, make([]byte, 5000))), "error"},
	} {
		src, n, err := parseProxy([]byte(tc.in))
		got := "error"
		switch {
		case err != nil:
		case n == 0:
			got = "more"
		case src == nil:
			got = ""
		default:
			got = src.String()
		}
		if got != tc.src {
			t.Errorf("%q: %s, want %s", tc.in, got, tc.src)
		}
	}
}

func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte("PROXY TCP4 10.1.2.3 10.0.0.1 4660 27017\r\n"))
	f.Add(proxy2(1, proxyTCP4, make([]byte, 12)))
	f.Add(proxy2(1, proxyUnix, make([]byte, 216)))
	f.Fuzz(func(t *testing.T, b []byte) {
		src, n, err := parseProxy(b)
		if n < 0 || n > len(b) || n > maxProxyHeader || err != nil && n != 0 || n == 0 && src != nil {
			t.Errorf("%q: %v %d %v", b, src, n, err)
		}
		// A header of which only a part has arrived is not taken for a whole one, or refused.
		for i := range n {
			if _, k, err := parseProxy(b[:i]); err != nil || k != 0 {
				t.Fatalf("%q: the first %d bytes are taken for a header of %d (%v)", b, i, k, err)
			}
		}
	})
}

// seen is a handler that passes on the connections that it receives.
type seen struct {
	echo
	open chan *Conn
}

func (s *seen) Opened(c *Conn) { s.open <- c }

// A balancer's port takes connections that begin with a header, however it arrives, and shows the client's address; the others take none.
func TestBalancersPort(t *testing.T) {
	h := &seen{open: make(chan *Conn, 10)}
	var s *Server
	var balanced string
	for range 10 { // the port that was free may be another process's by now
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		balanced = free.Addr().String()
		_ = free.Close()
		if s, err = Listen(Options{Addrs: []string{"127.0.0.1:0", balanced}, Balanced: []string{balanced}}, h); err == nil {
			break
		}
		t.Log(err)
	}
	if s == nil {
		t.Fatal("no port was free")
	}
	defer s.Stop(0)
	say := func(addr string, parts ...[]byte) (reply byte) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		for _, p := range parts {
			if _, err := c.Write(p); err != nil {
				return 0
			}
			time.Sleep(time.Millisecond) // the parts arrive one by one
		}
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		b, err := bufio.NewReader(c).ReadByte()
		if err != nil {
			return 0
		}
		return b
	}
	frame := request(1, doc("x", 1))
	text := []byte("PROXY TCP4 10.1.2.3 10.0.0.1 4660 27017\r\n")
	if say(balanced, text, frame) == 0 || say(balanced, append(bytes.Clone(text), frame...)) == 0 || say(balanced, text[:3], text[3:20], text[20:], frame) == 0 {
		t.Error("a connection with a header is refused")
	}
	for range 3 {
		if c := <-h.open; c.RemoteAddr().String() != "10.1.2.3:4660" || !strings.HasPrefix(fmt.Sprint(c.Via()), "127.0.0.1:") {
			t.Errorf("from %v by %v", c.RemoteAddr(), c.Via())
		}
	}
	if say(balanced, frame) != 0 || say(balanced, []byte("PROXY TCP4 x\r\n"), frame) != 0 || say(balanced, text, text, frame) != 0 {
		t.Error("a connection without a header, with a broken one or with two is taken")
	}
	for len(h.open) > 0 {
		if c := <-h.open; c.Via() == nil {
			t.Error("the handler hears of a connection without header")
		}
	}
	plain := s.Addrs()[0].String()
	if say(plain, text, frame) != 0 || say(plain, frame) == 0 {
		t.Error("the ordinary port takes headers, or does not take messages")
	}
	if c := <-h.open; c.Via() != nil {
		t.Errorf("an ordinary connection comes by %v", c.Via())
	}
}
