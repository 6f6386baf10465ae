package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
)

// clusterParamsRefresh is how often a shard's primary asks for the cluster's parameters, as often as routers do.
const clusterParamsRefresh = 30 * time.Second

// clusterParams keeps a shard's cluster parameters up to date: one that was away when a parameter was set learns of it from here.
type clusterParams struct {
	n      *Node
	config cluster.Peer
}

func (c clusterParams) service() replication.Service {
	return replication.Service{Name: "ClusterServerParameters", Run: func(ctx context.Context, _ int64) {
		for ctx.Err() == nil {
			_ = c.refresh(ctx) // what the shard has remains in effect
			select {
			case <-time.After(clusterParamsRefresh):
			case <-ctx.Done():
			}
		}
	}}
}

// refresh stores what the config server has.
func (c clusterParams) refresh(ctx context.Context) error {
	reply, err := cluster.Run(ctx, c.config, msg.Doc(&msg.GetClusterParameter{Name: "*"}))
	if err != nil {
		return err
	}
	var all [][]byte
	for _, v := range value.Values(value.Lookup(reply, "clusterParameters").Doc()) {
		all = append(all, v.Doc())
	}
	return c.n.settings.Adopt(ctx, all...)
}
