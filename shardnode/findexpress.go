package shardnode

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage"
)

// express returns the read of a find that looks up one document by its _id and returns it as it is, in its first batch. ok is false for every
// other find.
func (a *findArgs) express(s *storage.Snapshot) (x exec.Express, ok bool) {
	if len(a.projection) > 5 || len(a.sort) > 5 || a.hint.T != value.Missing || a.collation.T != value.Missing || a.let != nil || a.min != nil || a.max != nil ||
		a.skip != 0 || a.size <= 1 || a.returnKey || a.showRecordID || a.tailable || a.mergeKey {
		return x, false
	}
	if x.ID, ok = exec.IDOf(a.filter); !ok {
		return x, false
	}
	x.Snap, x.Coll, x.Filter = s, s.Catalog().Lookup(a.ns), a.filter
	return x, x.Coll != nil
}

// findExpress replies to a find with one document, or none: what firstBatch replies, without the cursor, which would end with this batch. done is
// false, and nothing has happened, if the query has to be planned.
//
// Invariant: it takes the same steps as every query. Its table is that of the version that was checked, as bindMetadata has it, and a document
// that belongs to another shard is not returned.
func findExpress(n *Node, op *command.Op, dst []byte, x *exec.Express) (out []byte, done bool, err error) {
	var table *cluster.ChunkMap
	sharding := n.Sharding()
	if sharding != nil && op.Req.ShardVersion != nil {
		n.shard.AskWherePlaced(x.Coll.NS)
		if table, err = sharding.ReadTable(op, x.Coll); err != nil {
			x.Snap.Release()
			return dst, true, err
		}
		x.Owned = table != nil && !sharding.OwnsAll(table)
	}
	if !x.Begin(n.exec, op) {
		return dst, false, nil
	}
	if table != nil {
		sharding.BeginRead(table)
		defer sharding.EndRead(table)
	}
	defer x.Snap.Release()
	op.Stats.CollType = "collection"
	doc, ok, err := x.Read(op)
	if err == nil && ok && x.Owned {
		if ok, err = sharding.Owns(table, doc); err == nil && !ok {
			err = op.Check()
		}
	}
	if err == nil && ok {
		err = command.CheckResultSize(doc)
	}
	if err != nil {
		return dst, true, exec.During(duringFind(x.Coll.NS), err)
	}
	dst, cm, bm := beginCursor(dst, "firstBatch")
	if ok {
		dst = appendToBatch(dst, bm, 0, doc)
		op.Stats.NReturned = 1
	}
	op.Stats.CursorExhausted = true
	return endCursor(dst, cm, bm, 0, x.Coll.NS, snapshotTime(op, x.Snap), nil), true, nil
}
