package router_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// seriesCluster has a time series collection db.ts, sharded by its metaField, of four series, two on each of two shards.
func seriesCluster(t *testing.T, key string) *testCluster {
	t.Helper()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", fmt.Sprintf(`{"shardCollection": "db.ts", "key": %s, "timeseries": {"timeField": "t", "metaField": "m"}}`, key))
	return c
}

// measure inserts measurements of some series, one a minute.
func (c *testCluster) measure(series, minutes int) {
	c.t.Helper()
	var docs string
	for s := range series {
		for i := range minutes {
			docs += fmt.Sprintf(`, {"_id": %d, "t": {"$date": "2026-01-01T%02d:%02d:00Z"}, "m": {"s": %d}, "v": %d}`, s*1000+i, i/60, i%60, s, i)
		}
	}
	c.expect(c.run("db", fmt.Sprintf(`{"insert": "ts", "documents": [%s]}`, docs[2:]))["n"], fmt.Sprint(series*minutes))
}

// A time series collection is sharded by its metaField: measurements are written to the shard of their bucket, and everything reads as on one shard,
// through a router that made it sharded and through one that took it for unsharded before.
func TestShardedTimeSeries(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.measure(4, 10)
	if m := c.raw("admin", `{"shardCollection": "db.ts", "key": {"m.s": 1}}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Errorf("it is sharded without an index: %v", m)
	}
	c.run("db", `{"createIndexes": "ts", "indexes": [{"key": {"m.s": 1}, "name": "s"}]}`)
	stale, _ := c.mongos(c.clock)
	own := c.router
	c.router = stale
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `40`)
	c.router = own
	c.run("admin", `{"shardCollection": "db.ts", "key": {"m.s": 1}}`)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 2}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 3}, "to": "shard1", "_waitForDelete": true}`)
	c.router = stale
	c.expect(c.run("db", `{"insert": "ts", "documents": [{"_id": 9000, "t": {"$date": "2026-01-01T00:30:00Z"}, "m": {"s": 3}}, {"_id": 9001, "t": {"$date": "2026-01-01T00:30:00Z"}, "m": {"s": 0}}]}`)["n"], `2`)
	for range 2 {
		c.expect(c.run("db", `{"count": "ts"}`)["n"], `42`)
		c.expect(c.run("db", `{"count": "ts", "query": {"m.s": 3}}`)["n"], `11`)
		c.expect(len(c.all("db", `{"find": "ts", "filter": {"t": {"$gte": {"$date": "2026-01-01T00:30:00Z"}}}}`)), `2`)
		c.expect(c.raw("db", `{"distinct": "ts", "key": "m.s"}`)["values"], `[0,1,2,3]`)
		c.expect(c.all("db", `{"aggregate": "ts", "pipeline": [{"$group": {"_id": "$m.s", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], "cursor": {}}`),
			`[{"_id":0,"n":11},{"_id":1,"n":10},{"_id":2,"n":10},{"_id":3,"n":11}]`)
		c.router = own
	}
	c.expect(len(c.all("db", `{"find": "system.buckets.ts"}`)), `5`) // those of 3 went on one more: the shard has no open bucket of it
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)

	c.run("db", `{"insert": "plain", "documents": [{"_id": 3}, {"_id": 7}]}`)
	c.expect(c.all("db", `{"aggregate": "plain", "pipeline": [{"$lookup": {"from": "ts", "localField": "_id", "foreignField": "m.s", "as": "x"}}, {"$project": {"n": {"$size": "$x"}}}, {"$sort": {"_id": 1}}], "cursor": {}}`),
		`[{"_id":3,"n":11},{"_id":7,"n":0}]`)
	c.expect(len(c.all("db", `{"aggregate": "plain", "pipeline": [{"$unionWith": "ts"}], "cursor": {}}`)), `44`)
	for range 2 {
		c.expect(c.raw("admin", `{"renameCollection": "db.ts", "to": "db.other"}`)["code"], fmt.Sprint(int(mongoerr.CommandNotSupportedOnView)))
	}

	// One measurement, whose shard the filter does not determine; then those of one series; then by time alone.
	c.expect(c.run("db", `{"delete": "ts", "deletes": [{"q": {"_id": 3001}, "limit": 1}]}`)["n"], `1`)
	c.expect(c.run("db", `{"delete": "ts", "deletes": [{"q": {"m.s": 2, "v": {"$lt": 5}}, "limit": 0}]}`)["n"], `5`)
	c.expect(c.run("db", `{"delete": "ts", "deletes": [{"q": {"t": {"$gte": {"$date": "2026-01-01T00:30:00Z"}}}, "limit": 0}]}`)["n"], `2`)
	c.expect(get(c.run("db", `{"findAndModify": "ts", "query": {"_id": 3002}, "remove": true}`)["value"], "v"), `2`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `33`)
	c.expect(c.run("db", `{"update": "ts", "updates": [{"q": {"m.s": 3}, "u": {"$set": {"m.name": "x"}}, "multi": true}]}`)["n"], `1`)
	c.expect(c.run("db", `{"count": "ts", "query": {"m.name": "x"}}`)["n"], `8`)
	m := c.raw("db", `{"update": "ts", "updates": [{"q": {"m.s": 3}, "u": {"$set": {"m.s": 1}}, "multi": true}]}`)
	if e, ok := m["writeErrors"].(bson.A); !ok || get(e[0], "code") != int32(mongoerr.InvalidOptions) {
		t.Errorf("an update changes the shard key: %v", m)
	}

	c.run("db", `{"drop": "ts"}`)
	for id, s := range c.server {
		if s.Node.Engine.Catalog().Lookup("db.system.buckets.ts") != nil {
			t.Errorf("buckets are left on %s", id)
		}
	}
	c.router = stale
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `0`)
	c.run("db", `{"insert": "ts", "documents": [{"_id": 1}]}`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `1`)
}

