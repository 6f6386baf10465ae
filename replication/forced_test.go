package replication

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"go.etcd.io/raft/v3/raftpb"
)

// lines collects the log lines of a simulation's members.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// find returns the lines of a host whose message contains what.
func (l *lines) find(host, what string) (all []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range strings.Split(l.b.String(), "\n") {
		var line map[string]any
		if json.Unmarshal([]byte(s), &line) == nil && line["host"] == host && strings.Contains(fmt.Sprint(line["message"]), what) {
			all = append(all, line)
		}
	}
	return all
}

// divide cuts every member of some off from every other one, in both directions.
func (s *simulation) divide(some ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.nodes {
		for b := range s.nodes {
			if slices.Contains(some, a) != slices.Contains(some, b) {
				s.cut[[2]string{a, b}] = true
			}
		}
	}
}

func (s *simulation) unite() {
	s.mu.Lock()
	clear(s.cut)
	s.mu.Unlock()
}

// force has a member force a configuration with the members of some.
func (s *simulation) force(ctx context.Context, n *simNode, some ...string) error {
	c := n.r.Config().Clone()
	c.Version += 1000
	c.Members = nil
	for id, h := range five {
		if slices.Contains(some, h) {
			c.Members = append(c.Members, MemberConfig{ID: id, Host: h, Priority: 1, Votes: 1, BuildIndexes: true})
		}
	}
	return n.r.Reconfigure(ctx, c, true)
}

// rivals writes on the primary among some, whose writes will be rolled back, and returns what was written.
func (s *simulation) rivals(some []string, n int) (all []string) {
	for _, h := range some {
		x := s.nodes[h]
		for ; !x.dead && x.r.IsPrimary() && n > 0; n-- {
			what := fmt.Sprintf("lost%d", n)
			ctx, cancel := context.WithTimeout(background, time.Second)
			if _, err := x.r.Commit(ctx, x.m.unit(what), Majority); err == nil {
				all = append(all, what)
			}
			cancel()
		}
	}
	return all
}

// check waits until the members of some agree on the set, and checks that they have what was acknowledged up to and including
// the newest epoch, and nothing of lost.
func (s *simulation) check(lost []string, some ...string) {
	s.settle(20 * time.Second)
	s.converge(20 * time.Second)
	epoch := s.primary().r.epoch()
	for _, h := range some {
		list := s.nodes[h].m.state().list
		s.mu.Lock()
		for x, at := range s.acked {
			if at <= epoch && !slices.Contains(list, x) {
				s.t.Errorf("seed %d: %s lacks the acknowledged write %s", s.seed, h, x)
			}
		}
		s.mu.Unlock()
		for _, x := range lost {
			if slices.Contains(list, x) {
				s.t.Errorf("seed %d: %s has %s, which was given up", s.seed, h, x)
			}
		}
	}
	for _, n := range s.alive() {
		if n.fail != nil {
			s.t.Errorf("seed %d: %s failed: %v", s.seed, n.host, n.fail)
		}
		// A member whose own configuration has none of the members never learns that it was removed.
		known := slices.ContainsFunc(n.r.Config().Members, func(m MemberConfig) bool { return slices.Contains(some, m.Host) })
		if role := n.r.role(); !slices.Contains(some, n.host) && role != Removed && (known || role != Recovering) {
			s.t.Errorf("seed %d: %s, which was left out, is %v", s.seed, n.host, role)
		}
	}
	if s.t.Failed() {
		s.t.Log(s.dump())
	}
}

