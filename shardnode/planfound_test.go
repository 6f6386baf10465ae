package shardnode

import (
	"fmt"
	"strings"
	"testing"
)

// TestFoundByRandomQueries keeps the bugs that random queries found: each line is a command that must have the same
// result on a collection with indexes and on one without.
func TestFoundByRandomQueries(t *testing.T) {
	n := newTestNode(t)
	for i, x := range []struct{ docs, index, cmd string }{
		// A wildcard index that leaves out a field below n has no key for a document that has no other.
		{`{"_id": 1, "n": [{"y": 4}]}, {"_id": 2, "n": {"y": 4}}, {"_id": 3, "n": 5}, {"_id": 4, "n": {"x": 1}}`,
			`{"key": {"$**": 1}, "wildcardProjection": {"b": 0, "n.y": 0}, "name": "w"}`, `{"find": "c", "filter": {"n": {"$exists": true}}, "sort": {"_id": 1}}`},
		{`{"_id": 1, "n": [{"y": 4}]}, {"_id": 2, "n": [{"x": 4}]}, {"_id": 3, "n": [5]}, {"_id": 4, "n": 5}`,
			`{"key": {"$**": 1}, "wildcardProjection": {"b": 0, "n.y": 0}, "name": "w"}`, `{"find": "c", "filter": {"n": {"$type": "array"}}, "sort": {"_id": 1}}`},
		{`{"_id": 1, "n": [{"y": 4}]}, {"_id": 2, "n": [{"x": 4}]}, {"_id": 3, "n": null}, {"_id": 4}`,
			`{"key": {"$**": 1}, "wildcardProjection": {"b": 0, "n.y": 0}, "name": "w"}`, `{"find": "c", "filter": {"n": {"$ne": null}}, "sort": {"_id": 1}}`},
		// A path with two array indexes, or one into a nested array: the keys hold nested arrays as a whole.
		{`{"_id": 1, "ship": {"coordinates": [[-5, 10], [-7, 8]]}}, {"_id": 2, "ship": {"coordinates": [[1, 2]]}}`,
			`{"key": {"ship.$**": 1}, "name": "w"}`, `{"find": "c", "filter": {"ship.coordinates.0.1": 10}}`},
		{`{"_id": 1, "a": [[10, 20], 10]}, {"_id": 2, "a": [10, 30]}, {"_id": 3, "a": [[5], 10]}, {"_id": 4, "a": {"0": 10}}`,
			`{"key": {"$**": 1}, "name": "w"}`, `{"find": "c", "filter": {"a.0": 10}, "sort": {"_id": 1}}`},
		{`{"_id": 1, "a": [[{"x": 10}]]}, {"_id": 2, "a": [{"x": 10}]}, {"_id": 3, "a": [{"x": [[10]]}]}`,
			`{"key": {"$**": 1}, "name": "w"}`, `{"find": "c", "filter": {"a.0.x": {"$gte": 10}}, "sort": {"_id": 1}}`},
		// A sparse hashed index has no key for a document without the field, which is equal to null.
		{`{"_id": 1, "a": 5}, {"_id": 2}, {"_id": 3, "a": null}`,
			`{"key": {"a": "hashed"}, "sparse": true, "name": "h"}`, `{"find": "c", "filter": {"a": null}, "sort": {"_id": 1}}`},
		{`{"_id": 1, "a": 5}, {"_id": 2}, {"_id": 3, "a": null}`,
			`{"key": {"a": "hashed"}, "sparse": true, "name": "h"}`, `{"find": "c", "filter": {"a": {"$in": [5, null]}}, "sort": {"_id": 1}}`},
		// Likewise an ordinary index on such a path.
		{`{"_id": 1, "c": [[[7], 1]]}, {"_id": 2, "c": [[7]]}, {"_id": 3, "c": [[[1]]]}, {"_id": 4, "c": {"0": {"0": 7}}}`,
			`{"key": {"c.0.0": -1}, "name": "x"}`, `{"find": "c", "filter": {"c.0.0": {"$gt": 5}}, "sort": {"_id": 1}, "hint": "x"}`},
	} {
		n.do("d", `{"drop": "c"}`)
		n.do("d", `{"drop": "bare"}`)
		n.ok("d", `{"createIndexes": "c", "indexes": [`+x.index+`]}`)
		n.ok("d", `{"insert": "c", "documents": [`+x.docs+`]}`)
		n.ok("d", `{"insert": "bare", "documents": [`+x.docs+`]}`)
		want := strings.Join(n.first("d", strings.Replace(strings.Replace(x.cmd, `"c"`, `"bare"`, 1), `, "hint": "x"`, "", 1)), "\n")
		if got := strings.Join(n.first("d", x.cmd), "\n"); got != want {
			t.Errorf("%d: %s\n%s\ninstead of\n%s", i, x.cmd, got, want)
		}
	}
}

// TestUpsertThatCollides: an upsert that meets another document's unique key is refused, unless the filter would have
// found that document: it is not retried forever.
func TestUpsertThatCollides(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1, "b": 1}, "unique": true, "name": "ab"}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "b": 1}]}`)
	for _, q := range []string{
		`"q": {"_id": 1, "a": 2}, "u": {"$set": {"x": 1}}`,
		`"q": {"$and": [{"_id": 1}, {"a": 2}]}, "u": {"$set": {"x": 1}}`,
		`"q": {"_id": 1, "a": {"$gt": 5}}, "u": {"$set": {"x": 1}}`,
		`"q": {"a": 2, "b": 1}, "u": {"$set": {"a": 1}}`,
		`"q": {"a": 1, "b": 1, "c": 1}, "u": {"$set": {"x": 1}}`,
		`"q": {"a": {"$eq": 1, "$ne": 1}, "b": 1}, "u": {"$set": {"x": 1}}`,
	} {
		m := n.do("d", `{"update": "c", "updates": [{`+q+`, "upsert": true}], "maxTimeMS": 100000}`)
		if text := fmt.Sprint(m["writeErrors"]); !strings.Contains(text, "11000") {
			t.Errorf("%s: %v", q, m)
		}
	}
}
