package configsvr

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// membership queues changes of shards' members, which the monitors of their sets report, until they are written to config.shards.
type membership struct {
	mu      sync.Mutex
	changes map[string]memberChange
	wake    chan struct{}
	silent  silentShards
}

// memberChange is a set's membership as its primary lists it.
type memberChange struct {
	conn    string
	version int64
}

// membershipRetry is the time after which a failed write to config.shards is repeated.
const membershipRetry = 5 * time.Second

// SetMoved records a change of a replica set's members. It does not block.
func (m *Manager) SetMoved(set, conn string, version int64) {
	m.members.mu.Lock()
	m.members.changes[set] = memberChange{conn, version}
	m.members.mu.Unlock()
	select {
	case m.members.wake <- struct{}{}:
	default:
	}
}

// RunMembership writes the changes that SetMoved recorded to config.shards until ctx ends. It runs on the config server's primary.
func (m *Manager) RunMembership(ctx context.Context) {
	m.members.mu.Lock()
	clear(m.members.changes) // what arrived while another member was primary may be outdated
	m.members.mu.Unlock()
	for _, s := range m.known(ctx) {
		if c := s.ConnString(); c != s.Host {
			m.SetMoved(s.SetName, c, -1)
		}
	}
	for {
		again := (<-chan time.Time)(nil)
		if !m.writeMemberChanges(ctx) {
			again = time.After(membershipRetry)
		}
		select {
		case <-m.members.wake:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

func (m *Manager) known(ctx context.Context) []*cluster.Shard {
	all, err := m.registry.All(ctx)
	if err != nil {
		return nil // covered by the recorded changes
	}
	return all
}

// writeMemberChanges updates config.shards; false if something remains to be written.
func (m *Manager) writeMemberChanges(ctx context.Context) bool {
	m.members.mu.Lock()
	changes := m.members.changes
	m.members.changes = map[string]memberChange{}
	m.members.mu.Unlock()
	done := true
	for set, n := range changes {
		if err := m.moveShard(ctx, set, n); err != nil {
			done = false
			m.members.mu.Lock()
			if _, newer := m.members.changes[set]; !newer {
				m.members.changes[set] = n
			}
			m.members.mu.Unlock()
		}
	}
	return done
}

// moveShard writes a set's hosts to its shard's entry, if config.shards has others.
func (m *Manager) moveShard(ctx context.Context, set string, n memberChange) error {
	all, unlock, err := m.lockedList(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, s := range all {
		if s.SetName != set {
			continue
		}
		if had, _ := value.Lookup(s.Doc, "replSetConfigVersion").AsInt64(); s.Host == n.conn && had >= n.version {
			continue
		}
		fields := []value.Field{fld("host", str(n.conn))}
		if n.version >= 0 {
			fields = append(fields, fld("replSetConfigVersion", value.NewInt64(n.version)))
		}
		if _, err := m.update(ctx, "shards", doc(fld("_id", str(s.ID)), fld("host", str(s.Host))), doc(fld("$set", doc(fields...))), false); err != nil {
			return err
		}
		if err := m.registry.Reload(ctx); err != nil {
			return err
		}
	}
	return nil
}