// A member that a forced reconfiguration kept comes back with its old data, together with members that were removed. They
// are a majority of the old set, so it may have been elected by them, and have accepted writes, before it learns of the
// reconfiguration. The writes acknowledged after the reconfiguration stay; the member discards its own, logs how many they
// were, and follows.
func TestForcedReconfigurationHoldsAgainstAMemberOfIt(t *testing.T) {
	for seed, to := seeds(20); seed < to && !t.Failed(); seed++ {
		simulate(t, seed, five, func(s *simulation) {
			var out lines
			s.log = zerolog.New(&out)
			s.found(simConfig(2*time.Second, five...))
			s.settle(5 * time.Second)
			if _, err := s.write(background, s.awaitPrimary(time.Second), Majority); err != nil {
				t.Fatal(err)
			}
			s.converge(time.Second)
			for _, h := range five[1:] {
				s.crash(h, false)
			}
			time.Sleep(5 * time.Second)
			a, b := s.nodes["a:1"], s.nodes["b:1"]
			fork := a.r.rlog.lastIndex()
			if err := s.force(background, a, "a:1", "b:1"); err != nil {
				t.Fatalf("seed %d: forced: %v\n%s", seed, err, s.dump())
			}
			for range s.random(300) {
				if _, err := s.write(background, a, Majority); err != nil {
					t.Fatal(err)
				}
			}
			apart := seed%4 > 0
			if apart {
				s.divide("a:1")
				time.Sleep(time.Second) // what was under way has arrived
			}
			for _, h := range five[1:] {
				s.start(h)
			}
			time.Sleep(15 * time.Second)
			var lost []string
			given := uint64(0)
			if apart {
				lost = s.rivals(five[1:], s.random(600))
				time.Sleep(time.Second)
				given = b.r.rlog.history().commit - fork
				s.unite()
			}
			time.Sleep(30 * time.Second)
			if !a.r.IsPrimary() && !b.r.IsPrimary() {
				t.Fatalf("seed %d: none of the two is primary\n%s", seed, s.dump())
			}
			if _, err := s.write(background, s.primary(), WriteConcern{W: 2, Timeout: 10 * time.Second}); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			s.check(lost, "a:1", "b:1")
			said := out.find("b:1", "discards its data")
			if apart && (len(said) != 1 || said[0]["entries"] != nil && said[0]["entries"] != float64(given) || s.size > 1<<19 && said[0]["entries"] == nil) ||
				!apart && len(said) > 0 {
				t.Errorf("seed %d: b:1 gave up %d entries and said %v", seed, given, said)
			}
		})
	}
}

// A call's member state and its messages are assembled one after the other, so that a call begun before a forced
// reconfiguration may carry entries from after it. A member of the preceding epoch ignores them: it accepts no entry of the new
// history until it knows that the history contains everything that it has committed.
func TestMessagesOfAnotherEpochAreDropped(t *testing.T) {
	simulate(t, 23, three, func(s *simulation) {
		s.found(simConfig(10*time.Second, three...))
		s.settle(2 * time.Second)
		a, b := s.nodes["a:1"], s.nodes["b:1"]
		if _, err := s.write(background, a, WriteConcern{W: 3}); err != nil {
			t.Fatal(err)
		}
		s.divide("a:1")
		time.Sleep(time.Second) // what was under way has arrived
		said, was := a.r.envelope(callMessages, b.r.id.Load()), b.r.rlog.lastIndex()
		fork, err := b.r.rlog.Term(was)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.force(background, a, "a:1"); err != nil {
			t.Fatalf("forced: %v\n%s", err, s.dump())
		}
		if _, err := s.write(background, a, Majority); err != nil {
			t.Fatal(err)
		}
		term := a.r.lead.Load().term
		for _, kind := range []raftpb.MessageType{raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgVote} {
			m := &raftpb.Message{Type: kind.Enum(), From: new(a.r.id.Load()), To: new(b.r.id.Load()), Term: new(term), Index: new(was), LogTerm: new(fork), Commit: new(was)}
			if kind == raftpb.MsgApp {
				m.Entries, m.Commit = []*raftpb.Entry{{Term: new(term), Index: new(was + 1), Type: raftpb.EntryNormal.Enum()}}, new(was+1)
			}
			said.messages = []*raftpb.Message{m}
			payload, err := said.marshal()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.r.Handle(background, payload); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			if b.r.epoch() != 0 || b.r.rlog.lastIndex() != was {
				t.Fatalf("%v of another epoch counted: epoch %x, the log ends at %d, before at %d\n%s", kind, b.r.epoch(), b.r.rlog.lastIndex(), was, s.dump())
			}
		}
		if now, err := b.r.rlog.Term(was); err != nil || now != fork {
			t.Errorf("the last entry is of term %x, before of %x: %v", now, fork, err)
		}
		s.unite()
		time.Sleep(30 * time.Second)
		s.check(nil, "a:1")
	})
}

