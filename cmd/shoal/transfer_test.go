package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/shoaldb/shoal/internal/await"
)

// Money that is transferred between shards of three members each is never lost, created or seen twice, and a counter
// counts each retryable write once, while primaries step down.
func TestTransfersAcrossElections(t *testing.T) {
	if testing.Short() {
		t.Skip("starts nine members")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	port := freePorts(t, 9)
	p := launch(t, t.TempDir(), "--replicas", "3", "--node-port", strconv.Itoa(port))
	defer p.kill(t)
	const accounts = 20
	shardHalves(t, ctx, p, accounts)
	_, other := chunkAt(t, ctx, p, accounts)
	if err := p.admin(bson.D{{Key: "moveChunk", Value: "crash.m"}, {Key: "find", Value: bson.D{{Key: "_id", Value: accounts}}}, {Key: "to", Value: fmt.Sprintf("shard%02d", other)}}); err != nil {
		t.Fatal(err)
	}
	client := connect(t, "mongodb://"+p.at+"/?directConnection=true")
	coll, ctr := client.Database("crash").Collection("m"), client.Database("crash").Collection("counter")
	if _, err := coll.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 100}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := ctr.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 0}}); err != nil {
		t.Fatal(err)
	}
	var members []*mongo.Client // of the shards
	for i := range 6 {
		members = append(members, member(t, port+3+i))
	}
	var transfers, totals, counted, unknown, elections atomic.Int64
	end := time.Now().Add(4 * time.Second)
	var wg sync.WaitGroup
	worker := func(n int, f func(i int)) {
		for i := range n {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for time.Now().Before(end) {
					f(i)
				}
			}()
		}
	}
	worker(3, func(i int) {
		rnd := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
		if transfer(ctx, client, coll, rnd, accounts) == nil {
			transfers.Add(1)
		}
	})
	worker(1, func(int) {
		sum, n, err := allAccounts(ctx, client, coll)
		switch {
		case err != nil: // a snapshot is unavailable during a commit
		case sum != accounts*100 || n != accounts:
			t.Errorf("%d accounts with %d in all", n, sum)
		default:
			totals.Add(1)
		}
	})
	worker(1, func(int) {
		_, err := ctr.UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		if err != nil {
			unknown.Add(1)
			return
		}
		counted.Add(1)
	})
	worker(1, func(int) {
		for before := transfers.Load(); transfers.Load() < before+5 && time.Now().Before(end); { // transfers succeed between two elections
			pause(time.Millisecond)
		}
		for _, i := range rand.Perm(len(members)) {
			if resign(ctx, members[i]) {
				elections.Add(1)
				return
			}
		}
	})
	wg.Wait()
	t.Logf("%d transfers, %d totals, %d counted, %d unknown, %d elections", transfers.Load(), totals.Load(), counted.Load(), unknown.Load(), elections.Load())
	var c struct{ N int64 }
	if err := ctr.FindOne(ctx, bson.D{}).Decode(&c); err != nil || c.N < counted.Load() || c.N > counted.Load()+unknown.Load() {
		t.Errorf("the counter is at %d, %d were acknowledged and %d are unknown (%v)", c.N, counted.Load(), unknown.Load(), err)
	}
	await.State(t, "all accounts can be read", func() (error, bool) { // a commit may still be recovered
		sum, n, err := allAccounts(ctx, client, coll)
		if err == nil && (sum != accounts*100 || n != accounts) {
			t.Fatalf("in the end %d accounts with %d in all", n, sum)
		}
		return err, err == nil
	})
	if transfers.Load() == 0 || totals.Load() == 0 || elections.Load() == 0 {
		t.Error("nothing was tried")
	}
}

// transfer moves an amount between two accounts, retrying while the errors' labels ask for it.
func transfer(ctx context.Context, client *mongo.Client, coll *mongo.Collection, rnd *rand.Rand, accounts int) error {
	s, err := client.StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(ctx)
	from, to, amount := rnd.IntN(accounts), rnd.IntN(accounts), 1+rnd.IntN(5)
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		for _, move := range []struct{ id, by int }{{from, -amount}, {to, amount}} {
			if _, err := coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: move.id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "x", Value: move.by}}}}); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}, options.Transaction().SetReadConcern(readconcern.Snapshot()))
	return err
}

// allAccounts reads all accounts in one snapshot.
func allAccounts(ctx context.Context, client *mongo.Client, coll *mongo.Collection) (sum, n int, err error) {
	s, err := client.StartSession()
	if err != nil {
		return 0, 0, err
	}
	defer s.EndSession(ctx)
	var docs []struct{ X int }
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		cur, err := coll.Find(ctx, bson.D{})
		if err != nil {
			return nil, err
		}
		docs = nil
		return nil, cur.All(ctx, &docs)
	}, options.Transaction().SetReadConcern(readconcern.Snapshot()))
	for _, d := range docs {
		sum += d.X
	}
	return sum, len(docs), err
}

// resign makes a member step down if it is primary.
func resign(ctx context.Context, c *mongo.Client) bool {
	admin := c.Database("admin")
	var hello struct{ IsWritablePrimary bool }
	if err := admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil || !hello.IsWritablePrimary {
		return false
	}
	err := admin.RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 1}, {Key: "secondaryCatchUpPeriodSecs", Value: 1}}).Err()
	var refused mongo.CommandError
	return err == nil || !errors.As(err, &refused)
}
