package migration

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// recreateRetry is the time between two attempts to keep migrations out.
const recreateRetry = 50 * time.Millisecond

// runRecreateTasks creates a range deletion for every range of a collection that this shard does not own and that has none: for
// orphans without a range deletion task, such as those of a set that was restored from an older copy.
//
// Invariant: no migration to this shard is under way, from before the routing table is read until the entries are stored. A
// migration that begins later finds them, and has them executed before it clones (deleteOverlapping). Without that, the range deleter
// could delete what has just been cloned, because the range is not this shard's until the commit.
func (m *Manager) runRecreateTasks(op *command.Op, req *msg.RecreateRangeDeletionTasks, dst []byte) ([]byte, error) {
	if err := m.awaitRecovery(op); err != nil {
		return dst, err
	}
	end, err := m.keepMigrationsOut(op)
	if err != nil {
		return dst, err
	}
	defer end()
	m.state.Catalog.InvalidateCollection(req.NS)
	info, err := m.state.Catalog.Collection(op, req.NS)
	if err != nil {
		return dst, err
	}
	if !info.Sharded() {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", req.NS)
	}
	c := m.Engine.Catalog().Lookup(req.NS)
	if c == nil || c.UUID != catalog.UUID(info.Map.UUID) {
		return dst, nil // this shard has nothing of it
	}
	for _, r := range foreign(info.Map, m.state.ID) {
		if err := m.recreate(op, c, r, req.SkipEmpty); err != nil {
			return dst, err
		}
	}
	m.rangesChanged()
	m.wakeDeleter()
	return dst, nil
}

// keepMigrationsOut waits until this shard is in no migration, and keeps others from beginning until end is called.
func (m *Manager) keepMigrationsOut(ctx context.Context) (end func(), err error) {
	for {
		m.mu.Lock()
		err := m.busy()
		if err == nil {
			m.mu.recreating = true
		}
		m.mu.Unlock()
		if err == nil {
			return func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.mu.recreating = false
			}, nil
		}
		if err := cluster.Sleep(ctx, recreateRetry); err != nil {
			return nil, err
		}
	}
}

// foreign returns the ranges between a shard's chunks, each as long as it can be.
func foreign(table *cluster.ChunkMap, shard string) (out []*KeyRange) {
	var from []byte
	for at := range table.Places() {
		switch {
		case at.Shard() != shard:
			if from == nil {
				from = at.Chunk().Min
			}
		case from != nil:
			out = append(out, NewKeyRange(table.Key, from, at.Chunk().Min))
			from = nil
		}
	}
	if from != nil {
		out = append(out, NewKeyRange(table.Key, from, table.Key.GlobalMax()))
	}
	return out
}

// recreate creates range deletions for the parts of a range, which this shard does not own, that no entry covers.
func (m *Manager) recreate(op *command.Op, c *catalog.Collection, r *KeyRange, skipEmpty bool) error {
	var known []*KeyRange
	err := m.rangeDeletions().Each(func(d *rangeDeletion) error {
		if d.uuid == c.UUID && bytes.Equal(d.rng.key.Doc(), r.key.Doc()) {
			known = append(known, d.rng)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, left := range without(r, known) {
		n, err := m.countOf(op, c.UUID, left)
		if err != nil {
			return err
		}
		if n == 0 && skipEmpty {
			continue
		}
		id := cluster.NewUUID()
		d := &rangeDeletion{id: value.NewBinary(4, id[:]), ns: c.NS, uuid: c.UUID, donor: m.state.ID, rng: left, delayed: true, since: m.today(), orphans: n}
		if err := m.rangeDeletions().Put(op, d); err != nil {
			return err
		}
	}
	return nil
}

// countOf counts the documents of a range, by its index where it has one.
func (m *Manager) countOf(op *command.Op, uuid catalog.UUID, r *KeyRange) (int64, error) {
	s := m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().LookupUUID(uuid)
	if c == nil {
		return 0, nil
	}
	return countKeys(op, s, c, r, 0)
}

// without returns the parts of a range that others do not cover.
func without(r *KeyRange, others []*KeyRange) (out []*KeyRange) {
	others = slices.SortedFunc(slices.Values(others), func(a, b *KeyRange) int { return cluster.CompareKeys(a.minV, b.minV) })
	from := r.min
	for _, o := range others {
		if cluster.CompareKeys(o.maxV, value.Values(from)) <= 0 {
			continue
		}
		if cluster.CompareKeys(o.minV, r.maxV) >= 0 {
			break
		}
		if cluster.CompareKeys(value.Values(from), o.minV) < 0 {
			out = append(out, NewKeyRange(r.key, from, o.min))
		}
		from = o.max
	}
	if cluster.CompareKeys(value.Values(from), r.maxV) < 0 {
		out = append(out, NewKeyRange(r.key, from, r.max))
	}
	return out
}

// describe shows the migrations and range deletions of this shard in currentOp.
func (m *Manager) describe(now time.Time) (out [][]value.Field) {
	row := func(desc, ns string, r *KeyRange, more ...value.Field) {
		about := value.Doc(append([]value.Field{value.F("range", r.doc())}, more...)...)
		out = append(out, []value.Field{
			value.F("type", value.NewString("op")), value.F("desc", value.NewString(desc)), value.F("op", value.NewString("command")),
			value.F("ns", value.NewString(ns)), value.F("command", value.NewDocument(about)), value.F("active", value.NewBool(true)),
		})
	}
	m.mu.Lock()
	d, r := m.mu.out, m.mu.in
	m.mu.Unlock()
	if d != nil {
		row("MigrationSource", d.ns, d.rng, value.F("to", value.NewString(d.to)))
	}
	if r != nil {
		state, _, _ := r.status()
		row("MigrationDestination", r.ns, r.rng, value.F("from", value.NewString(r.from)), value.F("state", value.NewString(state)))
	}
	_ = m.rangeDeletions().Each(func(d *rangeDeletion) error {
		if d.processing {
			row("RangeDeleter", d.ns, d.rng, value.F("numOrphanDocs", value.NewInt64(d.orphans)))
		}
		return nil
	})
	return out
}