// A configuration change that was pending when the majority was lost is still in the log of the member that forces another. It is
// committed then, like everything in that log, and does not replace the forced one.
func TestForceAfterAChangeThatWasNotDecided(t *testing.T) {
	for seed, to := seeds(5); seed < to; seed++ {
		simulate(t, seed, five, func(s *simulation) {
			s.found(simConfig(2*time.Second, three...))
			s.settle(2 * time.Second)
			p := s.awaitPrimary(time.Second)
			var some []string
			for _, h := range three {
				if some = append(some, h); h != p.host {
					s.crash(h, false)
				}
			}
			c := p.r.Config().Clone()
			c.Version++
			c.Members = append(c.Members, MemberConfig{ID: 3, Host: "d:1", Priority: 1, Votes: 1, BuildIndexes: true})
			ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
			if err := p.r.Reconfigure(ctx, c, false); err == nil {
				t.Fatal("a change was decided without a majority")
			}
			cancel()
			if err := s.force(background, p, p.host); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, s.dump())
			}
			if now := p.r.Config(); len(now.Members) != 1 || now.Version != c.Version-1+1000 || len(p.r.voting()) != 1 {
				t.Errorf("seed %d: the configuration in force is %+v\n%s", seed, now, s.dump())
			}
			if _, err := s.write(background, p, Majority); err != nil {
				t.Error(err)
			}
			for _, h := range some {
				if h != p.host {
					s.start(h)
				}
			}
			time.Sleep(20 * time.Second)
			s.check(nil, p.host)
		})
	}
}

// Reconfigurations are forced on various members, some of which do not know of each other or crash meanwhile, while the
// network is partitioned and heals. In the end the newest one is in force.
func TestForcedReconfigurations(t *testing.T) {
	for seed, to := seeds(25); seed < to && !t.Failed(); seed++ {
		simulate(t, seed, five, func(s *simulation) { s.forcing() })
	}
}

func (s *simulation) forcing() {
	s.size = int64(2000 << s.random(8))
	s.found(simConfig(2*time.Second, five...))
	s.settle(5 * time.Second)
	if _, err := s.write(background, s.awaitPrimary(time.Second), Majority); err != nil {
		s.t.Fatal(err)
	}
	s.converge(time.Second)
	var newest []string
	for round := 1 + s.random(4); round > 0 && !s.t.Failed(); round-- {
		hosts := slices.Clone(five)
		s.mu.Lock()
		s.rnd.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
		s.mu.Unlock()
		// Some members are down or unreachable; one of the others forces a configuration with some of all members.
		away := hosts[1+s.random(3):]
		s.divide(away...)
		for _, h := range away {
			if s.chance(0.4) {
				s.crash(h, false)
			}
		}
		time.Sleep(time.Duration(s.random(6000)) * time.Millisecond)
		a := s.nodes[hosts[0]]
		some := append([]string{hosts[0]}, hosts[1+s.random(4):]...)
		before := s.latest()
		if epochOf(nextEpoch(a.r.lead.Load().term, a.r.id.Load())) <= before || a.r.Config().ByHost(a.host) == nil {
			continue // this one does not know of the newest, and would not win
		}
		s.forceWithTrouble(a, some)
		if s.latest() > before {
			newest = some
		}
		for range s.random(50) {
			s.someWrite()
		}
		if s.chance(0.5) {
			s.unite()
		}
		for _, h := range five {
			if s.nodes[h].dead && s.chance(0.7) {
				s.start(h)
			}
		}
		time.Sleep(time.Duration(s.random(8000)) * time.Millisecond)
		for range s.random(50) {
			s.someWrite()
		}
	}
	s.heal(five)
	time.Sleep(20 * time.Second)
	if newest == nil {
		newest = five
	}
	p := s.awaitPrimary(10 * time.Second)
	if p.r.epoch() != s.latest() {
		s.t.Errorf("seed %d: %s is primary in epoch %x, not %x", s.seed, p.host, p.r.epoch(), s.latest())
	}
	if _, err := s.write(background, p, WriteConcern{W: len(newest), Timeout: 20 * time.Second}); err != nil {
		s.t.Errorf("seed %d: a write to all of %v: %v", s.seed, newest, err)
	}
	s.check(nil, newest...)
}

// forceWithTrouble forces a reconfiguration, and may crash the forcing member meanwhile.
func (s *simulation) forceWithTrouble(a *simNode, some []string) {
	ctx, cancel := context.WithTimeout(background, 5*time.Second)
	defer cancel()
	done := make(chan error)
	r := a.r
	go func() { done <- s.force(ctx, a, some...) }()
	if s.chance(0.5) {
		time.Sleep(time.Duration(s.random(60)) * time.Millisecond)
		s.crash(a.host, false)
		<-done
		s.start(a.host)
		return
	}
	if err := <-done; err != nil && r.ctx.Err() == nil {
		s.t.Errorf("seed %d: forced: %v\n%s", s.seed, err, s.dump())
	}
}

