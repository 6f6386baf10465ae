package router_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// unshardedSeries has a time series collection db.ts on shard0, without an entry in the catalog.
func unshardedSeries(t *testing.T, shards int) *testCluster {
	t.Helper()
	c := newTestCluster(t, shards)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	return c
}

// bucketKey returns the shard key of the buckets of db.ts.
func (c *testCluster) bucketKey() any {
	c.t.Helper()
	found := c.all("config", `{"find": "collections", "filter": {"_id": "db.system.buckets.ts"}}`)
	if len(found) != 1 {
		c.t.Fatalf("the entries of db.ts: %v", found)
	}
	c.expect(get(get(found[0], "timeseriesFields"), "metaField"), `"m"`)
	return get(found[0], "key")
}

// A time series collection is resharded by its own name and in terms of measurements: it gets the index of the new key, its entry
// keeps the time series fields, and routers with the old key read and write as those with the new one.
func TestTimeSeriesIsResharded(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 30)
	stale := c.through()
	stale.expect(stale.run("db", `{"count": "ts"}`)["n"], `120`)
	n := 120
	for i, step := range []struct{ cmd, key, index string }{
		{`{"reshardCollection": "db.ts", "key": {"m.s": 1, "t": 1}, "numInitialChunks": 2}`, `{"meta.s":1,"control.min.t":1}`, `{"m.s":1,"t":1}`},
		{`{"reshardCollection": "db.ts", "key": {"m": "hashed"}}`, `{"meta":"hashed"}`, `{"m":"hashed"}`},
		{`{"reshardCollection": "db.ts", "key": {"t": 1}, "zones": [{"min": {"t": {"$date": "2026-01-01T00:00:00Z"}}, "max": {"t": {"$date": "2026-01-01T00:10:00Z"}}, "zone": "z"}]}`,
			`{"control.min.t":1}`, `{"t":1}`},
		{`{"reshardCollection": "db.ts", "key": {"m": 1}, "zones": []}`, `{"meta":1}`, `{"m":1,"t":1}`},
		{`{"reshardCollection": "db.ts", "key": {"m": 1}, "forceRedistribution": true, "numInitialChunks": 2}`, `{"meta":1}`, `{"m":1,"t":1}`},
		{`{"unshardCollection": "db.ts", "toShard": "shard1"}`, `{"_id":1}`, `{"m":1,"t":1}`},
		{`{"moveCollection": "db.ts", "toShard": "shard0"}`, `{"_id":1}`, `{"m":1,"t":1}`},
		{`{"moveCollection": "db.ts", "toShard": "shard1"}`, `{"_id":1}`, `{"m":1,"t":1}`},
		{`{"shardCollection": "db.ts", "key": {"m": 1}}`, `{"meta":1}`, `{"m":1,"t":1}`},
	} {
		if i == 2 {
			c.run("admin", `{"addShardToZone": "shard1", "zone": "z"}`)
		}
		c.run("admin", step.cmd)
		c.expect(c.bucketKey(), step.key)
		if bad := c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); len(bad) > 0 {
			t.Fatalf("after %s: %s", step.cmd, show(bad))
		}
		has := false
		for _, x := range c.all("db", `{"listIndexes": "ts"}`) {
			name := strings.NewReplacer(`{"`, "", `":`, "_", `,"`, "_", `"`, "", "}", "").Replace(step.index) // as of an index that a client creates
			has = has || show(get(x, "key")) == step.index && get(x, "name") == name
		}
		if !has {
			t.Errorf("after %s: the indexes are %s", step.cmd, show(c.all("db", `{"listIndexes": "ts"}`)))
		}
		for _, through := range []*testCluster{stale, c} {
			through.expect(through.run("db", fmt.Sprintf(`{"insert": "ts", "documents": [{"_id": %d, "t": {"$date": "2026-01-01T00:10:30Z"}, "m": {"s": 1}, "x": 1}, {"t": {"$date": "2026-01-01T00:05:00Z"}, "m": {"s": 3}, "x": 2}]}`, 9000+n))["n"], `2`)
			n += 2
			through.expect(through.run("db", `{"count": "ts"}`)["n"], fmt.Sprint(n))
			through.expect(through.run("db", `{"count": "ts", "query": {"m.s": 2}}`)["n"], `30`)
			through.expect(len(through.all("db", fmt.Sprintf(`{"find": "ts", "filter": {"_id": %d}}`, 9000+n-2))), `1`)
			through.expect(through.run("db", `{"delete": "ts", "deletes": [{"q": {"x": 2}, "limit": 0}]}`)["n"], `1`)
			n--
		}
		if strings.HasPrefix(step.key, `{"meta":`) {
			continue
		}
		through := []*testCluster{c, stale}[i%2]
		through.run("db", fmt.Sprintf(`{"update": "ts", "updates": [{"q": {"m.s": 0}, "u": {"$set": {"m.step": %d}}, "multi": true}]}`, i))
		c.expect(c.run("db", fmt.Sprintf(`{"count": "ts", "query": {"m.step": %d}}`, i))["n"], `30`)
	}
	c.leftOver()
	c.run("db", `{"drop": "ts"}`)
	for id, s := range c.server {
		if s.Node.Engine.Catalog().Lookup("db.system.buckets.ts") != nil {
			t.Errorf("buckets are left on %s", id)
		}
	}
}

