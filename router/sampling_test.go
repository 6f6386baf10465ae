package router_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
)

// sample has the cluster's router run commands that are sampled, and stores the samples.
func (c *testCluster) sample(cmds ...string) {
	c.t.Helper()
	if err := c.r.RefreshSampling(context.Background(), 1); err != nil {
		c.t.Fatal(err)
	}
	for _, cmd := range cmds {
		c.run("db", cmd)
	}
	if err := c.r.FlushSamples(context.Background()); err != nil {
		c.t.Fatal(err)
	}
}

// awaitDiffs waits until the shards have stored what that many sampled updates have changed.
func (c *testCluster) awaitDiffs(n int32) {
	c.t.Helper()
	await.True(c.t, "stored diffs", func() bool {
		found := int32(0)
		for _, p := range c.shards {
			found += c.admin(p, bson.D{{Key: "count", Value: "sampledQueriesDiff"}, {Key: "query", Value: bson.D{}}, {Key: "$db", Value: "config"}})["n"].(int32)
		}
		return found == n
	})
}

// reply runs a command on the database admin.
func (c *testCluster) reply(cmd string) bson.D {
	c.t.Helper()
	var out bson.D
	for k, v := range c.run("admin", cmd) {
		out = append(out, bson.E{Key: k, Value: v})
	}
	return out
}

// sampled returns how many samples of each command there are.
func (c *testCluster) sampled(ns string) string {
	counts := map[string]int{}
	for _, d := range c.all("admin", `{"aggregate": 1, "pipeline": [{"$listSampledQueries": {"namespace": "`+ns+`"}}], "cursor": {}}`) {
		counts[get(d, "cmdName").(string)]++
	}
	return fmt.Sprint(counts)
}

// sampleAll has the queries of a collection sampled, and shards store diffs soon.
func (c *testCluster) sampleAll(ns string) {
	c.t.Helper()
	for _, p := range c.params {
		p.Store("queryAnalysisWriterIntervalSecs", value.NewInt32(1))
	}
	c.expect(c.run("admin", `{"configureQueryAnalyzer": "`+ns+`", "mode": "full", "samplesPerSecond": 50}`)["newConfiguration"], `{"mode":"full","samplesPerSecond":50.0}`)
	if err := c.r.RefreshSampling(context.Background(), 1); err != nil {
		c.t.Fatal(err)
	}
}

func TestSampledQueriesOfACluster(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 50}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 50}, "to": "shard1"}`)
	for i := range 100 {
		c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "k": %d, "v": %d}]}`, i, i, i%5))
	}
	c.sampleAll("db.c")
	c.sample(`{"find": "c", "filter": {"k": 3}}`, `{"find": "c", "filter": {"v": 3}}`, `{"aggregate": "c", "pipeline": [{"$match": {"k": {"$gte": 90}}}], "cursor": {}}`,
		`{"count": "c", "query": {"k": 7}}`, `{"distinct": "c", "key": "v", "query": {"k": {"$lt": 10}}}`,
		`{"update": "c", "updates": [{"q": {"k": 3, "_id": 3}, "u": {"$set": {"v": 77}}}]}`,
		`{"update": "c", "updates": [{"q": {"v": 3}, "u": {"$set": {"w": 77}}, "multi": true}]}`,
		`{"findAndModify": "c", "query": {"k": 60}, "update": {"$set": {"v": 78}}}`,
		`{"delete": "c", "deletes": [{"q": {"k": 99}, "limit": 1}]}`)
	c.expect(c.sampled("db.c"), `"map[aggregate:1 count:1 delete:1 distinct:1 find:2 findAndModify:1 update:2]"`)
	c.awaitDiffs(2)
	c.expect(c.sampled("db.other"), `"map[]"`)

	got := c.reply(`{"analyzeShardKey": "db.c", "key": {"k": 1}}`)
	c.expect(get(get(got, "keyCharacteristics"), "numDocsTotal"), `99`)
	c.expect(get(get(got, "keyCharacteristics"), "numDistinctValues"), `99`)
	c.expect(get(get(get(got, "keyCharacteristics"), "monotonicity"), "type"), `"monotonic"`)
	c.expect(get(get(got, "readDistribution"), "sampleSize"), `{"total":5,"find":2,"aggregate":1,"count":1,"distinct":1}`)
	c.expect(get(get(got, "readDistribution"), "percentageOfSingleShardReads"), `40.0`)
	c.expect(get(get(got, "readDistribution"), "percentageOfMultiShardReads"), `40.0`)
	c.expect(get(get(got, "readDistribution"), "percentageOfScatterGatherReads"), `20.0`)
	c.expect(get(get(got, "writeDistribution"), "sampleSize"), `{"total":4,"update":2,"delete":1,"findAndModify":1}`)
	c.expect(get(get(got, "writeDistribution"), "percentageOfSingleShardWrites"), `75.0`)
	c.expect(get(get(got, "writeDistribution"), "percentageOfMultiWritesWithoutShardKey"), `25.0`)
	c.expect(get(get(got, "writeDistribution"), "percentageOfShardKeyUpdates"), `0.0`)

	// Of another key: two of the updates have changed it, and nothing supports it.
	got = c.reply(`{"analyzeShardKey": "db.c", "key": {"v": 1}}`)
	c.expect(get(get(got, "writeDistribution"), "percentageOfShardKeyUpdates"), `50.0`)
	if get(got, "keyCharacteristics") != nil {
		t.Error("characteristics of a key without an index")
	}
}

