package shardnode

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

func TestBulkWrite(t *testing.T) {
	n := newTestNode(t)
	for _, c := range []struct {
		name, ops, more string
		want            map[string]int32
		results         int
	}{
		{"all kinds over two namespaces", `[{"insert": 0, "document": {"_id": 1}}, {"insert": 1, "document": {"_id": 1}},
			{"insert": 0, "document": {"_id": 2, "x": 1}}, {"update": 0, "filter": {"_id": 2}, "updateMods": {"$inc": {"x": 1}}},
			{"update": 0, "filter": {"_id": 9}, "updateMods": {"$set": {"y": 1}}, "upsert": true}, {"delete": 1, "filter": {}}]`, ``,
			map[string]int32{"nErrors": 0, "nInserted": 3, "nMatched": 1, "nModified": 1, "nUpserted": 1, "nDeleted": 1}, 6},
		{"ordered stops", `[{"insert": 0, "document": {"_id": 1}}, {"insert": 0, "document": {"_id": 3}}]`, ``,
			map[string]int32{"nErrors": 1, "nInserted": 0}, 1},
		{"unordered goes on", `[{"insert": 0, "document": {"_id": 1}}, {"insert": 0, "document": {"_id": 3}}, {"delete": 0, "filter": {"_id": 3}}]`,
			`, "ordered": false`, map[string]int32{"nErrors": 1, "nInserted": 1, "nDeleted": 1}, 3},
		{"errors only", `[{"insert": 0, "document": {"_id": 4}}, {"insert": 0, "document": {"_id": 4}}]`, `, "errorsOnly": true`,
			map[string]int32{"nErrors": 1, "nInserted": 1}, 1},
		{"batches", `[{"insert": 0, "document": {"_id": 5}}, {"insert": 0, "document": {"_id": 6}}]`, `, "cursor": {"batchSize": 1}`,
			map[string]int32{"nErrors": 0, "nInserted": 2}, 1},
	} {
		r := n.ok("admin", fmt.Sprintf(`{"bulkWrite": 1, "ops": %s, "nsInfo": [{"ns": "d.one"}, {"ns": "d.two"}]%s}`, c.ops, c.more))
		for k, v := range c.want {
			if r[k] != v {
				t.Errorf("%s: %s is %v, want %d", c.name, k, r[k], v)
			}
		}
		if got := asM(r["cursor"])["firstBatch"].(bson.A); len(got) != c.results {
			t.Errorf("%s: %d results: %v", c.name, len(got), got)
		}
	}
	for _, s := range []step{
		{`{"bulkWrite": 1, "ops": [], "nsInfo": [{"ns": "d.one"}]}`, mongoerr.InvalidLength},
		{`{"bulkWrite": 1, "ops": [{"insert": 1, "document": {}}], "nsInfo": [{"ns": "d.one"}]}`, mongoerr.BadValue},
		{`{"bulkWrite": 1, "ops": [{"replace": 0}], "nsInfo": [{"ns": "d.one"}]}`, mongoerr.IDLUnknownField},
		{`{"bulkWrite": 1, "ops": [{"delete": 0}], "nsInfo": [{"ns": "d.one"}]}`, mongoerr.IDLFailedToParse},
		{`{"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "nodot"}]}`, mongoerr.InvalidNamespace},
	} {
		if got := n.code("admin", s.cmd); got != int32(s.code) {
			t.Errorf("%s: code %d, want %d", s.cmd, got, int32(s.code))
		}
	}
	for cmd, want := range map[string]string{
		`{"bulkWrite": 1, "ops": [{"insert": -1, "document": {}}], "nsInfo": [{"ns": "d.one"}]}`: "BSON field 'insert' value must be >= 0, actual value '-1'",
		`{"bulkWrite": 1, "ops": [{"replace": 0}], "nsInfo": [{"ns": "d.one"}]}`:                 "BSON field 'bulkWrite.replace' is an unknown field.",
		`{"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "."}]}`:      "Invalid namespace specified for bulkWrite: ''",
	} {
		if got := n.do("admin", cmd)["errmsg"]; got != want {
			t.Errorf("%s: %v, want %s", cmd, got, want)
		}
	}
}

// TestBulkWriteRetried sends a retryable bulkWrite twice: the second time nothing is executed.
func TestBulkWriteRetried(t *testing.T) {
	n := newTestNode(t)
	const cmd = `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 1, "x": 0}}, {"insert": 1, "document": {"_id": 1}},
		{"update": 0, "filter": {"_id": 1}, "updateMods": {"$inc": {"x": 1}}}, {"delete": 1, "filter": {"_id": 1}}],
		"nsInfo": [{"ns": "d.one"}, {"ns": "d.two"}], "lsid": {"id": {"$uuid": "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"}}, "txnNumber": {"$numberLong": "3"}}`
	for range 2 {
		r := n.ok("admin", cmd)
		if r["nErrors"] != int32(0) || r["nInserted"] != int32(2) || r["nModified"] != int32(1) || r["nDeleted"] != int32(1) {
			t.Errorf("%v", r)
		}
	}
	if c := n.ok("d", `{"count": "one", "query": {"x": 1}}`); c["n"] != int32(1) {
		t.Errorf("the update ran twice: %v", n.first("d", `{"find": "one"}`))
	}
}
