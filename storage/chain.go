package storage

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/shoaldb/shoal/storage/catalog"
)

// CommitChain holds the units of one command that the log has not decided yet, while the command continues. A unit that follows
// the chain sees what those units write, may write it again, and fails if one of them does. It comes after them in the
// log, so that no log contains it without them.
//
// Invariant: what a chain shows is its undecided units, in the order of the log, over a snapshot that is not older than the
// decision about any unit that it no longer shows. dropCommitted therefore drops committed units before a snapshot is used, and snapshot takes
// another one if any were dropped after it was taken.
//
// Hazard: a unit that committed and is still shown would hide what others wrote to its records since. That cannot happen while
// dropCommitted is called before the view is read: the unit's claims are released only after its state has changed, so nobody else has
// written its records as long as dropCommitted finds it undecided.
//
// Rejected: making undecided units visible in the store under a timestamp of their own, which the outcome would make valid or not. Every
// reader would have to look the outcome up; as it is, only the one command that continues pays. Rejected, too: reading the units' batches
// in place. The commit leader rewrites the keys' timestamps in them at any time, hence the copies.
//
// One goroutine uses a chain. The chain keeps a copy of what its units stage: their own batches belong to their committer.
type CommitChain struct {
	e     *Engine
	gen   uint64
	last  *UnitOfWork
	kept  []keptUnit // units that are not decided yet, in order
	units int
	size  int
	batch *pebble.Batch // the keys of those in kept, readable; readers never change it
	view  *UnitOfWork   // wraps batch for snapshots; never committed
	ddl   []*UnitOfWork // those of kept that change the catalog
}

// keptUnit is a unit with copies of what its committer may be modifying: its keys, with the timestamp `pending`,
// and its changes to counters.
type keptUnit struct {
	unit   *UnitOfWork
	keys   *pebble.Batch
	deltas []delta
}

// Bounds of what one command may detach and build upon.
const (
	maxChainUnits = 5000
	maxChainBytes = 64 << 20
)

// Follow appends a detached commit to a chain and returns the chain; a nil chain starts a new one.
func (t *CommitChain) Follow(l *Detached) *CommitChain {
	u := l.unit
	if u == nil {
		return t
	}
	if t == nil {
		t = &CommitChain{e: u.e, gen: u.gen}
		t.rebuild()
	}
	t.last = u
	t.units++
	u.chain.Store(t)
	if k := t.e.keep(u); k != nil {
		t.size += k.keys.Len()
		t.kept = append(t.kept, *k)
		t.show(k)
	}
	return t
}

// show adds a unit's writes to the view.
func (t *CommitChain) show(k *keptUnit) {
	_ = t.batch.Apply(k.keys, nil) // fails only for batches of another store
	if staged := &k.unit.catalogs; len(staged.edits)+len(staged.marks) > 0 {
		t.ddl = append(t.ddl, k.unit)
	}
}

// Full reports whether the chain accepts no more units. A nil chain has room.
func (t *CommitChain) Full() bool {
	return t != nil && (t.units >= maxChainUnits || t.size >= maxChainBytes)
}

// NewUnitOfWork starts a unit that follows the chain. s is a snapshot of the chain, or nil.
func (t *CommitChain) NewUnitOfWork(s *Snapshot) *UnitOfWork {
	if s == nil {
		t.dropCommitted()
	}
	u := t.e.NewUnitOfWork(s)
	u.behind, u.after, u.gen = t, t.last, t.gen
	return u
}

// Snapshot returns the newest view with the chain's writes on top. It must be released.
func (t *CommitChain) Snapshot() *Snapshot { return t.snapshot(t.e) }

// snapshot falls back to a snapshot of the engine when the chain is nil.
func (t *CommitChain) snapshot(e *Engine) *Snapshot {
	for {
		s := e.Snapshot()
		switch {
		case t == nil:
			return s
		case t.dropCommitted():
			// Units that committed in the meantime may be missing from s.
			s.Release()
			continue
		case len(t.kept) > 0:
			s.unit, s.cat = t.view, t.catalog(s.cat)
		}
		return s
	}
}

// Catalog returns the newest catalog with the chain's changes applied.
func (t *CommitChain) Catalog() *catalog.Snapshot { return t.catalog(t.e.Catalog()) }

func (t *CommitChain) catalog(cat *catalog.Snapshot) *catalog.Snapshot {
	if t == nil {
		return cat
	}
	for _, u := range t.ddl {
		staged := &u.catalogs
		cat = applyEdits(cat, staged.edits)
		for i := range staged.marks {
			if cur, next := staged.marks[i].apply(cat); next != nil {
				cat = cat.With(cur, next)
			}
		}
	}
	return cat
}

