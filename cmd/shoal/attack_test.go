package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zlib"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire"
)

// rawConn exchanges frames, well-formed or not.
type rawConn struct {
	t *testing.T
	net.Conn
}

func dialRaw(t *testing.T, addr string) *rawConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return &rawConn{t, c}
}

var errPeerClosed = errors.New("closed")

// reply reads one reply's document; errPeerClosed if the server has closed the connection.
func (c *rawConn) reply() (bson.Raw, error) {
	var head [16]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			return nil, err
		}
		return nil, errPeerClosed
	}
	frame := make([]byte, binary.LittleEndian.Uint32(head[:]))
	copy(frame, head[:])
	if _, err := io.ReadFull(c, frame[16:]); err != nil {
		return nil, err
	}
	m, err := wire.ParseMessage(frame)
	if err != nil {
		return nil, err
	}
	return bson.Raw(m.Body), nil
}

// outcome is a reply in a word: ok, closed, or the error's code.
func (c *rawConn) outcome() string {
	doc, err := c.reply()
	switch {
	case err == errPeerClosed:
		return "closed"
	case err != nil:
		return err.Error()
	}
	if v, _ := doc.Lookup("ok").AsInt64OK(); v == 1 {
		if e, ok := doc.Lookup("writeErrors", "0", "code").AsInt64OK(); ok {
			return "write " + strconv.Itoa(int(e))
		}
		return "ok"
	}
	code, _ := doc.Lookup("code").AsInt64OK()
	return strconv.Itoa(int(code))
}

func le32(b []byte, v int) []byte { return binary.LittleEndian.AppendUint32(b, uint32(v)) }

func rawFrame(opcode int, payload ...[]byte) []byte {
	n := 16
	for _, p := range payload {
		n += len(p)
	}
	b := le32(le32(le32(le32(make([]byte, 0, n), n), 7), 0), opcode)
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

// opMsg builds an OP_MSG from sections.
func opMsg(flags int, sections ...[]byte) []byte {
	return rawFrame(2013, append([][]byte{le32(nil, flags)}, sections...)...)
}

func body(doc any) []byte {
	raw, err := bson.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return append([]byte{0}, raw...)
}

func sequence(name string, docs ...[]byte) []byte {
	n := 4 + len(name) + 1
	for _, d := range docs {
		n += len(d)
	}
	b := append(append(le32([]byte{1}, n), name...), 0)
	for _, d := range docs {
		b = append(b, d...)
	}
	return b
}

func compressed(id byte, orig, size int, data []byte) []byte {
	return rawFrame(2012, le32(le32(nil, orig), size), []byte{id}, data)
}

func checksummed(frame []byte, delta uint32) []byte {
	b := le32(slices.Clone(frame), 0)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	b[16] |= 1
	at := len(b) - 4
	binary.LittleEndian.PutUint32(b[at:], crc32.Checksum(b[:at], crc32.MakeTable(crc32.Castagnoli))+delta)
	return b
}

// nested is a document of that many levels: {a: {a: … {}}}, or arrays.
func nested(levels int, array bool) []byte {
	key, kind := "a", byte(3)
	if array {
		key, kind = "0", 4
	}
	var doc []byte
	for i := levels; i > 1; i-- {
		doc = append(le32(doc, 5+8*(i-1)), kind, key[0], 0)
	}
	return append(append(doc, 5, 0, 0, 0, 0), make([]byte, levels-1)...)
}

func ping() bson.D { return bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}} }

func insertInto(coll string) []byte {
	return body(bson.D{{Key: "insert", Value: coll}, {Key: "$db", Value: "attack"}})
}

// padded is a document {_id, p: binary} of exactly size bytes.
func padded(id, size int) []byte {
	raw, err := bson.Marshal(bson.D{{Key: "_id", Value: int32(id)}, {Key: "p", Value: make([]byte, size-4-9-8-1)}})
	if err != nil || len(raw) != size {
		panic(fmt.Sprint(len(raw), size, err))
	}
	return raw
}

func tinyDocs(n int) []byte {
	var out []byte
	for i := range n {
		out = append(out, 14, 0, 0, 0, 0x10, '_', 'i', 'd', 0)
		out = append(le32(out, i), 0)
	}
	return out
}

// fill is an insert whose frame has exactly size bytes.
func fill(coll string, size int) []byte {
	head := insertInto(coll)
	left := size - 20 - len(head) - len(sequence("documents"))
	var docs [][]byte
	for i := 0; left > 0; i++ {
		n := min(left, 15<<20)
		if rest := left - n; rest > 0 && rest < 100 {
			n -= 100
		}
		docs = append(docs, padded(i, n))
		left -= n
	}
	return opMsg(0, head, sequence("documents", docs...))
}

