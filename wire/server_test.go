package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// doc builds {key: int32} documents for the tests.
func doc(key string, n int32) []byte {
	b := append([]byte{0, 0, 0, 0, 0x10}, key...)
	b = append(b, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	b = append(b, 0)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

// echo answers every request with its own body, except for the commands named below.
type echo struct {
	inline bool
	gate   chan struct{}
	mu     sync.Mutex
	closed []int64
	gone   chan int64
}

func (e *echo) Handle(c *Conn, m *Message, r *Reply) {
	switch string(m.CommandName()) {
	case "block":
		<-e.gate
	case "wait":
		<-c.Done()
		e.gone <- c.ID()
	case "panic":
		panic("a defect")
	case "fail":
		r.SetError(mongoerr.New(mongoerr.BadValue, "no"))
		return
	case "member":
		c.AllowInternal()
	case "more":
		for i := range int32(3) {
			r.Buf = append(r.Buf, doc("part", i)...)
			if c.SendMore(m, r) != nil {
				return
			}
		}
	case "big":
		n := int(m.Body[len(m.Body)-5+1])<<20 | 100
		r.Buf = append(r.Buf, bigDoc(n)...)
		return
	}
	r.Buf = append(r.Buf, m.Body...)
}

func bigDoc(n int) []byte {
	b := make([]byte, 0, n)
	b = append(b, 0, 0, 0, 0, 0x05, 'b', 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(n-13))
	b = append(b, 0)
	b = append(b, make([]byte, n-13)...)
	b = append(b, 0)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

func (e *echo) HandleInline(_ *Conn, m *Message, r *Reply) bool {
	if !e.inline || string(m.CommandName()) != "ping" {
		return false
	}
	r.Buf = append(r.Buf, m.Body...)
	return true
}

func (e *echo) Opened(*Conn) {}
func (e *echo) Closed(c *Conn) {
	e.mu.Lock()
	e.closed = append(e.closed, c.ID())
	e.mu.Unlock()
}

func startEcho(tb testing.TB, e *echo) *Server {
	tb.Helper()
	if e.gate == nil {
		e.gate = make(chan struct{})
	}
	e.gone = make(chan int64, 16)
	s, err := Listen(Options{Addrs: []string{"127.0.0.1:0"}}, e)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Stop(0) })
	return s
}

func dialTest(tb testing.TB, s *Server) net.Conn {
	tb.Helper()
	c, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.LittleEndian.Uint32(head[:]))
	copy(b, head[:])
	_, err := io.ReadFull(r, b[4:])
	return b, err
}

func send(tb testing.TB, c net.Conn, m *Message) {
	tb.Helper()
	if _, err := c.Write(AppendMessage(nil, m)); err != nil {
		tb.Fatal(err)
	}
}

