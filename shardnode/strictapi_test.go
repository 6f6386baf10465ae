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
