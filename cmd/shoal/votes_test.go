package main

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
)

// A commit over two shards asks for the votes before a majority of the coordinator's set has the list of participants: with sets of several
// members it waits for three majorities, one after the other. Here the coordinator's set has no majority, and the other shard votes.
func TestVotesWaitForNoListOfParticipants(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six servers")
	}
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{3, 1}, net: newNetwork(t)})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c.admin(bson.D{{Key: "enableSharding", Value: "votes"}, {Key: "primaryShard", Value: c.shards[0].name}})
	c.admin(bson.D{{Key: "shardCollection", Value: "votes.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	c.admin(bson.D{{Key: "split", Value: "votes.c"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 0}}}})
	c.admin(bson.D{{Key: "moveChunk", Value: "votes.c"}, {Key: "find", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "to", Value: c.shards[1].name}})
	coll := c.client.Database("votes").Collection("c")
	if _, err := coll.InsertMany(ctx, []any{bson.D{{Key: "_id", Value: -1}, {Key: "n", Value: 0}}, bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 0}}}); err != nil {
		t.Fatal(err)
	}
	s, err := c.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(context.Background())
	sctx := mongo.NewSessionContext(ctx, s)
	begin := func() {
		t.Helper()
		if err := s.StartTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, id := range []int{-1, 1} {
			if _, err := coll.UpdateOne(sctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	begin()
	if err := s.CommitTransaction(sctx); err != nil { // creates the collections
		t.Fatal(err)
	}
	begin()
	set := c.shards[0]
	p := set.elected()
	for i := range set.members {
		if i != p {
			set.members[i].pause()
			defer set.members[i].resume()
		}
	}
	committed := make(chan error, 1)
	go func() { committed <- s.CommitTransaction(sctx) }()
	await.True(t, "the other shard has voted", func() bool {
		var status struct {
			Transactions struct{ CurrentPrepared int64 }
		}
		err := c.shards[1].members[0].direct.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status)
		return err == nil && status.Transactions.CurrentPrepared == 1
	})
	for i := range set.members {
		if i != p {
			set.members[i].resume()
		}
	}
	if err := <-committed; err != nil {
		t.Error(err)
	}
	if n, err := coll.CountDocuments(ctx, bson.D{{Key: "n", Value: 2}}); err != nil || n != 2 {
		t.Errorf("%d documents were changed twice (%v), want 2", n, err)
	}
}
