package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// A process that takes part in a migration is killed alone at one of its steps, while clients write: the recipient, the config server, the
// router, or the donor. The migration ends when the process is back, done or undone: each document is there once, on the shard that owns
// it, and no document of the protocol remains. Retryable writes that were executed before the migration, or during it, are not executed again,
// wherever their documents are. Each step has two of them here, and all in TestKilledMoverNemesis.
func TestKilledMover(t *testing.T) {
	t.Parallel()
	k := newKilledMove(t)
	defer k.c.insertBeside()()
	for step := 1; step <= 7; step++ {
		k.killedAt(step, killsOtherShard)
		if step >= 4 {
			k.killedAt(step, []killedProcess{killsConfig, killsRouter, killsCoordinator}[step%3])
		}
	}
}

func TestKilledMoverNemesis(t *testing.T) {
	if nemesisTime(0) == 0 {
		t.Skip("make nemesis runs it")
	}
	k := newKilledMove(t)
	defer k.c.insertBeside()()
	for step := 1; step <= 7; step++ {
		for victim := killsOtherShard; victim <= killsCoordinator; victim++ {
			k.killedAt(step, victim)
		}
	}
}

// killedMove is a cluster of two shards in processes of their own. Shard 1 is the donor of documents from 0 on.
type killedMove struct {
	c      *shardedCluster
	coll   *mongo.Collection
	docs   int
	raised []int // documents with a retryable write
}

func newKilledMove(t *testing.T) *killedMove {
	t.Helper()
	k := &killedMove{c: launchCluster(t, clusterOptions{shards: []int{1, 1}, net: newNetwork(t)}), docs: 200}
	k.coll = k.c.halved("crash", "moved", k.c.shards[1])
	insertAround(t, k.coll, k.docs)
	return k
}

// killedAt begins a migration from shard 1, at one of whose steps a process is killed.
func (k *killedMove) killedAt(step int, victim killedProcess) {
	c, t := k.c, k.c.t
	t.Helper()
	t.Logf("%s is killed at step %d", moverNames[victim], step)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := c.moveUpper(ctx, k.coll, c.shards[1]); err != nil {
		t.Fatal(err)
	}
	k.raise(ctx, 2)
	held := holdMove(ctx, t, c.shards[1].members[0], step, func() error { return c.moveUpper(ctx, k.coll, c.shards[0]) })
	if step <= 4 { // nothing is blocked yet
		k.raise(ctx, 1)
	}
	kill, restart := c.process(victim)
	kill()
	if victim != killsCoordinator {
		held.release(ctx)
	}
	restart()
	held.answered(time.Minute)
	c.awaitNoMigration(ctx, step)
	k.check(ctx)
	k.raise(ctx, 0)
	if t.Failed() {
		t.FailNow()
	}
}

// check updates and counts the documents, through the router and on the shards.
func (k *killedMove) check(ctx context.Context) {
	k.c.t.Helper()
	done, err := k.coll.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	if err != nil || int(done.ModifiedCount) != k.docs {
		k.c.t.Errorf("%+v are updated of %d: %v", done, k.docs, err)
	}
	k.c.checkCatalog("crash", "moved")
}

// raise executes n more retryable writes on documents of the moved chunk, and sends all before them again.
func (k *killedMove) raise(ctx context.Context, n int) {
	k.c.t.Helper()
	for range n {
		k.raised = append(k.raised, len(k.raised)%(k.docs/2))
	}
	raiseOnceIn(k.c.t, ctx, k.coll, k.c.routers[0].at(), k.raised)
}

// The same holds if a side of the migration is a set whose primary steps down at one of its steps.
func TestSteppedDownMover(t *testing.T) {
	if testing.Short() {
		t.Skip("starts eight servers")
	}
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{3, 3}})
	coll, docs := c.halved("donor", "m", c.shards[0]), 200
	insertAround(t, coll, docs)
	k := &killedMove{c: c, coll: coll, docs: docs}
	for step := 2; step <= 6; step++ {
		for _, donorSteps := range []bool{true, false} {
			t.Logf("the donor steps down at step %d: %v", step, donorSteps)
			var chunk struct{ Shard string }
			if err := c.client.Database("config").Collection("chunks").FindOne(t.Context(), bson.D{{Key: "min._id", Value: 0}}).Decode(&chunk); err != nil {
				t.Fatal(err)
			}
			donor, recipient, to := c.shards[0], c.shards[1], 1
			if chunk.Shard == recipient.name {
				donor, recipient, to = recipient, donor, 0
			}
			k.raise(t.Context(), 2)
			primary, moved := c.hangMigration(donor, 1, to, step)
			if step <= 4 {
				k.raise(t.Context(), 1)
			}
			if donorSteps {
				donor.stepDown()
			} else {
				recipient.stepDown()
			}
			if err := donor.members[primary].admin(t.Context(), bson.D{{Key: "configureFailPoint", Value: fmt.Sprintf("moveChunkHangAtStep%d", step)}, {Key: "mode", Value: "off"}}); err != nil {
				t.Fatal(err)
			}
			if err := <-moved; err != nil {
				t.Logf("the client is answered %v", err)
			}
			c.afterMigration(coll, docs)
			k.raise(t.Context(), 0)
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}
