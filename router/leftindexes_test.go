package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
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
