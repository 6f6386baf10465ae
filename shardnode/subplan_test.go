package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// explained returns the explain output of a find on d at a verbosity.
func (n *testNode) explained(find, verbosity string) bson.M {
	n.t.Helper()
	return n.ok("d", fmt.Sprintf(`{"explain": %s, "verbosity": %q}`, find, verbosity))
}

func (n *testNode) winner(find string) string {
	n.t.Helper()
	return chain(docAt(n.t, n.explained(find, "queryPlanner"), "queryPlanner", "winningPlan"))
}

// TestSubplan checks filters that are an $or: each branch is planned by its own trial, and has its own entry in the
// plan cache.
func TestSubplan(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 3000, `{"a": 1}`, `{"b": 1}`, `{"s": 1, "a": 1}`)
	for _, c := range []struct{ find, plan string }{
		{`{"find": "c", "filter": {"$or": [{"a": 1}, {"b": 2}]}}`, "SUBPLAN(FETCH(OR(IXSCAN a_1, IXSCAN b_1)))"},
		{`{"find": "c", "filter": {"$or": [{"a": 1}, {"z": 2}]}}`, "SUBPLAN(COLLSCAN)"},
		{`{"find": "c", "filter": {"$or": [{"a": 1}, {"b": 2}]}, "sort": {"z": 1}}`, "SUBPLAN(SORT(FETCH(OR(IXSCAN a_1, IXSCAN b_1))))"},
		{`{"find": "c", "filter": {"$or": [{"a": 1}, {"b": 2}]}, "limit": 3, "projection": {"s": 1}}`, "SUBPLAN(LIMIT(PROJECTION_SIMPLE(FETCH(OR(IXSCAN a_1, IXSCAN b_1)))))"},
		{`{"find": "c", "filter": {"s": "x1", "$or": [{"a": 1}, {"b": 2}]}, "hint": "a_1"}`, "FETCH(IXSCAN a_1)"},
		{`{"count": "c", "query": {"$or": [{"a": 1}, {"b": 2}]}}`, "COUNT(SUBPLAN(OR(IXSCAN a_1, IXSCAN b_1)))"},
		{`{"delete": "c", "deletes": [{"q": {"$or": [{"a": 1}, {"b": 2}]}, "limit": 0}]}`, "DELETE(SUBPLAN(FETCH(OR(IXSCAN a_1, IXSCAN b_1))))"},
		{`{"find": "c", "filter": {"$or": [{"s": "x1", "a": {"$gt": 0}}, {"s": "x2"}]}, "projection": {"s": 1, "_id": 0}}`, "SUBPLAN(PROJECTION_COVERED(OR(IXSCAN s_1_a_1, IXSCAN s_1_a_1)))"},
	} {
		if got := n.winner(c.find); got != c.plan {
			t.Errorf("%s: %s, want %s", c.find, got, c.plan)
		}
	}
	r := docAt(t, n.explained(`{"find": "c", "filter": {"$or": [{"a": 1, "b": 3}, {"s": "x2"}]}}`, "allPlansExecution"))
	if list := docAt(t, r, "queryPlanner")["rejectedPlans"].(bson.A); len(list) != 0 {
		t.Errorf("plans that branches rejected are shown: %v", list)
	}
	if list := docAt(t, r, "executionStats")["allPlansExecution"].(bson.A); len(list) != 0 {
		t.Errorf("trials of branches are shown: %v", list)
	}
	st := docAt(t, r, "executionStats")
	if stages := docAt(t, st, "executionStages"); st["nReturned"] != int32(350) || stages["nReturned"] != int32(350) {
		t.Errorf("returned %v, SUBPLAN gave %v", st["nReturned"], stages["nReturned"])
	}
}

