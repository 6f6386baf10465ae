package main

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// The cost of transactions and reads of the past compared with plain writes and reads, one after the other. SHOAL_TXN_COST=1
// asks for the figures, SHOAL_PAST=300 for a read of so many seconds ago.
func TestTransactionCost(t *testing.T) {
	if os.Getenv("SHOAL_TXN_COST") == "" {
		t.Skip("a measurement: SHOAL_TXN_COST=1, SHOAL_PAST=300")
	}
	past, _ := time.ParseDuration(os.Getenv("SHOAL_PAST") + "s")
	p := launch(t, t.TempDir())
	ctx := context.Background()
	var list struct {
		Shards []struct {
			ID string `bson:"_id"`
		} `bson:"shards"`
	}
	if err := p.client.Database("admin").RunCommand(ctx, bson.D{{Key: "listShards", Value: 1}}).Decode(&list); err != nil || len(list.Shards) < 2 {
		t.Fatalf("%v, %v", list, err)
	}
	p.must(t,
		bson.D{{Key: "enableSharding", Value: "bench"}, {Key: "primaryShard", Value: list.Shards[0].ID}},
		bson.D{{Key: "shardCollection", Value: "bench.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}},
		bson.D{{Key: "split", Value: "bench.c"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 0}}}},
		bson.D{{Key: "moveChunk", Value: "bench.c"}, {Key: "find", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "to", Value: list.Shards[1].ID}},
	)
	coll := p.client.Database("bench").Collection("c", options.Collection().SetWriteConcern(writeconcern.Majority()))
	for i := -500; i < 500; i++ {
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "x", Value: 0}}); err != nil {
			t.Fatal(err)
		}
	}
	inc := bson.D{{Key: "$inc", Value: bson.D{{Key: "x", Value: 1}}}}
	update := func(ctx context.Context, id int) error {
		_, err := coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, inc)
		return err
	}
	session, err := p.client.StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(ctx)
	in := func(ids ...int) error {
		return mongo.WithSession(ctx, session, func(ctx context.Context) error {
			if err := session.StartTransaction(options.Transaction().SetWriteConcern(writeconcern.Majority())); err != nil {
				return err
			}
			for _, id := range ids {
				if err := update(ctx, id); err != nil {
					return err
				}
			}
			return session.CommitTransaction(ctx)
		})
	}
	measure := func(what string, n int, f func(i int) error) {
		took := make([]time.Duration, n)
		cpu := cpuTime(t, p)
		for i := range n {
			start := time.Now()
			if err := f(i % 400); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			took[i] = time.Since(start)
		}
		used := (cpuTime(t, p) - cpu) / time.Duration(n)
		slices.Sort(took)
		t.Logf("%-40s median %v, CPU %v", what, took[n/2].Round(time.Microsecond), used)
	}
	for range 2 {
		measure("two plain updates of one shard", 1000, func(i int) error {
			if err := update(ctx, i); err != nil {
				return err
			}
			return update(ctx, i+1)
		})
		measure("a transaction of one document", 1000, func(i int) error { return in(i) })
		measure("a transaction of two shards", 1000, func(i int) error { return in(i, -1-i) })
		measure("a plain update: one sync", 1000, func(i int) error { return update(ctx, i) })
	}
	var hello struct {
		OperationTime bson.Timestamp `bson:"operationTime"`
	}
	if err := p.client.Database("admin").RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(past); time.Now().Before(end); pause(10 * time.Millisecond) {
		if err := in(5, -5); err != nil {
			t.Fatal(err)
		}
	}
	at := bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: hello.OperationTime}}
	for range 2 {
		for _, read := range []struct {
			what    string
			concern bson.D
		}{{"a read of now", bson.D{{Key: "level", Value: string(readconcern.Snapshot().Level)}}}, {"a read of the past", at}} {
			measure(read.what, 300, func(int) error {
				return p.client.Database("bench").RunCommand(ctx, bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: 2000}, {Key: "readConcern", Value: read.concern}}).Err()
			})
		}
	}
}
