package router

import (
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// recreateRangeDeletionTasks has every shard create range deletions for the ranges of a sharded collection that it does not own.
func (r *Router) recreateRangeDeletionTasks(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := fullNS(op)
	if err != nil {
		return dst, err
	}
	op.Stats.NS = ns
	r.Catalog.InvalidateCollection(ns)
	info, err := r.Catalog.Collection(op, ns)
	if err != nil {
		return dst, err
	}
	if !info.Sharded() {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	ids, err := r.allShards(op)
	if err != nil {
		return dst, err
	}
	body := msg.Doc(&msg.RecreateRangeDeletionTasks{NS: ns, SkipEmpty: op.Bool("skipEmptyRanges")})
	return dst, firstError(r.scatter(op, ids, func(string) ([]byte, []wire.Sequence) { return body, nil }))
}
