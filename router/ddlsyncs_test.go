package router_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// How many durable commits the DDL of collections of each kind waits for: in each step, one after the other, and on each node in total. A command on
// a single member waits for one. A drop or a rename of a collection in the catalog waits for two steps: the state document, with the coordinator's critical section, and the
// other shard's section; the catalog, and the parts of the shards. The end of the sections and the removal of the state document are not waited for.
func TestSyncsOfDDL(t *testing.T) {
	once := map[string]int{"shard1": 1}
	run := map[string]int{"config": 1, "shard0": 2, "shard1": 2}
	const none, untracked, home, elsewhere, sharded = "no collection", "untracked", "unsharded, on the primary shard", "unsharded, elsewhere", "sharded"
	for _, x := range []struct {
		kind, db, cmd string // on the collection c
		steps         []int
		nodes         map[string]int
	}{
		{none, "db", `{"create": "c"}`, []int{1}, once},
		{untracked, "admin", `{"renameCollection": "db.c", "to": "db.d"}`, []int{1}, once},
		{untracked, "db", `{"drop": "c"}`, []int{1}, once},
		{home, "admin", `{"renameCollection": "db.c", "to": "db.d"}`, []int{2, 3}, run},
		{home, "db", `{"drop": "c"}`, []int{2, 2}, map[string]int{"config": 1, "shard0": 1, "shard1": 2}},
		{elsewhere, "admin", `{"renameCollection": "db.c", "to": "db.d"}`, []int{2, 3}, run},
		{elsewhere, "db", `{"drop": "c"}`, []int{2, 3}, run},
		{sharded, "admin", `{"renameCollection": "db.c", "to": "db.d"}`, []int{2, 3}, run},
		{sharded, "admin", `{"renameCollection": "db.c", "to": "db.target", "dropTarget": true}`, []int{2, 3}, run},
		{sharded, "db", `{"drop": "c"}`, []int{2, 3}, run},
		{none, "db", `{"insert": "c", "documents": [{"_id": 1}]}`, []int{1}, once},
		{none, "db", `{"create": "c", "timeseries": {"timeField": "t"}}`, []int{1}, once},
		{none, "admin", `{"shardCollection": "db.c", "key": {"k": 1}}`, []int{1, 1, 1, 1, 1, 2, 1, 1, 1, 1}, map[string]int{"config": 2, "shard0": 1, "shard1": 8}},
		{untracked, "admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`, []int{1, 1, 1, 2, 1, 1, 1, 1}, map[string]int{"config": 2, "shard0": 1, "shard1": 6}},
		{sharded, "admin", `{"refineCollectionShardKey": "db.c", "key": {"k": "hashed", "g": 1}}`, []int{1, 1, 2, 1, 1, 1, 1, 1, 1, 1}, map[string]int{"config": 4, "shard0": 1, "shard1": 6}},
		{sharded, "db", `{"collMod": "c", "validator": {"k": {"$exists": true}}}`, []int{1, 1, 1, 1, 2, 1, 1}, map[string]int{"config": 2, "shard0": 1, "shard1": 5}},
		{sharded, "db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g"}]}`, []int{1, 1, 1, 1, 1, 1, 1}, map[string]int{"config": 2, "shard0": 1, "shard1": 4}},
		{sharded, "db", `{"dropIndexes": "c", "index": "kg"}`, []int{1, 1, 1, 1, 2, 1, 1}, map[string]int{"config": 2, "shard0": 1, "shard1": 5}},
	} {
		wrong := ""
		for range 4 { // a node's own work may write at the same time, which is counted, too
			c := newTestCluster(t, 2)
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
			for _, coll := range []string{"first", "target"} {
				c.shardedAs(coll, 1, 4)
			}
			c.run("db", `{"drop": "first"}`) // creates the collections of coordinators
			switch x.kind {
			case none:
			case sharded:
				c.shardedAs("c", 1, 4)
				c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": "hashed", "g": 1}, "name": "kg"}]}`)
			default:
				c.insertKeys("c", 1, 4)
			}
			if x.kind == home || x.kind == elsewhere {
				c.run("admin", `{"moveCollection": "db.c", "toShard": "shard0"}`)
			}
			if x.kind == home {
				c.run("admin", `{"moveCollection": "db.c", "toShard": "shard1"}`)
			}
			c.leftOver()
			if wrong = c.countSyncs(x.db, x.cmd, x.steps, x.nodes); wrong == "" {
				break
			}
		}
		if wrong != "" {
			t.Errorf("%s: %s", x.kind, wrong)
		}
	}
}

// countSyncs describes how the syncs that a command waits for differ from the expected ones; "" if they do not.
func (c *testCluster) countSyncs(db, cmd string, steps []int, nodes map[string]int) (wrong string) {
	c.disk.hold()
	answer := make(chan bson.M, 1)
	go func() { answer <- c.raw(db, cmd) }()
	for i, want := range steps {
		c.until(fmt.Sprintf("%s: %d writes wait for sync %d", cmd, want, i+1), func() bool { return c.disk.count() >= want || len(answer) == 1 })
		if n := c.disk.count(); n != want {
			wrong = fmt.Sprintf("%s: %d writes wait for sync %d, not %d", cmd, n, i+1, want)
		}
		c.disk.complete()
	}
	c.until(cmd+" ends", func() bool {
		if n := c.disk.count(); n > 0 {
			wrong = fmt.Sprintf("%s: %d more syncs", cmd, n)
			c.disk.complete()
		}
		return len(answer) == 1
	})
	if all := c.disk.free(); wrong == "" && !maps.Equal(all, nodes) {
		wrong = fmt.Sprintf("%s: %v", cmd, all)
	}
	if r := <-answer; r["ok"] != 1.0 {
		c.t.Error(cmd, r)
	}
	return wrong
}

// A shard's reply in the last phases of a drop or rename is lost, after it has done its part, or left its critical section: asked again, it finds that done.
func TestLostRepliesOfTheLastPhases(t *testing.T) {
	for _, shard := range []string{"shard0", "shard1"} {
		c := newTestCluster(t, 2)
		w, lost, mu := c.interposed(shard), map[string]int{}, sync.Mutex{}
		w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			reply, err := call()
			switch name {
			case "_shardsvrDropCollectionParticipant", "_shardsvrRenameCollectionParticipant", "_shardsvrParticipantBlock":
				if err != nil {
					break
				}
				mu.Lock()
				defer mu.Unlock()
				if lost[name]++; lost[name]%2 == 1 {
					return nil, mongoerr.New(mongoerr.HostUnreachable, "the reply is lost")
				}
			}
			return reply, err
		})
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
		c.shardedAs("c", 1, 10)
		c.run("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
		c.leftOver()
		c.expect(c.counted("d", 1), `10`)
		c.expect(c.counted("c", 1), `0`)
		c.run("db", `{"drop": "d"}`)
		c.leftOver()
		c.expect(c.counted("d", 1), `0`)
		for name, n := range lost {
			if n < 2 {
				t.Errorf("%s: %s was not sent again", shard, name)
			}
		}
		if len(lost) < 2 {
			t.Errorf("%s: %v", shard, lost)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
	}
}
