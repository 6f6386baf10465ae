package shardnode

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// orders creates the collection of the manual's page on $planCacheStats.
func (n *testNode) orders() {
	n.t.Helper()
	n.ok("d", `{"insert": "orders", "documents": [
		{"_id": 1, "item": "abc", "price": {"$numberDecimal": "12"}, "quantity": 2, "type": "apparel"},
		{"_id": 2, "item": "jkl", "price": {"$numberDecimal": "20"}, "quantity": 1, "type": "electronics"},
		{"_id": 3, "item": "abc", "price": {"$numberDecimal": "10"}, "quantity": 5, "type": "apparel"},
		{"_id": 4, "item": "abc", "price": {"$numberDecimal": "8"}, "quantity": 10, "type": "apparel"},
		{"_id": 5, "item": "jkl", "price": {"$numberDecimal": "15"}, "quantity": 15, "type": "electronics"}]}`)
	n.ok("d", `{"createIndexes": "orders", "indexes": [{"key": {"item": 1}, "name": "item_1"}, {"key": {"item": 1, "quantity": 1}, "name": "item_1_quantity_1"},
		{"key": {"quantity": 1}, "name": "quantity_1"}, {"key": {"quantity": 1, "type": 1}, "name": "quantity_1_type_1"},
		{"key": {"item": 1, "price": 1}, "name": "item_1_price_1", "partialFilterExpression": {"price": {"$gte": {"$numberDecimal": "10"}}}}]}`)
}

func (n *testNode) cacheEntries(coll string) (out []bson.M) {
	n.t.Helper()
	r := n.ok("d", fmt.Sprintf(`{"aggregate": %q, "pipeline": [{"$planCacheStats": {}}], "cursor": {}}`, coll))
	for _, e := range asM(r["cursor"])["firstBatch"].(bson.A) {
		out = append(out, asM(e))
	}
	return out
}

// TestPlanCacheStats compares entries with those that the manual shows for the same documents and queries.
func TestPlanCacheStats(t *testing.T) {
	n := newTestNode(t)
	n.orders()
	for _, c := range []struct {
		query  string
		works  int64
		scores []float64
	}{
		{`{"quantity": {"$gte": 5}, "type": "apparel"}`, 4, []float64{1.5002, 1.5002}},
		{`{"quantity": {"$gte": 20}}`, 1, []float64{1.0002, 1.0002}},
		{`{"item": "abc", "price": {"$gte": {"$numberDecimal": "5"}}}`, 4, []float64{1.7502, 1.7502}},
		{`{"item": "abc", "price": {"$gte": {"$numberDecimal": "10"}}}`, 3, []float64{1.6668666666666665, 1.6668666666666665, 1.6668666666666665}},
	} {
		n.ok("d", `{"planCacheClear": "orders"}`)
		n.ok("d", fmt.Sprintf(`{"find": "orders", "filter": %s}`, c.query))
		entries := n.cacheEntries("orders")
		if len(entries) != 1 {
			t.Fatalf("%s: %d entries", c.query, len(entries))
		}
		e := entries[0]
		var scores []float64
		for _, s := range e["candidatePlanScores"].(bson.A) {
			scores = append(scores, s.(float64))
		}
		same := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
		if e["works"] != c.works || e["isActive"] != false || !slices.EqualFunc(scores, c.scores, same) {
			t.Errorf("%s: works %v, active %v, scores %v", c.query, e["works"], e["isActive"], scores)
		}
		stats := e["creationExecStats"].(bson.A)
		if len(stats) != len(c.scores) {
			t.Errorf("%s: figures of %d plans", c.query, len(stats))
		}
		first := asM(stats[0])
		for _, k := range []string{"nReturned", "executionTimeMillisEstimate", "totalKeysExamined", "totalDocsExamined"} {
			if _, ok := first[k]; !ok {
				t.Errorf("%s: no %s in %v", c.query, k, first)
			}
		}
		if got := asM(first["executionStages"])["works"]; got != int32(c.works) {
			t.Errorf("%s: the winner did %v works", c.query, got)
		}
	}
}

