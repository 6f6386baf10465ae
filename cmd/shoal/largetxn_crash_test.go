package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// smallPieces makes transactions of a few hundred kilobytes be handled like large ones.
var smallPieces = []string{"--setParameter", "largeTransactionThresholdBytes=65536", "--setParameter", "minSnapshotHistoryWindowInSeconds=2"}

const (
	groupDocs = 200 // that a transaction inserts
	oldDocs   = 60  // that it changes, and some of which it deletes and inserts again
)

// largeTxn is a transaction whose versions are sent ahead of its commit.
type largeTxn struct {
	rs      *replicaSet
	n       int // of the transaction
	coll    *mongo.Collection
	session *mongo.Session
}

func (rs *replicaSet) beginLarge(n int) (*largeTxn, error) {
	client := connect(rs.t, rs.uri())
	session, err := client.StartSession()
	if err != nil {
		return nil, err
	}
	w := &largeTxn{rs, n, client.Database("large").Collection("t"), session}
	return w, session.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority()))
}

// write does half of the statements.
func (w *largeTxn) write(ctx context.Context, half int) error {
	ctx = mongo.NewSessionContext(ctx, w.session)
	pad := make([]byte, 4<<10)
	for at := half * groupDocs / 2; at < (half+1)*groupDocs/2; at += 10 {
		var docs []any
		for i := at; i < at+10; i++ {
			docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprint(w.n, "-", i)}, {Key: "of", Value: w.n}, {Key: "u", Value: fmt.Sprint(w.n, "-", i)}, {Key: "pad", Value: pad}})
		}
		if _, err := w.coll.InsertMany(ctx, docs); err != nil {
			return err
		}
		for i := at * oldDocs / groupDocs; i < (at+10)*oldDocs/groupDocs; i++ {
			q := bson.D{{Key: "_id", Value: i}}
			_, err := w.coll.UpdateOne(ctx, q, bson.D{{Key: "$set", Value: bson.D{{Key: "by", Value: w.n}}}})
			if err == nil && i%4 == 0 {
				_, err = w.coll.DeleteOne(ctx, q)
			}
			if err == nil && i%4 == 0 {
				_, err = w.coll.InsertOne(ctx, oldDoc(i, w.n))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func oldDoc(i, by int) bson.D {
	return bson.D{{Key: "_id", Value: i}, {Key: "by", Value: by}, {Key: "u", Value: fmt.Sprint("old", i)}}
}

// check checks on every member that the transaction is there as a whole or not at all.
func (w *largeTxn) check(ctx context.Context, committed, aborted bool) {
	t := w.rs.t
	t.Helper()
	for i, m := range w.rs.members {
		coll := m.direct.Database("large", options.Database().SetReadPreference(readpref.Nearest())).Collection("t")
		inserted, err := coll.CountDocuments(ctx, bson.D{{Key: "of", Value: w.n}})
		changed, again := coll.CountDocuments(ctx, bson.D{{Key: "by", Value: w.n}})
		old, last := coll.CountDocuments(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: oldDocs}}}})
		switch whole := inserted == groupDocs && changed == oldDocs; {
		case errors.Join(err, again, last) != nil:
			t.Errorf("member %d: %v", i, errors.Join(err, again, last))
		case old != oldDocs, !whole && inserted+changed > 0, committed && !whole, aborted && whole:
			t.Errorf("member %d: transaction %d (committed: %v, aborted: %v) has inserted %d documents and changed %d of %d", i, w.n, committed, aborted, inserted, changed, old)
		}
	}
}

// largeTroubles are the faults of a set while a transaction sends its versions ahead. commits reports whether it commits
// nonetheless.
var largeTroubles = []struct {
	name    string
	commits bool
	when    int // after half of its statements, after all of them, during its commit, after it
	do      func(rs *replicaSet) (undo func())
}{
	{"kill the primary", false, 0, killPrimary},
	{"kill the primary", false, 1, killPrimary},
	{"kill the primary", false, 2, killPrimary},
	{"kill the primary at once", false, 2, func(rs *replicaSet) func() {
		rs.kill(0)
		return func() { rs.start(0) }
	}},
	{"kill the primary", true, 3, killPrimary},
	{"step down", false, 0, func(rs *replicaSet) func() { return misfortunes[5].do(rs, rs.elected(), 0) }},
	{"restart a secondary", true, 0, func(rs *replicaSet) func() {
		v := (rs.elected() + 1) % 3
		rs.kill(v)
		return func() { rs.start(v) }
	}},
	{"a secondary gets a snapshot", true, 0, func(rs *replicaSet) func() {
		v := (rs.elected() + 2) % 3
		rs.kill(v)
		if err := os.RemoveAll(rs.dbpath(v)); err != nil {
			rs.t.Error(err)
		}
		rs.start(v)
		return func() {}
	}},
	{"kill all", false, 1, func(rs *replicaSet) func() {
		for i := range rs.members {
			rs.kill(i)
		}
		for i := range rs.members {
			rs.start(i)
		}
		return func() {}
	}},
}

func killPrimary(rs *replicaSet) func() {
	v := rs.elected()
	rs.kill(v)
	return func() { rs.start(v) }
}

