package shardnode

import (
	"fmt"
	"strings"
	"testing"
)

// A number in the path of a distinct found nothing on a view, because the pipeline had unwound the array before.
func TestDistinctOnAViewTakesArrayPositions(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [
		{"_id": 1, "a": [1, 2, [3, 4]]}, {"_id": 2, "a": {"0": 5, "1": [6, 7]}}, {"_id": 3, "a": [{"x": 1, "0": 8}, {"x": 2, "y": [1, 2]}]},
		{"_id": 4, "a": [[9, [10]], [{"x": 11}]]}, {"_id": 5, "a": []}, {"_id": 6}, {"_id": 7, "a": 12},
		{"_id": 8, "b": {"c": [{"d": [1, 2]}, {"d": [3, 4], "0": {"d": 5}}]}}]}`)
	n.ok("d", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	for _, key := range []string{"a.0", "a.1", "a.2", "a.0.x", "a.1.x", "a.0.0", "a.1.0", "a.0.1", "a.1.0.x", "a.1.y.1", "b.c.0.d", "b.c.1.d.0", "b.c.0.d.1", "a", "a.x", "a.99999999999"} {
		want := fmt.Sprint(n.do("d", `{"distinct": "c", "key": "`+key+`"}`)["values"])
		if got := fmt.Sprint(n.do("d", `{"distinct": "v", "key": "`+key+`"}`)["values"]); got != want {
			t.Errorf("%s: %s on the view, %s on the collection", key, got, want)
		}
	}
}

// A validator runs no scripts.
func TestFunctionIsRefusedInAValidator(t *testing.T) {
	n := newTestNode(t)
	const validator = `"validator": {"$or": [{"a": 1}, {"$expr": {"$function": {"body": "function(x) { return true }", "args": ["$x"], "lang": "js"}}}]}`
	n.ok("d", `{"create": "c"}`)
	runSteps(t, n, []step{
		{`{"create": "made", ` + validator + `}`, 4660800},
		{`{"collMod": "c", ` + validator + `}`, 4660800},
		{`{"find": "c", "filter": ` + strings.TrimPrefix(validator, `"validator": `) + `}`, 0},
	})
}
