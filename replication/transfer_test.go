package replication

import (
	"testing"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// receiving starts a new member of a set and returns while it is receiving its snapshot.
func (s *simulation) receiving(p *simNode, host string, id int) {
	s.t.Helper()
	for range 3000 {
		if _, err := s.write(background, p, Majority); err != nil {
			s.t.Fatal(err)
		}
	}
	s.start(host)
	c := p.r.Config().Clone()
	c.Version++
	c.Members = append(c.Members, MemberConfig{ID: id, Host: host, Priority: 1, Votes: 1, BuildIndexes: true})
	if err := p.r.Reconfigure(background, c, false); err != nil {
		s.t.Fatal(err)
	}
	for i := 0; s.received(host) < 5; i++ {
		if i > 5000 {
			s.t.Fatalf("the snapshot does not begin\n%s", s.dump())
		}
		time.Sleep(time.Millisecond)
	}
}

// received returns the number of files of snapshots that a member has.
func (s *simulation) received(host string) (n int) {
	d := s.nodes[host].d
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, files := range d.files {
		n += len(files)
	}
	return n
}

// joins waits until a member is a secondary.
func (s *simulation) joins(host string) {
	s.t.Helper()
	for i := 0; s.nodes[host].r.Status().Role != Secondary; i++ {
		if i > 5000 {
			s.t.Fatalf("the snapshot does not arrive\n%s", s.dump())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// noFiles checks that no member keeps a snapshot for longer than it may be asked for again.
func (s *simulation) noFiles() {
	s.t.Helper()
	time.Sleep(3 * snapshotKept)
	for _, n := range s.alive() {
		if k := s.received(n.host); k > 0 {
			s.t.Errorf("%s keeps %d files of snapshots", n.host, k)
		}
	}
}

// The network fails in the middle of a snapshot, for a moment or for longer than the sender retries: the transfer
// resumes where it stopped, with the same snapshot.
func TestSnapshotGoesOnAfterACut(t *testing.T) {
	for _, cut := range []time.Duration{300 * time.Millisecond, 20 * time.Second} {
		t.Run(cut.String(), func(t *testing.T) {
			simulate(t, 8, three, func(s *simulation) {
				s.size = 20000
				s.found(simConfig(10*time.Second, "a:1", "b:1"))
				s.settle(time.Second)
				p := s.nodes["a:1"]
				s.receiving(p, "c:1", 2)
				in := func() *incoming {
					snaps := &s.nodes["c:1"].r.snaps
					snaps.mu.Lock()
					defer snaps.mu.Unlock()
					return snaps.in
				}
				before := in()
				s.lose("c:1", true)
				time.Sleep(cut)
				had := s.received("c:1")
				if before == nil || had >= len(before.manifest.Files) {
					t.Fatal("the cut was not in the middle")
				}
				s.lose("c:1", false)
				time.Sleep(4 * time.Millisecond)
				if now := s.received("c:1"); now < had {
					t.Errorf("of %d files %d are left", had, now)
				}
				s.joins("c:1")
				if in() != before {
					t.Error("another snapshot was sent")
				}
				s.converge(5 * time.Second)
				s.noFiles()
			})
		})
	}
}

// The sender of a snapshot dies, or is cut off and deposed, in the middle: the next primary sends a snapshot of its
// own, and no member keeps anything of the first.
func TestSnapshotSenderIsLost(t *testing.T) {
	for _, kind := range []string{"dies", "is cut off"} {
		t.Run(kind, func(t *testing.T) {
			simulate(t, 9, []string{"a:1", "b:1", "c:1", "d:1"}, func(s *simulation) {
				s.size = 20000
				s.found(simConfig(2*time.Second, three...))
				s.settle(time.Second)
				p := s.nodes["a:1"]
				s.receiving(p, "d:1", 3)
				if kind == "dies" {
					s.crash("a:1", false)
				} else {
					s.lose("a:1", true)
				}
				s.joins("d:1")
				if kind == "dies" {
					s.start("a:1")
				} else {
					s.lose("a:1", false)
				}
				s.converge(20 * time.Second)
				s.noFiles()
			})
		})
	}
}

// A crash between storing a configuration and applying its entry to the store: a primary that restarted from there could not
// send a snapshot, because it did not know the configuration at its store's index; where it needed the receiver for a
// majority, the set had no primary any more.
func TestCrashBehindAConfiguration(t *testing.T) {
	simulate(t, 1, three, func(s *simulation) {
		s.size = 20000
		s.found(simConfig(2*time.Second, three...))
		s.settle(10 * time.Second)
		p := s.awaitPrimary(time.Second)
		var others []string
		for _, h := range three {
			if h != p.host {
				others = append(others, h)
			}
		}
		b, c := others[0], others[1]
		behind := s.nodes[c].r.rlog.lastIndex()
		s.crash(c, false)
		for first := uint64(0); first <= behind+1; first, _ = p.r.rlog.FirstIndex() {
			if _, err := s.write(background, p, Majority); err != nil {
				t.Fatal(err)
			}
		}
		next := p.r.Config().Clone()
		next.Version++
		next.ByHost(b).Votes, next.ByHost(b).Priority = 0, 0
		if err := p.r.Reconfigure(background, next, false); err != nil {
			t.Fatal(err)
		}
		s.crash(b, false)
		at := p.r.rlog.conf().index
		s.crash(p.host, false)
		for _, d := range []*diskState{&p.d.base, &p.d.live} {
			if d.index >= at {
				d.index = at - 1 // which brought no write
			}
			hard := &raftpb.HardState{}
			if err := proto.Unmarshal(d.kv[string([]byte{keyHard})], hard); err != nil {
				t.Fatal(err)
			}
			hard.Commit = new(min(hard.GetCommit(), at-1))
			d.kv[string([]byte{keyHard})], _ = proto.Marshal(hard)
		}
		s.start(p.host)
		s.start(c)
		p = s.awaitPrimary(20 * time.Second)
		if _, err := s.write(background, p, Majority); err != nil {
			t.Error(err)
		}
		s.start(b)
		s.converge(30 * time.Second)
	})
}

// A snapshot is only sent to members of the configuration at its index, a new one as well as an existing one.
func TestSnapshotsAreForMembers(t *testing.T) {
	simulate(t, 1, three, func(s *simulation) {
		s.found(simConfig(2*time.Second, three...))
		s.settle(10 * time.Second)
		p := s.awaitPrimary(time.Second)
		for range 2 {
			if x, err := p.r.acquire(background, 9, 0); err == nil {
				t.Errorf("a snapshot at %d, of %v, for member 9", x.rec.index, x.rec.state)
			}
			x, err := p.r.acquire(background, 2, 0)
			if err != nil {
				t.Fatal(err)
			}
			p.r.release(x)
		}
		if err := p.r.awaitSendable(background, 9, 0, uint64(p.r.Term())); mongoerr.CodeOf(err) != mongoerr.NodeNotFound {
			t.Errorf("waiting for a snapshot for member 9: %v", err)
		}
		if err := p.r.awaitSendable(background, 2, p.r.rlog.lastIndex()+10, 1); mongoerr.CodeOf(err) != mongoerr.PrimarySteppedDown {
			t.Errorf("waiting in a term that is over: %v", err)
		}
	})
}
