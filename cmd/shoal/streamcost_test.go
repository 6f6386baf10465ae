package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire"
)

// streamClient is a change stream on a connection of its own.
type streamClient struct {
	conn *wire.ClientConn
	id   int64
}

func (c *streamClient) run(ctx context.Context, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, err
	}
	reply, err := c.conn.RoundTrip(ctx, &wire.Message{OpCode: wire.OpMsg, Body: body})
	if err != nil {
		return nil, err
	}
	raw := bson.Raw(reply.Body)
	if ok, _ := raw.Lookup("ok").AsFloat64OK(); ok != 1 {
		return nil, fmt.Errorf("%v", raw)
	}
	return raw, nil
}

// openRaw opens a connection.
func openRaw(t *testing.T, p *process) *streamClient {
	t.Helper()
	conn, err := wire.Dial(context.Background(), p.at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &streamClient{conn: conn}
}

// openStream opens a stream on bench.c.
func openStream(t *testing.T, p *process, stages ...bson.D) *streamClient {
	t.Helper()
	c := openRaw(t, p)
	pipeline := append([]bson.D{{{Key: "$changeStream", Value: bson.D{}}}}, stages...)
	raw, err := c.run(context.Background(), bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: pipeline}, {Key: "cursor", Value: bson.D{}}, {Key: "$db", Value: "bench"}})
	if err != nil {
		t.Fatal(err)
	}
	c.id = raw.Lookup("cursor", "id").Int64()
	return c
}

// next waits for the stream's next batch, at most ten seconds.
func (c *streamClient) next(ctx context.Context) (events []bson.RawValue, err error) {
	raw, err := c.run(ctx, bson.D{{Key: "getMore", Value: c.id}, {Key: "collection", Value: "c"}, {Key: "maxTimeMS", Value: 10000}, {Key: "$db", Value: "bench"}})
	if err != nil {
		return nil, err
	}
	return raw.Lookup("cursor", "nextBatch").Array().Values()
}

// streamLoad inserts from 16 clients for some time. Each document is of one stream.
type streamLoad struct {
	t     *testing.T
	p     *process
	next  atomic.Int64
	every int  // the number of streams, at least 1
	aside bool // its documents belong to no stream
}

func (l *streamLoad) run(d time.Duration) (perSecond float64, cpu time.Duration) {
	coll := l.p.client.Database("bench").Collection("c")
	before, first, start := cpuTime(l.t, l.p), l.next.Load(), time.Now()
	var wg sync.WaitGroup
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for time.Since(start) < d {
				i := l.next.Add(1)
				to := i % int64(l.every)
				if l.aside {
					to = -1
				}
				if _, err := coll.InsertOne(context.Background(), bson.D{{Key: "_id", Value: i}, {Key: "to", Value: to}, {Key: "pad", Value: strings.Repeat("x", 200)}}); err != nil {
					l.t.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	n := float64(l.next.Load() - first)
	return n / time.Since(start).Seconds(), (cpuTime(l.t, l.p) - before) / time.Duration(max(n, 1))
}

// The cost of open change streams: the memory of each, the effect on inserts into their collection, and the latency of
// events. SHOAL_STREAMS="1000 10000" asks for the figures.
func TestStreamCost(t *testing.T) {
	counts := strings.Fields(os.Getenv("SHOAL_STREAMS"))
	if len(counts) == 0 {
		t.Skip(`a measurement: SHOAL_STREAMS="1000 10000"`)
	}
	for _, topology := range []string{"replset", "sharded"} {
		for _, count := range counts {
			n, err := strconv.Atoi(count)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(topology+"/"+count, func(t *testing.T) { streamCost(t, topology, n) })
		}
	}
}

func streamCost(t *testing.T, topology string, n int) {
	p := launch(t, t.TempDir(), "--topology", topology)
	load := &streamLoad{t: t, p: p, every: n}
	if topology == "sharded" {
		_ = p.admin(bson.D{{Key: "shardCollection", Value: "bench.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
	}
	load.run(2 * time.Second)
	alone, cpuAlone := load.run(4 * time.Second)
	t.Logf("no stream: %.0f inserts/s, %v of CPU each", alone, cpuAlone)
	eventLatency(t, p, "one stream", load)

	before, start := resident(t, p), time.Now()
	streams := make([]*streamClient, n)
	for i := range streams {
		streams[i] = openStream(t, p, bson.D{{Key: "$match", Value: bson.D{{Key: "fullDocument.to", Value: int64(i)}}}})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var got atomic.Int64
	var wg sync.WaitGroup
	for _, c := range streams {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				events, err := c.next(ctx)
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				got.Add(int64(len(events)))
			}
		}()
	}
	pause(2 * time.Second) // the streams come to rest
	t.Logf("%d streams: opened in %v, %d KiB each", n, time.Since(start).Round(time.Millisecond), (resident(t, p)-before)/n>>10)
	idle := cpuTime(t, p)
	pause(4 * time.Second) // measured
	t.Logf("%d streams, nothing written: %.1f %% of a core", n, float64(cpuTime(t, p)-idle)/float64(4*time.Second)*100)
	load.aside = true
	beside, cpuBeside := load.run(4 * time.Second)
	t.Logf("%d streams, inserts that are of none: %.0f inserts/s (%.0f %%), %v of CPU each", n, beside, 100*beside/alone, cpuBeside)
	load.aside = false
	first := load.next.Load()
	beside, cpuBeside = load.run(5 * time.Second)
	written := load.next.Load() - first
	end := time.Now()
	await.Progress(t, "the streams have all events", func() (int64, bool) { n := got.Load(); return n, n >= written })
	t.Logf("%d streams: %.0f inserts/s (%.0f %%), %v of CPU each; the last event %v after the last insert, %d of %d events; %d MiB",
		n, beside, 100*beside/alone, cpuBeside, time.Since(end).Round(time.Millisecond), got.Load(), written, resident(t, p)>>20)
	eventLatency(t, p, "all streams", load)
	cancel()
	wg.Wait()
}

// eventLatency measures the time from the reply to an insert until its event arrives at a client.
func eventLatency(t *testing.T, p *process, what string, load *streamLoad) {
	c := openStream(t, p)
	coll := p.client.Database("bench").Collection("c")
	var took []time.Duration
	type arrival struct {
		at  time.Time
		err error
	}
	for range 100 {
		arrived := make(chan arrival, 1)
		go func() {
			for {
				events, err := c.next(context.Background())
				if len(events) > 0 || err != nil {
					arrived <- arrival{time.Now(), err}
					return
				}
			}
		}()
		pause(5 * time.Millisecond)
		if _, err := coll.InsertOne(context.Background(), bson.D{{Key: "_id", Value: load.next.Add(1)}, {Key: "to", Value: -1}}); err != nil {
			t.Fatal(err)
		}
		committed := time.Now()
		a := <-arrived
		if a.err != nil {
			t.Fatal(a.err)
		}
		took = append(took, a.at.Sub(committed))
	}
	slices.Sort(took)
	t.Logf("commit to event with %s: median %v, 99 of 100 %v", what, took[50].Round(time.Microsecond), took[98].Round(time.Microsecond))
	_ = c.conn.Close()
}
