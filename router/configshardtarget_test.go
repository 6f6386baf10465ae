package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// notPlaced are commands that would give the config server data.
var notPlaced = []string{
	`{"moveCollection": "db.plain", "toShard": "config"}`, `{"unshardCollection": "db.c", "toShard": "config"}`,
	`{"moveChunk": "db.c", "find": {"k": 1}, "to": "config"}`, `{"moveRange": "db.c", "min": {"k": {"$minKey": 1}}, "toShard": "config"}`,
	`{"movePrimary": "db", "to": "config"}`, `{"enableSharding": "other", "primaryShard": "config"}`,
}

// A dedicated config server is not a shard: no data can be placed on it, whether it never was a shard or has ceased to be one.
func TestDedicatedConfigServerTakesNoData(t *testing.T) {
	c := newTestCluster(t, 2)
	withConfigShard(c)
	c.reshardings()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.insertKeys("c", 1, 10)
	c.insertKeys("plain", 2, 10)
	refused := func(when string, code mongoerr.Code) {
		t.Helper()
		for _, cmd := range notPlaced {
			if m := c.raw("admin", cmd[:len(cmd)-1]+`, "maxTimeMS": 100000}`); m["code"] != int32(code) {
				t.Errorf("%s: %s: %v", when, cmd, m)
			}
		}
		c.expect(c.all("config", `{"find": "databases", "projection": {"primary": 1}}`), `[{"_id":"db","primary":"shard0"}]`)
		c.expect(c.all("config", `{"find": "chunks", "filter": {"shard": "config"}}`), `[]`)
	}
	other := c.through()
	refused("never a shard", mongoerr.ShardNotFound)
	c.run("admin", `{"transitionFromDedicatedConfigServer": 1}`)
	c.run("admin", `{"moveCollection": "db.plain", "toShard": "config"}`)
	other.expect(other.counted("plain", 2), `10`)
	c.run("admin", `{"moveCollection": "db.plain", "toShard": "shard1"}`)

	m := c.run("admin", `{"transitionToDedicatedConfigServer": 1}`)
	c.expect(m["state"], `"started"`)
	if m := c.raw("admin", `{"enableSharding": "other", "primaryShard": "config"}`); m["code"] != int32(mongoerr.ShardNotFound) {
		t.Errorf("a database on a draining shard: %v", m)
	}
	c.until("the config server is a dedicated one", func() bool {
		return c.run("admin", `{"transitionToDedicatedConfigServer": 1}`)["state"] == "completed"
	})
	refused("no shard any more", mongoerr.ShardNotFound)
	for _, cmd := range notPlaced { // a router whose placement is older
		if m := other.raw("admin", cmd); m["code"] != int32(mongoerr.ShardNotFound) {
			t.Errorf("through a stale router: %s: %v", cmd, m)
		}
	}
	c.expect(c.all("config", `{"find": "reshardingOperations"}`), `[]`)
	c.expect(c.counted("c", 1), `10`)
	c.expect(c.counted("plain", 2), `10`)
	if m := c.run("admin", `{"listShards": 1}`); len(m["shards"].(bson.A)) != 2 {
		t.Errorf("shards: %v", m)
	}
}
