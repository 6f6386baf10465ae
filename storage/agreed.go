package storage

import (
	"encoding/binary"
	"slices"
	"sort"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/storage/catalog"
)

// A transaction over several shards is visible at one time on all of them, its commitTimestamp, although each shard commits it
// at a later one of its own. Its versions have the timestamp of that commit; snapshots of a cluster time in between show them
// all the same. No other unit writes a version of their keys between the two: the transaction was prepared by the
// commitTimestamp, and holds the claims on them until it commits.

// agreedCommit is a commit that reads at a cluster time see from an earlier time on.
type agreedCommit struct {
	committed, from Timestamp
	least           Timestamp // the earliest from of this commit and of those after it
}

// agreedCommits are the agreed commits before which a snapshot may still be taken. replica.mu must be held to add one, which becomes
// visible afterwards.
type agreedCommits struct {
	sync.Mutex
	list []agreedCommit // in the order of their commits
}

func (a *agreedCommits) add(list []agreedCommit) {
	if len(list) == 0 {
		return
	}
	a.Lock()
	defer a.Unlock()
	for _, c := range list {
		if n := len(a.list); n > 0 && a.list[n-1].committed >= c.committed {
			continue // an entry that is applied again
		}
		c.least = c.from
		a.list = append(a.list, c)
		for i := len(a.list) - 2; i >= 0 && a.list[i].least > c.from; i-- {
			a.list[i].least = c.from
		}
	}
}

// shownAt returns, in order, the timestamps after ts and up to now of the commits that a reader at cluster time ts sees.
func (a *agreedCommits) shownAt(ts, now Timestamp) (out timestamps) {
	a.Lock()
	defer a.Unlock()
	i := sort.Search(len(a.list), func(i int) bool { return a.list[i].committed > ts })
	for ; i < len(a.list) && a.list[i].least <= ts && a.list[i].committed <= now; i++ {
		if a.list[i].from <= ts {
			out = append(out, uint64(a.list[i].committed))
		}
	}
	return out
}

// withChunks adds to shown, the commits that a reader at ts sees, those of their chunks that came after ts.
func (v *view) withChunks(ts Timestamp, shown timestamps) timestamps {
	out := shown
	for _, u := range v.late.units {
		if !shown.has(uint64(u.seen)) {
			continue
		}
		i, _ := slices.BinarySearch(u.at, uint64(ts)+1)
		out = append(slices.Clip(out), u.at[i:]...)
	}
	slices.Sort(out)
	return out
}

// forget drops commits that no snapshot can precede, and reports whether there were any.
func (a *agreedCommits) forget(oldest Timestamp) bool {
	a.Lock()
	defer a.Unlock()
	n := sort.Search(len(a.list), func(i int) bool { return a.list[i].committed > oldest })
	a.list = slices.Clone(a.list[n:])
	return n > 0
}

// VisibleFrom makes snapshots of a cluster time show the unit from that time on, although it commits later. It is called after
// SetTransaction and before the commit.
func (u *UnitOfWork) VisibleFrom(ts Timestamp) { u.log.txn.visibleFrom = ts }

func agreedKey(ts Timestamp) []byte {
	return metaKey(metaAgreed, binary.BigEndian.AppendUint64(nil, uint64(ts))...)
}

// stampAgreed records in the unit's batch the time from which the unit is visible.
func (u *UnitOfWork) stampAgreed(b *pebble.Batch, g *Group) {
	if t := u.log.txn; t != nil && t.visibleFrom != 0 && t.visibleFrom < u.wait.at {
		_ = b.Set(agreedKey(u.wait.at), binary.BigEndian.AppendUint64(nil, uint64(t.visibleFrom)), nil)
		g.agreed = append(g.agreed, agreedCommit{committed: u.wait.at, from: t.visibleFrom})
	}
}

func readAgreed(key, val []byte) (c agreedCommit, ok bool) {
	if len(key) != identLen+1+8+1 || key[identLen] != metaAgreed || len(val) != 8 {
		return c, false
	}
	return agreedCommit{
		committed: Timestamp(binary.BigEndian.Uint64(key[identLen+1:])),
		from:      Timestamp(binary.BigEndian.Uint64(val)),
	}, true
}