func receive(tb testing.TB, c net.Conn) *Message {
	tb.Helper()
	b, err := readFrame(c)
	if err != nil {
		tb.Fatal(err)
	}
	m, err := ParseMessage(b)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func TestRequestAndReply(t *testing.T) {
	s := startEcho(t, &echo{inline: true})
	c := dialTest(t, s)
	for _, name := range []string{"ping", "find", "ping", "find"} {
		for _, flags := range []uint32{0, ChecksumPresent} {
			req := &Message{RequestID: 7, Flags: flags, Body: doc(name, 1)}
			send(t, c, req)
			got := receive(t, c)
			if got.ResponseTo != 7 || got.Flags != flags || !bytes.Equal(got.Body, req.Body) {
				t.Fatalf("%s, flags %d: got %+v", name, flags, got)
			}
		}
	}
	st := s.Stats()
	if st.NumRequests != 8 || st.Current != 1 || st.BytesIn != st.BytesOut {
		t.Errorf("stats %+v", st)
	}
}

func TestRequestsOfAConnectionStayInOrder(t *testing.T) {
	s := startEcho(t, &echo{inline: true})
	c := dialTest(t, s)
	var all []byte
	for i := range int32(500) {
		name := "find"
		if i%3 == 0 {
			name = "ping"
		}
		all = AppendMessage(all, &Message{RequestID: i, Body: doc(name, i)})
	}
	if _, err := c.Write(all); err != nil {
		t.Fatal(err)
	}
	for i := range int32(500) {
		if got := receive(t, c); got.ResponseTo != i {
			t.Fatalf("reply %d answers request %d", i, got.ResponseTo)
		}
	}
}

func TestABlockedConnectionDisturbsNoOther(t *testing.T) {
	e := &echo{}
	s := startEcho(t, e)
	a, b := dialTest(t, s), dialTest(t, s)
	send(t, a, &Message{RequestID: 1, Body: doc("block", 1)})
	send(t, b, &Message{RequestID: 2, Body: doc("find", 1)})
	if got := receive(t, b); got.ResponseTo != 2 {
		t.Fatalf("got %+v", got)
	}
	close(e.gate)
	if got := receive(t, a); got.ResponseTo != 1 {
		t.Fatalf("got %+v", got)
	}
}

func TestDisconnectCancelsTheRequest(t *testing.T) {
	e := &echo{}
	s := startEcho(t, e)
	c := dialTest(t, s)
	send(t, c, &Message{RequestID: 1, Body: doc("wait", 1)})
	await.True(t, "the request runs", func() bool { return s.Stats().Active > 0 })
	c.Close()
	select {
	case <-e.gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the request went on")
	}
}

func TestUnacknowledgedRequestGetsNoReply(t *testing.T) {
	s := startEcho(t, &echo{})
	c := dialTest(t, s)
	send(t, c, &Message{RequestID: 1, Flags: MoreToCome, Body: doc("find", 1)})
	send(t, c, &Message{RequestID: 2, Body: doc("find", 1)})
	if got := receive(t, c); got.ResponseTo != 2 {
		t.Fatalf("got a reply to %d", got.ResponseTo)
	}
}

func TestExhaustRepliesFormAChain(t *testing.T) {
	s := startEcho(t, &echo{})
	c := dialTest(t, s)
	send(t, c, &Message{RequestID: 40, Flags: ExhaustAllowed, Body: doc("more", 9)})
	last := int32(40)
	for i := range int32(4) {
		got := receive(t, c)
		if got.ResponseTo != last || (got.Flags&MoreToCome != 0) != (i < 3) {
			t.Fatalf("reply %d: %+v", i, got)
		}
		want := doc("part", i)
		if i == 3 {
			want = doc("more", 9)
		}
		if !bytes.Equal(got.Body, want) {
			t.Fatalf("reply %d: %x", i, got.Body)
		}
		last = got.RequestID
	}
}

func TestLargeRequestsAndReplies(t *testing.T) {
	s := startEcho(t, &echo{})
	c := dialTest(t, s)
	for _, mb := range []int32{0, 1, 5, 15} {
		send(t, c, &Message{RequestID: mb, Body: doc("big", mb<<8)})
		if got := receive(t, c); len(got.Body) != int(mb)<<20|100 {
			t.Fatalf("%d MB: %d bytes", mb, len(got.Body))
		}
		body := append([]byte(nil), bigDoc(int(mb)<<20|100)...)
		send(t, c, &Message{RequestID: mb, Body: body})
		if got := receive(t, c); !bytes.Equal(got.Body, body) {
			t.Fatalf("%d MB came back as %d bytes", mb, len(got.Body))
		}
	}
}

func TestASlowReaderGetsAllOfALargeReply(t *testing.T) {
	s := startEcho(t, &echo{})
	c := dialTest(t, s)
	var all []byte
	for i := range int32(6) {
		all = AppendMessage(all, &Message{RequestID: i, Body: doc("big", 8<<8)})
	}
	if _, err := c.Write(all); err != nil {
		t.Fatal(err)
	}
	for i := range int32(6) {
		got := receive(t, c)
		if got.ResponseTo != i || len(got.Body) != 8<<20|100 {
			t.Fatalf("reply %d: to %d, %d bytes", i, got.ResponseTo, len(got.Body))
		}
	}
}

func TestCompression(t *testing.T) {
	s := startEcho(t, &echo{})
	c := dialTest(t, s)
	body := bigDoc(100000)
	for id := range CompressorID(numCompressors) {
		frame := AppendMessage(nil, &Message{RequestID: 5, Body: body})
		packed, err := appendCompressed(nil, id, frame)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(packed); err != nil {
			t.Fatal(err)
		}
		b, err := readFrame(c)
		if err != nil {
			t.Fatal(err)
		}
		if h := ReadHeader(b); h.OpCode != OpCompressed || CompressorID(b[24]) != id {
			t.Fatalf("%s: answered by opcode %d, compressor %d", id, h.OpCode, b[24])
		}
		m, err := ParseMessage(b)
		if err != nil || !bytes.Equal(m.Body, body) || m.ResponseTo != 5 {
			t.Fatalf("%s: %v", id, err)
		}
	}
	for _, k := range s.Stats().Compression {
		if k.DecompressOut < 100000 || k.CompressIn < 100000 {
			t.Errorf("counted %+v", k)
		}
	}
}

func TestLegacyHandshake(t *testing.T) {
	s := startEcho(t, &echo{})
	c := dialTest(t, s)
	if _, err := c.Write(AppendQuery(nil, 3, "admin", doc("isMaster", 1))); err != nil {
		t.Fatal(err)
	}
	got := receive(t, c)
	want := withDB(doc("isMaster", 1), []byte("admin"))
	if got.OpCode != OpReply || got.ResponseTo != 3 || !bytes.Equal(got.Body, want) || Validate(want) != nil {
		t.Fatalf("got %+v", got)
	}
	if _, err := c.Write(AppendQuery(nil, 4, "test", doc("find", 1))); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, c); !strings.Contains(string(got.Body), "Unsupported OP_QUERY command: find") {
		t.Fatalf("got %q", got.Body)
	}
}

