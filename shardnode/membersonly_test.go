package shardnode

import (
	"testing"

	"github.com/shoaldb/shoal/command"
)

// The internal arguments and stages in pipelines from routers are not part of the query language: from clients they are
// refused like any unknown argument or stage, also inside a view and a sub-pipeline.
func TestPartsOfSplitPipelinesAreForRouters(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 10)
	for stage, code := range map[string]int32{
		`{"$group": {"_id": "$a", "n": {"$avg": "$b"}, "$willBeMerged": true}}`:  40236,
		`{"$group": {"_id": "$a", "n": {"$avg": "$b"}, "$doingMerge": true}}`:    40236,
		`{"$group": {"_id": "$a", "n": {"$avg": "$b"}, "$willBeMerged": false}}`: 40236,
		`{"$_internalPackMetadata": {}}`:                                         40324,
		`{"$_internalTakeMetadata": {}}`:                                         40324,
	} {
		for _, cmd := range []string{
			`{"aggregate": "c", "pipeline": [` + stage + `], "cursor": {}}`,
			`{"aggregate": "c", "pipeline": [` + stage + `], "cursor": {}, "fromRouter": true}`,
			`{"aggregate": "c", "pipeline": [{"$facet": {"x": [` + stage + `]}}], "cursor": {}}`,
			`{"aggregate": "c", "pipeline": [{"$unionWith": {"coll": "c", "pipeline": [` + stage + `]}}], "cursor": {}}`,
			`{"create": "v", "viewOn": "c", "pipeline": [` + stage + `]}`,
		} {
			if got := n.code("d", cmd); got != code {
				t.Errorf("%s: %d", cmd, got)
			}
		}
	}
	router := &testNode{t: t, srv: n.srv, cl: command.NewClient(2, "router:1", "test:27017", nil)}
	router.cl.Internal = true
	got := router.first("d", `{"aggregate": "c", "pipeline": [{"$group": {"_id": null, "n": {"$avg": "$b"}, "$willBeMerged": true}}], "cursor": {}, "fromRouter": true}`)
	if len(got) != 1 {
		t.Errorf("a router's part of a group gives %v", got)
	}
}
