package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/klauspost/compress/s2"
	"github.com/shoaldb/shoal/storage/catalog"
)

// lateUnit is a unit whose versions are in the store before it commits: they have the timestamps of the chunks that
// brought them (staged.go), and are visible from the timestamp of the commit on. As long as a reader may read at a time
// between the two, snapshots carry the timestamps that are hidden from them. The early timestamps do no harm: the unit
// has claimed its keys, so no other unit writes a version between them and the commit.
//
// Invariant: a view lists every unit that has chunks up to the view's timestamp and may be read at a time before it
// committed. publish therefore changes the list before it shows the view that has the change, and collectLate removes a unit only
// once the collector has passed its commit, or the deletion of its versions.
//
// Hazard: what the unit supersedes stays the newest version in view until the commit. If it were recorded for the collector at the
// chunk's timestamp, as other units record it at theirs, the collector could delete it while readers of a time before the
// commit still see it. The records of the chunks list it instead, for collectLate.
//
// Rejected: keeping the bulk in a table of its own, from which each member wrote the versions when the unit committed. All
// later commits waited for that (up to 14 s at 300 MB), and memory grew with the unit. Rejected, too: a mark in each
// version, from which readers look up its unit. Every reader would pay for each version that it meets; as it is, a snapshot
// compares timestamps, and only while such a unit exists.
type lateUnit struct {
	id   stagedID
	at   timestamps // of its chunks
	seen Timestamp  // when its versions become visible; `pending` before it has committed
	gone Timestamp  // when the last of its versions was deleted, because the unit failed; 0 if it did not
}

// timestamps are in ascending order.
type timestamps []uint64

func (h timestamps) has(ts uint64) bool {
	if len(h) == 0 || ts < h[0] || ts > h[len(h)-1] {
		return false
	}
	_, found := slices.BinarySearch(h, ts)
	return found
}

// lateUnits are the units that readers have to take into account. The list is replaced, never modified: under
// replica.mu, and before the view in which the change takes effect.
type lateUnits struct {
	list atomic.Pointer[lateList]
}

// lateList are the late units of a view. A large migration leaves hundreds of them behind, for as long as history reaches.
type lateList struct {
	units []*lateUnit
	seen  Timestamp // from when all of them are visible; `pending` if one has not committed
}

func (l *lateUnits) all() []*lateUnit { return l.now().units }

func (l *lateUnits) now() lateList {
	if p := l.list.Load(); p != nil {
		return *p
	}
	return lateList{}
}

func (l *lateUnits) store(list []*lateUnit) {
	if len(list) == 0 {
		l.list.Store(nil)
		return
	}
	p := &lateList{units: list}
	for _, u := range list {
		p.seen = max(p.seen, u.seen)
	}
	l.list.Store(p)
}

// hiddenAt returns the timestamps that a reader at ts, which is not later than the view, does not see. shown are
// commits after ts that it does see.
func (v *view) hiddenAt(ts Timestamp, shown timestamps) (out timestamps) {
	if v.late.seen <= ts {
		return nil
	}
	several := false
	for _, u := range v.late.units {
		switch {
		case u.seen <= ts || shown.has(uint64(u.seen)) || len(u.at) == 0 || Timestamp(u.at[0]) > ts:
		case out == nil:
			out = u.at
		default:
			out, several = append(slices.Clip(out), u.at...), true
		}
	}
	if several {
		slices.Sort(out)
	}
	return out
}

// visibleFrom returns when a version with timestamp at became visible: `pending` if it has not.
func (l *lateUnits) visibleFrom(at uint64) uint64 {
	for _, u := range l.all() {
		if u.at.has(at) {
			return uint64(u.seen)
		}
	}
	return at
}

// lateEdit is a change to the late units by a group of units.
type lateEdit struct {
	id   stagedID
	kind byte // stagedChunk: one more chunk; stagedSeen: the unit committed; lateGone: it is gone
	at   Timestamp
}

// lateGone is the kind of an edit that has no key in the table.
const lateGone = stagedEnd

