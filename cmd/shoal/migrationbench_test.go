package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

// How fast a range moves beside writers, what they notice of it, how long they wait for its commit, and how fast the donor deletes it.
// SHOAL_MIGRATION_MB=256 asks for the figures, SHOAL_MIGRATION_DOC=200 for documents of so many bytes instead of 1,024, SHOAL_MIGRATION_ROUNDS=20 for so many migrations beside
// writers, SHOAL_MIGRATION_PROFILE=FILE for a CPU profile of the move.
func TestMigrationRates(t *testing.T) {
	mb := 0
	if _, err := fmt.Sscan(os.Getenv("SHOAL_MIGRATION_MB"), &mb); err != nil || mb == 0 {
		t.Skip("a measurement: SHOAL_MIGRATION_MB=256")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	c := newConfig(isStart)
	c.Listen, c.DBPath = []string{"127.0.0.1:0"}, t.TempDir()
	c.Parameters = []pair{{"orphanCleanupDelaySecs", "0"}}
	c.NodePort = freePorts(t, 8)
	r, err := startCluster(c, newHost(isStart))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop(context.Background()) })
	client := connect(t, "mongodb://"+r.Addrs[0].String()+"/")
	admin := client.Database("admin")
	run := func(cmd bson.D) {
		t.Helper()
		if err := admin.RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	shards := shardNames(ctx, t, client)
	run(bson.D{{Key: "balancerStop", Value: 1}})
	run(bson.D{{Key: "enableSharding", Value: "bench"}, {Key: "primaryShard", Value: shards[0]}})
	run(bson.D{{Key: "shardCollection", Value: "bench.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	run(bson.D{{Key: "split", Value: "bench.c"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 0}}}})
	coll := client.Database("bench").Collection("c")
	size := 1024
	_, _ = fmt.Sscan(os.Getenv("SHOAL_MIGRATION_DOC"), &size)
	docs := loadNoise(ctx, t, coll, mb, size)
	t.Logf("disk: %.0f MB/s, written one after the other and synced", diskRate(t, filepath.Join(c.DBPath, "rate"), mb))

	// Writers on documents below 0, which stay on the donor.
	for i := range 1000 {
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: -1 - i}, {Key: "n", Value: 0}}); err != nil {
			t.Fatal(err)
		}
	}
	write := func() error {
		_, err := coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: -1 - rand.IntN(1000)}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		return err
	}
	move := func(to string) time.Duration {
		t.Helper()
		began := time.Now()
		run(bson.D{{Key: "moveRange", Value: "bench.c"}, {Key: "min", Value: bson.D{{Key: "_id", Value: 0}}}, {Key: "max", Value: bson.D{{Key: "_id", Value: bson.MaxKey{}}}},
			{Key: "toShard", Value: to}, {Key: "forceJumbo", Value: true}})
		return time.Since(began)
	}
	deleted := func() time.Duration {
		t.Helper()
		began := time.Now()
		await.True(t, "the range is deleted", func() bool { return orphansLeft(ctx, t, admin) == 0 })
		return time.Since(began)
	}
	journal := journalFigures(ctx, t, client)
	alone := timedWriters(t, 4, write)
	pause(5 * time.Second) // measured
	t.Logf("writers without a migration: %s; %s", alone(), journal())
	endProfile := profileTo(t, os.Getenv("SHOAL_MIGRATION_PROFILE"))
	cpu := cpuTimeOf(t, "self")
	took := move(shards[1])
	cpu = cpuTimeOf(t, "self") - cpu
	endProfile()
	t.Logf("moved %d MB with no clients in %v, %.0f MB/s, %.1f ms of processor time a MB", mb, took.Round(time.Millisecond), float64(mb)/took.Seconds(),
		cpu.Seconds()*1000/float64(mb))
	took = deleted()
	t.Logf("the donor has deleted the range %v after the move: %.0f documents/s", took.Round(time.Millisecond), float64(docs)/took.Seconds())
	move(shards[0])
	deleted()

	rounds := 3
	_, _ = fmt.Sscan(os.Getenv("SHOAL_MIGRATION_ROUNDS"), &rounds)
	var sections []int64
	for i := range rounds {
		journal := journalFigures(ctx, t, client)
		beside := timedWriters(t, 4, write)
		took := move(shards[(i+1)%2])
		t.Logf("moved %d MB in %v, %.0f MB/s; writers beside it: %s; %s", mb, took.Round(time.Millisecond), float64(mb)/took.Seconds(), beside(), journal())
		sections = append(sections, logSteps(ctx, t, client))
		deleted()
	}
	if rounds == 0 {
		return
	}
	slices.Sort(sections)
	t.Logf("critical sections of %d migrations beside writers: median %d ms, longest %d ms (%v)", len(sections), sections[len(sections)/2], sections[len(sections)-1], sections)
	if n, err := coll.CountDocuments(ctx, bson.D{}); err != nil || n != int64(docs)+1000 {
		t.Errorf("%d documents, want %d: %v", n, docs+1000, err)
	}
}

