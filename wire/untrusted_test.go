package wire

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
)

// request makes a message's frame.
func request(id int32, body []byte) []byte {
	return AppendMessage(nil, &Message{RequestID: id, Body: body})
}

// trusting trusts a connection that says trust, and no longer one that says distrust.
type trusting struct{ echo }

func (h *trusting) Handle(c *Conn, m *Message, r *Reply) {
	switch string(m.CommandName()) {
	case "trust":
		c.Trust(true)
	case "distrust":
		c.Trust(false)
	}
	h.echo.Handle(c, m, r)
}

// closedBy reports whether the server closes a connection within a time.
func closedBy(c net.Conn, limit time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(limit))
	for b := make([]byte, 1024); ; {
		if _, err := c.Read(b); err != nil {
			var ne net.Error
			return !errors.As(err, &ne) || !ne.Timeout()
		}
	}
}

// Messages of untrusted connections are limited in length, on the wire and after decompression; those of others are not.
func TestStrangersMessages(t *testing.T) {
	var reason atomic.Value
	s, err := Listen(Options{Addrs: []string{"127.0.0.1:0"}, Untrusted: UntrustedLimits{MaxMessage: func() int { return 16384 }},
		BadFrame: func(_ *Conn, err error) { reason.Store(err.Error()) }}, &trusting{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(0)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", s.Addrs()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	answered := func(c net.Conn, frame []byte) bool {
		_, _ = c.Write(frame)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		head := make([]byte, 4)
		if _, err := io.ReadFull(c, head); err != nil {
			return false
		}
		_, err := io.CopyN(io.Discard, c, int64(binary.LittleEndian.Uint32(head))-4)
		return err == nil
	}
	large := request(2, bigDoc(20000))
	squeezed, err := appendCompressed(nil, CompressorZstd, large)
	if err != nil || len(squeezed) > 16384 {
		t.Fatal(len(squeezed), err)
	}
	if c := dial(); !answered(c, request(1, bigDoc(16000))) {
		t.Error("a message within the bound is refused")
	}
	for name, frame := range map[string][]byte{"on the wire": large, "after decompression": squeezed} {
		if answered(dial(), frame) || !strings.Contains(reason.Load().(string), "before authentication") {
			t.Errorf("a message that is too large %s: %v", name, reason.Load())
		}
		c := dial()
		if !answered(c, request(1, doc("trust", 1))) || !answered(c, frame) {
			t.Errorf("a trusted client's message that is large %s is refused", name)
		}
		if !answered(c, request(1, doc("distrust", 1))) || answered(c, frame) {
			t.Errorf("large %s: trust is not taken back", name)
		}
	}
}

// A connection that sends no whole message in time is closed: silent, in the middle of a header, of a message, of a TLS handshake. One that
// has sent a message may then be silent for long.
func TestSilentConnectionsAreClosed(t *testing.T) {
	config := &tls.Config{Certificates: []tls.Certificate{testCertificate()}}
	const limit = 300 * time.Millisecond
	s, err := Listen(Options{Addrs: []string{"127.0.0.1:0"}, Untrusted: UntrustedLimits{FirstMessage: limit},
		TLS: &TLS{Config: func() *tls.Config { return config }, Require: func() bool { return false }}}, &echo{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(0)
	whole := request(1, doc("x", 1))
	start := time.Now()
	conns := map[string]net.Conn{}
	for name, first := range map[string]string{"silent": "", "a byte": "\x40", "a header": string(whole[:16]), "half a message": string(whole[:30]), "a handshake": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "whole message": string(whole)} {
		c, err := net.Dial("tcp", s.Addrs()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, first); err != nil {
			t.Fatal(err)
		}
		conns[name] = c
	}
	encrypted, err := tls.Dial("tcp", s.Addrs()[0].String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = encrypted.Close() }()
	conns["encrypted and silent"] = encrypted
	for name, c := range conns {
		if name != "whole message" && !closedBy(c, 20*time.Second) {
			t.Errorf("%s: still open", name)
		}
	}
	if since := time.Since(start); since < limit {
		t.Errorf("closed after %s", since)
	}
	if closedBy(conns["whole message"], 2*limit) {
		t.Error("a connection that has sent a message is closed")
	}
}

// What a half-open connection costs is bounded, whatever it has sent: with a hundred thousand of them a server keeps its memory.
func TestHalfOpenConnectionsAreLight(t *testing.T) {
	if testing.Short() {
		t.Skip("opens many connections")
	}
	config := &tls.Config{Certificates: []tls.Certificate{testCertificate()}}
	s, err := Listen(Options{Addrs: []string{"127.0.0.1:0"}, Untrusted: UntrustedLimits{MaxMessage: func() int { return 16384 }},
		TLS: &TLS{Config: func() *tls.Config { return config }, Require: func() bool { return false }}}, &echo{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(0)
	hello := append([]byte("\x16\x03\x01\x40\x00\x01\x00\xff\xf0\x03\x03"), make([]byte, 12000)...) // of a record that never ends
	message := request(1, bigDoc(16000))
	const each = 300
	for name, first := range map[string][]byte{"silent": nil, "a header": message[:16], "most of a message": message[:15000], "most of a handshake": hello} {
		before := liveMemory()
		var conns []net.Conn
		for range each {
			c, err := net.Dial("tcp", s.Addrs()[0].String())
			if err != nil {
				t.Skipf("connections: %v", err)
			}
			conns = append(conns, c)
			if _, err := c.Write(first); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, func() bool { return s.Stats().Current >= each })
		time.Sleep(100 * time.Millisecond) // for the bytes to be read; that more arrive later only makes the figure larger
		cost := (liveMemory() - before) / each
		t.Logf("%s: %d bytes a connection", name, cost)
		if cost > 64<<10 {
			t.Errorf("%s: %d bytes a connection", name, cost)
		}
		for _, c := range conns {
			_ = c.Close()
		}
		waitFor(t, func() bool { return s.Stats().Current == 0 })
	}
}

// Exempt clients get in even if all places are taken.
func TestExemptConnections(t *testing.T) {
	exempt := atomic.Bool{}
	s, err := Listen(Options{Addrs: []string{"127.0.0.1:0"}, MaxConnections: 1, Exempt: func(net.Addr) bool { return exempt.Load() }}, &echo{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(0)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", s.Addrs()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	waitFor(t, func() bool { return s.Stats().Current == 1 })
	if !closedBy(dial(), 10*time.Second) {
		t.Error("one too many is taken")
	}
	exempt.Store(true)
	dial()
	waitFor(t, func() bool { return s.Stats().Current == 2 })
}

func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	await.True(t, "what is to come of the connections", f)
}
