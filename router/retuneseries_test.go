package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A collMod that names the buckets of a sharded time series changes what routers target measurements by, as one that names the series: measurements of a bucket
// that begins on another shard could not be inserted.
func TestBucketsAreRetunedUnderTheirOwnName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ts", "system.buckets.ts"} {
		c := seriesCluster(t, `{"t": 1}`)
		c.run("db", `{"collMod": "`+name+`", "timeseries": {"granularity": "hours"}}`)
		e := c.all("config", `{"find": "collections", "filter": {"_id": "db.system.buckets.ts"}}`)
		if g := get(get(e[0], "timeseriesFields").(bson.D), "granularity"); g != "hours" {
			t.Errorf("%s: the catalog has %v", name, e)
		}
		c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"control.min.t": {"$date": "2026-01-01T00:05:00Z"}}}`)
		c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"control.min.t": {"$date": "2026-01-02T00:00:00Z"}}, "to": "shard1", "_waitForDelete": true}`)
		c.measure(1, 20)
		c.expect(c.run("db", `{"count": "ts"}`)["n"], `20`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
		// The catalog as earlier versions left it.
		c.run("config", `{"update": "collections", "updates": [{"q": {"_id": "db.system.buckets.ts"}, "u": {"$set": {"timeseriesFields.granularity": "seconds", "timeseriesFields.bucketMaxSpanSeconds": 3600}}}]}`)
		found := c.all("admin", `{"checkMetadataConsistency": 1}`)
		if len(found) != 1 || get(found[0], "type") != "CollectionOptionsMismatch" || !strings.Contains(show(found[0]), `"config"`) {
			t.Errorf("%s: %v", name, show(found))
		}
	}
}
