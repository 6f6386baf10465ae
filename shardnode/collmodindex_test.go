package shardnode

import (
	"fmt"
	"strings"
	"testing"
)

// A unique index can be made an ordinary one, and the oplog's entries of collMod name the index and have a long for the expiry,
// as mongorestore expects.
func TestCollModOfIndexes(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": 1}, "name": "b_1", "unique": true}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "b": 1}, {"_id": 2, "a": 2, "b": 2}]}`)
	n.ok("d", `{"collMod": "c", "index": {"keyPattern": {"a": 1}, "expireAfterSeconds": 1000}}`)
	n.ok("d", `{"collMod": "c", "index": {"keyPattern": {"a": 1}, "prepareUnique": true}}`)
	n.ok("d", `{"collMod": "c", "index": {"keyPattern": {"a": 1}, "unique": true}}`)
	if got := n.ok("d", `{"collMod": "c", "index": {"keyPattern": {"a": 1}, "forceNonUnique": true}}`); got["forceNonUnique_new"] != true {
		t.Errorf("forceNonUnique is answered %v", got)
	}
	n.ok("d", `{"collMod": "c", "index": {"name": "b_1", "forceNonUnique": true}}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 3, "a": 1, "b": 1}, {"_id": 4, "a": 1, "b": 1}]}`)
	n.ok("d", `{"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]}`)
	n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"a": 1, "b": 1}}}]}`)
	for _, field := range []string{"a", "b"} {
		got := n.first("d", fmt.Sprintf(`{"find": "c", "filter": {"%s": 1}, "projection": {"_id": 1}, "hint": "%s_1", "sort": {"_id": 1}}`, field, field))
		if want := "{ _id: 1 } { _id: 2 } { _id: 4 }"; strings.Join(got, " ") != want {
			t.Errorf("by %s: %s, want %s", field, got, want)
		}
	}
	if v := n.ok("d", `{"validate": "c", "full": true}`); v["valid"] != true {
		t.Errorf("validate: %v", v)
	}
	if got := n.first("d", `{"aggregate": "c", "pipeline": [{"$indexStats": {}}, {"$match": {"spec.unique": true}}], "cursor": {}}`); len(got) != 0 {
		t.Errorf("still unique: %s", got)
	}
	logged := n.first("local", `{"find": "oplog.rs", "filter": {"o.collMod": "c"}, "projection": {"_id": 0, "i": "$o.index"}}`)
	want := `{ i: { name: "a_1", expireAfterSeconds: 1000 } } { i: { name: "a_1", prepareUnique: true } } { i: { name: "a_1", unique: true } } ` +
		`{ i: { name: "a_1", forceNonUnique: true } } { i: { name: "b_1", forceNonUnique: true } }`
	if got := strings.Join(logged, " "); got != want {
		t.Errorf("the oplog has %s\nwant %s", got, want)
	}
	long := n.first("local", `{"find": "oplog.rs", "filter": {"o.index.expireAfterSeconds": {"$type": "long"}}, "projection": {"_id": 0, "op": 1}}`)
	if len(long) != 1 {
		t.Errorf("%d entries with a long", len(long))
	}
}

// Empty timestamps stay where a pipeline or modifiers made the document: mongorestore relies on that.
func TestUpsertsByPipelineKeepEmptyTimestamps(t *testing.T) {
	n := newTestNode(t)
	const zero = `{"$timestamp": {"t": 0, "i": 0}}`
	n.ok("d", `{"update": "c", "updates": [{"q": {"_id": `+zero+`}, "u": [{"$replaceRoot": {"newRoot": {"$literal": {"e": `+zero+`}}}}], "upsert": true}]}`)
	n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"e": `+zero+`}}, "upsert": true}]}`)
	n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 3}, "u": {"e": `+zero+`}, "upsert": true}]}`)
	if got := n.first("d", `{"find": "c", "filter": {"e": `+zero+`}, "projection": {"_id": 1}}`); len(got) != 2 {
		t.Errorf("with an empty timestamp: %s", got)
	}
}
