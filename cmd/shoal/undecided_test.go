package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The primary of a donor is killed around the commit of a migration: only the config server knows the outcome. Until the
// new primary knows it, it serves nothing of the collection; from then on each document exists once, on the shard that
// the config server decided on.
func TestNewDonorPrimaryAwaitsTheOutcome(t *testing.T) {
	if testing.Short() {
		t.Skip("starts eight servers")
	}
	t.Parallel()
	const docs = 100
	c := launchCluster(t, clusterOptions{shards: []int{3, 3}, net: newNetwork(t)})
	c.shard("donor.m", docs/2) // the upper half is on the first shard now
	coll := c.client.Database("donor").Collection("m")
	var all []any
	for i := range docs {
		all = append(all, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}})
	}
	if _, err := coll.InsertMany(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	from, written := 0, 0
	for _, tc := range []struct {
		name  string
		step  int
		moves bool
	}{{"not committed", 5, false}, {"committed, and the answer is lost", 6, true}} {
		donor := c.shards[from]
		old, moved := c.hangMigration(donor, docs-1, 1-from, tc.step)
		c.keepOutcome(true)
		donor.kill(old)
		await.True(t, "the donor has another primary", func() bool { now := donor.primary(); return now >= 0 && now != old })
		for name, cmd := range map[string]bson.D{
			"write": {{Key: "update", Value: "m"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: docs - 1}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}}}}},
			"read":  {{Key: "find", Value: "m"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: docs - 1}}}},
		} {
			err := coll.Database().RunCommand(t.Context(), append(cmd, bson.E{Key: "maxTimeMS", Value: 700})).Err()
			// If it was committed the recipient may serve the range, once the router knows.
			if codeOf(err) != int32(mongoerr.MaxTimeMSExpired) && (err != nil || !tc.moves) {
				t.Errorf("%s: a %s before the outcome is known: %v", tc.name, name, err)
			}
			if name == "write" && err == nil {
				written++
			}
		}
		c.keepOutcome(false)
		donor.start(old)
		if err := <-moved; err == nil && !tc.moves {
			t.Errorf("%s: moveChunk reports success", tc.name)
		}
		c.afterMigration(coll, docs)
		var d struct{ N int }
		if err := coll.FindOne(t.Context(), bson.D{{Key: "_id", Value: docs - 1}}).Decode(&d); err != nil || d.N != written {
			t.Errorf("%s: %d writes are there, %d were acknowledged (%v)", tc.name, d.N, written, err)
		}
		if tc.moves {
			from = 1 - from
		}
		var chunk struct{ Shard string }
		if err := c.client.Database("config").Collection("chunks").FindOne(t.Context(), bson.D{{Key: "min._id", Value: docs / 2}}).Decode(&chunk); err != nil || chunk.Shard != shardName(from) {
			t.Errorf("%s: the chunk is on %q (%v)", tc.name, chunk.Shard, err)
		}
	}
}

// keepOutcome has the config server refuse to report the outcome of its migration to a shard; other requests succeed.
func (c *shardedCluster) keepOutcome(on bool) {
	c.t.Helper()
	cmd := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "off"}}
	if on {
		cmd[1].Value = "alwaysOn"
		cmd = append(cmd, bson.E{Key: "data", Value: bson.D{{Key: "errorCode", Value: int(mongoerr.ShutdownInProgress)}, {Key: "failInternalCommands", Value: true},
			{Key: "failCommands", Value: bson.A{"_configsvrEnsureChunkVersionIsGreaterThan"}}}})
	}
	if err := c.config.members[0].admin(c.t.Context(), cmd); err != nil {
		c.t.Fatal(err)
	}
}

// hangMigration moves the chunk of a document to another shard, and stops its donor's primary at a step.
func (c *shardedCluster) hangMigration(donor *replicaSet, id, to, step int) (primary int, moved chan error) {
	c.t.Helper()
	donor.waitReady()
	primary = donor.elected()
	p := donor.members[primary]
	point := fmt.Sprintf("moveChunkHangAtStep%d", step)
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	if err := p.admin(ctx, bson.D{{Key: "configureFailPoint", Value: point}, {Key: "mode", Value: "alwaysOn"}}); err != nil {
		c.t.Fatal(err)
	}
	moved = make(chan error, 1)
	go func() {
		mctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		moved <- c.client.Database("admin").RunCommand(mctx, bson.D{{Key: "moveChunk", Value: "donor.m"}, {Key: "find", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "to", Value: shardName(to)}}).Err()
	}()
	if err := p.admin(ctx, bson.D{{Key: "waitForFailPoint", Value: point}, {Key: "timesEntered", Value: 1}, {Key: "maxTimeMS", Value: 15000}}); err != nil {
		c.t.Fatal(err)
	}
	return primary, moved
}

// afterMigration checks every document, with a write to each, once the migration is settled.
func (c *shardedCluster) afterMigration(coll *mongo.Collection, docs int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	if r, err := coll.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$inc", Value: bson.D{{Key: "m", Value: 1}}}}); err != nil || int(r.ModifiedCount) != docs {
		c.t.Errorf("%+v documents were written to (%v)", r, err)
	}
	c.waitReady()
	c.settle()
	if n, err := coll.CountDocuments(ctx, bson.D{}); err != nil || int(n) != docs {
		c.t.Errorf("%d documents of %d (%v)", n, docs, err)
	}
	c.checkCatalog("donor", "m")
}
