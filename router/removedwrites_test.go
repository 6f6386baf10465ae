package router_test

import (
	"fmt"
	"testing"
)

// A retryable write whose filter does not determine its shard, through a router that does not know yet where the chunks of a removed shard are now, is executed where they are. It used
// to be reported as one that matches nothing: the question which shard has executed it before ended with ShardNotFound, and the statement was not sent again.
func TestWritesBesideARemovedShard(t *testing.T) {
	for _, x := range []struct{ name, cmd, want string }{
		{"update", `{"update": "c", "updates": [{"q": {"g": 7}, "u": {"$set": {"x": 1}}}]`, `1`},
		{"delete", `{"delete": "c", "deletes": [{"q": {"g": 7}, "limit": 1}]`, `1`},
		{"unordered", `{"update": "c", "ordered": false, "updates": [{"q": {"g": 7}, "u": {"$set": {"x": 1}}}, {"q": {"g": 8}, "u": {"$set": {"x": 1}}}]`, `2`},
		{"a new shard key", `{"update": "c", "updates": [{"q": {"g": 7}, "u": {"$set": {"k": 1}}}]`, `1`},
		{"measurements", `{"delete": "ts", "deletes": [{"q": {"m": 7}, "limit": 1}]`, `1`},
	} {
		c := newTestCluster(t, 3)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		c.run("admin", `{"shardCollection": "db.ts", "key": {"t": 1}, "timeseries": {"timeField": "t", "metaField": "m"}}`)
		c.run("db", `{"insert": "ts", "documents": [{"_id": 1, "t": {"$date": "2026-01-01T00:00:00Z"}, "m": 7}]}`)
		c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"control.min.t": {"$date": "2025-01-01T00:00:00Z"}}}`)
		c.run("admin", `{"split": "db.c", "middle": {"k": 10}}`)
		c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 1, "g": 1}, {"_id": 20, "k": 20, "g": 7}, {"_id": 30, "k": 30, "g": 8}]}`)
		move := func(to string) {
			c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "find": {"k": 10}, "to": %q, "_waitForDelete": true}`, to))
			c.run("admin", fmt.Sprintf(`{"moveChunk": "db.system.buckets.ts", "find": {"control.min.t": {"$date": "2026-01-01T00:00:00Z"}}, "to": %q, "_waitForDelete": true}`, to))
		}
		move("shard2")
		other := c.through()
		other.run("db", `{"count": "c"}`)
		other.run("db", `{"count": "ts"}`)
		move("shard1")
		c.removeEmptyShard("shard2")
		if err := other.r.Registry.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := other.raw("db", x.cmd+`, "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}}`)
		if fmt.Sprint(m["n"]) != x.want {
			t.Errorf("%s: %v", x.name, m)
		}
	}
}