// halves fills a collection where a is 0 in the first half and b in the second, and the other is the _id.
func (n *testNode) halves(count int) {
	n.t.Helper()
	var docs []string
	for i := range count {
		a, b := 0, i
		if i >= count/2 {
			a, b = i, 0
		}
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "a": %d, "b": %d}`, i, a, b))
	}
	n.ok("d", fmt.Sprintf(`{"insert": "ev", "documents": [%s]}`, strings.Join(docs, ",")))
	n.ok("d", `{"createIndexes": "ev", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": 1}, "name": "b_1"}]}`)
}

// TestTrialFigures checks what explain reports of a trial: the plans stopped when the first one had ended.
func TestTrialFigures(t *testing.T) {
	n := newTestNode(t)
	n.halves(2000)
	r := n.explained(`{"find": "ev", "filter": {"a": 1400, "b": 0}}`, "allPlansExecution")
	var got []string
	for _, p := range docAt(t, r, "executionStats")["allPlansExecution"].(bson.A) {
		m := asM(p)
		st := asM(m["executionStages"])
		got = append(got, fmt.Sprintf("%s score %.4f works %v advanced %v eof %v keys %v docs %v", chain(st), m["score"], st["works"], st["advanced"], st["isEOF"], m["totalKeysExamined"], m["totalDocsExamined"]))
	}
	want := []string{
		"FETCH(IXSCAN a_1) score 2.5002 works 2 advanced 1 eof 1 keys 1 docs 1",
		"FETCH(IXSCAN b_1) score 1.0002 works 2 advanced 0 eof 0 keys 2 docs 2",
		"FETCH(AND_SORTED(IXSCAN a_1, IXSCAN b_1)) score 1.0001 works 2 advanced 0 eof 0 keys 2 docs 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("trial:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, verbosity := range []string{"queryPlanner", "executionStats"} {
		r := n.explained(`{"find": "ev", "filter": {"a": 1400, "b": 0}}`, verbosity)
		if st := asM(r["executionStats"]); st["allPlansExecution"] != nil {
			t.Errorf("%s shows the trial", verbosity)
		}
	}
}

// TestReplanning follows a cached plan that turns out badly, in the cache, the log's fields and the counters.
func TestReplanning(t *testing.T) {
	n := newTestNode(t)
	n.halves(2000)
	entry := func() string {
		e := n.cacheEntries("ev")
		if len(e) != 1 {
			t.Fatalf("%d entries", len(e))
		}
		query, _ := bson.MarshalExtJSON(asM(e[0]["createdFromQuery"])["query"], false, false)
		return fmt.Sprintf("%s active=%v works=%v %s", asM(asM(e[0]["cachedPlan"])["inputStage"])["indexName"], e[0]["isActive"], e[0]["works"], query)
	}
	counters := func() string {
		c := docAt(t, n.ok("admin", `{"serverStatus": 1}`), "metrics", "query", "planCache", "classic")
		return fmt.Sprintf("hits %v misses %v replanned %v", c["hits"], c["misses"], c["replanned"])
	}
	cached := func() any {
		r := n.explained(`{"find": "ev", "filter": {"a": 1200, "b": 0}}`, "queryPlanner")
		return docAt(t, r, "queryPlanner", "winningPlan")["isCached"]
	}
	n.ok("d", `{"profile": 2}`)
	for i, s := range []struct {
		filter, entry, counters, log string
		cached                       bool
	}{
		{`{"a": 1400, "b": 0}`, `a_1 active=false works=2 {"a":1400,"b":0}`, "hits 0 misses 1 replanned 0", "multi", false},
		{`{"a": 1400, "b": 0}`, `a_1 active=true works=2 {"a":1400,"b":0}`, "hits 0 misses 2 replanned 0", "multi", true},
		{`{"a": 1200, "b": 0}`, `a_1 active=true works=2 {"a":1400,"b":0}`, "hits 1 misses 2 replanned 0", "cache", true},
		{`{"a": 0, "b": 600}`, `b_1 active=true works=2 {"a":0,"b":600}`, "hits 2 misses 2 replanned 1", "multi replanned", false},
	} {
		if got := n.first("d", fmt.Sprintf(`{"find": "ev", "filter": %s, "comment": "run %d"}`, s.filter, i)); len(got) != 1 {
			t.Errorf("run %d: %d documents", i, len(got))
		}
		if got := entry(); got != s.entry {
			t.Errorf("run %d: entry %s, want %s", i, got, s.entry)
		}
		if got := counters(); got != s.counters {
			t.Errorf("run %d: %s, want %s", i, got, s.counters)
		}
		n.checkPlanLog(i, s.log)
		if got := cached(); got != s.cached {
			t.Errorf("run %d: isCached %v", i, got)
		}
	}
	rejected := docAt(t, n.explained(`{"find": "ev", "filter": {"a": 1200, "b": 0}}`, "queryPlanner"), "queryPlanner")["rejectedPlans"].(bson.A)
	marks := 0
	for _, p := range rejected {
		if asM(p)["isCached"] == true {
			marks++
		}
	}
	if marks != 1 {
		t.Errorf("%d of the rejected plans are in the cache", marks)
	}
}

// checkPlanLog checks what the profiler wrote about the find with a comment.
func (n *testNode) checkPlanLog(run int, want string) {
	n.t.Helper()
	r := n.ok("d", fmt.Sprintf(`{"find": "system.profile", "filter": {"command.comment": "run %d"}, "hint": {"$natural": 1}}`, run))
	docs := asM(r["cursor"])["firstBatch"].(bson.A)
	if len(docs) != 1 {
		n.t.Fatalf("run %d: %d entries", run, len(docs))
	}
	p := asM(docs[0])
	var got []string
	for _, f := range [][2]string{{"fromMultiPlanner", "multi"}, {"fromPlanCache", "cache"}, {"replanned", "replanned"}} {
		if p[f[0]] == true {
			got = append(got, f[1])
		}
	}
	if strings.Join(got, " ") != want || p["keysExamined"] != int64(1) || p["docsExamined"] != int64(1) || p["queryFramework"] != "classic" {
		n.t.Errorf("run %d: %v, keys %v, documents %v, %v", run, got, p["keysExamined"], p["docsExamined"], p["queryFramework"])
	}
	if why := "cached plan was less efficient than expected: expected trial execution to take 2 works but it took at least 20 works"; strings.Contains(want, "replanned") && p["replanReason"] != why {
		n.t.Errorf("run %d: %v", run, p["replanReason"])
	}
	if hash, _ := p["planCacheShapeHash"].(string); len(hash) != 8 || p["queryHash"] != p["planCacheShapeHash"] || p["planCacheKey"] == nil {
		n.t.Errorf("run %d: keys %v %v", run, p["planCacheShapeHash"], p["planCacheKey"])
	}
}

// TestCachedPlanThatTrickles has a cached plan find something from time to time: it is abandoned all the same.
func TestCachedPlanThatTrickles(t *testing.T) {
	n := newTestNode(t)
	var docs []string
	for i := range 3000 {
		a, b := i, 1
		if i >= 1000 {
			a, b = 0, 1+i%40 // of a's zeros every fortieth has b: 1
		}
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "a": %d, "b": %d}`, i, a, b))
	}
	n.ok("d", fmt.Sprintf(`{"insert": "c", "documents": [%s]}`, strings.Join(docs, ",")))
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": 1}, "name": "b_1"}]}`)
	for range 2 {
		n.ok("d", `{"find": "c", "filter": {"a": 7, "b": 1}}`)
	}
	got := n.first("d", `{"find": "c", "filter": {"a": 0, "b": {"$eq": 3}}, "batchSize": 500}`)
	want := n.first("d", `{"find": "c", "filter": {"a": 0, "b": 3}, "batchSize": 500, "hint": {"$natural": 1}}`)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || len(got) != 50 {
		t.Errorf("%d documents, a collection scan gives %d", len(got), len(want))
	}
	if e := n.cacheEntries("c"); asM(asM(e[0]["cachedPlan"])["inputStage"])["indexName"] == "a_1" && e[0]["isActive"] == true {
		t.Errorf("the entry is still %v", e[0]["cachedPlan"])
	}
}

// TestHintsLeaveThePlanCacheAlone: a plan that did not compete is not cached.
func TestHintsLeaveThePlanCacheAlone(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 500, `{"a": 1}`, `{"b": 1}`)
	for _, more := range []string{`"hint": "a_1"`, `"hint": {"$natural": 1}`, `"min": {"a": 1}, "max": {"a": 3}, "hint": {"a": 1}`} {
		n.ok("d", fmt.Sprintf(`{"find": "c", "filter": {"a": 1, "$or": [{"a": 1, "b": 2}, {"a": {"$gt": 0}, "s": "x"}]}, %s}`, more))
	}
	if e := n.cacheEntries("c"); len(e) != 0 {
		t.Errorf("entries: %v", e)
	}
}

