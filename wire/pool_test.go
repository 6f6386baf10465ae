package wire

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// gauge counts what goes on at the same time, and the most that ever did.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) enter() {
	n := g.now.Add(1)
	for {
		m := g.most.Load()
		if n <= m || g.most.CompareAndSwap(m, n) {
			return
		}
	}
}

func (g *gauge) leave() { g.now.Add(-1) }

// counted returns options whose connections and attempts to connect are counted.
func counted(l PoolLimits) (opts PoolOptions, connecting, open *gauge) {
	connecting, open = new(gauge), new(gauge)
	return PoolOptions{
		Limits: func(string) PoolLimits { return l },
		Dial: func(ctx context.Context, host string) (*ClientConn, error) {
			connecting.enter()
			defer connecting.leave()
			cc, err := Dial(ctx, host)
			if err == nil {
				open.enter()
				cc.conn = &countedConn{Conn: cc.conn, open: open}
			}
			return cc, err
		},
	}, connecting, open
}

type countedConn struct {
	net.Conn
	open *gauge
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(c.open.leave)
	return c.Conn.Close()
}

// Two thousand calls at once go over no more connections than allowed, which are made no faster than allowed, and all get their answers.
func TestPoolBurst(t *testing.T) {
	s := startEcho(t, &echo{})
	for _, limit := range []int{1, 8, 1 << 20} {
		l := DefaultPoolLimits
		l.Max, l.Connecting = limit, 3
		opts, connecting, open := counted(l)
		p := NewPool(opts)
		var wg sync.WaitGroup
		for i := range int32(2000) {
			wg.Go(func() {
				want := doc("find", i)
				got, err := p.RoundTrip(t.Context(), s.Addrs()[0].String(), &Message{Body: want})
				if err != nil || !bytes.Equal(got.Body, want) {
					t.Errorf("call %d: %v, %v", i, got, err)
				}
			})
		}
		wg.Wait()
		if connecting.most.Load() > 3 || open.most.Load() > int64(limit) {
			t.Errorf("at most %d: %d connections were open at once, %d being made", limit, open.most.Load(), connecting.most.Load())
		}
		st := p.Stats()[0]
		if sum := waited(st); sum != 2000 || st.InUse != 0 {
			t.Errorf("%+v: %d calls", st, sum)
		}
		p.Close()
		if n := open.now.Load(); n != 0 {
			t.Errorf("%d connections are left open", n)
		}
	}
}

func waited(st HostStats) (sum int64) {
	for _, n := range st.Waits {
		sum += n
	}
	return sum
}

// recursive is a server that calls itself while it serves a call, as nodes of a cluster do.
type recursive struct {
	echo
	call func() error
}

func (n *recursive) Handle(c *Conn, m *Message, r *Reply) {
	if string(m.CommandName()) == "outer" {
		if err := n.call(); err != nil {
			r.SetError(mongoerr.New(mongoerr.BadValue, err.Error()))
			return
		}
	}
	n.echo.Handle(c, m, r)
}

// If calls hold all connections, and each needs another one to continue, they get it: with a limit no caller waits for itself.
func TestPoolLimitNeverDeadlocks(t *testing.T) {
	type urgent struct{}
	l := DefaultPoolLimits
	l.Max = 4
	p := NewPool(PoolOptions{
		Limits: func(string) PoolLimits { return l },
		Urgent: func(ctx context.Context) bool { return ctx.Value(urgent{}) != nil },
	})
	defer p.Close()
	var host atomic.Value
	var both sync.WaitGroup
	both.Add(l.Max)
	n := &recursive{}
	n.call = func() error {
		both.Done()
		both.Wait() // until every connection is in use
		_, err := p.RoundTrip(context.WithValue(context.Background(), urgent{}, true), host.Load().(string), &Message{Body: doc("inner", 1)})
		return err
	}
	s, err := Listen(Options{Addrs: []string{"127.0.0.1:0"}}, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop(0) })
	host.Store(s.Addrs()[0].String())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // less than a call waits for a connection
	defer cancel()
	var wg sync.WaitGroup
	for range l.Max {
		wg.Go(func() {
			got, err := p.RoundTrip(ctx, host.Load().(string), &Message{Body: doc("outer", 1)})
			if err != nil || !bytes.Equal(got.Body, doc("outer", 1)) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	wg.Wait()
	// What was made beyond the limit is closed again.
	if st := p.Stats()[0]; st.InUse+st.Idle > int64(l.Max) || st.Created <= int64(l.Max) {
		t.Errorf("%+v", st)
	}
}

// pipes returns a Dial whose connections go nowhere, and counts them.
func pipes(open *gauge) func(context.Context, string) (*ClientConn, error) {
	return func(_ context.Context, host string) (*ClientConn, error) {
		here, there := net.Pipe()
		go func() { _, _ = there.Read(make([]byte, 1)) }()
		open.enter()
		return NewClientConn(&countedConn{Conn: here, open: open}, host), nil
	}
}

// A call that waits longer than a connection may take to be made gets an error that says so, and so do all calls at once where the host
// cannot be reached.
func TestPoolWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open gauge
		l := DefaultPoolLimits
		l.Max = 1
		p := NewPool(PoolOptions{Dial: pipes(&open), Limits: func(string) PoolLimits { return l }})
		cc, err := p.Get(t.Context(), "h:1")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := p.Get(t.Context(), "h:1"); mongoerr.CodeOf(err) != mongoerr.PooledConnectionAcquisitionExceededTimeLimit || time.Since(began) != l.Setup {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if st := p.Stats()[0]; st.Rejected != 1 || st.InUse != 1 {
			t.Errorf("%+v", st)
		}
		p.Put(cc)
		p.Close()

		refused := errors.New("refused")
		var tries atomic.Int64
		p = NewPool(PoolOptions{Dial: func(context.Context, string) (*ClientConn, error) {
			tries.Add(1)
			time.Sleep(time.Second)
			return nil, refused
		}})
		began = time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := p.Get(t.Context(), "h:2"); !errors.Is(err, refused) || time.Since(began) > time.Second {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
			})
		}
		wg.Wait()
		if n := tries.Load(); n > int64(DefaultPoolLimits.Connecting) {
			t.Errorf("%d attempts", n)
		}
		p.Close()
	})
}

