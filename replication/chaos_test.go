package replication

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// TestChaos runs sets whose members crash, lose their disks, are cut off from each other and reconfigured while clients
// write and read, and checks the invariants: one primary per term, the same entry at an index everywhere, acknowledged
// writes on every later primary, and in the end equal members.
func TestChaos(t *testing.T) {
	from, to := seeds(150)
	for seed := from; seed < to && !t.Failed(); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			hosts := three
			if seed%4 == 3 {
				hosts = five
			}
			simulate(t, seed, hosts, func(s *simulation) { s.chaos(20 * time.Second) })
		})
	}
}

// chaos runs one history.
func (s *simulation) chaos(length time.Duration) {
	hosts := three
	if len(s.nodes) == 5 {
		hosts = five
	}
	s.delay = time.Duration(1+s.random(20)) * time.Millisecond
	s.size = int64(2000 << s.random(8))
	s.memory = s.seed%5 == 4 // no disks: a member that stopped could not restart
	s.found(simConfig(2*time.Second, hosts...))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	clients := 3
	for i := range clients {
		go func() {
			defer func() { done <- struct{}{} }()
			if i == 0 {
				s.reader(ctx)
			} else {
				s.writer(ctx)
			}
		}()
	}
	for end := time.Now().Add(length); time.Now().Before(end) && !s.t.Failed(); {
		time.Sleep(time.Duration(50+s.random(1500)) * time.Millisecond)
		s.nuisance(hosts)
	}
	s.heal(hosts)
	// The set must recover by itself, and then all members must agree.
	s.awaitPrimary(30 * time.Second)
	cancel()
	for range clients {
		<-done
	}
	s.restore(hosts)
	s.converge(60 * time.Second)
	for _, n := range s.alive() {
		if n.fail != nil {
			s.t.Errorf("seed %d: %s failed: %v", s.seed, n.host, n.fail)
		}
	}
	if s.t.Failed() {
		s.t.Log(s.dump())
	}
}

// writer writes unique values on the current primary.
func (s *simulation) writer(ctx context.Context) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(s.random(40)) * time.Millisecond)
		n := s.primary()
		if n == nil {
			continue
		}
		wc := []WriteConcern{Majority, {W: 1}, {W: 2, Timeout: time.Second}, {W: 3, Timeout: 500 * time.Millisecond}}[s.random(4)]
		_, _ = s.write(ctx, n, wc)
	}
}

// reader checks that a linearizable read sees everything acknowledged before it began.
func (s *simulation) reader(ctx context.Context) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(s.random(200)) * time.Millisecond)
		n := s.primary()
		if n == nil {
			continue
		}
		s.mu.Lock()
		before := make([]string, 0, len(s.acked))
		for x := range s.acked {
			before = append(before, x)
		}
		s.mu.Unlock()
		rctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := n.r.ReadIndex(rctx)
		cancel()
		if err != nil {
			continue
		}
		have := map[string]bool{}
		for _, x := range n.m.state().list {
			have[x] = true
		}
		for _, x := range before {
			if !have[x] {
				s.t.Errorf("seed %d: a linearizable read at %s does not see %s", s.seed, n.host, x)
			}
		}
	}
}

// nuisance causes one fault.
func (s *simulation) nuisance(hosts []string) {
	h := hosts[s.random(len(hosts))]
	n := s.nodes[h]
	up := 0
	for _, x := range s.nodes {
		if !x.dead {
			up++
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	switch k := s.random(24); {
	case k < 4: // a member is cut off, perhaps in one direction
		s.mu.Lock()
		for _, o := range hosts {
			if s.rnd.Intn(4) > 0 {
				s.cut[[2]string{h, o}] = true
			}
			if s.rnd.Intn(4) > 0 {
				s.cut[[2]string{o, h}] = true
			}
		}
		s.mu.Unlock()
	case k < 8:
		s.mu.Lock()
		clear(s.cut)
		s.loss = float64(s.rnd.Intn(3)) * 0.05
		s.mu.Unlock()
	case k < 12:
		if !n.dead && !s.memory {
			s.crash(h, false)
		}
	case k < 17:
		for _, x := range s.nodes {
			if x.dead && s.chance(0.7) {
				s.start(x.host)
			}
		}
	case k == 17:
		if !n.dead && !s.memory && s.wiping == "" && up == len(hosts) && n.r.Status().Role == Secondary &&
			s.voters() > 2 { // its store is lost; with two voters that would be the majority
			s.crash(h, true)
			s.wiping = h
			s.start(h)
		}
	case k < 20:
		if p := s.primary(); p != nil {
			_ = p.r.StepDown(ctx, time.Second, time.Duration(s.random(500))*time.Millisecond, s.chance(0.3))
		}
	case k == 20:
		if !n.dead {
			_ = n.r.StepUp(ctx)
		}
	case k == 21:
		if !n.dead {
			_ = n.r.Freeze(time.Duration(s.random(3000)) * time.Millisecond)
		}
	case s.wiping == "":
		s.reconfigure(ctx, hosts)
	}
	if s.wiping != "" && s.nodes[s.wiping].r.hasLog() {
		s.wiping = ""
	}
}

// voters is the smallest number of voters in any member's configuration.
func (s *simulation) voters() int {
	least := 9
	for _, n := range s.alive() {
		least = min(least, len(n.r.rlog.conf().state.GetVoters()))
	}
	return least
}

// reconfigure changes one member: adds or removes it, or its priority or vote.
func (s *simulation) reconfigure(ctx context.Context, hosts []string) {
	p := s.primary()
	if p == nil {
		return
	}
	c := p.r.Config().Clone()
	c.Version++
	i := s.random(len(c.Members))
	m := &c.Members[i]
	switch s.random(4) {
	case 0:
		m.Priority = float64(1 + s.random(3))
	case 1:
		if m.Host != p.host {
			m.Votes, m.Priority = 1-m.Votes, 0
			if m.Votes == 1 {
				m.Priority = 1
			}
		}
	case 2:
		if m.Host != p.host && len(c.Members) > 3 {
			c.Members = append(c.Members[:i], c.Members[i+1:]...)
		}
	case 3:
		for id, h := range hosts {
			if c.ByHost(h) == nil {
				c.Members = append(c.Members, MemberConfig{ID: id, Host: h, Priority: 1, Votes: 1, BuildIndexes: true})
				break
			}
		}
	}
	if c.Validate() == nil {
		_ = p.r.Reconfigure(ctx, c, false)
	}
}

// heal ends all faults.
func (s *simulation) heal(hosts []string) {
	s.mu.Lock()
	clear(s.cut)
	s.loss = 0
	s.mu.Unlock()
	for _, h := range hosts {
		if s.nodes[h].dead {
			s.start(h)
		}
	}
}

// restore makes all hosts voting members again.
func (s *simulation) restore(hosts []string) {
	for try := 0; try < 20; try++ {
		p := s.awaitPrimary(30 * time.Second)
		c := p.r.Config().Clone()
		c.Version++
		for id, h := range hosts {
			m := c.ByHost(h)
			if m == nil {
				c.Members = append(c.Members, MemberConfig{ID: id, Host: h, BuildIndexes: true})
				m = &c.Members[len(c.Members)-1]
			}
			m.Votes, m.Priority = 1, 1
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := p.r.Reconfigure(ctx, c, false)
		cancel()
		if err == nil {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	s.t.Fatalf("seed %d: the set cannot be reconfigured\n%s", s.seed, s.dump())
}
