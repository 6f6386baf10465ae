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

const manyDocs = 60

// manyWriter writes to all documents of a collection of its own at once. Every write pushes its number into each of them, so
// that its effect is known exactly: an acknowledged write is in each document once, one without a reply in none twice, and
// one in a transaction in all or none.
type manyWriter struct {
	l    *clusterLoad
	coll string
	rest func(rnd *rand.Rand) time.Duration // between two writes
	done atomic.Int64                       // writes that were acknowledged

	mu     sync.Mutex
	writes []manyWrite // by number
}

type manyWrite struct {
	deletes, acked, transaction bool
}

func (w *manyWriter) prepare() {
	l := w.l
	l.t.Helper()
	l.c.shard("nemesis."+w.coll, manyDocs/3, 2*manyDocs/3)
	var docs []any
	for i := range manyDocs {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "kept", Value: true}, {Key: "by", Value: bson.A{}}})
	}
	if _, err := l.db(l.c.client).Collection(w.coll).InsertMany(context.Background(), docs); err != nil {
		l.t.Fatal(err)
	}
}

// begin records a write before it is sent.
func (w *manyWriter) begin(m manyWrite) (number int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, m)
	return len(w.writes) - 1
}

// end records the outcome of a write.
func (w *manyWriter) end(number int, what string, err error) error {
	if err != nil {
		w.l.errors.add(what, err)
		return err
	}
	w.mu.Lock()
	w.writes[number].acked = true
	w.mu.Unlock()
	w.done.Add(1)
	w.l.acked.Add(1)
	return nil
}

// write does one write, of a random kind, and pauses.
func (w *manyWriter) write(ctx context.Context, client *mongo.Client, rnd *rand.Rand) (err error) {
	pause(w.rest(rnd))
	m := manyWrite{transaction: rnd.Intn(2) == 0, deletes: rnd.Intn(3) == 0}
	n := w.begin(m)
	do, what := w.update, "updateMany"
	if m.deletes {
		do, what = w.delete, "deleteMany"
	}
	if !m.transaction {
		return w.end(n, what, do(ctx, w.l.db(client), n))
	}
	return w.end(n, what+" in a transaction", w.l.inTransaction(ctx, client, func(ctx context.Context, db *mongo.Database) error {
		return do(ctx, db, n)
	}))
}

func (w *manyWriter) update(ctx context.Context, db *mongo.Database, n int) error {
	u := bson.D{{Key: "$push", Value: bson.D{{Key: "by", Value: n}}}}
	r, err := db.Collection(w.coll).UpdateMany(ctx, bson.D{{Key: "kept", Value: true}}, u)
	if err == nil && (r.MatchedCount != manyDocs || r.ModifiedCount != manyDocs) {
		w.l.h.violation("update %d of %s matched %d and modified %d documents of %d (in a transaction: %v; %v after the start)",
			n, w.coll, r.MatchedCount, r.ModifiedCount, manyDocs, w.writes[n].transaction, time.Since(w.l.h.start))
	}
	return err
}

// delete inserts some documents into every chunk, and deletes them by a common field.
func (w *manyWriter) delete(ctx context.Context, db *mongo.Database, n int) error {
	var docs []any
	for i := 1; i < manyDocs; i += 5 {
		docs = append(docs, bson.D{{Key: "_id", Value: float64(i) + float64(n+1)/(1<<20)}, {Key: "of", Value: n}})
	}
	if _, err := db.Collection(w.coll).InsertMany(ctx, docs); err != nil {
		return err
	}
	r, err := db.Collection(w.coll).DeleteMany(ctx, bson.D{{Key: "of", Value: n}})
	if err == nil && int(r.DeletedCount) != len(docs) {
		w.l.h.violation("deletion %d of %s deleted %d documents of %d (in a transaction: %v; %v after the start)",
			n, w.coll, r.DeletedCount, len(docs), w.writes[n].transaction, time.Since(w.l.h.start))
	}
	return err
}

// check checks the final effect of the writes.
func (w *manyWriter) check() {
	t := w.l.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var docs []struct {
		ID   any `bson:"_id"`
		Kept bool
		By   []int
		Of   int
	}
	cur, err := w.l.db(w.l.c.client).Collection(w.coll, options.Collection().SetReadConcern(readconcern.Majority())).Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	if err != nil {
		t.Errorf("%s: %v", w.coll, err)
		return
	}
	kept, found, left := 0, map[int]int{}, map[int]int{}
	for _, d := range docs {
		if !d.Kept {
			left[d.Of]++
			continue
		}
		kept++
		seen := map[int]bool{}
		for _, n := range d.By {
			if seen[n] {
				t.Errorf("%s: update %d met document %v twice", w.coll, n, d.ID)
			}
			seen[n] = true
			found[n]++
		}
	}
	if kept != manyDocs {
		t.Errorf("%s has %d documents of %d", w.coll, kept, manyDocs)
	}
	acked := 0
	for n, m := range w.writes {
		if m.acked {
			acked++
		}
		whole := !m.deletes && found[n] == manyDocs || m.deletes && left[n] == 0
		if !whole && (m.acked || m.transaction && (found[n] > 0 || left[n] > 0)) {
			t.Errorf("%s: write %d %+v is in %d documents, and %d of its own are left", w.coll, n, m, found[n], left[n])
		}
	}
	t.Logf("%s: %d writes to many documents acknowledged of %d", w.coll, acked, len(w.writes))
}
