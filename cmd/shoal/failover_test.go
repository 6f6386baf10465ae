package main

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// An application whose driver retries writes notices nothing but a pause when its primary steps down or is killed,
// whether it speaks to the set or to a router. TestFailoverTimes measures the pause.
func TestFailoversAreNotSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("starts eleven servers")
	}
	majority := options.Collection().SetWriteConcern(writeconcern.Majority())
	t.Run("set", func(t *testing.T) {
		t.Parallel()
		rs := launchSetAt(t, 3, false)
		coll := connect(t, rs.uri()).Database("failover").Collection("c", majority)
		for _, kind := range []string{"step down", "kill"} {
			t.Logf("%s: a pause of %v", kind, failover(t, rs, coll.InsertOne, kind))
		}
	})
	t.Run("router", func(t *testing.T) {
		t.Parallel()
		c := launchCluster(t, 1, 1)
		c.admin(bson.D{{Key: "enableSharding", Value: "failover"}, {Key: "primaryShard", Value: shardName(1)}})
		coll := c.client.Database("failover").Collection("c", majority)
		for _, kind := range []string{"step down", "kill"} {
			t.Logf("%s: a pause of %v", kind, failover(t, c.shards[1], coll.InsertOne, kind))
		}
	})
}
