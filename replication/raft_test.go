package replication

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

var background = context.Background()

// A killed primary is replaced within electionTimeoutMillis plus two seconds, whichever member it is.
func TestFailoverTimes(t *testing.T) {
	var all []time.Duration
	for seed := range int64(40) {
		simulate(t, seed, three, func(s *simulation) {
			s.found(simConfig(10*time.Second, three...))
			s.settle(time.Second)
			time.Sleep(time.Duration(s.random(5000)) * time.Millisecond)
			p := s.primary()
			start := time.Now()
			s.crash(p.host, false)
			s.awaitPrimary(12 * time.Second)
			all = append(all, time.Since(start))
		})
	}
	slices.Sort(all)
	t.Logf("of %d: median %v, p90 %v, longest %v, with a time-out of 10 s", len(all), all[len(all)/2], all[len(all)*9/10], all[len(all)-1])
}

// On a machine that lets members run only every 200 ms or so, a killed primary is still replaced in the order of the
// election timeout: raft's clock follows the time, not the number of times that the loop woke.
func TestFailoverOfTheStarved(t *testing.T) {
	var all []time.Duration
	for seed := range int64(40) {
		simulate(t, seed, three, func(s *simulation) {
			s.found(simConfig(2*time.Second, three...))
			s.settle(time.Second)
			for _, n := range s.alive() {
				s.starve(n, time.Duration(150+s.random(100))*time.Millisecond)
			}
			time.Sleep(time.Duration(3000+s.random(3000)) * time.Millisecond)
			p := s.primary()
			if p == nil {
				t.Errorf("seed %d: the set is well, and has no primary", seed)
				return
			}
			start := time.Now()
			s.crash(p.host, false)
			s.awaitPrimary(time.Minute)
			all = append(all, time.Since(start))
		})
	}
	slices.Sort(all)
	t.Logf("of %d: median %v, p90 %v, longest %v, with a time-out of 2 s", len(all), all[len(all)/2], all[len(all)*9/10], all[len(all)-1])
	if median := all[len(all)/2]; median > 5*time.Second {
		t.Errorf("half of the elections took longer than %v", median)
	}
}

