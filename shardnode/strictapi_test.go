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
	} {
		steps = append(steps, step{cmd + strict, mongoerr.APIStrictError})
	}
	runSteps(t, n, append(steps, step{`{"create": "c"` + strict, 0}, step{`{"find": "c", "singleBatch": true` + strict, 0},
		step{`{"createIndexes": "c", "indexes": [{"key": {"s": 1}, "name": "s", "unique": true}]` + strict, 0}))
}
