package migration

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/storage/catalog"
)

// Blocked has the figures of the critical sections of one DDL's run on a name: it may begin several, one after the other. Only operations that a section blocks pay for them.
// An operation that meets a section, waits, and is repeated counts again if it meets one again: the figures are of the attempts that were blocked.
type Blocked struct {
	id            catalog.UUID
	now           func() time.Time
	writes, reads atomic.Int64

	mu struct {
		sync.Mutex
		before time.Duration // of sections that have ended
		since  time.Time     // of the present one; zero if there is none
	}
}

// CountBlocked counts, until ForgetBlocked, what meets the critical sections of a run on a name.
func (s *ShardState) CountBlocked(name string, id catalog.UUID, now func() time.Time) *Blocked {
	b := &Blocked{id: id, now: now}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.blocked == nil {
		s.mu.blocked = make(map[string]*Blocked)
	}
	s.mu.blocked[name] = b
	if c := s.mu.ddl[name]; c != nil { // loaded before
		b.follow(c)
	}
	return b
}

// ForgetBlocked ends the counting.
func (s *ShardState) ForgetBlocked(name string, b *Blocked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.blocked[name] == b {
		delete(s.mu.blocked, name)
	}
}

// Counts returns how many writes and reads have met the sections, and for how long these have lasted in all.
func (b *Blocked) Counts() (writes, reads int64, lasted time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lasted = b.mu.before
	if !b.mu.since.IsZero() {
		lasted += b.now().Sub(b.mu.since)
	}
	return b.writes.Load(), b.reads.Load(), lasted
}

// Blocking reports whether there is such a section now.
func (b *Blocked) Blocking() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.mu.since.IsZero()
}

// follow begins with a section, unless it is another run's.
func (b *Blocked) follow(c *criticalSection) {
	if c.ddl != b.id {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.since = b.now()
	c.met.Store(b)
}

// count counts an operation that meets the section; b may be nil.
func (b *Blocked) count(write bool) {
	switch {
	case b == nil:
	case write:
		b.writes.Add(1)
	default:
		b.reads.Add(1)
	}
}

// end lets the operations that wait for the section go on.
func (c *criticalSection) end() {
	close(c.ended)
	if b := c.met.Load(); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.mu.before += b.now().Sub(b.mu.since)
		b.mu.since = time.Time{}
	}
}