// A member that was asked to take over and does not stand for election, which the primary could not know, does not delay
// writes and the step-down for an election timeout.
func TestHandoverToOneThatRefuses(t *testing.T) {
	simulate(t, 6, three, func(s *simulation) {
		s.found(simConfig(10*time.Second, three...))
		s.settle(time.Second)
		p := s.awaitPrimary(time.Second)
		a, b := s.nodes["b:1"], s.nodes["c:1"]
		if err := b.r.Freeze(time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second) // the primary knows it
		s.mu.Lock()
		s.cut[[2]string{a.host, p.host}] = true
		s.mu.Unlock()
		if err := errors.Join(a.r.Freeze(time.Minute), b.r.Freeze(0)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		start := time.Now()
		go func() { done <- p.r.StepDown(background, time.Minute, 10*time.Second, false) }()
		time.Sleep(50 * time.Millisecond)
		s.heal(three)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := s.awaitPrimary(time.Second); n != b || time.Since(start) > 2*time.Second {
			t.Errorf("%s took over after %v", n.host, time.Since(start))
		}
	})
}

// A member that was removed and added again follows a primary that it does not know.
func TestReturnToASetWithANewPrimary(t *testing.T) {
	simulate(t, 7, []string{"a:1", "b:1", "c:1", "d:1"}, func(s *simulation) {
		s.found(simConfig(2*time.Second, three...))
		s.settle(time.Second)
		s.start("d:1")
		lead := func(host string) *simNode {
			if err := s.nodes[host].r.StepUp(background); err != nil {
				t.Fatal(err)
			}
			return s.awaitPrimary(time.Second)
		}
		change := func(p *simNode, f func(c *SetConfig)) {
			c := p.r.Config().Clone()
			c.Version++
			f(c)
			if err := p.r.Reconfigure(background, c, false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			s.settle(10 * time.Second)
		}
		p := lead("c:1")
		first := p.r.Config().Members[0]
		change(p, func(c *SetConfig) { c.Members = c.Members[1:] })
		change(p, func(c *SetConfig) {
			d := first
			d.ID, d.Host = 3, "d:1"
			c.Members = append(c.Members, d)
		})
		p = lead("d:1")
		change(p, func(c *SetConfig) { c.Members = append(c.Members, first) })
		if _, err := s.write(background, p, WriteConcern{W: 4, Timeout: 10 * time.Second}); err != nil {
			t.Errorf("a write to all four: %v", err)
		}
	})
}

// A primary whose services block while they step up is not delayed by that once it is deposed: it can be primary
// again.
func TestStepUpThatWaitsIsInterrupted(t *testing.T) {
	simulate(t, 5, three, func(s *simulation) {
		var patient atomic.Bool
		s.setup = func(o *Options) {
			m, services := o.Machine, &Services{}
			_ = services.Add(Service{Name: "patient", StepUp: func(ctx context.Context, _ int64) error {
				if patient.Swap(false) {
					<-ctx.Done()
				}
				return ctx.Err()
			}})
			o.OnRole = func(c RoleChange) {
				if c.Role != Primary {
					services.StepDown()
				} else if !c.Writable {
					at := slices.IndexFunc(s.alive(), func(n *simNode) bool { return n.m == m })
					_ = services.StepUp(s.alive()[at].r.LeaderContext(c.Term), c.Term)
				}
			}
		}
		s.found(simConfig(2*time.Second, three...))
		s.settle(time.Second)
		first := s.awaitPrimary(time.Second)
		patient.Store(true)
		s.crash(first.host, false)
		time.Sleep(5 * time.Second)
		if n := s.primary(); n != nil || patient.Load() {
			t.Fatalf("%v is primary", n)
		}
		at := slices.IndexFunc(s.alive(), func(n *simNode) bool { return n.r.lead.Load().state == raft.StateLeader })
		stuck := s.alive()[at]
		s.start(first.host)
		s.mu.Lock()
		for _, h := range three {
			s.cut[[2]string{h, stuck.host}], s.cut[[2]string{stuck.host, h}] = true, true
		}
		s.mu.Unlock()
		if n := s.awaitPrimary(10 * time.Second); n == stuck {
			t.Errorf("%s is primary", n.host)
		}
		s.heal(three)
		s.converge(10 * time.Second)
		if err := stuck.r.StepUp(background); err != nil || !stuck.r.IsPrimary() {
			t.Errorf("stepping up again: %v\n%s", err, s.dump())
		}
	})
}

// Planned changes of the primary: step-down, step-up, priority takeover, freeze.
func TestHandover(t *testing.T) {
	simulate(t, 1, three, func(s *simulation) {
		c := simConfig(10*time.Second, three...)
		s.found(c)
		s.settle(time.Second)
		p := s.awaitPrimary(time.Second)
		// Frozen members do not take over.
		for _, h := range three[1:] {
			if err := s.nodes[h].r.Freeze(time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3 * time.Second)
		err := p.r.StepDown(background, time.Minute, 2*time.Second, false)
		if mongoerr.CodeOf(err) != mongoerr.ExceededTimeLimit || !p.r.IsPrimary() {
			t.Fatalf("stepping down without a successor: %v", err)
		}
		for _, h := range three[1:] {
			_ = s.nodes[h].r.Freeze(0)
		}
		start := time.Now()
		if err := s.nodes["c:1"].r.StepUp(background); err != nil || !s.nodes["c:1"].r.IsPrimary() || p.r.IsPrimary() {
			t.Fatalf("stepping up: %v\n%s", err, s.dump())
		}
		if d := time.Since(start); d > 200*time.Millisecond {
			t.Errorf("stepping up took %v", d)
		}
		if err := s.nodes["c:1"].r.Freeze(time.Second); mongoerr.CodeOf(err) != mongoerr.NotSecondary {
			t.Errorf("freezing a primary: %v", err)
		}
		if err := p.r.StepDown(background, time.Minute, 0, false); mongoerr.CodeOf(err) != mongoerr.NotWritablePrimary {
			t.Errorf("stepping down a secondary: %v", err)
		}
		// A member of higher priority takes over.
		c = s.nodes["c:1"].r.Config().Clone()
		c.Version++
		c.ByHost("b:1").Priority = 5
		if err := s.nodes["c:1"].r.Reconfigure(background, c, false); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(20 * time.Second); !s.nodes["b:1"].r.IsPrimary(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no priority takeover\n%s", s.dump())
			}
		}
		// A forced step-down needs no successor.
		s.crash("a:1", false)
		s.crash("c:1", false)
		if err := s.nodes["b:1"].r.StepDown(background, 5*time.Second, 0, true); err != nil || s.nodes["b:1"].r.IsPrimary() {
			t.Fatalf("forced step-down: %v", err)
		}
		s.start("a:1")
		s.awaitPrimary(30 * time.Second)
	})
}

// A member that may not be primary leads temporarily, until one that may has caught up, if it alone has all entries.
func TestCaretaker(t *testing.T) {
	simulate(t, 2, three, func(s *simulation) {
		c := simConfig(2*time.Second, three...)
		c.Members[2].Priority = 0
		s.found(c)
		s.settle(time.Second)
		s.crash("b:1", false) // b misses what follows
		p := s.nodes["a:1"]
		for range 10 {
			if _, err := s.write(background, p, Majority); err != nil {
				t.Fatal(err)
			}
		}
		s.crash("a:1", false)
		s.start("b:1")
		q := s.awaitPrimary(30 * time.Second) // notePrimary checks that it has what was acknowledged
		if q.host != "b:1" {
			t.Errorf("%s is the primary", q.host)
		}
	})
}

// Two of three members are lost: writes fail, reads go on, and a forced reconfiguration makes a set of the remaining member.
func TestLostMajority(t *testing.T) {
	simulate(t, 3, five, func(s *simulation) {
		s.found(simConfig(2*time.Second, five[:3]...))
		s.start("d:1")
		s.start("e:1")
		s.settle(time.Second)
		p := s.awaitPrimary(time.Second)
		ts, err := s.write(background, p, Majority)
		if err != nil {
			t.Fatal(err)
		}
		s.converge(time.Second)
		s.crash("b:1", false)
		s.crash("c:1", false)
		// Within the time-out the primary notices; a write in flight fails.
		if _, err := s.write(background, p, Majority); mongoerr.CodeOf(err) != mongoerr.PrimarySteppedDown {
			t.Errorf("a write without a majority: %v", err)
		}
		if _, err := s.write(background, p, Majority); err == nil || p.r.IsPrimary() {
			t.Errorf("a later write without a majority: %v", err)
		}
		if p.m.Visible() < ts {
			t.Error("what was acknowledged is not visible any more")
		}
		c := p.r.Config().Clone()
		c.Version += 1000
		c.Members = c.Members[:1]
		c.Members = append(c.Members, MemberConfig{ID: 7, Host: "d:1", Priority: 1, Votes: 1, BuildIndexes: true},
			MemberConfig{ID: 8, Host: "e:1", Priority: 1, Votes: 1, BuildIndexes: true})
		if err := p.r.Reconfigure(background, c, true); err != nil {
			t.Fatalf("forced: %v\n%s", err, s.dump())
		}
		s.settle(5 * time.Second)
		if _, err := s.write(background, p, WriteConcern{W: 3}); err != nil {
			t.Fatal(err)
		}
		s.converge(5 * time.Second)
		if n := len(p.r.voting()); n != 3 {
			t.Errorf("%d members vote", n)
		}
	})
}

// A forced reconfiguration with members of the old set: another member that is alive follows.
func TestForceTakesOthersAlong(t *testing.T) {
	simulate(t, 4, five, func(s *simulation) {
		s.found(simConfig(2*time.Second, five...))
		s.settle(2 * time.Second)
		p := s.awaitPrimary(time.Second)
		if _, err := s.write(background, p, Majority); err != nil {
			t.Fatal(err)
		}
		s.converge(time.Second)
		for _, h := range five[2:] {
			s.crash(h, false)
		}
		time.Sleep(5 * time.Second)
		c := p.r.Config().Clone()
		c.Version += 1000
		c.Members = c.Members[:2]
		if err := s.nodes["a:1"].r.Reconfigure(background, c, true); err != nil {
			t.Fatalf("forced: %v\n%s", err, s.dump())
		}
		s.settle(5 * time.Second)
		if _, err := s.write(background, s.awaitPrimary(10*time.Second), WriteConcern{W: 2}); err != nil {
			t.Fatal(err)
		}
		s.converge(5 * time.Second)
	})
}

// A member forced a set of itself alone while two others were down. They came back with their data, elected one of them
// after the election timeout, and the first followed that one forever, without what it had acknowledged meanwhile. Now a
// member ignores messages from removed members, does not follow a member without a vote, and the removed ones learn from it
// that they were removed.
func TestForcedReconfigurationHolds(t *testing.T) {
	simulate(t, 21, three, func(s *simulation) {
		s.found(simConfig(2*time.Second, three...))
		s.settle(2 * time.Second)
		p := s.awaitPrimary(time.Second)
		if _, err := s.write(background, p, Majority); err != nil {
			t.Fatal(err)
		}
		s.converge(time.Second)
		s.crash("b:1", false)
		s.crash("c:1", false)
		time.Sleep(5 * time.Second)
		a := s.nodes["a:1"]
		c := a.r.Config().Clone()
		c.Version += 1000
		c.Members = c.Members[:1]
		if err := a.r.Reconfigure(background, c, true); err != nil {
			t.Fatalf("forced: %v\n%s", err, s.dump())
		}
		ts, err := s.write(background, a, Majority)
		if err != nil {
			t.Fatal(err)
		}
		s.start("b:1")
		s.start("c:1")
		time.Sleep(30 * time.Second)
		if !a.r.IsPrimary() || a.m.Visible() < ts || a.r.Config().Version < c.Version {
			t.Fatalf("the member that was made the set is not the primary, or has lost a write\n%s", s.dump())
		}
		if _, err := s.write(background, a, Majority); err != nil {
			t.Error(err)
		}
		for _, h := range three[1:] {
			if role := s.nodes[h].r.role(); role != Removed {
				t.Errorf("%s, which was left out, is %v\n%s", h, role, s.dump())
			}
		}
	})
}

// The appender had a snapshot's installation wait for the applier, while the applier, in a forced reconfiguration, waited for
// the appender: a deadlock.
func TestForceMeetsAnInstallation(t *testing.T) {
	simulate(t, 22, three, func(s *simulation) {
		s.found(simConfig(2*time.Second, three...))
		s.settle(2 * time.Second)
		s.converge(time.Second)
		r := s.nodes["b:1"].r
		inApplier, go1, over := make(chan struct{}), make(chan struct{}), make(chan error, 2)
		r.applies.push(applyItem{f: func() error {
			close(inApplier)
			<-go1
			over <- r.restart(func() error { return nil })
			return nil
		}})
		<-inApplier
		r.appends.push(appendItem{f: func() error {
			over <- r.inApplier(func() error { return nil }) // as installStepped does
			return nil
		}})
		time.Sleep(10 * time.Millisecond) // it waits now
		close(go1)
		for range 2 {
			select {
			case err := <-over:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("applier and appender wait for each other")
			}
		}
		s.settle(5 * time.Second)
		if _, err := s.write(background, s.awaitPrimary(10*time.Second), WriteConcern{W: 3}); err != nil {
			t.Error(err)
		}
	})
}

// Write concerns: numbers, custom ones, time-outs, and those that cannot be satisfied.
func TestAwait(t *testing.T) {
	simulate(t, 5, three, func(s *simulation) {
		c := simConfig(10*time.Second, three...)
		c.Members[0].Tags = []Tag{{"dc", "x"}}
		c.Members[1].Tags = []Tag{{"dc", "y"}}
		c.Settings.Modes = []WriteMode{{"both", []TagNeed{{"dc", 2}}}}
		s.found(c)
		s.settle(time.Second)
		p := s.nodes["a:1"]
		s.crash("b:1", false)
		for _, x := range []struct {
			wc   WriteConcern
			code mongoerr.Code
		}{
			{Majority, 0}, {WriteConcern{W: 2}, 0}, {WriteConcern{W: 1, J: true}, 0},
			{WriteConcern{W: 3, Timeout: 100 * time.Millisecond}, mongoerr.WriteConcernTimeout},
			{WriteConcern{Tag: "both", Timeout: 100 * time.Millisecond}, mongoerr.WriteConcernTimeout},
			{WriteConcern{Tag: "neither"}, mongoerr.UnknownReplWriteConcern},
			{WriteConcern{W: 4}, mongoerr.UnsatisfiableWriteConcern},
		} {
			ts, err := s.write(background, p, x.wc)
			if ts == 0 || mongoerr.CodeOf(err) != x.code {
				t.Errorf("%+v: %v, %v", x.wc, ts, err)
			}
		}
		s.start("b:1")
		for _, wc := range []WriteConcern{{W: 3}, {Tag: "both"}} {
			if _, err := s.write(background, p, wc); err != nil {
				t.Errorf("%+v: %v", wc, err)
			}
		}
	})
}

// A log that is damaged or does not match its store is refused, with instructions for recovery.
func TestDamagedLogs(t *testing.T) {
	fresh := func() *disk {
		d := newDisk(1)
		l, err := openLog(fakeStore{d, 0}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		rec := confRecord{point{1, 1}, &raftpb.ConfState{Voters: []uint64{1}}, simConfig(time.Second, "a:1").Doc()}
		hard := &raftpb.HardState{Term: new(uint64(2)), Vote: new(uint64(1)), Commit: new(uint64(3))}
		if err := l.reset(rec, hard, 1); err != nil {
			t.Fatal(err)
		}
		var ents []*raftpb.Entry
		for i := uint64(2); i <= 5; i++ {
			ents = append(ents, &raftpb.Entry{Index: new(i), Term: new(uint64(2)), Data: []byte("12345678data")})
		}
		if err := l.write([]*raftpb.Message{{Entries: ents}}, true); err != nil {
			t.Fatal(err)
		}
		d.live.index, d.live.term = 3, 2
		return d
	}
	for _, x := range []struct {
		name   string
		damage func(s *diskState)
		want   string
	}{
		{"none", func(*diskState) {}, ""},
		{"an entry is missing", func(s *diskState) { delete(s.kv, string(entryKey(3))) }, "entry 2 is followed by entry 4"},
		{"a bit is flipped", func(s *diskState) {
			v := slices.Clone(s.kv[string(entryKey(4))])
			v[len(v)-1] ^= 1
			s.kv[string(entryKey(4))] = v
		}, "the checksum of entry 4 is wrong"},
		{"the end is missing", func(s *diskState) {
			for i := uint64(3); i <= 5; i++ {
				delete(s.kv, string(entryKey(i)))
			}
		}, "it ends with entry 2"},
		{"all is missing", func(s *diskState) { clear(s.kv) }, "there is no log"},
		{"the configuration is missing", func(s *diskState) { delete(s.kv, string([]byte{keyConf})) }, "no configuration"},
		{"the store is older", func(s *diskState) { s.index = 0 }, "the store has applied only entry 0"},
	} {
		d := fresh()
		x.damage(&d.live)
		r, err := OpenRaft(Options{Machine: newFakeMachine(d), Store: fakeStore{d, 0}, SetName: "rs", IsSelf: func(h string) bool { return h == "a:1" },
			Transport: simTransport{}})
		if err == nil {
			r.shut(errStopped)
			r.wg.Wait()
		}
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), "empty its data directory")) {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}

// A snapshot that is interrupted again and again resumes where it stopped, and the log keeps what it needs.
func TestSnapshotGoesOn(t *testing.T) {
	simulate(t, 6, three, func(s *simulation) {
		s.size = 20000
		s.found(simConfig(10*time.Second, "a:1", "b:1"))
		s.settle(time.Second)
		p := s.nodes["a:1"]
		for range 3000 {
			if _, err := s.write(background, p, Majority); err != nil {
				t.Fatal(err)
			}
		}
		s.start("c:1")
		s.setup = nil
		c := p.r.Config().Clone()
		c.Version++
		c.Members = append(c.Members, MemberConfig{ID: 2, Host: "c:1", Priority: 1, Votes: 1, BuildIndexes: true})
		if err := p.r.Reconfigure(background, c, false); err != nil {
			t.Fatal(err)
		}
		received := 0
		for i := 0; s.nodes["c:1"].r.Status().Role != Secondary; i++ {
			if i > 2000 {
				t.Fatalf("the snapshot does not arrive\n%s", s.dump())
			}
			time.Sleep(4 * time.Millisecond)
			var dirs []string
			s.nodes["c:1"].d.mu.Lock()
			dirs = slices.Collect(maps.Keys(s.nodes["c:1"].d.files))
			s.nodes["c:1"].d.mu.Unlock()
			if i%5 == 4 && len(dirs) > 0 && received < 6 {
				received++
				s.crash("c:1", false)
				s.start("c:1")
			}
			if len(dirs) > 1 {
				t.Errorf("the member keeps %v", dirs)
			}
		}
		if received == 0 {
			t.Error("the snapshot was never interrupted")
		}
		s.converge(5 * time.Second)
		_, _ = s.write(background, p, Majority)
		time.Sleep(time.Second)
		if n := p.r.rlog.size(); n > 4*s.size {
			t.Errorf("the log has %d bytes", n)
		}
		time.Sleep(3 * snapshotKept)
		for _, n := range s.alive() {
			if len(n.d.files) > 0 {
				t.Errorf("%s keeps files of snapshots", n.host)
			}
		}
	})
}

// Calls of other sets and invalid calls are refused; nothing that arrives makes a member panic.
func TestHandleRefuses(t *testing.T) {
	simulate(t, 7, three, func(s *simulation) {
		s.found(simConfig(10*time.Second, three...))
		s.settle(time.Second)
		r := s.nodes["b:1"].r
		other := envelope{kind: callMessages, set: "other", from: 1, to: 2, host: "a:1"}
		b, _ := other.marshal()
		if _, err := r.Handle(background, b); mongoerr.CodeOf(err) != mongoerr.InconsistentReplicaSetNames {
			t.Errorf("a call of another set: %v", err)
		}
		good := s.nodes["a:1"].r.envelope(callMessages, 2)
		good.messages = []*raftpb.Message{{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(2))}}
		namesake := *good
		namesake.setID[0]++
		namesake.messages = []*raftpb.Message{{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(99))}}
		b, _ = namesake.marshal()
		if _, err := r.Handle(background, b); mongoerr.CodeOf(err) != mongoerr.InvalidReplicaSetConfig {
			t.Errorf("a call of another set of the same name: %v", err)
		}
		whole := envelope{kind: callPiece, set: namesake.set, from: 1, to: 2, body: append([]byte{8, 0, 0}, b...)}
		b, _ = whole.marshal()
		if _, err := r.Handle(background, b); mongoerr.CodeOf(err) != mongoerr.InvalidReplicaSetConfig {
			t.Errorf("a call of another set of the same name, in pieces: %v", err)
		}
		time.Sleep(time.Second)
		if term := r.lead.Load().term; term >= 99 {
			t.Errorf("the term of another set of the same name is taken: %d", term)
		}
		b, _ = good.marshal()
		for i := range b {
			if i == len(b)-len(good.setID) {
				continue // as versions without the set's identity send it
			}
			if _, err := r.Handle(background, b[:i]); err == nil {
				t.Errorf("a call cut after %d of %d bytes is taken", i, len(b))
			}
			x := slices.Clone(b)
			x[i] ^= byte(1 + s.random(255))
			_, _ = r.Handle(background, x)
		}
		time.Sleep(time.Second)
		if err := r.roles.fatal.Load(); err != nil {
			t.Logf("refused as a contradiction: %v", *err) // a message may have been changed into one that contradicts the log
		}
	})
}

