package main

import (
	"context"
	"math/rand"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

const (
	largeDocs  = 90
	largeBytes = 16 << 10
)

// largeWriter inserts groups of documents, on all shards, and deletes them, each by a transaction whose versions are sent
// ahead of its commit in many pieces. A group is there as a whole or not at all.
type largeWriter struct {
	l     *clusterLoad
	acked atomic.Int64

	mu struct {
		sync.Mutex
		groups []largeGroup // by number
		seen   int          // groups in all reads
		reads  int
	}
}

// largeGroup is the state of one group.
type largeGroup struct {
	there bool // its insertion was acknowledged
	sent  bool // its deletion was sent, and may have been executed
	gone  bool // its deletion was acknowledged
}

// write inserts a group, and deletes one.
func (w *largeWriter) write(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	pauseUpTo(rnd, time.Second)
	pad := make([]byte, largeBytes)
	rnd.Read(pad)
	w.mu.Lock()
	n := len(w.mu.groups)
	w.mu.groups = append(w.mu.groups, largeGroup{})
	w.mu.Unlock()
	err := w.l.inTransaction(ctx, client, func(ctx context.Context, db *mongo.Database) error {
		for at := 0; at < largeDocs; at += 15 {
			var docs []any
			for i := range 15 {
				docs = append(docs, bson.D{{Key: "_id", Value: float64(i) + float64(n*largeDocs+at)/(1<<24)}, {Key: "of", Value: n}, {Key: "pad", Value: pad}})
			}
			if _, err := db.Collection("large").InsertMany(ctx, docs); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.l.errors.add("large transaction", err)
		return err
	}
	w.l.acked.Add(1)
	w.acked.Add(1)
	w.note(n, func(g *largeGroup) { g.there = true })
	return w.delete(ctx, client, rnd.Intn(n+1))
}

func (w *largeWriter) note(n int, f func(*largeGroup)) (was largeGroup) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was = w.mu.groups[n]
	f(&w.mu.groups[n])
	return was
}

func (w *largeWriter) delete(ctx context.Context, client *mongo.Client, n int) error {
	was := w.note(n, func(g *largeGroup) { g.sent = true })
	err := w.l.inTransaction(ctx, client, func(ctx context.Context, db *mongo.Database) error {
		r, err := db.Collection("large").DeleteMany(ctx, bson.D{{Key: "of", Value: n}})
		if err == nil && r.DeletedCount != largeDocs && (r.DeletedCount != 0 || was.there && !was.sent) {
			w.l.h.violation("of group %d %+v there are %d documents to delete (%v after the start)", n, was, r.DeletedCount, time.Since(w.l.h.start))
		}
		return err
	})
	if err != nil {
		w.l.errors.add("deletion of a large group", err)
		return err
	}
	w.note(n, func(g *largeGroup) { g.gone = true })
	return nil
}

// read counts the documents of each group, by one of the kinds of consistent reads.
func (w *largeWriter) read(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	pauseUpTo(rnd, 300*time.Millisecond)
	way := []string{"a transaction", "a snapshot", "a snapshot of secondaries"}[rnd.Intn(3)]
	var found map[int]int
	err := w.l.readBy(ctx, client, way, func(ctx context.Context, db *mongo.Database) (err error) {
		found, err = countGroups(ctx, db.Collection("large"))
		return err
	})
	if err != nil {
		w.l.errors.add("large groups by "+way, err)
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.reads++
	w.mu.seen += len(found)
	for n, docs := range found {
		if docs != largeDocs {
			w.l.h.violation("%s shows %d documents of group %d %+v (%v after the start)", way, docs, n, w.mu.groups[n], time.Since(w.l.h.start))
		}
	}
	return nil
}

// countGroups reads in one batch: a cursor that was lost with its router would delay range deletions.
func countGroups(ctx context.Context, coll *mongo.Collection) (map[int]int, error) {
	cur, err := coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(100_000).SetProjection(bson.D{{Key: "of", Value: 1}}))
	if err != nil {
		return nil, err
	}
	var docs []struct{ Of int }
	if err := cur.All(ctx, &docs); err != nil {
		return nil, err
	}
	found := map[int]int{}
	for _, d := range docs {
		found[d.Of]++
	}
	return found, nil
}

// check checks the final state.
func (w *largeWriter) check(client *mongo.Client) {
	t := w.l.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	found, err := countGroups(ctx, w.l.db(client).Collection("large", options.Collection().SetReadConcern(readconcern.Majority())))
	if err != nil {
		t.Error(err)
		return
	}
	for n, g := range w.mu.groups {
		if docs := found[n]; docs != 0 && docs != largeDocs || docs == 0 && g.there && !g.sent || docs > 0 && g.gone {
			t.Errorf("of group %d %+v there are %d documents", n, g, docs)
		}
	}
	t.Logf("%d large transactions acknowledged of %d, %d reads saw %d groups", w.acked.Load(), len(w.mu.groups), w.mu.reads, w.mu.seen)
}
