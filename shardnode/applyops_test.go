package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// mongorestore --preserveUUID creates collections by an oplog entry with the UUID of the dump, and replays entries that
// name it. The collections got random UUIDs, and the entries were answered with NamespaceNotFound.
func TestAppliedEntriesKeepUUIDs(t *testing.T) {
	n := newTestNode(t)
	const id = `{"$uuid": "699f503d-f64b-4aa8-a484-a8052046fa3a"}`
	create := `{"applyOps": [{"op": "c", "ns": "d.$cmd", "ui": ` + id + `, "o": {"create": "c"}}]}`
	n.ok("admin", create)
	n.ok("admin", create) // again, as a replay of what has been applied
	n.ok("admin", `{"applyOps": [{"op": "i", "ns": "d.c", "ui": `+id+`, "o": {"_id": 1}}]}`)
	n.ok("d", `{"find": "c", "collectionUUID": `+id+`}`)
	n.ok("d", `{"create": "other"}`)
	wantCode(t, n, mongoerr.NamespaceExists, "admin", `{"applyOps": [{"op": "c", "ns": "d.$cmd", "ui": `+id+`, "o": {"create": "other"}}]}`)
	wantCode(t, n, mongoerr.NamespaceExists, "admin", `{"applyOps": [{"op": "c", "ns": "d.$cmd", "ui": `+id+`, "o": {"create": "third"}}]}`)
}

// An oplog's createIndexes has the index's specification beside the collection's name.
func TestAppliedEntriesOfIndexes(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c"}`)
	for range 2 { // again, as a replay of what has been applied
		n.ok("admin", `{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"createIndexes": "c", "v": 2, "key": {"a": 1}, "name": "by a", "unique": true}}]}`)
	}
	n.ok("admin", `{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "by b"}]}}]}`)
	if got := fmt.Sprint(n.ok("d", `{"listIndexes": "c"}`)); !strings.Contains(got, "by a") || !strings.Contains(got, "unique") || !strings.Contains(got, "by b") {
		t.Errorf("the indexes are %s", got)
	}
	wantCode(t, n, mongoerr.FailedToParse, "admin", `{"applyOps": [{"op": "c", "ns": "d.$cmd", "o": {"createIndexes": "c", "v": 2, "name": "without key"}}]}`)
}

// Validators apply to what applyOps writes, unless it bypasses them.
func TestAppliedEntriesAreValidated(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c", "validator": {"x": {"$lt": 5}}}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 1}]}`)
	for _, ops := range []string{
		`[{"op": "i", "ns": "d.c", "o": {"_id": 2, "x": 7}}]`,
		`[{"op": "u", "ns": "d.c", "o2": {"_id": 1}, "o": {"$v": 2, "diff": {"u": {"x": 7}}}}]`,
		`[{"op": "i", "ns": "d.c", "o": {"_id": 1, "x": 7}}]`,
	} {
		wantCode(t, n, mongoerr.DocumentValidationFailure, "admin", `{"applyOps": `+ops+`}`)
		n.ok("admin", `{"applyOps": `+ops+`, "bypassDocumentValidation": true}`)
		n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}`)
	}
}

func wantCode(t *testing.T, n *testNode, want mongoerr.Code, db, cmd string) {
	t.Helper()
	if got := n.code(db, cmd); got != int32(want) {
		t.Errorf("%s: code %d, want %d", cmd, got, int32(want))
	}
}
