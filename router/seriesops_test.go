package router_test

import (
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// $out does not replace a time series whose buckets are not all on the primary shard of the database, whatever the pipeline reads.
func TestOutToShardedTimeSeries(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 2}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 2}, "to": "shard1", "_waitForDelete": true}`)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1, "t": {"$date": 0}, "m": {"s": 9}}]}`)
	c.run("db", `{"create": "other", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.run("db", `{"insert": "other", "documents": [{"_id": 1, "t": {"$date": 0}, "m": {"s": 9}}]}`)
	for _, from := range []string{"plain", "other", "ts"} {
		for _, out := range []string{`"ts"`, `{"db": "db", "coll": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`} {
			if m := c.raw("db", fmt.Sprintf(`{"aggregate": %q, "pipeline": [{"$out": %s}], "cursor": {}}`, from, out)); m["code"] != int32(mongoerr.NamespaceCannotBeSharded) {
				t.Errorf("from %s to %s: %v", from, out, m)
			}
		}
	}
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `40`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.run("db", `{"aggregate": "plain", "pipeline": [{"$out": {"db": "db", "coll": "other", "timeseries": {"timeField": "t", "metaField": "m"}}}], "cursor": {}}`)
	c.run("admin", `{"moveCollection": "db.other", "toShard": "shard1"}`)
	if m := c.raw("db", `{"aggregate": "plain", "pipeline": [{"$out": "other"}], "cursor": {}}`); m["ok"] != 1.0 {
		t.Errorf("to one that was moved: %v", m)
	}
	c.expect(c.run("db", `{"count": "other"}`)["n"], `1`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// The shard key of a sharded time series is refined by its own name, and measurements of one series are on several shards then.
func TestShardKeyOfTimeSeriesIsRefined(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(2, 120)
	stale := c.through()
	stale.expect(stale.run("db", `{"count": "ts"}`)["n"], `240`)
	refuse := func(key string, code mongoerr.Code) {
		t.Helper()
		if m := c.raw("admin", fmt.Sprintf(`{"refineCollectionShardKey": "db.ts", "key": %s}`, key)); m["code"] != int32(code) {
			t.Errorf("%s: %v", key, m)
		}
	}
	refuse(`{"m.s": 1, "v": 1}`, mongoerr.InvalidOptions)
	refuse(`{"meta.s": 1, "t": 1}`, mongoerr.InvalidOptions)
	refuse(`{"m.s": 1, "t": 1}`, mongoerr.InvalidOptions) // it has no index
	c.run("db", `{"createIndexes": "ts", "indexes": [{"key": {"m.s": 1, "t": 1}, "name": "st"}]}`)
	c.run("admin", `{"refineCollectionShardKey": "db.ts", "key": {"m.s": 1, "t": 1}}`)
	c.run("admin", `{"refineCollectionShardKey": "db.ts", "key": {"m.s": 1, "t": 1}}`) // which it has
	c.expect(c.bucketKey(), `{"meta.s":1,"control.min.t":1}`)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 1, "control.min.t": {"$date": "2026-01-01T00:30:00Z"}}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 1, "control.min.t": {"$date": "2026-01-01T01:00:00Z"}}, "to": "shard1", "_waitForDelete": true}`)
	for i, through := range []*testCluster{stale, c} {
		through.expect(through.run("db", fmt.Sprintf(`{"insert": "ts", "documents": [{"_id": %d, "t": {"$date": "2026-01-01T01:20:30Z"}, "m": {"s": 1}}]}`, 9000+i))["n"], `1`)
		through.expect(through.run("db", `{"count": "ts"}`)["n"], fmt.Sprint(241+i))
		through.expect(len(through.all("db", `{"find": "ts", "filter": {"m.s": 1, "t": {"$date": "2026-01-01T01:20:30Z"}}}`)), fmt.Sprint(i+1))
	}
	c.leftOver()
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// The balancer moves the chunks of a sharded time series by the zones of its buckets.
func TestBalancerMovesTimeSeries(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"addShardToZone": "shard1", "zone": "z"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.system.buckets.ts", "min": {"meta.s": 2}, "max": {"meta.s": 3}, "zone": "z"}`)
	c.balance(4)
	for id, want := range map[string]string{"shard0": `[0,1,3]`, "shard1": `[2]`} {
		c.until("the zone's buckets are on its shard", func() bool {
			return show(c.admin(c.shards[id], bson.D{{Key: "distinct", Value: "system.buckets.ts"}, {Key: "key", Value: "meta.s"}, {Key: "$db", Value: "db"}})["values"]) == want
		})
	}
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `40`)
	c.expect(c.run("db", `{"count": "ts", "query": {"m.s": 2}}`)["n"], `10`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// A transaction reads a sharded time series on all its shards at one time, and writes none: not as the manual allows. A change stream shows neither the
// series nor its buckets.
func TestTransactionsAndStreamsOfShardedTimeSeries(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 2}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 2}, "to": "shard1", "_waitForDelete": true}`)
	const in = `, "lsid": {"id": {"$binary": {"base64": "AAECAwQFBgcICQoLDA0ODw==", "subType": "04"}}}, "txnNumber": {"$numberLong": "%d"}, "autocommit": false`
	first := fmt.Sprintf(in, 1) + `, "startTransaction": true, "readConcern": {"level": "snapshot"}}`
	c.expect(len(c.all("db", `{"find": "ts", "filter": {}, "batchSize": 1000`+first)), `40`)
	c.expect(c.run("db", `{"insert": "ts", "documents": [{"t": {"$date": 0}, "m": {"s": 3}}, {"t": {"$date": 0}, "m": {"s": 0}}]}`)["n"], `2`)
	c.expect(len(c.all("db", `{"aggregate": "ts", "pipeline": [], "cursor": {"batchSize": 1000}`+fmt.Sprintf(in, 1)+`}`)), `40`)
	c.run("admin", `{"commitTransaction": 1`+fmt.Sprintf(in, 1)+`}`)
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `42`)
	for n, cmd := range []string{
		`{"insert": "ts", "documents": [{"t": {"$date": 0}, "m": {"s": 3}}]`, `{"delete": "ts", "deletes": [{"q": {"m.s": 3}, "limit": 0}]`,
		`{"update": "ts", "updates": [{"q": {"m.s": 3}, "u": {"$set": {"m.x": 1}}, "multi": true}]`,
	} {
		if m := c.raw("db", cmd+fmt.Sprintf(in, 10+n)+`, "startTransaction": true}`); m["code"] != int32(mongoerr.OperationNotSupportedInTransaction) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `42`)
	if m := c.raw("db", `{"aggregate": "ts", "pipeline": [{"$changeStream": {}}], "cursor": {}}`); m["ok"] == 1.0 {
		t.Errorf("a change stream on a time series: %v", m)
	}
	cursor := c.run("db", `{"aggregate": 1, "pipeline": [{"$changeStream": {"showExpandedEvents": true}}], "cursor": {}}`)["cursor"]
	c.run("db", `{"insert": "ts", "documents": [{"t": {"$date": 0}, "m": {"s": 3}}]}`)
	c.run("admin", `{"reshardCollection": "db.ts", "key": {"m.s": 1, "t": 1}}`)
	c.run("db", `{"insert": "seen", "documents": [{"_id": 1}]}`)
	inserted := false
	for range 50 {
		m := c.run("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "$cmd.aggregate", "maxTimeMS": 200}`, get(cursor, "id")))
		for _, e := range get(m["cursor"], "nextBatch").(bson.A) {
			c.expect(get(get(e, "ns"), "coll"), `"seen"`)
			inserted = inserted || get(e, "operationType") == "insert"
		}
		if inserted {
			return
		}
	}
	t.Error("the stream does not show the collection beside it")
}

