package migration

import (
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage/catalog"
)

// BeginRead registers a query as a reader of a version of the filtering metadata, until EndRead.
func (s *ShardState) BeginRead(table *cluster.ChunkMap) { s.readers.begin(table) }

// EndRead ends what BeginRead began.
func (s *ShardState) EndRead(table *cluster.ChunkMap) { s.readers.end(table) }

// Unmoved implements Sharding.
func (s *ShardState) Unmoved(op *command.Op, ns string, since *cluster.ChunkMap) bool {
	info, err := s.Catalog.Collection(op, ns)
	if err != nil || info.Map == nil || since == nil {
		return err == nil && info.Map == nil && since == nil
	}
	return info.Map == since || info.Map.UUID == since.UUID && info.Map.ShardVersion(s.ID) == since.ShardVersion(s.ID)
}

// readers counts the queries that read by each version of the filtering metadata.
type readers struct {
	waiting atomic.Bool // whether the range deleter waits for some of them
	mu      struct {
		sync.Mutex
		of    map[*cluster.ChunkMap]int
		ended func()
	}
}

// onEnd registers f to be called when the last reader of a version ends while the range deleter waits for readers.
func (r *readers) onEnd(f func()) {
	r.mu.Lock()
	r.mu.ended = f
	r.mu.Unlock()
}

func (r *readers) begin(m *cluster.ChunkMap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.of == nil {
		r.mu.of = make(map[*cluster.ChunkMap]int)
	}
	r.mu.of[m]++
}

func (r *readers) end(m *cluster.ChunkMap) {
	r.mu.Lock()
	last := r.mu.of[m] == 1
	if last {
		delete(r.mu.of, m)
	} else {
		r.mu.of[m]--
	}
	ended := r.mu.ended
	r.mu.Unlock()
	if last && ended != nil && r.waiting.Load() {
		ended()
	}
}

// readRange reports whether a query reads by metadata that gave a shard a part of a range.
func (r *readers) readRange(uuid catalog.UUID, shard string, rng *KeyRange) bool {
	r.waiting.Store(true) // set before the check, so that a reader that ends after the check triggers onEnd
	r.mu.Lock()
	defer r.mu.Unlock()
	for m := range r.mu.of {
		if catalog.UUID(m.UUID) != uuid {
			continue
		}
		for _, c := range m.Overlapping(m.Key.ExtendValues(rng.minV), m.Key.ExtendValues(rng.maxV)) {
			if owner, err := m.OwnerOf(c); err != nil || owner == shard {
				return true
			}
		}
	}
	return false
}

// Sharded implements Sharding.
func (s *ShardState) Sharded(op *command.Op, ns string) bool {
	info, err := s.Catalog.Collection(op, ns)
	return err == nil && info.Map != nil
}
