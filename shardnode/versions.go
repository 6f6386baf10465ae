package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkVersion compares the versions that came with a request with what this shard knows.
func (n *Node) checkVersion(op *command.Op, ns string) error {
	if n.Sharding() == nil || (op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil) {
		return nil
	}
	if err := waitCritical(op, n.versions(op, ns)); err != nil {
		return err
	}
	if op.Req.Spec.Kind == command.Read && n.Engine.Catalog().Lookup(ns) == nil {
		return n.viewForRouter(op, ns)
	}
	return nil
}

// viewForRouter answers a router's read of a view: not with results, since what the view stands on may be on other
// shards, but with its definition, which the router then runs as an aggregate of its own.
func (n *Node) viewForRouter(op *command.Op, ns string) error {
	s := n.Engine.Snapshot()
	defer s.Release()
	r, err := resolveView(s, ns)
	if err != nil || r == nil {
		return err
	}
	if err := r.allowsArgument(op.Arg("collation")); err != nil {
		return err
	}
	if op.Req.Spec.Name == "aggregate" {
		if reportsOnView(op.Arg("pipeline")) {
			return nil
		}
		if err := r.allowsPipeline(op, ns); err != nil {
			return err
		}
	}
	view := []value.Field{value.F("ns", value.NewString(r.ns)), value.F("pipeline", value.NewArray(value.ArrayOf(r.pipeline...)))}
	if r.collation != nil {
		view = append(view, value.F("collation", value.NewDocument(r.collation)))
	}
	return mongoerr.Newf(mongoerr.CommandOnShardedViewNotSupportedOnMongod,
		"Resolved views on collections that do not exist on this shard or are sharded must be executed by mongos: %s", ns).
		WithDetails(value.Doc(value.F("resolvedView", value.NewDocument(value.Doc(view...)))))
}

// versions is checkVersion that does not wait for a critical section to end: its caller holds a lock.
func (n *Node) versions(op *command.Op, ns string) error {
	if n.Sharding() == nil || (op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil) {
		return nil
	}
	return n.Sharding().CheckVersion(op, ns)
}

// ownership gives the shard filter of a collection; nil where every document here is this shard's.
func (n *Node) ownership(op *command.Op, c *catalog.Collection) func(doc []byte) bool {
	if n.Sharding() == nil || c == nil || op.Req.ShardVersion == nil {
		return nil
	}
	return n.Sharding().Ownership(op, c)
}

// readFilter is ownership for the collection that a read's version is about; the version must still be this shard's.
func (n *Node) readFilter(op *command.Op, c *catalog.Collection) (func(doc []byte) bool, error) {
	if n.Sharding() == nil || c == nil || op.Req.ShardVersion == nil {
		return nil, nil
	}
	if n.placementMoves(c.NS) {
		n.sharding.Load().Catalog.InvalidateCollection(c.NS)
	}
	return n.Sharding().ReadFilter(op, c)
}

// checkOwner refuses an update that would move a document to another shard.
func (w *writeOp) checkOwner(q *query, st *statement, old, next []byte) error {
	if w.n.Sharding() == nil {
		return nil
	}
	return w.n.Sharding().CheckUpdate(w.op, q.coll, old, next, st.multi)
}

// checkUpsert refuses an upsert of a document that is to be on another shard.
func (w *writeOp) checkUpsert(ns string, doc []byte) error {
	if w.n.Sharding() == nil {
		return nil
	}
	return w.n.Sharding().CheckUpsert(w.op, ns, doc)
}

// mayCreate tells whether a write may create its collection: in a cluster, only where the database's primary shard does.
func (n *Node) mayCreate(op *command.Op, ns string) error {
	if err := command.CheckDBName(catalog.DBOf(ns)); err != nil {
		return err
	}
	return checkNewName(ns)
}

// Sharding is the node's part in the sharding protocols, where it has one.
type Sharding interface {
	// CheckVersion answers StaleConfig or StaleDbVersion where the request's versions are not this shard's.
	CheckVersion(op *command.Op, ns string) error
	// Sharded tells whether a collection is sharded, as far as this shard knows.
	Sharded(op *command.Op, ns string) bool
	// Ownership gives a filter that refuses documents of other shards; nil where there is nothing to filter.
	Ownership(op *command.Op, c *catalog.Collection) func(doc []byte) bool
	// ReadFilter is Ownership for a read's own collection: StaleConfig where the request's version is not this shard's.
	ReadFilter(op *command.Op, c *catalog.Collection) (func(doc []byte) bool, error)
	// CheckUpdate refuses changes of a document's shard key that may not be made, and those that move it.
	CheckUpdate(op *command.Op, c *catalog.Collection, old, next []byte, multi bool) error
	// CheckUpsert refuses a new document that belongs to another shard.
	CheckUpsert(op *command.Op, ns string, doc []byte) error
}

// Sharding is the node's place in a cluster; nil on a node that is no shard.
func (n *Node) Sharding() Sharding {
	if s := n.sharding.Load(); s != nil {
		return s
	}
	return nil
}
