package wire

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// testCertificate is a self-signed certificate for 127.0.0.1.
var testCertificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		panic(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
})

func startTLSEcho(tb testing.TB, e *echo, opts Options) *Server {
	tb.Helper()
	config := &tls.Config{Certificates: []tls.Certificate{testCertificate()}}
	e.gate, e.gone = make(chan struct{}), make(chan int64, 16)
	require := opts.TLS != nil
	opts.Addrs, opts.TLS = []string{"127.0.0.1:0"}, &TLS{Config: func() *tls.Config { return config }, Require: func() bool { return require }}
	s, err := Listen(opts, e)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Stop(0) })
	return s
}

func clientTLS(string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(testCertificate().Leaf)
	return &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
}

func dialTLSTest(tb testing.TB, s *Server) net.Conn {
	tb.Helper()
	c := tls.Client(dialTest(tb, s), clientTLS(""))
	tb.Cleanup(func() { c.Close() })
	return c
}

func TestTLSAndPlainOnOnePort(t *testing.T) {
	s := startTLSEcho(t, &echo{inline: true}, Options{})
	for _, c := range []net.Conn{dialTest(t, s), dialTLSTest(t, s)} {
		for i := range int32(20) {
			for _, name := range []string{"ping", "find"} {
				send(t, c, &Message{Body: doc(name, i)})
				if got := receive(t, c); !bytes.Equal(got.Body, doc(name, i)) {
					t.Fatalf("%T: %x", c, got.Body)
				}
			}
		}
	}
	if h := s.Stats().Handshakes; h != [numTLSVersions]int64{3: 1} {
		t.Errorf("handshakes by version: %v", h)
	}
}

// Replies of many records, and pipelined requests cut into pieces at arbitrary positions.
func TestTLSLargeAndPipelined(t *testing.T) {
	s := startTLSEcho(t, &echo{}, Options{})
	c := dialTLSTest(t, s)
	send(t, c, &Message{Body: doc("big", 9<<8)})
	if got := receive(t, c); !bytes.Equal(got.Body, bigDoc(9<<20|100)) {
		t.Fatalf("a reply of 9 MB came as %d bytes", len(got.Body))
	}
	var all []byte
	large := bigDoc(3 << 20)
	for i := range int32(50) {
		all = AppendMessage(all, &Message{Body: doc("find", i), RequestID: i})
	}
	all = AppendMessage(all, &Message{Body: large, RequestID: 50})
	go func() {
		for n := 1; len(all) > 0; n = n*3 + 1 {
			k := min(n, len(all))
			_, _ = c.Write(all[:k])
			all = all[k:]
		}
	}()
	for i := range int32(50) {
		if got := receive(t, c); !bytes.Equal(got.Body, doc("find", i)) {
			t.Fatalf("reply %d: %x", i, got.Body)
		}
	}
	if got := receive(t, c); !bytes.Equal(got.Body, large) {
		t.Fatalf("a request of 3 MB came back as %d bytes", len(got.Body))
	}
}

// A client that sends every byte in a packet of its own.
func TestTLSByteByByte(t *testing.T) {
	s := startTLSEcho(t, &echo{}, Options{})
	c := tls.Client(slowly{dialTest(t, s)}, clientTLS(""))
	for i := range int32(3) {
		send(t, c, &Message{Body: doc("find", i)})
		if got := receive(t, c); !bytes.Equal(got.Body, doc("find", i)) {
			t.Fatalf("%x", got.Body)
		}
	}
}

type slowly struct{ net.Conn }

func (s slowly) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := s.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
		runtime.Gosched()
	}
	return len(b), nil
}

func TestTLSRequired(t *testing.T) {
	refused := make(chan error, 4)
	opts := Options{TLS: &TLS{}, BadFrame: func(_ *Conn, err error) { refused <- err }}
	s := startTLSEcho(t, &echo{}, opts)
	c := dialTest(t, s)
	send(t, c, &Message{Body: doc("find", 1)})
	if _, err := readFrame(c); err == nil {
		t.Error("a plain request was answered")
	}
	if err := <-refused; err != errPlain {
		t.Errorf("refused with %v", err)
	}
	enc := dialTLSTest(t, s)
	send(t, enc, &Message{Body: doc("find", 1)})
	receive(t, enc)
}

