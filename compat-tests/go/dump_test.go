package compat

import (
	"context"
	"os"
	"reflect"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// oplogRow is an entry of the oplog as mongodump stores it and mongorestore reads it.
type oplogRow struct {
	TS bson.Timestamp `bson:"ts"`
	Op string         `bson:"op"`
	NS string         `bson:"ns"`
	O  bson.Raw       `bson:"o"`
	O2 bson.Raw       `bson:"o2,omitempty"`
}

// dumpWriter writes to a database until it is stopped: single writes, writes of many documents, transactions, new collections and
// indexes. It deletes no document that it updates.
func dumpWriter(ctx context.Context, t *testing.T, db *mongo.Database, stop <-chan struct{}, wrote chan<- struct{}) {
	c := db.Collection("c")
	must := func(_ any, err error) {
		if err != nil {
			t.Error(err)
		}
	}
	s, err := db.Client().StartSession()
	if err != nil {
		t.Error(err)
		return
	}
	defer s.EndSession(ctx)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		k := i % 100
		must(c.UpdateOne(ctx, bson.D{{Key: "_id", Value: k}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "sub.n", Value: 1}}}, {Key: "$push", Value: bson.D{{Key: "list", Value: i}}}}))
		must(c.UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 10}}}}, bson.D{{Key: "$set", Value: bson.D{{Key: "many", Value: i}}}, {Key: "$unset", Value: bson.D{{Key: "old", Value: ""}}}}))
		must(c.ReplaceOne(ctx, bson.D{{Key: "_id", Value: 99 - k}}, bson.D{{Key: "list", Value: bson.A{i}}, {Key: "sub", Value: bson.D{{Key: "n", Value: i}}}}))
		must(c.InsertMany(ctx, []any{bson.D{{Key: "_id", Value: 1000 + 2*i}}, bson.D{{Key: "_id", Value: 1001 + 2*i}}}))
		must(c.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: bson.A{100 + k, 1000 + 2*i}}}}}))
		must(s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
			if _, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: -1 - i}, {Key: "txn", Value: true}}); err != nil {
				return nil, err
			}
			return c.UpdateOne(ctx, bson.D{{Key: "_id", Value: k}}, bson.D{{Key: "$set", Value: bson.D{{Key: "txn", Value: i}}}})
		}))
		if i == 20 {
			must(db.Collection("later").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: 1}}))
			must(db.Collection("later").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "x", Value: 1}}}))
		}
		wrote <- struct{}{}
	}
}

// lastEntry returns the newest entry of the oplog.
func lastEntry(ctx context.Context, t *testing.T, oplog *mongo.Collection) (e oplogRow) {
	t.Helper()
	if err := oplog.FindOne(ctx, bson.D{}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}})).Decode(&e); err != nil {
		t.Fatal(err)
	}
	return e
}

