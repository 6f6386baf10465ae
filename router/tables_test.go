package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// stored counts a shard's documents in one of the collections that store its routing tables.
func (c *testCluster) stored(shard, coll string) int {
	c.t.Helper()
	m := c.admin(c.shards[shard], bson.D{{Key: "count", Value: "cache." + coll}, {Key: "query", Value: bson.D{}}, {Key: "$db", Value: "config"}})
	return int(m["n"].(int32))
}

// storedAs compares the chunks that a shard has stored with those of the config server, which has them under another name.
func (c *testCluster) storedAs(shard, ns string) bool {
	c.t.Helper()
	find := func(db string, f bson.D) string {
		batch := get(c.admin(c.shards[shard], append(f, bson.E{Key: "$db", Value: db}))["cursor"], "firstBatch").(bson.A)
		out := ""
		for _, d := range batch {
			out += fmt.Sprintln(get(d, "_id"), get(d, "max"), get(d, "shard"), get(d, "lastmod"))
		}
		return out
	}
	entry := c.admin(c.confP, bson.D{{Key: "find", Value: "collections"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: ns}}}, {Key: "$db", Value: "config"}})
	first := get(entry["cursor"], "firstBatch").(bson.A)
	if len(first) == 0 {
		return c.stored(shard, "collections") == 0
	}
	chunks := c.admin(c.confP, bson.D{{Key: "find", Value: "chunks"}, {Key: "filter", Value: bson.D{{Key: "uuid", Value: get(first[0], "uuid")}}},
		{Key: "sort", Value: bson.D{{Key: "min", Value: 1}}}, {Key: "$db", Value: "config"}})
	want := ""
	for _, d := range get(chunks["cursor"], "firstBatch").(bson.A) {
		want += fmt.Sprintln(get(d, "min"), get(d, "max"), get(d, "shard"), get(d, "lastmod"))
	}
	return want == find("config", bson.D{{Key: "find", Value: "cache.chunks." + ns}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}})
}

// A shard keeps the routing tables that it has read, whatever changes them, and drops them with their collections.
func TestShardsKeepRoutingTables(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	follows := func(what, ns string) {
		t.Helper()
		c.until("shards have stored "+ns+" after "+what, func() bool { return c.storedAs("shard0", ns) && c.storedAs("shard1", ns) })
	}
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	for i := range 6 {
		c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"k": %d}}`, i*10))
	}
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 50}, "to": "shard1"}`)
	touch := func(coll string) { // shards learn of changes from the versions of the commands that they receive
		c.run("db", fmt.Sprintf(`{"delete": %q, "deletes": [{"q": {}, "limit": 0}]}`, coll))
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"k": 1}, {"k": 51}]}`, coll))
	}
	touch("c")
	follows("a move", "db.c")
	c.run("admin", `{"mergeChunks": "db.c", "bounds": [{"k": 10}, {"k": 40}]}`)
	c.run("admin", `{"moveRange": "db.c", "min": {"k": 0}, "toShard": "shard1"}`)
	touch("c")
	follows("a merge", "db.c")
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "m": 1}, "name": "km"}]}`)
	c.run("admin", `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "m": 1}}`)
	touch("c")
	for _, shard := range []string{"shard0", "shard1"} { // allowing migrations again has changed one chunk's minor version, of which a command tells none or one shard
		c.admin(c.shards[shard], bson.D{{Key: "_flushRoutingTableCacheUpdates", Value: "db.c"}, {Key: "$db", Value: "admin"}})
	}
	follows("a refined key", "db.c")
	c.run("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
	touch("d")
	follows("a rename", "db.d")
	for _, shard := range []string{"shard0", "shard1"} {
		c.until("only one collection is stored", func() bool { return c.stored(shard, "collections") == 1 && c.stored(shard, "chunks.db.c") == 0 })
		c.until("the database is stored", func() bool { return c.stored("shard0", "databases") == 1 })
	}
	c.run("db", `{"drop": "d"}`)
	for _, shard := range []string{"shard0", "shard1"} {
		c.until("nothing is left of the collection", func() bool { return c.stored(shard, "collections") == 0 && c.stored(shard, "chunks.db.d") == 0 })
	}
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	touch("c")
	follows("it was created again", "db.c")
	c.run("db", `{"dropDatabase": 1}`)
	c.until("nothing is left of the database", func() bool {
		return c.stored("shard0", "collections")+c.stored("shard1", "collections")+c.stored("shard0", "databases") == 0
	})
}

// A new primary begins with the stored tables, and catches up with the config server.
func TestStoredRoutingTablesSurviveARestart(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(40)
	c.until("both have stored it", func() bool { return c.storedAs("shard0", "db.c") && c.storedAs("shard1", "db.c") })
	c.restart("shard0")
	c.run("admin", `{"moveRange": "db.c", "min": {"k": 20}, "toShard": "shard0"}`)
	c.restart("shard1")
	c.expect(len(c.all("db", `{"find": "c"}`)), `40`)
	for _, cmd := range []string{"_flushRoutingTableCacheUpdates", "_flushRoutingTableCacheUpdatesWithWriteConcern"} {
		c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"k": %d}}`, len(cmd)-20))
		for _, s := range []string{"shard0", "shard1"} {
			c.admin(c.shards[s], bson.D{{Key: cmd, Value: "db.c"}, {Key: "$db", Value: "admin"}})
			if !c.storedAs(s, "db.c") {
				t.Errorf("%s on %s: the table that is stored is not the config server's", cmd, s)
			}
		}
	}
}
