package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// sampledNames returns the collections that have a configuration of sampling.
func (c *testCluster) sampledNames() string {
	c.t.Helper()
	return show(c.all("config", `{"find": "queryAnalyzers", "sort": {"_id": 1}, "projection": {"_id": 1}}`))
}

// configured has queries of collections be sampled.
func (c *testCluster) configured(colls ...string) {
	c.t.Helper()
	for _, ns := range colls {
		c.run("admin", `{"configureQueryAnalyzer": "`+ns+`", "mode": "full", "samplesPerSecond": 1}`)
	}
}

// The sampling of a collection ends with a drop or rename whose router has gone meanwhile: that is up to the coordinator.
func TestSamplingEndsWithoutTheRouter(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("else", `{"insert": "kept", "documents": [{"_id": 1}]}`)
	for _, x := range []struct{ db, cmd, phase string }{
		{"db", `{"drop": "sharded"}`, "dropCollection"},
		{"db", `{"drop": "plain"}`, "dropCollection"},
		{"admin", `{"renameCollection": "db.sharded", "to": "db.new"}`, "renameMetadata"},
		{"admin", `{"renameCollection": "db.sharded", "to": "db.plain", "dropTarget": true}`, "renameMetadata"},
		{"admin", `{"renameCollection": "db.plain", "to": "db.new"}`, "renameMetadata"},
		{"admin", `{"renameCollection": "db.other", "to": "db.plain", "dropTarget": true}`, "renameMetadata"},
		{"db", `{"dropDatabase": 1}`, "dropDatabase"},
		{"admin", `{"moveCollection": "db.plain", "toShard": "shard0"}`, "reshardCollection"},
	} {
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
		c.shardedAs("sharded", 1, 10)
		c.insertKeys("plain", 2, 10)
		c.insertKeys("other", 3, 10)
		c.configured("db.sharded", "db.plain", "else.kept")
		before := c.sampledNames()
		reached, release := c.hangAt("shard1", x.phase)
		lost := make(chan bson.M, 1)
		go func() { lost <- c.raw(x.db, x.cmd[:len(x.cmd)-1]+`, "maxTimeMS": 500}`) }()
		reached()
		if m := <-lost; m["code"] != int32(mongoerr.MaxTimeMSExpired) {
			t.Errorf("%s: %v", x.cmd, m)
		}
		if got := c.sampledNames(); got != before {
			t.Errorf("%s has not begun: %s", x.cmd, got)
		}
		release()
		want := `[{"_id":"db.plain"},{"_id":"else.kept"}]`
		switch x.cmd {
		case `{"dropDatabase": 1}`, `{"renameCollection": "db.sharded", "to": "db.plain", "dropTarget": true}`:
			want = `[{"_id":"else.kept"}]`
		case `{"drop": "plain"}`, `{"renameCollection": "db.plain", "to": "db.new"}`, `{"renameCollection": "db.other", "to": "db.plain", "dropTarget": true}`,
			`{"moveCollection": "db.plain", "toShard": "shard0"}`:
			want = `[{"_id":"db.sharded"},{"_id":"else.kept"}]`
		}
		await.State(t, x.cmd+": the sampling ends", func() (any, bool) {
			got := c.sampledNames()
			return got, got == want
		})
		c.leftOver()
		c.run("db", `{"dropDatabase": 1, "maxTimeMS": 100000}`)
		c.expect(c.all("config", `{"find": "queryAnalyzers", "projection": {"_id": 1}}`), `[{"_id":"else.kept"}]`)
	}
}

// The primary of the coordinating shard changes at each phase of the drop or rename of a collection that is sampled, and on that shard alone: nothing of
// it is left, and no configuration.
func TestSampledCollectionIsDroppedAtEveryPhase(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	for _, phase := range []string{"enterCriticalSection", "dropCollection", "releaseCriticalSection", "done"} {
		c.insertKeys("c", 1, 10)
		c.configured("db.c")
		if m := c.atPhase("shard1", phase, "db", `{"drop": "c"}`); m["ok"] != 1.0 && m["code"] != int32(mongoerr.HostUnreachable) {
			t.Errorf("%s: %v", phase, m)
		}
		c.run("db", `{"drop": "c", "maxTimeMS": 100000}`)
		c.leftOver()
		c.expect(c.sampledNames(), `"[]"`)
		c.expect(c.counted("c", 1), `0`)
	}
	for _, phase := range []string{"renameMetadata", "done"} {
		c.insertKeys("c", 1, 10)
		c.configured("db.c")
		c.atPhase("shard1", phase, "admin", `{"renameCollection": "db.c", "to": "db.d"}`)
		await.State(t, phase+": it is renamed", func() (any, bool) {
			got := fmt.Sprintf("%d %d %s", c.counted("c", 1), c.counted("d", 1), c.sampledNames())
			return got, got == "0 10 []"
		})
		c.leftOver()
		c.run("db", `{"drop": "d"}`)
	}
}

