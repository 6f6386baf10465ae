package main

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A change stream through a router continues when the primary of the config server, which it watches for shards that join, is killed: no
// getMore fails, and no event is missing.
func TestStreamOverAConfigElection(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five servers")
	}
	t.Parallel()
	c := launchCluster(t, clusterOptions{configs: 3, shards: []int{1}, net: newNetwork(t)})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	db := c.client.Database("watch")
	insert := func(i int) {
		t.Helper()
		if _, err := db.Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	insert(0)
	type reply struct {
		Cursor struct {
			ID        int64
			NextBatch []struct {
				DocumentKey struct {
					ID int `bson:"_id"`
				} `bson:"documentKey"`
			}
		}
	}
	open := func() int64 {
		t.Helper()
		var r reply
		pipeline := bson.A{bson.D{{Key: "$changeStream", Value: bson.D{}}}}
		if err := db.RunCommand(ctx, bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: pipeline}, {Key: "cursor", Value: bson.D{}}}).Decode(&r); err != nil {
			t.Fatal(err)
		}
		return r.Cursor.ID
	}
	next := 1
	for round := range 2 {
		id, first := open(), next
		p := c.config.elected()
		for range 5 {
			insert(next)
			next++
		}
		c.config.kill(p)
		for range 5 {
			insert(next)
			next++
		}
		for tries := 0; first < next; tries++ {
			var r reply
			if err := db.RunCommand(ctx, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}, {Key: "maxTimeMS", Value: 500}}).Decode(&r); err != nil || tries > 60 {
				t.Fatalf("round %d, try %d, at event %d of %d: %v", round, tries, first, next, err)
			}
			for _, e := range r.Cursor.NextBatch {
				if e.DocumentKey.ID != first {
					t.Fatalf("round %d: the event of %d, want %d", round, e.DocumentKey.ID, first)
				}
				first++
			}
		}
		c.config.start(p)
		c.config.waitReady()
	}
}
