package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// Whether scripts run is the state of a node: another one in the same process is not affected.
func TestScriptsAreDisabledByNode(t *testing.T) {
	without, with := newTestNode(t), newTestNode(t)
	without.srv.Node.Params.Store("javascriptEnabled", value.NewBool(false))
	for _, n := range []*testNode{without, with} {
		n.ok("db", `{"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 2}]}`)
		n.ok("db", `{"create": "seen", "viewOn": "c"}`)
	}
	for _, cmd := range []string{
		`{"find": "c", "filter": {"$where": "this.a > 1"}}`,
		`{"find": "c", "filter": {"$expr": {"$function": {"body": "function(a) { return a > 1 }", "args": ["$a"], "lang": "js"}}}}`,
		`{"count": "c", "query": {"$where": "this.a > 1"}}`,
		`{"distinct": "c", "key": "a", "query": {"$where": "this.a > 1"}}`,
		`{"update": "c", "updates": [{"q": {"$where": "this.a > 1"}, "u": {"$set": {"b": 1}}}]}`,
		`{"delete": "c", "deletes": [{"q": {"$where": "this.a > 5"}, "limit": 0}]}`,
		`{"findAndModify": "c", "query": {"$where": "this.a > 1"}, "update": {"$set": {"b": 1}}}`,
		`{"aggregate": "c", "pipeline": [{"$group": {"_id": null, "n": {"$accumulator": {"init": "function() { return 0 }", "accumulate": "function(s, a) { return s + a }",
			"accumulateArgs": ["$a"], "merge": "function(a, b) { return a + b }", "lang": "js"}}}}], "cursor": {}}`,
		`{"create": "v", "viewOn": "c", "pipeline": [{"$set": {"x": {"$function": {"body": "function() { return 1 }", "args": [], "lang": "js"}}}}]}`,
		`{"collMod": "seen", "viewOn": "c", "pipeline": [{"$match": {"$expr": {"$function": {"body": "function() { return true }", "args": [], "lang": "js"}}}}]}`,
		`{"mapReduce": "c", "map": "function() { emit(1, this.a) }", "reduce": "function(k, v) { return Array.sum(v) }", "out": {"inline": 1}}`,
	} {
		if reply := fmt.Sprint(without.do("db", cmd)); !strings.Contains(reply, "server-side JavaScript execution is disabled") {
			t.Errorf("%s: %s", cmd, reply)
		}
		if reply := fmt.Sprint(with.do("db", cmd)); strings.Contains(reply, "disabled") || strings.Contains(reply, "errmsg") {
			t.Errorf("%s on the other node: %s", cmd, reply)
		}
	}
	// A filter that is kept for all operations runs no scripts on any node.
	if reply := fmt.Sprint(with.do("db", `{"profile": 0, "filter": {"$where": "true"}}`)); !strings.Contains(reply, "$where is not allowed in this context") {
		t.Errorf("profile: %s", reply)
	}
}
