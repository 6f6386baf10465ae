package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// What a router costs an operation, by the number of shards: in one process with the shards, and in a process of its own, where the shard that has the
// document is asked directly, too. SHOAL_ROUTER_OVERHEAD="1 2 4" asks for the figures, for so many shards.
func TestRouterOverhead(t *testing.T) {
	var sizes []int
	for _, f := range strings.Fields(os.Getenv("SHOAL_ROUTER_OVERHEAD")) {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			t.Fatalf("%q is no number of shards", f)
		}
		sizes = append(sizes, n)
	}
	if len(sizes) == 0 {
		t.Skip(`a measurement: SHOAL_ROUTER_OVERHEAD="1 2 4"`)
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("%d shards in one process", n), func(t *testing.T) {
			c := newConfig(isStart)
			c.Listen, c.DBPath, c.Shards = []string{"127.0.0.1:0"}, t.TempDir(), n
			r, err := startCluster(c, newHost(isStart))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = r.Stop(context.Background()) })
			overheadOf(t, connect(t, "mongodb://"+r.Addrs[0].String()+"/"), nil)
		})
		t.Run(fmt.Sprintf("%d shards, each process its own", n), func(t *testing.T) {
			c := launchCluster(t, clusterOptions{shards: slices.Repeat([]int{1}, n)})
			overheadOf(t, c.client, connect(t, c.shards[0].uri()))
		})
	}
}

// overheadOf times operations of one client through a router and, if shard is not nil, on the first shard.
func overheadOf(t *testing.T, router, shard *mongo.Client) {
	t.Helper()
	const docs, ops = 1000, 2000
	ctx := context.Background()
	run := func(cmd bson.D) {
		t.Helper()
		if err := router.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	cur, err := router.Database("config").Collection("shards").Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	var shards []struct {
		ID string `bson:"_id"`
	}
	if err == nil {
		err = cur.All(ctx, &shards)
	}
	if err != nil {
		t.Fatal(err)
	}
	run(bson.D{{Key: "balancerStop", Value: 1}})
	run(bson.D{{Key: "enableSharding", Value: "bench"}, {Key: "primaryShard", Value: shards[0].ID}})
	run(bson.D{{Key: "shardCollection", Value: "bench.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	for i, s := range shards[1:] { // documents from 0 on are on the first shard
		at := bson.D{{Key: "_id", Value: -(i + 1) * 1000}}
		run(bson.D{{Key: "split", Value: "bench.c"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: -i * 1000}}}})
		run(bson.D{{Key: "moveChunk", Value: "bench.c"}, {Key: "find", Value: at}, {Key: "to", Value: s.ID}})
	}
	all := make([]any, docs)
	for i := range all {
		all[i] = bson.D{{Key: "_id", Value: i}, {Key: "n", Value: i}}
	}
	coll := router.Database("bench").Collection("c")
	if _, err := coll.InsertMany(ctx, all); err != nil {
		t.Fatal(err)
	}
	timed := func(what string, c *mongo.Collection, op func(c *mongo.Collection, i int) error) {
		t.Helper()
		var took []time.Duration
		for i := range ops {
			began := time.Now()
			if err := op(c, i%docs); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("%-42s p50 %7v, p99 %7v", what, took[ops/2].Round(time.Microsecond), took[ops*99/100].Round(time.Microsecond))
	}
	byKey := func(c *mongo.Collection, i int) error { return c.FindOne(ctx, bson.D{{Key: "_id", Value: i}}).Err() }
	byAll := func(c *mongo.Collection, _ int) error {
		if err := c.FindOne(ctx, bson.D{{Key: "n", Value: -1}}).Err(); !errors.Is(err, mongo.ErrNoDocuments) {
			return err
		}
		return nil
	}
	update := func(c *mongo.Collection, i int) error {
		_, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: i}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		return err
	}
	timed("find by the key, through the router:", coll, byKey)
	timed("update by the key, through the router:", coll, update)
	timed("find on all shards, through the router:", coll, byAll)
	if shard != nil {
		direct := shard.Database("bench").Collection("c")
		timed("find by the key, on the shard:", direct, byKey)
		timed("find of a whole collection, on the shard:", direct, byAll)
	}
}