func TestPanicIsAnsweredAndTheServerGoesOn(t *testing.T) {
	s := startEcho(t, &echo{})
	c := dialTest(t, s)
	send(t, c, &Message{RequestID: 1, Body: doc("panic", 1)})
	if got := receive(t, c); !bytes.Contains(got.Body, []byte("InternalError")) {
		t.Fatalf("got %q", got.Body)
	}
	send(t, c, &Message{RequestID: 2, Body: doc("find", 1)})
	if got := receive(t, c); got.ResponseTo != 2 {
		t.Fatalf("got %+v", got)
	}
}

func TestBrokenInput(t *testing.T) {
	s := startEcho(t, &echo{})
	other := dialTest(t, s)
	whole := AppendMessage(nil, &Message{RequestID: 1, Flags: ChecksumPresent, Body: doc("find", 1)})
	change := func(at int, b ...byte) []byte {
		f := append([]byte(nil), whole...)
		copy(f[at:], b)
		return f
	}
	for name, tc := range map[string]struct {
		frame  []byte
		answer string // "" when the connection is to be closed
	}{
		"checksum":         {change(30, 9), "ChecksumMismatch"},
		"unknown flag":     {change(16, 0x09), ""},
		"unknown opcode":   {change(12, 1, 0, 0, 9), ""},
		"length too small": {change(0, 3, 0, 0, 0), ""},
		"length too large": {change(0, 0, 0, 0, 0x70), ""},
		"section kind":     {AppendMessage(nil, &Message{Body: doc("x", 1)})[:20:20], ""},
		"document length":  {rawMsg(0, append([]byte{0, 0xff, 0, 0, 0}, doc("a", 1)...)), "InvalidBSON"},
		"negative length":  {rawMsg(0, []byte{0, 0xff, 0xff, 0xff, 0xff, 0}), "InvalidBSON"},
		"kind 7":           {rawMsg(0, []byte{7, 5, 0, 0, 0, 0}), "Unknown section kind 7"},
		"two bodies":       {rawMsg(0, append(append([]byte{0}, doc("a", 1)...), append([]byte{0}, doc("a", 1)...)...)), "Multiple body"},
		"no body":          {rawMsg(0, append([]byte{1, 18, 0, 0, 0, 'a', 0}, doc("a", 1)...)), "must have a body"},
		"sequence length":  {rawMsg(0, append(append([]byte{0}, doc("a", 1)...), 1, 0xff, 0xff, 0, 0, 'a', 0)), "InvalidBSON"},
	} {
		t.Run(name, func(t *testing.T) {
			c := dialTest(t, s)
			f := tc.frame
			if name == "section kind" {
				binary.LittleEndian.PutUint32(f, 20)
			}
			if _, err := c.Write(f); err != nil {
				t.Fatal(err)
			}
			b, err := readFrame(c)
			if tc.answer == "" {
				if !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
					t.Fatalf("still open: %q, %v", b, err)
				}
			} else if err != nil || !bytes.Contains(b, []byte(tc.answer)) {
				t.Fatalf("answered %q, %v", b, err)
			}
			send(t, other, &Message{RequestID: 2, Body: doc("find", 1)})
			if got := receive(t, other); got.ResponseTo != 2 {
				t.Fatalf("another client got %+v", got)
			}
		})
	}
}

