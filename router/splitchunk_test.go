package router_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard that is asked to split a chunk has the config server commit the split, if the shard owns the chunk and the collection is the one that is meant.
func TestSplitChunkOfAShard(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 100)
	epoch := get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "lastmodEpoch")
	ask := func(shard, from string, epoch any, min, max any, at ...int32) mongoerr.Code {
		t.Helper()
		keys := bson.A{}
		for _, k := range at {
			keys = append(keys, bson.D{{Key: "_id", Value: k}})
		}
		raw, err := bson.Marshal(bson.D{
			{Key: "splitChunk", Value: "db.c"}, {Key: "from", Value: from}, {Key: "keyPattern", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "epoch", Value: epoch},
			{Key: "min", Value: bson.D{{Key: "_id", Value: min}}}, {Key: "max", Value: bson.D{{Key: "_id", Value: max}}}, {Key: "splitKeys", Value: keys},
			{Key: "$db", Value: "admin"},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = cluster.Run(context.Background(), c.shards[shard], raw)
		return mongoerr.CodeOf(err)
	}
	before := c.chunkList("c")
	low, high := bson.MinKey{}, int32(50)
	for name, x := range map[string]struct{ got, want mongoerr.Code }{
		"another shard's name":  {ask("shard0", "shard1", epoch, low, high, 10), mongoerr.IllegalOperation},
		"another shard's chunk": {ask("shard1", "shard1", epoch, low, high, 10), mongoerr.ConflictingOperationInProgress},
		"another collection":    {ask("shard0", "shard0", bson.NewObjectID(), low, high, 10), mongoerr.StaleEpoch},
		"other bounds":          {ask("shard0", "shard0", epoch, low, int32(40), 10), mongoerr.BadValue},
		"no point":              {ask("shard0", "shard0", epoch, low, high), mongoerr.InvalidOptions},
		"a point outside":       {ask("shard0", "shard0", epoch, low, high, 60), mongoerr.InvalidOptions},
	} {
		if x.got != x.want {
			t.Errorf("%s: %v, want %v", name, x.got.Name(), x.want.Name())
		}
	}
	if got := c.chunkList("c"); got != before {
		t.Fatalf("%s became %s", before, got)
	}
	if code := ask("shard0", "shard0", epoch, low, high, 10, 20); code != 0 {
		t.Fatal(code.Name())
	}
	c.expect(c.chunkList("c"), `"shard0:? shard0:10 shard0:20 shard0:50 "`)
	c.expect(c.run("db", `{"count": "c", "query": {}}`)["n"], `100`)
}

// A shard is asked whether an index of a collection supports a shard key: one that begins with the key's fields and has every document once.
func TestCheckShardingIndex(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "many": [1, 2]}]}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1, "b": 1}, "name": "ab"}, {"key": {"h": "hashed"}, "name": "h"}, {"key": {"many": 1}, "name": "many"},
		{"key": {"few": 1}, "name": "few", "sparse": true}, {"key": {"part": 1}, "name": "part", "partialFilterExpression": {"a": 1}},
		{"key": {"other": 1}, "name": "other", "collation": {"locale": "fr"}}]}`)
	for _, x := range []struct {
		ns, args string
		code     mongoerr.Code
	}{
		{"db.c", `"keyPattern": {"_id": 1}`, 0}, {"db.c", `"keyPattern": {"a": 1}`, 0}, {"db.c", `"keyPattern": {"a": 1, "b": 1}`, 0}, {"db.c", `"keyPattern": {"h": "hashed"}`, 0},
		{"db.c", `"keyPattern": {"a": 1}, "min": {"a": 1}, "max": {"a": 5}`, 0},
		{"db.c", `"keyPattern": {"b": 1}`, mongoerr.UnknownError}, {"db.c", `"keyPattern": {"many": 1}`, mongoerr.UnknownError}, {"db.c", `"keyPattern": {"few": 1}`, mongoerr.UnknownError},
		{"db.c", `"keyPattern": {"part": 1}`, mongoerr.UnknownError}, {"db.c", `"keyPattern": {"other": 1}`, mongoerr.UnknownError}, {"db.c", `"keyPattern": {"h": 1}`, mongoerr.UnknownError},
		{"db.none", `"keyPattern": {"a": 1}`, mongoerr.NamespaceNotFound},
	} {
		err := c.tell("shard0", `{"checkShardingIndex": "`+x.ns+`", `+x.args+`, "$db": "admin"}`)
		if code := mongoerr.CodeOf(err); code != x.code || x.code == mongoerr.UnknownError && mongoerr.From(err).Message != "couldn't find valid index for shard key" {
			t.Errorf("%s: %v", x.args, err)
		}
	}
}
