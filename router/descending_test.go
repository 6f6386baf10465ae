package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// An index that is descending in the fields of the shard key does not support it (manual: Sharding Restrictions, "a shard key index cannot be a descending index on the
// shard key"); the fields behind them may be descending.
func TestDescendingIndexesSupportNoShardKey(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("c", 1, 10)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": -1}, "name": "down"}]}`)
	refuse := func(db, cmd string, code mongoerr.Code) {
		t.Helper()
		if m := c.raw(db, cmd); m["code"] != int32(code) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	check := func() error {
		cmd, _ := bson.Marshal(bson.D{{Key: "checkShardingIndex", Value: "db.c"}, {Key: "keyPattern", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "$db", Value: "db"}})
		_, err := cluster.Run(t.Context(), c.shards["shard0"], cmd)
		return err
	}
	refuse("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`, mongoerr.InvalidOptions)
	if check() == nil {
		t.Error("checkShardingIndex finds an index")
	}
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "v": -1}, "name": "up"}, {"key": {"k": 1, "w": -1, "x": 1}, "name": "more"}]}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	if err := check(); err != nil {
		t.Error(err)
	}
	refuse("admin", `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "w": 1}}`, mongoerr.InvalidOptions)
	c.run("db", `{"dropIndexes": "c", "index": "more"}`)
	refuse("db", `{"dropIndexes": "c", "index": "up"}`, mongoerr.CannotDropShardKeyIndex)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"_id": 1, "k": -1}, "name": "other"}]}`)
	c.run("admin", `{"reshardCollection": "db.c", "key": {"_id": 1, "k": 1}, "numInitialChunks": 2}`)
	if on := c.hasIndex("db.c", "_id_1_k_1"); len(on) == 0 {
		t.Error("resharding creates no index on the new key")
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
}
