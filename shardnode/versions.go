package shardnode

import (
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkVersion compares the versions that came with a request with what this shard knows.
func (n *Node) checkVersion(op *command.Op, ns string) error {
	if n.Sharding() == nil || (op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil) {
		return nil
	}
	if err := migration.WaitCritical(op, n.versions(op, ns)); err != nil {
		return err
	}
	if op.Req.Spec.Kind == command.Read && n.Engine.Catalog().Lookup(ns) == nil {
		return n.viewForRouter(op, ns)
	}
	return nil
}

// selfChecked are the commands that compare versions themselves, with the snapshot or the lock that they work with, and so
// often that twice would cost.
var selfChecked = map[string]bool{
	"find": true, "aggregate": true, "count": true, "distinct": true, "explain": true,
	"insert": true, "update": true, "delete": true, "findAndModify": true,
}

// checkAdmitted compares the versions that a command came with before it begins, whatever it does: a router that goes by
// an old placement is told so, and no handler has to think of it. Those that change the catalog compare them again once they
// have their locks (lockVersioned).
func (n *Node) checkAdmitted(op *command.Op) error {
	if op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil || n.Sharding() == nil || selfChecked[op.Req.Spec.Name] {
		return nil
	}
	ns := op.Req.NS("$cmd")
	switch name := op.Req.Cmd; {
	case op.Req.Spec.Namespace:
		coll, err := op.Req.Coll()
		if err != nil {
			return nil // which the command says
		}
		ns = op.Req.NS(coll)
	case name.T == value.String && catalog.CollOf(name.Str()) != "": // as of dataSize and renameCollection
		ns = name.Str()
	}
	return migration.WaitCritical(op, n.versions(op, ns))
}

// lockVersioned takes collections exclusively for a command that changes the catalog, and compares the versions that it came
// with for one of them: what moves or drops it waits from here on.
func (w *writeOp) lockVersioned(ns string, names ...string) (unlock func(), err error) {
	if unlock, err = w.lock(lock.X, names...); err != nil {
		return nil, err
	}
	if err = w.n.versions(w.op, ns); err != nil {
		unlock()
		return nil, migration.WaitCritical(w.op, err)
	}
	return unlock, nil
}

// viewForRouter answers a router's read of a view: not with results, since what the view stands on may be on other
// shards, but with its definition, which the router then runs as an aggregate of its own.
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

// versions is checkVersion that does not wait for a critical section to end: its caller holds a lock.
func (n *Node) versions(op *command.Op, ns string) error {
	if n.Sharding() == nil || (op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil) {
		return nil
	}
	return n.Sharding().CheckVersion(op, ns)
}

// ownership gives the shard filter of a collection; nil where every document here is this shard's.
func (n *Node) ownership(op *command.Op, c *catalog.Collection) exec.Ownership {
	if n.Sharding() == nil || c == nil || op.Req.ShardVersion == nil {
		return nil
	}
	return n.Sharding().Ownership(op, c)
}

// writtenRanges is the field by which a router names the ranges of a collection whose documents a statement has changed
// already: under an earlier placement, on the shard that owned them then. It knows because a shard carries out a statement
// under the version that it was sent with, as a whole, or refuses it.
const writtenRanges = "alreadyWrittenRanges"

// checkWrittenRanges refuses the field of anybody but a router.
func (n *Node) checkWrittenRanges(op *command.Op) error {
	router := n.Sharding() != nil && op.Req.ShardVersion != nil && (op.Client.InProcess || op.Client.Internal)
	if router || op.Req.Shared(writtenRanges).IsMissing() {
		return nil
	}
	return command.UnknownField(op.Req.Spec.Name + "." + writtenRanges)
}

// ownedBy is the shard filter of the command's statements on a collection: by the version that the command came with, and
// without what is written already. It is one for the whole command, which holds the collection: what another shard gives
// to this one meanwhile was that shard's part of the statement.
func (w *writeOp) ownedBy(c *catalog.Collection) (exec.Ownership, error) {
	if w.n.Sharding() == nil || c == nil || w.op.Req.ShardVersion == nil {
		return nil, nil
	}
	if c.NS != w.entered { // the target of a $merge: the version is its source's
		return w.n.ownership(w.op, c), nil
	}
	if w.owns.coll == c.UUID {
		return w.owns.filter, nil
	}
	owned, table, err := w.n.Sharding().ReadFilter(w.op, c)
	if err != nil {
		return nil, err
	}
	written, err := w.written(table)
	if err != nil {
		return nil, err
	}
	if len(written) > 0 {
		mine := exec.Ownership(owned)
		owned = func(doc []byte) (bool, error) {
			if slices.ContainsFunc(written, func(r *migration.KeyRange) bool { return r.Contains(doc) }) {
				return false, nil
			}
			return mine.Has(doc)
		}
	}
	w.owns.coll, w.owns.filter = c.UUID, owned
	return owned, nil
}

// written reads the ranges that are written already.
func (w *writeOp) written(table *cluster.ChunkMap) ([]*migration.KeyRange, error) {
	list := w.op.Req.Shared(writtenRanges).Doc()
	if list == nil {
		return nil, nil
	}
	if table == nil {
		return nil, mongoerr.New(mongoerr.NamespaceNotSharded, "ranges of a collection that is not sharded")
	}
	var out []*migration.KeyRange
	for _, v := range value.Values(list) {
		min, max := value.Lookup(v.Doc(), "min"), value.Lookup(v.Doc(), "max")
		if min.T != value.Document || max.T != value.Document {
			return nil, mongoerr.New(mongoerr.FailedToParse, "a range needs min and max")
		}
		out = append(out, migration.NewKeyRange(table.Key, min.Doc(), max.Doc()))
	}
	return out, nil
}

// checkOwner refuses an update that would move a document to another shard.
func (w *writeOp) checkOwner(q *exec.Query, st *statement, old, next []byte) error {
	if w.n.Sharding() == nil {
		return nil
	}
	return w.n.Sharding().CheckUpdate(w.op, q.Coll, old, next, st.multi)
}

// checkUpsert refuses an upsert of a document that is to be on another shard.
func (w *writeOp) checkUpsert(ns string, doc []byte) error {
	if w.n.Sharding() == nil {
		return nil
	}
	return w.n.Sharding().CheckUpsert(w.op, ns, doc)
}

// Sharding is the node's part in the sharding protocols, where it has one.
type Sharding interface {
	// CheckVersion answers StaleConfig or StaleDbVersion where the request's versions are not this shard's.
	CheckVersion(op *command.Op, ns string) error
	// Sharded tells whether a collection is sharded, as far as this shard knows.
	Sharded(op *command.Op, ns string) bool
	// Ownership gives a filter that refuses documents of other shards; nil where there is nothing to filter.
	Ownership(op *command.Op, c *catalog.Collection) func(doc []byte) (bool, error)
	// ReadFilter is Ownership for a read's own collection, with the routing table that the filter goes by, nil for none:
	// StaleConfig where the request's version is not this shard's.
	ReadFilter(op *command.Op, c *catalog.Collection) (owned func(doc []byte) (bool, error), table *cluster.ChunkMap, err error)
	// Unmoved tells whether this shard owns of a collection what it owned by a routing table; nil for one that was not sharded.
	Unmoved(op *command.Op, ns string, since *cluster.ChunkMap) bool
	// CheckUpdate refuses changes of a document's shard key that may not be made, and those that move it.
	CheckUpdate(op *command.Op, c *catalog.Collection, old, next []byte, multi bool) error
	// CheckUpsert refuses a new document that belongs to another shard.
	CheckUpsert(op *command.Op, ns string, doc []byte) error
	// DocumentKey makes the keys that the oplog names a sharded collection's documents by; nil where that is the _id alone.
	DocumentKey(op *command.Op, ns string) func(doc []byte) []byte
}

// Sharding is the node's place in a cluster; nil on a node that is no shard.
func (n *Node) Sharding() Sharding {
	if s := n.shard.State(); s != nil {
		return s
	}
	return nil
}
