package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Between the copy of a collection that becomes capped and the moment at which that is put in place, a client that is connected to the shard writes to the original: it has no version, by which the critical section
// would hold it up. The write used to be lost with the original. Without one the copy is made once.
func TestWriteBesideConvertToCapped(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ cmd, want string }{
		{"", `[{"_id":1,"x":0},{"_id":2,"x":0}]`},
		{`{"insert": "plain", "documents": [{"_id": 3, "x": 0}]}`, `[{"_id":1,"x":0},{"_id":2,"x":0},{"_id":3,"x":0}]`},
		{`{"update": "plain", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}`, `[{"_id":1,"x":1},{"_id":2,"x":0}]`},
		{`{"delete": "plain", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`, `[{"_id":2,"x":0}]`},
	} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("db", `{"insert": "plain", "documents": [{"_id": 1, "x": 0}, {"_id": 2, "x": 0}]}`)
		c.run("admin", `{"moveCollection": "db.plain", "toShard": "shard1"}`)
		reached, release := c.hangAt("shard0", "convertCollection")
		done := c.later("db", `{"convertToCapped": "plain", "size": 100000}`)
		reached()
		if x.cmd != "" {
			if code := c.direct(c.server["shard1"].Service, "db", x.cmd); code != nil {
				t.Fatalf("%s: %v", x.cmd, code)
			}
		}
		release()
		if m := <-done; m["ok"] != 1.0 {
			t.Fatal(m)
		}
		c.expect(c.all("db", `{"find": "plain", "sort": {"_id": 1}}`), x.want)
		c.expect(c.run("db", `{"collStats": "plain"}`)["capped"], `true`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		made := bson.D{{Key: "o.create", Value: bson.D{{Key: "$regex", Value: "convertToCapped"}}}}
		times := c.admin(c.shards["shard1"], bson.D{{Key: "count", Value: "oplog.rs"}, {Key: "query", Value: made}, {Key: "$db", Value: "local"}})["n"]
		c.expect(times, map[bool]string{true: "1", false: "2"}[x.cmd == ""])
	}
}