// dropCommitted drops the units that have committed: they are visible, and their records may have been written by others
// since. If a unit is not dropped, nobody else has written its records, because a unit releases its claims only
// after its state has changed. Units that were rolled back stay, so that later units of the chain learn the error
// that they fail with.
func (t *CommitChain) dropCommitted() (some bool) {
	r := &t.e.replica
	r.mu.Lock()
	n := 0
	for n < len(t.kept) && t.kept[n].unit.state == unitCommitted {
		n++
	}
	r.mu.Unlock()
	if n > 0 {
		t.kept = slices.Delete(t.kept, 0, n)
		t.rebuild()
	}
	return n > 0
}

// rebuild makes a new readable batch. Snapshots handed out earlier keep the previous one.
func (t *CommitChain) rebuild() {
	t.batch, t.ddl = t.e.db.NewIndexedBatch(), nil
	for i := range t.kept {
		t.show(&t.kept[i])
	}
	t.view = &UnitOfWork{e: t.e, batch: t.batch}
}

// follows reports whether u is behind other in a chain and other is not decided.
func (u *UnitOfWork) follows(other *UnitOfWork) bool {
	return u.behind != nil && other.chain.Load() == u.behind
}

// yieldCapped passes on to u the right to insert into a capped collection from an earlier unit of the chain.
func (t *CommitChain) yieldCapped(u *UnitOfWork, c *catalog.Counters) bool {
	if t == nil {
		return false
	}
	r := &t.e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range t.kept {
		if i := slices.IndexFunc(k.unit.capped, func(h heldCapped) bool { return h.counters == c }); i >= 0 {
			u.capped = append(u.capped, k.unit.capped[i])
			k.unit.capped = slices.Delete(k.unit.capped, i, i+1)
			return true
		}
	}
	return false
}

// sizeOf returns a collection's count of records and bytes with the chain's changes added; zero for a nil chain.
func (t *CommitChain) sizeOf(c *catalog.Collection) (records, bytes int64) {
	if t == nil {
		return 0, 0
	}
	r := &t.e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	records, bytes = c.Counters.Records.Load(), c.Counters.DataSize.Load()
	for _, k := range t.kept {
		if k.unit.state == unitQueued {
			n, size := deltaOf(k.deltas, c.Ident)
			records += n
			bytes += size
		}
	}
	return records, bytes
}

// keep copies what a detached unit stages; it returns nil if the unit is already decided. The unit is in the
// queue, in flight, or for a moment in the hands of the leader.
func (e *Engine) keep(u *UnitOfWork) *keptUnit {
	for {
		if k, found := e.keepQueued(u); found {
			return k
		}
		if k, found := e.keepInFlight(u); found {
			return k
		}
		time.Sleep(20 * time.Microsecond)
	}
}

func (e *Engine) keepQueued(u *UnitOfWork) (k *keptUnit, found bool) {
	c := &e.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.mu.queue, u) {
		return nil, false
	}
	return e.kept(u, u.batch, pending), true
}

func (e *Engine) keepInFlight(u *UnitOfWork) (k *keptUnit, found bool) {
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	if u.state != unitQueued {
		return nil, true
	}
	for _, g := range r.mu.inflight {
		if slices.Contains(g.units, u) {
			if u.wait.err != nil {
				return nil, true // it has failed: the group's batch belongs to other units
			}
			return e.kept(u, g.batch, uint64(u.wait.at)), true
		}
	}
	return nil, false
}

// kept copies what a batch holds of a unit, whose keys have the timestamp at.
func (e *Engine) kept(u *UnitOfWork, from *pebble.Batch, at uint64) *keptUnit {
	k := &keptUnit{unit: u, keys: e.db.NewBatch(), deltas: slices.Clone(u.deltas)}
	appendKeys(k.keys, from, 0, at)
	return k
}

// appendKeys copies the keys of a batch after the first skip. If at is 0 it copies all of them; otherwise it
// copies those of collections and indexes with timestamp at and gives the copies the timestamp `pending`.
func appendKeys(to, from *pebble.Batch, skip int, at uint64) {
	if from == nil {
		return
	}
	for r := batchrepr.Read(from.Repr()); ; {
		kind, key, val, ok, err := r.Next()
		if !ok || err != nil {
			return
		}
		if skip--; skip >= 0 {
			continue
		}
		if at != 0 {
			id := identOf(key)
			if _, ts, versioned := splitVersion(key); !versioned || ts != at || id < identFirst || id >= identLocal {
				continue
			}
		} else if kind == pebble.InternalKeyKindDelete {
			_ = to.Delete(key, nil)
			continue
		}
		op := to.SetDeferred(len(key), len(val))
		copy(op.Key, key)
		copy(op.Value, val)
		if at != 0 {
			binary.BigEndian.PutUint64(op.Key[len(key)-suffixLen:], pending)
		}
		_ = op.Finish()
	}
}
