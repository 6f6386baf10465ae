package router_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// until waits for a condition that other goroutines make true.
func (c *testCluster) until(what string, is func() bool) {
	c.t.Helper()
	await.True(c.t, what, is)
}

func (c *testCluster) param(shard, name string, v any) {
	c.t.Helper()
	var val value.Value
	switch v := v.(type) {
	case int:
		val = value.NewInt32(int32(v))
	case bool:
		val = value.NewBool(v)
	}
	if _, err := c.params[shard].SetRuntime([]value.Field{value.F(name, val)}); err != nil {
		c.t.Fatal(err)
	}
}

// sharded creates db.name with n documents {_id, k} on shard0, in two chunks split at n/2.
func (c *testCluster) sharded(name string, n int) {
	c.t.Helper()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"_id": 1}}`, name))
	c.run("admin", fmt.Sprintf(`{"split": "db.%s", "middle": {"_id": %d}}`, name, n/2))
	docs := make([]string, n)
	for i := range docs {
		docs[i] = fmt.Sprintf(`{"_id": %d}`, i)
	}
	c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [%s]}`, name, strings.Join(docs, ",")))
}

func (c *testCluster) orphans(shard, coll string) int32 {
	return c.admin(c.shards[shard], bson.D{{Key: "collStats", Value: coll}, {Key: "$db", Value: "db"}})["numOrphanDocs"].(int32)
}