// rawMsg frames sections as they are.
func rawMsg(flags uint32, sections []byte) []byte {
	b := make([]byte, headerLen, headerLen+4+len(sections))
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = append(b, sections...)
	Header{int32(len(b)), 1, 0, OpMsg}.put(b)
	return b
}

func TestAddressInUse(t *testing.T) {
	s := startEcho(t, &echo{})
	_, err := Listen(Options{Addrs: []string{s.Addrs()[0].String()}}, &echo{})
	if !errors.Is(err, ErrAddressInUse) {
		t.Fatalf("got %v", err)
	}
}

func TestStopLetsRequestsFinish(t *testing.T) {
	e := &echo{}
	s := startEcho(t, e)
	c := dialTest(t, s)
	send(t, c, &Message{RequestID: 1, Body: doc("block", 1)})
	await.True(t, "the request runs", func() bool { return s.Stats().Active > 0 })
	done := make(chan struct{})
	go func() { s.Stop(10 * time.Second); close(done) }()
	await.True(t, "the server is stopping", s.stopping.Load)
	close(e.gate)
	if got := receive(t, c); got.ResponseTo != 1 {
		t.Fatalf("got %+v", got)
	}
	<-done
	if _, err := readFrame(c); err == nil {
		t.Fatal("the connection is still open")
	}
}

func TestListensOnSeveralAddresses(t *testing.T) {
	path := t.TempDir() + "/mongodb-1.sock"
	s, err := Listen(Options{Addrs: []string{"127.0.0.1:0", path, "127.0.0.1:0"}}, &echo{gone: make(chan int64, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(0)
	for _, a := range s.Addrs() {
		c, err := net.Dial(a.Network(), a.String())
		if err != nil {
			t.Fatal(err)
		}
		send(t, c, &Message{RequestID: 4, Body: doc("find", 1)})
		if got := receive(t, c); got.ResponseTo != 4 {
			t.Errorf("%s: got %+v", a, got)
		}
		c.Close()
	}
}

// TestIdleConnectionsCostLittle holds 1,000 connections that have each sent a request: both ends together may take
// 16 KiB each, so 5,000 stay far under 200 MiB.
func TestIdleConnectionsCostLittle(t *testing.T) {
	const n = 1000
	s := startEcho(t, &echo{inline: true})
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := inUse()
	for i := range int32(n) {
		c := dialTest(t, s)
		name := "ping"
		if i%2 == 0 {
			name = "find"
		}
		send(t, c, &Message{RequestID: i, Body: doc(name, 1)})
		receive(t, c)
	}
	if s.Stats().Current != n {
		t.Fatalf("%d connections", s.Stats().Current)
	}
	if each := (int64(inUse()) - int64(before)) / n; each > 16<<10 {
		t.Errorf("an idle connection costs %d bytes", each)
	} else {
		t.Logf("an idle connection costs %d bytes, client end included", each)
	}
}

// A client's largest message was too large, with what a router adds to it, for the shard, which closed the connection.
func TestMembersSendMoreThanClients(t *testing.T) {
	s := startEcho(t, &echo{})
	for _, member := range []bool{false, true} {
		c := dialTest(t, s)
		if member {
			send(t, c, &Message{OpCode: OpMsg, RequestID: 1, Body: doc("member", 1)})
			if _, err := readFrame(c); err != nil {
				t.Fatal(err)
			}
		}
		head := binary.LittleEndian.AppendUint32(nil, MaxMessageSize+12*MaxWriteBatch+1000)
		head = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(head, 2), 0), uint32(OpMsg))
		if _, err := c.Write(head); err != nil {
			t.Fatal(err)
		}
		limit := 20 * time.Second // it is closed
		if member {
			limit = 300 * time.Millisecond // nothing happens
		}
		_ = c.SetReadDeadline(time.Now().Add(limit))
		_, err := c.Read(make([]byte, 1))
		var slow net.Error
		if waits := errors.As(err, &slow) && slow.Timeout(); waits != member {
			t.Errorf("another node: %v, the connection: %v", member, err)
		}
	}
}
