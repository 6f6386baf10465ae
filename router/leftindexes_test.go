package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
)

// A shard that has owned chunks keeps its copy of the collection, and is not asked to drop an index when it owns none. Chunks move there all the same: the copy, empty or
// with orphans only, gets the indexes of the donor.
func TestChunksMoveToCopiesWithOtherIndexes(t *testing.T) {
	for _, orphans := range []bool{false, true} {
		c := newTestCluster(t, 2)
		c.fill(20)
		c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "dropped"}, {"key": {"g": 1, "k": 1}, "name": "changed"}, {"key": {"h": 1}, "name": "kept"}]}`)
		if orphans {
			c.param("shard1", "orphanCleanupDelaySecs", 3600)
		}
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "find": {"k": 15}, "to": "shard0", "_waitForDelete": %v}`, !orphans))
		c.run("db", `{"dropIndexes": "c", "index": ["dropped", "changed"]}`)
		c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "g": -1}, "name": "changed"}]}`)
		c.run("db", `{"collMod": "c", "index": {"name": "kept", "hidden": true}}`)

		c.run("admin", `{"moveChunk": "db.c", "find": {"k": 15}, "to": "shard1"}`)
		var lists [2]string
		for i, shard := range []string{"shard0", "shard1"} {
			var specs []string
			for _, spec := range get(c.admin(c.shards[shard], bson.D{{Key: "listIndexes", Value: "c"}, {Key: "$db", Value: "db"}})["cursor"], "firstBatch").(bson.A) {
				specs = append(specs, show(spec))
			}
			slices.Sort(specs)
			lists[i] = strings.Join(specs, " ")
		}
		if lists[0] != lists[1] || !strings.Contains(lists[0], "changed") || strings.Contains(lists[0], "dropped") {
			t.Errorf("orphans %v: indexes\n%s and\n%s", orphans, lists[0], lists[1])
		}
		if got := c.inconsistent("db", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); got != "" {
			t.Errorf("orphans %v: %s", orphans, got)
		}
	}
}

// A move of chunks is no change of the collection: streams have no event of the copy that the recipient creates, nor of indexes that it brings in line with the donor's.
func TestMovesOfChunksAreNoDefinitions(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g"}]}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 1}]}`)
	s, first := c.watch("c", bson.D{{Key: "showExpandedEvents", Value: true}})
	move := func(to string) {
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "find": {"k": 1}, "to": %q, "_waitForDelete": true}`, to))
	}
	move("shard1") // which has no copy
	move("shard0")
	c.run("db", `{"dropIndexes": "c", "index": "g"}`)
	move("shard1") // whose copy has the index
	c.run("db", `{"insert": "c", "documents": [{"_id": 2, "k": 2}]}`)
	var kinds []string
	for _, e := range append(first, s.rest(2)...) {
		kinds = append(kinds, field(e, "operationType").(string))
	}
	c.expect(kinds, `["dropIndexes","insert"]`)
}

// A message that creates the copy for a migration, with a list of indexes from before a createIndexes, arrives late. The index stays on a shard that owns chunks, if all of them are empty, too.
func TestLateCopyDropsNoIndexOfAnOwner(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.run("db", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
	late := &msg.CreateCollectionParticipant{NS: "db.c", UUID: c.server["shard1"].Node.Engine.Catalog().Lookup("db.c").UUID}
	for _, spec := range c.all("db", `{"listIndexes": "c"}`) {
		raw, err := bson.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		late.Indexes = append(late.Indexes, raw)
	}
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g"}]}`)
	if _, err := cluster.Run(t.Context(), c.shards["shard1"], msg.Doc(late)); err != nil {
		t.Fatal(err)
	}
	if got := c.hasIndex("db.c", "g"); len(got) != 2 {
		t.Errorf("the shards with the index are %v", got)
	}
}
