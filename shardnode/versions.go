package shardnode

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/coordinator"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/write"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkVersion compares the versions in a request with this shard's.
func (n *Node) checkVersion(op *command.Op, ns string) error {
	if n.Sharding() == nil || (op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil) {
		return nil
	}
	if err := migration.WaitCritical(op, n.versions(op, ns)); err != nil {
		return err
	}
	if op.Req.Spec.Kind == command.Read && n.Engine.Catalog().Lookup(ns) == nil && !n.Sharding().ReadsPast(op) { // a read of the past finds views in its snapshot
		return n.viewForRouter(op, ns)
	}
	return nil
}

// checkSnapshot compares the versions in a read at a cluster time with those that this shard had then.
func checkSnapshot(n *Node, op *command.Op, ns string, s *storage.Snapshot) error {
	if op.Txn != nil || n.Sharding() == nil || (op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil) {
		return nil
	}
	return n.Sharding().CheckSnapshot(op, ns, s)
}

// versionedSnapshot returns the snapshot for a command that reads a namespace, after checking that the command's versions are those of this shard, now or at the
// time of the read.
func versionedSnapshot(n *Node, op *command.Op, ns string) (*storage.Snapshot, error) {
	if err := n.checkVersion(op, ns); err != nil {
		return nil, err
	}
	s, err := n.readSnapshot(op)
	if err != nil {
		return nil, err
	}
	if err := checkSnapshot(n, op, ns, s); err != nil {
		s.Release()
		return nil, err
	}
	return s, nil
}

// foreignSharded reports whether another collection that an operation reads has to be read by the router.
func foreignSharded(n *Node, op *command.Op, ns string, s *storage.Snapshot) (bool, error) {
	if n.Sharding() == nil {
		return false, nil
	}
	return n.Sharding().ForeignSharded(op, ns, s)
}

// selfChecked are the commands that compare versions themselves, together with their snapshot or under their lock. They
// are so frequent that a second comparison would be noticeable.
var selfChecked = map[string]bool{
	"find": true, "aggregate": true, "count": true, "distinct": true, "explain": true,
	"insert": true, "update": true, "delete": true, "findAndModify": true,
}

// checkAdmitted compares the versions of a command before it begins, whatever it does: a router with an outdated
// placement gets an error, and handlers need not check. Commands that change the catalog compare them again under
// their locks (LockVersioned). Commands that a coordinator executes do not wait here for a critical section to end: it may be that of the run that the
// request joins, and all their waiting is bounded by their wtimeout (package coordinator). Of those that are sent again the coordinator looks first whether they have been executed.
func (n *Node) checkAdmitted(op *command.Op) error {
	if op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil || n.Sharding() == nil || selfChecked[op.Req.Spec.Name] || coordinator.SentAgain(op) {
		return nil
	}
	ns := op.Req.NS("$cmd")
	switch name := op.Req.Cmd; {
	case op.Req.Spec.Namespace:
		coll, err := op.Req.Coll()
		if err != nil {
			return nil // the command itself reports the error
		}
		ns = op.Req.NS(coll)
	case name.T == value.String && catalog.CollOf(name.Str()) != "": // dataSize and renameCollection, for example
		ns = name.Str()
	}
	err := n.versions(op, ns)
	if migration.MeetsCritical(err) && coordinator.Executes(op.Req.Spec.Name) {
		return nil
	}
	return migration.WaitCritical(op, err)
}

// viewForRouter answers a router's read of a view: not with results, since the view's collection may be on other
// shards, but with its definition, which the router then runs as an aggregate.
func (n *Node) viewForRouter(op *command.Op, ns string) error {
	s := n.Engine.Snapshot()
	defer s.Release()
	r, err := namespace.Resolve(s, ns)
	if err != nil || r == nil {
		return err
	}
	if err := r.AllowsArgument(op.Arg("collation")); err != nil {
		return err
	}
	if op.Req.Spec.Name == "aggregate" {
		if reportsOnView(op.Arg("pipeline")) {
			return nil
		}
		if err := viewAllowsPipeline(r, op, ns); err != nil {
			return err
		}
	}
	view := []value.Field{value.F("ns", value.NewString(r.NS)), value.F("pipeline", value.NewArray(value.ArrayOf(r.Pipeline...)))}
	if r.Collation != nil {
		view = append(view, value.F("collation", value.NewDocument(r.Collation)))
	}
	return mongoerr.Newf(mongoerr.CommandOnShardedViewNotSupportedOnMongod,
		"Resolved views on collections that do not exist on this shard or are sharded must be executed by mongos: %s", ns).
		WithDetails(value.Doc(value.F("resolvedView", value.NewDocument(value.Doc(view...)))))
}

// versions is checkVersion without waiting for a critical section to end, for callers that hold a lock or wait themselves.
func (n *Node) versions(op *command.Op, ns string) error {
	if n.Sharding() == nil || (op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil) {
		return nil
	}
	return n.Sharding().CheckVersion(op, ns)
}

// ownership returns the shard filter of a collection; nil if this shard owns every document that it has.
func (n *Node) ownership(op *command.Op, c *catalog.Collection) exec.Ownership {
	if n.Sharding() == nil || c == nil || op.Req.ShardVersion == nil {
		return nil
	}
	return n.Sharding().Ownership(op, c)
}

// Sharding is the node's part in the sharding protocols, if it has one.
type Sharding interface {
	write.Sharding
	// ReadTable is ReadFilter without the filter: the routing table that an operation reads its own collection by; nil for none.
	ReadTable(op *command.Op, c *catalog.Collection) (*cluster.ChunkMap, error)
	// Owns reports whether a document belongs to this shard by a routing table, and is not an orphan; OwnsAll, whether every document does.
	Owns(table *cluster.ChunkMap, doc []byte) (bool, error)
	OwnsAll(table *cluster.ChunkMap) bool
	// BeginRead registers a query as a reader of a routing table, so that ranges that left this shard by a later one are not deleted before EndRead.
	BeginRead(table *cluster.ChunkMap)
	EndRead(table *cluster.ChunkMap)
	// Unmoved reports whether this shard still owns what it owned of a collection according to a routing table;
	// since is nil for a collection that was not sharded.
	Unmoved(op *command.Op, ns string, since *cluster.ChunkMap) bool
	// ReadsPast reports whether an operation uses the placement at the cluster time of its read.
	ReadsPast(op *command.Op) bool
	// CheckSnapshot returns an error if the versions in a read at a cluster time are not those that this shard had then, or if the snapshot lies within
	// a DDL.
	CheckSnapshot(op *command.Op, ns string, s *storage.Snapshot) error
	// ForeignSharded reports whether another collection that an operation reads from a snapshot is sharded. It returns StaleDbVersion if the
	// collection is neither sharded nor here.
	ForeignSharded(op *command.Op, ns string, s *storage.Snapshot) (bool, error)
}

// Sharding returns the node's sharding state; nil on a node that is not a shard.
func (n *Node) Sharding() Sharding {
	if s := n.shard.State(); s != nil {
		return s
	}
	return nil
}