// journalFigures begins to measure what the journals of the shards did; the returned function reports it.
func journalFigures(ctx context.Context, t *testing.T, client *mongo.Client) (since func() string) {
	t.Helper()
	type figures struct {
		Pebble struct {
			Log struct {
				Waits  int64 `bson:"waits for syncs"`
				Slow   int64 `bson:"waits of 10 ms or more"`
				Micros int64 `bson:"microseconds waited"`
				Bytes  int64 `bson:"log bytes written"`
			}
			Compaction struct {
				Pauses int64 `bson:"pauses for clients"`
				Bytes  int64 `bson:"flushed bytes"`
			}
		}
	}
	var shards []*mongo.Database
	for _, host := range shardHosts(ctx, t, client) {
		shards = append(shards, connect(t, "mongodb://"+host+"/?directConnection=true").Database("admin"))
	}
	read := func() (out []figures) {
		for _, s := range shards {
			var f figures
			if err := s.RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&f); err != nil {
				t.Fatal(err)
			}
			out = append(out, f)
		}
		return out
	}
	before := read()
	return func() (all string) {
		for i, now := range read() {
			a, b := before[i].Pebble, now.Pebble
			n := b.Log.Waits - a.Log.Waits
			all += fmt.Sprintf("[shard %d: %d waits for syncs, %d of 10 ms or more, mean %d us; %d MB of journal, %d MB flushed, %d pauses] ", i, n, b.Log.Slow-a.Log.Slow,
				(b.Log.Micros-a.Log.Micros)/max(1, n), (b.Log.Bytes-a.Log.Bytes)>>20, (b.Compaction.Bytes-a.Compaction.Bytes)>>20, b.Compaction.Pauses-a.Compaction.Pauses)
		}
		return all
	}
}

// profileTo writes a CPU profile of what happens until end is called, and beside it what goroutines waited for (FILE.block); "" for none.
func profileTo(t *testing.T, path string) (end func()) {
	t.Helper()
	if path == "" {
		return func() {}
	}
	f, err := os.Create(path)
	if err == nil {
		err = pprof.StartCPUProfile(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	runtime.SetBlockProfileRate(10_000)
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
		runtime.SetBlockProfileRate(0)
		if f, err := os.Create(path + ".block"); err == nil {
			_ = pprof.Lookup("block").WriteTo(f, 0)
			_ = f.Close()
		}
	}
}

// loadNoise inserts documents of a size with the keys from 0 on, and returns how many.
func loadNoise(ctx context.Context, t *testing.T, coll *mongo.Collection, mb, size int) (n int) {
	t.Helper()
	noise := rand.NewChaCha8([32]byte{})
	for range mb {
		docs := make([]any, 1<<20/size)
		for j := range docs {
			pad := make([]byte, size-44)
			_, _ = noise.Read(pad)
			docs[j] = bson.D{{Key: "_id", Value: n}, {Key: "pad", Value: pad}}
			n++
		}
		if _, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false)); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// diskRate writes and syncs a file, and returns megabytes a second.
func diskRate(t *testing.T, path string, mb int) float64 {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(path) }()
	defer func() { _ = f.Close() }()
	block := make([]byte, 1<<20)
	noise := rand.NewChaCha8([32]byte{1})
	_, _ = noise.Read(block)
	began := time.Now()
	for range mb {
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return float64(mb) / time.Since(began).Seconds()
}

func shardNames(ctx context.Context, t *testing.T, client *mongo.Client) (names []string) {
	names, _ = shardEntries(ctx, t, client)
	return names
}

// shardHosts lists the addresses of the shards' members.
func shardHosts(ctx context.Context, t *testing.T, client *mongo.Client) (hosts []string) {
	_, hosts = shardEntries(ctx, t, client)
	return hosts
}

// shardEntries lists config.shards.
func shardEntries(ctx context.Context, t *testing.T, client *mongo.Client) (names, hosts []string) {
	t.Helper()
	cur, err := client.Database("config").Collection("shards").Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		ID   string `bson:"_id"`
		Host string `bson:"host"`
	}
	if err := cur.All(ctx, &all); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		_, at, _ := strings.Cut(s.Host, "/")
		names, hosts = append(names, s.ID), append(hosts, at)
	}
	if len(names) < 2 {
		t.Fatalf("shards %v", names)
	}
	return names, hosts
}

// logSteps shows how long the steps of the last migration took, as config.changelog has them, and returns how many milliseconds those have in which
// writers wait: step 5, for the last changes, and step 6, which carries the commit out (and more, for which no writer waits).
func logSteps(ctx context.Context, t *testing.T, client *mongo.Client) (blocked int64) {
	t.Helper()
	var entry struct {
		Details bson.D `bson:"details"`
	}
	err := client.Database("config").Collection("changelog").FindOne(ctx, bson.D{{Key: "what", Value: "moveChunk.from"}}, options.FindOne().SetSort(bson.D{{Key: "time", Value: -1}})).Decode(&entry)
	if err != nil {
		t.Fatal(err)
	}
	var steps []int64
	for _, f := range entry.Details {
		if ms, ok := f.Value.(int64); ok && strings.HasPrefix(f.Key, "step ") {
			steps = append(steps, ms)
		}
	}
	if len(steps) != 6 {
		t.Fatalf("steps %v of %v", steps, entry.Details)
	}
	t.Logf("steps %v ms", steps)
	return steps[4] + steps[5]
}

// orphansLeft returns how many documents of bench.c shards have still to delete.
func orphansLeft(ctx context.Context, t *testing.T, admin *mongo.Database) (n int64) {
	t.Helper()
	cur, err := admin.Aggregate(ctx, bson.A{bson.D{{Key: "$shardedDataDistribution", Value: bson.D{}}}, bson.D{{Key: "$match", Value: bson.D{{Key: "ns", Value: "bench.c"}}}},
		bson.D{{Key: "$unwind", Value: "$shards"}}, bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: nil}, {Key: "n", Value: bson.D{{Key: "$sum", Value: "$shards.numOrphanedDocs"}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	var out []struct {
		N int64 `bson:"n"`
	}
	if err := cur.All(ctx, &out); err != nil || len(out) == 0 {
		t.Fatalf("%v, %v", out, err)
	}
	return out[0].N
}
