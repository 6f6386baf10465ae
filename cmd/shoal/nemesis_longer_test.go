package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// longer runs operations on a sharded cluster that take several requests, between which anything may happen.
type longer struct {
	l *clusterLoad

	causal, commits, cursors, lives, held atomic.Int64 // completed ones

	committed []*mongo.Session // whose commits will be retried
	least     int              // transactions that were committed
	most      int              // and those that may have been

	ddl     atomic.Int32 // DDL commands under way
	gone    []string     // collections that were dropped
	unclear []string     // collections whose last command has an unknown outcome
}

const (
	shelfDocs = 300
	lifeDocs  = 120
	stubs     = 9
)

func (o *longer) prepare() {
	l := o.l
	l.t.Helper()
	l.c.shard("nemesis.shelf", shelfDocs/3, 2*shelfDocs/3)
	l.c.shard("nemesis.stubs", stubs/3, 2*stubs/3)
	for name, n := range map[string]int{"shelf": shelfDocs, "stubs": stubs} {
		if err := insertNumbered(context.Background(), l.db(l.c.client).Collection(name), n); err != nil {
			l.t.Fatal(err)
		}
	}
}

// insertNumbered inserts documents 0 to n-1, as many of them as are not there.
func insertNumbered(ctx context.Context, coll *mongo.Collection, n int) error {
	var docs []any
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}})
	}
	_, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	var bulk mongo.BulkWriteException
	if errors.As(err, &bulk) && bulk.WriteConcernError == nil && !slices.ContainsFunc(bulk.WriteErrors, func(e mongo.BulkWriteError) bool { return e.Code != int(mongoerr.DuplicateKey) }) {
		return nil
	}
	return err
}

