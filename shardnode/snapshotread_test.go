package shardnode

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The first read of a snapshot session returns its time, and a later read at that time sees what the first saw.
func TestSnapshotReads(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 1}]}`)
	r := n.ok("d", `{"find": "c", "readConcern": {"level": "snapshot"}}`)
	at, ok := r["cursor"].(bson.D)
	if !ok {
		t.Fatalf("%T", r["cursor"])
	}
	var ts bson.Timestamp
	for _, e := range at {
		if e.Key == "atClusterTime" {
			ts, _ = e.Value.(bson.Timestamp)
		}
	}
	if ts.T == 0 {
		t.Fatal("no atClusterTime in", r)
	}
	n.ok("d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 2, "x": 5}]}`)
	concern := fmt.Sprintf(`{"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}`, ts.T, ts.I)
	for _, cmd := range []string{
		`{"find": "c", "readConcern": ` + concern + `}`,
		`{"aggregate": "c", "pipeline": [], "cursor": {}, "readConcern": ` + concern + `}`,
	} {
		if got := n.first("d", cmd); fmt.Sprint(got) != "[{ _id: 1, x: 1 }]" {
			t.Errorf("%s: %v", cmd, got)
		}
	}
	d := n.ok("d", `{"distinct": "c", "key": "x", "readConcern": `+concern+`}`)
	if fmt.Sprint(d["values"]) != "[1]" || d["atClusterTime"] != ts {
		t.Error(d)
	}
	for _, cmd := range []string{
		`{"insert": "c", "documents": [{}], "readConcern": {"level": "snapshot"}}`,
		`{"count": "c", "readConcern": {"level": "snapshot"}}`,
		`{"aggregate": "c", "pipeline": [{"$out": "o"}], "cursor": {}, "readConcern": {"level": "linearizable"}}`,
	} {
		if got := n.code("d", cmd); got != int32(mongoerr.InvalidOptions) {
			t.Errorf("%s: code %d, want InvalidOptions", cmd, got)
		}
	}
}