// TestTies: among equally good plans, the one that examined fewer documents wins, then the one with bounds on more
// fields.
func TestTies(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "b": 1, "c": 5}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1, "c": 1}, "name": "a_c"}, {"key": {"a": 1, "b": 1, "c": 1}, "name": "a_b_c"}]}`)
	find := `{"find": "c", "filter": {"a": 1, "b": 1}}`
	if got := n.winner(find); got != "FETCH(IXSCAN a_b_c)" {
		t.Errorf("the longer prefix: %s", got)
	}
}

// TestLocalStagesOfALoneServer: a stage that reads the server's own memory refuses every read concern but local, whatever
// kind of server it is.
func TestLocalStagesOfALoneServer(t *testing.T) {
	srv, err := Open(Config{Memory: true, Host: "test:27017", Info: &command.Info{Host: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close() })
	n := &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", "test:27017", nil)}
	n.ok("d", `{"insert": "c", "documents": [{}]}`)
	for _, level := range []string{"snapshot", "linearizable", "majority"} {
		for cmd, code := range map[string]int32{`{"aggregate": "c", "pipeline": [{"$planCacheStats": {}}], "cursor": {}`: int32(mongoerr.InvalidOptions), `{"find": "c"`: int32(mongoerr.NotAReplicaSet)} {
			if level == "majority" && code == int32(mongoerr.NotAReplicaSet) {
				continue
			}
			if got := n.code("d", fmt.Sprintf(`%s, "readConcern": {"level": %q}}`, cmd, level)); got != code {
				t.Errorf("%s at %s: code %d, want %d", cmd, level, got, code)
			}
		}
	}
}
