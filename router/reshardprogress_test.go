package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// While an operation is under way, currentOp shows on a recipient what it has applied, by kinds, and on the coordinator the times of the states and the recipients'
// estimates. The fields are documented; they used to be missing.
func TestReshardingShowsItsProgress(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("c", 1, 10)
	reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", "blocking-writes")
	moved := c.later("admin", `{"moveCollection": "db.c", "toShard": "shard1"}`)
	reached()
	c.run("db", `{"insert": "c", "documents": [{"_id": 100, "k": 100}, {"_id": 101, "k": 101}, {"_id": 102, "k": 102}]}`)
	c.run("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}, {"q": {"_id": 2}, "u": {"$set": {"x": 1}}}]}`)
	c.run("db", `{"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]}`)
	await.State(t, "what is applied is counted by kinds", func() (string, bool) {
		ops := c.currentOps(`{}`, `{"desc": {"$regex": "^ReshardingRecipient"}, "shard": "shard1"}`, `{"_id": 0, "i": "$insertsApplied", "u": "$updatesApplied", "d": "$deletesApplied", "s": "$countWritesToStashCollections"}`)
		return show(ops), show(ops) == `[{"i":3,"u":2,"d":1,"s":0}]`
	})
	ops := c.admin(c.confP, bson.D{{Key: "currentOp", Value: 1}, {Key: "desc", Value: bson.D{{Key: "$regex", Value: "^ReshardingCoordinator"}}}, {Key: "$db", Value: "admin"}})["inprog"].(bson.A)
	for _, name := range []string{"totalCopyTimeElapsedSecs", "totalApplyTimeElapsedSecs", "allShardsLowestRemainingOperationTimeEstimatedSecs", "allShardsHighestRemainingOperationTimeEstimatedSecs"} {
		if n, ok := get(ops[0], name).(int64); !ok || n < 0 {
			t.Errorf("%s is %v in %s", name, get(ops[0], name), fmt.Sprint(ops))
		}
	}
	release()
	if m := <-moved; m["ok"] != 1.0 {
		t.Errorf("answered %v", m)
	}
}
