package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A member of another version becomes primary during a rename, in a phase that it does not know: the shards remain in the critical section, and nothing else happens to either name, until the document goes.
// The rename used to be forgotten, and the shards let clients in, although some of them might have done their part.
func TestRenameThatANewPrimaryCannotRead(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	reached, release := c.hangAt("shard0", "blockCrudAndRename")
	renamed := c.later("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
	reached()
	const state = "system.sharding_ddl_coordinators"
	change := func(cmd bson.D) {
		t.Helper()
		if m := c.admin(c.shards["shard0"], append(cmd, bson.E{Key: "$db", Value: "config"})); m["n"] != int32(1) {
			t.Fatal(m)
		}
	}
	change(bson.D{{Key: "update", Value: state}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "phase", Value: "later"}}}}}}}}})
	c.restart("shard0")
	release()
	refused := func(cmd string, m bson.M) {
		t.Helper()
		if m["code"] != int32(mongoerr.ManualInterventionRequired) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	refused("the rename, which the router sends again", <-renamed)
	for _, cmd := range []string{`{"drop": "c"}`, `{"create": "d"}`, `{"dropDatabase": 1}`} {
		refused(cmd, c.raw("db", cmd))
	}
	c.run("db", `{"create": "other"}`)
	c.run("db", `{"drop": "other"}`)
	for _, k := range []int{3, -3} { // on either shard; they have their sections' owner asked, and go on waiting
		if m := c.raw("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "k": %d}], "maxTimeMS": 1500}`, 500+k, k)); m["ok"] == 1.0 && m["writeErrors"] == nil {
			t.Errorf("a write during the section of a rename: %v", m)
		}
	}
	change(bson.D{{Key: "delete", Value: state}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 1}}}}})
	c.run("db", `{"insert": "c", "documents": [{"_id": 1000, "k": 3}, {"_id": 1001, "k": 4}]}`)
	c.run("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
	c.leftOver()
}
