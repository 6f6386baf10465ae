package router_test

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
)

// Snapshots taken while a transaction over several shards was being committed were refused once it was (246): each shard
// committed it at its own time, and what snapshots between the decision and that time saw was undefined. Now the
// shards commit it at one time, later than the times that readers have chosen, and later readers wait until it is
// decided.
func TestSnapshotsBesideACommit(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	w := c.txnClient(1)
	for i, id := range []int{-1, 1} {
		if m, code := w.do("d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$inc": {"x": 1}}}]}`, id), i == 0); code != 0 {
			t.Fatal(m)
		}
	}
	entered := c.point("shard0", "hangBeforeSendingCommit", true)
	committed := make(chan bson.M, 1)
	go func() {
		m, _ := w.do("admin", `{"commitTransaction": 1}`, false)
		committed <- m
	}()
	entered()
	at := c.run("d", `{"insert": "c", "documents": [{"_id": -7, "y": 1}]}`)["operationTime"].(bson.Timestamp)
	finds := func() (n int64) {
		for _, p := range c.shards {
			n += fieldAt(c.admin(p, bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}}), "metrics.commands.find.total").(int64)
		}
		return n
	}
	before := finds()
	type answer struct {
		how string
		m   bson.M
	}
	answers := make(chan answer, 3)
	find := `{"find": "c", "filter": {"y": null}, "sort": {"_id": 1}}`
	go func() {
		m, _ := c.txnClient(2).do("d", find, true)
		answers <- answer{"a transaction", m}
	}()
	go func() {
		m := c.through().raw("d", fmt.Sprintf(`{"find": "c", "filter": {"y": null}, "sort": {"_id": 1}, "readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}}`, at.T, at.I))
		answers <- answer{"a snapshot session", m}
	}()
	go func() { // its second statement reads at the time of the first, on a shard that took no part in that
		r := c.txnClient(3)
		m, code := r.do("d", `{"find": "other"}`, true)
		if code == 0 {
			m, _ = r.do("d", find, false)
		}
		answers <- answer{"a transaction's second statement", m}
	}()
	c.until("two have asked both shards, one its first", func() bool { return finds()-before >= 5 || len(answers) == cap(answers) })
	c.point("shard0", "hangBeforeSendingCommit", false)
	for range 3 {
		a := <-answers
		if got := show(fieldAt(a.m, "cursor.firstBatch")); a.m["ok"] != 1.0 || got != both && got != `[{"_id":-1,"x":1},{"_id":1,"x":1}]` {
			t.Errorf("%s: %v", a.how, a.m)
		}
	}
	if m := <-committed; m["ok"] != 1.0 {
		t.Error(m)
	}
}

// The first statement of a transaction, if it writes to a range that arrived after its time was chosen, is retried at a
// later time; the client used to have to run the whole transaction again.
func TestFirstStatementsAreRunAtALaterTime(t *testing.T) {
	c, _ := staleCluster(t)
	late := c.through()
	clock := cluster.NewVectorClock(time.Now) // of a router that receives no updates
	late.router, late.r = c.mongos(clock)
	clock.AdvanceCluster(c.clock.ClusterTime())
	c.moved(200, "shard2")
	asked := func() int64 {
		m := c.admin(c.shards["shard2"], bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
		return fieldAt(m, "metrics.commands.update.total").(int64)
	}
	before := asked()
	answer := make(chan bson.M, 1)
	go func() {
		m, _ := late.txnClient(1).do("d", `{"update": "c", "updates": [{"q": {"_id": 250}, "u": {"$inc": {"x": 1}}}]}`, true)
		answer <- m
	}()
	for asked() == before {
		select {
		case m := <-answer:
			t.Fatalf("before the new owner was asked: %v", m)
		default:
		}
	}
	clock.AdvanceCluster(c.clock.ClusterTime())
	if m := <-answer; m["nModified"] != int32(1) {
		t.Errorf("%v", m)
	}
}