// edit applies changes that a group brings.
func (l *lateUnits) edit(edits []lateEdit) {
	if len(edits) == 0 {
		return
	}
	list := slices.Clone(l.all())
	for _, d := range edits {
		i := slices.IndexFunc(list, func(u *lateUnit) bool { return u.id == d.id })
		if i < 0 {
			if d.kind == lateGone {
				continue
			}
			i, list = len(list), append(list, &lateUnit{id: d.id, seen: Timestamp(pending)})
		}
		u := *list[i]
		switch d.kind {
		case stagedChunk:
			if !u.at.has(uint64(d.at)) {
				u.at = append(slices.Clip(u.at), uint64(d.at))
				slices.Sort(u.at)
			}
		case stagedSeen:
			u.seen = d.at
		default:
			u.gone = d.at
		}
		list[i] = &u
	}
	l.store(list)
}

// drop forgets units that no reader has to take into account.
func (l *lateUnits) drop(done func(*lateUnit) bool) {
	list := slices.DeleteFunc(slices.Clone(l.all()), done)
	l.store(list)
}

// lateEditOf decodes what a key of an entry, or of a unit that has its timestamp, says about a late unit. at is
// the timestamp of the entry or unit.
func lateEditOf(kind pebble.InternalKeyKind, key []byte, at Timestamp) (d lateEdit, ok bool) {
	id, what, ok := splitStagedKey(key)
	switch {
	case !ok:
		return d, false
	case kind == pebble.InternalKeyKindRangeDelete && what == stagedSeen:
		return lateEdit{id, lateGone, at}, true
	case kind == pebble.InternalKeyKindSet && (what == stagedSeen || what == stagedChunk):
		_, own, _ := splitVersion(key)
		return lateEdit{id, what, Timestamp(own)}, true
	}
	return d, false
}

// loadLate reads the late units from the store.
func (e *Engine) loadLate() error {
	var list []*lateUnit
	most := uint64(0)
	err := e.eachStaged(func(it *pebble.Iterator, id stagedID, kind byte) error {
		if most = max(most, id.number); kind != stagedSeen && kind != stagedChunk {
			return nil
		}
		_, ts, _ := splitVersion(it.Key())
		if n := len(list); n == 0 || list[n-1].id != id {
			list = append(list, &lateUnit{id: id, seen: Timestamp(pending)})
		}
		if u := list[len(list)-1]; kind == stagedSeen {
			u.seen = Timestamp(ts)
		} else {
			u.at = append(u.at, ts)
		}
		return nil
	})
	for _, u := range list {
		slices.Sort(u.at)
	}
	e.replica.late.store(list)
	e.replica.staging.resume(most)
	return err
}

// eachStaged calls f for each key of the table of staged units, except the oplog pieces, which are large.
func (e *Engine) eachStaged(f func(it *pebble.Iterator, id stagedID, kind byte) error) error {
	lower, upper := identRange(identStaging)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	for ok := it.First(); ok; {
		id, kind, known := splitStagedKey(it.Key())
		if known && kind == stagedPiece {
			ok = it.SeekGE(id.key(stagedLogged, 0))
			continue
		}
		if known {
			if err := f(it, id, kind); err != nil {
				return err
			}
		}
		ok = it.Next()
	}
	return it.Error()
}

// chunkKeys is a chunk's record: it lists the versions that came with the chunk.
type chunkKeys struct {
	at         Timestamp
	record     []byte        // the key of the record itself
	keys       []byte        // keys without version, each with its length
	superseded []byte        // those of keys, of this or another chunk of the unit, that have an older version
	copied     copiedRecords // in place of keys, if the versions come with tables
}

func (c *chunkKeys) value() []byte {
	if c.copied.table != 0 {
		return c.copied.value()
	}
	p := binary.AppendUvarint(nil, uint64(len(c.keys)))
	p = append(p, c.keys...)
	return s2.Encode(nil, append(p, c.superseded...))
}

func readChunkKeys(key, val []byte) (*chunkKeys, error) {
	_, ts, ok := splitVersion(key)
	p, err := s2.Decode(nil, val)
	n, w := binary.Uvarint(p)
	if ok && err == nil && w > 0 && n == copiedMark {
		copied, ok := readCopied(p[w:])
		if ok {
			return &chunkKeys{at: Timestamp(ts), record: bytes.Clone(key), copied: copied}, nil
		}
	}
	if !ok || err != nil || w <= 0 || uint64(len(p)-w) < n {
		return nil, corrupt("the record of a chunk of a unit of work is unreadable")
	}
	return &chunkKeys{at: Timestamp(ts), record: bytes.Clone(key), keys: p[w : w+int(n)], superseded: p[w+int(n):]}, nil
}

