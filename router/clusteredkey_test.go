package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A clustered collection with documents is sharded by _id without another index: the collection is that index. Chunks are split and moved, each _id exists
// once, and a find by _id asks one shard.
func TestClusteredCollectionIsShardedByID(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "u", "clusteredIndex": {"key": {"_id": 1}, "unique": true, "name": "ci"}}`)
	c.insertKeys("u", 1, 20)
	if m := c.raw("admin", `{"shardCollection": "db.u", "key": {"_id": "hashed"}}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Errorf("a hashed key has no index: %v", m)
	}
	c.run("admin", `{"shardCollection": "db.u", "key": {"_id": 1}, "unique": true}`)
	c.run("admin", `{"split": "db.u", "find": {"_id": 0}}`) // in the middle, by the records
	c.expect(c.chunkList("u"), `"shard0:? shard0:0 "`)
	c.run("admin", `{"moveRange": "db.u", "min": {"_id": 0}, "toShard": "shard1"}`)
	c.until("the range is deleted", func() bool { return c.onShard("shard0", "u") == 10 })
	c.expect(c.onShard("shard1", "u"), `10`)
	c.expect(c.counted("u", 1), `20`)
	for _, k := range []int{-10, -1, 0, 9} {
		m := c.raw("db", fmt.Sprintf(`{"insert": "u", "documents": [{"_id": %d}]}`, k))
		if code := get(m["writeErrors"].(bson.A)[0], "code"); code != int32(mongoerr.DuplicateKey) {
			t.Errorf("_id %d exists: %v", k, m)
		}
		x := c.run("db", fmt.Sprintf(`{"explain": {"find": "u", "filter": {"_id": %d}}}`, k))
		if shards := get(get(x["queryPlanner"], "winningPlan"), "shards").(bson.A); len(shards) != 1 {
			t.Errorf("_id %d: %v", k, shards)
		}
		c.expect(len(c.all("db", fmt.Sprintf(`{"find": "u", "filter": {"_id": %d}}`, k))), `1`)
	}
	c.run("db", `{"update": "u", "updates": [{"q": {"_id": 9}, "u": {"$set": {"x": 1}}}]}`)
	c.run("db", `{"delete": "u", "deletes": [{"q": {"_id": -10}, "limit": 1}]}`)
	c.expect(c.counted("u", 1), `19`)
	c.run("db", `{"createIndexes": "u", "indexes": [{"key": {"k": 1}, "name": "k"}, {"key": {"_id": 1, "k": 1}, "name": "both"}]}`)
	c.run("db", `{"dropIndexes": "u", "index": "both"}`) // the clustered one serves
	c.run("db", `{"dropIndexes": "u", "index": "*"}`)
	c.expect(c.inconsistent("db", `{"checkMetadataConsistency": "u"}`), `""`)
	c.run("admin", `{"moveRange": "db.u", "min": {"_id": 0}, "toShard": "shard0"}`)
	c.expect(c.counted("u", 1), `19`)
	var names []string
	for _, x := range c.all("db", `{"listIndexes": "u"}`) {
		names = append(names, get(x, "name").(string))
	}
	c.expect(strings.Join(names, " "), `"ci"`)
}

// One that has been placed by moveCollection is sharded where it is; an empty one, too.
func TestPlacedClusteredCollectionIsShardedByID(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, coll := range []string{"u", "e"} {
		c.run("db", fmt.Sprintf(`{"create": %q, "clusteredIndex": {"key": {"_id": 1}, "unique": true, "name": "ci"}}`, coll))
		if coll == "u" {
			c.insertKeys(coll, 1, 10)
			c.run("admin", `{"moveCollection": "db.u", "toShard": "shard1"}`)
		}
		c.run("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"_id": 1}}`, coll))
		c.run("admin", fmt.Sprintf(`{"split": "db.%s", "middle": {"_id": 0}}`, coll))
		c.run("admin", fmt.Sprintf(`{"moveRange": "db.%s", "max": {"_id": 0}, "toShard": "shard0"}`, coll))
		if coll == "e" {
			c.run("admin", `{"moveRange": "db.e", "min": {"_id": 0}, "toShard": "shard1"}`)
			c.insertKeys(coll, 1, 10)
		}
		c.expect(c.counted(coll, 1), `10`)
		c.expect(c.inconsistent("db", fmt.Sprintf(`{"checkMetadataConsistency": %q}`, coll)), `""`)
	}
}
