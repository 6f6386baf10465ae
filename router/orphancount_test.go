package router_test

import (
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The documents that an aborted migration leaves on its recipient are counted, even if the recipient has restarted and does not know the migration: then, and after a
// decision that was sent again, numOrphanDocs used to be 0, and the balancer counted the orphans as data.
func TestOrphansOfAnAbortedMigrationAreCounted(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.param("shard1", "disableResumableRangeDeleter", true)
	entered := c.point("shard1", "migrateThreadHangAtStep4", true)
	var moved bson.M
	var wg sync.WaitGroup
	wg.Go(func() { moved = c.raw("admin", `{"moveRange": "db.c", "min": {"_id": 20}, "toShard": "shard1"}`) })
	entered()
	doc := get(c.admin(c.shards["shard0"], bson.D{{Key: "find", Value: "migrationCoordinators"}, {Key: "$db", Value: "config"}})["cursor"], "firstBatch").(bson.A)[0]
	id := get(doc, "_id")
	abort := bson.D{{Key: "_shardsvrMigrationDecision", Value: "db.c"}, {Key: "migrationId", Value: id}, {Key: "committed", Value: false}, {Key: "$db", Value: "admin"}}
	c.admin(c.shards["shard1"], abort)
	orphans := func() any {
		return get(get(c.admin(c.shards["shard1"], bson.D{{Key: "find", Value: "rangeDeletions"}, {Key: "$db", Value: "config"}})["cursor"], "firstBatch").(bson.A)[0], "numOrphanDocs")
	}
	if n := orphans(); n != int64(20) {
		t.Errorf("%v orphans are known of 20", n)
	}
	c.admin(c.shards["shard1"], abort) // the reply was lost
	if n := orphans(); n != int64(20) {
		t.Errorf("once the decision has been sent again, %v orphans are known of 20", n)
	}
	c.point("shard1", "migrateThreadHangAtStep4", false)
	wg.Wait()
	if moved["ok"] == 1.0 {
		t.Errorf("%v", moved)
	}
	if n := c.orphans("shard1", "c"); n != 20 {
		t.Errorf("collStats shows %d orphans of 20", n)
	}
	c.param("shard1", "disableResumableRangeDeleter", false)
	c.until("the orphans are deleted", func() bool { return c.onShard("shard1", "c") == 0 && c.rangeDeletions("shard1") == 0 })
}
