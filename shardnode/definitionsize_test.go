package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The options and indexes of a collection are together no larger than a document: nodes send them to each other in one message.
func TestDefinitionsAreNoLargerThanADocument(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	big := strings.Repeat("x", 7<<20)
	index := func(name string) string {
		return fmt.Sprintf(`{"createIndexes": "c", "indexes": [{"key": {"%s": 1}, "name": "%s", "partialFilterExpression": {"a": "%s"}}]}`, name, name, big)
	}
	n.ok("d", `{"create": "c", "validator": {"a": {"$ne": "`+big+`"}}}`)
	n.ok("d", index("first"))
	for _, full := range []bool{false, true} { // an empty collection gets its indexes at once
		if full {
			n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
		}
		if got := n.code("d", index("second")); got != int32(mongoerr.BSONObjectTooLarge) {
			t.Errorf("full %v: %d", full, got)
		}
		if got := n.code("d", `{"collMod": "c", "validator": {"a": {"$nin": ["`+big+`", "`+big[:4<<20]+`"]}}}`); got != int32(mongoerr.BSONObjectTooLarge) {
			t.Errorf("full %v, collMod: %d", full, got)
		}
	}
	n.ok("d", `{"collMod": "c", "validator": {}}`)
	n.ok("d", index("second"))
	n.ok("d", `{"dropIndexes": "c", "index": ["first", "second"]}`)
}
