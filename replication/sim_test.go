package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/shoaldb/shoal/storage"
)

// simulation is a set of members in one process, on a network and with disks that fail, in simulated time.
type simulation struct {
	t     *testing.T
	seed  int64
	log   zerolog.Logger
	setup func(*Options)

	mu      sync.Mutex
	rnd     *rand.Rand
	nodes   map[string]*simNode
	cut     map[[2]string]bool // pairs of hosts whose calls are lost
	loss    float64
	delay   time.Duration
	entries map[place]uint64  // hash of what was applied there first
	terms   map[int64]string  // term → its primary
	acked   map[string]uint64 // what was acknowledged → the epoch in which it was
	number  int
	wiping  string
	size    int64
	calls   int
	memory  bool
	newest  uint64 // epoch that has had a primary
}

// place is an index of the log in one of the histories that forced reconfigurations create.
type place struct{ epoch, index uint64 }

type simNode struct {
	host string
	d    *disk
	m    *fakeMachine
	r    *Raft
	dead bool
	fail error
}

func newSimulation(t *testing.T, seed int64, hosts ...string) *simulation {
	s := &simulation{t: t, seed: seed, rnd: rand.New(rand.NewSource(seed)), nodes: map[string]*simNode{}, cut: map[[2]string]bool{},
		entries: map[place]uint64{}, terms: map[int64]string{}, acked: map[string]uint64{}, delay: 2 * time.Millisecond, size: 1 << 20, log: zerolog.Nop()}
	if os.Getenv("SHOAL_SIM_LOG") != "" {
		s.log = zerolog.New(zerolog.ConsoleWriter{Out: os.Stdout, NoColor: true, TimeFormat: "05.000"}).With().Timestamp().Logger()
	}
	for i, h := range hosts {
		s.nodes[h] = &simNode{host: h, d: newDisk(seed*100 + int64(i)), dead: true}
	}
	return s
}

func (s *simulation) random(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.Intn(n)
}

func (s *simulation) chance(p float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.Float64() < p
}

// simTransport carries the calls of one member.
type simTransport struct {
	s    *simulation
	from string
}

var errNetwork = errors.New("the network lost the call")

// Send implements Transport: each direction has a latency, and may lose the call.
func (x simTransport) Send(ctx context.Context, host string, payload []byte) ([]byte, error) {
	s := x.s
	way := func(from, to string) error {
		s.mu.Lock()
		lost := s.cut[[2]string{from, to}] || s.rnd.Float64() < s.loss
		d := time.Duration(s.rnd.Int63n(int64(s.delay)) + 1)
		s.calls++
		s.mu.Unlock()
		if lost {
			d = 20*s.delay + 100*time.Millisecond
		}
		time.Sleep(d)
		if lost {
			return errNetwork
		}
		return nil
	}
	if err := way(x.from, host); err != nil {
		return nil, err
	}
	s.mu.Lock()
	n := s.nodes[host]
	var r *Raft
	if n != nil && !n.dead {
		r = n.r
	}
	s.mu.Unlock()
	if r == nil {
		return nil, errNetwork
	}
	reply, err := r.Handle(ctx, slices.Clone(payload))
	if err != nil {
		return nil, err
	}
	return reply, way(host, x.from)
}

// start brings a member up with what is on its disk.
func (s *simulation) start(host string) *simNode {
	s.mu.Lock()
	n := s.nodes[host]
	s.mu.Unlock()
	m := newFakeMachine(n.d)
	log := s.log.With().Str("host", host).Logger()
	o := Options{
		Machine: m, Store: fakeStore{n.d, m.life}, SetName: "rs", Transport: simTransport{s, host}, Logger: &log,
		IsSelf: func(h string) bool { return h == host }, LogSize: s.size,
		OnFatal: func(err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !n.dead {
				n.fail = err
			}
		},
	}
	if s.memory {
		o.Store = nil
	}
	var self atomic.Pointer[Raft]
	m.applied = func(index, term uint64, data string) {
		if r := self.Load(); r != nil {
			s.noteApplied(host, place{r.lineage(), index}, term, data)
		}
	}
	m.primary = func(term int64) { s.notePrimary(host, term, m) }
	if s.setup != nil {
		s.setup(&o)
	}
	r, err := OpenRaft(o)
	if err != nil {
		s.t.Fatalf("seed %d: opening %s: %v", s.seed, host, err)
	}
	self.Store(r)
	s.mu.Lock()
	n.m, n.r, n.dead = m, r, false
	s.mu.Unlock()
	return n
}

