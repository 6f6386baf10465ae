package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/coordinator"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/settings"
	"github.com/shoaldb/shoal/storage/catalog"
)

// drainPause and longestDrainPause are the intervals at which drainUsers looks whether what it waits for has ended.
const drainPause, longestDrainPause = 5 * time.Millisecond, 200 * time.Millisecond

// drainUsers makes the index builds of users' databases fail with an error, and waits for their end and, on a shard, that of the DDL that has begun (settings.Config.Drain). Both go on together:
// an operation may be about to begin a build.
func drainUsers(ctx context.Context, n *Node, why error) error {
	var begun *coordinator.Begun
	if d := n.admin.coordinators.Load(); d != nil {
		begun = d.Begun(settings.OfUsers)
	}
	for pause := drainPause; ; pause = min(2*pause, longestDrainPause) {
		ddl, err := begun.Left(why)
		if err != nil {
			return err
		}
		if err := n.notPrimary(); err != nil { // the builds that it sees are another one's
			return err
		}
		builds, err := n.Engine.StopBuilds(ctx, func(ns string) bool { return settings.OfUsers(catalog.DBOf(ns)) }, why)
		if err != nil {
			return err
		}
		if !ddl && !builds {
			return begun.Ended(ctx)
		}
		if err := cluster.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// clusterOf returns the cluster of which a node is a shard (settings.Config.Cluster).
func clusterOf(n *Node) settings.Cluster {
	if s := n.shard.State(); s != nil && !n.ConfigServer {
		return ofCluster{s}
	}
	return nil
}

type ofCluster struct{ *migration.ShardState }

func (c ofCluster) Decided(ctx context.Context, f cluster.Find) ([][]byte, error) {
	return cluster.FindLinearizable(ctx, c.Registry.Config(), f)
}

func (c ofCluster) Lists(ctx context.Context) (bool, error) {
	docs, err := c.Decided(ctx, cluster.Find{NS: "config.shards", Filter: value.Doc(value.F("_id", value.NewString(c.ID)))})
	return len(docs) > 0, err
}
