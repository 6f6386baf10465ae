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
	c := k.c
	c.admin(bson.D{{Key: "enableSharding", Value: "crash"}, {Key: "primaryShard", Value: c.shards[1].name}})
	c.admin(bson.D{{Key: "shardCollection", Value: "crash.moved"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	c.admin(bson.D{{Key: "split", Value: "crash.moved"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 0}}}})
	k.coll = c.client.Database("crash").Collection("moved")
	all := make([]any, k.docs)
	for i := range all {
		all[i] = bson.D{{Key: "_id", Value: i - k.docs/2}, {Key: "n", Value: 0}}
	}
	if _, err := k.coll.InsertMany(context.Background(), all); err != nil {
		t.Fatal(err)
	}
	return k
}

// killedAt begins a migration from shard 1, at one of whose steps a process is killed.
func (k *killedMove) killedAt(step int, victim killedProcess) {
	c, t := k.c, k.c.t
	t.Helper()
	t.Logf("%s is killed at step %d", map[killedProcess]string{killsOtherShard: "the recipient", killsConfig: "the config server", killsRouter: "the router", killsCoordinator: "the donor"}[victim], step)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	move := func(to string) error {
		return c.client.Database("admin").RunCommand(ctx, bson.D{{Key: "moveChunk", Value: "crash.moved"}, {Key: "find", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "to", Value: to}}).Err()
	}
	if err := move(c.shards[1].name); err != nil {
		t.Fatal(err)
	}
	k.raise(ctx, 2)
	donor := c.shards[1].members[0]
	point := fmt.Sprintf("moveChunkHangAtStep%d", step)
	if err := donor.admin(ctx, bson.D{{Key: "configureFailPoint", Value: point}, {Key: "mode", Value: "alwaysOn"}}); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- move(c.shards[0].name) }()
	if err := donor.admin(ctx, bson.D{{Key: "waitForFailPoint", Value: point}, {Key: "timesEntered", Value: 1}, {Key: "maxTimeMS", Value: 20000}}); err != nil {
		t.Fatal(err)
	}
	if step <= 4 { // nothing is blocked yet
		k.raise(ctx, 1)
	}
	kill, restart := c.process(victim)
	kill()
	if victim != killsCoordinator {
		if err := donor.admin(ctx, bson.D{{Key: "configureFailPoint", Value: point}, {Key: "mode", Value: "off"}}); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	select {
	case err := <-sent:
		if err != nil {
			t.Logf("the client is answered %v", err) // it was undone, or its outcome is not known
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("killed at step %d, the migration does not end", step)
	}
	for _, rs := range c.shards {
		for _, coll := range []string{"migrationCoordinators", "migrationRecipients", "rangeDeletions", "collection_critical_sections"} {
			awaitNone(t, ctx, fmt.Sprintf("%s of %s after step %d", coll, rs.name, step), rs.members[0].direct.Database("config").Collection(coll))
		}
	}
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

// So it is if a side of the migration is a set whose primary steps down at one of its steps.
func TestSteppedDownMover(t *testing.T) {
	if testing.Short() {
		t.Skip("starts eight servers")
	}
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{3, 3}})
	c.admin(bson.D{{Key: "enableSharding", Value: "donor"}, {Key: "primaryShard", Value: shardName(0)}})
	c.admin(bson.D{{Key: "shardCollection", Value: "donor.m"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	c.admin(bson.D{{Key: "split", Value: "donor.m"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 0}}}})
	coll, docs := c.client.Database("donor").Collection("m"), 200
	all := make([]any, docs)
	for i := range all {
		all[i] = bson.D{{Key: "_id", Value: i - docs/2}}
	}
	if _, err := coll.InsertMany(t.Context(), all); err != nil {
		t.Fatal(err)
	}
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
