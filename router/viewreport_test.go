package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// $collStats on a view is about the view, also on one over a sharded collection: the router used to answer with the statistics of the collection.
func TestCollStatsOfViewsAreAsOnASet(t *testing.T) {
	s := newAsOnASet(t)
	for _, run := range []func(db, cmd string) bson.M{s.onSet, s.c.raw} {
		for _, db := range []string{"d", "p"} {
			run(db, `{"create": "v", "viewOn": "c", "pipeline": [{"$match": {"k": 1}}]}`)
			run(db, `{"create": "onview", "viewOn": "v", "pipeline": []}`)
			run(db, `{"create": "plain", "viewOn": "c", "pipeline": []}`)
			run(db, `{"create": "joined", "viewOn": "none", "pipeline": [{"$unionWith": "c"}]}`)
		}
	}
	for _, view := range []string{"v", "onview", "plain", "joined"} {
		for _, pipeline := range []string{
			`{"$collStats": {}}, {"$project": {"ns": 1}}`, `{"$collStats": {"latencyStats": {}}}, {"$group": {"_id": "$ns", "n": {"$sum": 1}}}`,
			`{"$collStats": {"latencyStats": {"histograms": true}}}, {"$unionWith": {"coll": "c"}}, {"$match": {"ns": {"$exists": true}}}, {"$project": {"ns": 1}}`,
			`{"$collStats": {"storageStats": {}}}`, `{"$collStats": {"count": {}}}`, `{"$collStats": {"queryExecStats": {}}}`, `{"$collStats": 1}`, `{"$match": {}}, {"$collStats": {}}`,
		} {
			s.same("DB", `{"aggregate": "`+view+`", "cursor": {}, "pipeline": [`+pipeline+`]}`)
		}
	}
	if r := s.c.raw("d", `{"aggregate": "v", "cursor": {}, "pipeline": [{"$collStats": {"count": {}}}]}`); r["codeName"] != "CommandNotSupportedOnView" {
		t.Errorf("%v", r)
	}
	if r := show(fieldAt(s.c.run("d", `{"aggregate": "v", "cursor": {}, "pipeline": [{"$collStats": {"latencyStats": {}}}]}`), "cursor.firstBatch")); strings.Count(r, `"shard":`) != 1 {
		t.Error(r)
	}
}
