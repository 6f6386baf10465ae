package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// returning creates d.c with chunks from 0, 10 and 20 of k, the last two on shard1, and leaves a document that has gone from the first to the second as an
// orphan of the first on shard0. A cursor from before has read one document.
func (c *testCluster) returning() (cursor any) {
	c.t.Helper()
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"k": 1}}`)
	for _, k := range []int{0, 10, 20} {
		c.run("admin", fmt.Sprintf(`{"split": "d.c", "middle": {"k": %d}}`, k))
	}
	c.run("d", `{"insert": "c", "documents": [{"_id": 2, "k": 2}, {"_id": 1, "k": 1}, {"_id": 11, "k": 11}, {"_id": 21, "k": 21}]}`)
	cursor = get(c.run("d", `{"find": "c", "batchSize": 1}`)["cursor"], "id")
	c.param("shard0", "orphanCleanupDelaySecs", 3600)
	for _, k := range []int{0, 10, 20} {
		c.run("admin", fmt.Sprintf(`{"moveRange": "d.c", "min": {"k": %d}, "toShard": "shard1"}`, k))
	}
	return cursor
}

// A document that left with its range, got a shard key of another range and comes back with that one has the _id of the orphan that it has left behind. Such
// migrations used to fail until the orphan was deleted, a quarter of an hour later.
func TestDocumentComesBackInAnotherRange(t *testing.T) {
	for _, during := range []bool{false, true} {
		t.Run(fmt.Sprint("changed during the migration: ", during), func(t *testing.T) {
			c := newTestCluster(t, 2)
			old := c.returning()
			change := `{"update": "c", "updates": [{"q": {"_id": 1, "k": 1}, "u": {"$set": {"k": 12}}}], "lsid": {"id": {"$uuid": "00000000-0000-4000-8000-000000000001"}}, "txnNumber": {"$numberLong": "1"}}`
			move := `{"moveRange": "d.c", "min": {"k": 10}, "toShard": "shard0"}`
			if !during {
				c.run("d", change)
				c.run("admin", move)
			} else {
				entered := c.point("shard1", "moveChunkHangAtStep4", true)
				moved := make(chan bson.M, 1)
				go func() { moved <- c.raw("admin", move) }()
				entered()
				c.run("d", change)
				c.point("shard1", "moveChunkHangAtStep4", false)
				if m := <-moved; m["ok"] != 1.0 {
					t.Fatal(m)
				}
			}
			c.expect(c.all("d", `{"find": "c", "sort": {"k": 1}}`), `[{"_id":2,"k":2},{"_id":11,"k":11},{"_id":1,"k":12},{"_id":21,"k":21}]`)
			more := c.run("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, old))
			c.expect(get(more["cursor"], "nextBatch"), `[{"_id":1,"k":1},{"_id":11,"k":11},{"_id":21,"k":21}]`)
		})
	}
}

// A document of a range that the shard owns is not an orphan: two documents may have one _id if the collection is sharded by another field, but not on one shard.
func TestMigrationOfAnOwnedIdentityFails(t *testing.T) {
	c := newTestCluster(t, 2)
	c.returning()
	c.run("admin", `{"moveRange": "d.c", "min": {"k": 0}, "toShard": "shard0", "waitForDelete": true}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 2, "k": 12}]}`)
	if m := c.raw("admin", `{"moveRange": "d.c", "min": {"k": 10}, "toShard": "shard0"}`); m["ok"] == 1.0 || m["code"] == int32(mongoerr.InternalError) {
		t.Errorf("a second document with an _id: %v", m)
	}
	c.expect(c.all("d", `{"find": "c", "sort": {"k": 1}}`), `[{"_id":1,"k":1},{"_id":2,"k":2},{"_id":11,"k":11},{"_id":2,"k":12},{"_id":21,"k":21}]`)
}
