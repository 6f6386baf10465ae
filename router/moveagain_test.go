package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A chunk is split after the bound that a request to move a range does not name has been derived from it: the bound is derived again. A request that named both, which are in two
// chunks by now, is refused.
func TestMoveMeetsASplit(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, x := range []struct{ move, want string }{
		{`{"moveRange": "db.c", "min": {"k": 0}, "toShard": "shard1", "waitForDelete": true}`, `[{"min":{"k":0}}]`},
		{`{"moveRange": "db.c", "max": {"k": 20}, "toShard": "shard1", "waitForDelete": true}`, `[{"min":{"k":10}}]`},
		{`{"moveChunk": "db.c", "find": {"k": 12}, "to": "shard1", "_waitForDelete": true}`, `[{"min":{"k":10}}]`},
		{`{"moveRange": "db.c", "min": {"k": 0}, "max": {"k": 20}, "toShard": "shard1", "waitForDelete": true}`, `[]`},
		{`{"moveChunk": "db.c", "bounds": [{"k": 0}, {"k": 20}], "to": "shard1", "_waitForDelete": true}`, `[]`},
	} {
		for _, cloned := range []bool{false, true} {
			c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
			c.insertKeys("c", 1, 60)
			for _, at := range []string{"0", "20"} {
				c.run("admin", `{"split": "db.c", "middle": {"k": `+at+`}}`)
			}
			release := c.waitsForDDL
			if cloned {
				release = c.waitsWhileItClones
			}
			moved := release(x.move, func() { c.run("admin", `{"split": "db.c", "middle": {"k": 10}}`) })
			if code := moved["code"]; x.want == `[]` && code != int32(mongoerr.ConflictingOperationInProgress) || x.want != `[]` && code != nil {
				t.Errorf("%s (cloned: %t): %v", x.move, cloned, moved)
			}
			c.expect(c.all("config", `{"find": "chunks", "filter": {"shard": "shard1"}, "projection": {"_id": 0, "min": 1}}`), x.want)
			c.expect(c.counted("c", 1), `60`)
			c.run("db", `{"drop": "c"}`)
		}
	}
}

// waitsWhileItClones sends a move of db.c, does something before the documents are cloned, and returns the reply.
func (c *testCluster) waitsWhileItClones(move string, meanwhile func()) bson.M {
	reached, release := c.hangOn("shard0", "moveChunkHangAtStep1", "at", "")
	moved := c.later("admin", move)
	reached()
	meanwhile()
	release()
	return <-moved
}

// waitsForDDL sends a move of db.c, does something while the donor waits for the DDL lock, and returns the reply.
func (c *testCluster) waitsForDDL(move string, meanwhile func()) bson.M {
	begun := func() int {
		return len(c.all("config", `{"find": "changelog", "filter": {"what": "moveChunk.start", "ns": "db.c"}}`))
	}
	before := begun()
	reached, release := c.hangAt("shard0", "freezeMigrations")
	modified := c.later("db", `{"collMod": "c", "validator": {}}`)
	reached()
	moved := c.later("admin", move)
	c.until("the config server lets the migration begin", func() bool { return begun() > before })
	meanwhile()
	release()
	if m := <-modified; m["ok"] != 1.0 {
		c.t.Errorf("collMod: %v", m)
	}
	return <-moved
}
