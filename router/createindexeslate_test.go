package router_test

import (
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A createIndexes of a sharded collection with documents returns at its wtimeout if the coordinating shard or another one has no majority. It continues
// once there is one, even if the client does not send it again.
func TestIndexesOfAShardWithoutAMajority(t *testing.T) {
	c := newTestCluster(t, 1)
	x := c.addSet("shardx")
	for db, primary := range map[string]string{"d": "shardx", "e": "shard0"} {
		c.run("admin", `{"enableSharding": "`+db+`", "primaryShard": "`+primary+`"}`)
		ns := db + ".c"
		c.run("admin", `{"shardCollection": "`+ns+`", "key": {"_id": 1}}`)
		c.run("admin", `{"split": "`+ns+`", "middle": {"_id": 0}}`)
		other := map[string]string{"shardx": "shard0", "shard0": "shardx"}[primary]
		c.run("admin", `{"moveChunk": "`+ns+`", "find": {"_id": 1}, "to": "`+other+`", "_waitForDelete": true}`)
		c.run(db, `{"insert": "c", "documents": [{"_id": -1, "a": 1}, {"_id": 1, "a": 1}]}`)

		x.cut.Store(true)
		const cmd = `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`
		for range 2 { // the second one joins the first
			if m := c.timedOut(db, cmd); m["ok"] == 1.0 {
				t.Errorf("%s: %v", db, m)
			}
		}
		if m := c.timedOut(db, `{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}`); m["ok"] == 1.0 {
			t.Errorf("%s, another one: %v", db, m)
		}
		x.cut.Store(false)
		await.State(t, "the index of "+ns, func() (any, bool) {
			on := 0
			for _, id := range []string{"shard0", "shardx"} {
				if l := c.server[id].Node.Engine.Catalog().Lookup(ns); l != nil && l.Index("a") != nil && l.Index("a").Ready {
					on++
				}
			}
			return on, on == 2
		})
		c.leftOver()
		c.run(db, cmd)

		// Without a wtimeout it waits, and ends with its client.
		x.cut.Store(true)
		start := time.Now()
		if m := c.raw(db, `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}], "maxTimeMS": 300}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) || time.Since(start) < 300*time.Millisecond {
			t.Errorf("%s, without a wtimeout: %v after %v", db, m, time.Since(start))
		}
		x.cut.Store(false)
		c.leftOver()
	}
}
