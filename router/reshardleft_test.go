package router_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard that has no documents of a collection, only an empty copy from when it had chunks, is removed and stops while the collection is resharded: the
// resharding ends without it, one way or the other, as it does beside a shard that joins. It used to wait for the shard for ever, over restarts, and no other could
// begin. The donors and recipients cannot be removed before its end.
func TestIdleShardLeavesDuringResharding(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"preparing-to-donate", "cloning", "applying", "blocking-writes", "committing", "done", "aborting"} {
		var left atomic.Bool
		c := newWatchedCluster(t, 4, func(shard string, _ *wire.Message) error {
			if shard == "shard3" && left.Load() {
				return mongoerr.New(mongoerr.HostUnreachable, "the shard has left")
			}
			return nil
		})
		c.config.Points = c.points["config"]
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		c.insertKeys("c", 1, 10)
		for _, to := range []string{"shard3", "shard2", "shard1"} { // in the end shard1 alone has documents
			c.run("admin", `{"moveRange": "db.c", "min": {"k": {"$minKey": 1}}, "max": {"k": {"$maxKey": 1}}, "toShard": "`+to+`", "_waitForDelete": true}`)
		}
		if state == "aborting" { // the clone finds the same _id twice
			c.run("admin", `{"split": "db.c", "middle": {"k": 100}}`)
			c.run("admin", `{"moveChunk": "db.c", "find": {"k": 100}, "to": "shard0", "_waitForDelete": true}`)
			c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 100, "from": 1}]}`)
		}
		before, other := c.counted("c", 1), c.through()
		remove := func(shard string) any { return other.run("admin", `{"removeShard": "`+shard+`"}`)["state"] }
		for _, shard := range []string{"shard1", "shard3"} { // which thereby receive nothing
			remove(shard)
		}
		reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", state)
		answer := make(chan bson.M, 1)
		go func() {
			answer <- c.raw("admin", `{"reshardCollection": "db.c", "key": {"from": 1}, "numInitialChunks": 1, "shardDistribution": [{"shard": "shard2"}]}`)
		}()
		reached()
		doc := c.all("config", `{"find": "reshardingOperations"}`)[0]
		if idle := show(get(doc, "idleShards")); idle != `[{"id":"shard3"}]` {
			t.Fatalf("%s: idle shards: %s", state, idle)
		}
		stay := []string{"shard1"}
		if state != "preparing-to-donate" { // which looks once more whether its recipients are draining
			remove("shard2")
			stay = append(stay, "shard2")
		}
		for _, shard := range stay {
			if got := remove(shard); got != "ongoing" {
				t.Errorf("%s: the removal of %s is %v", state, shard, got)
			}
		}
		c.until("shard3 is removed", func() bool { return remove("shard3") == "completed" })
		left.Store(true)
		joins := c.opened(shardnode.Config{SetName: "shard4", Host: "shard4:27018"})
		if err := joins.Initiate(context.Background()); err != nil {
			t.Fatal(err)
		}
		c.join("shard4", "shard4:27018", joins)
		release()
		if m := <-answer; (m["ok"] == 1.0) == (state == "aborting") {
			t.Errorf("%s: %v", state, m)
		}
		delete(c.shards, "shard3")
		c.leftOver()
		c.expect(c.counted("c", 1), show(before))
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		c.run("db", `{"delete": "c", "deletes": [{"q": {"k": 100}, "limit": 0}]}`)
		c.run("admin", `{"unshardCollection": "db.c", "toShard": "shard4"}`)
		for _, shard := range stay {
			c.until(shard+" is removed", func() bool { return remove(shard) == "completed" })
		}
	}
}

// The config server stops being a shard while it is an idle one of a resharding, which ends.
func TestIdleConfigShardLeavesDuringResharding(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"cloning", "committing", "done"} {
		c := newTestCluster(t, 2)
		withConfigShard(c)
		c.config.Points = c.points["config"]
		c.reshardings()
		c.run("admin", `{"transitionFromDedicatedConfigServer": 1}`)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		c.insertKeys("c", 1, 10)
		for _, to := range []string{"config", "shard1"} {
			c.run("admin", `{"moveRange": "db.c", "min": {"k": {"$minKey": 1}}, "max": {"k": {"$maxKey": 1}}, "toShard": "`+to+`", "_waitForDelete": true}`)
		}
		other := c.through()
		remove := func() any {
			return other.run("admin", `{"transitionToDedicatedConfigServer": 1, "maxTimeMS": 100000}`)["state"]
		}
		remove()
		reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", state)
		answer := make(chan bson.M, 1)
		go func() {
			answer <- c.raw("admin", `{"reshardCollection": "db.c", "key": {"from": 1}, "numInitialChunks": 1}`)
		}()
		reached()
		if idle := show(get(c.all("config", `{"find": "reshardingOperations"}`)[0], "idleShards")); idle != `[{"id":"config"}]` {
			t.Fatalf("%s: idle shards: %s", state, idle)
		}
		c.until("the config server is dedicated", func() bool { return remove() == "completed" })
		release()
		if m := <-answer; m["ok"] != 1.0 {
			t.Errorf("%s: %v", state, m)
		}
		c.leftOver()
		c.expect(c.counted("c", 1), `10`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		if names := collectionsOn(c, "config", "db"); len(names) > 0 {
			t.Errorf("%s: the config server has %v", state, names)
		}
	}
}

// collectionsOn lists the collections of a database that a shard has.
func collectionsOn(c *testCluster, shard, db string) (names []string) {
	m := c.admin(c.shards[shard], bson.D{{Key: "listCollections", Value: 1}, {Key: "nameOnly", Value: true}, {Key: "$db", Value: db}})
	for _, d := range get(m["cursor"], "firstBatch").(bson.A) {
		names = append(names, get(d, "name").(string))
	}
	slices.Sort(names)
	return names
}
