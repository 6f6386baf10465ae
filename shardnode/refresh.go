package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// tailFrom returns the time up to which a tailing cursor has read.
func (n *Node) tailFrom(c *cursor) storage.Timestamp { return c.snap.Timestamp() }

// refresh lets a cursor continue in the newest snapshot, as a query does on the real server, which yields
// between two batches. Cursors that read at one time keep their snapshot, and so do those whose stream cannot
// advance, and all once data of the collection has moved (Unmoved).
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
