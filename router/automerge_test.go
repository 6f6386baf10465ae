package router_test

import (
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// forgetfulChunks has the cluster drop the history of chunks after a second.
func (c *testCluster) forgetfulChunks() {
	c.t.Helper()
	for name, v := range map[string]value.Value{
		"minSnapshotHistoryWindowInSeconds": value.NewInt32(0), "transactionLifetimeLimitSeconds": value.NewInt32(1),
	} {
		if _, err := c.params["config"].SetRuntime([]value.Field{value.F(name, v)}); err != nil {
			c.t.Fatal(err)
		}
	}
}

// outliveTransactions lets more cluster time pass than the shortest lifetime of transactions, 1 s.
func (c *testCluster) outliveTransactions() { c.clock.AdvanceCluster(c.clock.ClusterTime() + 3<<32) }

// chunkList returns a collection's chunks as "shard:lower bound", in order.
func (c *testCluster) chunkList(coll string) (out string) {
	c.t.Helper()
	for _, d := range c.all("config", `{"aggregate": "collections", "pipeline": [
		{"$match": {"_id": "db.`+coll+`"}}, {"$lookup": {"from": "chunks", "localField": "uuid", "foreignField": "uuid", "as": "c"}},
		{"$unwind": "$c"}, {"$sort": {"c.min": 1}}, {"$project": {"_id": 0, "s": "$c.shard", "k": "$c.min._id"}}], "cursor": {}}`) {
		if at, ok := get(d, "k").(int32); ok {
			out += fmt.Sprintf("%s:%d ", get(d, "s"), at)
		} else {
			out += fmt.Sprintf("%s:? ", get(d, "s"))
		}
	}
	return out
}

// mergeAllChunksOnShard merges the sequences of chunks of one shard, except those whose history a read of the past could
// still need. A router that knows the earlier chunks finds every document.
func TestMergeAllChunksOnShard(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 100)
	for _, at := range []int{10, 20, 30, 40, 60, 70, 80, 90} {
		c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"_id": %d}}`, at))
	}
	for _, at := range []int{40, 50, 80} {
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "find": {"_id": %d}, "to": "shard1"}`, at))
	}
	other := c.through()
	if n := len(other.all("db", `{"find": "c"}`)); n != 100 {
		t.Fatalf("%d documents", n)
	}
	before := c.chunkList("c")
	c.run("admin", `{"mergeAllChunksOnShard": "db.c", "shard": "shard0"}`)
	if got := c.chunkList("c"); got != before {
		t.Fatalf("chunks whose history a transaction may still need were merged: %s", got)
	}
	c.forgetfulChunks()
	c.outliveTransactions()
	c.run("db", `{"insert": "other", "documents": [{}]}`)
	c.run("admin", `{"mergeAllChunksOnShard": "db.c", "shard": "shard0", "maxNumberOfChunksToMerge": 2}`)
	two := c.chunkList("c")
	c.run("admin", `{"mergeAllChunksOnShard": "db.c", "shard": "shard0"}`)
	all := c.chunkList("c")
	c.run("admin", `{"mergeAllChunksOnShard": "db.c", "shard": "shard1"}`)
	got := c.chunkList("c")
	t.Logf("before: %s\nof two: %s\nof shard0: %s\nof both: %s", before, two, all, got)
	if n := len(before) - len(two); n <= 0 || n > len("shard0:10 ") {
		t.Errorf("a limit of two chunks made %s of %s", two, before)
	}
	if got != "shard0:? shard1:40 shard0:60 shard1:80 shard0:90 " {
		t.Errorf("merged into %s", got)
	}
	if n := len(other.all("db", `{"find": "c"}`)); n != 100 {
		t.Errorf("a router with the earlier table finds %d documents", n)
	}
	for cmd, code := range map[string]int32{
		`{"mergeAllChunksOnShard": "db.c", "shard": "nobody"}`:                                  int32(mongoerr.ShardNotFound),
		`{"mergeAllChunksOnShard": "db.none", "shard": "shard0"}`:                               int32(mongoerr.NamespaceNotSharded),
		`{"mergeAllChunksOnShard": "db.c", "shard": "shard0", "maxNumberOfChunksToMerge": 1}`:   int32(mongoerr.InvalidOptions),
		`{"mergeAllChunksOnShard": "db.c", "shard": "shard0", "maxNumberOfChunksToMerge": 2.5}`: int32(mongoerr.BadValue),
		`{"mergeAllChunksOnShard": "db.c"}`:                                                     int32(mongoerr.IDLFailedToParse),
	} {
		if m := c.raw("admin", cmd); m["code"] != code {
			t.Errorf("%s: %v", cmd, m)
		}
	}
}

// The auto-merger does the same by itself, as far as the balancer's settings, its own and the collection's allow.
func TestAutoMerger(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.forgetfulChunks()
	for _, at := range []int{10, 30} {
		c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"_id": %d}}`, at))
	}
	before := c.chunkList("c")
	c.outliveTransactions()
	step := func(ran bool, want string, cmds ...string) {
		t.Helper()
		for _, cmd := range cmds {
			db := "config"
			if cmd[:4] == `{"ad` || cmd[:4] == `{"co` || cmd[:4] == `{"ba` {
				db = "admin"
			}
			c.run(db, cmd)
		}
		if got, err := c.config.AutoMerge(t.Context()); got != ran || err != nil {
			t.Errorf("ran: %v, %v", got, err)
		}
		if got := c.chunkList("c"); got != want {
			t.Errorf("%v: %s, want %s", cmds, got, want)
		}
	}
	step(false, before, `{"balancerStop": 1}`)
	step(false, before, `{"balancerStart": 1}`, `{"update": "settings", "updates": [{"q": {"_id": "automerge"}, "u": {"$set": {"enabled": false}}, "upsert": true}]}`)
	step(true, before, `{"update": "settings", "updates": [{"q": {"_id": "automerge"}, "u": {"$set": {"enabled": true}}, "upsert": true}]}`,
		`{"configureCollectionBalancing": "db.c", "enableAutoMerger": false}`)
	step(true, before, `{"configureCollectionBalancing": "db.c", "enableAutoMerger": true, "enableBalancing": false}`)
	if _, err := c.params["config"].SetRuntime([]value.Field{value.F("autoMergerThrottlingMS", value.NewInt32(1))}); err != nil {
		t.Fatal(err)
	}
	step(true, "shard0:? ", `{"configureCollectionBalancing": "db.c", "enableBalancing": true}`)
}
