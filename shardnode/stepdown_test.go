package shardnode

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A member that has stepped down says so, takes no writes, and is primary again when it is unfrozen.
func TestStepDown(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	for cmd, want := range map[string]int32{
		`{"replSetStepDown": 60}`:                      262, // nobody else could be elected
		`{"replSetStepDown": -1, "force": true}`:       2,
		`{"replSetStepDown": {"a": 1}}`:                14,
		`{"replSetFreeze": 0}`:                         95,
		`{"insert": "c", "documents": [{"_id": 1}]}`:   0,
		`{"replSetStepDown": 60, "nosuchfield": true}`: 40415,
	} {
		if got := n.code("admin", cmd); got != want {
			t.Errorf("%s: code %d, want %d", cmd, got, want)
		}
	}
	n.ok("admin", `{"replSetStepDown": 60, "force": true}`)
	if h := n.ok("admin", `{"hello": 1}`); h["isWritablePrimary"] != false || h["secondary"] != true || h["primary"] != nil {
		t.Fatal(h)
	}
	if s := n.ok("admin", `{"replSetGetStatus": 1}`); s["myState"] != int32(2) {
		t.Fatal(s["myState"])
	}
	if got := n.code("d", `{"insert": "c", "documents": [{"_id": 2}]}`); got != 10107 {
		t.Fatalf("code %d, want NotWritablePrimary", got)
	}
	if got := n.code("admin", `{"replSetStepDown": 60, "force": true}`); got != 10107 {
		t.Fatalf("code %d, want NotWritablePrimary", got)
	}
	n.ok("admin", `{"replSetFreeze": 0}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 2}]}`)
	if h := n.ok("admin", `{"hello": 1}`); h["isWritablePrimary"] != true {
		t.Fatal(h)
	}
}

// The first read of a snapshot session learns its time, and a later read at that time sees what the first saw.
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
		if got := n.code("d", cmd); got != 72 {
			t.Errorf("%s: code %d, want InvalidOptions", cmd, got)
		}
	}
}
