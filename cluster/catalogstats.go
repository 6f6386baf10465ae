package cluster

import (
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// catalogStats counts the refreshes of a routing cache.
type catalogStats struct {
	stale       atomic.Int64 // answers that a placement was out of date
	waited      atomic.Int64 // microseconds that operations waited for refreshes
	failed      atomic.Int64
	full        refreshes // without an earlier table
	incremental refreshes
}

type refreshes struct{ active, started atomic.Int64 }

// refresh counts a refresh that begins; end counts its outcome.
func (s *catalogStats) refresh(incremental bool) (end func(err error)) {
	kind := &s.full
	if incremental {
		kind = &s.incremental
	}
	kind.active.Add(1)
	kind.started.Add(1)
	return func(err error) {
		kind.active.Add(-1)
		if err != nil {
			s.failed.Add(1)
		}
	}
}

// wait counts the time until end is called.
func (s *catalogStats) wait() (end func()) {
	began := time.Now()
	return func() { s.waited.Add(time.Since(began).Microseconds()) }
}

// Stats returns shardingStatistics.catalogCache of serverStatus.
func (c *Catalog) Stats() []byte {
	i64 := func(name string, v int64) value.Field { return value.F(name, value.NewInt64(v)) }
	s := &c.stats
	return value.Doc(i64("numDatabaseEntries", c.dbs.len()), i64("numCollectionEntries", c.colls.len()), i64("countStaleConfigErrors", s.stale.Load()),
		i64("totalRefreshWaitTimeMicros", s.waited.Load()), i64("numActiveIncrementalRefreshes", s.incremental.active.Load()),
		i64("countIncrementalRefreshesStarted", s.incremental.started.Load()), i64("numActiveFullRefreshes", s.full.active.Load()),
		i64("countFullRefreshesStarted", s.full.started.Load()), i64("countFailedRefreshes", s.failed.Load()))
}
