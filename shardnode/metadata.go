package shardnode

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage/catalog"
)

// metadata is the filtering metadata that a query began with. The query keeps it until it ends, as it keeps its
// snapshot. A cursor that outlives a migration therefore returns what belonged to this shard when it was opened.
type metadata struct {
	n        *Node
	sharding Sharding
	table    *cluster.ChunkMap // nil: the collection was not sharded
}

// bindMetadata gives a query the ownership filter of the version that was checked, and counts the query among the
// readers of that version until its snapshot is released.
//
// Invariant: version, snapshot and filter of a query agree. Hazard: a migration may commit between the check of the version and
// the snapshot. The filter would then belong to a later or earlier placement than the snapshot; ReadFilter
// therefore compares the version again after the snapshot was taken, and the query is refused if it has changed.
//
// Rejected: holding the collection's lock from the check to the snapshot. Every read would queue behind a migration's request
// for the exclusive lock, which waits for long transactions; comparing twice costs an atomic load and a comparison.
func (n *Node) bindMetadata(op *command.Op, q *exec.Query) error {
	sharding := n.Sharding()
	if sharding == nil || q.Coll == nil || op.Req.ShardVersion == nil {
		return nil
	}
	n.shard.AskWherePlaced(q.Coll.NS)
	owned, table, err := sharding.ReadFilter(op, q.Coll)
	if err != nil {
		return err
	}
	q.Owned, q.Placement = owned, &metadata{n, sharding, table}
	if table != nil {
		sharding.BeginRead(table)
		q.Snap.OnRelease(func() { sharding.EndRead(table) })
	}
	return nil
}

// ShardKey implements exec.Placement.
func (m *metadata) ShardKey() []string {
	if m.table == nil {
		return nil
	}
	return m.table.Key.Paths()
}

// Unmoved implements exec.Placement.
func (m *metadata) Unmoved(op *command.Op, c *catalog.Collection) bool {
	m.n.shard.AskWherePlaced(c.NS)
	return m.sharding.Unmoved(op, c.NS, m.table)
}
