package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/wire/mongoerr"
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
		c.run("db", `{"collMod": "c", "validator": {"bad": {"$exists": false}}, "changeStreamPreAndPostImages": {"enabled": true}}`)

		c.run("admin", `{"moveChunk": "db.c", "find": {"k": 15}, "to": "shard1"}`)
		lists := [2]string{c.definitionOn("shard0"), c.definitionOn("shard1")}
		if lists[0] != lists[1] || !strings.Contains(lists[0], "changed") || strings.Contains(lists[0], "dropped") || !strings.Contains(lists[0], "bad") {
			t.Errorf("orphans %v: definitions\n%s and\n%s", orphans, lists[0], lists[1])
		}
		if m := c.raw("db", `{"insert": "c", "documents": [{"_id": 100, "k": 16, "bad": 1}]}`); m["n"] != int32(0) {
			t.Errorf("orphans %v: an invalid document: %v", orphans, m)
		}
		if got := c.inconsistent("db", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); got != "" {
			t.Errorf("orphans %v: %s", orphans, got)
		}
	}
}

// A database moves to a shard that has orphans of a sharded collection, and lacks an index that was created since: it was refused until they were due to be deleted.
func TestMovePrimaryToAShardWithOrphans(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.param("shard1", "orphanCleanupDelaySecs", 3600)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 15}, "to": "shard0"}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"h": 1}, "name": "h"}]}`)
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	if a, b := c.definitionOn("shard0"), c.definitionOn("shard1"); a != b {
		t.Errorf("definitions\n%s and\n%s", a, b)
	}
	c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
}

// definitionOn returns the options and indexes of db.c on a shard.
func (c *testCluster) definitionOn(shard string) string {
	c.t.Helper()
	var specs []string
	for _, cmd := range []string{"listIndexes", "listCollections"} {
		for _, d := range get(c.admin(c.shards[shard], bson.D{{Key: cmd, Value: "c"}, {Key: "$db", Value: "db"}})["cursor"], "firstBatch").(bson.A) {
			specs = append(specs, show(d))
		}
	}
	slices.Sort(specs)
	return strings.Join(specs, " ")
}

// A shard that receives its first chunk of a collection takes no part in DDL that runs meanwhile, and would keep the former definition. The migration fails, and the next one succeeds.
func TestDefinitionChangesDuringAMigration(t *testing.T) {
	for _, cmds := range [][]string{
		{`{"collMod": "c", "validator": {"bad": {"$exists": false}}}`},
		{`{"collMod": "c", "index": {"name": "g", "hidden": true}}`},
		{`{"dropIndexes": "c", "index": "g"}`, `{"createIndexes": "c", "indexes": [{"key": {"g": -1}, "name": "g"}]}`},
	} {
		c := newTestCluster(t, 2)
		c.sharded("c", 20)
		c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g"}]}`)
		entered := c.point("shard0", "moveChunkHangAtStep4", true)
		moved := c.later("admin", `{"moveChunk": "db.c", "find": {"_id": 15}, "to": "shard1"}`)
		entered()
		for _, cmd := range cmds {
			c.run("db", cmd)
		}
		c.point("shard0", "moveChunkHangAtStep4", false)
		if m := <-moved; m["code"] != int32(mongoerr.ConflictingOperationInProgress) {
			t.Errorf("%s: the chunk is moved: %v", cmds, m)
		}
		c.run("admin", `{"moveChunk": "db.c", "find": {"_id": 15}, "to": "shard1"}`)
		if a, b := c.definitionOn("shard0"), c.definitionOn("shard1"); a != b {
			t.Errorf("%s: definitions\n%s and\n%s", cmds, a, b)
		}
		if got := c.inconsistent("db", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); got != "" {
			t.Errorf("%s: %s", cmds, got)
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
	c.run("db", `{"collMod": "c", "validationLevel": "moderate"}`)
	move("shard1") // whose copy has the index, and the former options
	c.run("db", `{"insert": "c", "documents": [{"_id": 2, "k": 2}]}`)
	var kinds []string
	for _, e := range append(first, s.rest(3)...) {
		kinds = append(kinds, field(e, "operationType").(string))
	}
	c.expect(kinds, `["dropIndexes","modify","insert"]`)
}

// Changes of a collection's definition are events of the shards that own it. The copy on the primary shard, which owns nothing, is changed with them and has none; and an event has what the client sent, not what names the
// coordinator's run.
func TestDefinitionsAreEventsOfOwners(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "c"}`)
	c.run("admin", `{"moveCollection": "db.c", "toShard": "shard1"}`)
	s, first := c.watch("c", bson.D{{Key: "showExpandedEvents", Value: true}})
	c.run("db", `{"collMod": "c", "validationLevel": "moderate"}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g"}]}`)
	c.run("db", `{"collMod": "c", "index": {"name": "g", "hidden": true}}`)
	c.run("db", `{"dropIndexes": "c", "index": "g"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	var kinds []string
	for _, e := range append(first, s.rest(5)...) {
		kinds = append(kinds, field(e, "operationType").(string))
		if d := show(field(e, "operationDescription")); strings.Contains(d, "ddlRun") {
			t.Errorf("an event has %s", d)
		}
	}
	c.expect(kinds, `["modify","createIndexes","modify","dropIndexes","insert"]`)
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
