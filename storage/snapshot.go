package storage

import (
	"math/rand/v2"
	"sync"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Snapshot is a view of the store at one timestamp, with the catalog of that moment. It must be used by one
// goroutine at a time. It holds no locks, but it pins history, so it must be released.
type Snapshot struct {
	moment
	hidden timestamps // see lateUnits
	shown  timestamps // later ones whose versions are shown nevertheless, see agreedCommits

	e    *Engine
	cat  *catalog.Snapshot
	unit *UnitOfWork // whose writes are part of the view; nil for plain snapshots

	point *pooledIter // for Get and FindByID, created on first use
	shard *snapshotShard
	slot  int

	released func() // set by OnRelease; nil for none
}

// snapshotRegistry tracks the timestamps in use, which hold back the collector.
type snapshotRegistry struct {
	shards [8]snapshotShard
}

type snapshotShard struct {
	sync.Mutex
	at   []snapshotPin
	free []int
	_    [64]byte // keeps shards on separate cache lines
}

// snapshotPin identifies the state that a snapshot reads; the zero value marks a free slot.
type snapshotPin struct{ ts, local Timestamp }

func (r *snapshotRegistry) add(s *Snapshot) {
	sh := &r.shards[rand.Uint32()%uint32(len(r.shards))]
	sh.Lock()
	if n := len(sh.free); n > 0 {
		s.slot = sh.free[n-1]
		sh.free = sh.free[:n-1]
		sh.at[s.slot] = snapshotPin{s.ts, s.local}
	} else {
		s.slot = len(sh.at)
		sh.at = append(sh.at, snapshotPin{s.ts, s.local})
	}
	sh.Unlock()
	s.shard = sh
}

func (r *snapshotRegistry) remove(s *Snapshot) {
	s.shard.Lock()
	s.shard.at[s.slot] = snapshotPin{}
	s.shard.free = append(s.shard.free, s.slot)
	s.shard.Unlock()
	s.shard = nil
}

// min returns the earliest timestamp of a line that is in use, or MaxTimestamp.
func (r *snapshotRegistry) min(line int) Timestamp {
	low := MaxTimestamp
	for i := range r.shards {
		sh := &r.shards[i]
		sh.Lock()
		for _, at := range sh.at {
			ts := at.ts
			if line == lineLocal {
				ts = at.local
			}
			if at.ts != 0 && ts < low {
				low = ts
			}
		}
		sh.Unlock()
	}
	return low
}

// Snapshot returns the newest view. It must be released.
func (e *Engine) Snapshot() *Snapshot {
	for {
		v := e.view.Load()
		s := &Snapshot{e: e, moment: v.moment, hidden: v.hiddenAt(v.ts, nil), cat: v.cat}
		e.snapshots.add(s)
		if v.ts >= e.Oldest() && v.ts >= e.space.gone.newest() {
			return s
		}
		s.Release() // the collector has passed the view between the two steps
	}
}

// MajoritySnapshot returns the newest view that no crash can undo.
func (e *Engine) MajoritySnapshot() *Snapshot {
	for {
		d := e.Durable()
		if d >= e.Visible() {
			return e.Snapshot()
		}
		s, err := e.SnapshotAt(d)
		if err == nil && d >= e.space.gone.newest() {
			return s
		}
		if err == nil {
			s.Release()
		}
		// What is discarded, and the end of the history, are never later than what is durable (advanceOldest): that has moved on since d.
		if e.Durable() == d {
			return e.Snapshot()
		}
	}
}

// SnapshotAt returns the view at ts. It fails with SnapshotTooOld (239) before the history window, and with
// SnapshotUnavailable (246) if ts is later than the visible timestamp; see WaitVisible.
func (e *Engine) SnapshotAt(ts Timestamp) (*Snapshot, error) { return e.snapshotAt(ts, false) }

func (e *Engine) snapshotAt(ts Timestamp, agreed bool) (*Snapshot, error) {
	now := e.view.Load()
	if ts > now.ts {
		return nil, mongoerr.Newf(mongoerr.SnapshotUnavailable,
			"Unable to read from a snapshot due to pending collection catalog changes; please retry the operation. Snapshot timestamp is %v. Visible timestamp is %v", ts, now.ts)
	}
	s := &Snapshot{e: e, moment: now.moment}
	s.ts = ts
	// The snapshot is registered first, so that the collector cannot pass ts between the check and the use.
	e.snapshots.add(s)
	if ts < e.Oldest() {
		s.Release()
		return nil, mongoerr.Newf(mongoerr.SnapshotTooOld, "Read timestamp %v is older than the oldest available timestamp.", ts)
	}
	asked := ts
	if agreed && ts < now.ts {
		var err error
		if ts, err = s.wholeAt(ts, now.ts); err != nil {
			s.Release()
			return nil, err
		}
		s.ts = ts
	}
	cat, err := e.catalogAt(ts)
	if err != nil {
		s.Release()
		return nil, err
	}
	if agreed && ts < now.ts {
		if s.shown = e.replica.agreed.shownAt(asked, now.ts); len(s.shown) > 0 {
			cat = e.withMarks(cat, now.cat, s.shown)
		}
	}
	s.cat, s.hidden = cat, now.hiddenAt(ts, s.shown)
	if len(s.shown) > 0 {
		s.shown = now.withChunks(ts, s.shown)
	}
	return s, nil
}

// Clone returns another snapshot of the same moment, for a cursor with its own lifetime.
func (s *Snapshot) Clone() *Snapshot {
	c := &Snapshot{e: s.e, moment: s.moment, hidden: s.hidden, shown: s.shown, cat: s.cat, unit: s.unit}
	s.e.snapshots.add(c)
	return c
}

// Release ends the snapshot. Its cursors must be closed before. Releasing twice is harmless.
func (s *Snapshot) Release() {
	s.Save()
	if s.shard != nil {
		s.e.snapshots.remove(s)
	}
	if f := s.released; f != nil {
		s.released = nil
		f()
	}
}

// OnRelease registers f to be called when the snapshot is released, to free what its reader holds while it reads.
// Clones do not call it.
func (s *Snapshot) OnRelease(f func()) {
	if before := s.released; before != nil {
		s.released = func() { before(); f() }
		return
	}
	s.released = f
}

// Succeed takes over the OnRelease function of old, which the reader used before this snapshot.
func (s *Snapshot) Succeed(old *Snapshot) { s.released, old.released = old.released, nil }

// Timestamp returns the moment of the view.
func (s *Snapshot) Timestamp() Timestamp { return s.ts }

// Catalog returns the catalog of the same moment.
func (s *Snapshot) Catalog() *catalog.Snapshot {
	if s.unit != nil {
		return s.unit.catalog(s.cat)
	}
	return s.cat
}

// Engine returns the engine of the snapshot.
func (s *Snapshot) Engine() *Engine { return s.e }

// Save releases the store's resources between two uses (getMore); the snapshot remains usable.
func (s *Snapshot) Save() {
	if s.point != nil {
		s.giveBack(s.point)
		s.point = nil
	}
}

// lookups prepares s.point for a table.
func (s *Snapshot) lookups(id catalog.Ident) (it *pooledIter, err error) {
	if err := s.e.space.gone.check(s.ts, id); err != nil {
		return nil, err
	}
	if s.point != nil && !s.current(s.point) {
		s.Save()
	}
	if s.point == nil {
		if s.point, err = s.iterator(nil, nil); err != nil {
			return nil, err
		}
	}
	s.aim(&s.point.v, id)
	return s.point, nil
}

// Get reads a record. doc is borrowed until the next call on the snapshot.
func (s *Snapshot) Get(c *catalog.Collection, rid RecordID) (doc []byte, ok bool, err error) {
	if c.Oplog {
		return s.e.oplogGet(s, rid)
	}
	p, err := s.lookups(c.Ident)
	if err != nil {
		return nil, false, err
	}
	p.key = append(appendIdent(p.key[:0], c.Ident), rid...)
	return p.v.get(p.key)
}

// FindByID reads the record with the given _id. rid and doc are borrowed until the next call on the snapshot.
func (s *Snapshot) FindByID(c *catalog.Collection, id value.Value) (rid RecordID, doc []byte, ok bool, err error) {
	rid, ok, err = s.LookupID(c, id)
	if err != nil || !ok {
		return nil, nil, false, err
	}
	p := s.point
	p.key = append(appendIdent(p.key[:0], c.Ident), rid...)
	doc, ok, err = p.v.get(p.key)
	return RecordID(p.key[identLen:]), doc, ok, err
}

// LookupID finds the RecordID of the record with the given _id without reading the record. In clustered
// collections the record need not exist. rid is borrowed until the next call on the snapshot.
func (s *Snapshot) LookupID(c *catalog.Collection, id value.Value) (rid RecordID, ok bool, err error) {
	p, err := s.lookups(c.Ident)
	if err != nil {
		return nil, false, err
	}
	if c.Clustered {
		p.rid, p.tb = keystring.Append(p.rid[:0], p.tb[:0], id, false, c.Collator)
		return p.rid, true, nil
	}
	idx := c.IDIndex()
	if idx == nil {
		return nil, false, mongoerr.Newf(mongoerr.IndexNotFound, "%s has no _id index", c.NS)
	}
	p.key, p.tb = keystring.Append(appendIdent(p.key[:0], idx.Ident), p.tb[:0], id, false, idx.Collator)
	v, ok, err := p.v.get(p.key)
	if err != nil || !ok || len(v) < 8 {
		return nil, false, err
	}
	return RecordID(v[:8:8]), true, nil
}