// Whatever happens to a set while a large transaction is open or commits, it is there as a whole or not at all, on every member
// and in change streams, and no remains of it are left.
func TestLargeTransactionsInTrouble(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	rs := launchSet(t, setOptions{members: 3, args: smallPieces})
	coll := connect(t, rs.uri()).Database("large", options.Database().SetWriteConcern(writeconcern.Majority())).Collection("t")
	var docs []any
	for i := range oldDocs {
		docs = append(docs, oldDoc(i, -1))
	}
	if _, err := coll.InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	if _, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "u", Value: 1}}, Options: options.Index().SetUnique(true)}); err != nil {
		t.Fatal(err)
	}
	watched := watchGroups(ctx, t, coll)
	var there []int
	for n, x := range largeTroubles {
		w, err := rs.beginLarge(n)
		if err != nil {
			t.Fatal(err)
		}
		committed, err := w.suffer(ctx, x.when, x.do)
		t.Logf("%s at %d: committed %v, %v", x.name, x.when, committed, err)
		if x.commits != committed && x.when != 2 {
			t.Errorf("%s at %d: committed %v: %v", x.name, x.when, committed, err)
		}
		rs.waitReady()
		rs.sameEverywhere("large")
		w.check(ctx, committed, !committed && x.when != 2)
		if n, _ := coll.CountDocuments(ctx, bson.D{{Key: "of", Value: n}}); n > 0 {
			there = append(there, w.n)
		}
		// Nothing locks its documents or unique keys.
		if _, err := coll.UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: oldDocs}}}}, bson.D{{Key: "$set", Value: bson.D{{Key: "after", Value: n}}}}); err != nil {
			t.Error(err)
		}
		w.session.EndSession(ctx)
	}
	for i, m := range rs.members {
		raw, err := m.direct.Database("large").RunCommand(ctx, bson.D{{Key: "validate", Value: "t"}, {Key: "full", Value: true}}, options.RunCmd().SetReadPreference(readpref.Nearest())).Raw()
		if ok, _ := raw.Lookup("valid").BooleanOK(); err != nil || !ok {
			t.Errorf("member %d: %v %v", i, err, raw)
		}
	}
	watched(there)
}

// suffer runs the transaction, with a fault at some point.
func (w *largeTxn) suffer(ctx context.Context, when int, trouble func(*replicaSet) func()) (committed bool, err error) {
	undo := func() {}
	defer func() { undo() }()
	for half := range 2 {
		if err := w.write(ctx, half); err != nil {
			return false, err
		}
		if when == half {
			undo = trouble(w.rs)
		}
	}
	if when != 2 {
		if err = w.session.CommitTransaction(ctx); err == nil && when == 3 {
			undo = trouble(w.rs)
		}
		return err == nil, err
	}
	done := make(chan error, 1)
	go func() { done <- w.session.CommitTransaction(ctx) }()
	undo = trouble(w.rs)
	select {
	case err = <-done:
	case <-time.After(20 * time.Second): // the driver tries again for as long
		err = <-done
	}
	return err == nil, err
}

// watchGroups watches a collection's changes. The function that it returns waits for a document inserted after its call, and
// compares the groups that were complete.
func watchGroups(ctx context.Context, t *testing.T, coll *mongo.Collection) func(want []int) {
	t.Helper()
	watch := func(o ...options.Lister[options.ChangeStreamOptions]) (*mongo.ChangeStream, error) {
		return coll.Watch(ctx, mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}}, o...)
	}
	stream, err := watch()
	if err != nil {
		t.Fatal(err)
	}
	found, last := map[int]int{}, make(chan error, 1)
	go func() {
		defer close(last)
		tries := 0
		next := func() bool { // the driver resumes a stream once, which is not enough when all members are gone at once
			for !stream.Next(ctx) {
				if tries++; stream.Err() == nil || ctx.Err() != nil || tries > 100 {
					return false
				}
				if s, err := watch(options.ChangeStream().SetResumeAfter(stream.ResumeToken())); err == nil {
					_ = stream.Close(ctx)
					stream = s
				}
			}
			return true
		}
		for next() {
			var e struct {
				Doc struct {
					Of  *int
					End bool
				} `bson:"fullDocument"`
			}
			if err := stream.Decode(&e); err != nil || e.Doc.End {
				last <- err
				return
			}
			if e.Doc.Of != nil {
				found[*e.Doc.Of]++
			}
		}
		last <- stream.Err()
	}()
	return func(want []int) {
		t.Helper()
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: "end"}, {Key: "u", Value: "end"}, {Key: "end", Value: true}}); err != nil {
			t.Fatal(err)
		}
		if err := <-last; err != nil {
			t.Fatal(err)
		}
		_ = stream.Close(ctx)
		for _, n := range want {
			if found[n] != groupDocs {
				t.Errorf("a change stream showed %d insertions of transaction %d", found[n], n)
			}
			delete(found, n)
		}
		if len(found) > 0 {
			t.Errorf("a change stream showed insertions of transactions that did not commit: %v", found)
		}
	}
}
