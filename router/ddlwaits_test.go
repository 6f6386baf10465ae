package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A DDL that waits for its DDL locks is shown with what it waits for, and behind what: by currentOp as a coordinator and as the operation of its client, and by lockInfo.
func TestDDLThatWaitsIsShown(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	reached, release := c.hangAt("shard0", "dropCollection")
	dropped := c.later("db", `{"drop": "c"}`)
	reached()
	shown := func(kind string, filter ...bson.E) bson.A {
		cmd := append(bson.D{{Key: "currentOp", Value: 1}, {Key: "command." + kind, Value: bson.D{{Key: "$exists", Value: true}}}}, filter...)
		return c.admin(c.shards["shard0"], append(cmd, bson.E{Key: "$db", Value: "admin"}))["inprog"].(bson.A)
	}
	for _, concern := range []string{"", `, "writeConcern": {"w": "majority", "wtimeout": 60000}`} {
		waiting := c.later("db", `{"collMod": "c", "validationLevel": "moderate", "maxTimeMS": 60000`+concern+`}`)
		coordinator := bson.E{Key: "desc", Value: "ShardingDDLCoordinator"}
		c.until("the coordinator waits", func() bool {
			return len(shown("_shardsvrCollMod", coordinator, bson.E{Key: "waitingForLock", Value: true})) == 1
		})
		x := shown("_shardsvrCollMod", coordinator)[0]
		if get(x, "ns") != "db.c" || get(x, "currentPhase") != nil {
			t.Errorf("it is shown as %s", show(x))
		}
		if msg, _ := get(x, "msg").(string); msg != "waiting for the DDL lock of 'db.c' in mode X behind dropCollection" {
			t.Errorf("it is said to be %s", msg)
		}
		clients := bson.E{Key: "desc", Value: bson.D{{Key: "$ne", Value: "ShardingDDLCoordinator"}}}
		c.until("the client's operation waits", func() bool {
			return len(shown("_shardsvrCollMod", clients, bson.E{Key: "waitingForLock", Value: true})) == 1
		})
		if concern == "" { // with a wtimeout it waits for the operation that has the locks, and asks for them then
			if held := shown("_shardsvrCollMod", clients, bson.E{Key: "locks.DDLDatabase", Value: "w"}); len(held) != 1 {
				t.Errorf("it does not hold the lock of the database: %s", show(held))
			}
			if locks := c.locks("shard0"); !strings.Contains(locks, `"pending":[{"mode":"X","convertMode":"NONE","enqueueAtFront":false,"compatibleFirst":false,"desc":"collMod"}]`) {
				t.Errorf("lockInfo: %s", locks)
			}
		}
		if holder := shown("_shardsvrDropCollection", coordinator); len(holder) != 1 || get(holder[0], "waitingForLock") != false || get(get(holder[0], "locks"), "DDLCollection") != "W" {
			t.Errorf("the drop that has the locks is shown as %s", show(holder))
		}
		ops := shown("_shardsvrCollMod", bson.E{Key: "desc", Value: bson.D{{Key: "$ne", Value: "ShardingDDLCoordinator"}}})
		c.admin(c.shards["shard0"], bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: get(ops[0], "opid")}, {Key: "$db", Value: "admin"}})
		<-waiting
		c.until("it is shown no longer", func() bool { return len(shown("_shardsvrCollMod")) == 0 })
	}
	release()
	if m := <-dropped; m["ok"] != 1.0 {
		t.Error(m)
	}
}
