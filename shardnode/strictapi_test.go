package shardnode

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Strict clients of a member are refused what is not in API Version 1 (manual: Stable API on the pages of create, createIndexes and find).
func TestStrictArgumentsOfMembers(t *testing.T) {
	n := newTestNode(t)
	const strict = `, "apiVersion": "1", "apiStrict": true}`
	var steps []step
	for _, cmd := range []string{
		`{"create": "c", "capped": true, "size": 4096`, `{"create": "c", "autoIndexId": true`, `{"find": "c", "tailable": true`, `{"find": "c", "returnKey": true`,
		`{"createIndexes": "c", "indexes": [{"key": {"s": "text"}, "name": "s"}]`, `{"createIndexes": "c", "indexes": [{"key": {"s": 1}, "name": "s", "background": true}]`,
		`{"aggregate": "c", "pipeline": [], "cursor": {}, "explain": true`, `{"explain": {"distinct": "c", "key": "a"}`, `{"explain": {"find": "c", "showRecordId": true}`,
		`{"explain": {"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}}`, `{"explain": {"aggregate": "c", "pipeline": [], "cursor": {}, "explain": true}`,
		`{"aggregate": "c", "pipeline": [{"$unionWith": {"coll": "c", "pipeline": [{"$indexStats": {}}]}}], "cursor": {}`,
	} {
		steps = append(steps, step{cmd + strict, mongoerr.APIStrictError})
	}
	runSteps(t, n, append(steps, step{`{"create": "c"` + strict, 0}, step{`{"explain": {"find": "c"}` + strict, 0}, step{`{"explain": {"aggregate": "c", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}}` + strict, 0}, step{`{"find": "c", "singleBatch": true` + strict, 0},
		step{`{"createIndexes": "c", "indexes": [{"key": {"s": 1}, "name": "s", "unique": true}]` + strict, 0}))
}

// A strict client is refused where its command arrives, and there alone: what a router sends for it, and the stages of a view that somebody else has defined, are not
// its commands. (SERVER-51618: aggregate and create check pipelines.)
func TestStrictArgumentsAreAClients(t *testing.T) {
	n := newTestNode(t)
	const strict = `, "apiVersion": "1", "apiStrict": true}`
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.ok("d", `{"create": "stats", "viewOn": "c", "pipeline": [{"$indexStats": {}}]}`)
	n.ok("d", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	runSteps(t, n, []step{
		{`{"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}` + strict, mongoerr.APIStrictError},
		{`{"create": "w", "viewOn": "c", "pipeline": [{"$indexStats": {}}]` + strict, mongoerr.APIStrictError},
		{`{"create": "w", "viewOn": "c", "pipeline": [{"$facet": {"a": [{"$match": {}}]}}]` + strict, 0},
		{`{"collMod": "v", "viewOn": "c", "pipeline": [{"$indexStats": {}}]` + strict, mongoerr.APIStrictError},
		{`{"collMod": "v", "viewOn": "c", "pipeline": [{"$match": {}}]` + strict, 0},
		{`{"find": "stats"` + strict, 0}, {`{"count": "stats"` + strict, 0}, {`{"aggregate": "stats", "pipeline": [], "cursor": {}` + strict, 0},
	})
	router, _ := n.fromRouter()
	runSteps(t, router, []step{{`{"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}` + strict, 0}})
}
