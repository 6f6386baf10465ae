package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A movePrimary that waits for a transaction lets writers to the database through meanwhile, on its donor and on its recipient. They used to wait until the
// transaction's client ended it, those to sharded collections, too.
func TestMovePrimaryLetsWritersThroughWhileItWaits(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoHalves()
	c.move("shard1")
	c.run("d", `{"insert": "plain", "documents": [{"_id": 1, "x": 1}]}`)
	holds := map[string]string{"shard0": `{"update": "plain", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, "shard1": `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`}
	for i, shard := range []string{"shard0", "shard1"} {
		w := c.txnClient(i)
		if m, code := w.do("d", holds[shard], true); code != 0 {
			t.Fatal(m)
		}
		to := []string{"shard1", "shard0"}[i]
		moved := c.later("admin", fmt.Sprintf(`{"movePrimary": "d", "to": %q}`, to))
		c.until("it waits on "+shard, func() bool {
			m := c.admin(c.shards[shard], bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
			return get(get(m["globalLock"], "currentQueue"), "writers") != int32(0)
		})
		id := map[string]int{"shard0": -10, "shard1": 10}[shard]
		for range 10 {
			c.run("d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$inc": {"x": 1}}, "upsert": true}], "maxTimeMS": 20000}`, id))
		}
		select {
		case m := <-moved:
			t.Fatalf("it did not wait: %v", m)
		default:
		}
		if m, code := w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
			t.Fatal(m)
		}
		if m := <-moved; m["ok"] != 1.0 {
			t.Fatal(m)
		}
		c.leftOver()
	}
	c.expect(c.all("d", `{"find": "c", "filter": {"_id": {"$in": [-10, 10]}}, "sort": {"_id": 1}}`), `[{"_id":-10,"x":10},{"_id":10,"x":10}]`)
}
