package shardnode

import (
	"fmt"
	"strings"
	"testing"
)

// serverStatus counts the indexes of users' databases by their features, and their uses.
func TestIndexStatsOfServerStatus(t *testing.T) {
	n := newTestNode(t)
	brief := func() (out string) {
		stats := asM(n.ok("admin", `{"serverStatus": 1}`)["indexStats"])
		features := asM(stats["features"])
		if len(features) != len(indexFeatures) {
			t.Errorf("%d features: %v", len(features), features)
		}
		for _, name := range indexFeatures {
			f := asM(features[name])
			if f["count"] != int64(0) || f["accesses"] != int64(0) {
				out += fmt.Sprintf(" %s %v/%v", name, f["count"], f["accesses"])
			}
		}
		return fmt.Sprint(stats["count"]) + out
	}
	n.ok("admin", `{"create": "internal"}`)
	n.ok("d", `{"create": "system.views"}`)
	if got := brief(); got != "0" {
		t.Errorf("without collections: %s", got)
	}
	n.ok("d", `{"createIndexes": "c", "indexes": [
		{"key": {"a": 1}, "name": "a", "unique": true, "sparse": true},
		{"key": {"a": 1, "b": -1}, "name": "ab", "partialFilterExpression": {"a": 1}},
		{"key": {"t": 1}, "name": "t", "expireAfterSeconds": 100000},
		{"key": {"s": 1}, "name": "s", "collation": {"locale": "en"}},
		{"key": {"u": 1}, "name": "u", "prepareUnique": true},
		{"key": {"h": "hashed"}, "name": "h"}, {"key": {"$**": 1}, "name": "w"}, {"key": {"x": "text", "y": 1}, "name": "x"},
		{"key": {"g": "2dsphere"}, "name": "g"}, {"key": {"p": "2d"}, "name": "p"}]}`)
	n.ok("d", `{"find": "c", "filter": {"_id": 1}}`)
	for range 3 {
		n.ok("d", `{"find": "c", "filter": {"a": 1}, "hint": "a"}`)
	}
	n.ok("d", `{"find": "c", "filter": {"a": 1, "b": 1}, "hint": "ab"}`)
	n.ok("d", `{"find": "c", "filter": {"h": 1}, "hint": "h"}`)
	want := "11 2d 1/0 2dsphere 1/0 collation 1/0 compound 2/1 hashed 1/1 id 1/1 normal 5/4 partial 1/1 prepareUnique 1/0 single 8/4 sparse 1/3 text 1/0 ttl 1/0 unique 1/3 wildcard 1/0"
	if got := brief(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	// A time series keeps its indexes on its buckets.
	n.ok("d", `{"create": "series", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	n.ok("d", `{"createIndexes": "series", "indexes": [{"key": {"loc": "2dsphere"}, "name": "loc"}]}`)
	if got := brief(); !strings.Contains(got, " 2dsphere_bucket 1/0 ") {
		t.Errorf("with a time series: %s", got)
	}
	n.ok("d", `{"drop": "c"}`)
	if got := brief(); strings.Contains(got, "text") {
		t.Errorf("behind a drop: %s", got)
	}
}
