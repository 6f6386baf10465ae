package router_test

import (
	"fmt"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// While the cluster parameter pauseMigrationsDuringMultiUpdates is set, no migration of a collection begins or commits during
// an update or delete of many of its documents; other collections still migrate, and so does this one afterwards.
func TestMigrationsPauseDuringMultiWrites(t *testing.T) {
	t.Parallel()
	for _, w := range []struct{ name, db, cmd, field string }{
		{"update", "d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, "n"},
		{"delete", "d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`, "n"},
		{"bulkWrite", "admin", `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {}, "updateMods": {"$inc": {"x": 1}}, "multi": true}], "nsInfo": [{"ns": "d.c"}]}`, "nMatched"},
	} {
		t.Run(w.name, func(t *testing.T) {
			c, other := staleCluster(t)
			c.run("admin", `{"shardCollection": "d.other", "key": {"_id": 1}}`)
			c.run("admin", `{"setClusterParameter": {"pauseMigrationsDuringMultiUpdates": {"enabled": true}}}`)
			other.run("admin", `{"getClusterParameter": "pauseMigrationsDuringMultiUpdates"}`) // which makes that router read it, too
			written := c.blockedWrite(other, w.db, w.cmd)
			if m := c.raw("admin", `{"moveChunk": "d.c", "find": {"_id": 200}, "to": "shard2", "maxTimeMS": 300}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
				t.Errorf("a migration beside it: %v", m)
			}
			c.run("admin", `{"moveChunk": "d.other", "find": {"_id": 1}, "to": "shard2"}`)
			c.expect(written()[w.field], `300`)
			c.run("admin", `{"moveChunk": "d.c", "find": {"_id": 200}, "to": "shard2"}`)
		})
	}
}

// blockedWrite begins a write of all documents of d.c through another router, and returns, once shard1 has done its part,
// a function that makes it end and returns its reply: a transaction holds document 0, which is on a shard that nothing
// moves from.
func (c *testCluster) blockedWrite(through *testCluster, db, cmd string) (end func() bson.M) {
	c.t.Helper()
	w := c.txnClient(7)
	if m, code := w.do("d", `{"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$set": {"held": 1}}}]}`, true); code != 0 {
		c.t.Fatal(m)
	}
	reply := make(chan bson.M, 1)
	go func() { reply <- through.as(command.NewClient(8, "test", "test", nil), db, cmd) }()
	count := bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: bson.D{{Key: "x", Value: 0}}}, {Key: "$db", Value: "d"}}
	c.until("the write arrives", func() bool { return c.admin(c.shards["shard1"], count)["n"] == int32(0) })
	return func() bson.M {
		_, _ = w.do("admin", `{"abortTransaction": 1}`, false)
		return <-reply
	}
}

// A migration that was running when the write began is refused at its commit; without the parameter it commits.
func TestMultiWritesPauseMigrationsUnderWay(t *testing.T) {
	for _, pause := range []bool{true, false} {
		t.Run(fmt.Sprint(pause), func(t *testing.T) {
			c, other := staleCluster(t)
			if pause {
				other.run("admin", `{"setClusterParameter": {"pauseMigrationsDuringMultiUpdates": {"enabled": true}}}`)
			}
			entered := c.point("shard1", "moveChunkHangAtStep3", true)
			var wg sync.WaitGroup
			var moved bson.M
			wg.Go(func() {
				moved = c.as(command.NewClient(9, "test", "test", nil), "admin", `{"moveChunk": "d.c", "find": {"_id": 200}, "to": "shard2"}`)
			})
			entered()
			written := c.blockedWrite(other, "d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`)
			c.point("shard1", "moveChunkHangAtStep3", false)
			wg.Wait()
			if code := moved["code"]; pause && code != int32(mongoerr.ConflictingOperationInProgress) || !pause && code != nil {
				t.Errorf("the migration: %v", moved)
			}
			c.expect(written()["n"], `300`)
			c.expect(c.run("d", `{"count": "c", "query": {"x": 1}}`)["n"], `300`)
		})
	}
}
