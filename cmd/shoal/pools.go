package main

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/sdam"
	"github.com/shoaldb/shoal/wire"
)

// poolLimits returns the limits of connections to a host by the server parameters. isConfig reports whether it is a config server.
func poolLimits(p *cluster.Params, isConfig func(host string) bool) func(host string) wire.PoolLimits {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	return func(host string) wire.PoolLimits {
		l := wire.PoolLimits{
			Min: int(p.Int("ShardingTaskExecutorPoolMinSize")), Max: int(p.Int("ShardingTaskExecutorPoolMaxSize")),
			Connecting: int(p.Int("ShardingTaskExecutorPoolMaxConnecting")), HostTimeout: ms(p.Int("ShardingTaskExecutorPoolHostTimeoutMS")),
			Rest: ms(p.Int("ShardingTaskExecutorPoolRefreshRequirementMS")), Setup: ms(p.Int("ShardingTaskExecutorPoolRefreshTimeoutMS")),
		}
		least, most := p.Int("ShardingTaskExecutorPoolMinSizeForConfigServers"), p.Int("ShardingTaskExecutorPoolMaxSizeForConfigServers")
		if (least >= 0 || most >= 0) && isConfig(host) {
			if least >= 0 {
				l.Min = int(least)
			}
			if most >= 0 {
				l.Max = int(most)
			}
		}
		// A host that is kept for a shorter time than its connections rest would lose those that the minimum asks for.
		l.HostTimeout = max(l.HostTimeout, l.Rest+l.Setup)
		return l
	}
}

// matching returns how connections to secondaries follow the primary's: of routers by default, and not of members, of which many may
// begin to call each other at the same moment.
func matching(p *cluster.Params, on program) func() sdam.Matching {
	return func() sdam.Matching {
		how := sdam.Matching(p.Get("ShardingTaskExecutorPoolReplicaSetMatching").Value().Str())
		switch {
		case how != "automatic":
			return how
		case on == isMongos:
			return sdam.MatchPrimary
		}
		return sdam.MatchNothing
	}
}
