package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// An operation that concerns all shards does not pass over one whose entry cannot be used: it may have a part of the collection. It is refused, and nothing has happened.
func TestDDLBesideAnUnusableEntry(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	host := get(c.all("config", `{"find": "shards", "filter": {"_id": "shard1"}}`)[0], "host")
	set := func(host any) {
		t.Helper()
		c.onCatalog(bson.D{{Key: "update", Value: "shards"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "shard1"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "host", Value: host}}}}}}}}})
	}
	set(7)
	for _, x := range []struct{ db, cmd string }{{"db", `{"drop": "c"}`}, {"admin", `{"renameCollection": "db.c", "to": "db.d"}`}, {"db", `{"dropDatabase": 1}`}} {
		if m := c.raw(x.db, x.cmd); m["code"] != int32(mongoerr.FailedToParse) {
			t.Errorf("%s: %v", x.cmd, m)
		}
	}
	set(host)
	c.through().expect(fmt.Sprint(c.through().counted("c", 1)), `"10"`)
	c.through().run("db", `{"dropDatabase": 1}`)
	if n := c.onShard("shard1", "c"); n != 0 {
		t.Errorf("%d documents are left", n)
	}
}
