package router

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// LoadTables reads the placement of every collection that the sharding catalog has, as far as possible before ctx ends, so
// that the first request for a collection does not wait for its table.
func (r *Router) LoadTables(ctx context.Context) {
	docs, err := cluster.FindConfig(ctx, r.Registry.Config(), cluster.Find{NS: "config.collections", Projection: cluster.ByID()}.Doc())
	if err != nil {
		return
	}
	for _, d := range docs {
		if ns := value.Lookup(d, "_id"); ns.T == value.String && ctx.Err() == nil {
			_, _ = r.Catalog.Collection(ctx, ns.Str())
		}
	}
}
