package main

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/internal/await"
)

// The primary of a config shard is killed, twice: another member takes over as config server and as shard, what was acknowledged is there, and
// chunks are moved and databases are made as before.
func TestConfigShardElections(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts five servers")
	}
	c := launchCluster(t, clusterOptions{configs: 3, shards: []int{1}, net: newNetwork(t)})
	c.admin(bson.D{{Key: "transitionFromDedicatedConfigServer", Value: 1}})
	c.admin(bson.D{{Key: "enableSharding", Value: "own"}, {Key: "primaryShard", Value: "config"}})
	c.admin(bson.D{{Key: "shardCollection", Value: "own.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	coll := c.client.Database("own").Collection("c", options.Collection().SetWriteConcern(writeconcern.Majority()))
	next := 0
	insert := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		for end := next + 50; next < end; next++ {
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: next}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for round, to := range []string{shardName(0), "config"} {
		insert()
		killed := c.config.killPrimary()
		insert()
		c.admin(bson.D{{Key: "moveChunk", Value: "own.c"}, {Key: "find", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "to", Value: to}})
		insert()
		c.admin(bson.D{{Key: "enableSharding", Value: []string{"one", "two"}[round]}, {Key: "primaryShard", Value: "config"}})
		killed.start()
		await.True(t, "the member follows", func() bool { return killed.hello()["secondary"] == true })
	}
	if n, err := coll.CountDocuments(t.Context(), bson.D{}); err != nil || int(n) != next {
		t.Errorf("%d documents of %d acknowledged ones (%v)", n, next, err)
	}
	c.config.sameEverywhere("own")
}
