package replication

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// delayedConfig is a set of three whose last member is delayed.
func delayedConfig(secs int64) *SetConfig {
	c := simConfig(2*time.Second, three...)
	c.Members[2].Priority, c.Members[2].Hidden, c.Members[2].DelaySecs = 0, true, secs
	return c
}

// has reports whether a member has applied a write.
func (n *simNode) has(what string) bool { return slices.Contains(n.m.state().list, what) }

// writeAs commits the given value on the primary.
func (s *simulation) writeAs(what string, wc WriteConcern) error {
	p := s.awaitPrimary(20 * time.Second)
	ts, err := p.r.Commit(context.Background(), p.m.unit(what), wc)
	if ts != 0 {
		s.mu.Lock()
		s.acked[what] = 0
		s.mu.Unlock()
	}
	return err
}

// until waits until a member has applied a write and returns how long that took.
func (s *simulation) until(n *simNode, what string) time.Duration {
	start := time.Now()
	for !n.has(what) {
		if time.Sleep(10 * time.Millisecond); time.Since(start) > time.Hour {
			s.t.Fatalf("%s never has %s", n.host, what)
		}
	}
	return time.Since(start)
}

// A delayed member applies entries when they are old enough, not before and not much later. It counts towards the
// majority by its log and towards w: N by what it has applied, and it is never elected.
func TestDelayedMember(t *testing.T) {
	simulate(t, 1, three, func(s *simulation) {
		s.found(delayedConfig(60))
		s.settle(5 * time.Minute)
		c := s.nodes["c:1"]
		time.Sleep(2 * time.Minute)
		if err := s.writeAs("first", Majority); err != nil {
			t.Fatal(err)
		}
		if took := s.until(c, "first"); took < 60*time.Second || took > 63*time.Second {
			t.Errorf("applied after %v", took)
		}
		if err := s.writeAs("w3", WriteConcern{W: 3, Timeout: 30 * time.Second}); !errors.Is(err, storage.ErrWaitTimeout) {
			t.Errorf("w: 3 within 30 s: %v", err)
		}
		start := time.Now()
		if err := s.writeAs("all", WriteConcern{W: 3, Timeout: 2 * time.Minute}); err != nil || time.Since(start) < 60*time.Second {
			t.Errorf("w: 3 after %v: %v", time.Since(start), err)
		}
		// Its log counts: without the third member it completes the majority.
		p := s.awaitPrimary(time.Second)
		for _, h := range three[:2] {
			if h != p.host {
				s.crash(h, false)
			}
		}
		if err := s.writeAs("two", WriteConcern{W: -1, Timeout: time.Second}); err != nil || c.has("two") {
			t.Errorf("a majority with the delayed member: %v", err)
		}
		// Nothing is lost when the primary fails, too, and the other member comes back: it receives the write from the delayed member's log.
		s.crash(p.host, false)
		other := "a:1"
		if p.host == other {
			other = "b:1"
		}
		s.start(other)
		if q := s.awaitPrimary(time.Minute); q.host != other || !q.has("two") {
			t.Errorf("the primary is %s: %v", q.host, q.m.state().list)
		}
		if c.has("two") {
			t.Error("the delayed member has applied early")
		}
		s.start(p.host)
		s.until(c, "two")
	})
}

// What a delayed member has not applied stays in its log, over restarts and truncation, and is applied when it is due.
func TestDelayedMemberKeepsItsLog(t *testing.T) {
	simulate(t, 2, three, func(s *simulation) {
		s.size = 4 << 10
		s.found(delayedConfig(300))
		s.settle(20 * time.Minute)
		c := s.nodes["c:1"]
		big := string(make([]byte, 512))
		var all []string
		for i := range 60 {
			what := string(rune('A'+i)) + big
			if err := s.writeAs(what, Majority); err != nil {
				t.Fatal(err)
			}
			all = append(all, what)
			time.Sleep(time.Second)
			if i == 30 {
				s.crash("c:1", false)
				time.Sleep(time.Second)
				s.start("c:1")
			}
		}
		if c.has(all[0]) {
			t.Error("applied early")
		}
		if took := s.until(c, all[59]); took < 4*time.Minute || took > 6*time.Minute {
			t.Errorf("the last one was applied %v later", took)
		}
		if list := c.m.state().list; !slices.Equal(list, s.primary().m.state().list[:len(list)]) {
			t.Error("the delayed member has other content")
		}
	})
}

