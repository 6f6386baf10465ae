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
// a quarter within ten percent. SHOAL_SPREAD_DOCS=5000000 asks for it; documents are of 100 bytes and chunks of 1 MB, or of more for more
// documents.
func TestRangesSpreadUnderWrites(t *testing.T) {
	n := 0
	if _, err := fmt.Sscan(os.Getenv("SHOAL_SPREAD_DOCS"), &n); err != nil || n < 1000 {
		t.Skip("a measurement: SHOAL_SPREAD_DOCS=5000000")
	}
	const size = 100
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
	last, next := time.Now(), 10*time.Second
	for {
		off, parts := unevenness(ctx, t, admin)
		if off <= 0.1 {
			t.Logf("even after %v: %s (%.1f %% off)", time.Since(began).Round(time.Second), parts, 100*off)
			break
		}
		if time.Since(last) > next {
			t.Logf("after %v: %s", time.Since(began).Round(time.Second), parts)
			last, next = time.Now(), 2*next
		}
		if ctx.Err() != nil {
			t.Fatalf("not even: %s", parts)
		}
		<-time.After(time.Second)
	}
	t.Log(writers())
	if all, err := coll.CountDocuments(ctx, bson.D{}); err != nil || int(all) != n {
		t.Errorf("%d documents, want %d: %v", all, n, err)
	}
}

// unevenness returns by how much of a shard's fair part the worst shard is off it, and what the shards own.
func unevenness(ctx context.Context, t *testing.T, admin *mongo.Database) (off float64, parts string) {
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
	const shards = 4
	all, least := int64(0), int64(0)
	if len(found[0].Shards) == shards {
		least = found[0].Shards[0].NumOwnedDocuments
	}
	most := int64(0)
	for _, s := range found[0].Shards {
		all, least, most = all+s.NumOwnedDocuments, min(least, s.NumOwnedDocuments), max(most, s.NumOwnedDocuments)
		parts += fmt.Sprintf("%s %d  ", s.ShardName, s.NumOwnedDocuments)
	}
	fair := float64(all) / shards
	return max(float64(most)-fair, fair-float64(least)) / max(fair, 1), parts
}
