package router_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/configsvr"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard that keeps an empty copy of a collection, from when it had chunks, is frozen when a resharding looks for such copies. It drops the copy when the resharding has committed or, if it is
// still frozen then, when it goes on, also if the config server's primary has changed by then: it used to keep it for minutes, or until a chunk went there.
func TestFrozenShardDropsItsEmptyCopy(t *testing.T) {
	t.Parallel()
	for _, until := range []string{"cloning", "the end", "another primary"} {
		w := new(interposedPeer)
		c := newHookedCluster(t, 3, clusterHooks{peer: func(set string, s *shardnode.Server) cluster.Peer {
			if set != "shard2" {
				return s.Peer()
			}
			w.Peer = s.Peer()
			return w
		}})
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.shardedAs("c", 1, 40)
		for _, chunk := range c.all("config", `{"find": "chunks", "filter": {"shard": "shard2"}}`) {
			c.run("admin", fmt.Sprintf(`{"moveRange": "db.c", "min": %s, "toShard": "shard1", "_waitForDelete": true}`, show(get(chunk, "min"))))
		}
		has := func() bool { return c.server["shard2"].Node.Engine.Catalog().Lookup("db.c") != nil }
		if !has() {
			t.Fatal("shard2 never had a chunk")
		}
		resumed := make(chan struct{})
		w.through(func(ctx context.Context, _ string, call func() ([]byte, error)) ([]byte, error) {
			select {
			case <-resumed:
				return call()
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		depose := c.drives(c.config, 1)
		answer := c.later("admin", `{"unshardCollection": "db.c", "toShard": "shard0"}`)
		if until == "cloning" {
			c.until("it clones", func() bool {
				return len(c.all("config", `{"find": "reshardingOperations", "filter": {"state": {"$ne": "initializing"}}}`)) == 1
			})
			close(resumed)
		}
		if m := <-answer; m["ok"] != 1.0 {
			t.Fatalf("%v", m)
		}
		if until == "another primary" {
			depose()
			next := configsvr.New(c.conf.OwnPeer(), c.registry("config"), c.clock, func() string { return "config:27020" })
			next.Params = c.params["config"]
			c.drives(next, 2)
		}
		if until != "cloning" {
			if !has() {
				t.Error("it was not frozen")
			}
			close(resumed)
			await.State(t, "it has no copy", func() (any, bool) { return has(), !has() })
			await.State(t, "nobody has still to be told", func() (any, bool) {
				left := c.all("config", `{"find": "reshardingUntoldShards"}`)
				return left, len(left) == 0
			})
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
		c.expect(c.counted("c", 1), `40`)
	}
}

// The message that creates the temporary collection of a resharding arrives at a recipient after the one that drops it: the collection is not created. It used to stay there for good.
func TestLateTemporaryCollection(t *testing.T) {
	t.Parallel()
	var shard *shardnode.Server
	var mu sync.Mutex
	var late *wire.Message
	arrived := make(chan error, 1)
	c := newHookedCluster(t, 2, clusterHooks{peer: func(set string, on *shardnode.Server) cluster.Peer {
		if set != "shard1" {
			return on.Peer()
		}
		shard = on
		to := on.Peer()
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			switch string(m.CommandName()) {
			case "_shardsvrCreateCollectionParticipant":
				if late == nil && strings.Contains(string(m.Body), "system.resharding.") {
					late = &wire.Message{OpCode: m.OpCode, Body: bytes.Clone(m.Body)}
					return dst, mongoerr.New(mongoerr.IllegalOperation, "it is lost to its sender")
				}
			case "_shardsvrReshardingEnd":
				reply, err := to.Call(ctx, m, dst)
				if late != nil && err == nil {
					body, cerr := to.Call(context.Background(), late, nil)
					if cerr == nil {
						cerr = cluster.ReplyError(body)
					}
					arrived <- cerr
					late = new(wire.Message)
				}
				return reply, err
			}
			mu.Unlock()
			defer mu.Lock()
			return to.Call(ctx, m, dst)
		})
	}})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.insertKeys("c", 1, 10)
	if m := c.raw("admin", `{"reshardCollection": "db.c", "key": {"from": "hashed"}}`); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("%v", m)
	}
	if err := <-arrived; mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		t.Errorf("the late message: %v", err)
	}
	for _, coll := range shard.Node.Engine.Catalog().Collections("db") {
		if strings.Contains(coll.NS, "system.resharding.") {
			t.Errorf("%s is left", coll.NS)
		}
	}
	c.expect(c.counted("c", 1), `10`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
}
