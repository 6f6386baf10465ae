package router_test

import (
	"context"
	"sync/atomic"
	"testing"
)

// A router that finds no database sends DDL to any shard, which reports that there is nothing. If the database is created meanwhile, on another shard, that shard does it,
// under its locks: a dropDatabase elsewhere left a collection that was being sharded without a database, with an entry in the catalog.
func TestDDLOfADatabaseThatIsCreatedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		db, cmd, sent string
		left          int // documents in db.c
	}{
		{"db", `{"dropDatabase": 1}`, "_shardsvrDropDatabase", 0},
		{"db", `{"drop": "c"}`, "drop", 0},
		{"admin", `{"reshardCollection": "db.c", "key": {"from": 1}, "numInitialChunks": 1}`, "_shardsvrReshardCollection", 10},
		{"db", `{"checkMetadataConsistency": 1}`, "_shardsvrCheckMetadataConsistency", 10},
	} {
		c := newTestCluster(t, 2)
		w, other := c.interposed("shard0"), c.through()
		var created, elsewhere atomic.Bool
		w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			if name == x.sent && created.CompareAndSwap(false, true) {
				other.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
				other.shardedAs("c", 1, 10)
				other.insertKeys("plain", 1, 2)
			}
			return call()
		})
		if m := c.raw(x.db, x.cmd); m["ok"] != 1.0 {
			t.Errorf("%s: %v", x.cmd, m)
		}
		c.leftOver()
		if !created.Load() {
			t.Fatalf("%s was sent elsewhere, or under another name", x.cmd)
		}
		for _, d := range c.all("config", `{"find": "changelog", "filter": {"what": {"$regex": "start$"}}}`) {
			elsewhere.Store(elsewhere.Load() || get(d, "shard") == "shard0")
		}
		if elsewhere.Load() {
			t.Errorf("%s was executed by a shard that is not the primary", x.cmd)
		}
		if m := c.raw(x.db, x.cmd); m["ok"] != 1.0 || x.left == 10 && len(c.all("db", `{"checkMetadataConsistency": 1}`)) > 0 {
			t.Errorf("%s, again: %v", x.cmd, m)
		}
		if n := c.counted("c", 1); n != x.left {
			t.Errorf("%s: %d documents are left", x.cmd, n)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
	}
}