// readCausally reads a document, and then all of them in the same session: a transaction visible in the first is visible in all.
func (o *longer) readCausally(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	l := o.l
	w := l.many[rnd.Intn(len(l.many))]
	s, err := client.StartSession(options.Session().SetCausalConsistency(true))
	if err != nil {
		return err
	}
	defer s.EndSession(context.Background())
	sctx := mongo.NewSessionContext(ctx, s)
	type doc struct {
		ID any `bson:"_id"`
		By []int
	}
	majority := options.Collection().SetReadConcern(readconcern.Majority())
	var one doc
	if err := l.db(client).Collection(w.coll, majority).FindOne(sctx, bson.D{{Key: "_id", Value: rnd.Intn(manyDocs)}}).Decode(&one); err != nil {
		l.errors.add("causal read of one", err)
		return err
	}
	if rnd.Intn(2) == 0 {
		majority.SetReadPreference(readpref.SecondaryPreferred())
	}
	var all []doc
	cur, err := l.db(client).Collection(w.coll, majority).Find(sctx, bson.D{{Key: "kept", Value: true}})
	if err == nil {
		err = cur.All(sctx, &all)
	}
	if err != nil {
		l.errors.add("causal read of all", err)
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range one.By {
		for _, d := range all {
			if w.writes[n].transaction && !slices.Contains(d.By, n) {
				l.h.violation("%s: document %v lacks transaction %d, which document %v had shown (%v after the start)", w.coll, d.ID, n, one.ID, time.Since(l.h.start))
				return nil
			}
		}
	}
	o.causal.Add(1)
	return nil
}

// commitTwice commits a transaction in which one shard writes and others read, and retries the commit of an earlier one,
// whose participants may have been restarted: it is still committed.
func (o *longer) commitTwice(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	err := o.commitOnce(ctx, client, rnd)
	if len(o.committed) < 6 && err == nil {
		return nil
	}
	if len(o.committed) == 0 {
		return err
	}
	pauseUpTo(rnd, 100*time.Millisecond) // a commit is sent again some time later
	i := rnd.Intn(len(o.committed))
	s := o.committed[i]
	again := s.CommitTransaction(ctx)
	switch {
	case again == nil:
		o.commits.Add(1)
	case labelled(again, "TransientTransactionError") || codeOf(again) == int32(mongoerr.NoSuchTransaction):
		o.l.h.violation("a committed transaction is denied: %v (%v after the start)", again, time.Since(o.l.h.start))
	default:
		o.l.errors.add("commit again", again)
		return again
	}
	if rnd.Intn(3) == 0 {
		o.committed = slices.Delete(o.committed, i, i+1)
		s.EndSession(context.Background())
	}
	return err
}

func (o *longer) commitOnce(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	s, err := client.StartSession()
	if err != nil {
		return err
	}
	if err := s.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority())); err != nil {
		s.EndSession(context.Background())
		return err
	}
	sctx, coll := mongo.NewSessionContext(ctx, s), o.l.db(client).Collection("stubs")
	var d bson.Raw
	err = coll.FindOne(sctx, bson.D{{Key: "_id", Value: rnd.Intn(stubs)}}).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		o.l.h.violation("a transaction does not find one of the %d stubs (%v after the start)", stubs, time.Since(o.l.h.start))
	}
	if err == nil {
		_, err = coll.UpdateOne(sctx, bson.D{{Key: "_id", Value: rnd.Intn(stubs)}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	}
	if err != nil {
		o.l.errors.add(fmt.Sprintf("statement of a commit (transient: %v)", labelled(err, "TransientTransactionError")), err)
		s.EndSession(context.Background())
		return err
	}
	err = s.CommitTransaction(ctx)
	switch {
	case err == nil:
		o.least, o.most = o.least+1, o.most+1
		o.l.acked.Add(1)
		o.committed = append(o.committed, s)
		return nil
	case !labelled(err, "TransientTransactionError"):
		o.most++
	}
	o.l.errors.add("commit", err)
	s.EndSession(context.Background())
	return err
}

// cursor reads a collection slowly while its chunks move, and the donors delete them: each document is returned once.
func (o *longer) cursor(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	cur, err := o.l.db(client).Collection("shelf").Find(ctx, bson.D{}, options.Find().SetBatchSize(20))
	if err == nil {
		err = o.rest(ctx, cur, "shelf", shelfDocs, func() { pauseUpTo(rnd, 100*time.Millisecond) })
	}
	if err != nil {
		o.l.errors.add("cursor", err)
	}
	return err
}

// rest reads a cursor to its end; it must return documents 0 to n-1, each once. pause is called between two batches.
func (o *longer) rest(ctx context.Context, cur *mongo.Cursor, coll string, n int, pause func()) error {
	defer cur.Close(ctx)
	seen := map[int]int{}
	for cur.Next(ctx) {
		var d struct {
			ID int `bson:"_id"`
		}
		if err := cur.Decode(&d); err != nil {
			return err
		}
		if seen[d.ID]++; seen[d.ID] > 1 {
			o.l.h.violation("a cursor on %s returned document %d again (%v after the start)", coll, d.ID, time.Since(o.l.h.start))
		}
		if cur.RemainingBatchLength() == 0 {
			pause()
		}
	}
	if err := cur.Err(); err != nil {
		return err
	}
	if len(seen) != n {
		o.l.h.violation("a cursor on %s returned %d documents of %d (%v after the start)", coll, len(seen), n, time.Since(o.l.h.start))
	}
	o.cursors.Add(1)
	return nil
}

// until retries an operation after unexpected errors, and reports whether it completed: half a minute in which every set has a
// primary must be enough, however long the machine takes to get there. again tells f whether an earlier attempt may have
// succeeded.
func (o *longer) until(what string, f func(ctx context.Context, again bool) error) bool {
	whole := &o.l.c.whole
	end, last := whole.Load()+int64(30*time.Second), time.Now().Add(5*time.Minute)
	for again := false; whole.Load() < end && time.Now().Before(last); again = true {
		ctx, cancel := o.l.operation()
		err := f(ctx, again)
		cancel()
		if err == nil {
			return true
		}
		o.l.errors.add(what, err)
		withoutServer()
	}
	return false
}

// life creates a sharded collection, which is on one shard, and reads it while it moves for the first time; then it is
// renamed and dropped. Each command is sent until it gets a reply.
func (o *longer) life(_ context.Context, client *mongo.Client, rnd *rand.Rand) error {
	name := fmt.Sprintf("life%d", len(o.gone)+len(o.unclear))
	db, admin := o.l.db(client), client.Database("admin")
	run := func(what string, cmd bson.D) bool {
		return o.until(what, func(ctx context.Context, _ bool) error { return admin.RunCommand(ctx, cmd).Err() })
	}
	ok := run("shardCollection", bson.D{{Key: "shardCollection", Value: "nemesis." + name}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}}) &&
		o.until("insert", func(ctx context.Context, _ bool) error { return insertNumbered(ctx, db.Collection(name), lifeDocs) })
	if !ok {
		o.unclear = append(o.unclear, name)
		return errors.New("a collection was not made")
	}
	o.firstMove(client, rnd, name)
	to := name + "renamed"
	if !o.misspelt(client, name) {
		o.unclear = append(o.unclear, name)
		return errors.New("a collection could not be read")
	}
	if !o.rename(client, name, to) || !o.holds(client, to, lifeDocs) || !o.holds(client, name, 0) || !o.drop(client, to) || !o.holds(client, to, 0) {
		o.unclear = append(o.unclear, name, to)
		return errors.New("a collection did not end")
	}
	o.gone = append(o.gone, name, to)
	o.lives.Add(1)
	return nil
}

