package replication

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The members that could take over are slow to apply a configuration, and stand for election only once they have: the primary asks again. The step-down took a whole election timeout, in which nobody
// could write.
func TestSuccessorHasToApplyAConfiguration(t *testing.T) {
	simulate(t, 1, three, func(s *simulation) {
		const timeout = 10 * time.Second
		s.found(simConfig(timeout, three...))
		s.settle(time.Second)
		p := s.awaitPrimary(time.Second)
		for _, n := range s.alive() {
			if n != p {
				n.r.applies.push(applyItem{f: func() error {
					time.Sleep(timeout / 10)
					return nil
				}})
			}
		}
		c := p.r.Config().Clone()
		c.Version++
		changed := make(chan error, 1)
		go func() { changed <- p.r.Reconfigure(background, c, false) }()
		time.Sleep(timeout / 100)
		start := time.Now()
		if err := p.r.StepDown(background, time.Minute, 2*timeout, false); err != nil {
			t.Fatalf("stepping down: %v\n%s", err, s.dump())
		}
		q := s.awaitPrimary(timeout)
		if took := time.Since(start); took < timeout/20 || took > timeout/2 {
			t.Errorf("the hand-over took %v of an election timeout of %v", took, timeout)
		}
		if _, err := s.write(background, q, Majority); err != nil || q == p {
			t.Errorf("the new primary is %s, the former one %s: %v", q.host, p.host, err)
		}
		<-changed
		s.converge(timeout)
	})
}

// Two operations hand over to the same member, as replSetStepDown and the takeover by a member of higher priority may do. The end of the one, whose client has left, leaves the other's transfer alone. It used to be
// cancelled: the other failed although the member was about to stand.
func TestHandOversToTheSameMember(t *testing.T) {
	for leaves := range 2 {
		simulate(t, 1, three, func(s *simulation) {
			const timeout = 10 * time.Second
			s.found(simConfig(timeout, three...))
			s.settle(time.Second)
			p := s.awaitPrimary(time.Second)
			term := p.r.lead.Load().term
			apply := make(chan struct{}) // the others cannot stand before they have applied a configuration
			for _, n := range s.alive() {
				if n != p {
					n.r.applies.push(applyItem{f: func() error { <-apply; return nil }})
				}
			}
			c := p.r.Config().Clone()
			c.Version++
			changed := make(chan error, 1)
			go func() { changed <- p.r.Reconfigure(background, c, false) }()
			s.settle(timeout / 100)
			var ended [2]chan bool
			var end [2]context.CancelFunc
			for i := range ended {
				var ctx context.Context
				ctx, end[i] = context.WithCancel(background)
				defer end[i]()
				ended[i] = make(chan bool, 1)
				go func() {
					done, _ := p.r.handOver(ctx, term, 0, time.Now().Add(time.Minute))
					ended[i] <- done
				}()
				synctest.Wait()
			}
			end[leaves]()
			if <-ended[leaves] {
				t.Fatal("the member has taken over before it could")
			}
			synctest.Wait()
			close(apply)
			if !<-ended[1-leaves] {
				t.Errorf("the end of hand-over %d has cancelled the other's transfer", leaves)
			}
			<-changed
			s.converge(timeout)
		})
	}
}
