package replication

import (
	"context"
	"sync/atomic"

	"github.com/shoaldb/shoal/storage"
)

// Member is this node's membership in its set, of whatever kind. A set of one can become a set of several while
// the node runs.
type Member struct {
	current atomic.Pointer[Set]
}

var _ Set = (*Member)(nil)

// NewMember returns a member of s.
func NewMember(s Set) *Member {
	m := &Member{}
	m.Switch(s)
	return m
}

// Switch makes the node a member of s.
func (m *Member) Switch(s Set) { m.current.Store(&s) }

// Raft returns the set of several members the node is in; nil for a set of one that has no raft log.
func (m *Member) Raft() *Raft {
	r, _ := (*m.current.Load()).(*Raft)
	return r
}

func (m *Member) set() Set { return *m.current.Load() }

// Commit implements Set.
func (m *Member) Commit(ctx context.Context, u *storage.UnitOfWork, wc WriteConcern) (storage.Timestamp, error) {
	return m.set().Commit(ctx, u, wc)
}

// Await implements Set.
func (m *Member) Await(ctx context.Context, ts storage.Timestamp, wc WriteConcern) error {
	return m.set().Await(ctx, ts, wc)
}

// IsPrimary implements Set.
func (m *Member) IsPrimary() bool { return m.set().IsPrimary() }

// Term implements Set.
func (m *Member) Term() int64 { return m.set().Term() }

// MajorityCommitted implements Set.
func (m *Member) MajorityCommitted() storage.Timestamp { return m.set().MajorityCommitted() }
