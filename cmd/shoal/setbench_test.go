package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/internal/await"
)

// What replication costs writers: single inserts with w: majority from 16 clients, into sets of separate processes.
func BenchmarkMajorityInsert(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			rs := launchSet(b, setOptions{members: members})
			const clients = 16
			client := connect(b, rs.uri())
			coll := client.Database("bench").Collection("c", options.Collection().SetWriteConcern(writeconcern.Majority()))
			pad := make([]byte, 200)
			var next atomic.Int64
			insert := func() bool {
				_, err := coll.InsertOne(context.Background(), bson.D{{Key: "_id", Value: next.Add(1)}, {Key: "pad", Value: pad}})
				if err != nil {
					b.Error(err)
				}
				return err == nil
			}
			for range 200 {
				insert() // connections and caches
			}
			next.Store(1e9)
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for range clients {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for left.Add(-1) >= 0 && insert() {
					}
				}()
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "inserts/s")
		})
	}
}

// How long an application that writes continuously waits when its primary is gone. SHOAL_FAILOVERS asks for the figures.
func TestFailoverTimes(t *testing.T) {
	rounds, err := 0, error(nil)
	if _, err = fmt.Sscan(os.Getenv("SHOAL_FAILOVERS"), &rounds); err != nil || rounds == 0 {
		t.Skip("a measurement: SHOAL_FAILOVERS=10")
	}
	rs := launchSet(t, setOptions{members: 3})
	coll := connect(t, rs.uri()).Database("bench").Collection("c", options.Collection().SetWriteConcern(writeconcern.Majority()))
	for _, kind := range []string{"step down", "kill"} {
		var gaps []time.Duration
		for range rounds {
			gaps = append(gaps, failover(t, rs, coll.InsertOne, kind))
		}
		slices.Sort(gaps)
		t.Logf("%s, longest wait of a writer (election timeout %v): least %v, median %v, most %v", kind, electionTimeout,
			gaps[0].Round(time.Millisecond), gaps[len(gaps)/2].Round(time.Millisecond), gaps[len(gaps)-1].Round(time.Millisecond))
	}
}

// How fast an empty member receives a set's data, and the effect on writers. SHOAL_SNAPSHOT_MB asks for the figures.
func TestSnapshotSpeed(t *testing.T) {
	mb, err := 0, error(nil)
	if _, err = fmt.Sscan(os.Getenv("SHOAL_SNAPSHOT_MB"), &mb); err != nil || mb == 0 {
		t.Skip("a measurement: SHOAL_SNAPSHOT_MB=300")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	rs := launchSet(t, setOptions{members: 3})
	coll := connect(t, rs.uri()).Database("bench").Collection("c", options.Collection().SetWriteConcern(writeconcern.Majority()))
	rnd := rand.New(rand.NewSource(1))
	for range mb {
		docs := make([]any, 64)
		for i := range docs {
			pad := make([]byte, 16<<10) // noise: it does not compress
			rnd.Read(pad)
			docs[i] = bson.D{{Key: "pad", Value: pad}}
		}
		if _, err := coll.InsertMany(ctx, docs); err != nil {
			t.Fatal(err)
		}
	}
	victim := (rs.elected() + 1) % 3
	rs.kill(victim)
	if err := os.RemoveAll(rs.dbpath(victim)); err != nil {
		t.Fatal(err)
	}
	insert := func() error {
		_, err := coll.InsertOne(ctx, bson.D{{Key: "at", Value: time.Now()}})
		return err
	}
	alone := timedWriters(t, 4, insert)
	pause(5 * time.Second) // measured
	t.Logf("two members, nothing else: %s", alone())
	meanwhile := timedWriters(t, 4, insert)
	start := time.Now()
	rs.start(victim)
	rs.waitReady()
	took := time.Since(start)
	t.Logf("while the third copies: %s", meanwhile())
	t.Logf("%d MB in %v: %.0f MB/s", mb, took.Round(time.Millisecond), float64(mb)/took.Seconds())
	after := timedWriters(t, 4, insert)
	pause(5 * time.Second) // measured
	t.Logf("afterwards: %s", after())
	rs.sameEverywhere("bench")
}

// timedWriters has clients write continuously; the returned function stops them and returns how long writes took.
func timedWriters(t *testing.T, clients int, write func() error) (times func() string) {
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	var over atomic.Bool
	began := time.Now()
	for range clients {
		wg.Go(func() {
			for !over.Load() {
				start := time.Now()
				if err := write(); err != nil {
					t.Error(err)
				}
				mu.Lock()
				all = append(all, time.Since(start))
				mu.Unlock()
			}
		})
	}
	return func() string {
		over.Store(true)
		wg.Wait()
		slices.Sort(all)
		at := func(p float64) time.Duration { return all[int(p*float64(len(all)-1))].Round(10 * time.Microsecond) }
		return fmt.Sprintf("%.0f writes/s, p50 %v, p99 %v, p99.9 %v, longest %v", float64(len(all))/time.Since(began).Seconds(), at(0.5), at(0.99), at(0.999), at(1))
	}
}

// failover writes without a pause while the primary ends, and returns the longest time that one write took.
func failover[R any](t *testing.T, rs *replicaSet, insert func(context.Context, any, ...options.Lister[options.InsertOneOptions]) (R, error), kind string) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	stop := make(chan struct{})
	longest := make(chan time.Duration)
	var wrote atomic.Int64
	go func() {
		var most time.Duration
		for {
			select {
			case <-stop:
				longest <- most
				return
			default:
			}
			start := time.Now()
			if _, err := insert(ctx, bson.D{{Key: "at", Value: start}}); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			most = max(most, time.Since(start))
			wrote.Add(1)
		}
	}()
	await.True(t, "the writer writes", func() bool { return wrote.Load() > 50 })
	p := rs.elected()
	if kind == "kill" {
		rs.kill(p)
	} else if err := rs.members[p].direct.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 2}, {Key: "secondaryCatchUpPeriodSecs", Value: 1}}).Err(); err != nil {
		t.Errorf("step down: %v", err)
	}
	rs.awaitPrimaryBut(p)
	before := wrote.Load()
	await.True(t, "the writer has found the primary", func() bool { return wrote.Load() > before+5 })
	close(stop)
	d := <-longest
	if kind == "kill" {
		rs.start(p)
	}
	rs.waitReady()
	return d
}
