package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

var coll = Resource{Collection, "db.c"}

func ctxBriefly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestCompatibilityMatrix(t *testing.T) {
	ok := map[[2]Mode]bool{{IS, IS}: true, {IS, IX}: true, {IS, S}: true, {IX, IX}: true, {S, S}: true}
	for _, kind := range Kinds() {
		for a := IS; a <= X; a++ {
			for b := IS; b <= X; b++ {
				synctest.Test(t, func(t *testing.T) {
					m := NewManager()
					res := Resource{kind, "x"}
					first, second := m.NewLocker(), m.NewLocker()
					if err := first.Lock(t.Context(), res, a); err != nil {
						t.Fatal(err)
					}
					err := second.Lock(ctxBriefly(t), res, b)
					if want := ok[[2]Mode{a, b}] || ok[[2]Mode{b, a}]; (err == nil) != want {
						t.Errorf("%s against held %s on %s: %v", b, a, kind, err)
					}
					first.UnlockAll()
					if err := second.Lock(ctxBriefly(t), res, X); err != nil {
						t.Errorf("X after %s was released: %v", a, err)
					}
					second.UnlockAll()
					if m.head(res).mu.closed {
						t.Error("gate still closed when idle")
					}
				})
			}
		}
	}
}

func TestConversions(t *testing.T) {
	for _, c := range []struct{ held, want, other, result Mode }{
		{IS, IX, IS, IX}, {IS, S, IS, S}, {IS, X, None, X}, {IX, S, None, X}, {S, IX, None, X}, {IX, S, IS, None}, {S, IX, S, None}, {X, IS, None, X},
		{IX, IS, IX, IX}, {IS, S, IX, None},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := NewManager()
			l, other := m.NewLocker(), m.NewLocker()
			l.Lock(t.Context(), coll, c.held)
			if c.other != None {
				if err := other.Lock(t.Context(), coll, c.other); err != nil {
					t.Fatal(err)
				}
			}
			err := l.Lock(ctxBriefly(t), coll, c.want)
			if c.result == None {
				if err == nil || l.Held(coll) != c.held {
					t.Errorf("%v: %v, held %s", c, err, l.Held(coll))
				}
			} else if err != nil || l.Held(coll) != c.result {
				t.Errorf("%v: %v, held %s", c, err, l.Held(coll))
			}
		})
	}
}

func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewManager()
		holder := m.NewLocker()
		holder.Lock(t.Context(), coll, IS)
		var mu sync.Mutex
		var order []string
		start := func(name string, mode Mode) {
			go func() {
				l := m.NewLocker()
				if err := l.Lock(t.Context(), coll, mode); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				time.Sleep(time.Second) // of the bubble's clock
				l.UnlockAll()
			}()
			synctest.Wait()
		}
		start("X1", X)
		start("IS", IS) // compatible with the holder, but not before X1
		start("X2", X)
		if r, w := m.Queued(); r != 1 || w != 2 {
			t.Errorf("queued %d readers, %d writers", r, w)
		}
		holder.UnlockAll()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(order, []string{"X1", "IS", "X2"}) {
			t.Errorf("order %v", order)
		}
	})
}

func TestWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewManager()
		holder, l := m.NewLocker(), m.NewLocker()
		holder.LockCollection(t.Context(), "db", "db.c", X)
		l.SetTimeout(5 * time.Millisecond)
		err := l.LockCollection(t.Context(), "db", "db.c", IX)
		if mongoerr.CodeOf(err) != mongoerr.LockTimeout {
			t.Errorf("timeout gave %v", err)
		}
		l.SetTimeout(-1)
		cause := errors.New("killed")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { time.Sleep(time.Second); cancel(cause) }()
		if err := l.LockCollection(ctx, "db", "db.c", IX); err != cause {
			t.Errorf("cancelling gave %v", err)
		}
		if _, waits := l.Summary(); waits {
			t.Error("still shown as waiting")
		}
		l.UnlockAll()
		// A waiter that gives up lets those after it proceed.
		reader := m.NewLocker()
		holder.UnlockAll()
		holder.Lock(t.Context(), coll, IS)
		ctx, cancel = context.WithCancelCause(t.Context())
		go l.Lock(ctx, coll, X)
		synctest.Wait()
		got := make(chan error)
		go func() { got <- reader.Lock(t.Context(), coll, IS) }()
		synctest.Wait()
		cancel(cause)
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

func TestRecursionAndStats(t *testing.T) {
	m := NewManager()
	l := m.NewLocker()
	for range 2 {
		if err := l.LockCollection(t.Context(), "db", "db.c", IX); err != nil {
			t.Fatal(err)
		}
	}
	if sum, _ := l.Summary(); sum[Global] != IX || sum[Collection] != IX || sum[Database] != IX {
		t.Errorf("summary %v", sum)
	}
	l.Unlock(coll)
	if l.Held(coll) != IX {
		t.Error("released too early")
	}
	l.Unlock(coll)
	if sum, _ := l.Summary(); l.Held(coll) != None || sum[Collection] != None {
		t.Error("still held")
	}
	l.UnlockAll()
	if s := m.Stats(); s[Collection][IX].Acquires != 1 || s[Global][IX].Acquires != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestExclusion has many goroutines lock at random and checks that no two hold conflicting locks.
func TestExclusion(t *testing.T) {
	m := NewManager()
	var holders [modes]atomic.Int32
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(g)))
			for range 3000 {
				l := m.NewLocker()
				mode := IS + Mode(r.IntN(4))
				if r.IntN(4) > 0 {
					mode = IS + Mode(r.IntN(2))
				}
				if err := l.Lock(t.Context(), coll, mode); err != nil {
					t.Error(err)
				}
				holders[mode].Add(1)
				for o := IS; o <= X; o++ {
					n := holders[o].Load()
					if o == mode {
						n--
					}
					if n > 0 && !Compatible(mode, o) {
						t.Errorf("%s and %s are held together", mode, o)
					}
				}
				holders[mode].Add(-1)
				l.UnlockAll()
			}
		})
	}
	wg.Wait()
	if h := m.head(coll); h.mu.closed || h.stripes[0].state.Load() != 0 {
		t.Error("counts left behind")
	}
}

