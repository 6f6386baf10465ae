package configsvr

import (
	"context"
	"fmt"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// holding lists the data that is still on a shard.
type holding struct {
	chunks int64         // of sharded collections
	jumbo  int64         // those marked as too large to be moved
	whole  []value.Value // the unsharded collections that the catalog places there
	dbs    []value.Value // the databases whose primary shard it is
}

func (h *holding) nothing() bool { return h.chunks == 0 && len(h.whole) == 0 && len(h.dbs) == 0 }

// holds returns the data that is still on a shard. The donors and recipients of a resharding count until all its participants know that it has
// ended: those have the chunks of the table that is replaced, these the chunks of the one that replaces it, and the primary shard has its database. An idle
// shard, which has an empty copy of the collection at most, does not count.
func (m *Manager) holds(ctx context.Context, id string) (h holding, err error) {
	placed, err := m.find(ctx, "collections", doc(fld("unsplittable", value.NewBool(true))))
	if err != nil {
		return h, err
	}
	names := make(map[string]value.Value, len(placed))
	for _, d := range placed {
		names[string(value.Lookup(d, "uuid").Bytes())] = value.Lookup(d, "_id")
	}
	chunks, err := m.findOnly(ctx, "chunks", doc(fld("shard", str(id))), "uuid", "jumbo")
	if err != nil {
		return h, err
	}
	for _, d := range chunks {
		if name, ok := names[string(value.Lookup(d, "uuid").Bytes())]; ok {
			h.whole = append(h.whole, name)
		} else {
			h.chunks++
			if value.Lookup(d, "jumbo").Truthy() {
				h.jumbo++
			}
		}
	}
	slices.SortFunc(h.whole, value.Compare)
	dbs, err := m.find(ctx, "databases", doc(fld("primary", str(id))))
	for _, d := range dbs {
		h.dbs = append(h.dbs, value.Lookup(d, "_id"))
	}
	return h, err
}

// drainReport is removeShard's reply while the shard is not empty.
func (m *Manager) drainReport(ctx context.Context, id, msg, state string) ([]value.Field, error) {
	has, err := m.holds(ctx, id)
	if err != nil {
		return nil, err
	}
	out := []value.Field{fld("msg", str(msg)), fld("state", str(state))}
	if state == "started" {
		out = append(out, fld("shard", str(id)))
	} else {
		out = append(out, fld("remaining", doc(fld("chunks", value.NewInt64(has.chunks)), fld("dbs", value.NewInt64(int64(len(has.dbs)))),
			fld("jumboChunks", value.NewInt64(has.jumbo)), fld("collectionsToMove", value.NewInt64(int64(len(has.whole)))))))
	}
	switch {
	case len(has.whole) > 0:
		out = append(out, fld("note", str("you need to call moveCollection for collectionsToMove and afterwards movePrimary for the dbsToMove")),
			fld("dbsToMove", arr(has.dbs...)), fld("collectionsToMove", arr(has.whole...)))
	case len(has.dbs) > 0:
		out = append(out, fld("note", str("you need to drop or movePrimary these databases")), fld("dbsToMove", arr(has.dbs...)))
	}
	return out, nil
}

// planWhole chooses an unsharded collection that has to leave a draining shard; nil if there is none, or if another collection is being
// resharded: a cluster runs one resharding at a time.
//
// Such collections are moved for no other reason: a client has chosen their shard, and they remain there whatever the sizes.
func (m *Manager) planWhole(ctx context.Context, colls []*cluster.CollectionEntry, busy map[string]bool) (*move, error) {
	if busy[aWholeCollection] || m.reshards() {
		return nil, nil
	}
	for _, e := range colls {
		if !e.Unsplittable {
			continue
		}
		info, err := m.placement(ctx, e.NS)
		if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound || err == nil && (info.Map == nil || info.Sharded()) {
			continue // it was dropped, or sharded
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.NS, err)
		}
		s, err := m.registry.Shard(ctx, info.Home())
		if err != nil || !s.Draining {
			continue
		}
		to, err := m.leastLoaded(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.NS, err)
		}
		return &move{ns: e.NS, from: s.ID, to: to, why: forDraining, db: info.DB}, nil
	}
	return nil, nil
}

// reshards reports whether a resharding is running.
func (m *Manager) reshards() bool {
	s := &m.resharding
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.mu.runs {
		if !r.ended() {
			return true
		}
	}
	return false
}

// moveWhole moves a collection like a client's moveCollection: the primary shard of the database coordinates it, and holds the lock
// of its name meanwhile. If the balancer ends, the coordinator continues.
func (m *Manager) moveWhole(ctx context.Context, mv *move) error {
	cmd := msg.Doc(&msg.ShardReshard{NS: mv.ns, Reshard: msg.Reshard{Provenance: msg.MoveCollection, To: mv.to}},
		fld("databaseVersion", value.NewDocument(mv.db.Version.Doc())))
	if _, err := m.runOn(ctx, mv.db.Primary, cmd); err != nil {
		return fmt.Errorf("%s: %w", mv.ns, err)
	}
	return nil
}