// validate looks at the buckets of all shards.
func TestValidateOfAShardedTimeSeries(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 2}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 2}, "to": "shard1", "_waitForDelete": true}`)
	m := c.run("db", `{"validate": "ts"}`)
	raw, _ := m["raw"].(bson.D)
	records := 0
	for _, e := range raw {
		n, _ := get(e.Value, "nrecords").(int32)
		records += int(n)
	}
	if len(raw) != 2 || m["valid"] != true || records != len(c.all("db", `{"find": "system.buckets.ts"}`)) {
		t.Errorf("%d records: %v", records, m)
	}
	c.run("db", `{"create": "plain", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.expect(c.run("db", `{"validate": "plain"}`)["valid"], `true`)
}

// A $lookup or $unionWith of a sharded time series within a $facet reads its measurements. It was refused (40600), as unpacking buckets is in the $facet itself.
func TestLookupOfAShardedTimeSeriesInAFacet(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 2}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 2}, "to": "shard1", "_waitForDelete": true}`)
	c.run("db", `{"insert": "one", "documents": [{"_id": 1}]}`)
	for stage, want := range map[string]string{
		`{"$lookup": {"from": "ts", "pipeline": [], "as": "x"}}, {"$project": {"n": {"$size": "$x"}}}`: `[{"_id":1,"n":40}]`,
		`{"$unionWith": "ts"}, {"$count": "n"}`:                                                        `[{"n":41}]`,
	} {
		found := c.all("db", `{"aggregate": "one", "pipeline": [{"$facet": {"f": [`+stage+`]}}], "cursor": {}}`)
		c.expect(get(found[0], "f"), want)
	}
}

// explain names the shards that a query of a sharded time series goes to, not all of them.
func TestExplainOfAShardedTimeSeries(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta.s": 2}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta.s": 2}, "to": "shard1", "_waitForDelete": true}`)
	for filter, want := range map[string]string{`{"m.s": 1}`: "[shard0]", `{"m.s": 3}`: "[shard1]", `{"v": 1}`: "[shard0 shard1]"} {
		for _, cmd := range []string{`{"find": "ts", "filter": ` + filter + `}`, `{"count": "ts", "query": ` + filter + `}`, `{"aggregate": "ts", "pipeline": [{"$match": ` + filter + `}], "cursor": {}}`} {
			m := c.run("db", `{"explain": `+cmd+`, "verbosity": "queryPlanner"}`)
			var names []string
			if shards, ok := m["shards"].(bson.D); ok {
				for _, e := range shards {
					names = append(names, e.Key)
				}
			}
			slices.Sort(names)
			if fmt.Sprint(names) != want {
				t.Errorf("%s: %v, want %s", cmd, names, want)
			}
		}
	}
}