// eachKey splits a list of keys with their lengths.
func eachKey(list []byte, f func(key []byte) error) error {
	for len(list) > 0 {
		n, w := binary.Uvarint(list)
		if w <= 0 || n > uint64(len(list)-w) {
			return corrupt("a list of keys is unreadable")
		}
		if err := f(list[w : w+int(n)]); err != nil {
			return err
		}
		list = list[w+int(n):]
	}
	return nil
}

func appendKey(list, key []byte) []byte {
	return append(binary.AppendUvarint(list, uint64(len(key))), key...)
}

// nextChunk reads the first chunk record of a unit at or after a key; it returns nil if there is none.
func (e *Engine) nextChunk(id stagedID, from []byte) (*chunkKeys, error) {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: id.key(stagedChunk+1, 0)})
	if err != nil {
		return nil, err
	}
	defer closeQuietly(it)
	if !it.First() {
		return nil, it.Error()
	}
	val, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	return readChunkKeys(it.Key(), val)
}

// lateTables reports the tables that uncommitted units write to: the catalog may not know them yet.
func (e *Engine) lateTables(note func(catalog.Ident)) error {
	return e.eachStaged(func(it *pebble.Iterator, _ stagedID, kind byte) error {
		if kind != stagedChunk {
			return nil
		}
		val, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		c, err := readChunkKeys(it.Key(), val)
		if err != nil {
			return err
		}
		if c.copied.table != 0 {
			note(c.copied.table)
		}
		return eachKey(c.keys, func(key []byte) error { note(identOf(key)); return nil })
	})
}

// collectLate drops the versions that late units superseded, and forgets those units, once no reader can read at a
// time before their commit. It changes only this member's store.
func (e *Engine) collectLate(ctx context.Context, oldest Timestamp) error {
	for _, u := range e.replica.late.all() {
		if u.seen > oldest && (u.gone == 0 || u.gone > oldest) {
			continue
		}
		if u.seen <= oldest {
			if err := e.dropSuperseded(ctx, u); err != nil {
				return err
			}
		}
		e.replica.mu.Lock()
		e.replica.late.drop(func(x *lateUnit) bool { return x.id == u.id })
		e.replica.mu.Unlock()
	}
	return nil
}

// dropSuperseded deletes the versions that a unit has superseded, and then the records of its chunks.
func (e *Engine) dropSuperseded(ctx context.Context, u *lateUnit) error {
	// A reader that finds versions gone, after a crash or in a snapshot of the store, must find this mark too.
	mark := e.db.NewBatch()
	_ = mark.Set(metaKey(metaOldest), binary.BigEndian.AppendUint64(nil, uint64(e.Oldest())), nil)
	if err := errorsJoin(e.applyDead(mark), mark.Close()); err != nil {
		return err
	}
	for from := u.id.key(stagedChunk, 0); ctx.Err() == nil; {
		c, err := e.nextChunk(u.id, from)
		if err != nil {
			return err
		}
		b := e.db.NewBatch()
		if c == nil {
			_ = b.DeleteRange(u.id.key(stagedSeen, 0), u.id.key(stagedChunk+1, 0), nil)
			defer closeQuietly(b)
			return e.applyDead(b)
		}
		if err := errorsJoin(e.dropOlder(b, c.superseded, u.at[len(u.at)-1]), b.Close()); err != nil {
			return err
		}
		from = append(c.record, 0)
	}
	return ctx.Err()
}

// dropOlder deletes, of each key in a list, the versions before the newest that is not later than last, and that
// one too if it is a deletion. The newest is the unit's own, which had the claim on the key.
func (e *Engine) dropOlder(b *pebble.Batch, list []byte, last uint64) error {
	it, err := e.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	keep := blockKeeper{e: e}
	defer keep.close()
	err = eachKey(list, func(user []byte) error {
		for ok, first := it.SeekGE(appendVersion(bytes.Clone(user), last)), true; ok; ok, first = it.Next(), false {
			other, ts, versioned := splitVersion(it.Key())
			if !versioned || !bytes.Equal(other, user) {
				break
			}
			if val, err := it.ValueAndErr(); err != nil {
				return err
			} else if first && len(val) > 0 {
				continue
			}
			if err := keep.keep(identOf(user), Timestamp(ts)); err != nil {
				return err
			}
			_ = b.Delete(it.Key(), nil)
		}
		if b.Len() < 1<<20 {
			return it.Error()
		}
		defer b.Reset()
		return errorsOr(it.Error(), keep.before(b))
	})
	if err == nil {
		err = keep.before(b)
	}
	return err
}