func deflated(b []byte) []byte {
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

var frameAttacks = []struct {
	name  string
	frame func() []byte
	want  string
}{
	{"length of zero", func() []byte { return make([]byte, 16) }, "closed"},
	{"length below a header", func() []byte { return le32(le32(le32(le32(nil, 15), 1), 0), 2013) }, "closed"},
	{"negative length", func() []byte { return le32(le32(le32(le32(nil, -1), 1), 0), 2013) }, "closed"},
	{"one byte more than a message may have", func() []byte { return le32(le32(le32(le32(nil, 48000001), 1), 0), 2013) }, "closed"},
	{"as large as a message may be", func() []byte { return fill("big", 48000000) }, "ok"},
	{"unknown opcode", func() []byte { return rawFrame(9999, le32(nil, 0)) }, "closed"},
	{"legacy OP_INSERT", func() []byte { return rawFrame(2002, le32(nil, 0), []byte("a.b\x00"), nested(1, false)) }, "closed"},
	{"OP_QUERY on a collection", func() []byte {
		return rawFrame(2004, le32(nil, 0), []byte("a.b\x00"), le32(le32(nil, 0), 1), nested(1, false))
	}, "5739101"},
	{"no sections", func() []byte { return opMsg(0) }, "closed"},
	{"two bodies", func() []byte { return opMsg(0, body(ping()), body(ping())) }, "40430"},
	{"section of unknown kind", func() []byte { return opMsg(0, body(ping()), []byte{9, 1, 2, 3}) }, "40432"},
	{"two sequences of one name", func() []byte {
		return opMsg(0, insertInto("c"), sequence("documents", tinyDocs(1)), sequence("documents", tinyDocs(1)))
	}, "40431"},
	{"a sequence and a field of one name", func() []byte {
		return opMsg(0, body(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{}}, {Key: "$db", Value: "attack"}}), sequence("documents", tinyDocs(1)))
	}, "40433"},
	{"sequence longer than the message", func() []byte { return opMsg(0, insertInto("c"), append(le32([]byte{1}, 1000), "documents\x00"...)) }, "22"},
	{"sequence of negative length", func() []byte { return opMsg(0, insertInto("c"), append(le32([]byte{1}, -5), "documents\x00"...)) }, "22"},
	{"sequence without a name's end", func() []byte { return opMsg(0, insertInto("c"), append(le32([]byte{1}, 8), "abcd"...)) }, "22"},
	{"document longer than its section", func() []byte { return opMsg(0, append([]byte{0}, le32(nil, 500)...), []byte{0}) }, "22"},
	{"element without an end", func() []byte { return opMsg(0, []byte{0, 9, 0, 0, 0, 2, 'a', 0, 1, 0}) }, "22"},
	{"string of negative length", func() []byte { return opMsg(0, []byte{0, 13, 0, 0, 0, 2, 'a', 0, 255, 255, 255, 255, 0, 0}) }, "22"},
	{"element of unknown type", func() []byte { return opMsg(0, []byte{0, 9, 0, 0, 0, 0x44, 'a', 0, 0, 0}) }, "22"},
	{"unknown required flag", func() []byte { return opMsg(1<<5, body(ping())) }, "closed"},
	{"nested as deep as may be", func() []byte { return opMsg(0, insertInto("deep"), sequence("documents", nested(180, false))) }, "ok"},
	{"nested too deep", func() []byte { return opMsg(0, insertInto("deep"), sequence("documents", nested(250, false))) }, "15"},
	{"nested far too deep", func() []byte { return opMsg(0, insertInto("deep"), sequence("documents", nested(100000, true))) }, "15"},
	{"command nested far too deep", func() []byte { return opMsg(0, append([]byte{0}, nested(100000, false)...)) }, "15"},
	{"right checksum", func() []byte { return checksummed(opMsg(0, body(ping())), 0) }, "ok"},
	{"wrong checksum", func() []byte { return checksummed(opMsg(0, body(ping())), 1) }, "288"},
	{"compressed", func() []byte {
		b := opMsg(0, body(ping()))[16:]
		return compressed(1, 2013, len(b), snappy.Encode(nil, b))
	}, "ok"},
	{"compressed, announced too short", func() []byte {
		b := opMsg(0, body(ping()))[16:]
		return compressed(1, 2013, len(b)-1, snappy.Encode(nil, b))
	}, "closed"},
	{"compressed, announced too long", func() []byte {
		b := opMsg(0, body(ping()))[16:]
		return compressed(2, 2013, len(b)+100, deflated(b))
	}, "closed"},
	{"compressed bomb", func() []byte { return compressed(2, 2013, 1000, deflated(make([]byte, 200<<20))) }, "closed"},
	{"compressed, announced as 2 GiB", func() []byte { return compressed(2, 2013, 1<<31-1, deflated(make([]byte, 100))) }, "closed"},
	{"snappy that claims 4 GiB", func() []byte { return compressed(1, 2013, 1000, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0}) }, "closed"},
	{"zstd of rubbish", func() []byte { return compressed(3, 2013, 1000, []byte("rubbish, not zstd")) }, "closed"},
	{"unknown compressor", func() []byte { return compressed(77, 2013, 10, make([]byte, 10)) }, "closed"},
	{"compressed within compressed", func() []byte { return compressed(0, 2012, 10, make([]byte, 10)) }, "closed"},
	{"as many statements as may be", func() []byte { return opMsg(0, insertInto("many"), sequence("documents", tinyDocs(100000))) }, "ok"},
	{"one statement more", func() []byte { return opMsg(0, insertInto("more"), sequence("documents", tinyDocs(100001))) }, "16"},
	{"document of 16 MiB", func() []byte { return opMsg(0, insertInto("large"), sequence("documents", padded(1, 16<<20))) }, "ok"},
	{"document of one byte more", func() []byte { return opMsg(0, insertInto("large"), sequence("documents", padded(2, 16<<20+1))) }, "write 10334"},
	{"document of 20 MiB", func() []byte { return opMsg(0, insertInto("large"), sequence("documents", padded(3, 20<<20))) }, "10334"},
}

