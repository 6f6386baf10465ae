package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

// A cluster that is killed in the middle of a two-phase commit, at any of its steps, has either the whole
// transaction or nothing of it after the restart, and nothing of the commit remains.
func TestKilledTransaction(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		point   string
		commits bool
	}{{"hangBeforeSendingPrepare", false}, {"hangBeforeWritingDecision", true}, {"hangBeforeSendingCommit", true}} {
		t.Run(tc.point, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			dir := t.TempDir()
			port := freePorts(t, 3)
			p := launch(t, dir, "--node-port", strconv.Itoa(port))
			const docs = 20
			shardHalves(t, ctx, p, docs)
			_, lower := chunkAt(t, ctx, p, docs)
			if err := p.admin(bson.D{{Key: "moveChunk", Value: "crash.m"}, {Key: "find", Value: bson.D{{Key: "_id", Value: docs}}}, {Key: "to", Value: fmt.Sprintf("shard%02d", lower)}}); err != nil {
				t.Fatal(err)
			}
			// the chunk has moved: the other shard is written to first, and coordinates
			coordinator := member(t, port+1+lower).Database("admin")
			if err := coordinator.RunCommand(ctx, bson.D{{Key: "configureFailPoint", Value: tc.point}, {Key: "mode", Value: "alwaysOn"}}).Err(); err != nil {
				t.Fatal(err)
			}
			s, err := p.client.StartSession()
			if err != nil {
				t.Fatal(err)
			}
			committed := make(chan error, 1)
			go func() { committed <- writeBothHalves(ctx, s, p.client.Database("crash").Collection("m"), docs) }()
			if err := coordinator.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: tc.point}, {Key: "timesEntered", Value: 1}, {Key: "maxTimeMS", Value: 10000}}).Err(); err != nil {
				t.Fatal(err)
			}
			p.kill(t)
			if err := <-committed; err == nil {
				t.Error("the commit was acknowledged before it was done")
			}
			p = launch(t, dir, "--node-port", strconv.Itoa(port))
			defer p.kill(t)
			settleCommits(t, ctx, port)
			want := int64(0)
			if tc.commits {
				want = 3
			}
			coll := p.client.Database("crash").Collection("m")
			if n, err := coll.CountDocuments(ctx, bson.D{{Key: "txn", Value: true}}); err != nil || n != want {
				t.Errorf("%d of the transaction's writes are there, want %d (%v)", n, want, err)
			}
			// Nothing locks the documents any more.
			if _, err := coll.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "after", Value: 1}}}}); err != nil {
				t.Error(err)
			}
		})
	}
}

// writeBothHalves updates a document on each shard and inserts one, in a transaction; the upper half comes first.
func writeBothHalves(ctx context.Context, s *mongo.Session, coll *mongo.Collection, docs int) error {
	if err := s.StartTransaction(); err != nil {
		return err
	}
	return mongo.WithSession(ctx, s, func(ctx context.Context) error {
		for _, id := range []int{docs - 1, 0} {
			if _, err := coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "txn", Value: true}}}}); err != nil {
				return err
			}
		}
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: -1}, {Key: "txn", Value: true}}); err != nil {
			return err
		}
		return s.CommitTransaction(ctx)
	})
}

// preparedTransactions counts the transactions that a member has prepared and that are not decided.
func preparedTransactions(ctx context.Context, member *mongo.Client) (int64, error) {
	var status struct {
		Transactions struct {
			Prepared int64 `bson:"currentPrepared"`
		}
	}
	err := member.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status)
	return status.Transactions.Prepared, err
}

// settleCommits waits until no shard has a running commit or a prepared transaction.
func settleCommits(t *testing.T, ctx context.Context, port int) {
	t.Helper()
	shards := []*mongo.Client{member(t, port+1), member(t, port+2)}
	await.State(t, "no state documents of commits", func() (left int64, done bool) {
		for _, s := range shards {
			n, err := s.Database("config").Collection("transaction_coordinators").CountDocuments(ctx, bson.D{}, options.Count())
			prepared, again := preparedTransactions(ctx, s)
			if err := errors.Join(err, again); err != nil {
				t.Fatal(err)
			}
			left += n + prepared
		}
		return left, left == 0
	})
}
