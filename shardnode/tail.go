package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// tailNode reads a capped collection (or the oplog) in insertion order and does not end: asked again with a newer
// snapshot, it goes on behind the last record it gave.
type tailNode struct {
	collScan
	node *Node
	ns   string
	last storage.RecordID
	dead error
}

func (t *tailNode) next(op *command.Op, r *row) (bool, error) {
	if t.dead != nil {
		return false, t.dead
	}
	if t.cur == nil {
		t.coll.Counters.TailScans.Add(1)
		op.Stats.TailScans++
	}
	ok, err := t.collScan.next(op, r)
	if ok {
		t.last = append(t.last[:0], r.rid...)
	}
	return ok, err
}

// advance moves the tail to a newer snapshot.
func (t *tailNode) advance(s *storage.Snapshot, coll *catalog.Collection) error {
	t.collScan.close()
	t.snap, t.coll = s, coll
	if t.last == nil {
		return nil
	}
	if !coll.Oplog {
		if _, ok, err := s.Get(coll, t.last); err != nil || !ok {
			t.dead = mongoerr.Newf(mongoerr.CappedPositionLost, "CollectionScan died due to position in capped collection being deleted. Last seen record id: %s",
				value.Show(recordIDValue(t.last)))
			return t.dead
		}
	}
	t.opts.From = after(t.last)
	return nil
}

// after is the first RecordId behind another in byte order.
func after(r storage.RecordID) storage.RecordID { return append(r.Clone(), 0) }

// tailFrom is the time after which a tailing cursor has seen nothing.
func (n *Node) tailFrom(c *cursor) storage.Timestamp { return c.snap.Timestamp() }

// refresh lets a cursor go on with the newest view of its collection, as a query does that lets go of its locks between
// two batches. Cursors that read one moment stay there, and so do plans over indexes and those of a shard: the filter of
// what the shard owns belongs to the moment the query began.
func (n *Node) refresh(c *cursor) error {
	qs, ok := c.stream.(*queryStream)
	if !ok || c.fixed || qs.q.coll == nil {
		return nil
	}
	was := qs.q.coll
	if now := n.Engine.Catalog().Lookup(was.NS); now == nil || now.UUID != was.UUID {
		if moved := n.Engine.Catalog().LookupUUID(was.UUID); moved != nil {
			return mongoerr.Newf(mongoerr.QueryPlanKilled, "collection renamed from '%s' to '%s'. UUID %s", was.NS, moved.NS, value.Show(was.UUID.Value()))
		}
		return mongoerr.Newf(mongoerr.QueryPlanKilled, "collection dropped. UUID %s", value.Show(was.UUID.Value()))
	}
	tail, isTail := tailOf(qs.root)
	scan, isScan := scanOf(qs.root)
	if !isTail && (!isScan || qs.q.owned != nil || !scan.mayAdvance()) {
		return nil
	}
	s := n.Engine.Snapshot()
	coll := s.Catalog().Lookup(was.NS)
	if coll == nil || coll.UUID != was.UUID {
		s.Release()
		return mongoerr.Newf(mongoerr.QueryPlanKilled, "collection dropped. UUID %s", value.Show(was.UUID.Value()))
	}
	if isTail {
		if err := tail.advance(s, coll); err != nil {
			s.Release()
			return err
		}
	} else {
		scan.advance(s, coll)
	}
	old := c.snap
	c.snap, qs.q.snap, qs.q.coll = s, s, coll
	old.Release()
	return nil
}

// scanOf finds the collection scan that a plan consists of.
func scanOf(root node) (*collScan, bool) {
	for {
		switch x := root.(type) {
		case *collScan:
			return x, true
		case *filterNode:
			root = x.in
		case *skipLimit:
			root = x.in
		default:
			return nil, false
		}
	}
}

func tailOf(root node) (*tailNode, bool) {
	for {
		switch x := root.(type) {
		case *tailNode:
			return x, true
		case *filterNode:
			root = x.in
		case *skipLimit:
			root = x.in
		default:
			return nil, false
		}
	}
}