// With the timeField in the shard key, measurements of one series are on several shards. A bucket stays where its first time belongs.
func TestTimeSeriesShardedByTime(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1, "t": 1}`)
	c.measure(2, 120)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 1, "control.min.t": {"$date": "2026-01-01T00:30:00Z"}}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 1, "control.min.t": {"$date": "2026-01-01T01:00:00Z"}}, "to": "shard1", "_waitForDelete": true}`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `240`)
	for i, at := range []string{"00:20", "00:40", "01:10", "01:50"} {
		c.expect(c.run("db", fmt.Sprintf(`{"insert": "ts", "documents": [{"_id": %d, "t": {"$date": "2026-01-01T%s:30Z"}, "m": {"s": 1}}]}`, 5000+i, at))["n"], `1`)
		c.expect(len(c.all("db", fmt.Sprintf(`{"find": "ts", "filter": {"m.s": 1, "t": {"$date": "2026-01-01T%s:30Z"}}}`, at))), `1`)
	}
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `244`)
	c.expect(c.run("db", `{"count": "ts", "query": {"t": {"$lt": {"$date": "2026-01-01T00:45:00Z"}}}}`)["n"], `92`)
	c.expect(c.run("db", `{"delete": "ts", "deletes": [{"q": {"m.s": 1, "t": {"$gte": {"$date": "2026-01-01T00:40:00Z"}}}, "limit": 0}]}`)["n"], `83`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `161`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// DDL names a sharded time series collection, and is carried out on all shards that have buckets; on the primary shard there need not be any.
func TestDDLOfShardedTimeSeries(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(2, 10)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 1}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 1}, "to": "shard1", "_waitForDelete": true}`)
	check := func() {
		t.Helper()
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
	c.run("db", `{"createIndexes": "ts", "indexes": [{"key": {"v": 1}, "name": "v"}, {"key": {"m.x": 1}, "name": "x"}]}`)
	for id, s := range c.server {
		if l := s.Node.Engine.Catalog().Lookup("db.system.buckets.ts"); l != nil && l.Index("v") == nil {
			t.Errorf("there is no index on %s", id)
		}
	}
	check()
	c.run("db", `{"dropIndexes": "ts", "index": "v"}`)
	c.run("db", `{"collMod": "ts", "index": {"name": "x", "hidden": true}}`)
	c.run("db", `{"collMod": "ts", "expireAfterSeconds": 100000000}`)
	check()
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}, "expireAfterSeconds": 100000000}`)
	c.expect(c.run("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"t": {"$date": 1000000000000}, "m": {"s": 1}}}, {"insert": 0, "document": {"t": {"$date": 1000000000000}, "m": {"s": 0}}}, {"delete": 0, "filter": {"m.s": 1, "v": 3}}], "nsInfo": [{"ns": "db.ts"}]}`)["nInserted"], `2`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `21`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 0}, "to": "shard1", "_waitForDelete": true}`)
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 0}, "to": "shard0", "_waitForDelete": true}`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `21`)
	c.expect(c.run("db", `{"insert": "ts", "documents": [{"t": {"$date": 1000000000000}, "m": {"s": 0}}, {"t": {"$date": 1000000000000}, "m": {"s": 1}}]}`)["n"], `2`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `23`)
	check()
	c.run("db", `{"dropDatabase": 1}`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `0`)
	check()
}

// Shard keys of a time series have fields of the metaField, and last the timeField.
func TestShardKeysOfTimeSeries(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, key := range []string{`{"v": 1}`, `{"t": 1, "m": 1}`, `{"t": "hashed"}`, `{"m": 1, "v": 1}`, `{"_id": 1}`} {
		m := c.raw("admin", fmt.Sprintf(`{"shardCollection": "db.ts", "key": %s, "timeseries": {"timeField": "t", "metaField": "m"}}`, key))
		c.expect(m["code"], fmt.Sprint(int(mongoerr.InvalidOptions)))
	}
	for i, key := range []string{`{"m": 1}`, `{"m": "hashed"}`, `{"t": 1}`, `{"m.a": 1, "m.b": "hashed", "t": 1}`} {
		cmd := fmt.Sprintf(`{"shardCollection": "db.ts%d", "key": %s, "timeseries": {"timeField": "t", "metaField": "m"}}`, i, key)
		c.run("admin", cmd)
		c.run("admin", cmd)
		c.expect(c.run("db", fmt.Sprintf(`{"insert": "ts%d", "documents": [{"t": {"$date": 0}, "m": {"b": 2, "a": 1}}, {"t": {"$date": 1}, "m": {"a": 1, "b": 2}}]}`, i))["n"], `2`)
		c.expect(c.run("db", fmt.Sprintf(`{"count": "ts%d", "query": {"m.a": 1, "m.b": 2}}`, i))["n"], `2`)
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// Chunks of buckets move under inserts through two routers: every measurement that was acknowledged is there once.
func TestTimeSeriesMovesUnderInserts(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1, "t": 1}`)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 1, "control.min.t": {"$date": "2026-01-01T00:30:00Z"}}}`)
	other := *c
	other.router, _ = c.mongos(c.clock)
	var acknowledged atomic.Int32
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w, through := range []*testCluster{c, &other} {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				m := through.raw("db", fmt.Sprintf(`{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:%02d:%02dZ"}, "m": {"s": %d}, "w": %d, "i": %d}]}`, i%60, i%59, i%3, w, i))
				if m["n"] != int32(1) || m["writeErrors"] != nil {
					t.Errorf("%v", m)
					return
				}
				acknowledged.Add(1)
			}
		})
	}
	for i := range 12 {
		before := acknowledged.Load()
		await.True(t, "writers go on", func() bool { return acknowledged.Load() > before+20 || t.Failed() })
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 1, "control.min.t": {"$date": "2026-01-01T00:%d:00Z"}}, "to": "shard%d", "_waitForDelete": true}`, 10+i%2*30, 1-i/2%2))
	}
	close(stop)
	writers.Wait()
	want := fmt.Sprint(acknowledged.Load())
	c.expect(c.run("db", `{"count": "ts"}`)["n"], want)
	c.expect(len(c.all("db", `{"aggregate": "ts", "pipeline": [{"$group": {"_id": {"w": "$w", "i": "$i"}, "n": {"$sum": 1}}}, {"$match": {"n": 1}}], "cursor": {}}`)), want)
	for _, s := range []string{"0", "1", "2"} {
		c.expect(len(c.all("db", fmt.Sprintf(`{"find": "ts", "filter": {"m.s": %s}}`, s))) > 0, `true`)
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// A router that does not know yet that buckets have become longer places measurements as before; the shards refuse those that would be in
// another's bucket then. Nothing is lost to it when it reads and deletes by time.
func TestBucketingOfShardedTimeSeries(t *testing.T) {
	c := seriesCluster(t, `{"t": 1}`)
	c.measure(1, 120)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"control.min.t": {"$date": "2026-01-01T00:30:00Z"}}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"control.min.t": {"$date": "2026-01-01T01:00:00Z"}}, "to": "shard1", "_waitForDelete": true}`)
	other := *c
	other.router, _ = c.mongos(c.clock)
	other.run("db", `{"insert": "ts", "documents": [{"_id": 500, "t": {"$date": "2026-01-01T00:20:30Z"}, "m": {"s": 5}}]}`)
	c.run("db", `{"collMod": "ts", "timeseries": {"granularity": "hours"}}`)
	for i, through := range []*testCluster{&other, c, &other} {
		c.expect(through.run("db", fmt.Sprintf(`{"insert": "ts", "documents": [{"_id": %d, "t": {"$date": "2026-01-01T05:10:00Z"}, "m": {"s": %d}}]}`, 600+i, 6+i))["n"], `1`)
	}
	for _, through := range []*testCluster{&other, c} {
		c.expect(len(through.all("db", `{"find": "ts", "filter": {"t": {"$gte": {"$date": "2026-01-01T05:00:00Z"}}}}`)), `3`)
		c.expect(through.run("db", `{"count": "ts"}`)["n"], `124`)
	}
	c.expect(c.all("config", `{"find": "collections", "filter": {"_id": "db.system.buckets.ts"}, "projection": {"_id": 0, "timeseriesFields": 1}}`),
		`[{"timeseriesFields":{"timeField":"t","metaField":"m","granularity":"hours","bucketMaxSpanSeconds":2592000}}]`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.expect(other.run("db", `{"delete": "ts", "deletes": [{"q": {"t": {"$gte": {"$date": "2026-01-01T05:00:00Z"}}}, "limit": 0}]}`)["n"], `3`)
}