func TestPieces(t *testing.T) {
	var a assembly
	whole := strings.Repeat("0123456789", 100)
	for i := 0; i < 10; i++ {
		e := envelope{from: 3, body: append([]byte{7, byte(i), byte(min(1, 9-i))}, whole[i*100:i*100+100]...)}
		b, err := a.piece(&e)
		if err != nil || (i == 9) != (string(b) == whole) {
			t.Fatalf("piece %d: %v, %d bytes", i, err, len(b))
		}
	}
	if _, err := a.piece(&envelope{from: 3, body: []byte{7, 3, 0}}); err == nil {
		t.Error("a piece without its beginning is taken")
	}
}

// The reply to a member's call used to carry messages of any size, and one with a large entry was dropped on
// the way, since the wire protocol allows no message that large. A large one now waits for a call, which is
// sent in pieces.
func TestRepliesCarryNoLargeMessage(t *testing.T) {
	p := &peer{wake: make(chan struct{}, 1)}
	message := func(size int) *raftpb.Message {
		return &raftpb.Message{Type: raftpb.MsgApp.Enum(), Entries: []*raftpb.Entry{{Data: make([]byte, size)}}}
	}
	for _, size := range []int{100, 2 * maxPayload, 100} {
		p.add(message(size))
	}
	if ms := p.takeReply(); len(ms) != 1 {
		t.Errorf("the first reply has %d messages", len(ms))
	}
	if ms := p.takeReply(); len(ms) != 0 {
		t.Errorf("the second reply has %d messages", len(ms))
	}
	if ms, some := p.take(); len(ms) != 1 || !some || messageSize(ms[0]) < 2*maxPayload {
		t.Errorf("the call has %d messages", len(ms))
	}
	if ms := p.takeReply(); len(ms) != 1 || p.bytes != 0 {
		t.Errorf("the third reply has %d messages, %d bytes are left", len(ms), p.bytes)
	}
}