// A name that is locked once leaves nothing behind: the number of heads of unlocked names is bounded.
func TestHeadsGoAway(t *testing.T) {
	m := NewManager()
	held := m.NewLocker()
	for i := range 10 {
		if err := held.LockCollection(t.Context(), "held", fmt.Sprintf("held.c%d", i), X); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 * keptHeads {
		l := m.NewLocker()
		if err := l.LockCollection(t.Context(), fmt.Sprintf("db%d", i), fmt.Sprintf("db%d.c", i), IX); err != nil {
			t.Fatal(err)
		}
		l.UnlockAll()
	}
	n := 0
	m.heads.Range(func(_, _ any) bool { n++; return true })
	if n > keptHeads {
		t.Errorf("%d heads are left", n)
	}
	for i := range 10 {
		l := m.NewLocker()
		l.SetTimeout(0)
		if err := l.LockCollection(t.Context(), "held", fmt.Sprintf("held.c%d", i), IS); err == nil {
			t.Errorf("a lock that is held was taken")
		}
		l.UnlockAll()
	}
	held.UnlockAll()
}

// Locks exclude each other while heads are removed concurrently.
func TestExclusionWhileHeadsGo(t *testing.T) {
	m := NewManager()
	const names = 3
	var inside [names]atomic.Int32
	var wg, sweeper sync.WaitGroup
	stop := make(chan struct{})
	sweeper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				m.sweep()
			}
		}
	})
	for g := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(g)))
			for range 3000 {
				l, i := m.NewLocker(), r.IntN(names)
				mode := []Mode{IX, IX, X}[r.IntN(3)]
				if err := l.Lock(t.Context(), Resource{Collection, fmt.Sprintf("db.c%d", i)}, mode); err != nil {
					t.Error(err)
				}
				if mode == X {
					if !inside[i].CompareAndSwap(0, -1) {
						t.Error("X is held beside another")
					}
					inside[i].Add(1)
				} else {
					if inside[i].Add(1) <= 0 {
						t.Error("IX is held beside X")
					}
					inside[i].Add(-1)
				}
				l.UnlockAll()
			}
		})
	}
	wg.Wait()
	close(stop)
	sweeper.Wait()
}

func BenchmarkLock(b *testing.B) {
	b.Run("collection IX, three levels", func(b *testing.B) {
		b.ReportAllocs()
		m := NewManager()
		var l Locker
		l.Init(m)
		for b.Loop() {
			if err := l.LockCollection(b.Context(), "db", "db.c", IX); err != nil {
				b.Fatal(err)
			}
			l.UnlockAll()
		}
	})
	b.Run("one IX", func(b *testing.B) {
		b.ReportAllocs()
		m := NewManager()
		var l Locker
		l.Init(m)
		h := m.Handle(coll)
		for b.Loop() {
			if err := l.LockHandle(b.Context(), h, IX); err != nil {
				b.Fatal(err)
			}
			l.UnlockAll()
		}
	})
}

// A lock is released once, however often that is requested: its Locker may belong to another operation by then.
func TestUnlockTwice(t *testing.T) {
	m := NewManager()
	ctx := context.Background()
	first, err := m.Collection(ctx, "d.c", X)
	if err != nil {
		t.Fatal(err)
	}
	first()
	second, err := m.Collection(ctx, "d.c", X)
	if err != nil {
		t.Fatal(err)
	}
	first()
	l := m.NewLocker()
	l.SetTimeout(0)
	if err := l.LockCollection(ctx, "d", "d.c", IX); err == nil {
		t.Error("a lock that is held was taken")
	}
	l.UnlockAll()
	second()
	if err := l.LockCollection(ctx, "d", "d.c", X); err != nil {
		t.Error(err)
	}
	l.UnlockAll()
}

// A statement of a transaction that is refused gives back what it has locked, and nothing of what earlier ones have.
func TestUnlockCollectionUndoesOneLock(t *testing.T) {
	m := NewManager()
	l := m.NewLocker()
	for _, ns := range []string{"d.a", "d.b", "e.c", "d.a"} {
		if err := l.LockCollections(t.Context(), IX, ns); err != nil {
			t.Fatal(err)
		}
	}
	l.UnlockCollection("e.c")
	l.UnlockCollection("d.a")
	held := func(names ...string) {
		t.Helper()
		for res, want := range map[Resource]bool{
			{Collection, "d.a"}: slices.Contains(names, "d.a"), {Collection, "d.b"}: slices.Contains(names, "d.b"), {Collection, "e.c"}: false,
			{Database, "d"}: len(names) > 0, {Database, "e"}: false,
		} {
			if got := l.Held(res) != None; got != want {
				t.Errorf("%v is held: %v", res, got)
			}
		}
	}
	held("d.a", "d.b")
	l.UnlockCollection("d.a")
	held("d.b")
	l.UnlockCollection("d.b")
	held()
	if err := m.NewLocker().LockGlobal(t.Context(), X); err != nil {
		t.Error(err)
	}
}
