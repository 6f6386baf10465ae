package router_test

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// cachedTables lists the collections of which a shard has a routing table on disk: by the entry, the chunks or both.
func (c *testCluster) cachedTables(shard string) (names []string) {
	c.t.Helper()
	m := c.admin(c.shards[shard], bson.D{{Key: "find", Value: "cache.collections"}, {Key: "batchSize", Value: 1000}, {Key: "$db", Value: "config"}})
	for _, d := range get(m["cursor"], "firstBatch").(bson.A) {
		names = append(names, get(d, "_id").(string))
	}
	for _, name := range collectionsOn(c, shard, "config") {
		if ns, ok := strings.CutPrefix(name, "cache.chunks."); ok {
			names = append(names, ns)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// noTablesOfTheGone waits until no shard has a routing table on disk of a collection without an entry in the catalog.
func (c *testCluster) noTablesOfTheGone(when string) {
	c.t.Helper()
	for id := range c.shards {
		await.State(c.t, "no routing table of a collection that is gone is left on "+id+" "+when, func() (any, bool) {
			var have []string
			for _, d := range c.all("config", `{"find": "collections"}`) {
				have = append(have, get(d, "_id").(string))
			}
			left := slices.DeleteFunc(c.cachedTables(id), func(ns string) bool { return slices.Contains(have, ns) })
			return left, len(left) == 0
		})
	}
}

// Shards remove the routing tables on disk of collections that are gone, also of the temporary one of a resharding, however that ends. It used to stay after one that was aborted.
func TestTablesOnDiskOfCollectionsThatAreGone(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.halved("c")
	for _, restarted := range []bool{false, true} {
		reached, release := c.hangOn("shard0", "reshardingPauseRecipientAtState", "state", "applying")
		answer, other := c.later("admin", `{"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 2}`), c.through()
		reached()
		temp := get(other.all("config", `{"find": "reshardingOperations"}`)[0], "tempNs").(string)
		for id := range c.shards {
			c.until(id+" has the table of the temporary collection", func() bool { return slices.Contains(c.cachedTables(id), temp) })
		}
		aborting, undo := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", "aborting")
		aborted := other.later("admin", `{"abortReshardCollection": "db.c"}`)
		aborting()
		if restarted {
			c.restart("shard1")
		}
		undo()
		release()
		if m := <-aborted; m["ok"] != 1.0 {
			t.Error(m)
		}
		<-answer
		c.noTablesOfTheGone("after an aborted resharding")
	}
	c.run("db", `{"create": "u"}`)
	c.run("db", `{"insert": "u", "documents": [{"_id": 1}]}`)
	for _, cmd := range []string{
		`admin {"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 2}`,
		`admin {"renameCollection": "db.c", "to": "db.d"}`,
		`admin {"moveCollection": "db.u", "toShard": "shard1"}`,
		`db {"convertToCapped": "u", "size": 4096}`,
		`admin {"moveCollection": "db.u", "toShard": "shard0"}`,
		`admin {"untrackUnshardedCollection": "db.u"}`,
		`admin {"moveCollection": "db.u", "toShard": "shard1"}`,
		`db {"drop": "u"}`,
		`admin {"unshardCollection": "db.d", "toShard": "shard1"}`,
		`db {"drop": "d"}`,
		`admin {"shardCollection": "db.e", "key": {"k": "hashed"}}`,
		`db {"dropDatabase": 1}`,
	} {
		for _, d := range c.all("config", `{"find": "collections", "filter": {"_id": {"$regex": "^db"}}}`) { // have all shards store what there is
			for _, p := range c.shards {
				c.admin(p, bson.D{{Key: "_flushRoutingTableCacheUpdates", Value: get(d, "_id")}, {Key: "$db", Value: "admin"}})
			}
		}
		db, body, _ := strings.Cut(cmd, " ")
		c.run(db, body)
		c.noTablesOfTheGone("after " + cmd)
	}
	c.leftOver()
}
