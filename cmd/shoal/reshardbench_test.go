package main

import (
	"context"
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

	"github.com/shoaldb/shoal/internal/await"
)

// reshardBench is a cluster in one process whose collection r.s is resharded between two shards.
type reshardBench struct {
	p      *process
	admin  *mongo.Database
	config *mongo.Client
	shards []*mongo.Client
	coll   *mongo.Collection
	docs   int
}

// How fast resharding clones, how long clients wait for its critical section, and what it takes of memory: first alone, then five times beside
// writers whose every write is checked. SHOAL_RESHARD_DOCS=1000000 asks for the figures; SHOAL_RESHARD_RATE writes are made a second (1000). Of a machine of two cores without other work at least 50,000
// documents/s without writers, and sections of less than half a second at the median beside them, are asked.
func TestReshardRates(t *testing.T) {
	docs, err := strconv.Atoi(os.Getenv("SHOAL_RESHARD_DOCS"))
	if err != nil || docs == 0 {
		t.Skip("a measurement: SHOAL_RESHARD_DOCS=1000000")
	}
	rate := 1000
	if s := os.Getenv("SHOAL_RESHARD_RATE"); s != "" {
		rate, _ = strconv.Atoi(s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute)
	defer cancel()
	port := freePorts(t, 3)
	b := &reshardBench{docs: docs, p: launch(t, t.TempDir(), "--node-port", strconv.Itoa(port))}
	defer b.p.kill(t)
	client := connect(t, "mongodb://"+b.p.at+"/?directConnection=true")
	b.admin, b.coll = client.Database("admin"), client.Database("r").Collection("s")
	b.config, b.shards = member(t, port), []*mongo.Client{member(t, port+1), member(t, port+2)}
	for _, cmd := range []bson.D{
		{{Key: "balancerStop", Value: 1}},
		{{Key: "enableSharding", Value: "r"}, {Key: "primaryShard", Value: "shard00"}},
		{{Key: "shardCollection", Value: "r.s"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
	} {
		if err := b.admin.RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
	}
	b.load(ctx, t)
	t.Logf("loaded: peak of the process's memory %d MB", peakMemory(t, b.p.cmd.Process.Pid)>>10)

	keys := []bson.D{{{Key: "a", Value: 1}}, {{Key: "b", Value: "hashed"}}}
	alone, line := b.reshard(ctx, t, keys[0])
	t.Logf("without writers: %s", line)
	if alone < 50_000 {
		t.Errorf("%.0f documents/s", alone)
	}
	for i := range 5 {
		prefix := fmt.Sprintf("w%d", i)
		w := writeBeside(b.coll, prefix, rate/2, rate) // each every half a second, so that one which waits for less leaves nothing out
		began := time.Now()
		await.True(t, "writes of a second", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.took) >= rate
		})
		_, line := b.reshard(ctx, t, keys[(i+1)%2])
		took := time.Since(began)
		w.mu.Lock()
		times := slices.Sorted(slices.Values(w.took))
		w.mu.Unlock()
		at := func(share float64) time.Duration {
			return times[int(share*float64(len(times)-1))].Round(time.Millisecond)
		}
		line += fmt.Sprintf("; %.0f writes/s, the median took %v, 99 of 100 %v, the longest %v", float64(len(times))/took.Seconds(), at(0.5), at(0.99), at(1))
		t.Logf("beside writers: %s", line)
		w.check(t, prefix)
		if per, sum := onShardsAlone(t, b.shards, "r", "s", bson.D{{Key: "pad", Value: bson.D{{Key: "$exists", Value: true}}}}); sum != int64(docs) {
			t.Errorf("the shards have %v documents, want %d", per, docs)
		}
		nothingLeft(t, ctx, b.config, b.shards, "r")
	}
	sections := b.sections(ctx, t)[1:]
	slices.Sort(sections)
	t.Logf("critical sections beside writers: %v ms", sections)
	if median := sections[len(sections)/2]; median >= 500 {
		t.Errorf("the median is %d ms", median)
	}
}

// load inserts documents of 200 bytes.
func (b *reshardBench) load(ctx context.Context, t *testing.T) {
	t.Helper()
	pad := strings.Repeat("x", 151)
	for from := 0; from < b.docs; from += 10_000 {
		var list []any
		for i := from; i < min(b.docs, from+10_000); i++ {
			list = append(list, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: (i * 7919) % 1_000_003}, {Key: "b", Value: i}, {Key: "pad", Value: pad}})
		}
		if _, err := b.coll.InsertMany(ctx, list, options.InsertMany().SetOrdered(false)); err != nil {
			t.Fatal(err)
		}
	}
}

// reshard gives the collection another key, and reports how many documents were cloned a second, and the durations of the states.
func (b *reshardBench) reshard(ctx context.Context, t *testing.T, key bson.D) (perSecond float64, line string) {
	t.Helper()
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		done <- b.admin.RunCommand(ctx, bson.D{{Key: "reshardCollection", Value: "r.s"}, {Key: "key", Value: key}, {Key: "numInitialChunks", Value: 8}}).Err()
	}()
	at := map[string]time.Time{}
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case err := <-done:
			tick.Stop()
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			sections := b.sections(ctx, t)
			cloned := at["applying"].Sub(at["cloning"])
			caught := "a moment" // less than a look at the state
			if end := at["blocking-writes"]; !end.IsZero() {
				caught = end.Sub(at["applying"]).Round(time.Millisecond).String()
			}
			perSecond = float64(b.docs) / cloned.Seconds()
			return perSecond, fmt.Sprintf("%v in all, %v until it clones, cloned in %v (%.0f documents/s), caught up in %v; critical section %d ms; peak of memory %d MB",
				took.Round(time.Millisecond), at["cloning"].Sub(began).Round(time.Millisecond), cloned.Round(time.Millisecond), perSecond,
				caught, sections[len(sections)-1], peakMemory(t, b.p.cmd.Process.Pid)>>10)
		case <-tick.C:
		}
		var op struct{ State string }
		err := b.config.Database("config").Collection("reshardingOperations").FindOne(ctx, bson.D{{Key: "ns", Value: "r.s"}, {Key: "state", Value: bson.D{{Key: "$ne", Value: "quiesced"}}}}).Decode(&op)
		if _, seen := at[op.State]; err == nil && !seen {
			at[op.State] = time.Now()
		}
	}
}

// sections returns how long the critical sections of all reshardings were, in milliseconds.
func (b *reshardBench) sections(ctx context.Context, t *testing.T) (took []int64) {
	t.Helper()
	cur, err := b.config.Database("config").Collection("changelog").Find(ctx, bson.D{{Key: "what", Value: "reshardCollection.critical"}}, options.Find().SetSort(bson.D{{Key: "time", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	var all []struct{ Details struct{ Millis int64 } }
	if err := cur.All(ctx, &all); err != nil || len(all) == 0 {
		t.Fatal(len(all), err)
	}
	for _, s := range all {
		took = append(took, s.Details.Millis)
	}
	return took
}

// peakMemory returns the most memory that a process has had, in kilobytes, and resets the kernel's figure.
func peakMemory(t *testing.T, pid int) (kb int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, _ = fmt.Sscan(rest, &kb)
		}
	}
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	return kb
}
