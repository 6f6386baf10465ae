package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// moverNames are the names of the processes that take part in a migration.
var moverNames = map[killedProcess]string{killsOtherShard: "the recipient", killsConfig: "the config server", killsRouter: "the router", killsCoordinator: "the donor"}

// halved shards a collection of a new database by its _id, in two chunks that meet at 0, and returns it. Both are on a shard.
func (c *shardedCluster) halved(db, coll string, on *replicaSet) *mongo.Collection {
	c.t.Helper()
	ns := db + "." + coll
	c.admin(bson.D{{Key: "enableSharding", Value: db}, {Key: "primaryShard", Value: on.name}})
	c.admin(bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	c.admin(bson.D{{Key: "split", Value: ns}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 0}}}})
	return c.client.Database(db).Collection(coll)
}

// insertAround inserts documents into the two chunks of halved.
func insertAround(t *testing.T, coll *mongo.Collection, docs int) {
	t.Helper()
	all := make([]any, docs)
	for i := range all {
		all[i] = bson.D{{Key: "_id", Value: i - docs/2}, {Key: "n", Value: 0}}
	}
	if _, err := coll.InsertMany(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

// moveUpper moves the upper chunk of halved.
func (c *shardedCluster) moveUpper(ctx context.Context, coll *mongo.Collection, to *replicaSet, more ...bson.E) error {
	ns := coll.Database().Name() + "." + coll.Name()
	cmd := bson.D{{Key: "moveChunk", Value: ns}, {Key: "find", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "to", Value: to.name}}
	return c.client.Database("admin").RunCommand(ctx, append(cmd, more...)).Err()
}

// heldMove is a migration that its donor holds at a step.
type heldMove struct {
	t     *testing.T
	donor *server
	step  int
	sent  chan error
}

// holdMove begins a migration and returns when its donor has reached a step, at which it stays until release.
func holdMove(ctx context.Context, t *testing.T, donor *server, step int, move func() error) *heldMove {
	t.Helper()
	h := &heldMove{t: t, donor: donor, step: step, sent: make(chan error, 1)}
	h.set(ctx, "alwaysOn")
	go func() { h.sent <- move() }()
	if err := donor.admin(ctx, bson.D{{Key: "waitForFailPoint", Value: h.point()}, {Key: "timesEntered", Value: 1}, {Key: "maxTimeMS", Value: 20000}}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *heldMove) point() string { return fmt.Sprintf("moveChunkHangAtStep%d", h.step) }

func (h *heldMove) set(ctx context.Context, mode string) {
	h.t.Helper()
	if err := h.donor.admin(ctx, bson.D{{Key: "configureFailPoint", Value: h.point()}, {Key: "mode", Value: mode}}); err != nil {
		h.t.Fatal(err)
	}
}

// release lets the migration continue.
func (h *heldMove) release(ctx context.Context) {
	h.t.Helper()
	h.set(ctx, "off")
}

// answered waits until the client has its answer.
func (h *heldMove) answered(limit time.Duration) {
	h.t.Helper()
	select {
	case err := <-h.sent:
		if err != nil {
			h.t.Logf("the client is answered %v", err) // it was undone, or its outcome is not known
		}
	case <-time.After(limit):
		h.t.Fatalf("the migration that was disturbed at step %d does not end", h.step)
	}
}

// awaitNoMigration waits until no shard has a document of the protocol.
func (c *shardedCluster) awaitNoMigration(ctx context.Context, step int) {
	c.t.Helper()
	for _, rs := range c.shards {
		for _, coll := range []string{"migrationCoordinators", "migrationRecipients", "rangeDeletions", "collection_critical_sections"} {
			awaitNone(c.t, ctx, fmt.Sprintf("%s of %s after step %d", coll, rs.name, step), rs.awaitPrimary().direct.Database("config").Collection(coll))
		}
	}
}
