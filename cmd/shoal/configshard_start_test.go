package main

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shardsOf lists the shards of a cluster.
func shardsOf(t *testing.T, client *mongo.Client) (ids []string) {
	t.Helper()
	var r struct {
		Shards []struct {
			ID string `bson:"_id"`
		}
	}
	if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "listShards", Value: 1}}).Decode(&r); err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Shards {
		ids = append(ids, s.ID)
	}
	return ids
}

// A cluster started with a config shard has it beside the other shards, also as its only shard, and after a restart without the option.
func TestStartWithConfigShard(t *testing.T) {
	dir := t.TempDir()
	for i, step := range []struct {
		configShard bool
		shards      int
		want        string
	}{{true, 0, "config"}, {false, 1, "config shard00"}, {true, 2, "config shard00 shard01"}} {
		h := startHere(t, func(c *config) {
			c.DBPath, c.Memory, c.ConfigShard, c.Shards = dir, false, step.configShard, step.shards
		})
		client := connect(t, h.URI)
		if got := strings.Join(slices.Sorted(slices.Values(shardsOf(t, client))), " "); got != step.want {
			t.Errorf("start %d: the shards %s, want %s", i, got, step.want)
		}
		if strings.Contains(h.What, "config shard") != step.configShard {
			t.Errorf("start %d is described as %s", i, h.What)
		}
		coll := client.Database("db").Collection("c")
		if i == 0 {
			if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "shardCollection", Value: "db.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
		if n, err := coll.CountDocuments(t.Context(), bson.D{}); err != nil || n != int64(i+1) {
			t.Errorf("start %d: %d documents (%v)", i, n, err)
		}
		h.stop()
	}
}

func TestConfigShardOptions(t *testing.T) {
	for args, want := range map[string]string{
		"--shards 0":                           "--shards takes 0 with --config-shard",
		"--config-shard --topology replset":    "--config-shard is for --topology sharded",
		"--config-shard --shards 0":            "",
		"--config-shard --shards 0 --memory":   "",
		"--config-shard --topology=standalone": "--config-shard is for --topology sharded",
	} {
		_, err := parse(isStart, strings.Fields(args))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", args, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// A config shard with users: the cluster's users reach what it stores as they reach it on other shards, and what it has as a config server only as before.
func TestConfigShardWithUsers(t *testing.T) {
	for name, with := range map[string]func(c *config){
		"auth":    func(*config) {},
		"keyFile": func(c *config) { c.Security.KeyFile = writeKey(t) },
	} {
		t.Run(name, func(t *testing.T) {
			g := startGuardedWith(t, "sharded", func(c *config) {
				c.ConfigShard, c.Shards = true, 1
				c.Parameters = append(c.Parameters, pair{"orphanCleanupDelaySecs", "0"})
				with(c)
			})
			root := g.root()
			g.must(root, "admin", "enableSharding", "own", "primaryShard", "config")
			g.must(root, "own", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
			g.must(root, "admin", "shardCollection", "own.s", "key", bson.D{{Key: "_id", Value: 1}})
			g.must(root, "own", "createUser", "reader", "pwd", "secret", "roles", bson.A{"read"})
			reader := g.clientOf("own", "reader", "secret")
			if n := g.must(reader, "own", "count", "c")["n"]; n != int32(1) {
				t.Errorf("the reader counts %v", n)
			}
			for db, coll := range map[string]string{"config": "shards", "admin": "system.users"} {
				if _, code, _ := run1(reader, db, "count", coll); code != int(mongoerr.Unauthorized) {
					t.Errorf("the reader counts %s.%s: %d", db, coll, code)
				}
			}
			for _, cmd := range [][]any{{"transitionToDedicatedConfigServer", 1}, {"transitionFromDedicatedConfigServer", 1}} {
				if _, code, _ := run1(reader, "admin", cmd...); code != int(mongoerr.Unauthorized) {
					t.Errorf("%v by a reader: %d", cmd, code)
				}
			}
			g.must(root, "admin", "moveChunk", "own.s", "find", bson.D{{Key: "_id", Value: 1}}, "to", shardName(0))
			g.must(root, "admin", "movePrimary", "own", "to", shardName(0))
			await.State(t, "the config server is a dedicated one", func() (any, bool) {
				state := g.must(root, "admin", "transitionToDedicatedConfigServer", 1)["state"]
				return state, state == "completed"
			})
			if n := g.must(reader, "own", "count", "c")["n"]; n != int32(1) {
				t.Errorf("the reader counts %v after the transition", n)
			}
		})
	}
}
