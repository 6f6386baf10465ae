package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// soleCollection returns the only collection that an operation reads; nil if there may be others.
func (n *Node) soleCollection(op *command.Op) *catalog.Collection {
	switch name := op.Req.Spec.Name; name {
	case "find", "count", "distinct":
	case "aggregate":
		for _, stage := range value.Values(op.Arg("pipeline").Doc()) {
			for k := range value.Elements(stage.Doc()) {
				if !agg.Has(k, agg.OwnCollection) {
					return nil
				}
			}
		}
	default:
		return nil
	}
	coll, err := op.Req.Coll()
	if err != nil {
		return nil
	}
	return n.Engine.Catalog().Lookup(op.Req.NS(coll))
}
