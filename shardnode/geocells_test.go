package shardnode

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// around is a condition on geometries: that they intersect a square around a longitude on the equator.
func around(longitude int) string {
	west, east := longitude-1, longitude+1
	return fmt.Sprintf(`{"$geoIntersects": {"$geometry": {"type": "Polygon", "coordinates": [[[%d, -1], [%d, -1], [%d, 1], [%d, 1], [%d, -1]]]}}}`, west, east, east, west, west)
}

// Two conditions on a geometry may hold in different cells of its index. When the catalog was read again, the index was taken for one without such geometries, and a query
// with both conditions missed them.
func TestConditionsOnDifferentCellsAfterARestart(t *testing.T) {
	dir := t.TempDir()
	n := openTestNode(t, Config{Dir: dir})
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"line": "2dsphere"}, "name": "line"}, {"key": {"xy": "2d"}, "name": "xy"}, {"key": {"parts.at": "2dsphere", "parts.n": 1}, "name": "parts"}]}`)
	n.ok("d", `{"insert": "c", "documents": [
		{"_id": 1, "line": {"type": "LineString", "coordinates": [[0, 0], [40, 0]]}},
		{"_id": 2, "line": {"type": "LineString", "coordinates": [[0, 0], [1, 0]]}},
		{"_id": 3, "xy": [[-100, -100], [100, 100]]},
		{"_id": 4, "xy": [-100, -100]},
		{"_id": 5, "parts": [{"at": {"type": "Point", "coordinates": [0, 0]}, "n": 1}, {"at": {"type": "Point", "coordinates": [40, 0]}, "n": 2}]}]}`)
	for _, restarted := range []bool{false, true} {
		if restarted {
			n.close()
			n = openTestNode(t, Config{Dir: dir})
		}
		for _, q := range []string{
			`{"$and": [{"line": ` + around(0) + `}, {"line": ` + around(40) + `}]}`,
			`{"$and": [{"xy": {"$geoWithin": {"$box": [[-101, -101], [-99, -99]]}}}, {"xy": {"$geoWithin": {"$box": [[99, 99], [101, 101]]}}}]}`,
			`{"$and": [{"parts.at": ` + around(0) + `}, {"parts.at": ` + around(40) + `}, {"parts.n": 2}]}`,
		} {
			want := n.first("d", `{"find": "c", "filter": `+q+`, "hint": {"$natural": 1}}`)
			for _, hint := range []string{"line", "xy", "parts"} {
				if !strings.Contains(q, hint) {
					continue
				}
				got := n.first("d", `{"find": "c", "filter": `+q+`, "hint": "`+hint+`"}`)
				if len(want) != 1 || !slices.Equal(got, want) {
					t.Errorf("restarted %v, %s: %v, without an index %v", restarted, q, got, want)
				}
			}
		}
	}
}
