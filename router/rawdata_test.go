package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// rawSeries runs commands with rawData on a time series db.ts of four series with one bucket each.
func (c *testCluster) rawSeries() {
	c.t.Helper()
	for range 2 { // as the first and as a later request of this router
		c.expect(len(c.all("db", `{"find": "ts", "rawData": true}`)), `4`)
		c.expect(c.run("db", `{"count": "ts"}`)["n"], `40`)
	}
	c.expect(c.run("db", `{"count": "ts", "rawData": true}`)["n"], `4`)
	c.expect(c.run("db", `{"count": "ts", "query": {"meta.s": 3}, "rawData": true}`)["n"], `1`)
	c.expect(c.run("db", `{"distinct": "ts", "key": "meta.s", "rawData": true}`)["values"], `[0,1,2,3]`)
	c.expect(c.all("db", `{"aggregate": "ts", "pipeline": [{"$group": {"_id": null, "n": {"$sum": "$meta.s"}}}], "cursor": {}, "rawData": true}`), `[{"_id":null,"n":6}]`)
	c.expect(get(c.all("db", `{"listIndexes": "ts", "rawData": true}`)[0], "key"), `{"meta":1,"control.min.t":1,"control.max.t":1}`)
	c.expect(len(c.all("db", `{"find": "view", "rawData": true}`)), `10`)
	c.expect(len(c.all("db", `{"find": "plain", "rawData": true}`)), `2`)
	for _, cmd := range []string{
		`{"explain": {"find": "ts", "filter": {"meta.s": 1}, "rawData": true}}`, `{"explain": {"count": "ts", "rawData": true}}`,
		`{"explain": {"aggregate": "ts", "pipeline": [{"$match": {"meta.s": 1}}], "cursor": {}, "rawData": true}}`,
	} {
		if plan := show(c.run("db", cmd)); !strings.Contains(plan, "db.system.buckets.ts") || strings.Contains(plan, "$_internalUnpackBucket") {
			c.t.Errorf("%s: %s", cmd, plan)
		}
	}

	for s := range 4 {
		bucket, err := bson.MarshalExtJSON(c.all("db", fmt.Sprintf(`{"find": "ts", "filter": {"meta.s": %d}, "rawData": true}`, s))[0], true, false)
		if err != nil {
			c.t.Fatal(err)
		}
		c.expect(c.run("db", fmt.Sprintf(`{"delete": "ts", "deletes": [{"q": {"meta.s": %d}, "limit": 1}], "rawData": true}`, s))["n"], `1`)
		c.expect(c.run("db", `{"count": "ts"}`)["n"], `30`)
		c.expect(c.run("db", fmt.Sprintf(`{"insert": "ts", "documents": [%s], "rawData": true}`, bucket))["n"], `1`)
		c.expect(c.run("db", `{"count": "ts"}`)["n"], `40`)
	}
	c.expect(c.run("db", `{"update": "ts", "updates": [{"q": {}, "u": {"$set": {"meta.x": 1}}, "multi": true}], "rawData": true}`)["n"], `4`)
	c.expect(c.run("db", `{"count": "ts", "query": {"m.x": 1}}`)["n"], `40`)
	c.expect(get(c.run("db", `{"findAndModify": "ts", "query": {"meta.s": 3}, "update": {"$set": {"meta.x": 2}}, "rawData": true}`)["lastErrorObject"], "n"), `1`)
	c.expect(c.run("admin", `{"bulkWrite": 1, "ops": [{"update": 1, "filter": {"meta.s": 0}, "updateMods": {"$set": {"meta.x": 2}}}, {"insert": 0, "document": {"_id": 9}},
		{"delete": 0, "filter": {"_id": 9}}], "nsInfo": [{"ns": "db.plain"}, {"ns": "db.ts"}], "rawData": true}`)["nModified"], `1`)
	c.expect(c.run("db", `{"count": "ts", "query": {"m.x": 2}}`)["n"], `20`)

	c.run("db", `{"createIndexes": "ts", "indexes": [{"key": {"control.min.v": 1}, "name": "raw"}], "rawData": true}`)
	had := len(c.all("db", `{"listIndexes": "ts", "rawData": true}`))
	c.run("db", `{"dropIndexes": "ts", "index": "raw", "rawData": true}`)
	c.expect(len(c.all("db", `{"listIndexes": "ts", "rawData": true}`)), fmt.Sprint(had-1))
	if m := c.raw("db", `{"collStats": "ts", "rawData": true}`); m["code"] != int32(mongoerr.InvalidOptions) || !strings.Contains(fmt.Sprint(m["errmsg"]), "rawData") {
		c.t.Errorf("collStats: %v", m)
	}
}

// Through a router, rawData: true concerns the buckets of a time series whether it is sharded or not, on whichever router it was sharded, and whether
// or not the router knows it.
func TestRawDataThroughRouters(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.run("db", `{"create": "view", "viewOn": "ts", "pipeline": [{"$match": {"m.s": 1}}]}`)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}, {"_id": 2}]}`)
	c.measure(4, 10)
	stale, _ := c.mongos(c.clock)
	own := c.router
	c.rawSeries()
	c.router = stale
	c.rawSeries()
	c.router = own
	c.run("db", `{"createIndexes": "ts", "indexes": [{"key": {"m.s": 1}, "name": "s"}]}`)
	c.run("admin", `{"shardCollection": "db.ts", "key": {"m.s": 1}}`)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 2}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 3}, "to": "shard1", "_waitForDelete": true}`)
	c.run("db", `{"update": "ts", "updates": [{"q": {}, "u": {"$unset": {"meta.x": 1}}, "multi": true}], "rawData": true}`)
	for _, r := range []int{0, 1} {
		if c.router = own; r == 1 {
			c.router = stale
		}
		c.rawSeries()
		if n := c.onShard("shard1", "system.buckets.ts"); n != 2 {
			t.Errorf("%d buckets are on shard1, want 2", n)
		}
	}
}

// A cursor over the buckets of several shards, opened with rawData, returns all of them.
func TestRawDataGetMoreOfShards(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 2}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 3}, "to": "shard1", "_waitForDelete": true}`)
	m := c.run("db", `{"find": "ts", "rawData": true, "batchSize": 1, "sort": {"meta.s": 1}}`)
	c.expect(get(m["cursor"], "ns"), `"db.system.buckets.ts"`)
	m = c.run("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "system.buckets.ts"}`, get(m["cursor"], "id")))
	rest, _ := get(m["cursor"], "nextBatch").(bson.A)
	if len(rest) != 3 || get(get(rest[2], "meta"), "s") != int32(3) {
		t.Errorf("the rest: %v", rest)
	}
}
