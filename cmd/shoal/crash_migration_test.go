package main

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

// member is a client of one member of a cluster.
func member(t *testing.T, port int) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(fmt.Sprintf("mongodb://127.0.0.1:%d/?directConnection=true", port)).SetRetryWrites(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Disconnect(ctx)
	})
	return c
}

// A cluster that is killed in the middle of a migration, at any of its steps, finishes or undoes it after the
// restart: each document is on one shard, once, and nothing of the migration remains. Retryable writes that were executed before the migration, or
// during it, are recognized wherever their documents are.
func TestKilledMigration(t *testing.T) {
	t.Parallel()
	const docs = 2000
	for step := 1; step <= 7; step++ {
		t.Run(fmt.Sprintf("step %d", step), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			dir := t.TempDir()
			port := freePorts(t, 3)
			p := launch(t, dir, "--node-port", strconv.Itoa(port))
			shardHalves(t, ctx, p, docs)
			raised := []int{docs - 10, docs - 11, docs - 12, 0}
			raiseOnce(t, ctx, p, raised)
			from, to := chunkAt(t, ctx, p, docs)
			donor := member(t, port+1+from).Database("admin")
			point := fmt.Sprintf("moveChunkHangAtStep%d", step)
			if err := donor.RunCommand(ctx, bson.D{{Key: "configureFailPoint", Value: point}, {Key: "mode", Value: "alwaysOn"}}).Err(); err != nil {
				t.Fatal(err)
			}
			moved := make(chan error, 1)
			go func() {
				moved <- p.admin(bson.D{{Key: "moveChunk", Value: "crash.m"}, {Key: "find", Value: bson.D{{Key: "_id", Value: docs}}}, {Key: "to", Value: fmt.Sprintf("shard%02d", to)}})
			}()
			if err := donor.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: point}, {Key: "timesEntered", Value: 1}, {Key: "maxTimeMS", Value: 10000}}).Err(); err != nil {
				t.Fatal(err)
			}
			if step <= 4 { // nothing is blocked yet: a write during the migration
				if _, err := p.client.Database("crash").Collection("m").UpdateOne(ctx, bson.D{{Key: "_id", Value: docs - 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "late", Value: true}}}}); err != nil {
					t.Fatal(err)
				}
				raised = append(raised, docs-20)
				raiseOnce(t, ctx, p, raised)
			}
			p.kill(t)
			<-moved
			p = launch(t, dir, "--node-port", strconv.Itoa(port))
			defer p.kill(t)
			wantAll(t, ctx, p, docs)
			raiseOnce(t, ctx, p, raised)
			if step <= 4 {
				if n, err := p.client.Database("crash").Collection("m").CountDocuments(ctx, bson.D{{Key: "late", Value: true}}); n != 1 || err != nil {
					t.Errorf("the write during the migration is gone (%v)", err)
				}
			}
			settleShards(t, ctx, port, docs)
			wantAll(t, ctx, p, docs)
			now, other := chunkAt(t, ctx, p, docs)
			if moved := now != from; moved != (step >= 6) {
				t.Errorf("killed at step %d, the chunk has moved: %v", step, moved)
			}
			// The collection is not stuck: the chunk moves on.
			if err := p.admin(bson.D{{Key: "moveChunk", Value: "crash.m"}, {Key: "find", Value: bson.D{{Key: "_id", Value: docs}}}, {Key: "to", Value: fmt.Sprintf("shard%02d", other)}}); err != nil {
				t.Error(err)
			}
			wantAll(t, ctx, p, docs)
			raiseOnce(t, ctx, p, raised)
		})
	}
}

// raiseOnce executes a retryable write on each of some documents, or sends it again, and checks that each was executed once.
func raiseOnce(t *testing.T, ctx context.Context, p *process, ids []int) {
	t.Helper()
	raiseOnceIn(t, ctx, p.client.Database("crash").Collection("m"), p.at, ids)
}

// raiseOnceIn is raiseOnce for a collection, by the server at an address. Each document has a session of its own.
func raiseOnceIn(t *testing.T, ctx context.Context, m *mongo.Collection, at string, ids []int) {
	t.Helper()
	c := dialPlain(t, at)
	for _, id := range ids {
		r := c.run(m.Database().Name(), fmt.Sprintf(`{"update": %q, "updates": [{"q": {"_id": %d}, "u": {"$inc": {"raised": 1}}}],
			"lsid": {"id": {"$uuid": "00000000-0000-4000-8000-%012d"}}, "txnNumber": {"$numberLong": "1"}}`, m.Name(), id, id))
		if r["ok"] != 1.0 || r["n"] != int32(1) {
			t.Fatalf("the write to document %d: %v", id, r)
		}
		if n, err := m.CountDocuments(ctx, bson.D{{Key: "_id", Value: id}, {Key: "raised", Value: 1}}); n != 1 || err != nil {
			t.Errorf("the write to document %d was not executed once (%v)", id, err)
		}
	}
}

// shardHalves creates a collection of n documents in two chunks.
func shardHalves(t *testing.T, ctx context.Context, p *process, n int) {
	t.Helper()
	p.must(t,
		bson.D{{Key: "balancerStop", Value: 1}},
		bson.D{{Key: "shardCollection", Value: "crash.m"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}},
		bson.D{{Key: "split", Value: "crash.m"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: n / 2}}}},
	)
	all := make([]any, n)
	for i := range all {
		all[i] = bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: make([]byte, 200)}}
	}
	if _, err := p.client.Database("crash").Collection("m").InsertMany(ctx, all); err != nil {
		t.Fatal(err)
	}
}

// chunkAt returns the shard of the upper chunk, and the other one.
func chunkAt(t *testing.T, ctx context.Context, p *process, n int) (on, other int) {
	t.Helper()
	var c struct{ Shard string }
	err := p.client.Database("config").Collection("chunks").FindOne(ctx, bson.D{{Key: "min", Value: bson.D{{Key: "_id", Value: n / 2}}}}).Decode(&c)
	if err != nil {
		t.Fatal(err)
	}
	if c.Shard == "shard01" {
		return 1, 0
	}
	return 0, 1
}

// wantAll reads every document once.
func wantAll(t *testing.T, ctx context.Context, p *process, n int) {
	t.Helper()
	cur, err := p.client.Database("crash").Collection("m").Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}).SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct {
		ID int `bson:"_id"`
	}
	if err := cur.All(ctx, &docs); err != nil {
		t.Fatal(err)
	}
	if len(docs) != n {
		t.Errorf("%d documents, want %d", len(docs), n)
	}
	for i, d := range docs {
		if d.ID != i {
			t.Fatalf("document %d stands where %d should", d.ID, i)
		}
	}
}

// settleShards waits until no shard has anything left to do for a migration, and no orphan.
func settleShards(t *testing.T, ctx context.Context, port, n int) {
	t.Helper()
	count := func(c *mongo.Client, db, coll string) int64 {
		k, err := c.Database(db).Collection(coll).CountDocuments(ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	shards := []*mongo.Client{member(t, port+1), member(t, port+2)}
	await.State(t, fmt.Sprintf("no state documents of migrations, %d documents", n), func() ([2]int64, bool) {
		var left, all int64
		for _, s := range shards {
			left += count(s, "config", "migrationCoordinators") + count(s, "config", "rangeDeletions")
			all += count(s, "crash", "m")
		}
		return [2]int64{left, all}, left == 0 && all == int64(n)
	})
}