// A rename that is refused leaves the sampling as it is; one into another database ends it, and so does a drop that finds the configuration of another
// collection of that name.
func TestSamplingBesideOddRenames(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	c.run("admin", `{"enableSharding": "else", "primaryShard": "shard1"}`)
	c.insertKeys("c", 1, 4)
	c.insertKeys("d", 2, 4)
	c.run("else", `{"insert": "d", "documents": [{"_id": 1}]}`)
	c.configured("db.c")
	for _, cmd := range []string{
		`{"renameCollection": "db.c", "to": "db.d"}`, `{"renameCollection": "db.c", "to": "db.c"}`, `{"renameCollection": "db.none", "to": "db.c", "dropTarget": true}`,
		`{"renameCollection": "db.c", "to": "else.d"}`, `{"renameCollection": "db.c", "to": "db.x", "collectionUUID": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}`,
	} {
		if m := c.raw("admin", cmd); m["ok"] == 1.0 {
			t.Errorf("%s: %v", cmd, m)
		}
		c.expect(c.all("config", `{"find": "queryAnalyzers", "projection": {"_id": 1}}`), `[{"_id":"db.c"}]`)
	}
	c.run("admin", `{"renameCollection": "db.c", "to": "else.d", "dropTarget": true}`)
	c.expect(c.run("else", `{"count": "d"}`)["n"], `4`)
	c.expect(c.sampledNames(), `"[]"`)
	c.configured("db.d")
	c.admin(c.confP, bson.D{{Key: "update", Value: "queryAnalyzers"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set",
		Value: bson.D{{Key: "collUuid", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}}}}}}}, {Key: "$db", Value: "config"}})
	c.run("db", `{"drop": "d"}`)
	c.expect(c.sampledNames(), `"[]"`)
}

// Indexes that are multikey on any shard, or hidden, support no analysis; another one does.
func TestIndexesThatSupportNoAnalysis(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 20)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"v": 1}, "name": "v", "hidden": true}]}`)
	c.run("db", `{"update": "c", "updates": [{"q": {}, "u": [{"$set": {"v": "$k", "a": "$k"}}], "multi": true}]}`)
	analyze := func(key string) bson.M {
		return c.raw("admin", `{"analyzeShardKey": "db.c", "key": {"`+key+`": 1}, "readWriteDistribution": false}`)
	}
	if m := analyze("a"); m["ok"] != 1.0 {
		t.Errorf("an index: %v", m)
	}
	if m := analyze("v"); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("a hidden index: %v", m)
	}
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"v": -1}, "name": "back"}]}`)
	if m := analyze("v"); m["ok"] != 1.0 {
		t.Errorf("a visible index beside a hidden one: %v", m)
	}
	c.run("db", `{"update": "c", "updates": [{"q": {"k": 3}, "u": {"$set": {"a": [3, 4]}}}]}`)
	if m := analyze("a"); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("a multikey index: %v", m)
	}
}

// A shardCollection that is refused when the collection has been blocked leaves the sampling of the collection as it was.
func TestSamplingOutlivesARefusedShardCollection(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	c.insertKeys("plain", 1, 10)
	c.run("db", `{"createIndexes": "plain", "indexes": [{"key": {"k": "hashed"}, "name": "kh"}]}`)
	c.configured("db.plain")
	if m := c.raw("admin", `{"shardCollection": "db.plain", "key": {"k": "hashed"}, "numInitialChunks": 7}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Fatal(m)
	}
	c.expect(c.all("config", `{"find": "queryAnalyzers", "projection": {"_id": 1, "mode": 1}}`), `[{"_id":"db.plain","mode":"full"}]`)
	c.expect(c.counted("plain", 1), `10`)
}