// The zones of a resharding are in terms of measurements: buckets of a zone's range are on its shards.
func TestZonesOfAReshardedTimeSeries(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "low"}`)
	c.run("admin", `{"addShardToZone": "shard1", "zone": "high"}`)
	c.run("admin", `{"reshardCollection": "db.ts", "key": {"m.s": 1, "t": 1}, "zones": [{"min": {"m.s": {"$minKey": 1}, "t": {"$minKey": 1}}, "max": {"m.s": 2, "t": {"$minKey": 1}}, "zone": "low"},
		{"min": {"m.s": 2, "t": {"$minKey": 1}}, "max": {"m.s": {"$maxKey": 1}, "t": {"$maxKey": 1}}, "zone": "high"}]}`)
	c.expect(len(c.all("config", `{"find": "tags", "filter": {"ns": "db.system.buckets.ts", "min.meta.s": {"$exists": false}}}`)), `2`)
	for id, want := range map[string]string{"shard0": `[0,1]`, "shard1": `[2,3]`} {
		reply := c.admin(c.shards[id], bson.D{{Key: "distinct", Value: "system.buckets.ts"}, {Key: "key", Value: "meta.s"}, {Key: "$db", Value: "db"}})
		c.expect(reply["values"], want)
	}
	m := c.raw("admin", `{"reshardCollection": "db.ts", "key": {"m": 1}}`)
	c.expect(m["code"], fmt.Sprint(int(mongoerr.BadValue))) // it has zones, and none are given
	m = c.raw("admin", `{"reshardCollection": "db.ts", "key": {"m": 1}, "zones": [{"min": {"v": 1}, "max": {"v": 2}, "zone": "low"}]}`)
	if m["ok"] == 1.0 {
		t.Errorf("a zone of another key: %v", m)
	}
}

// A time series collection without an entry in the catalog is moved, and moved back, by its own name.
func TestTimeSeriesIsMoved(t *testing.T) {
	c := unshardedSeries(t, 3)
	c.run("db", `{"createIndexes": "ts", "indexes": [{"key": {"v": 1}, "name": "v"}]}`)
	c.measure(3, 20)
	c.run("db", `{"create": "over", "viewOn": "ts", "pipeline": [{"$match": {"m.s": 1}}]}`)
	stale := c.through()
	stale.expect(stale.run("db", `{"count": "ts"}`)["n"], `60`)
	for i, to := range []string{"shard1", "shard2", "shard0", "shard1"} {
		c.run("admin", fmt.Sprintf(`{"moveCollection": "db.ts", "toShard": %q}`, to))
		c.bucketKey()
		if bad := c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); len(bad) > 0 {
			t.Fatalf("on %s: %s", to, show(bad))
		}
		for j, through := range []*testCluster{stale, c} {
			through.expect(through.run("db", `{"count": "ts"}`)["n"], fmt.Sprint(60+2*i+j))
			through.expect(through.run("db", `{"count": "over"}`)["n"], `20`)
			through.expect(len(through.all("db", `{"aggregate": "ts", "pipeline": [{"$match": {"v": 3}}], "cursor": {}}`)), `3`)
			through.expect(through.run("db", `{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:30:00Z"}, "m": {"s": 2}, "x": 1}]}`)["n"], `1`)
			through.expect(through.run("db", `{"update": "ts", "updates": [{"q": {"m.s": 2}, "u": {"$set": {"m.name": "x"}}, "multi": true}]}`)["ok"], `1.0`)
			through.expect(len(through.all("db", `{"listIndexes": "ts"}`)), `2`)
			stats := through.run("db", `{"collStats": "ts"}`)
			c.expect(get(stats["timeseries"], "bucketsNs"), `"db.system.buckets.ts"`)
			if n, _ := get(stats["timeseries"], "bucketCount").(int32); n < 3 {
				t.Errorf("collStats: %v", stats)
			}
		}
		reply := c.admin(c.shards[to], bson.D{{Key: "count", Value: "system.buckets.ts"}, {Key: "$db", Value: "db"}})
		if n, _ := reply["n"].(int32); n < 3 {
			t.Errorf("%s has %d buckets", to, n)
		}
		c.run("db", fmt.Sprintf(`{"createIndexes": "ts", "indexes": [{"key": {"x": 1}, "name": "x%d"}]}`, i))
		c.run("db", fmt.Sprintf(`{"collMod": "ts", "index": {"name": "x%d", "hidden": true}}`, i))
		c.run("db", fmt.Sprintf(`{"dropIndexes": "ts", "index": "x%d"}`, i))
	}
	c.leftOver()
	c.run("admin", `{"movePrimary": "db", "to": "shard2"}`)
	stale.expect(stale.run("db", `{"count": "ts"}`)["n"], `68`)
	c.run("admin", `{"moveCollection": "db.ts", "toShard": "shard2"}`)
	c.run("admin", `{"untrackUnshardedCollection": "db.ts"}`)
	c.expect(c.all("config", `{"find": "collections", "filter": {"_id": "db.system.buckets.ts"}}`), `[]`)
	for _, through := range []*testCluster{stale, c} {
		through.expect(through.run("db", `{"count": "ts"}`)["n"], `68`)
		through.run("db", `{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:30:00Z"}, "m": {"s": 5}, "x": 1}]}`)
		through.expect(through.run("db", `{"delete": "ts", "deletes": [{"q": {"m.s": 5}, "limit": 0}]}`)["n"], `1`)
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// What cannot be done is refused by the name that the client has used, and nothing is left.
func TestReshardingOfTimeSeriesIsRefused(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(2, 2)
	c.run("db", `{"create": "plain", "timeseries": {"timeField": "t"}}`)
	for cmd, code := range map[string]mongoerr.Code{
		`{"reshardCollection": "db.system.buckets.ts", "key": {"meta": 1}}`: mongoerr.IllegalOperation,
		`{"reshardCollection": "db.ts", "key": {"v": 1}}`:                   mongoerr.InvalidOptions,
		`{"reshardCollection": "db.ts", "key": {"t": 1, "m": 1}}`:           mongoerr.InvalidOptions,
		`{"reshardCollection": "db.ts", "key": {"t": "hashed"}}`:            mongoerr.InvalidOptions,
		`{"reshardCollection": "db.ts", "key": {"meta.s": 1}}`:              mongoerr.InvalidOptions,
		`{"reshardCollection": "db.plain", "key": {"t": 1}}`:                mongoerr.NamespaceNotSharded,
		`{"moveCollection": "db.ts", "toShard": "shard1"}`:                  mongoerr.NamespaceNotFound,
		`{"moveCollection": "db.system.buckets.none", "toShard": "shard1"}`: mongoerr.NamespaceNotFound,
		`{"unshardCollection": "db.plain", "toShard": "shard1"}`:            mongoerr.NamespaceNotSharded,
	} {
		if m := c.raw("admin", cmd); m["code"] != int32(code) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	c.run("admin", `{"reshardCollection": "db.ts", "key": {"m.s": 1}}`) // which it has
	c.leftOver()
	c.expect(c.bucketKey(), `{"meta.s":1}`)
}

// While a time series collection is moved, its DDL is refused or waits, and the operation is aborted by its name.
func TestDDLBesideTheMoveOfATimeSeries(t *testing.T) {
	c := unshardedSeries(t, 2)
	c.measure(2, 10)
	const point = "reshardingPauseCoordinatorAtState"
	c.config.Points = c.points["config"]
	entered, _ := c.points["config"].Configure(point, value.NewString("alwaysOn"), value.Doc(value.F("state", value.NewString("cloning"))))
	done := make(chan bson.M, 1)
	go func() { done <- c.raw("admin", `{"moveCollection": "db.ts", "toShard": "shard1"}`) }()
	if err := c.points["config"].Register(point).WaitEntered(t.Context(), entered+1); err != nil {
		t.Fatal(err)
	}
	if m := c.raw("db", `{"createIndexes": "ts", "indexes": [{"key": {"v": 1}, "name": "v"}]}`); m["code"] != int32(mongoerr.ReshardCollectionInProgress) {
		t.Errorf("createIndexes: %v", m)
	}
	for _, cmd := range []string{
		`{"dropIndexes": "ts", "index": "m_1_t_1"}`,
		`{"collMod": "ts", "expireAfterSeconds": 100}`, `{"drop": "ts"}`,
	} {
		if m := c.raw("db", cmd[:len(cmd)-1]+`, "maxTimeMS": 300}`); m["ok"] == 1.0 {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `20`)
	aborted := make(chan bson.M, 1)
	go func() { aborted <- c.raw("admin", `{"abortMoveCollection": "db.ts"}`) }()
	c.until("the abort is there", func() bool {
		_, _ = c.points["config"].Configure(point, value.NewString("off"), nil)
		select {
		case m := <-aborted:
			c.expect(m["ok"], `1.0`)
			return true
		default:
			return false
		}
	})
	if m := <-done; m["code"] != int32(mongoerr.ReshardCollectionAborted) {
		t.Errorf("%v", m)
	}
	c.leftOver()
	c.expect(c.all("config", `{"find": "collections", "filter": {"_id": "db.system.buckets.ts"}}`), `[]`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `20`)
	c.run("db", `{"createIndexes": "ts", "indexes": [{"key": {"v": 1}, "name": "v"}]}`)
}

// Measurements are inserted, deleted and given another meta value through two routers while their collection is resharded, unsharded and moved:
// what was acknowledged is there, once.
func TestTimeSeriesIsReshardedUnderWrites(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(3, 5)
	var acknowledged, removed atomic.Int32
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w, through := range []*testCluster{c.through(), c.through()} {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				m := through.raw("db", fmt.Sprintf(`{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:%02d:%02dZ"}, "m": {"s": %d, "g": 0}, "w": %d, "i": %d}, {"t": {"$date": "2026-01-01T01:%02d:00Z"}, "m": {"s": %d, "g": 0}, "w": %d, "i": %d}]}`,
					i%60, i%59, i%3, w, 2*i, i%60, i%2, w, 2*i+1))
				if m["n"] != int32(2) || m["writeErrors"] != nil {
					t.Errorf("%v", m)
					return
				}
				acknowledged.Add(2)
				if i%4 == 3 {
					m := through.raw("db", fmt.Sprintf(`{"delete": "ts", "deletes": [{"q": {"w": %d, "i": %d}, "limit": 1}]}`, w, i))
					if m["n"] != int32(1) || m["writeErrors"] != nil {
						t.Errorf("%v", m)
						return
					}
					removed.Add(1)
				}
				if i%8 == 7 {
					if m := through.raw("db", fmt.Sprintf(`{"update": "ts", "updates": [{"q": {"m.s": %d}, "u": {"$set": {"m.n": %d}}, "multi": true}]}`, i%3, i)); m["writeErrors"] != nil || m["ok"] != 1.0 {
						t.Errorf("%v", m)
						return
					}
				}
			}
		})
	}
	for _, cmd := range []string{
		`{"reshardCollection": "db.ts", "key": {"m.s": 1, "t": 1}, "numInitialChunks": 2}`, `{"reshardCollection": "db.ts", "key": {"m.g": 1, "m.s": 1}}`,
		`{"unshardCollection": "db.ts", "toShard": "shard1"}`, `{"moveCollection": "db.ts", "toShard": "shard0"}`, `{"shardCollection": "db.ts", "key": {"m.g": 1, "m.s": 1}}`,
		`{"reshardCollection": "db.ts", "key": {"m.s": "hashed"}}`,
	} {
		before := acknowledged.Load()
		await.True(t, "writers go on", func() bool { return acknowledged.Load() > before+20 || t.Failed() })
		c.run("admin", cmd)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
	close(stop)
	writers.Wait()
	want := fmt.Sprint(acknowledged.Load() - removed.Load())
	c.expect(c.run("db", `{"count": "ts", "query": {"w": {"$exists": true}}}`)["n"], want)
	c.expect(len(c.all("db", `{"aggregate": "ts", "pipeline": [{"$match": {"w": {"$exists": true}}}, {"$group": {"_id": {"w": "$w", "i": "$i"}, "n": {"$sum": 1}}}, {"$match": {"n": 1}}], "cursor": {}}`)), want)
	c.leftOver()
}

// collStats and $collStats of a time series whose buckets are on several shards, or on another one than the primary of the database, report all of them,
// under the collection's name.
func TestStatsOfShardedTimeSeries(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 3}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 3}, "to": "shard1", "_waitForDelete": true}`)
	m := c.run("db", `{"collStats": "ts"}`)
	c.expect(bson.D{{Key: "ns", Value: m["ns"]}, {Key: "sharded", Value: m["sharded"]}, {Key: "timeseries", Value: m["timeseries"]}, {Key: "count", Value: m["count"]}},
		`{"ns":"db.ts","sharded":true,"timeseries":{"bucketsNs":"db.system.buckets.ts","bucketCount":4},"count":null}`)
	sum := int32(0)
	for _, id := range []string{"shard0", "shard1"} {
		n, _ := get(get(m["shards"], id), "size").(int32)
		if n == 0 {
			t.Errorf("%s: %v", id, m)
		}
		sum += n
	}
	c.expect(m["size"], fmt.Sprint(sum))
	total := func() (buckets int32, shards int) {
		for _, d := range c.all("db", `{"aggregate": "ts", "pipeline": [{"$collStats": {"storageStats": {}}}], "cursor": {}}`) {
			c.expect(get(d, "ns"), `"db.ts"`)
			n, _ := get(get(get(d, "storageStats"), "timeseries"), "bucketCount").(int32)
			buckets, shards = buckets+n, shards+1
		}
		return buckets, shards
	}
	if n, shards := total(); n != 4 || shards != 2 {
		t.Errorf("$collStats: %d buckets on %d shards", n, shards)
	}
	c.expect(c.all("db", `{"aggregate": "ts", "pipeline": [{"$collStats": {"storageStats": {}}}, {"$group": {"_id": null, "n": {"$sum": "$storageStats.timeseries.bucketCount"}}}], "cursor": {}}`), `[{"_id":null,"n":4}]`)
	c.run("admin", `{"unshardCollection": "db.ts", "toShard": "shard1"}`)
	m = c.run("db", `{"collStats": "ts"}`)
	c.expect(bson.D{{Key: "ns", Value: m["ns"]}, {Key: "sharded", Value: m["sharded"]}, {Key: "timeseries", Value: m["timeseries"]}},
		`{"ns":"db.ts","sharded":null,"timeseries":{"bucketsNs":"db.system.buckets.ts","bucketCount":4}}`)
	if n, shards := total(); n != 4 || shards != 1 {
		t.Errorf("$collStats: %d buckets on %d shards", n, shards)
	}
	c.expect(c.run("none", `{"collStats": "ts"}`)["size"], `0`)
	c.expect(c.run("db", `{"collStats": "nothing"}`)["size"], `0`)
}

// Between the renaming on the shards and the end of the critical section nobody reads a time series that the catalog had no entry of: its name is not that
// of the buckets, and the primary shard of the database has none of them.
func TestReadsWaitForTheMoveOfATimeSeries(t *testing.T) {
	c := unshardedSeries(t, 2)
	c.measure(2, 10)
	c.config.Points = c.points["config"]
	const point = "reshardingPauseCoordinatorAtState"
	for i, state := range []string{"committing", "done"} {
		c.expect(c.run("db", `{"count": "ts"}`)["n"], `20`)
		stale := c.through()
		stale.expect(stale.run("db", `{"count": "ts"}`)["n"], `20`)
		entered, _ := c.points["config"].Configure(point, value.NewString("alwaysOn"), value.Doc(value.F("state", value.NewString(state))))
		done := make(chan bson.M, 1)
		go func() { done <- c.raw("admin", fmt.Sprintf(`{"moveCollection": "db.ts", "toShard": "shard%d"}`, 1-i)) }()
		if err := c.points["config"].Register(point).WaitEntered(t.Context(), entered+1); err != nil {
			t.Fatal(err)
		}
		for _, cmd := range []string{
			`{"count": "ts", "maxTimeMS": 100}`, `{"find": "ts", "maxTimeMS": 100}`, `{"aggregate": "ts", "pipeline": [], "cursor": {}, "maxTimeMS": 100}`,
			`{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:30:00Z"}}], "maxTimeMS": 100}`, `{"delete": "ts", "deletes": [{"q": {}, "limit": 0}], "maxTimeMS": 100}`,
		} {
			if m := stale.raw("db", cmd); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
				t.Errorf("%s: %s: %v", state, cmd, m)
			}
		}
		_, _ = c.points["config"].Configure(point, value.NewString("off"), nil)
		c.expect((<-done)["ok"], `1.0`)
		stale.expect(stale.run("db", `{"count": "ts"}`)["n"], `20`)
	}
}