// TestSubplanCache follows the entries that the branches of an $or leave: one for each branch that needed a trial.
func TestSubplanCache(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 3000, `{"a": 1}`, `{"b": 1}`, `{"s": 1}`)
	entries := func() (out []string) {
		reply := n.ok("d", `{"aggregate": "c", "pipeline": [{"$planCacheStats": {}}], "cursor": {}}`)
		for _, e := range asM(reply["cursor"])["firstBatch"].(bson.A) {
			m := asM(e)
			text, err := bson.MarshalExtJSON(asM(m["createdFromQuery"])["query"], false, false)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%s active=%v", text, m["isActive"]))
		}
		return out
	}
	find := `{"find": "c", "filter": {"$or": [{"a": 1, "b": 3}, {"s": "x2"}]}, "sort": {"_id": 1}}`
	for i, want := range []string{"false", "true", "true"} {
		n.ok("d", find)
		if got := strings.Join(entries(), "; "); got != `{"$and":[{"a":{"$eq":1}},{"b":{"$eq":3}}]} active=`+want {
			t.Errorf("after run %d: %s", i+1, got)
		}
	}
	first := n.ok("d", `{"aggregate": "c", "pipeline": [{"$planCacheStats": {}}], "cursor": {}}`)
	of := asM(asM(first["cursor"])["firstBatch"].(bson.A)[0])["planCacheShapeHash"]
	if own := docAt(t, n.explained(`{"find": "c", "filter": {"b": 5, "a": 2}}`, "queryPlanner"), "queryPlanner")["planCacheShapeHash"]; own != of {
		t.Errorf("the branch has the shape %v, the same filter alone %v", of, own)
	}
	n.ok("d", `{"planCacheClear": "c", "query": {"a": 0, "b": 0}}`)
	n.ok("d", `{"find": "c", "filter": {"$or": [{"a": 1, "b": 99}, {"s": "x2"}]}}`)
	if got := entries(); len(got) != 0 {
		t.Errorf("a trial that found nothing is remembered: %v", got)
	}
	n.ok("admin", `{"setParameter": 1, "internalQueryPlanOrChildrenIndependently": false}`)
	if got := n.winner(find); strings.Contains(got, "SUBPLAN") {
		t.Errorf("with branches planned together: %s", got)
	}
}

// TestIntersections checks plans that read two indexes: they take part in trials and rarely win.
func TestIntersections(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 3500, `{"a": 1}`, `{"b": 1}`)
	find := `{"find": "c", "filter": {"a": 1, "b": 3}}`
	plans := func(find string) (all []string) {
		qp := docAt(t, n.explained(find, "queryPlanner"), "queryPlanner")
		all = append(all, chain(docAt(t, qp, "winningPlan")))
		for _, p := range qp["rejectedPlans"].(bson.A) {
			all = append(all, chain(asM(p)))
		}
		return all
	}
	if got := strings.Join(plans(find), "; "); !strings.Contains(got, "; FETCH(AND_SORTED(IXSCAN a_1, IXSCAN b_1))") {
		t.Errorf("plans: %s", got)
	}
	if got := strings.Join(plans(`{"find": "c", "filter": {"a": 1, "b": {"$gt": 3}}}`), "; "); strings.Contains(got, "AND_") {
		t.Errorf("a range is intersected: %s", got)
	}
	check := func(filter, stage string) bson.M {
		t.Helper()
		find := fmt.Sprintf(`{"find": "c", "filter": %s}`, filter)
		if got := plans(find)[0]; got != "FETCH("+stage+"(IXSCAN a_1, IXSCAN b_1))" {
			t.Errorf("%s: forced %s", filter, got)
		}
		for _, sort := range []string{`{"_id": 1}`, `{"s": -1, "_id": -1}`} {
			for range 3 {
				got := n.first("d", fmt.Sprintf(`{"find": "c", "filter": %s, "sort": %s, "batchSize": 5000}`, filter, sort))
				want := n.first("d", fmt.Sprintf(`{"find": "c", "filter": %s, "sort": %s, "batchSize": 5000, "hint": {"$natural": 1}}`, filter, sort))
				if strings.Join(got, "\n") != strings.Join(want, "\n") || len(got) == 0 {
					t.Errorf("%s: %d documents, a collection scan gives %d", filter, len(got), len(want))
				}
			}
		}
		return docAt(t, n.explained(find, "executionStats"), "executionStats", "executionStages", "inputStage")
	}
	n.ok("admin", `{"setParameter": 1, "internalQueryForceIntersectionPlans": true}`)
	st := check(`{"a": 1, "b": 3}`, "AND_SORTED")
	if st["nReturned"] != int32(100) || st["failedAnd_0"] != int32(600) || st["failedAnd_1"] != int32(400) {
		t.Errorf("AND_SORTED: %v", st)
	}
	n.ok("admin", `{"setParameter": 1, "internalQueryPlannerEnableHashIntersection": true}`)
	st = check(`{"a": 1, "b": {"$gt": 3}}`, "AND_HASH")
	if st["nReturned"] != int32(300) || st["mapAfterChild_0"] != int32(700) || st["memLimit"] != int64(32<<20) {
		t.Errorf("AND_HASH: %v", st)
	}
	n.ok("admin", `{"setParameter": 1, "internalQueryPlannerEnableIndexIntersection": false}`)
	if got := strings.Join(plans(find), "; "); strings.Contains(got, "AND_") {
		t.Errorf("switched off: %s", got)
	}
}
