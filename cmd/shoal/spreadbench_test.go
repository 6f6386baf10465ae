package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// From one chunk on one shard, documents that are loaded through a router spread over four shards by themselves, under writes, until each has
// a quarter within ten percent; then one shard is drained, and the others have a third each. SHOAL_SPREAD_DOCS=5000000 asks for it; documents are of 100
// bytes, or larger if they are few, and chunks of 1 MB, or larger if documents are many. With SHOAL_SPREAD_ZONES=1 the lower half of the keys belongs to a zone
// of two shards and the upper half to one of the others, of which none is drained.
func TestRangesSpreadUnderWrites(t *testing.T) {
	n := 0
	if _, err := fmt.Sscan(os.Getenv("SHOAL_SPREAD_DOCS"), &n); err != nil || n < 1000 {
		t.Skip("a measurement: SHOAL_SPREAD_DOCS=5000000")
	}
	size := max(100, 256<<20/n) // a shard has fifty chunks and more
	zones := os.Getenv("SHOAL_SPREAD_ZONES") != ""
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
	defer cancel()
	c := newConfig(isStart)
	c.Listen, c.DBPath, c.Shards = []string{"127.0.0.1:0"}, t.TempDir(), 4
	c.Parameters = []pair{{"orphanCleanupDelaySecs", "0"}, {"balancerMigrationsThrottlingMs", "0"}}
	r, err := startCluster(c, newHost(isStart))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop(context.Background()) })
	client := connect(t, "mongodb://"+r.Addrs[0].String()+"/")
	admin, coll := client.Database("admin"), client.Database("bench").Collection("c")
	run := func(cmd bson.D) {
		t.Helper()
		if err := admin.RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// A shard may have three chunks more than another before a chunk moves: less than ten percent of a quarter.
	chunk := max(1, n*size/4/(1<<20)/50)
	if _, err := client.Database("config").Collection("settings").UpdateOne(ctx, bson.D{{Key: "_id", Value: "chunksize"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: chunk}}}}, options.UpdateOne().SetUpsert(true)); err != nil {
		t.Fatal(err)
	}
	run(bson.D{{Key: "shardCollection", Value: "bench.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	if zones {
		spreadZones(ctx, t, client, run, n/2)
	}
	run(bson.D{{Key: "balancerStart", Value: 1}})
	began := time.Now()
	pad := strings.Repeat("x", size-len(`{_id:12345678,n:1,pad:}`))
	for i := 0; i < n; i += 1000 {
		docs := make([]any, min(1000, n-i))
		for j := range docs {
			docs[j] = bson.D{{Key: "_id", Value: i + j}, {Key: "n", Value: 0}, {Key: "pad", Value: pad}}
		}
		if _, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d documents are loaded after %v, chunks of %d MB", n, time.Since(began).Round(time.Second), chunk)
	writers := timedWriters(t, 2, func() error {
		_, err := coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: rand.IntN(n)}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		return err
	})
	t.Log("until it is even")
	untilEven(ctx, t, admin, 4)
	if !zones {
		t.Log("until one shard is drained, and the others are even")
		drainShard(ctx, t, admin, shardNames(ctx, t, client)[3])
		untilEven(ctx, t, admin, 3)
	}
	t.Log(writers())
	if all, err := coll.CountDocuments(ctx, bson.D{}); err != nil || int(all) != n {
		t.Errorf("%d documents, want %d: %v", all, n, err)
	}
}

// spreadZones gives the keys of bench.c below a number to the first two shards, and the others to the last two.
func spreadZones(ctx context.Context, t *testing.T, client *mongo.Client, run func(bson.D), half int) {
	t.Helper()
	for i, shard := range shardNames(ctx, t, client) {
		run(bson.D{{Key: "addShardToZone", Value: shard}, {Key: "zone", Value: []string{"low", "high"}[i/2]}})
	}
	zone := func(name string, min, max any) {
		run(bson.D{{Key: "updateZoneKeyRange", Value: "bench.c"}, {Key: "min", Value: bson.D{{Key: "_id", Value: min}}}, {Key: "max", Value: bson.D{{Key: "_id", Value: max}}}, {Key: "zone", Value: name}})
	}
	zone("low", bson.MinKey{}, half)
	zone("high", half, bson.MaxKey{})
}

// drainShard removes a shard, and waits until its ranges have left it.
func drainShard(ctx context.Context, t *testing.T, admin *mongo.Database, shard string) {
	t.Helper()
	eachSecond(ctx, t, func() (bool, string) {
		var reply struct {
			State     string
			Remaining bson.D
		}
		if err := admin.RunCommand(ctx, bson.D{{Key: "removeShard", Value: shard}}).Decode(&reply); err != nil {
			t.Fatal(err)
		}
		return reply.State == "completed", fmt.Sprint(reply.State, " ", reply.Remaining)
	})
}

// untilEven waits until each of so many shards has its part of bench.c within ten percent.
func untilEven(ctx context.Context, t *testing.T, admin *mongo.Database, shards int) {
	t.Helper()
	eachSecond(ctx, t, func() (bool, string) {
		off, parts := unevenness(ctx, t, admin, shards)
		return off <= 0.1, fmt.Sprintf("%s (%.1f %% off)", parts, 100*off)
	})
}

// eachSecond looks until something is done, and logs what it sees at the end and, ever more rarely, on the way.
func eachSecond(ctx context.Context, t *testing.T, look func() (done bool, state string)) {
	t.Helper()
	began := time.Now()
	for next := 10 * time.Second; ; {
		done, state := look()
		since := time.Since(began)
		if done || since > next {
			t.Logf("after %v: %s", since.Round(time.Second), state)
			next = 2 * since
		}
		if done {
			return
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			t.Fatalf("after %v still: %s", since, state)
		}
	}
}

// unevenness returns by how much of a shard's fair part the worst shard is off it, and what the shards own.
func unevenness(ctx context.Context, t *testing.T, admin *mongo.Database, shards int) (off float64, parts string) {
	t.Helper()
	cur, err := admin.Aggregate(ctx, bson.A{bson.D{{Key: "$shardedDataDistribution", Value: bson.D{}}}, bson.D{{Key: "$match", Value: bson.D{{Key: "ns", Value: "bench.c"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	var found []struct {
		Shards []struct {
			ShardName         string `bson:"shardName"`
			NumOwnedDocuments int64  `bson:"numOwnedDocuments"`
		} `bson:"shards"`
	}
	if err := cur.All(ctx, &found); err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	all, least := int64(0), int64(0)
	if len(found[0].Shards) == shards {
		least = found[0].Shards[0].NumOwnedDocuments
	}
	most := int64(0)
	for _, s := range found[0].Shards {
		all, least, most = all+s.NumOwnedDocuments, min(least, s.NumOwnedDocuments), max(most, s.NumOwnedDocuments)
		parts += fmt.Sprintf("%s %d  ", s.ShardName, s.NumOwnedDocuments)
	}
	fair := float64(all) / float64(shards)
	return max(float64(most)-fair, fair-float64(least)) / max(fair, 1), parts
}