func (p *process) addr(t *testing.T) string {
	t.Helper()
	return p.at
}

// victim runs point reads of its own concurrently; stop returns their latencies.
func victim(t *testing.T, p *process) (stop func() []time.Duration) {
	t.Helper()
	ctx := context.Background()
	coll := p.client.Database("victim").Collection("c")
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	quit, done := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var all []time.Duration
		for {
			select {
			case <-quit:
				slices.Sort(all)
				done <- all
				return
			case <-time.After(2 * time.Millisecond):
			}
			begin := time.Now()
			if err := coll.FindOne(ctx, bson.D{{Key: "_id", Value: 1}}).Err(); err != nil {
				t.Errorf("another client's read: %v", err)
			}
			all = append(all, time.Since(begin))
		}
	}()
	return func() []time.Duration { close(quit); return <-done }
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// Whatever arrives on a connection gets a reply or ends that connection, and no other.
func TestMalformedFrames(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir())
	defer p.kill(t)
	stop := victim(t, p)
	for _, a := range frameAttacks {
		c := dialRaw(t, p.addr(t))
		frame := a.frame()
		go func() { _, _ = c.Write(frame) }() // the server may close the connection in the middle
		if got := c.outcome(); got != a.want {
			t.Errorf("%s: %s, want %s", a.name, got, a.want)
		}
		_ = c.Close()
	}
	lat := stop()
	t.Logf("another client's %d reads: median %v, 99 %% %v, worst %v", len(lat), quantile(lat, 0.5), quantile(lat, 0.99), lat[len(lat)-1])
}

// Frames cut off anywhere leave nothing behind.
func TestCutFrames(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir())
	defer p.kill(t)
	whole := opMsg(0, insertInto("cut"), sequence("documents", tinyDocs(20)))
	for n := range whole {
		c := dialRaw(t, p.addr(t))
		_, _ = c.Write(whole[:n])
		_ = c.Close()
	}
	n, err := p.client.Database("attack").Collection("cut").CountDocuments(context.Background(), bson.D{})
	if err != nil || n != 0 {
		t.Errorf("%d documents of messages that never arrived completely (%v)", n, err)
	}
}

// Any byte of a message may be wrong.
func TestFlippedBytes(t *testing.T) {
	p := launch(t, t.TempDir())
	defer p.kill(t)
	whole := opMsg(0, body(bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "a", Value: bson.D{{Key: "$in", Value: bson.A{1, "x", bson.Regex{Pattern: "a"}}}}}}}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$x"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}}}},
		{Key: "cursor", Value: bson.D{}}, {Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}}, {Key: "$db", Value: "attack"}}))
	var c *rawConn
	for i := 16; i < len(whole); i++ {
		for _, x := range []byte{0x01, 0x80, 0xff} {
			bad := slices.Clone(whole)
			if bad[i] ^= x; bad[16]&2 != 0 {
				continue // it would get no reply
			}
			if c == nil {
				c = dialRaw(t, p.addr(t))
			}
			_, _ = c.Write(bad)
			if _, err := c.reply(); err == errPeerClosed {
				_ = c.Close()
				c = nil
			} else if err != nil {
				t.Fatalf("byte %d ^ %x: %v", i, x, err)
			}
		}
	}
}

// resident is a process's memory in bytes.
func resident(t *testing.T, p *process) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Skip("no /proc")
	}
	for _, line := range strings.Split(string(raw), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			kb, _ := strconv.Atoi(f[1])
			return kb << 10
		}
	}
	return 0
}

