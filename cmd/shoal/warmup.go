package main

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/router"
)

// tablesWait limits how long a starting router spends reading routing tables before it accepts connections.
const tablesWait = 10 * time.Second

// warmUp makes a starting router read the routing tables (loadRoutingTableOnStartup) and connect to the shards
// (warmMinConnectionsInShardingTaskExecutorPoolOnStartup), so that its first clients need not wait for that. What fails is tried again by
// the first request that needs it.
func warmUp(r *router.Router, d *directory) {
	p := r.Params
	if p.Bool("loadRoutingTableOnStartup") {
		ctx, cancel := context.WithTimeout(context.Background(), tablesWait)
		defer cancel()
		r.LoadTables(ctx)
	}
	if !p.Bool("warmMinConnectionsInShardingTaskExecutorPoolOnStartup") {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(p.Int("warmMinConnectionsInShardingTaskExecutorPoolOnStartupWaitMS"))*time.Millisecond)
	defer cancel()
	shards, err := r.Registry.All(ctx)
	if err != nil {
		return
	}
	var hosts []string
	for _, s := range shards {
		for _, h := range s.Hosts {
			if !d.Local(h) {
				hosts = append(hosts, h)
			}
		}
	}
	d.Pool.Warm(ctx, hosts)
}
