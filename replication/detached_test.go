package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// detachedWriters has writers with a wtimeout commit on a primary that has lost its majority, and returns their detached commits.
func (s *simulation) detachedWriters(p *simNode, writers int, wtimeout time.Duration) map[string]*storage.Detached {
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]*storage.Detached{}
	for i := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			what, start := fmt.Sprintf("left%d", i), time.Now()
			ts, err := p.r.Commit(context.Background(), p.m.unit(what), WriteConcern{W: -1, J: true, Timeout: wtimeout, MayDetach: true})
			var l *storage.Detached
			if ts != 0 || !errors.As(err, &l) || !errors.Is(err, storage.ErrWaitTimeout) || time.Since(start) != wtimeout {
				s.t.Errorf("seed %d: after %v %v, %v", s.seed, time.Since(start), ts, err)
				return
			}
			mu.Lock()
			out[what] = l
			mu.Unlock()
		}()
	}
	wg.Wait()
	return out
}

// lose cuts a member off from all others, or connects it again.
func (s *simulation) lose(host string, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other := range s.nodes {
		if other != host {
			s.cut[[2]string{host, other}], s.cut[[2]string{other, host}] = cut, cut
		}
	}
}

// Writers whose wtimeout passes while the majority is gone get the error in time. When it comes back before the
// primary steps down, each of their writes is there once.
func TestWriteTimeoutsAndTheMajorityComesBack(t *testing.T) {
	for seed, to := seeds(3); seed < to; seed++ {
		simulate(t, seed, three, func(s *simulation) {
			s.found(simConfig(10*time.Second, three...))
			p := s.awaitPrimary(time.Second)
			s.settle(time.Second)
			s.lose(p.host, true)
			left := s.detachedWriters(p, 20, time.Second)
			s.lose(p.host, false)
			for what, l := range left {
				done := make(chan error, 1)
				l.Then(func(ts storage.Timestamp, err error) { done <- err })
				if err := <-done; err != nil {
					t.Errorf("seed %d: %s: %v", seed, what, err)
				}
			}
			s.converge(10 * time.Second)
			s.eachOnce(left)
		})
	}
}

// The majority stays away: the primary steps down, and every detached commit ends with the error that it was not decided
// here. No trace of it exists once the others have continued without it.
func TestWriteTimeoutsAndTheMajorityStaysAway(t *testing.T) {
	for seed, to := seeds(3); seed < to; seed++ {
		simulate(t, seed, three, func(s *simulation) {
			s.found(simConfig(2*time.Second, three...))
			p := s.awaitPrimary(time.Second)
			s.settle(time.Second)
			s.lose(p.host, true)
			left := s.detachedWriters(p, 20, 300*time.Millisecond)
			for what, l := range left {
				done := make(chan error, 1)
				l.Then(func(ts storage.Timestamp, err error) { done <- err })
				if err := <-done; !errors.Is(err, errDeposed) {
					t.Errorf("seed %d: %s: %v", seed, what, err)
				}
			}
			q := s.awaitPrimary(10 * time.Second)
			if _, err := s.write(context.Background(), q, Majority); err != nil {
				t.Fatal(err)
			}
			s.lose(p.host, false)
			s.converge(10 * time.Second)
			for what := range left {
				if slices.Contains(q.m.state().list, what) {
					t.Errorf("seed %d: %s was given up, and is there", seed, what)
				}
			}
		})
	}
}

// eachOnce checks that every member has each of the writes once.
func (s *simulation) eachOnce(writes map[string]*storage.Detached) {
	for _, n := range s.alive() {
		count := map[string]int{}
		for _, x := range n.m.state().list {
			count[x]++
		}
		for what := range writes {
			if count[what] != 1 {
				s.t.Errorf("seed %d: %s has %s %d times", s.seed, n.host, what, count[what])
			}
		}
	}
}

// One wtimeout covers both waits, for the majority and for the members beyond it.
func TestWriteTimeoutOfMoreThanTheMajority(t *testing.T) {
	simulate(t, 1, three, func(s *simulation) {
		s.found(simConfig(10*time.Second, three...))
		p := s.awaitPrimary(time.Second)
		s.settle(time.Second)
		for h := range s.nodes {
			if h != p.host {
				s.crash(h, false)
				break
			}
		}
		start := time.Now()
		ts, err := p.r.Commit(context.Background(), p.m.unit("w3"), WriteConcern{W: 3, Timeout: time.Second, MayDetach: true})
		if ts == 0 || !errors.Is(err, storage.ErrWaitTimeout) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v, %v", time.Since(start), ts, err)
		}
	})
}

// With real engines, the documents of detached commits exist once after the majority has come back, whatever
// was in flight.
func TestEnginesDetachCommits(t *testing.T) {
	s := newEngineSet(t, true, three...)
	r, e := s.nodes["a:1"], s.engines["a:1"]
	if err := r.Initiate(context.Background(), simConfig(10*time.Second, three...)); err != nil {
		t.Fatal(err)
	}
	await.True(t, "all vote", func() bool { return len(r.voting()) == 3 })
	c := makeCollection(t, r, e)
	s.mu.Lock()
	all := s.nodes
	s.nodes = nil // no member reaches another
	s.mu.Unlock()
	const writers, each = 8, 10
	var wg sync.WaitGroup
	for w := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				u := e.NewUnitOfWork(nil)
				if _, err := u.Insert(c, value.Doc(value.F("_id", value.NewInt32(int32(w*each+i)))), storage.NoInfo); err != nil {
					t.Error(err)
				}
				_, err := r.Commit(context.Background(), u, WriteConcern{W: -1, Timeout: 5 * time.Millisecond, MayDetach: true})
				u.Rollback()
				if !errors.Is(err, storage.ErrWaitTimeout) {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	if e.DetachedCommits() != writers*each {
		t.Errorf("%d units left", e.DetachedCommits())
	}
	s.mu.Lock()
	s.nodes = all
	s.mu.Unlock()
	await.True(t, "everything is decided", func() bool { return e.DetachedCommits() == 0 })
	ts := e.Visible()
	if err := r.Await(context.Background(), ts, WriteConcern{W: 3, Timeout: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	s.same(ts, writers*each)
	if n := e.Catalog().Lookup("db.c").Counters.Records.Load(); n != writers*each {
		t.Errorf("%d documents", n)
	}
}
