package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage"
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
	}
	ok, err := t.collScan.next(op, r)
	if ok {
		t.last = append(t.last[:0], r.rid...)
	}
	return ok, err
}

// advance moves the tail to a newer snapshot.
func (t *tailNode) advance(s *storage.Snapshot) error {
	t.collScan.close()
	coll := s.Catalog().Lookup(t.ns)
	if coll == nil || coll.UUID != t.coll.UUID {
		t.dead = mongoerr.Newf(mongoerr.QueryPlanKilled, "collection dropped. UUID %x", t.coll.UUID[:])
		return t.dead
	}
	t.snap, t.coll = s, coll
	if t.last != nil {
		t.opts.From = append(append(storage.RecordID(nil), t.last...), 0) // the next one after last in byte order
	}
	return nil
}

// tailFrom is the time after which a tailing cursor has seen nothing.
func (n *Node) tailFrom(c *cursor) storage.Timestamp { return c.snap.Timestamp() }

// refreshTail gives a tailing cursor the newest view.
func (n *Node) refreshTail(c *cursor) error {
	qs, ok := c.stream.(*queryStream)
	if !ok {
		return nil
	}
	t, ok := tailOf(qs.root)
	if !ok {
		return nil
	}
	s := n.Engine.Snapshot()
	if err := t.advance(s); err != nil {
		s.Release()
		return err
	}
	old := c.snap
	c.snap, qs.q.snap = s, s
	old.Release()
	return nil
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
