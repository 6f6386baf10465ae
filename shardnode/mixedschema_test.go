package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A measurement with a field of another type than the earlier ones begins a bucket; buckets with both types are accepted only after the
// collMod that mongorestore sends.
func TestBucketsOfSeveralKinds(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "s", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	n.ok("d", `{"insert": "s", "documents": [
		{"t": {"$date": "2026-01-01T00:00:00Z"}, "m": "a", "x": 1, "y": {"z": [1, "b"]}},
		{"t": {"$date": "2026-01-01T00:00:01Z"}, "m": 7, "x": {"$numberLong": "2"}},
		{"t": {"$date": "2026-01-01T00:00:02Z"}, "m": "a", "x": 2.5, "y": {"z": [3, "c", 4], "w": null}}]}`)
	n.ok("d", `{"insert": "s", "documents": [
		{"t": {"$date": "2026-01-01T00:00:03Z"}, "m": "a", "x": "str"},
		{"t": {"$date": "2026-01-01T00:00:04Z"}, "m": "a", "y": {"z": [3, 3]}},
		{"t": {"$date": "2026-01-01T00:00:05Z"}, "m": "a", "y": {"z": [9], "w": null}}]}`)
	got := n.first("d", `{"aggregate": "system.buckets.s", "pipeline": [{"$match": {"meta": "a"}}, {"$sort": {"control.min._id": 1}},
		{"$project": {"_id": 0, "n": {"$size": {"$objectToArray": "$data.t"}}, "x": "$control.max.x"}}], "cursor": {}}`)
	if want := `{ n: 3, x: 2.5 } { n: 2, x: "str" }`; strings.Join(got, " ") != want {
		t.Errorf("buckets %s, want %s", got, want)
	}

	bucket := `{"insert": "system.buckets.s", "documents": [{"_id": {"$oid": "6955b900e3b44803b1e082fc"},
		"control": {"version": 1, "min": {"t": {"$date": "2026-01-01T00:00:00Z"}, "x": 1}, "max": {"t": {"$date": "2026-01-01T00:00:00Z"}, "x": "a"}}, "meta": 1,
		"data": {"t": {"0": {"$date": "2026-01-01T00:00:00Z"}, "1": {"$date": "2026-01-01T00:00:00Z"}}, "x": {"0": 1, "1": "a"}}}]}`
	reply := n.do("d", bucket)
	if errs := fmt.Sprint(plain(reply["writeErrors"])); !strings.Contains(errs, "408") {
		t.Errorf("a mixed bucket is answered %v", reply)
	}
	wantCode(t, n, mongoerr.InvalidOptions, "d", `{"collMod": "s", "timeseriesBucketsMayHaveMixedSchemaData": false}`)
	wantCode(t, n, mongoerr.InvalidOptions, "d", `{"collMod": "s", "timeseriesBucketsMayHaveMixedSchemaData": true, "timeseries": {"granularity": "hours"}}`)
	n.ok("d", `{"create": "plain"}`)
	wantCode(t, n, mongoerr.InvalidOptions, "d", `{"collMod": "plain", "timeseriesBucketsMayHaveMixedSchemaData": true}`)
	flag := `{"aggregate": "system.buckets.s", "pipeline": [{"$listCatalog": {}}, {"$project": {"_id": 0, "f": "$md.timeseriesBucketsMayHaveMixedSchemaData"}}], "cursor": {}}`
	if got := n.first("d", flag); strings.Join(got, "") != "{ f: false }" {
		t.Errorf("before collMod: %s", got)
	}
	n.ok("d", `{"collMod": "s", "timeseriesBucketsMayHaveMixedSchemaData": true}`)
	n.ok("d", `{"collMod": "s", "timeseriesBucketsMayHaveMixedSchemaData": true}`)
	if got := n.first("d", flag); strings.Join(got, "") != "{ f: true }" {
		t.Errorf("after collMod: %s", got)
	}
	if reply := n.do("d", bucket); reply["n"] != int32(1) {
		t.Errorf("with the option, the bucket is answered %v", reply)
	}
	if got := n.first("d", `{"find": "s", "filter": {"m": 1, "x": "a"}, "projection": {"_id": 0, "x": 1}}`); strings.Join(got, "") != `{ x: "a" }` {
		t.Errorf("a measurement of the mixed bucket: %s", got)
	}
	options := n.first("d", `{"aggregate": "system.buckets.s", "pipeline": [{"$listCatalog": {}}, {"$project": {"_id": 0, "s": "$md.options.storageEngine.wiredTiger.configString"}}], "cursor": {}}`)
	if want := `{ s: "app_metadata=(timeseriesBucketsMayHaveMixedSchemaData=true)" }`; strings.Join(options, "") != want {
		t.Errorf("options %s, want %s", options, want)
	}
}
