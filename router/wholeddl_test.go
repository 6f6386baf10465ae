package router_test

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard fails to execute a command that all shards have found valid, after another one has executed it: the command is sent again until both have.
func TestCommandsAreExecutedOnAllShards(t *testing.T) {
	t.Parallel()
	for _, other := range []string{"shard0", "shard1"} {
		for _, x := range []struct{ name, cmd string }{
			{"collMod", `{"collMod": "c", "validator": {"k": {"$exists": true}}}`},
			{"dropIndexes", `{"dropIndexes": "c", "index": "from"}`},
		} {
			c := newTestCluster(t, 2)
			w := c.interposed(other)
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
			c.shardedAs("c", 1, 10)
			c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"from": 1}, "name": "from"}]}`)
			n := 0
			w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
				if name == x.name {
					if n++; n == 1 {
						return nil, mongoerr.New(mongoerr.OutOfDiskSpace, "the disk is full")
					}
				}
				return call()
			})
			m := c.raw("db", x.cmd)
			if m["ok"] != 1.0 {
				t.Errorf("%s, failing on %s: %v", x.name, other, m)
			}
			c.expect(c.all("db", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		}
	}
}