// crash kills a member. With wipe it loses its disk.
func (s *simulation) crash(host string, wipe bool) {
	s.mu.Lock()
	n := s.nodes[host]
	if n.dead {
		s.mu.Unlock()
		return
	}
	n.dead = true
	s.mu.Unlock()
	n.d.crash(wipe)
	n.r.shut(errCrashed)
	n.r.wg.Wait()
}

// starve lets a member's loop run only briefly after every pause, as on an overloaded machine.
func (s *simulation) starve(n *simNode, pause time.Duration) {
	r := n.r
	go func() {
		for r.do(func() { time.Sleep(pause) }) == nil {
			time.Sleep(time.Millisecond)
		}
	}()
}

func (s *simulation) stop() {
	s.mu.Lock()
	var all []*simNode
	for _, n := range s.nodes {
		if !n.dead {
			all = append(all, n)
		}
	}
	s.mu.Unlock()
	for _, n := range all {
		n.r.shut(errStopped)
	}
	for _, n := range all {
		n.r.wg.Wait()
	}
}

// lineage is the epoch whose history this member's entries are part of, as far as it knows.
func (r *Raft) lineage() uint64 {
	epoch := r.epoch() // read once: the loop may enter another meanwhile
	if own := epochOf(r.rlog.conf().term); own < epoch && r.roles.forced.agreed.Load() != epoch {
		return own
	}
	return epoch
}

// noteApplied checks that an index has the same entry on all members, forever.
func (s *simulation) noteApplied(host string, at place, term uint64, data string) {
	h := hashOf(term, data)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.entries[at]; ok && old != h {
		s.t.Errorf("seed %d: %s applies another entry at %+v than was committed there", s.seed, host, at)
	}
	s.entries[at] = h
}

// notePrimary checks that a term has one primary, which has everything that was acknowledged in its epoch and before.
func (s *simulation) notePrimary(host string, term int64, m *fakeMachine) {
	list := m.state().list
	have := make(map[string]bool, len(list))
	for _, x := range list {
		have[x] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.terms[term]; ok && old != host {
		s.t.Errorf("seed %d: term %d has two primaries, %s and %s", s.seed, term, old, host)
	}
	s.terms[term] = host
	own := epochOf(uint64(term))
	began := own > s.newest
	s.newest = max(s.newest, own)
	for x, epoch := range s.acked {
		switch {
		case have[x] || epoch > own:
		case began: // a later epoch was forced, without what this primary lacks
			delete(s.acked, x)
		default:
			s.t.Errorf("seed %d: %s, primary of term %d, lacks the acknowledged write %s", s.seed, host, term, x)
		}
	}
}

func (s *simulation) alive() (all []*simNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if !n.dead {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b *simNode) int {
		if a.host < b.host {
			return -1
		}
		return 1
	})
	return all
}

func (s *simulation) primary() *simNode {
	for _, n := range s.alive() {
		if n.r.IsPrimary() {
			return n
		}
	}
	return nil
}

func (s *simulation) awaitPrimary(limit time.Duration) *simNode {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if n := s.primary(); n != nil {
			return n
		}
	}
	s.t.Fatalf("seed %d: no primary after %v\n%s", s.seed, limit, s.dump())
	return nil
}

func (s *simulation) dump() (out string) {
	for _, n := range s.alive() {
		st := n.r.Status()
		out += fmt.Sprintf("%s: %v writable %v term %d leader %d log %+v conf %v fatal %v raft %+v frozen %v snaps %+v\n", n.host, st.Role, st.Writable, st.Term, st.Leader,
			st.Log, n.r.rlog.conf().state, st.Fatal, *n.r.lead.Load(), st.Frozen, st.Snapshots)
		_ = n.r.do(func() {
			if n.r.loop.rn != nil {
				out += fmt.Sprintf("    %v\n", n.r.loop.rn.Status())
			}
		})
		if in := n.r.snaps.in; in != nil {
			out += fmt.Sprintf("    incoming %d at %d: state %v taken %v\n", in.number, in.rec.index, in.state, in.taken)
		}
		for _, m := range st.Members {
			out += fmt.Sprintf("    %+v\n", m)
		}
	}
	return out
}

// write commits a new value on a member.
func (s *simulation) write(ctx context.Context, n *simNode, wc WriteConcern) (storage.Timestamp, error) {
	s.mu.Lock()
	s.number++
	what := fmt.Sprintf("w%d", s.number)
	s.mu.Unlock()
	epoch := n.r.epoch()
	ts, err := n.r.Commit(ctx, n.m.unit(what), wc)
	if ts != 0 {
		s.mu.Lock()
		s.acked[what] = epoch
		s.mu.Unlock()
	}
	return ts, err
}

