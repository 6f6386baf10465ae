package main

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/sdam"
	"github.com/shoaldb/shoal/wire"
)

// poolLimits returns the limits that the server parameters set for connections to a host. isConfig reports whether a host is a config server.
func poolLimits(p *cluster.Params, isConfig func(host string) bool) func(host string) wire.PoolLimits {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	return func(host string) wire.PoolLimits {
		l := wire.PoolLimits{
			Min: int(p.Int("ShardingTaskExecutorPoolMinSize")), Max: int(p.Int("ShardingTaskExecutorPoolMaxSize")),
			Connecting: int(p.Int("ShardingTaskExecutorPoolMaxConnecting")), HostTimeout: ms(p.Int("ShardingTaskExecutorPoolHostTimeoutMS")),
			Refresh: ms(p.Int("ShardingTaskExecutorPoolRefreshRequirementMS")), Setup: ms(p.Int("ShardingTaskExecutorPoolRefreshTimeoutMS")),
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
		// If a host were dropped before its idle connections are due for a refresh, the minimum could not be kept.
		l.HostTimeout = max(l.HostTimeout, l.Refresh+l.Setup)
		return l
	}
}

// matching returns whether the number of connections to secondaries follows that to the primary. By default it does on routers and
// not on members, many of which may connect to each other at the same moment.
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