// latest is the latest epoch that a member is in, alive or not.
func (s *simulation) latest() (epoch uint64) {
	for _, n := range s.nodes {
		hard, _, _ := n.r.rlog.InitialState()
		epoch = max(epoch, epochOf(hard.GetTerm()))
	}
	return epoch
}

// someWrite writes on a primary; if there are several, on that of the latest epoch.
func (s *simulation) someWrite() {
	var best *simNode
	for _, n := range s.alive() {
		if n.r.IsPrimary() && (best == nil || n.r.epoch() > best.r.epoch()) {
			best = n
		}
	}
	if best == nil || best.r.epoch() != s.latest() {
		return
	}
	ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
	defer cancel()
	_, _ = s.write(ctx, best, []WriteConcern{Majority, {W: 2, Timeout: 100 * time.Millisecond}}[s.random(2)])
}

// With real engines, too, a member that has applied more than the forced history, and other entries, ends up with that
// history.
func TestEngineThrowsItsHistoryAway(t *testing.T) {
	s := newEngineSet(t, false)
	disks := map[string]*vfs.MemFS{}
	for _, h := range three {
		disks[h] = vfs.NewCrashableMem()
		s.open(h, false, disks[h])
	}
	if err := s.nodes["a:1"].Initiate(background, simConfig(time.Second, three...)); err != nil {
		t.Fatal(err)
	}
	coll := makeCollection(t, s.nodes["a:1"], s.engines["a:1"])
	await.True(t, "all vote", func() bool { return len(s.nodes["a:1"].voting()) == 3 })
	insert := func(h string, from, to int32, w int) {
		e := s.engines[h]
		for i := from; i < to; i++ {
			u := e.NewUnitOfWork(nil)
			if _, err := u.Insert(e.Catalog().Lookup(coll.NS), value.Doc(value.F("_id", value.NewInt32(i))), storage.NoInfo); err != nil {
				t.Fatal(err)
			}
			if _, err := s.nodes[h].Commit(background, u, WriteConcern{W: w, Timeout: 20 * time.Second}); err != nil {
				t.Fatal(err)
			}
		}
	}
	insert("a:1", 0, 20, 3)
	if at, _ := s.engines["a:1"].AppliedIndex(); at > 50 {
		t.Errorf("the log has %d entries after 20 inserts: attempts to make members vote leave empty ones", at)
	}
	s.crash("b:1", disks, 100)
	s.crash("c:1", disks, 100)
	a := s.nodes["a:1"]
	c := a.Config().Clone()
	c.Version += 1000
	c.Members = c.Members[:2]
	if err := a.Reconfigure(background, c, true); err != nil {
		t.Fatal(err)
	}
	insert("a:1", 20, 25, 1)
	s.crash("a:1", disks, 100)
	for _, h := range three[1:] {
		s.open(h, false, disks[h])
	}
	rival := ""
	await.True(t, "those that have not heard elect one of them", func() bool {
		for _, h := range three[1:] {
			if s.nodes[h].IsPrimary() {
				rival = h
			}
		}
		return rival != ""
	})
	insert(rival, 100, 160, 2)
	s.open("a:1", false, disks["a:1"])
	old, _ := s.engines["b:1"].AppliedIndex()
	await.True(t, "the member that forced is primary, and the other votes", func() bool { return len(s.nodes["a:1"].voting()) == 2 })
	insert("a:1", 25, 30, 2)
	if at, _ := s.engines["b:1"].AppliedIndex(); at >= old {
		t.Errorf("it is at entry %d, and was at %d: this test wants it to go back", at, old)
	}
	ts := s.engines["a:1"].Visible()
	await.True(t, "the one that was left out knows", func() bool { return s.nodes["c:1"].Status().Role == Removed })
	left := s.engines["c:1"]
	delete(s.engines, "c:1")
	defer func() { s.engines["c:1"] = left }()
	s.same(ts, 30)
	snap := s.engines["b:1"].Snapshot()
	defer snap.Release()
	for _, id := range []int32{100, 159} {
		if _, _, found, err := snap.FindByID(snap.Catalog().Lookup(coll.NS), value.NewInt32(id)); found || err != nil {
			t.Errorf("document %d, which was given up: %v, %v", id, found, err)
		}
	}
	if n := s.engines["b:1"].Catalog().Lookup(coll.NS).Counters.Records.Load(); n != 30 {
		t.Errorf("%d documents", n)
	}
}
