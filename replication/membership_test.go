package replication

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A member replaces another while a third is down. Such a change has two steps, and until the second is committed raft counts
// the votes of the old members, too: the leaving member is needed for that, though the configuration no longer names it.
func TestSwapOfAMemberWhileAnotherIsDown(t *testing.T) {
	for seed, to := seeds(10); seed < to; seed++ {
		simulate(t, seed, five, func(s *simulation) {
			s.found(simConfig(2*time.Second, five[:4]...))
			s.start("e:1")
			s.settle(5 * time.Second)
			p := s.awaitPrimary(time.Second)
			if p.host != "a:1" {
				if err := s.nodes["a:1"].r.StepUp(background); err != nil {
					t.Fatal(err)
				}
				p = s.nodes["a:1"]
			}
			// The set's own first change has two steps as well, and the second may need d.
			for _, n := range s.alive() {
				for len(n.r.rlog.conf().state.GetVotersOutgoing()) > 0 {
					time.Sleep(10 * time.Millisecond)
				}
			}
			s.crash("d:1", false)
			c := p.r.Config().Clone()
			c.Version++
			c.Members[1] = MemberConfig{ID: 4, Host: "e:1", Priority: 1, Votes: 1, BuildIndexes: true} // for b
			ctx, cancel := context.WithTimeout(background, 5*time.Second)
			defer cancel()
			err := p.r.Reconfigure(ctx, c, false)
			for ; errors.Is(err, errInProgress); err = p.r.Reconfigure(ctx, c, false) {
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, s.dump())
			}
			if seed%2 == 1 { // no member may know yet that it is committed
				s.crash("a:1", false)
				s.start("a:1")
			}
			for end := time.Now().Add(20 * time.Second); len(s.nodes["c:1"].r.rlog.conf().state.GetVotersOutgoing()) > 0 || s.primary() == nil; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("seed %d: the change does not end\n%s", seed, s.dump())
				}
			}
			if _, err := s.write(ctx, s.primary(), Majority); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, s.dump())
			}
			s.settle(10 * time.Second)
			if role := s.nodes["b:1"].r.role(); role != Removed {
				t.Errorf("seed %d: b:1 is %v", seed, role)
			}
		})
	}
}