// loadAgreed reads the agreed commits from the store.
func (e *Engine) loadAgreed() error {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: metaKey(metaAgreed), UpperBound: metaKey(metaAgreed + 1)})
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	var list []agreedCommit
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if c, ok := readAgreed(it.Key(), val); ok {
			list = append(list, c)
		}
	}
	e.replica.agreed.Lock()
	e.replica.agreed.list = nil
	e.replica.agreed.Unlock()
	e.replica.agreed.add(list)
	return it.Error()
}

// collectAgreed drops the agreed commits that no snapshot can precede. Only this member's store changes.
func (e *Engine) collectAgreed(oldest Timestamp) error {
	if !e.replica.agreed.forget(oldest) {
		return nil
	}
	b := e.db.NewBatch()
	defer closeQuietly(b)
	_ = b.DeleteRange(agreedKey(0), agreedKey(oldest+1), nil)
	return e.applyDead(b)
}

// SnapshotAtClusterTime is SnapshotAt for a time at which other shards are read, too: it also shows what transactions over
// several shards have written that this shard committed after ts, if their commitTimestamp is not later. The caller must have
// waited for the transactions that were prepared by then.
//
// Invariant: a read at a cluster time sees all of a transaction or nothing of it, on whatever shards it reads. Which of the two
// follows from the commitTimestamp alone, not from the time at which a shard has received the decision. A snapshot shows what lies at or
// before its time, and in addition the commits that it has listed (shown). Showing a later version at an earlier time is
// sound because the transaction claimed the record from its vote on, and the commitTimestamp is not before any vote: no
// version of the same record lies between the two.
//
// Hazard: the caller must wait first (AwaitPrepared). A transaction that is prepared by the time and undecided is not in the
// list, and may be decided with a commitTimestamp that the reader should have seen.
//
// Rejected: writing the versions at the commitTimestamp itself. Timestamps of the store become visible in order and without
// holes; a version that appears in the past would change what readers of that time have already seen, and would precede
// what secondaries have applied and change streams have returned. Rejected, too: refusing reads that span a commit, which made
// readers of busy collections retry without end.
func (e *Engine) SnapshotAtClusterTime(ts Timestamp) (*Snapshot, error) {
	return e.snapshotAt(ts, true)
}

// wholeAt returns the last timestamp of the unit of work that ts belongs to, or ts itself if there is none. A unit has a timestamp
// for each of its entries in the oplog, and its versions have the last. Change streams show clients the others, too: a read at the
// time of an event finds the change that the event describes. No other unit, and no vote of a transaction, has a timestamp in between; of
// transactions over several shards the caller shows those that are visible at ts, as other shards do.
func (s *Snapshot) wholeAt(ts, now Timestamp) (Timestamp, error) {
	c := newOplogCursor(s, ScanOptions{From: NewRecordID(int64(ts))})
	defer c.close()
	if !c.load() || len(c.block.entries) == 0 || c.block.ts(0) > ts || c.block.last > now {
		return ts, c.err
	}
	return c.block.last, nil
}

// withMarks adds to the collections of a catalog the multikey marks of later catalogs: commits that the snapshot shows
// may have inserted an index's first document with several keys. Nothing else can have changed of a collection that they wrote to.
func (e *Engine) withMarks(cat *catalog.Snapshot, now *catalog.Snapshot, shown timestamps) *catalog.Snapshot {
	later := append(e.history.around(Timestamp(shown[len(shown)-1])), now)
	out := cat
	cat.Each(func(c *catalog.Collection) {
		for i := len(later) - 1; i >= 0; i-- {
			if next := later[i].LookupUUID(c.UUID); next != nil && next != c && sameShape(c, next) {
				out = out.With(c, next)
				return
			}
		}
	})
	return out
}

// around returns the catalogs in force at ts and after the next change.
func (h *catalogHistory) around(ts Timestamp) (out []*catalog.Snapshot) {
	h.Lock()
	defer h.Unlock()
	n := sort.Search(len(h.list), func(i int) bool { return h.list[i].ts >= ts })
	for _, v := range h.list[max(n-1, 0):min(n+1, len(h.list))] {
		out = append(out, v.cat)
	}
	return out
}
