package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// resolveFor is Resolve for a request. A view on a sharded collection cannot be evaluated by one shard: the error
// then contains the view's definition, and the router evaluates it.
func (n *Node) resolveFor(op *command.Op, s *storage.Snapshot, ns string) (*namespace.Resolved, error) {
	r, err := n.readView(op, s, ns)
	if err != nil || r == nil || n.Sharding() == nil || op.Req.ShardVersion == nil {
		return r, err
	}
	sharded, err := foreignSharded(n, op, r.NS, s)
	if err == nil && !sharded {
		sharded, err = n.readsSharded(op, s, catalog.DBOf(ns), value.NewArray(value.ArrayOf(r.Pipeline...)))
	}
	if err != nil || !sharded {
		return r, err
	}
	view := []value.Field{value.F("ns", value.NewString(r.NS)), value.F("pipeline", value.NewArray(value.ArrayOf(r.Pipeline...)))}
	if r.Collation != nil {
		view = append(view, value.F("collation", value.NewDocument(r.Collation)))
	}
	return nil, mongoerr.New(mongoerr.CommandOnShardedViewNotSupportedOnMongod, "Command on view must be executed on mongos.").
		WithDetails(value.Doc(value.F("resolvedView", value.NewDocument(value.Doc(view...)))))
}

// readsSharded reports whether a pipeline reads a sharded collection besides its own.
func (n *Node) readsSharded(op *command.Op, s *storage.Snapshot, db string, pipeline value.Value) (bool, error) {
	for _, st := range value.Values(pipeline.Doc()) {
		it := value.Walk(st.Doc())
		name, spec, _ := it.Next()
		coll := value.Value{}
		var within []value.Value
		switch string(name) {
		case "$lookup", "$graphLookup":
			coll = value.Lookup(spec.Doc(), "from")
		case "$unionWith":
			if coll = spec; spec.T == value.Document {
				coll = value.Lookup(spec.Doc(), "coll")
			}
		case "$facet":
			within = value.Values(spec.Doc())
		}
		if spec.T == value.Document {
			within = append(within, value.Lookup(spec.Doc(), "pipeline"))
		}
		if coll.T == value.String {
			if sharded, err := foreignSharded(n, op, db+"."+coll.Str(), s); err != nil || sharded {
				return sharded, err
			}
		}
		for _, sub := range within {
			if sharded, err := n.readsSharded(op, s, db, sub); err != nil || sharded {
				return sharded, err
			}
		}
	}
	return false, nil
}