// Configurations take effect on a delayed member at once, including the one that ends its delay, after which it catches up
// and may become primary.
func TestDelayEnds(t *testing.T) {
	simulate(t, 3, three, func(s *simulation) {
		s.found(delayedConfig(3600))
		s.settle(2 * time.Hour)
		c := s.nodes["c:1"]
		for _, what := range []string{"x", "y", "z"} {
			if err := s.writeAs(what, Majority); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		p := s.primary()
		next := p.r.Config().Clone()
		next.Version++
		next.Members[2].Tags = []Tag{{"use", "reports"}}
		if err := p.r.Reconfigure(context.Background(), next, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := c.r.Config(); got.Version != next.Version || c.has("x") {
			t.Errorf("the delayed member is at version %d, applied: %v", got.Version, c.m.state().list)
		}
		next = p.r.Config().Clone()
		next.Version++
		next.Members[2].DelaySecs, next.Members[2].Priority, next.Members[2].Hidden = 0, 5, false
		if err := p.r.Reconfigure(context.Background(), next, false); err != nil {
			t.Fatal(err)
		}
		if took := s.until(c, "z"); took > 5*time.Second {
			t.Errorf("it caught up after %v", took)
		}
		for end := time.Now().Add(time.Minute); s.primary() != c; time.Sleep(time.Second) {
			if time.Now().After(end) {
				t.Fatalf("it did not take over\n%s", s.dump())
			}
		}
		if err := s.writeAs("after", WriteConcern{W: 3, Timeout: time.Minute}); err != nil {
			t.Error(err)
		}
	})
}

func TestDelayedMembersAreChecked(t *testing.T) {
	for _, tc := range []struct {
		change func(c *SetConfig)
		code   mongoerr.Code
	}{
		{func(c *SetConfig) {}, 0},
		{func(c *SetConfig) { c.Members[2].Hidden = false }, 0},
		{func(c *SetConfig) { c.Members[2].Hidden, c.Members[2].Priority = false, 1 }, mongoerr.InvalidReplicaSetConfig},
		{func(c *SetConfig) { c.Members[2].DelaySecs = -1 }, mongoerr.InvalidReplicaSetConfig},
		{func(c *SetConfig) { c.ConfigServer = true }, mongoerr.InvalidReplicaSetConfig},
	} {
		c := delayedConfig(60)
		tc.change(c)
		if err := c.Validate(); mongoerr.CodeOf(err) != tc.code {
			t.Errorf("%+v: %v", c.Members[2], err)
		}
	}
}

// A delayed member of real engines ends up with the same content, a second or two later.
func TestDelayedEngine(t *testing.T) {
	s := newEngineSet(t, true, three...)
	r, e := s.nodes["a:1"], s.engines["a:1"]
	ctx := context.Background()
	c := delayedConfig(1)
	c.Members[1].Priority = 0
	if err := r.Initiate(ctx, c); err != nil {
		t.Fatal(err)
	}
	await.True(t, "all vote", func() bool { return len(r.voting()) == 3 })
	coll := makeCollection(t, r, e)
	for i := range 20 {
		u := e.NewUnitOfWork(nil)
		if _, err := u.Insert(coll, value.Doc(value.F("_id", value.NewInt32(int32(i)))), storage.NoInfo); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Commit(ctx, u, Majority); err != nil {
			t.Fatal(err)
		}
	}
	ts, late := e.Visible(), s.engines["c:1"]
	if late.Visible() >= ts {
		t.Error("the delayed member is not late")
	}
	start := time.Now()
	if err := r.Await(ctx, ts, WriteConcern{W: 3, Timeout: 10 * time.Second}); err != nil || time.Since(start) < time.Second {
		t.Errorf("w: 3 after %v: %v", time.Since(start), err)
	}
	s.same(ts, 20)
}
