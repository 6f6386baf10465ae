package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/settings"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ensureSystem creates the system collections that a server has from the start.
func (n *Node) ensureSystem(ctx context.Context) error {
	ctx = storage.WithReserve(ctx)
	make := func(ns string, docs ...[]byte) error {
		if n.Engine.Catalog().Lookup(ns) != nil {
			return nil
		}
		u := n.Engine.NewUnitOfWork(nil)
		defer u.Rollback()
		c, err := u.CreateCollection(storage.CollectionSpec{NS: ns, Unreplicated: catalog.Unreplicated(ns)})
		if err != nil {
			return err
		}
		for _, d := range docs {
			if _, err := u.Insert(c, d, storage.NoInfo); err != nil {
				return err
			}
		}
		_, err = n.Set.Commit(ctx, u, replication.Visible)
		if mongoerr.CodeOf(err) == mongoerr.NamespaceExists {
			return nil
		}
		return err
	}
	version := value.Doc(value.F("_id", value.NewString("featureCompatibilityVersion")), value.F("version", value.NewString(settings.FeatureVersion)))
	if err := make("admin.system.version", version); err != nil {
		return err
	}
	for _, coll := range []string{"transactions", "image_collection", "system.indexBuilds"} {
		if err := make("config." + coll); err != nil {
			return err
		}
	}
	return nil
}
