package router_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard that is asked to split a chunk has the config server commit it, if the chunk is its own and the collection the one that is meant.
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