// firstMove reads a collection while a part of it moves; the donor deletes that part as soon as possible.
func (o *longer) firstMove(client *mongo.Client, rnd *rand.Rand, name string) {
	ctx, cancel := o.l.operation()
	defer cancel()
	cur, err := o.l.db(client).Collection(name).Find(ctx, bson.D{}, options.Find().SetBatchSize(10))
	if err != nil {
		o.l.errors.add("cursor", err)
		return
	}
	moved := make(chan error, 1)
	go func() {
		moved <- client.Database("admin").RunCommand(ctx, bson.D{{Key: "moveRange", Value: "nemesis." + name}, {Key: "min", Value: bson.D{{Key: "_id", Value: lifeDocs / 4}}},
			{Key: "toShard", Value: shardName(rnd.Intn(len(o.l.c.shards)))}, {Key: "waitForDelete", Value: true}}).Err()
	}()
	select {
	case err = <-moved:
		moved <- err
	case <-time.After(500 * time.Millisecond): // it may wait for this very cursor
	}
	if err := o.rest(ctx, cur, name, lifeDocs, func() {}); err != nil {
		o.l.errors.add("cursor", err)
	}
	if err := <-moved; err != nil {
		o.l.errors.add("moveRange", err)
	}
}

func (o *longer) rename(client *mongo.Client, from, to string) bool {
	o.ddl.Add(1)
	defer o.ddl.Add(-1)
	return o.until("renameCollection", func(ctx context.Context, again bool) error {
		err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection", Value: "nemesis." + from}, {Key: "to", Value: "nemesis." + to}}).Err()
		if again && codeOf(err) == int32(mongoerr.NamespaceNotFound) { // an earlier attempt did it
			return nil
		}
		if codeOf(err) == int32(mongoerr.NamespaceNotFound) {
			o.l.h.violation("%s is not there to be renamed (%v after the start)", from, time.Since(o.l.h.start))
		}
		return err
	})
}

// misspelt renames a missing collection to an existing one, and that one to itself: it stays unchanged.
func (o *longer) misspelt(client *mongo.Client, name string) bool {
	for from, code := range map[string]int32{"nemesis.nowhere": int32(mongoerr.NamespaceNotFound), "nemesis." + name: int32(mongoerr.IllegalOperation)} {
		ctx, cancel := o.l.operation()
		err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection", Value: from}, {Key: "to", Value: "nemesis." + name}, {Key: "dropTarget", Value: true}}).Err()
		cancel()
		switch {
		case err == nil:
			o.l.h.violation("%s was renamed to %s (%v after the start)", from, name, time.Since(o.l.h.start))
		case codeOf(err) != code:
			o.l.errors.add("misspelt rename", err)
		}
	}
	return o.holds(client, name, lifeDocs)
}

func (o *longer) drop(client *mongo.Client, name string) bool {
	o.ddl.Add(1)
	defer o.ddl.Add(-1)
	return o.until("drop", func(ctx context.Context, _ bool) error {
		return o.l.db(client).RunCommand(ctx, bson.D{{Key: "drop", Value: name}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}).Err()
	})
}

// holds counts the documents of a collection.
func (o *longer) holds(client *mongo.Client, name string, want int) bool {
	return o.until("count", func(ctx context.Context, _ bool) error {
		n, err := o.l.db(client).Collection(name).CountDocuments(ctx, bson.D{})
		if err == nil && int(n) != want {
			o.l.h.violation("%s has %d documents, not %d (%v after the start)", name, n, want, time.Since(o.l.h.start))
		}
		return err
	})
}

// awaitDDL waits for a running DDL command, but not for long.
func (o *longer) awaitDDL() {
	for i := 0; i < 200 && o.ddl.Load() == 0; i++ {
		time.Sleep(5 * time.Millisecond) // there may be none: the next misfortune comes then all the same
	}
}

// check checks the final state.
func (o *longer) check() {
	t, l := o.l.t, o.l
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var docs []struct{ N int }
	cur, err := l.db(l.c.client).Collection("stubs").Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	sum := 0
	for _, d := range docs {
		sum += d.N
	}
	if err != nil || len(docs) != stubs || sum < o.least || sum > o.most {
		t.Errorf("%d transactions are there (%v, on %d documents), between %d and %d were committed", sum, err, len(docs), o.least, o.most)
	}
	for _, name := range o.gone {
		for _, rs := range l.c.shards {
			if n, err := rs.members[max(rs.primary(), 0)].direct.Database("nemesis").Collection(name).CountDocuments(ctx, bson.D{}); n != 0 || err != nil {
				t.Errorf("%s stores %d documents of %s, which was dropped (%v)", rs.name, n, name, err)
			}
		}
	}
	if len(o.unclear) > 0 {
		t.Errorf("DDL commands on %v did not come to an end", o.unclear)
	}
	t.Logf("%d causal reads, %d commits sent again, %d cursors read, %d collections made, moved, renamed and dropped",
		o.causal.Load(), o.commits.Load(), o.cursors.Load(), o.lives.Load())
}
