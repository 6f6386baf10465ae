package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// lowerBounds returns the lower bounds of db.c's chunks, except the first.
func (c *testCluster) lowerBounds(field string) (out bson.A) {
	c.t.Helper()
	for _, d := range c.all("config", `{"aggregate": "collections", "pipeline": [
		{"$match": {"_id": "db.c"}}, {"$lookup": {"from": "chunks", "localField": "uuid", "foreignField": "uuid", "as": "c"}},
		{"$unwind": "$c"}, {"$sort": {"c.min": 1}}, {"$skip": 1}, {"$replaceWith": "$c.min"}], "cursor": {}}`) {
		if get(d, field) == nil {
			c.t.Fatalf("a bound of another key: %v", d)
		}
		out = append(out, d)
	}
	return out
}

// With as many samples as there are documents the chunks are equal, which those of a few documents are not.
func TestReshardTakesSamples(t *testing.T) {
	c := newTestCluster(t, 2)
	c.runReshardings()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 400) // k from -200 to 199
	c.run("db", `{"update": "c", "updates": [{"q": {}, "u": [{"$set": {"j": {"$add": ["$k", 200]}}}], "multi": true}]}`)
	for _, more := range []string{`"numSamplesPerChunk": 0`, `"numSamplesPerChunk": -1`, `"numSamplesPerChunk": 0.5`} {
		if m := c.raw("admin", `{"reshardCollection": "db.c", "key": {"j": 1}, `+more+`}`); m["code"] != int32(mongoerr.BadValue) || !strings.Contains(m["errmsg"].(string), "numSamplesPerChunk") {
			t.Errorf("%s: %v", more, m)
		}
	}
	if m := c.raw("admin", `{"reshardCollection": "db.c", "key": {"j": 1}, "numSamplesPerChunk": "many"}`); m["code"] != int32(mongoerr.TypeMismatch) {
		t.Errorf("%v", m)
	}
	// No manual documents it.
	if m := c.raw("admin", `{"reshardCollection": "db.c", "key": {"j": 1}, "reshardingUUID": []}`); m["code"] != int32(mongoerr.IDLUnknownField) || !strings.Contains(m["errmsg"].(string), "reshardingUUID") {
		t.Errorf("%v", m)
	}
	c.run("admin", `{"reshardCollection": "db.c", "key": {"j": 1}, "numInitialChunks": 4, "numSamplesPerChunk": 100}`)
	c.expect(c.lowerBounds("j"), `[{"j":100},{"j":200},{"j":300}]`)
	// However many are requested, no more are read than exist.
	c.run("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "numSamplesPerChunk": {"$numberLong": "9223372036854775807"}}`)
	c.expect(len(c.lowerBounds("k")), `89`)
	c.expect(c.counted("c", 1), `400`)
}