// An update that moves a document to another shard is a change of the shard key like any other.
func TestSampledUpdateMovesADocument(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 50}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 50}, "to": "shard1"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 60}]}`)
	c.sampleAll("db.c")
	c.sample(`{"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"k": 70}}}], "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}}`)
	c.awaitDiffs(1)
	got := c.reply(`{"analyzeShardKey": "db.c", "key": {"k": 1}, "keyCharacteristics": false}`)
	c.expect(get(get(got, "writeDistribution"), "percentageOfShardKeyUpdates"), `100.0`)
}

// Two routers share the rate by the queries that they run; sampling ends with the collection, through any router.
func TestSamplingIsSharedAndEnds(t *testing.T) {
	c := newTestCluster(t, 2)
	other := c.through()
	other.r.Service.Host = "other"
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	c.run("db", `{"insert": "d", "documents": [{"_id": 1}]}`)
	for _, coll := range []string{"c", "d"} {
		c.run("admin", `{"configureQueryAnalyzer": "db.`+coll+`", "mode": "full", "samplesPerSecond": 40}`)
	}
	ctx := context.Background()
	for range 2 {
		if err := c.r.RefreshSampling(ctx, 3); err != nil {
			t.Fatal(err)
		}
		if err := other.r.RefreshSampling(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
	c.expect(c.r.SamplingRate("db.c"), `30.0`)
	c.expect(other.r.SamplingRate("db.c"), `10.0`)

	other.run("db", `{"drop": "c"}`)
	c.run("admin", `{"renameCollection": "db.d", "to": "db.e"}`)
	c.expect(len(c.all("config", `{"find": "queryAnalyzers"}`)), `0`)
	if err := c.r.RefreshSampling(ctx, 3); err != nil {
		t.Fatal(err)
	}
	if c.r.Service.Sampler.On() {
		t.Error("sampling goes on after the collections are gone")
	}
	c.run("db", `{"insert": "f", "documents": [{"_id": 1}]}`)
	c.run("admin", `{"configureQueryAnalyzer": "db.f", "mode": "full", "samplesPerSecond": 40}`)
	c.run("admin", `{"moveCollection": "db.f", "toShard": "shard1"}`)
	c.expect(len(c.all("config", `{"find": "queryAnalyzers"}`)), `0`) // it has another UUID
	c.run("admin", `{"configureQueryAnalyzer": "db.f", "mode": "full", "samplesPerSecond": 40}`)
	c.expect(len(c.all("config", `{"find": "queryAnalyzers"}`)), `1`)
	c.run("db", `{"dropDatabase": 1}`)
	c.expect(len(c.all("config", `{"find": "queryAnalyzers"}`)), `0`)
}
