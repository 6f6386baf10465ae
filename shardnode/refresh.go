package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// tailFrom returns the time after which a tailing cursor has seen nothing.
func (n *Node) tailFrom(c *cursor) storage.Timestamp { return c.snap.Timestamp() }

// refresh lets a cursor go on with the newest view of its collection, as a query does that releases its locks
// between two batches. Cursors that read one moment stay there, and so do those whose stream may not advance.
// Where the shard owned all of the collection, they stay from the moment that changes.
func (n *Node) refresh(op *command.Op, c *cursor) error {
	qs, ok := c.stream.(*exec.Stream)
	if !ok || c.fixed || qs.Collection() == nil {
		return nil
	}
	was := qs.Collection()
	if now := n.Engine.Catalog().Lookup(was.NS); now == nil || now.UUID != was.UUID {
		if moved := n.Engine.Catalog().LookupUUID(was.UUID); moved != nil {
			return mongoerr.Newf(mongoerr.QueryPlanKilled, "collection renamed from '%s' to '%s'. UUID %s", was.NS, moved.NS, value.Show(was.UUID.Value()))
		}
		return collectionDropped(was)
	}
	if !qs.MayAdvance() {
		return nil
	}
	s := n.Engine.Snapshot()
	coll := s.Catalog().Lookup(was.NS)
	if coll == nil || coll.UUID != was.UUID {
		s.Release()
		return collectionDropped(was)
	}
	if !qs.Unmoved(op, coll) { // checked after the snapshot was taken: nothing that moves later is missing from it
		s.Release()
		return nil
	}
	if err := qs.Advance(s, coll); err != nil {
		s.Release()
		return err
	}
	old := c.snap
	s.Succeed(old)
	c.snap = s
	old.Release()
	return nil
}

func collectionDropped(c *catalog.Collection) error {
	return mongoerr.Newf(mongoerr.QueryPlanKilled, "collection dropped. UUID %s", value.Show(c.UUID.Value()))
}
