package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

func TestPoolRoundTrips(t *testing.T) {
	s := startEcho(t, &echo{})
	shakes := 0
	p := NewPool(PoolOptions{Handshake: func(ctx context.Context, cc *ClientConn) error {
		shakes++
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
	if st := p.Stats(); shakes != 1 || len(st) != 1 || st[0].Created != 1 || st[0].Idle != 1 || st[0].InUse != 0 {
		t.Errorf("%d handshakes, %+v", shakes, st)
	}
}

func TestPoolHonoursContexts(t *testing.T) {
	e := &echo{}
	s := startEcho(t, e)
	p := NewPool(PoolOptions{})
	defer p.Close()
	host := s.Addrs()[0].String()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := p.RoundTrip(ctx, host, &Message{Body: doc("wait", 1)})
	if mongoerr.CodeOf(err) != mongoerr.MaxTimeMSExpired {
		t.Fatalf("past its deadline: %v", err)
	}
	<-e.gone // the broken connection was closed, which ended the request
	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err = p.RoundTrip(ctx, host, &Message{Body: doc("wait", 1)})
	if mongoerr.CodeOf(err) != mongoerr.Interrupted {
		t.Fatalf("cancelled: %v", err)
	}
}

func TestPoolPassesOverDeadConnections(t *testing.T) {
	s := startEcho(t, &echo{})
	p := NewPool(PoolOptions{})
	defer p.Close()
	host := s.Addrs()[0].String()
	if _, err := p.RoundTrip(context.Background(), host, &Message{Body: doc("a", 1)}); err != nil {
		t.Fatal(err)
	}
	s.Stop(0)
	_, err := p.RoundTrip(context.Background(), host, &Message{Body: doc("a", 1)})
	if mongoerr.CodeOf(err) != mongoerr.HostUnreachable {
		t.Fatalf("server gone: %v", err)
	}
	s2, err := Listen(Options{Addrs: []string{host}}, &echo{gone: make(chan int64, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer s2.Stop(0)
	if _, err := p.RoundTrip(context.Background(), host, &Message{Body: doc("a", 1)}); err != nil {
		t.Fatal(err)
	}
}

func TestPoolUnderManyCallers(t *testing.T) {
	s := startEcho(t, &echo{inline: true})
	p := NewPool(PoolOptions{})
	defer p.Close()
	host := s.Addrs()[0].String()
	var wg sync.WaitGroup
	for g := range int32(16) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			name := "ping"
			if g%2 == 0 {
				name = "find"
			}
			for i := range int32(200) {
				want := doc(name, g<<16|i)
				got, err := p.RoundTrip(context.Background(), host, &Message{Body: want})
				if err != nil || !bytes.Equal(got.Body, want) {
					t.Errorf("%v, %v", got, err)
					return
				}
			}
		}()
	}
	wg.Wait()
}

func TestClientCompression(t *testing.T) {
	s := startEcho(t, &echo{})
	cc, err := Dial(context.Background(), s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	for id := range CompressorID(numCompressors) {
		cc.SetCompressor(id)
		got, err := cc.RoundTrip(context.Background(), &Message{Body: bigDoc(5000)})
		if err != nil || !bytes.Equal(got.Body, bigDoc(5000)) {
			t.Fatalf("%s: %v", id, err)
		}
	}
}

// A stopped process accepts connections and answers nothing. A call that is waiting for its handshake ends when the pool severs the host.
func TestSeverEndsHandshakes(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	shaking, once := make(chan struct{}), sync.Once{}
	p := NewPool(PoolOptions{Handshake: func(ctx context.Context, cc *ClientConn) error {
		once.Do(func() { close(shaking) })
		_, err := cc.RoundTrip(ctx, &Message{Body: doc("hello", 1)})
		return err
	}})
	defer p.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := p.Get(t.Context(), mute.Addr().String())
		ended <- err
	}()
	<-shaking
	p.Sever(mute.Addr().String())
	select {
	case err := <-ended:
		if mongoerr.CodeOf(err) != mongoerr.HostUnreachable {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(10 * time.Second): // half of what connecting may take
		t.Error("still waiting")
	}
	if st := p.Stats(); st[0].Dialing != 0 || st[0].InUse != 0 {
		t.Errorf("%+v", st)
	}
}

// A message that the other side would refuse is not sent, and the connection stays usable: a connection that ends looks like a failure that may pass.
func TestMessagesThatAreTooLargeAreNotSent(t *testing.T) {
	here, there := net.Pipe()
	defer func() { _ = here.Close(); _ = there.Close() }()
	cc := NewClientConn(here, "other")
	body := make([]byte, MaxInternalMessage)
	binary.LittleEndian.PutUint32(body, uint32(len(body)))
	if err := cc.Send(t.Context(), &Message{OpCode: OpMsg, Body: body}); mongoerr.CodeOf(err) != mongoerr.BSONObjectTooLarge || !cc.Usable() {
		t.Errorf("%v, usable %v", err, cc.Usable())
	}
}

// endedConn ends a context as soon as a message has been written.
type endedConn struct {
	net.Conn
	end    func()
	marked chan struct{} // closed once the end of the context has been noticed
	once   sync.Once
}

func (c *endedConn) Write(b []byte) (int, error) {
	c.end()
	<-c.marked
	return len(b), nil
}

func (c *endedConn) Read([]byte) (int, error) { return 0, net.ErrClosed }

func (c *endedConn) SetDeadline(time.Time) error {
	c.once.Do(func() { close(c.marked) })
	return nil
}

// A call whose time ends when its message has just been sent reports that, and not that the connection, which is of no use any more, is closed.
func TestTimeEndsAfterSending(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cc := NewClientConn(&endedConn{end: func() { cancel(mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit")) }, marked: make(chan struct{})}, "h:1")
	if _, err := cc.RoundTrip(ctx, &Message{Body: doc("ping", 1)}); mongoerr.CodeOf(err) != mongoerr.MaxTimeMSExpired {
		t.Error(err)
	}
	if cc.Usable() {
		t.Error("the connection counts as usable")
	}
	if _, err := cc.RoundTrip(t.Context(), &Message{Body: doc("ping", 1)}); mongoerr.CodeOf(err) != mongoerr.HostUnreachable {
		t.Error(err)
	}
}

// The time of a call ends between its message and its reply: the connection is not used for another call, which would get that reply.
func TestTimeEndsBeforeReceiving(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server, client := net.Pipe()
	defer server.Close()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	cc := NewClientConn(client, "h:1")
	if err := cc.Send(ctx, &Message{Body: doc("ping", 1)}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := cc.Receive(ctx); err == nil || cc.Usable() {
		t.Errorf("%v; the connection, on which a reply is still to come, counts as usable: %v", err, cc.Usable())
	}
}
