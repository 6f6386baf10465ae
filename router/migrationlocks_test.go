package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A migration does not begin while a DDL of its collection, or of its database, has the DDL locks; one of another collection does not wait.
func TestMigrationTakesDDLLocks(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, coll := range []string{"c", "other"} {
		c.run("admin", `{"shardCollection": "db.`+coll+`", "key": {"k": 1}}`)
		c.insertKeys(coll, 1, 20)
	}
	c.run("admin", `{"split": "db.c", "middle": {"k": 5}}`)
	at := func(mode string, phase string) {
		t.Helper()
		if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString(mode), value.Doc(value.F("phase", value.NewString(phase)))); err != nil {
			t.Fatal(err)
		}
	}
	at("alwaysOn", "freezeMigrations")
	done := make(chan bson.M, 1)
	go func() { done <- c.raw("db", `{"collMod": "c", "validator": {}}`) }()
	c.until("the run is at its first phase", func() bool {
		ops := c.admin(c.shards["shard0"], bson.D{{Key: "currentOp", Value: 1}, {Key: "desc", Value: "ShardingDDLCoordinator"}, {Key: "currentPhase", Value: "freezeMigrations"}, {Key: "$db", Value: "admin"}})
		return len(ops["inprog"].(bson.A)) == 1
	})
	if m := c.raw("admin", `{"moveRange": "db.c", "min": {"k": 5}, "toShard": "shard1", "maxTimeMS": 300}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("beside a collMod that has its locks: %v", m)
	}
	c.run("admin", `{"moveRange": "db.other", "min": {"k": {"$minKey": 1}}, "toShard": "shard1"}`)
	begun := func() int {
		return len(c.all("config", `{"find": "changelog", "filter": {"what": "moveChunk.start", "ns": "db.c"}}`))
	}
	before := begun()
	moved := make(chan bson.M, 1)
	go func() { moved <- c.raw("admin", `{"moveRange": "db.c", "min": {"k": 5}, "toShard": "shard1"}`) }()
	// A request that reaches the config server once the run has frozen the collection is refused (117).
	c.until("the config server lets the migration begin", func() bool { return begun() > before })
	at("off", "")
	if m := <-done; m["ok"] != 1.0 {
		t.Errorf("%v", m)
	}
	if m := <-moved; m["ok"] != 1.0 {
		t.Errorf("after it: %v", m)
	}
	c.expect(c.counted("c", 1), `20`)
}