// Clients that announce large messages, send requests without reading replies, or read slowly, do not make the server
// allocate memory, and delay no other client.
func TestGreedyClients(t *testing.T) {
	p := launch(t, t.TempDir())
	defer p.kill(t)
	ctx := context.Background()
	if _, err := p.client.Database("attack").Collection("c").InsertMany(ctx, []any{bson.Raw(padded(1, 8<<20)), bson.Raw(padded(2, 7<<20))}); err != nil {
		t.Fatal(err)
	}
	before := resident(t, p)
	stop := victim(t, p)
	find := opMsg(0, body(bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "attack"}}))
	for range 300 {
		_, _ = dialRaw(t, p.addr(t)).Write(append(le32(le32(le32(le32(nil, 48000000), 1), 0), 2013), 0, 0, 0, 0, 0))
	}
	for range 5 {
		c := dialRaw(t, p.addr(t))
		_, _ = c.Write(bytes.Repeat(find, 200)) // 3 GiB of replies
		d := dialRaw(t, p.addr(t))
		_ = d.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = d.Write(bytes.Repeat(opMsg(0, body(ping())), 50000))
	}
	time.Sleep(time.Second) // time for a server without bounds to allocate memory
	lat := stop()
	after := resident(t, p)
	t.Logf("resident before %d MiB, after %d MiB; another client's reads: median %v, 99 %% %v, worst %v", before>>20, after>>20, quantile(lat, 0.5), quantile(lat, 0.99), lat[len(lat)-1])
	if after-before > 600<<20 {
		t.Errorf("greedy clients took %d MiB", (after-before)>>20)
	}
}

// A client may send many requests before it reads: the replies come in order. Unacknowledged writes are executed before
// later requests on the connection.
func TestPipelinedRequests(t *testing.T) {
	p := launch(t, t.TempDir())
	defer p.kill(t)
	c := dialRaw(t, p.addr(t))
	const n = 500
	var all []byte
	for i := range n {
		doc, _ := bson.Marshal(bson.D{{Key: "_id", Value: i}})
		all = append(all, opMsg(2, insertInto("quiet"), sequence("documents", doc))...)
		all = append(all, opMsg(0, body(bson.D{{Key: "count", Value: "quiet"}, {Key: "$db", Value: "attack"}}))...)
	}
	go func() { _, _ = c.Write(all) }()
	for i := range n {
		doc, err := c.reply()
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := doc.Lookup("n").AsInt64OK(); got != int64(i+1) {
			t.Fatalf("reply %d counts %d: %v", i, got, doc)
		}
	}
}

// getMore with exhaustAllowed sends batch after batch, at the pace of the reader.
func TestExhaustedCursor(t *testing.T) {
	p := launch(t, t.TempDir())
	defer p.kill(t)
	c := dialRaw(t, p.addr(t))
	_, _ = c.Write(opMsg(0, insertInto("e"), sequence("documents", tinyDocs(1000))))
	if got := c.outcome(); got != "ok" {
		t.Fatal(got)
	}
	_, _ = c.Write(opMsg(0, body(bson.D{{Key: "find", Value: "e"}, {Key: "batchSize", Value: 0}, {Key: "$db", Value: "attack"}})))
	doc, err := c.reply()
	if err != nil {
		t.Fatal(err)
	}
	id := doc.Lookup("cursor", "id").Int64()
	_, _ = c.Write(opMsg(1<<16, body(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "e"}, {Key: "batchSize", Value: 7}, {Key: "$db", Value: "attack"}})))
	got := 0
	for id != 0 {
		if doc, err = c.reply(); err != nil {
			t.Fatal(err)
		}
		id = doc.Lookup("cursor", "id").Int64()
		vals, _ := doc.Lookup("cursor", "nextBatch").Array().Values()
		got += len(vals)
	}
	if got != 1000 {
		t.Errorf("%d documents of 1000", got)
	}
}

// Idle connections cost little, and leave nothing when they go.
func TestIdleConnections(t *testing.T) {
	n := 5000
	if testing.Short() {
		n = 500
	}
	p := launch(t, t.TempDir())
	defer p.kill(t)
	conns := make([]net.Conn, 0, n)
	for range n {
		c, err := net.Dial("tcp", p.addr(t))
		if err != nil {
			t.Skipf("this machine allows %d connections: %v", len(conns), err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := w; i < n; i += 8 {
				c := &rawConn{t, conns[i]}
				_, _ = c.Write(opMsg(0, body(bson.D{{Key: "hello", Value: 1}, {Key: "$db", Value: "admin"}})))
				if got := c.outcome(); got != "ok" {
					t.Errorf("hello: %s", got)
				}
			}
		}()
	}
	wg.Wait()
	rss := resident(t, p)
	t.Logf("%d idle connections: %d MiB resident", n, rss>>20)
	if rss > 200<<20 {
		t.Errorf("%d idle connections take %d MiB", n, rss>>20)
	}
}
