package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
)

// A shard that freezes when it is told of a split, a merge or the end of a jumbo mark holds up neither the settings of another
// collection nor, behind them, the commits of migrations.
func TestFrozenShardIsToldOfChanges(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	w := c.interposed("shard1")
	c.configThrough(func(_ string, to cluster.Peer) cluster.Peer { return to })
	for _, db := range []string{"db", "other"} {
		c.run("admin", `{"enableSharding": "`+db+`", "primaryShard": "`+map[string]string{"db": "shard1", "other": "shard0"}[db]+`"}`)
		c.run("admin", `{"shardCollection": "`+db+`.c", "key": {"k": 1}}`)
	}
	reached, release := w.held(c, "_flushRoutingTableCacheUpdates", 1, false)
	answer, other := make(chan bson.M, 1), c.through()
	go func() { answer <- c.raw("admin", `{"split": "db.c", "middle": {"k": 0}}`) }()
	reached()
	for _, cmd := range []string{
		`{"configureCollectionBalancing": "other.c", "chunkSize": 5, "maxTimeMS": 100000}`, `{"moveChunk": "other.c", "find": {"k": 0}, "to": "shard2", "maxTimeMS": 100000}`,
	} {
		if m := other.raw("admin", cmd); m["ok"] != 1.0 {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	release()
	if m := <-answer; m["ok"] != 1.0 {
		t.Error(m)
	}
}
