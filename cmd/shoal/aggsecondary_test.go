package main

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// $out and $merge with a secondary read preference failed with 10107: now the member reads its own data and writes to the primary.
func TestOutAndMergeOnASecondary(t *testing.T) {
	t.Parallel()
	s := startTestSet(t, 3, "")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	db := s.client.Database("d", options.Database().SetWriteConcern(&writeconcern.WriteConcern{W: 3}))
	const documents = 2500
	var docs []any
	for i := range documents {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "x", Value: i % 7}, {Key: "t", Value: bson.DateTime(i)}})
	}
	if _, err := db.Collection("c").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	if err := db.RunCommand(ctx, bson.D{{Key: "create", Value: "old"}, {Key: "validator", Value: bson.D{{Key: "x", Value: bson.D{{Key: "$gte", Value: 0}}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 3}}}}).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Collection("old").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "x", Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	primary := s.primary(ctx, "")
	var own *mongo.Collection
	for _, h := range s.hosts {
		if h != primary {
			own = s.direct(h).Database("d", options.Database().SetReadPreference(readpref.Secondary())).Collection("c")
		}
	}
	run := func(stage string, code int) {
		t.Helper()
		var st bson.D
		if err := bson.UnmarshalExtJSON([]byte(stage), false, &st); err != nil {
			t.Fatal(err)
		}
		err := own.Database().RunCommand(ctx, bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{}}}, st}},
			{Key: "cursor", Value: bson.D{}}}).Err()
		var e mongo.CommandError
		if e, _ = err.(mongo.CommandError); int(e.Code) != code || (err != nil) != (code != 0) {
			t.Errorf("%s: %v, want %d", stage, err, code)
		}
	}
	check := func(coll, filter string, want int64) {
		t.Helper()
		var f bson.D
		if err := bson.UnmarshalExtJSON([]byte(filter), false, &f); err != nil {
			t.Fatal(err)
		}
		if n, err := db.Collection(coll).CountDocuments(ctx, f); err != nil || n != want {
			t.Errorf("%s has %d of %s, %v; want %d", coll, n, filter, err, want)
		}
	}
	run(`{"$out": "new"}`, 0)
	check("new", `{}`, documents)
	run(`{"$out": "old"}`, 0)
	check("old", `{}`, documents)
	if specs, err := db.Collection("old").Indexes().ListSpecifications(ctx); err != nil || len(specs) != 2 {
		t.Errorf("the target's indexes are %v, %v", specs, err)
	}
	run(`{"$merge": {"into": "m"}}`, 0)
	check("m", `{"x": {"$gte": 0}}`, documents)
	run(`{"$merge": {"into": "m", "whenMatched": [{"$set": {"y": {"$add": ["$$new.x", 1]}}}], "whenNotMatched": "discard"}}`, 0)
	check("m", `{"$expr": {"$eq": ["$y", {"$add": ["$x", 1]}]}}`, documents)
	run(`{"$merge": {"into": "empty", "whenMatched": [{"$set": {"z": 1}}], "let": {"w": "$x"}}}`, 0)
	check("empty", `{"z": {"$exists": false}}`, documents)
	run(`{"$merge": {"into": "small", "whenNotMatched": "fail"}}`, int(mongoerr.MergeStageNoMatchingDocument))
	run(`{"$merge": {"into": "m", "whenMatched": "fail"}}`, int(mongoerr.DuplicateKey))
	run(`{"$merge": {"into": "m", "on": "x"}}`, 51183)
	for range 2 { // it is created, and replaced
		run(`{"$out": {"db": "d", "coll": "ts", "timeseries": {"timeField": "t"}}}`, 0)
		check("ts", `{}`, documents)
	}
	run(`{"$out": {"db": "d", "coll": "other", "timeseries": {"timeField": "x"}}}`, int(mongoerr.BadValue)) // which is no time
	names, err := db.ListCollectionNames(ctx, bson.D{})
	if err != nil {
		t.Error(names, err)
	}
	for _, n := range names {
		if len(n) > 4 && n[:4] == "tmp." {
			t.Errorf("%s is left", n)
		}
	}
}