func documents(ctx context.Context, t *testing.T, c *mongo.Collection) (out []bson.Raw) {
	t.Helper()
	cur, err := c.Find(ctx, bson.D{}, options.Find().SetBatchSize(20))
	if err == nil {
		err = cur.All(ctx, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What mongodump --oplog reads of a set beside writers, restored as mongorestore --oplogReplay does it, is the database as of the last
// entry: the documents, read while they change, and then the oplog from before that on, transactions, index builds and all.
func TestDumpWithOplog(t *testing.T) {
	if os.Getenv("TOPOLOGY") != "replset" {
		t.Skip("mongodump --oplog is for replica sets")
	}
	ctx := context.Background()
	client := connect(t)
	db, oplog := client.Database("compat_dump"), client.Database("local").Collection("oplog.rs")
	if err := db.Drop(ctx); err != nil {
		t.Fatal(err)
	}
	var docs []any
	for i := range 200 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "old", Value: true}})
	}
	if _, err := db.Collection("c").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	stop, wrote, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		dumpWriter(ctx, t, db, stop, wrote)
	}()
	rounds := func(n int) {
		for range n {
			<-wrote
		}
	}
	rounds(5)
	start := lastEntry(ctx, t, oplog).TS
	dumped := map[string][]bson.Raw{}
	rounds(5)
	dumped["c"] = documents(ctx, t, db.Collection("c"))
	rounds(20)
	end := lastEntry(ctx, t, oplog).TS
	go func() {
		for range wrote {
		}
	}()
	var first oplogRow
	if err := oplog.FindOne(ctx, bson.D{}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: 1}})).Decode(&first); err != nil || first.TS.After(start) {
		t.Fatalf("the oplog begins at %v, after %v: %v", first.TS, start, err)
	}
	cur, err := oplog.Find(ctx, bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: start}, {Key: "$lte", Value: end}}}})
	if err != nil {
		t.Fatal(err)
	}
	var rows []oplogRow
	if err := cur.All(ctx, &rows); err != nil {
		t.Fatal(err)
	}
	want := map[string][]bson.Raw{}
	for _, coll := range []string{"c", "later"} {
		var reply struct {
			Cursor struct{ FirstBatch []bson.Raw }
		}
		err := db.RunCommand(ctx, bson.D{{Key: "find", Value: coll}, {Key: "batchSize", Value: 100000}, {Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: end}}}}).Decode(&reply)
		if err != nil {
			t.Fatal(err)
		}
		want[coll] = reply.Cursor.FirstBatch
	}
	close(stop)
	<-ended
	close(wrote)
	if err := db.Drop(ctx); err != nil {
		t.Fatal(err)
	}
	for coll, list := range dumped {
		if _, err := db.Collection(coll).InsertMany(ctx, anyOf(list)); err != nil {
			t.Fatal(err)
		}
	}
	replay(ctx, t, db, rows)
	for coll, list := range want {
		byID := func(a, b bson.Raw) int { return int(a.Lookup("_id").AsInt64()) - int(b.Lookup("_id").AsInt64()) }
		got := documents(ctx, t, db.Collection(coll))
		slices.SortFunc(got, byID)
		slices.SortFunc(list, byID)
		if !reflect.DeepEqual(got, list) {
			t.Errorf("%s: %d documents were restored, want %d, and not the same", coll, len(got), len(list))
		}
	}
	specs, err := db.Collection("later").Indexes().ListSpecifications(ctx)
	if err != nil || len(specs) != 2 {
		t.Errorf("%d indexes were restored (%v), want 2", len(specs), err)
	}
}

func anyOf(list []bson.Raw) (out []any) {
	for _, d := range list {
		out = append(out, d)
	}
	return out
}

// replay applies entries one by one. Collections are not the ones that their uuids name; the operations of a transaction are applied
// where its last entry is, and the indexes of a build where its commit is.
func replay(ctx context.Context, t *testing.T, db *mongo.Database, rows []oplogRow) {
	t.Helper()
	transactions, updates := 0, 0
	var apply func(row oplogRow)
	apply = func(row oplogRow) {
		var err error
		admin := db.Client().Database("admin")
		switch name := commandName(row); {
		case row.Op == "n":
		case name == "applyOps":
			var inner []oplogRow
			if err := row.O.Lookup("applyOps").Unmarshal(&inner); err != nil {
				t.Fatal(err)
			}
			transactions++
			for _, r := range inner {
				apply(r)
			}
		case len(row.NS) <= len(db.Name()) || row.NS[:len(db.Name())+1] != db.Name()+".":
		case name == "startIndexBuild" || name == "abortIndexBuild":
		case name == "commitIndexBuild":
			err = db.RunCommand(ctx, bson.D{{Key: "createIndexes", Value: row.O.Lookup(name)}, {Key: "indexes", Value: row.O.Lookup("indexes")}}).Err()
		case name == "createIndexes":
			var spec bson.D
			for _, e := range elements(t, row.O) {
				if e.Key != "createIndexes" {
					spec = append(spec, e)
				}
			}
			err = db.RunCommand(ctx, bson.D{{Key: "createIndexes", Value: row.O.Lookup(name)}, {Key: "indexes", Value: bson.A{spec}}}).Err()
		default:
			if row.Op == "u" {
				updates++
			}
			op := bson.D{{Key: "op", Value: row.Op}, {Key: "ns", Value: row.NS}, {Key: "o", Value: row.O}}
			if row.O2 != nil {
				op = append(op, bson.E{Key: "o2", Value: row.O2})
			}
			err = admin.RunCommand(ctx, bson.D{{Key: "applyOps", Value: bson.A{op}}}).Err()
		}
		if err != nil {
			t.Fatalf("%s %s %v: %v", row.Op, row.NS, row.O, err)
		}
	}
	for _, row := range rows {
		apply(row)
	}
	if transactions < 20 || updates < 100 {
		t.Errorf("the dump has %d transactions and %d updates", transactions, updates)
	}
}

func commandName(row oplogRow) string {
	if row.Op != "c" {
		return ""
	}
	e, err := row.O.IndexErr(0)
	if err != nil {
		return ""
	}
	return e.Key()
}

func elements(t *testing.T, raw bson.Raw) (d bson.D) {
	t.Helper()
	if err := bson.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}