// found starts all members and makes them a set.
func (s *simulation) found(c *SetConfig) {
	for i := range c.Members {
		s.start(c.Members[i].Host)
	}
	if err := s.nodes[c.Members[0].Host].r.Initiate(context.Background(), c); err != nil {
		s.t.Fatalf("seed %d: initiating: %v", s.seed, err)
	}
}

// converge waits until all members of the configuration have the same content.
func (s *simulation) converge(limit time.Duration) {
	end := time.Now().Add(limit)
	for {
		p := s.primary()
		ok := p != nil
		if ok {
			for _, m := range p.r.Config().Members {
				n := s.nodes[m.Host]
				ok = ok && !n.dead && n.m.Visible() == p.m.Visible() && len(n.m.state().list) == len(p.m.state().list)
			}
		}
		if ok {
			want := p.m.state().list
			for _, m := range p.r.Config().Members {
				if !slices.Equal(s.nodes[m.Host].m.state().list, want) {
					s.t.Errorf("seed %d: %s and %s have different content", s.seed, m.Host, p.host)
				}
			}
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("seed %d: the members do not converge\n%s", s.seed, s.dump())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// settle waits until all members that should vote do.
func (s *simulation) settle(limit time.Duration) {
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		done := true
		for _, n := range s.alive() {
			done = done && (!n.r.growing.Load() || n.r.role() == Removed || n.r.superseded())
		}
		if done {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("seed %d: not all members vote after %v\n%s", s.seed, limit, s.dump())
		}
	}
}

// simulate runs f in simulated time.
func simulate(t *testing.T, seed int64, hosts []string, f func(s *simulation)) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, uint64(seed))
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(t, seed, hosts...)
		defer s.stop()
		f(s)
	})
}

func simConfig(timeout time.Duration, hosts ...string) *SetConfig {
	c := NewConfig("rs", hosts...)
	c.Settings.ElectionTimeout = timeout
	c.Settings.HeartbeatInterval = timeout / 5
	c.Settings.ID = [12]byte{1}
	return c
}

var three = []string{"a:1", "b:1", "c:1"}
var five = []string{"a:1", "b:1", "c:1", "d:1", "e:1"}

// seeds returns the range of histories to run; SHOAL_SIM_SEEDS asks for more, SHOAL_SIM_SEED for a single one.
func seeds(normal int) (from, to int64) {
	if v, err := strconv.ParseInt(os.Getenv("SHOAL_SIM_SEED"), 10, 64); err == nil {
		return v, v + 1
	}
	if v, err := strconv.ParseInt(os.Getenv("SHOAL_SIM_SEEDS"), 10, 64); err == nil {
		return 0, v
	}
	return 0, int64(normal)
}

func TestSetOfThree(t *testing.T) {
	simulate(t, 1, three, func(s *simulation) {
		s.found(simConfig(10*time.Second, three...))
		p := s.awaitPrimary(time.Second)
		ctx := context.Background()
		for range 20 {
			if _, err := s.write(ctx, p, Majority); err != nil {
				t.Fatal(err)
			}
		}
		if ts, err := s.write(ctx, p, WriteConcern{W: 3}); err != nil {
			t.Fatal(err)
		} else {
			for _, n := range s.nodes {
				if n.m.Visible() < ts {
					t.Errorf("%s has not applied a write of w: 3", n.host)
				}
			}
		}
		if err := p.r.ReadIndex(ctx); err != nil {
			t.Fatal(err)
		}
		s.converge(5 * time.Second)
		s.settle(time.Second)
		start := time.Now()
		s.crash(p.host, false)
		q := s.awaitPrimary(12 * time.Second)
		t.Logf("a killed primary was replaced after %v", time.Since(start))
		if _, err := s.write(ctx, q, Majority); err != nil {
			t.Fatal(err)
		}
		s.start(p.host)
		s.converge(10 * time.Second)
		start = time.Now()
		if err := q.r.StepDown(ctx, time.Minute, 10*time.Second, false); err != nil {
			t.Fatal(err)
		}
		z := s.awaitPrimary(time.Second)
		t.Logf("a step-down took %v, from %s to %s", time.Since(start), q.host, z.host)
		if z == q || time.Since(start) > 200*time.Millisecond {
			t.Errorf("the step-down took %v, from %s to %s", time.Since(start), q.host, z.host)
		}
	})
}
