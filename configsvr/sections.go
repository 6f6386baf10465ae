package configsvr

import (
	"context"
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
)

// sections are the critical sections on shards that DDL of this config server currently holds. They are not durable: a
// restarted config server holds none, and a shard ends a section without a holder.
type sections struct {
	mu   sync.Mutex
	held map[[16]byte]struct{}
}

func (s *sections) holds(id [16]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.held[id]
	return ok
}

func (s *sections) begin() (id [16]byte, end func()) {
	id = cluster.NewUUID()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[id] = struct{}{}
	return id, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.held, id)
	}
}

// block blocks reads and writes of namespaces on shards until the returned function is called. The names must be
// locked: sections that an earlier DDL left on them are replaced. Messages to the shards carry the section, so that one
// that arrives after it is refused.
func (m *Manager) block(ctx context.Context, why string, ids []string, names ...string) (section [16]byte, unblock func(), err error) {
	section, end := m.blocks.begin()
	type place struct{ shard, ns string }
	var held []place
	unblock = func() {
		end()
		for _, p := range held {
			// A shard that cannot be reached looks for the holder of the section once an operation waits for it.
			_, _ = m.onShard(context.WithoutCancel(ctx), p.shard, &msg.ParticipantBlock{NS: p.ns, Type: msg.Unblock, Command: why, Owner: cluster.ConfigShardID, ID: section})
		}
	}
	for _, id := range ids {
		for _, ns := range names {
			held = append(held, place{id, ns}) // whatever the reply: the command may have arrived
			if _, err := m.onShard(ctx, id, &msg.ParticipantBlock{NS: ns, Type: msg.BlockReadsAndWrites, Command: why, Owner: cluster.ConfigShardID, ID: section}); err != nil {
				unblock()
				return section, nil, err
			}
		}
	}
	return section, unblock, nil
}
