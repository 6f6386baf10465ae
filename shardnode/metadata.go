package shardnode

import (
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage/catalog"
)

// metadata is the filtering metadata that a query began with: it keeps it, as it keeps its snapshot, until it ends. A
// cursor that outlives a migration therefore returns what belonged to this shard when it was opened.
type metadata struct {
	n        *Node
	sharding Sharding
	table    *cluster.ChunkMap // nil: the collection was not sharded
}

// bindMetadata gives a query the ownership filter of the version that was checked, and counts it among those that read by
// that version until its snapshot is released.
func (n *Node) bindMetadata(op *command.Op, q *exec.Query) error {
	if n.Sharding() == nil || q.Coll == nil || op.Req.ShardVersion == nil {
		return nil
	}
	n.askWherePlaced(q.Coll.NS)
	owned, table, err := n.Sharding().ReadFilter(op, q.Coll)
	if err != nil {
		return err
	}
	q.Owned, q.Placement = owned, &metadata{n, n.Sharding(), table}
	if s := n.sharding.Load(); table != nil && s != nil {
		s.readers.begin(table)
		q.Snap.OnRelease(func() { s.readers.end(table) })
	}
	return nil
}

// askWherePlaced has a secondary ask the config server for a placement that a migration may have changed.
func (n *Node) askWherePlaced(ns string) {
	if n.placementMoves(ns) {
		n.sharding.Load().Catalog.InvalidateCollection(ns)
	}
}

// Unmoved implements exec.Placement.
func (m *metadata) Unmoved(op *command.Op, c *catalog.Collection) bool {
	m.n.askWherePlaced(c.NS)
	return m.sharding.Unmoved(op, c.NS, m.table)
}

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
	waiting atomic.Bool // the range deleter waits for some of them to end
	mu      struct {
		sync.Mutex
		of    map[*cluster.ChunkMap]int
		ended func()
	}
}

// onEnd has f called when the last reader of a version ends while the range deleter waits for readers.
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

// readRange tells whether a query reads by metadata that gave a shard a part of a range.
func (r *readers) readRange(uuid catalog.UUID, shard string, rng *keyRange) bool {
	r.waiting.Store(true) // before the look, so that a reader that ends behind it is heard
	r.mu.Lock()
	defer r.mu.Unlock()
	for m := range r.mu.of {
		if catalog.UUID(m.UUID) != uuid {
			continue
		}
		for _, c := range m.Overlapping(rng.minV, rng.maxV) {
			if c.Shard == shard {
				return true
			}
		}
	}
	return false
}
