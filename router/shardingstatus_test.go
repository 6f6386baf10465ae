package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
)

// shardingStatistics returns the counters of that section of a shard's serverStatus, or of the router's if p is nil.
func (c *testCluster) shardingStatistics(p cluster.Peer) func(path string) int64 {
	c.t.Helper()
	var status bson.M
	if p == nil {
		status = bson.M{"shardingStatistics": c.section("shardingStatistics")}
	} else {
		status = c.admin(p, bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
	}
	return func(path string) int64 {
		c.t.Helper()
		switch n := fieldAt(status, "shardingStatistics."+path).(type) {
		case int32:
			return int64(n)
		case int64:
			return n
		}
		c.t.Errorf("shardingStatistics.%s is missing", path)
		return -1
	}
}

// shardingStatistics counts the work of shards and routers for a migration that succeeds and one that is refused.
func TestShardingStatisticsOfMigrations(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "d.c", "middle": {"_id": 0}}`)
	for i := range 30 {
		c.run("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d}]}`, i-10))
	}
	other := c.through()
	other.run("d", readC)
	c.run("admin", `{"moveChunk": "d.c", "find": {"_id": 5}, "to": "shard1", "_waitForDelete": true}`)
	other.run("d", readC)
	donor, recipient := c.shardingStatistics(c.shards["shard0"]), c.shardingStatistics(c.shards["shard1"])
	stale := c.through()
	for what, got := range map[string]struct{ is, want int64 }{
		"started":          {donor("countDonorMoveChunkStarted"), 1},
		"committed":        {donor("countDonorMoveChunkCommitted"), 1},
		"aborted":          {donor("countDonorMoveChunkAborted"), 0},
		"sent":             {donor("countDocsClonedOnDonor"), 20},
		"deleted":          {donor("countDocsDeletedByRangeDeleter"), 20},
		"bytes deleted":    {donor("countBytesDeletedByRangeDeleter"), 20 * 14},
		"left to delete":   {donor("rangeDeleterTasks"), 0},
		"received":         {recipient("countRecipientMoveChunkStarted"), 1},
		"cloned":           {recipient("countDocsClonedOnRecipient"), 20},
		"bytes cloned":     {recipient("countBytesClonedOnRecipient"), 20 * 14},
		"donated":          {recipient("countDonorMoveChunkStarted"), 0},
		"nothing is known": {stale.shardingStatistics(nil)("catalogCache.countFullRefreshesStarted"), 0},
	} {
		if got.is != got.want {
			t.Errorf("%s: %d, want %d", what, got.is, got.want)
		}
	}
	if donor("countStaleConfigErrors")+recipient("countStaleConfigErrors") == 0 {
		t.Error("no StaleConfig was counted, though a router was behind")
	}
	cache := other.shardingStatistics(nil)
	for _, name := range []string{"numCollectionEntries", "numDatabaseEntries", "countStaleConfigErrors", "countFullRefreshesStarted", "countIncrementalRefreshesStarted"} {
		if n := cache("catalogCache." + name); n == 0 {
			t.Errorf("catalogCache.%s is 0", name)
		}
	}
	for _, name := range []string{"numActiveFullRefreshes", "numActiveIncrementalRefreshes", "countFailedRefreshes"} {
		if n := cache("catalogCache." + name); n != 0 {
			t.Errorf("catalogCache.%s is %d", name, n)
		}
	}
	c.run("config", `{"update": "settings", "updates": [{"q": {"_id": "chunksize"}, "u": {"$set": {"value": 1}}, "upsert": true}]}`)
	for i := range 4 {
		c.run("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "s": %q}]}`, 100+i, strings.Repeat("x", 1<<20)))
	}
	if m := c.raw("admin", `{"moveChunk": "d.c", "find": {"_id": 5}, "to": "shard0"}`); m["ok"] == 1.0 {
		t.Fatal("a chunk of 4 MB was moved")
	}
	refused := c.shardingStatistics(c.shards["shard1"])
	if s, n, a := refused("countDonorMoveChunkStarted"), refused("countDonorMoveChunkCommitted"), refused("countDonorMoveChunkAborted"); s != 1 || n != 0 || a != 1 {
		t.Errorf("after a refused migration: %d started, %d committed, %d aborted", s, n, a)
	}
}

// The router of a process's chaos has no address and is not in config.mongos: sh.status showed one router more than there are.
func TestRouterWithoutAnAddressIsNotRegistered(t *testing.T) {
	c := newTestCluster(t, 1)
	for _, x := range []struct{ host, want string }{{"", `[]`}, {"router:27017", `[{"_id":"router:27017"}]`}} {
		c.router.Host = x.host
		if err := c.r.Heartbeat(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.expect(c.all("config", `{"find": "mongos", "projection": {"_id": 1}}`), x.want)
	}
}
