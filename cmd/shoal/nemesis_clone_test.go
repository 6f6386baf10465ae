package main

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/internal/await"
)

// A clone of longDocs documents takes 8 s. The oplog is truncated every 5 s.
const (
	longDocs  = 200
	churnSize = 64 << 10
	mega      = 1 << 20 // the size of the oplogs
)

// slowClones are the parameters of a shard on which a clone outlasts the oplog.
var slowClones = []string{"--oplogSize", "1", "--setParameter", "migrateCloneInsertionBatchSize=10", "--setParameter", "migrateCloneInsertionBatchDelayMS=400"}

// longClones moves a chunk to and fro while clients change its documents and write more than the oplog holds.
type longClones struct {
	t *testing.T
	c *shardedCluster

	pace    atomic.Int64 // of the churn: nanoseconds from one write to the next, 0 for none
	churned atomic.Int64 // bytes that were written to each shard
	counts  [longDocs]struct{ least, most int }

	outlasted, aborted, faults int
}

func (l *longClones) coll(name string) *mongo.Collection {
	return l.c.client.Database("nemesis", options.Database().SetWriteConcern(writeconcern.Majority())).Collection(name)
}

// churn changes a large document on each shard.
func (l *longClones) churn(ctx context.Context, rnd *rand.Rand) {
	pad := make([]byte, churnSize)
	for ctx.Err() == nil {
		if l.pace.Load() == 0 {
			pause(20 * time.Millisecond)
			continue
		}
		rnd.Read(pad)
		octx, cancel := context.WithTimeout(context.Background(), shardedLimit)
		var err error
		for _, id := range []float64{1.5, 2.5} {
			if err == nil {
				_, err = l.coll("churn").UpdateOne(octx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "pad", Value: pad}}}}, options.UpdateOne().SetUpsert(true))
			}
		}
		cancel()
		if err == nil {
			l.churned.Add(churnSize)
		}
		pause(time.Duration(l.pace.Load()))
	}
}