// Anything other than a handshake ends the connection, is logged with the reason, and leaves neither goroutines nor connections behind.
func TestTLSBadHandshakes(t *testing.T) {
	refused := make(chan error, 100)
	s := startTLSEcho(t, &echo{}, Options{BadFrame: func(_ *Conn, err error) { refused <- err }})
	hello := clientHello(t)
	for name, b := range map[string][]byte{
		"garbage behind a hello": append(append([]byte(nil), hello...), bytes.Repeat([]byte{7}, 100)...),
		"flood":                  append(append([]byte(nil), hello[:20]...), bytes.Repeat([]byte{0x16, 3, 1, 0, 0}, maxHandshake/5+1)...),
	} {
		c := dialTest(t, s)
		_, _ = c.Write(b)
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Errorf("%s: %v", name, err)
		}
		var foreign *ForeignError
		var frame *FrameError
		if err := <-refused; !errors.As(err, &foreign) && !errors.As(err, &frame) {
			t.Errorf("%s: refused with %v", name, err)
		}
	}
	for range 50 { // half a handshake each, then gone or silent
		c := dialTest(t, s)
		_, _ = c.Write(hello[:len(hello)-3])
	}
	c := dialTLSTest(t, s)
	send(t, c, &Message{Body: doc("find", 1)})
	receive(t, c)
	s.Stop(0) // waits for the goroutines of half handshakes
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
}

// clientHello captures the first bytes that a client sends.
func clientHello(t *testing.T) []byte {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	go func() { _ = tls.Client(near, clientTLS("")).Handshake() }()
	b := make([]byte, 4096)
	n, err := far.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

func TestTLSPool(t *testing.T) {
	s := startTLSEcho(t, &echo{}, Options{})
	p := NewPool(PoolOptions{Dial: DialTLS(clientTLS), Handshake: func(ctx context.Context, cc *ClientConn) error {
		_, err := cc.RoundTrip(ctx, &Message{Body: doc("hello", 1)})
		return err
	}})
	defer p.Close()
	host := s.Addrs()[0].String()
	for i := range int32(10) {
		got, err := p.RoundTrip(context.Background(), host, &Message{Body: doc("find", i)})
		if err != nil || !bytes.Equal(got.Body, doc("find", i)) {
			t.Fatalf("%v, %v", got, err)
		}
	}
	if st := p.Stats(); st[0].Created != 1 {
		t.Errorf("%d connections for requests one after the other", st[0].Created)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := p.RoundTrip(ctx, host, &Message{Body: doc("wait", 1)}); mongoerr.CodeOf(err) != mongoerr.MaxTimeMSExpired {
		t.Errorf("past its deadline: %v", err)
	}
	stranger := NewPool(PoolOptions{Dial: DialTLS(func(string) *tls.Config { return &tls.Config{ServerName: "127.0.0.1", RootCAs: x509.NewCertPool()} })})
	defer stranger.Close()
	if _, err := stranger.RoundTrip(context.Background(), host, &Message{Body: doc("find", 1)}); mongoerr.CodeOf(err) != mongoerr.HostUnreachable {
		t.Errorf("a server whose certificate nobody trusts: %v", err)
	}
}

// An idle encrypted connection keeps less than 40 KiB; both ends are in this process.
func TestTLSConnectionIsLight(t *testing.T) {
	s := startTLSEcho(t, &echo{}, Options{})
	const n = 100
	before := liveMemory()
	conns := make([]net.Conn, n)
	for i := range conns {
		conns[i] = dialTLSTest(t, s)
		send(t, conns[i], &Message{Body: bigDoc(100 << 10)})
		receive(t, conns[i])
	}
	per := (liveMemory() - before) / n
	t.Logf("%d bytes for both ends", per)
	if per > 2*40<<10 {
		t.Errorf("both ends of an idle connection keep %d bytes", per)
	}
	runtime.KeepAlive(conns)
}

func liveMemory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func BenchmarkPing(b *testing.B) {
	for _, secure := range []bool{false, true} {
		b.Run(map[bool]string{false: "plain", true: "tls"}[secure], func(b *testing.B) {
			s := startTLSEcho(b, &echo{inline: true}, Options{})
			c := dialTest(b, s)
			if secure {
				c = tls.Client(c, clientTLS(""))
			}
			_ = c.SetDeadline(time.Time{})
			for b.Loop() {
				send(b, c, &Message{Body: doc("ping", 1)})
				receive(b, c)
			}
		})
	}
}
