package router

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// LoadTables reads the placement of every collection that the sharding catalog has, as far as that is possible before ctx ends: the
// first request for one would wait for it.
func (r *Router) LoadTables(ctx context.Context) {
	docs, err := cluster.FindConfig(ctx, r.Registry.Config(), value.Doc(value.F("find", value.NewString("collections")),
		value.F("projection", value.NewDocument(value.Doc(value.F("_id", value.NewInt32(1))))), value.F("$db", value.NewString("config"))))
	if err != nil {
		return
	}
	for _, d := range docs {
		if ns := value.Lookup(d, "_id"); ns.T == value.String && ctx.Err() == nil {
			_, _ = r.Catalog.Collection(ctx, ns.Str())
		}
	}
}
