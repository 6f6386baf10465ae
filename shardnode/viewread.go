package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// readView resolves the view that a reading command names; nil if ns is not a view. The command's collation has to be the view's.
func (n *Node) readView(op *command.Op, s *storage.Snapshot, ns string) (*namespace.Resolved, error) {
	r, err := namespace.Resolve(s, ns)
	if err != nil || r == nil {
		return nil, err
	}
	return r, r.AllowsArgument(op.Arg("collation"))
}

// checkForeignViews compares the collation of an aggregate with those of the views its stages read.
func (n *Node) checkForeignViews(s *storage.Snapshot, from []agg.Namespace, spec *collation.Spec) error {
	for _, ns := range from {
		r, err := namespace.Resolve(s, ns.String())
		if err == nil && r != nil {
			err = r.Allows(spec)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkOnSeries refuses first stages that are not supported on time series collections.
func checkOnSeries(pipeline value.Value) error {
	it := value.Walk(pipeline.Doc())
	_, first, _ := it.Next()
	it = value.Walk(first.Doc())
	switch k, _, _ := it.Next(); string(k) {
	case "$rankFusion", "$scoreFusion":
		return mongoerr.Newf(10557301, "%s is unsupported on timeseries collections", k)
	case "$planCacheStats":
		return mongoerr.Newf(40602, "%s is only valid as the first stage in a pipeline.", k)
	}
	return nil
}