// count raises the numbers of documents that are being moved.
func (l *longClones) count(ctx context.Context, rnd *rand.Rand) {
	for ctx.Err() == nil {
		i := rnd.Intn(longDocs)
		octx, cancel := context.WithTimeout(context.Background(), shardedLimit)
		_, err := l.coll("long").UpdateOne(octx, bson.D{{Key: "_id", Value: i}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		cancel()
		l.counts[i].most++
		if err == nil {
			l.counts[i].least++
		}
		pauseUpTo(rnd, 20*time.Millisecond)
	}
}

// owner returns the shard that has the chunk.
func (l *longClones) owner(ctx context.Context) (string, error) {
	chunks, err := l.c.chunksOf(ctx, l.c.client, "nemesis.long")
	if err == nil && len(chunks) != 2 {
		err = fmt.Errorf("chunks %v", chunks)
	}
	if err != nil {
		return "", err
	}
	return chunks[1].Shard, nil
}

// move moves the chunk to the other shard, and reports how that ended.
func (l *longClones) move(rnd *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	from, err := l.owner(ctx)
	if err != nil {
		return err
	}
	to := l.c.otherShard(from, rnd)
	return l.c.client.Database("admin").RunCommand(ctx, bson.D{{Key: "moveChunk", Value: "nemesis.long"}, {Key: "find", Value: bson.D{{Key: "_id", Value: 0}}}, {Key: "to", Value: to}}).Err()
}

// awaitTruncation waits until the oplogs of all shards have their size again.
func (l *longClones) awaitTruncation() {
	l.t.Helper()
	l.pace.Store(0)
	await.State(l.t, "the oplogs have their size", func() (sizes []int64, all bool) {
		all = true
		for _, rs := range l.c.shards {
			var s struct {
				Pebble struct{ Oplog struct{ Bytes int64 } }
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			err := rs.members[max(0, rs.primary())].direct.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&s)
			cancel()
			sizes, all = append(sizes, s.Pebble.Oplog.Bytes), all && err == nil && s.Pebble.Oplog.Bytes <= mega
		}
		return sizes, all
	})
}

// round moves the chunk once: while the oplog outgrows its size, but not what a pin may keep; while it outgrows that; or during a fault.
func (l *longClones) round(i int, rnd *rand.Rand) {
	l.awaitTruncation()
	l.pace.Store(int64([]time.Duration{180, 25, 180}[i%3] * time.Millisecond))
	ended := make(chan error, 1)
	before, began := l.churned.Load(), time.Now()
	mover := rand.New(rand.NewSource(rnd.Int63()))
	go func() { ended <- l.move(mover) }()
	name := "no fault"
	if i%3 == 2 {
		pauseUpTo(rnd, 4*time.Second)
		var undo func()
		name, undo = l.c.misfortune(3+i, rnd)
		lasts(rnd)
		undo()
		l.c.waitReady()
		l.faults++
	}
	err := <-ended
	wrote := l.churned.Load() - before
	switch {
	case err == nil && wrote > 3*mega/2:
		l.outlasted++
	case err != nil && strings.Contains(err.Error(), "oplog entries after"):
		l.aborted++
		if i%3 != 1 && wrote < 11*mega/4 { // up to one more was there at the beginning: less than the four that are pinned
			l.t.Error("a clone has lost its position in an oplog that had not outgrown what is pinned")
		}
	}
	l.t.Logf("%s: %v, %d KB were written to each shard meanwhile: %v", name, time.Since(began).Round(time.Millisecond), wrote>>10, err)
}

// A clone that outlasts the oplog has every change of its documents, as the oplog is pinned for it, or is aborted, with a clear error, when the oplog
// outgrows what may be pinned; whatever happens to the members meanwhile. No count is lost, no document is there twice or missing, on primaries or
// secondaries.
func TestLongCloneNemesis(t *testing.T) {
	t.Parallel()
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	limit := nemesisTime(0)
	second := 1
	if limit > 0 {
		second = 3
	}
	l := &longClones{t: t, c: launchCluster(t, clusterOptions{shards: []int{3, second}, net: newNetwork(t), shardArgs: slowClones})}
	l.c.awaitDDL = func() {}
	l.c.shard("nemesis.churn", 1, 2)
	l.c.shard("nemesis.long", 0)
	if err := insertNumbered(t.Context(), l.coll("long"), longDocs); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var clients sync.WaitGroup
	for i, f := range []func(context.Context, *rand.Rand){l.churn, l.count} {
		clients.Go(func() { f(ctx, rand.New(rand.NewSource(seed+int64(i)))) })
	}
	rnd := rand.New(rand.NewSource(seed))
	tried := func() bool { return l.outlasted > 0 && l.aborted > 0 && l.faults > 0 }
	for i, end := 0, time.Now().Add(limit); i < 3 || time.Now().Before(end) || i < 3*longestRounds && !tried(); i++ {
		l.round(i, rnd)
	}
	stop()
	clients.Wait()
	l.c.waitReady()
	l.c.settle()
	l.check()
	t.Logf("%d clones outlasted the oplog, %d were aborted because of it, %d faults", l.outlasted, l.aborted, l.faults)
	if !tried() {
		t.Error("not everything was tried")
	}
}

// check compares the documents with what was counted.
func (l *longClones) check() {
	l.t.Helper()
	for _, pref := range []*readpref.ReadPref{readpref.Primary(), readpref.SecondaryPreferred()} {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		var docs []struct {
			ID int `bson:"_id"`
			N  int
		}
		cur, err := l.c.client.Database("nemesis", options.Database().SetReadPreference(pref)).Collection("long").Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
		if err == nil {
			err = cur.All(ctx, &docs)
		}
		if err != nil || len(docs) != longDocs {
			l.t.Errorf("%s: %d documents of %d (%v)", pref, len(docs), longDocs, err)
		}
		for i, d := range docs {
			if d.ID != i || d.N < l.counts[i].least || d.N > l.counts[i].most {
				l.t.Errorf("%s: document %d is at %d, between %d and %d were counted", pref, d.ID, d.N, l.counts[i].least, l.counts[i].most)
			}
		}
	}
	l.c.checkCatalog("nemesis", "long", "churn")
	for _, rs := range l.c.sets() {
		rs.sameEverywhere("nemesis", "config")
	}
}