// Idle connections are checked, those beyond the minimum are closed, and all are closed if the host has not been called for long.
func TestPoolRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open gauge
		var checks atomic.Int64
		l := DefaultPoolLimits
		l.Min = 3
		var others atomic.Int64 // connections that h:2 is to have
		p := NewPool(PoolOptions{
			Dial: pipes(&open), Limits: func(string) PoolLimits { return l },
			Check: func(context.Context, *ClientConn) error { checks.Add(1); return nil },
			Follow: func(map[string]HostLoad) map[string]int {
				if n := others.Load(); n > 0 {
					return map[string]int{"h:2": int(n)}
				}
				return nil
			},
		})
		defer p.Close()
		var taken []*ClientConn
		for range 10 {
			cc, err := p.Get(t.Context(), "h:1")
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, cc)
		}
		for _, cc := range taken {
			p.Put(cc)
		}
		began := time.Now()
		at := func(d time.Duration, wantOpen, wantChecks int64) {
			t.Helper()
			time.Sleep(time.Until(began.Add(d)))
			synctest.Wait()
			if open.now.Load() != wantOpen || checks.Load() != wantChecks {
				t.Errorf("after %v: %d connections, want %d; %d checks, want %d", d, open.now.Load(), wantOpen, checks.Load(), wantChecks)
			}
		}
		at(58*time.Second, 10, 0)
		at(62*time.Second, 3, 3)
		others.Store(5)
		at(70*time.Second, 8, 3)
		if st := p.Stats(); len(st) != 2 {
			t.Errorf("%+v", st)
		}
		others.Store(0)
		at(124*time.Second, 6, 9)
		at(l.HostTimeout+2*time.Second, 3, 4*3+3*3) // h:1 has gone; h:2 is known since 62 s
		at(l.HostTimeout+70*time.Second, 0, 4*3+4*3)
		if st := p.Stats(); len(st) != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A pool has its minimum again after a connection has broken.
func TestPoolKeepsItsMinimum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open gauge
		l := DefaultPoolLimits
		l.Min = 4
		p := NewPool(PoolOptions{Dial: pipes(&open), Limits: func(string) PoolLimits { return l }})
		defer p.Close()
		cc, err := p.Get(t.Context(), "h:1")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := open.now.Load(); n != 4 {
			t.Errorf("%d connections, want 4", n)
		}
		cc.broken = true
		p.Put(cc)
		p.Drop("h:1")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := open.now.Load(); n != 4 {
			t.Errorf("%d connections, want 4", n)
		}
	})
}

// Before the first call to a host, Warm has the connections made that its minimum asks for. It waits for no host that cannot be reached.
func TestPoolWarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open gauge
		l := DefaultPoolLimits
		l.Min = 3
		dial := pipes(&open)
		p := NewPool(PoolOptions{Limits: func(string) PoolLimits { return l }, Dial: func(ctx context.Context, host string) (*ClientConn, error) {
			switch host {
			case "down:1":
				return nil, errors.New("refused")
			case "mute:1":
				<-ctx.Done()
				return nil, ctx.Err()
			}
			time.Sleep(20 * time.Millisecond)
			return dial(ctx, host)
		}})
		defer p.Close()
		began := time.Now()
		p.Warm(t.Context(), []string{"a:1", "b:1", "down:1"})
		if n, took := open.now.Load(), time.Since(began); n != 6 || took > time.Second {
			t.Errorf("%d connections after %v, want 6", n, took)
		}
		limited, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if p.Warm(limited, []string{"mute:1"}); limited.Err() == nil {
			t.Error("it did not wait for a host that may still answer")
		}
	})
}
