package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// rangeTasks lists the range deletions of a shard: how many documents are in each range, and where it begins.
func (c *testCluster) rangeTasks(shard string) string {
	c.t.Helper()
	m := c.admin(c.shards[shard], bson.D{{Key: "find", Value: "rangeDeletions"}, {Key: "sort", Value: bson.D{{Key: "range.min", Value: 1}}}, {Key: "$db", Value: "config"}})
	out := ""
	for _, d := range get(m["cursor"], "firstBatch").(bson.A) {
		out += fmt.Sprintf("[%v, %v) %v %v; ", get(get(get(d, "range"), "min"), "_id"), get(get(get(d, "range"), "max"), "_id"), get(d, "numOrphanDocs"), get(d, "whenToClean"))
	}
	return out
}

// Orphans without a range deletion get one, and are deleted; a range that has one gets no other. The command was missing.
func TestRecreateRangeDeletionTasks(t *testing.T) {
	c := newTestCluster(t, 3)
	c.sharded("c", 40)
	for shard := range c.shards {
		c.param(shard, "disableResumableRangeDeleter", true)
	}
	c.run("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`)
	forget := func(shard string) {
		c.admin(c.shards[shard], bson.D{{Key: "delete", Value: "rangeDeletions"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}, {Key: "$db", Value: "config"}})
	}
	forget("shard0")
	if got := c.rangeTasks("shard0"); got != "" {
		t.Fatalf("%s are left", got)
	}
	const max, min = "{}", "{}"
	want := map[string]string{"shard0": "[20, " + max + ") 20 delayed; ", "shard1": "[" + min + ", 20) 0 delayed; ", "shard2": ""}
	for range 2 { // the second time there is nothing to make
		c.run("admin", `{"recreateRangeDeletionTasks": "db.c"}`)
		for shard, tasks := range want {
			if got := c.rangeTasks(shard); got != tasks {
				t.Errorf("%s: %s, want %s", shard, got, tasks)
			}
		}
	}
	forget("shard0")
	forget("shard1")
	c.run("admin", `{"recreateRangeDeletionTasks": "db.c", "skipEmptyRanges": true}`)
	if got := c.rangeTasks("shard1"); got != "" {
		t.Errorf("an empty range has a deletion: %s", got)
	}
	for shard := range c.shards {
		c.param(shard, "orphanCleanupDelaySecs", 0)
		c.param(shard, "disableResumableRangeDeleter", false)
	}
	c.until("the orphans are deleted", func() bool { return c.onShard("shard0", "c") == 20 && c.rangeTasks("shard0") == "" })
	c.expect(len(c.all("db", `{"find": "c"}`)), `40`)
	for _, bad := range []string{`{"recreateRangeDeletionTasks": "db.none"}`, `{"recreateRangeDeletionTasks": "db"}`} {
		if m := c.raw("admin", bad); m["ok"] == 1.0 {
			t.Errorf("%s: %v", bad, m)
		}
	}
}

// While a migration to a shard is under way its range is not the shard's yet: a deletion made of it would take what is cloned.
func TestRecreateTasksWaitsForMigrations(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	for shard := range c.shards {
		c.param(shard, "orphanCleanupDelaySecs", 0)
	}
	reached := c.point("shard0", "moveChunkHangAtStep4", true)
	moved := make(chan bson.M, 1)
	go func() { moved <- c.raw("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`) }()
	reached()
	stored := c.admin(c.shards["shard0"], bson.D{{Key: "find", Value: "migrationCoordinators"}, {Key: "$db", Value: "config"}})
	doc := get(stored["cursor"], "firstBatch").(bson.A)[0]
	if get(get(doc, "lsid"), "id") == nil || get(doc, "txnNumber") != int64(0) {
		t.Errorf("the coordinator document has no session: %v", doc)
	}
	if ops := c.admin(c.shards["shard1"], bson.D{{Key: "currentOp", Value: 1}, {Key: "desc", Value: "MigrationDestination"}, {Key: "$db", Value: "admin"}}); len(ops["inprog"].(bson.A)) != 1 {
		t.Errorf("currentOp does not show the migration: %v", ops)
	}
	if m := c.raw("admin", `{"recreateRangeDeletionTasks": "db.c", "maxTimeMS": 300}`); m["ok"] == 1.0 {
		t.Errorf("beside a migration: %v", m)
	}
	c.point("shard0", "moveChunkHangAtStep4", false)
	if m := <-moved; m["ok"] != 1.0 {
		t.Errorf("%v", m)
	}
	c.run("admin", `{"recreateRangeDeletionTasks": "db.c"}`)
	c.until("the orphans are deleted", func() bool { return c.onShard("shard0", "c") == 20 })
	c.expect(len(c.all("db", `{"find": "c"}`)), `40`)
	c.expect(c.onShard("shard1", "c"), `20`)
}

// currentOp shows a range that is being deleted, and how much of it is left.
func TestRangeDeletionInCurrentOp(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.param("shard0", "orphanCleanupDelaySecs", 0)
	c.param("shard0", "rangeDeleterBatchSize", 6)
	c.param("shard0", "rangeDeleterBatchDelayMS", 3_600_000)
	c.run("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`)
	await.State(t, "the range is shown", func() (any, bool) {
		ops := c.admin(c.shards["shard0"], bson.D{{Key: "currentOp", Value: 1}, {Key: "desc", Value: "RangeDeleter"}, {Key: "$db", Value: "admin"}})["inprog"].(bson.A)
		return ops, len(ops) == 1 && get(ops[0], "ns") == "db.c" && get(get(ops[0], "command"), "numOrphanDocs") == int64(14)
	})
}

// A chunk that grows is split while clients write only with {_id: "autosplit", enabled: true}; the last one, in which they insert, moves to another
// shard.
func TestAutoSplit(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.smallChunks()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
	next := int64(0)
	write := c.ascending("c", &next)
	write(3000)
	if n := c.chunks(); n != 1 {
		t.Fatalf("%d chunks without auto-split", n)
	}
	c.run("config", `{"update": "settings", "updates": [{"q": {"_id": "autosplit"}, "u": {"_id": "autosplit", "enabled": true}, "upsert": true}]}`)
	await.State(t, "the chunk is split, and its end moves", func() (string, bool) {
		write(100)
		_, parts := c.parts("c")
		return fmt.Sprint(c.chunkList("c"), parts), c.chunks() > 4 && parts[1] > 0
	})
	for range 20 {
		write(250)
	}
	c.until("all chunks are small", func() bool {
		write(50)
		return c.chunks() > int(next/1100) // of 1,048 documents at most, but for what is written meanwhile
	})
	c.expect(len(c.all("db", `{"aggregate": "c", "pipeline": [{"$group": {"_id": "$_id"}}], "cursor": {}}`)), fmt.Sprint(next))
	if bad := c.inconsistent("admin", `{"checkMetadataConsistency": 1}`); bad != "" {
		t.Errorf("inconsistent: %s", bad)
	}
}

// With the fail point balancerShouldReturnRandomMigrations chunks move although they are balanced, within their zones.
func TestRandomMigrations(t *testing.T) {
	c := newTestCluster(t, 3)
	c.sharded("c", 40)
	for _, i := range []int{1, 3, 5} {
		c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"_id": %d}}`, i*7))
	}
	if n, err := c.config.BalancerRound(t.Context()); err != nil || n != 0 {
		t.Fatalf("%d moves of a balanced collection, %v", n, err)
	}
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	c.run("admin", `{"addShardToZone": "shard1", "zone": "z"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"_id": {"$minKey": 1}}, "max": {"_id": {"$maxKey": 1}}, "zone": "z"}`)
	c.config.Points = cluster.NewFailPoints()
	if _, err := c.config.Points.Configure("balancerShouldReturnRandomMigrations", value.NewString("alwaysOn"), nil); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for range 4 {
		n, err := c.config.BalancerRound(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		moved += n
	}
	total, parts := c.parts("c")
	if moved < 2 || total != 40 || parts[2] != 0 {
		t.Errorf("%d moves, %v documents of 40", moved, parts)
	}
}

// _flushDatabaseCacheUpdates and its durable form bring what a shard has stored of a database up to date.
func TestFlushOfADatabase(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(10)
	c.until("it is stored", func() bool { return c.stored("shard0", "databases") == 1 })
	for _, cmd := range []string{"_flushDatabaseCacheUpdates", "_flushDatabaseCacheUpdatesWithWriteConcern"} {
		c.admin(c.shards["shard0"], bson.D{{Key: "update", Value: "cache.databases"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "primary", Value: "nobody"}}}}}}}}, {Key: "$db", Value: "config"}})
		c.admin(c.shards["shard0"], bson.D{{Key: cmd, Value: "db"}, {Key: "$db", Value: "admin"}})
		c.until(cmd+" has stored the database again", func() bool {
			m := c.admin(c.shards["shard0"], bson.D{{Key: "find", Value: "cache.databases"}, {Key: "$db", Value: "config"}})
			batch := get(m["cursor"], "firstBatch").(bson.A)
			return len(batch) == 1 && get(batch[0], "primary") == "shard0"
		})
	}
}

// A chunk whose bounds do not fit in a document together is not created: it could not be read, not even to drop the collection.
func TestBoundsOfAChunkFitInADocument(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	split := func(at string) bson.M {
		return decode(t, c.do("admin", bson.D{{Key: "split", Value: "db.c"}, {Key: "middle", Value: bson.D{{Key: "k", Value: strings.Repeat(at, 9<<20)}}}}))
	}
	if m := split("c"); m["ok"] != 1.0 {
		t.Fatalf("one large bound: %v", m["errmsg"])
	}
	if m := split("d"); m["code"] != int32(mongoerr.BSONObjectTooLarge) {
		t.Errorf("two large bounds: %v %v", m["code"], m["errmsg"])
	}
	c.expect(len(c.all("db", `{"find": "c"}`)), `0`)
	c.run("db", `{"drop": "c"}`)
}

// A range whose bounds do not fit into one document is not moved: the donor used to write a document of the migration that could not be read again.
func TestBoundsOfAMoveFitInADocument(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"configureCollectionBalancing": "db.c", "chunkSize": 1}`)
	for _, k := range []string{"c", "d", "e"} {
		c.cmd("db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: strings.Repeat(k, 9<<20)}}}}})
	}
	m := decode(t, c.do("admin", bson.D{{Key: "moveRange", Value: "db.c"}, {Key: "min", Value: bson.D{{Key: "k", Value: strings.Repeat("c", 9<<20)}}}, {Key: "toShard", Value: "shard1"}}))
	if m["code"] != int32(mongoerr.BSONObjectTooLarge) {
		t.Errorf("a range with two large bounds: %v %v", m["code"], m["errmsg"])
	}
	if m := c.admin(c.shards["shard0"], bson.D{{Key: "find", Value: "migrationCoordinators"}, {Key: "$db", Value: "config"}}); len(get(m["cursor"], "firstBatch").(bson.A)) > 0 {
		t.Errorf("a document of the migration was written")
	}
	c.run("admin", `{"moveRange": "db.c", "min": {"k": {"$minKey": 1}}, "max": {"k": {"$maxKey": 1}}, "toShard": "shard1", "forceJumbo": true}`)
}
