package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A drop of a collection without an entry in the catalog reaches the copies that other shards have of it, whether its primary shard has it or not.
func TestDropReachesStrayCopies(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"insert": "both", "documents": [{"_id": 1}]}`)
	for _, coll := range []string{"both", "only"} {
		c.admin(c.shards["shard1"], bson.D{{Key: "create", Value: coll}, {Key: "$db", Value: "db"}})
	}
	c.expect(len(c.all("db", `{"checkMetadataConsistency": 1}`)), `2`)
	c.run("db", `{"drop": "both"}`)
	c.run("db", `{"drop": "only"}`)
	c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)
	for id, peer := range c.shards {
		left := c.admin(peer, bson.D{{Key: "listCollections", Value: 1}, {Key: "$db", Value: "db"}})
		if n := len(get(left["cursor"], "firstBatch").(bson.A)); n != 0 {
			t.Errorf("%s has %d collections left", id, n)
		}
	}
}
