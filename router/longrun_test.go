package router_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A createIndexes that runs for longer than outcomes are kept is continued by another primary, and fails: its client, whose router has sent it again, gets its error.
func TestLongRunFailsAfterAnElection(t *testing.T) {
	for _, long := range []bool{false, true} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 1}]}`)
		reached, release := c.hangAt("shard0", "undo")
		answer := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "x": 1}, "name": "u", "unique": true}]}`)
		reached()
		if long {
			c.clock.AdvanceCluster(c.clock.ClusterTime() + 11*60<<32)
		}
		c.restart("shard0")
		release()
		if m := <-answer; m["code"] != int32(mongoerr.DuplicateKey) {
			t.Errorf("long %v: %v", long, m)
		}
	}
}

// A createIndexes that waits for another one of the collection, for longer than outcomes are kept, when the shard that coordinates them loses its primary: nothing of it has been done, and it is executed in its turn.
func TestQueuedBuildOutlastsAnElection(t *testing.T) {
	for _, long := range []bool{false, true} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.shardedAs("c", 1, 10)
		reached, release := c.hangAt("shard0", "updateShards")
		first := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
		reached()
		second := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}`)
		c.until("the second waits", func() bool { return c.underWay("shard0", "_shardsvrCreateIndexes") == 2 })
		if long {
			c.clock.AdvanceCluster(c.clock.ClusterTime() + 11*60<<32)
		}
		c.restart("shard0")
		release()
		if m := <-first; m["ok"] != 1.0 {
			t.Errorf("long %v, the first: %v", long, m)
		}
		if m := <-second; m["ok"] != 1.0 {
			t.Errorf("long %v, the second: %v", long, m)
		}
	}
}

// An update that moves a document to another shard, and an upsert that names no shard, are no transactions of their clients, although their router makes them some: a refresh that a shard needs for them is waited for.
func TestTransactionsOfARouterWaitForARefresh(t *testing.T) {
	var held heldTables
	c := newHookedCluster(t, 2, clusterHooks{out: func(set string) func(to cluster.Peer) cluster.Peer {
		return func(to cluster.Peer) cluster.Peer {
			if set == "shard1" && to != nil && held.Peer == nil {
				held.Peer = to
				return &held
			}
			return to
		}
	}})
	c.moveColl()
	c.params["shard1"].Store("metadataRefreshInTransactionMaxWaitMS", value.NewInt32(100))
	held.on(true)
	c.restart("shard1")
	for i, cmd := range []string{
		`{"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"k": 12}}}], "maxTimeMS": 2000}`,
		`{"update": "c", "updates": [{"q": {"_id": 20}, "u": {"k": 20}, "upsert": true}], "maxTimeMS": 2000}`,
	} {
		m := c.raw("d", retryable(cmd, i+1))
		if s := show(m); !strings.Contains(s, `"code":{"$numberInt":"50"}`) && !strings.Contains(s, `"code":50`) {
			t.Errorf("%s: %s", cmd, s)
		}
	}
	held.on(false)
}

// A shard refuses a collMod for good, while another one, which has not executed it, elects a primary: it is refused, and done on no shard.
func TestRefusedBesideAnElection(t *testing.T) {
	c := newTestCluster(t, 2)
	home, away := c.interposed("shard0"), c.interposed("shard1")
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 30)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}`)
	home.through(func(_ context.Context, command string, call func() ([]byte, error)) ([]byte, error) {
		if command == "collMod" {
			return nil, mongoerr.New(mongoerr.OutOfDiskSpace, "no room")
		}
		return call()
	})
	var n atomic.Int64
	away.through(func(_ context.Context, command string, call func() ([]byte, error)) ([]byte, error) {
		if command == "collMod" && n.Add(1) == 1 {
			return nil, mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
		}
		return call()
	})
	m := c.raw("db", `{"collMod": "c", "index": {"name": "k_1", "hidden": true}, "maxTimeMS": 3000}`)
	if m["code"] != int32(mongoerr.OutOfDiskSpace) {
		t.Errorf("%v; shard1 was sent it %d times", show(m), n.Load())
	}
	home.through(func(_ context.Context, _ string, call func() ([]byte, error)) ([]byte, error) { return call() })
	c.leftOver()
}
