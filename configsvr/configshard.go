package configsvr

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A config shard is a config server that is a shard, too: its members also run a shard's services, on the same store. Its id is "config",
// and it is a shard as long as config.shards has an entry of that name. When the entry is removed, the identity and the services remain:
// without an entry nothing is placed there.

// becomeConfigShard makes this config server a shard. It may be repeated: the identity is stored before the entry, and the
// entry completes the transition.
func (m *Manager) becomeConfigShard(ctx context.Context) error {
	if err := m.registry.Reload(ctx); err != nil {
		return err
	}
	if s, err := m.registry.Shard(ctx, cluster.ConfigShardID); err != nil || s.Doc != nil {
		return err
	}
	hello, err := cluster.Run(ctx, m.local, helloCommand)
	if err != nil {
		return err
	}
	shard := &newShard{id: cluster.ConfigShardID, conn: m.host(), version: configVersion(hello), peer: m.local}
	return m.inSteps(ctx, "transitionFromDedicatedConfigServer",
		step{"checkDatabases", func() error { return m.checkNewDatabases(ctx, shard) }},
		step{"join", func() error {
			join := &msg.Join{Shard: cluster.ConfigShardID, ClusterID: m.clusterID, ConfigDB: m.host()} // it has the cluster parameters
			_, err := cluster.Run(ctx, m.local, msg.Doc(join))
			return err
		}},
		step{"commit", func() error { return m.listShard(ctx, shard) }},
	)
}

// pendingDeletions returns the reply to the removal of a config shard that still has to delete ranges, whose documents queries may
// read; nil if there are none.
func (m *Manager) pendingDeletions(ctx context.Context) ([]value.Field, error) {
	pending, err := m.find(ctx, "rangeDeletions", doc())
	if err != nil || len(pending) == 0 {
		return nil, err
	}
	return []value.Field{
		fld("msg", str("waiting for data to be cleaned up")), fld("state", str("pendingDataCleanup")),
		fld("pendingRangeDeletions", value.NewInt64(int64(len(pending)))),
	}, nil
}

// forgetConfigShard is forgetShard for a drained config shard. It drops what remains on the node, so that it can be made a shard again: the
// empty collections that migrations leave behind.
//
// Nothing may be placed there between the last check of the catalog and the end, since it would be dropped: the shard's lock must be held.
func (m *Manager) forgetConfigShard(ctx context.Context, id string) error {
	reply, err := cluster.Run(ctx, m.local, msg.Doc(&msg.ListDatabases{NameOnly: true}))
	if err != nil {
		return err
	}
	for _, d := range value.Values(value.Lookup(reply, "databases").Doc()) {
		name := value.Lookup(d.Doc(), "name").Str()
		if cluster.FixedDatabase(name) || name == "local" {
			continue
		}
		colls, err := cluster.FindAll(ctx, m.local, name, msg.Doc(&msg.ListCollections{DB: name}))
		if err != nil {
			return err
		}
		for _, c := range colls {
			if err := m.dropLocally(ctx, name+"."+value.Lookup(c, "name").Str()); err != nil {
				return err
			}
		}
	}
	if err := m.dropLocally(ctx, cluster.SessionsNS); err != nil {
		return err
	}
	return m.inSteps(ctx, removalOf(id), step{"removeEntry", func() error { return m.forgetShard(ctx, id) }})
}

// dropLocally drops this node's part of a collection. Change streams get no event, since the collection, if it still exists, is on other
// shards.
func (m *Manager) dropLocally(ctx context.Context, ns string) error {
	_, err := cluster.Run(ctx, m.local, msg.Doc(&msg.DropCollectionParticipant{NS: ns, FromMigrate: true}))
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		return nil
	}
	return err
}
