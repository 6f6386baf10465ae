package exec

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// tailNode reads a capped collection (or the oplog) in insertion order and does not end: with a newer snapshot it
// continues after the last record that it read, whether that matched the filter or not.
type tailNode struct {
	collScan
	dead error
}

func (t *tailNode) Next(op *command.Op, r *Row) (bool, error) {
	if t.dead != nil {
		return false, t.dead
	}
	if t.cur == nil {
		t.coll.Counters.TailScans.Add(1)
		op.Stats.TailScans++
	}
	return t.collScan.Next(op, r)
}

// advance moves the tail to a newer snapshot.
func (t *tailNode) advance(s *storage.Snapshot, coll *catalog.Collection) error {
	t.collScan.Close()
	t.snap, t.coll = s, coll
	if t.last == nil {
		return nil
	}
	if t.dead = stillThere(s, coll, t.last); t.dead != nil {
		return t.dead
	}
	t.opts.From, t.resumed = after(t.last), false
	return nil
}

// stillThere returns an error if the record that a scan read last has been deleted from its capped collection,
// because later records that it has not seen may be gone, too.
func stillThere(s *storage.Snapshot, coll *catalog.Collection, last storage.RecordID) error {
	_, ok, err := s.Get(coll, last)
	if err == nil && !ok {
		err = mongoerr.Newf(mongoerr.CappedPositionLost, "CollectionScan died due to position in capped collection being deleted. Last seen record id: %s",
			value.Show(RecordIDValue(last)))
	}
	return err
}

// after returns the successor of a RecordId in byte order.
func after(r storage.RecordID) storage.RecordID { return append(r.Clone(), 0) }

// leafOf finds the node of type T that a plan consists of, below filters, limits and timers.
func leafOf[T Node](root Node) (leaf T, ok bool) {
	for {
		if leaf, ok = root.(T); ok {
			return leaf, true
		}
		switch x := root.(type) {
		case *filterNode:
			root = x.in
		case *skipLimit:
			root = x.in
		case *timedNode:
			root = x.in
		default:
			return leaf, false
		}
	}
}
