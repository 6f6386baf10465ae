package router_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// profiled counts what the profiler of a shard has recorded of a database; -1 if nothing ever.
func (c *testCluster) profiled(shard, db string) int64 {
	coll := c.server[shard].Node.Engine.Catalog().Lookup(db + ".system.profile")
	if coll == nil {
		return -1
	}
	return coll.Counters.Records.Load()
}

// profile has a shard record two operations on a database.
func (c *testCluster) profile(shard, db string) {
	c.t.Helper()
	for _, cmd := range []string{`{"profile": 2}`, `{"find": "c"}`, `{"find": "c"}`, `{"profile": 0}`} {
		if m := c.onPeer(c.shards[shard], db, cmd); m["ok"] != 1.0 {
			c.t.Fatalf("%s: %v", cmd, m)
		}
	}
	if n := c.profiled(shard, db); n < 2 {
		c.t.Fatalf("%d operations on %s are recorded on %s", n, db, shard)
	}
}

// What a shard's profiler has recorded is the shard's own: the documents have no _id. A movePrimary of a database that had been profiled failed for ever with 11000, and dropped what the new primary
// shard had recorded, so that the shard could not be removed. The shard could not be added again after that, if it has a database with nothing else.
func TestMovesOfProfiledDatabases(t *testing.T) {
	t.Parallel()
	var refuse atomic.Bool
	c := newHookedCluster(t, 3, clusterHooks{peer: func(set string, s *shardnode.Server) cluster.Peer {
		to := s.Peer()
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if refuse.Load() && string(m.CommandName()) == "_configsvrCommitMovePrimary" && !value.Lookup(m.Body, "undo").Truthy() {
				return dst, mongoerr.New(mongoerr.IllegalOperation, "refused")
			}
			return to.Call(ctx, m, dst)
		})
	}})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("c", 1, 20)
	var kept [3]int64
	for i, shard := range []string{"shard0", "shard1"} {
		c.profile(shard, "db")
		kept[i] = c.profiled(shard, "db")
	}
	kept[2] = -1
	still := func(when string) {
		t.Helper()
		for i, want := range kept {
			if got := c.profiled(fmt.Sprint("shard", i), "db"); got != want {
				t.Errorf("%s: shard%d has %d entries, not %d", when, i, got, want)
			}
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
	still("before")
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	still("moved")
	c.expect(c.counted("c", 1), `20`)
	c.run("admin", `{"movePrimary": "db", "to": "shard0"}`)
	for _, cmd := range []string{
		`{"moveCollection": "db.system.profile", "toShard": "shard1"}`, `{"reshardCollection": "db.system.profile", "key": {"_id": 1}}`, `{"unshardCollection": "db.system.profile"}`,
		`{"shardCollection": "db.system.profile", "key": {"_id": 1}}`, `{"renameCollection": "db.system.profile", "to": "db.p"}`, `{"moveCollection": "db.system.js", "toShard": "shard1"}`,
	} {
		if m := c.raw("admin", cmd); m["code"] != int32(mongoerr.IllegalOperation) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	still("refused")

	c.run("admin", `{"removeShard": "shard0"}`)
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	c.expect(c.run("admin", `{"removeShard": "shard0"}`)["state"], `"completed"`)
	c.run("admin", `{"addShard": "shard0/shard0:27018", "name": "shard0"}`)
	c.expect(len(c.all("config", `{"find": "databases"}`)), `1`)
	still("added")

	refuse.Store(true)
	if m := c.raw("admin", `{"movePrimary": "db", "to": "shard0"}`); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("a move that is undone: %v", m)
	}
	refuse.Store(false)
	still("undone")
	c.run("db", `{"dropDatabase": 1}`)
	kept = [3]int64{-1, -1, -1}
	still("dropped")
}

// A profiler's collection that is made anew with another size is still one without _id that is not in the oplog.
func TestProfileOfAnotherSize(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("c", 1, 20)
	c.profile("shard0", "db")
	n := c.profiled("shard0", "db")
	c.run("db", `{"convertToCapped": "system.profile", "size": 2097152}`)
	coll := c.server["shard0"].Node.Engine.Catalog().Lookup("db.system.profile")
	if coll.Replicated || len(coll.Indexes) > 0 || coll.Counters.Records.Load() != n {
		t.Errorf("replicated: %v, %d indexes, %d of %d entries", coll.Replicated, len(coll.Indexes), coll.Counters.Records.Load(), n)
	}
	c.run("db", `{"drop": "system.profile"}`)
	if m := c.onPeer(c.shards["shard0"], "db", `{"create": "system.profile", "capped": true, "size": 2097152}`); m["ok"] != 1.0 {
		t.Fatal(m)
	}
	if coll = c.server["shard0"].Node.Engine.Catalog().Lookup("db.system.profile"); coll.Replicated {
		t.Error("one that is created is replicated")
	}
	c.profile("shard0", "db")
}