// A range that has moved away is kept for orphanCleanupDelaySecs, and for as long as a query that began before runs. It used
// to be deleted at once, and the parameter had no effect.
func TestRangeDeleterHeedsDelayAndReaders(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.sharded("other", 40)
	c.param("shard0", "orphanCleanupDelaySecs", 3600)
	cur := c.run("db", `{"find": "c", "batchSize": 3}`)["cursor"]
	c.run("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`)
	c.run("admin", `{"moveRange": "db.other", "min": {"_id": 20}, "toShard": "shard1", "waitForDelete": true}`)
	if n := c.onShard("shard0", "other"); n != 20 {
		t.Errorf("a deletion that is waited for left %d documents of 20", n)
	}
	c.run("db", `{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`)
	if n, orphans := c.onShard("shard0", "c"), c.orphans("shard0", "c"); n != 39 || orphans != 20 {
		t.Errorf("%d documents on the donor, %d of them orphans, before the delay is over", n, orphans)
	}
	c.expect(c.run("db", `{"count": "c"}`)["n"], `39`)
	c.param("shard0", "orphanCleanupDelaySecs", 0) // which makes the deleter check all of them
	c.run("admin", `{"moveRange": "db.other", "min": {"_id": {"$minKey": 1}}, "toShard": "shard1"}`)
	c.until("the other collection's range is deleted", func() bool { return c.onShard("shard0", "other") == 0 })
	if n := c.onShard("shard0", "c"); n != 39 {
		t.Errorf("%d documents on the donor while a cursor is open that began before the range left", n)
	}
	c.run("db", fmt.Sprintf(`{"killCursors": "c", "cursors": [{"$numberLong": "%d"}]}`, get(cur, "id")))
	c.until("the range is deleted", func() bool { return c.onShard("shard0", "c") == 19 && c.rangeDeletions("shard0") == 0 })
	if n := c.orphans("shard0", "c"); n != 0 {
		t.Errorf("%d orphans are left", n)
	}
}

// A range that waits for its deletion is deleted first when its documents come back.
func TestRangeComesBackBeforeItsDeletion(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.param("shard0", "orphanCleanupDelaySecs", 3600)
	c.run("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`)
	c.run("db", `{"delete": "c", "deletes": [{"q": {"_id": 30}, "limit": 1}]}`)
	c.run("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard0", "waitForDelete": true}`)
	if n, left := c.onShard("shard0", "c"), c.rangeDeletions("shard0"); n != 39 || left != 0 {
		t.Errorf("%d documents of 39, %d range deletions", n, left)
	}
	c.expect(len(c.all("db", `{"find": "c"}`)), `39`)
}

// A range that waits for its deletion is deleted even if its collection has been renamed meanwhile.
func TestRangeDeleterFollowsARename(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.param("shard0", "orphanCleanupDelaySecs", 3600)
	c.run("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`)
	c.run("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
	if n := c.orphans("shard0", "d"); n != 20 {
		t.Errorf("%d orphans of 20 are known", n)
	}
	c.param("shard0", "orphanCleanupDelaySecs", 0)
	c.until("the range is deleted", func() bool { return c.rangeDeletions("shard0") == 0 })
	if n := c.onShard("shard0", "d"); n != 20 {
		t.Errorf("%d documents are left on the donor", n)
	}
	c.expect(len(c.all("db", `{"find": "d"}`)), `40`)
}

// rangeDeleterBatchSize and rangeDeleterBatchDelayMS had no effect.
func TestRangeDeleterBatches(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.param("shard0", "rangeDeleterBatchSize", 6)
	c.param("shard0", "rangeDeleterBatchDelayMS", 3_600_000)
	c.run("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`)
	c.until("a batch is deleted", func() bool { return c.onShard("shard0", "c") == 34 })
	if n := c.orphans("shard0", "c"); n != 14 {
		t.Errorf("%d orphans between the first batch and the second", n)
	}
	if m := c.admin(c.shards["shard0"], bson.D{{Key: "count", Value: "rangeDeletions"}, {Key: "query", Value: bson.D{{Key: "processing", Value: true}}}, {Key: "$db", Value: "config"}}); m["n"] != int32(1) {
		t.Errorf("%v deletions are shown as processing, want one", m["n"])
	}
}

// disableResumableRangeDeleter had no effect.
func TestRangeDeleterCanBeDisabled(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.param("shard0", "disableResumableRangeDeleter", true)
	if m := c.raw("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1", "waitForDelete": true}`); m["code"] != int32(mongoerr.ResumableRangeDeleterDisabled) {
		t.Errorf("a deletion that is waited for: %v", m)
	}
	body, _ := bson.Marshal(bson.D{{Key: "cleanupOrphaned", Value: "db.c"}, {Key: "$db", Value: "admin"}})
	if _, err := cluster.Run(t.Context(), c.shards["shard0"], body); err == nil || !strings.Contains(err.Error(), "disableResumableRangeDeleter") {
		t.Errorf("cleanupOrphaned: %v", err)
	}
	body, _ = bson.Marshal(bson.D{{Key: "cleanupOrphaned", Value: "c"}, {Key: "$db", Value: "admin"}})
	if _, err := cluster.Run(t.Context(), c.shards["shard0"], body); mongoerr.CodeOf(err) != mongoerr.InvalidNamespace {
		t.Errorf("cleanupOrphaned of a name without a collection: %v", err)
	}
	if n := c.onShard("shard0", "c"); n != 40 {
		t.Errorf("%d documents are left", n)
	}
	c.param("shard0", "disableResumableRangeDeleter", false)
	c.admin(c.shards["shard0"], bson.D{{Key: "cleanupOrphaned", Value: "db.c"}, {Key: "$db", Value: "admin"}})
	if n := c.onShard("shard0", "c"); n != 20 {
		t.Errorf("%d documents are left after cleanupOrphaned", n)
	}
}

// A migration into a range whose earlier migration is not decided yet waits for receiveChunkWaitForRangeDeleterTimeoutMS,
// which used to have no effect.
func TestRecipientWaitsForUndecidedRange(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	uuid := get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "uuid")
	pending := bson.D{{Key: "_id", Value: "x"}, {Key: "nss", Value: "db.c"}, {Key: "collectionUuid", Value: uuid}, {Key: "donorShardId", Value: "shard0"},
		{Key: "range", Value: bson.D{{Key: "min", Value: bson.D{{Key: "_id", Value: 25}}}, {Key: "max", Value: bson.D{{Key: "_id", Value: 30}}}}},
		{Key: "keyPattern", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "whenToClean", Value: "now"}, {Key: "pending", Value: true}}
	c.admin(c.shards["shard1"], bson.D{{Key: "insert", Value: "rangeDeletions"}, {Key: "documents", Value: bson.A{pending}}, {Key: "$db", Value: "config"}})
	c.param("shard1", "receiveChunkWaitForRangeDeleterTimeoutMS", 0)
	if m := c.raw("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`); m["ok"] == 1.0 || !strings.Contains(fmt.Sprint(m["errmsg"]), "not decided yet") {
		t.Errorf("%v", m)
	}
	c.param("shard1", "receiveChunkWaitForRangeDeleterTimeoutMS", 3_600_000)
	var wg sync.WaitGroup
	wg.Go(func() { c.run("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`) })
	c.admin(c.shards["shard1"], bson.D{{Key: "delete", Value: "rangeDeletions"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "x"}}}, {Key: "limit", Value: 1}}}}, {Key: "$db", Value: "config"}})
	await.State(t, "the range is moved", func() (int, bool) {
		// each decision makes it check again
		c.admin(c.shards["shard1"], bson.D{{Key: "_shardsvrMigrationDecision", Value: "db.c"}, {Key: "migrationId", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
			{Key: "committed", Value: true}, {Key: "$db", Value: "admin"}})
		n := int(c.onShard("shard1", "c"))
		return n, n >= 20
	})
	wg.Wait()
}

// migrateCloneInsertionBatchSize and migrateCloneInsertionBatchDelayMS had no effect.
func TestCloneInsertionBatches(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.param("shard1", "migrateCloneInsertionBatchSize", 6)
	c.param("shard1", "migrateCloneInsertionBatchDelayMS", 3_600_000)
	var wg sync.WaitGroup
	var reply bson.M
	wg.Go(func() { reply = c.raw("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`) })
	c.until("a batch is inserted", func() bool { return c.onShard("shard1", "c") > 0 })
	if n := c.onShard("shard1", "c"); n != 6 {
		t.Errorf("the first batch has %d documents", n)
	}
	doc := get(c.admin(c.shards["shard0"], bson.D{{Key: "find", Value: "migrationCoordinators"}, {Key: "$db", Value: "config"}})["cursor"], "firstBatch").(bson.A)[0]
	c.admin(c.shards["shard1"], bson.D{{Key: "_recvChunkAbort", Value: "db.c"}, {Key: "migrationId", Value: get(doc, "_id")}, {Key: "$db", Value: "admin"}})
	wg.Wait()
	if reply["ok"] == 1.0 {
		t.Errorf("a migration that was aborted: %v", reply)
	}
	c.expect(len(c.all("db", `{"find": "c"}`)), `40`)
}

// What a recipient cannot store yet does not stop it from fetching more, up to a bound. It used to fetch one batch ahead.
func TestCloneFetchesAhead(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 2)
	const each, docs = 2 << 20, 12
	for i := range docs {
		c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "s": %q}]}`, 10+i, strings.Repeat("x", each)))
	}
	c.param("shard1", "migrateCloneInsertionBatchDelayMS", 3_600_000)
	var wg sync.WaitGroup
	var reply bson.M
	wg.Go(func() {
		reply = c.raw("admin", `{"moveRange": "db.c", "min": {"_id": 10}, "toShard": "shard1", "forceJumbo": true}`)
	})
	var id any
	c.until("the migration has begun", func() bool {
		batch := get(c.admin(c.shards["shard0"], bson.D{{Key: "find", Value: "migrationCoordinators"}, {Key: "$db", Value: "config"}})["cursor"], "firstBatch").(bson.A)
		if len(batch) > 0 {
			id = get(batch[0], "_id")
		}
		return id != nil && c.onShard("shard1", "c") > 0
	})
	fetched := func() int64 {
		status := c.admin(c.shards["shard1"], bson.D{{Key: "_recvChunkStatus", Value: "db.c"}, {Key: "migrationId", Value: id}, {Key: "$db", Value: "admin"}})
		return get(status["counts"], "clonedBytes").(int64)
	}
	c.until("more is fetched than one batch ahead", func() bool { return fetched() > 3*each })
	if n := fetched(); n > 6*each {
		t.Errorf("%d bytes are fetched while nothing is stored", n)
	}
	c.admin(c.shards["shard1"], bson.D{{Key: "_recvChunkAbort", Value: "db.c"}, {Key: "migrationId", Value: id}, {Key: "$db", Value: "admin"}})
	wg.Wait()
	if reply["ok"] == 1.0 {
		t.Errorf("a migration that was aborted: %v", reply)
	}
}

// secondaryThrottle and its writeConcern were accepted but had no effect: a write concern that the recipient cannot
// satisfy did not stop a migration.
func TestSecondaryThrottleActs(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	for _, cmd := range []string{`{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1", "secondaryThrottle": true`, `{"moveChunk": "db.c", "find": {"_id": 20}, "to": "shard1", "_secondaryThrottle": true`} {
		if m := c.raw("admin", cmd+`, "writeConcern": {"w": 5}}`); m["ok"] == 1.0 {
			t.Errorf("%s: %v", cmd, m)
		}
		c.run("admin", cmd+`}`)
		c.run("admin", `{"moveChunk": "db.c", "find": {"_id": 20}, "to": "shard0"}`)
	}
}

// moveRange waits for a transaction that has written to its collection; it used to fail after half a second with 24
// LockTimeout. Other writers are not blocked meanwhile.
func TestMoveRangeWaitsForTransactions(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.twoHalves()
	w := c.txnClient(0)
	if m, code := w.do("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, true); code != 0 {
		t.Fatal(m)
	}
	var wg sync.WaitGroup
	var reply bson.M
	wg.Go(func() { reply = c.raw("admin", `{"moveRange": "d.c", "min": {"_id": 0}, "toShard": "shard1"}`) })
	for begun := time.Now(); time.Since(begun) < time.Second; { // longer than it used to wait
		c.run("d", `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$inc": {"x": 1}}}]}`)
	}
	if m, code := w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
		t.Fatal(m)
	}
	wg.Wait()
	if reply["ok"] != 1.0 {
		t.Errorf("moveRange beside a transaction: %v", reply)
	}
	c.expect(c.all("d", `{"find": "c", "filter": {"_id": 1}}`), `[{"_id":1,"x":2}]`)
}
