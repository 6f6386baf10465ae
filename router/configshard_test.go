package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// withConfigShard lets the config server of a test become a shard.
func withConfigShard(c *testCluster) {
	c.shards["config"] = newShardPeer(c.conf.Peer())
	c.server["config"] = c.conf
	c.conf.OnJoin(func(id migration.Identity) (*migration.ShardState, error) {
		reg := cluster.NewRegistry(c.confP, c.clock, c.dial)
		return migration.NewShardState(id.Shard, cluster.NewCatalog(c.confP), reg, c.clock), nil
	})
}

// A config server that is made a shard stores collections, takes part in migrations and DDL, and is listed; drained it is a dedicated config
// server again, which keeps nothing, and can be made a shard once more.
func TestConfigShard(t *testing.T) {
	c := newTestCluster(t, 2)
	withConfigShard(c)
	c.fill(20)
	if m := c.raw("admin", `{"transitionToDedicatedConfigServer": 1}`); m["code"] != int32(mongoerr.ShardNotFound) {
		t.Fatalf("a dedicated config server: %v", m)
	}
	for range 2 {
		c.run("admin", `{"transitionFromDedicatedConfigServer": 1}`)
		c.run("admin", `{"transitionFromDedicatedConfigServer": 1}`) // again
		shards := c.run("admin", `{"listShards": 1}`)["shards"].(bson.A)
		if len(shards) != 3 || get(shards[0], "_id") != "config" || get(shards[0], "host") != "config:27019" {
			t.Fatalf("shards: %v", shards)
		}

		c.run("admin", `{"moveChunk": "db.c", "find": {"k": 15}, "to": "config", "_waitForDelete": true}`)
		c.expect(c.onShard("config", "c"), `10`)
		c.run("db", `{"update": "c", "updates": [{"q": {"k": 15}, "u": {"$set": {"x": 1}}}]}`)
		c.expect(c.all("db", `{"find": "c", "filter": {"x": 1}, "projection": {"k": 1, "_id": 0}}`), `[{"k":15}]`)
		c.run("db", `{"update": "c", "updates": [{"q": {"k": 15}, "u": {"$unset": {"x": 1}}}]}`)

		// Change streams have its events.
		stream := get(c.run("db", `{"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}`)["cursor"], "id").(int64)
		c.run("db", `{"update": "c", "updates": [{"q": {"k": 16}, "u": {"$inc": {"n": 1}}}]}`)
		await.True(t, "the event of the config shard", func() bool {
			m := c.run("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c", "maxTimeMS": 1000}`, stream))
			return len(get(m["cursor"], "nextBatch").(bson.A)) == 1
		})
		c.run("db", fmt.Sprintf(`{"killCursors": "c", "cursors": [{"$numberLong": "%d"}]}`, stream))

		// Its own databases: DDL is coordinated by the config server.
		c.run("admin", `{"enableSharding": "own", "primaryShard": "config"}`)
		c.run("own", `{"insert": "u", "documents": [{"_id": 1}]}`)
		c.run("own", `{"createIndexes": "u", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
		c.run("admin", `{"shardCollection": "own.s", "key": {"_id": 1}}`)
		c.run("own", `{"insert": "s", "documents": [{"_id": 1}, {"_id": 2}]}`)
		c.run("admin", `{"renameCollection": "own.s", "to": "own.t"}`)
		c.expect(c.run("own", `{"count": "t"}`)["n"], `2`)
		c.run("own", `{"drop": "t"}`)
		names := map[any]bool{}
		for _, d := range c.run("admin", `{"listDatabases": 1, "nameOnly": true}`)["databases"].(bson.A) {
			if name := get(d, "name"); names[name] {
				t.Errorf("the database %v is listed twice", name)
			} else {
				names[name] = true
			}
		}
		if !names["own"] || !names["config"] || !names["db"] {
			t.Errorf("databases: %v", names)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)

		m := c.run("admin", `{"transitionToDedicatedConfigServer": 1}`)
		c.expect(m["state"], `"started"`)
		c.expect(m["dbsToMove"], `["own"]`)
		m = c.run("admin", `{"transitionToDedicatedConfigServer": 1}`)
		c.expect(m["state"], `"ongoing"`)
		c.expect(get(m["remaining"], "chunks"), `1`)
		c.run("admin", `{"movePrimary": "own", "to": "shard0"}`)
		c.run("own", `{"dropDatabase": 1}`)
		c.run("admin", `{"moveChunk": "db.c", "find": {"k": 15}, "to": "shard1", "_waitForDelete": true}`)
		await.True(t, "the config server is drained", func() bool {
			return c.run("admin", `{"transitionToDedicatedConfigServer": 1}`)["state"] == "completed"
		})
		if n := len(c.run("admin", `{"listShards": 1}`)["shards"].(bson.A)); n != 2 {
			t.Fatalf("%d shards are left", n)
		}
		left := c.admin(c.shards["config"], bson.D{{Key: "listCollections", Value: 1}, {Key: "$db", Value: "db"}})
		c.expect(get(left["cursor"], "firstBatch"), `[]`)
		c.expect(c.run("db", `{"count": "c"}`)["n"], `20`)
	}
	entry := c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0]
	lo, _ := bson.Marshal(bson.D{{Key: "k", Value: 10}})
	hi, _ := bson.Marshal(bson.D{{Key: "k", Value: bson.MaxKey{}}})
	late := msg.Doc(&msg.CommitChunkMigration{NS: "db.c", From: "shard1", To: "config", Range: msg.Range{Min: lo, Max: hi}, Epoch: cluster.Epoch(get(entry, "lastmodEpoch").(bson.ObjectID))})
	if _, err := cluster.Run(t.Context(), c.confP, late); mongoerr.CodeOf(err) != mongoerr.ShardNotFound {
		t.Errorf("the commit of a migration to a removed shard: %v", err)
	}
	if m := c.raw("admin", `{"addShard": "config/config:27019", "name": "other"}`); m["ok"] == 1.0 {
		t.Errorf("the config server was added as another shard: %v", m)
	}
	if m := c.raw("admin", `{"addShard": "shard0/shard0:27018", "name": "config"}`); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("a shard named config: %v", m)
	}
}

// A config server that is drained does not cease to be a shard while it has ranges to delete, which queries may still read (manual: transitionToDedicatedConfigServer).
func TestDrainedConfigServerDeletesItsRangesFirst(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	withConfigShard(c)
	c.fill(20)
	c.run("admin", `{"transitionFromDedicatedConfigServer": 1}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 15}, "to": "config", "_waitForDelete": true}`)
	c.param("config", "disableResumableRangeDeleter", true)
	c.run("admin", `{"transitionToDedicatedConfigServer": 1}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 15}, "to": "shard1"}`)
	m := c.run("admin", `{"transitionToDedicatedConfigServer": 1}`)
	if m["state"] != "pendingDataCleanup" || m["pendingRangeDeletions"] != int64(1) {
		t.Errorf("with a range to delete: %v", m)
	}
	c.expect(c.onShard("config", "c"), `10`)
	c.param("config", "disableResumableRangeDeleter", false)
	c.until("the config server is drained", func() bool {
		return c.run("admin", `{"transitionToDedicatedConfigServer": 1}`)["state"] == "completed"
	})
	c.expect(c.run("db", `{"count": "c"}`)["n"], `20`)
}
