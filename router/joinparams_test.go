package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard that joins has the cluster's parameters from then on, and none of its own: it kept those that it had, and what the cluster had
// set before did not reach it.
func TestShardThatJoinsTakesOverClusterParameters(t *testing.T) {
	c := newTestCluster(t, 2)
	set := func(name string, v bson.D) {
		c.cmd("admin", bson.D{{Key: "setClusterParameter", Value: bson.D{{Key: name, Value: v}}}})
	}
	set("defaultMaxTimeMS", bson.D{{Key: "readOperations", Value: 12345}})
	c.run("admin", `{"setQuerySettings": {"find": "c", "filter": {"x": 1}, "$db": "db"}, "settings": {"reject": true}}`)
	third := c.opened(shardnode.Config{SetName: "shard2", Host: "shard2:27018"})
	if err := third.Initiate(context.Background()); err != nil {
		t.Fatal(err)
	}
	own := func(name string, v bson.D) {
		c.admin(third.Peer(), bson.D{{Key: "setClusterParameter", Value: bson.D{{Key: name, Value: v}}}, {Key: "$db", Value: "admin"}})
	}
	own("defaultMaxTimeMS", bson.D{{Key: "readOperations", Value: 999}})
	own("changeStreamOptions", bson.D{{Key: "preAndPostImages", Value: bson.D{{Key: "expireAfterSeconds", Value: 7}}}})
	c.join("shard2", "shard2:27018", third)
	get := func(name string) any {
		t.Helper()
		return c.admin(third.Peer(), bson.D{{Key: "getClusterParameter", Value: name}, {Key: "$db", Value: "admin"}})["clusterParameters"].(bson.A)[0]
	}
	if got := field(get("defaultMaxTimeMS"), "readOperations"); fmt.Sprint(got) != "12345" {
		t.Errorf("defaultMaxTimeMS: %v", got)
	}
	if got := field(field(get("changeStreamOptions"), "preAndPostImages"), "expireAfterSeconds"); got != "off" {
		t.Errorf("changeStreamOptions, which the cluster has not set: %v", got)
	}
	if got := field(get("querySettings"), "settingsArray").(bson.A); len(got) != 1 {
		t.Errorf("querySettings: %v", got)
	}
	set("defaultMaxTimeMS", bson.D{{Key: "readOperations", Value: 54321}})
	if got := field(get("defaultMaxTimeMS"), "readOperations"); fmt.Sprint(got) != "54321" {
		t.Errorf("defaultMaxTimeMS when it is set again: %v", got)
	}
}

// A shard that is not reached when a parameter is set gets it from the config server, with its time, like the others; a message that
// arrives late is ignored.
func TestShardThatWasAwayGetsParameters(t *testing.T) {
	var away atomic.Bool
	c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
		if away.Load() && shard == "shard1" && string(m.CommandName()) == "_shardsvrSetClusterParameter" {
			return mongoerr.New(mongoerr.Interrupted, "the shard is away")
		}
		return nil
	})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.config.RunSettings(ctx) }()
	defer func() { end(); <-ended }()
	set := func(secs int, want mongoerr.Code) {
		t.Helper()
		if r := c.raw("admin", fmt.Sprintf(`{"setClusterParameter": {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": %d}}}}`, secs)); want != 0 && r["code"] != int32(want) || want == 0 && r["ok"] != 1.0 {
			t.Errorf("%d: %v, want code %d", secs, r, want)
		}
	}
	get := func(p cluster.Peer) string {
		t.Helper()
		return show(c.admin(p, bson.D{{Key: "getClusterParameter", Value: "changeStreamOptions"}, {Key: "$db", Value: "admin"}})["clusterParameters"])
	}
	set(11, 0)
	first := get(c.confP)
	away.Store(true)
	waits := c.later("admin", `{"setClusterParameter": {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": 22}}}}`)
	c.until("the others have it", func() bool { return get(c.confP) != first && get(c.shards["shard0"]) == get(c.confP) })
	if got := get(c.shards["shard1"]); got != first || get(c.shards["shard0"]) != get(c.confP) {
		t.Errorf("shard1 has %s, shard0 %s, the config server %s", got, get(c.shards["shard0"]), get(c.confP))
	}
	away.Store(false)
	if m := <-waits; m["ok"] != 1.0 {
		t.Errorf("answered %v when the shard is back", m)
	}
	c.until("shard1 has what the config server has", func() bool { return get(c.shards["shard1"]) == get(c.confP) })
	late := c.admin(c.confP, bson.D{{Key: "getClusterParameter", Value: "changeStreamOptions"}, {Key: "$db", Value: "admin"}})["clusterParameters"].(bson.A)[0]
	set(33, 0)
	c.admin(c.shards["shard1"], bson.D{{Key: "_shardsvrSetClusterParameter", Value: late}, {Key: "$db", Value: "admin"}})
	if got := get(c.shards["shard1"]); got != get(c.confP) || !strings.Contains(got, "33") {
		t.Errorf("after a late message: %s, the config server has %s", got, get(c.confP))
	}
}

// A shard that was added, but did not receive a parameter that was set meanwhile, receives it when it is added again: the second addShard used to
// reply that the shard existed, and the shard kept the former value.
func TestShardAddedAgainIsToldParameters(t *testing.T) {
	var c *testCluster
	joins := 0
	watch := func(shard string, m *wire.Message) error {
		if shard != "shard1" || string(m.CommandName()) != "_addShard" {
			return nil
		}
		switch joins++; joins {
		case 1: // a router that does not know the shard sets a parameter
			c.admin(c.confP, bson.D{{Key: "setClusterParameter", Value: bson.D{{Key: "defaultMaxTimeMS", Value: bson.D{{Key: "readOperations", Value: 12345}}}}}, {Key: "$db", Value: "admin"}})
		case 2:
			return mongoerr.New(mongoerr.HostUnreachable, "the shard is away")
		}
		return nil
	}
	c = newWatchedCluster(t, 1, func(shard string, m *wire.Message) error {
		if c == nil {
			return nil
		}
		return watch(shard, m)
	})
	s := c.opened(shardnode.Config{SetName: "shard1", Host: "shard1:27018"})
	if err := s.Initiate(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := c.add("shard1", "shard1:27018", s); mongoerr.CodeOf(err) != mongoerr.HostUnreachable {
		t.Fatalf("addShard while the shard is away: %v", err)
	}
	if err := c.add("shard1", "shard1:27018", s); err != nil {
		t.Fatalf("addShard again: %v", err)
	}
	got := c.admin(s.Peer(), bson.D{{Key: "getClusterParameter", Value: "defaultMaxTimeMS"}, {Key: "$db", Value: "admin"}})["clusterParameters"].(bson.A)[0]
	if n := field(got, "readOperations"); fmt.Sprint(n) != "12345" {
		t.Errorf("the shard's defaultMaxTimeMS: %v", n)
	}
}
