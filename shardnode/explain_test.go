package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fill creates a collection of n documents {_id: i, a: i % 5, b: i % 7, s: "…"} with the indexes given as key patterns.
func (n *testNode) fill(coll string, count int, indexes ...string) {
	n.t.Helper()
	for i := 0; i < count; i += 1000 {
		var docs []string
		for k := i; k < min(i+1000, count); k++ {
			docs = append(docs, fmt.Sprintf(`{"_id": %d, "a": %d, "b": %d, "s": "x%d"}`, k, k%5, k%7, k%11))
		}
		n.ok("d", fmt.Sprintf(`{"insert": %q, "documents": [%s]}`, coll, strings.Join(docs, ",")))
	}
	for _, x := range indexes {
		name := strings.NewReplacer(`"`, "", "{", "", "}", "", ":", "_", ",", "_", " ", "").Replace(x)
		n.ok("d", fmt.Sprintf(`{"createIndexes": %q, "indexes": [{"key": %s, "name": %q}]}`, coll, x, name))
	}
}

// asM converts a document of a reply to a map.
func asM(v any) bson.M {
	switch d := v.(type) {
	case bson.M:
		return d
	case bson.D:
		m := bson.M{}
		for _, e := range d {
			m[e.Key] = e.Value
		}
		return m
	}
	return nil
}

// chain names the stages of a plan from the top: "FETCH(IXSCAN a_1)".
func chain(p bson.M) string {
	s, _ := p["stage"].(string)
	if name, ok := p["indexName"].(string); ok {
		s += " " + name
	}
	if in := asM(p["inputStage"]); in != nil {
		return s + "(" + chain(in) + ")"
	}
	if ins, ok := p["inputStages"].(bson.A); ok {
		var list []string
		for _, in := range ins {
			list = append(list, chain(asM(in)))
		}
		return s + "(" + strings.Join(list, ", ") + ")"
	}
	return s
}

func docAt(t testing.TB, d bson.M, path ...string) bson.M {
	t.Helper()
	for _, p := range path {
		next := asM(d[p])
		if next == nil {
			t.Fatalf("no %s in %v", p, d)
		}
		d = next
	}
	return d
}

func TestExplainPlans(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 300, `{"a": 1}`, `{"a": 1, "b": 1}`, `{"s": 1}`)
	for _, c := range []struct{ cmd, plan string }{
		{`{"find": "c"}`, "COLLSCAN"},
		{`{"find": "none"}`, "EOF"},
		{`{"find": "c", "filter": {"_id": 3}}`, "EXPRESS_IXSCAN _id_"},
		{`{"find": "c", "filter": {"a": 1, "b": 2}}`, "FETCH(IXSCAN a_1_b_1)"},
		{`{"find": "c", "filter": {"s": "x1"}, "projection": {"s": 1, "_id": 0}}`, "PROJECTION_COVERED(IXSCAN s_1)"},
		{`{"find": "c", "filter": {"c": 1}, "sort": {"d": 1}, "limit": 2}`, "SORT(COLLSCAN)"},
		{`{"find": "c", "filter": {"s": {"$gt": "x"}}, "hint": {"$natural": 1}}`, "COLLSCAN"},
		{`{"count": "c"}`, "RECORD_STORE_FAST_COUNT"},
		{`{"count": "c", "query": {"s": "x1"}}`, "COUNT(COUNT_SCAN s_1)"},
		{`{"distinct": "c", "key": "s"}`, "PROJECTION_COVERED(DISTINCT_SCAN s_1)"},
		{`{"update": "c", "updates": [{"q": {"s": "x1"}, "u": {"$set": {"z": 1}}}]}`, "UPDATE(FETCH(IXSCAN s_1))"},
		{`{"delete": "c", "deletes": [{"q": {"c": 1}, "limit": 0}]}`, "DELETE(COLLSCAN)"},
		{`{"findAndModify": "c", "query": {"s": "x1"}, "remove": true}`, "DELETE(FETCH(IXSCAN s_1))"},
		{`{"aggregate": "c", "pipeline": [{"$match": {"s": "x1"}}], "cursor": {}}`, "FETCH(IXSCAN s_1)"},
	} {
		r := n.ok("d", fmt.Sprintf(`{"explain": %s, "verbosity": "queryPlanner"}`, c.cmd))
		if got := chain(docAt(t, r, "queryPlanner", "winningPlan")); got != c.plan {
			t.Errorf("%s: plan %s, want %s", c.cmd, got, c.plan)
		}
		if _, ran := r["executionStats"]; ran {
			t.Errorf("%s: queryPlanner ran the plan", c.cmd)
		}
	}
}

func TestExplainFigures(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 350, `{"a": 1}`)
	for _, c := range []struct {
		cmd                  string
		returned, keys, docs int32
	}{
		{`{"find": "c"}`, 350, 0, 350},
		{`{"find": "c", "filter": {"b": 3}}`, 50, 0, 350},
		{`{"find": "c", "filter": {"a": 1}}`, 70, 70, 70},
		{`{"find": "c", "filter": {"a": 1, "b": 1}}`, 10, 70, 70},
		{`{"find": "c", "filter": {"_id": 7}}`, 1, 1, 1},
		{`{"find": "c", "filter": {"a": 1}, "projection": {"a": 1, "_id": 0}}`, 70, 70, 0},
		{`{"find": "c", "sort": {"b": 1}, "limit": 5}`, 5, 0, 350},
		{`{"count": "c", "query": {"a": 2}}`, 0, 70, 0},
	} {
		r := n.ok("d", fmt.Sprintf(`{"explain": %s, "verbosity": "executionStats"}`, c.cmd))
		st := docAt(t, r, "executionStats")
		if st["nReturned"] != c.returned || st["totalKeysExamined"] != c.keys || st["totalDocsExamined"] != c.docs {
			t.Errorf("%s: returned %v, keys %v, documents %v", c.cmd, st["nReturned"], st["totalKeysExamined"], st["totalDocsExamined"])
		}
	}
	r := n.ok("d", `{"explain": {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 1}}, "multi": true}]}}`)
	st := docAt(t, r, "executionStats", "executionStages")
	if st["nMatched"] != int32(70) || st["nWouldModify"] != int32(60) {
		t.Errorf("update: %v", st)
	}
	if got := n.first("d", `{"find": "c", "filter": {"_id": 1}}`); !strings.Contains(got[0], "b: 1") && !strings.Contains(got[0], `"b":`) {
		t.Errorf("an explained update changed its document: %v", got)
	}
}

func TestExplainRefuses(t *testing.T) {
	n := newTestNode(t)
	runSteps(t, n, []step{
		{`{"explain": {}}`, mongoerr.CommandNotFound},
		{`{"explain": {"nonsense": 1}}`, mongoerr.CommandNotFound},
		{`{"explain": {"insert": "c", "documents": []}}`, mongoerr.IllegalOperation},
		{`{"explain": null}`, mongoerr.IDLFailedToParse},
		{`{"explain": "find"}`, mongoerr.TypeMismatch},
		{`{"explain": {"find": "c"}, "verbosity": "all"}`, mongoerr.BadValue},
		{`{"explain": {"update": "c", "updates": []}}`, mongoerr.InvalidLength},
		{`{"aggregate": "c", "pipeline": [], "explain": true, "writeConcern": {}}`, mongoerr.FailedToParse},
	})
}

func TestExplainPipelineStages(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 100, `{"a": 1}`)
	r := n.ok("d", `{"explain": {"aggregate": "c", "pipeline": [{"$match": {"a": 1}}, {"$group": {"_id": {"$toString": "$b"}}}], "cursor": {}}, "verbosity": "executionStats"}`)
	stages := r["stages"].(bson.A)
	cursor, group := asM(stages[0]), asM(stages[1])
	if got := chain(docAt(t, cursor, "$cursor", "queryPlanner", "winningPlan")); got != "PROJECTION_SIMPLE(FETCH(IXSCAN a_1))" {
		t.Errorf("plan %s", got)
	}
	if cursor["nReturned"] != int64(20) || group["nReturned"] != int64(7) {
		t.Errorf("returned %v and %v", cursor["nReturned"], group["nReturned"])
	}
	r = n.ok("d", `{"explain": {"aggregate": "c", "pipeline": [{"$out": "copy"}], "cursor": {}}, "verbosity": "executionStats"}`)
	if got := n.first("d", `{"find": "copy"}`); len(r["stages"].(bson.A)) != 2 || len(got) != 0 {
		t.Errorf("an explained $out wrote %d documents: %v", len(got), r["stages"])
	}
}

// TestExplainGeo checks that the index is used and how little of it is read.
func TestExplainGeo(t *testing.T) {
	n := newTestNode(t)
	var docs []string
	for i := range 1000 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "at": {"type": "Point", "coordinates": [%d, %d]}, "xy": [%d, %d], "a": %d}`, i, i%60, i/60, i%60, i/60, i%3))
	}
	n.ok("d", fmt.Sprintf(`{"insert": "g", "documents": [%s]}`, strings.Join(docs, ",")))
	n.ok("d", `{"createIndexes": "g", "indexes": [{"key": {"at": "2dsphere"}, "name": "s"}, {"key": {"xy": "2d"}, "name": "p"}]}`)
	for filter, want := range map[string]string{
		`{"at": {"$geoWithin": {"$centerSphere": [[20, 5], 0.05]}}}`:                                                        "FETCH(IXSCAN s)",
		`{"at": {"$geoIntersects": {"$geometry": {"type": "Polygon", "coordinates": [[[3, 3], [6, 3], [6, 6], [3, 3]]]}}}}`: "FETCH(IXSCAN s)",
		`{"xy": {"$geoWithin": {"$box": [[10, 2], [14, 6]]}}, "a": 1}`:                                                      "FETCH(IXSCAN p)",
		`{"$or": [{"xy": {"$geoWithin": {"$center": [[10, 2], 2]}}}, {"_id": 5}]}`:                                          "SUBPLAN(FETCH(OR(IXSCAN _id_, FETCH(IXSCAN p))))",
		`{"a": {"$gt": 0}}`: "COLLSCAN",
	} {
		r := n.ok("d", fmt.Sprintf(`{"explain": {"find": "g", "filter": %s}, "verbosity": "executionStats"}`, filter))
		if got := chain(docAt(t, r, "queryPlanner", "winningPlan")); got != want {
			t.Errorf("%s: %s, want %s", filter, got, want)
		}
		st := docAt(t, r, "executionStats")
		if keys := st["totalKeysExamined"].(int32); want != "COLLSCAN" && (keys == 0 || keys > 200) {
			t.Errorf("%s: %d keys for %v results", filter, keys, st["nReturned"])
		}
	}
}

// TestExplainGroup checks which $group stages explain shows as part of the query's plan, and which it does not.
func TestExplainGroup(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 100, `{"a": 1}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"s": "text"}, "name": "words"}, {"key": {"b": 1, "a": 1}, "name": "ba"}]}`)
	const top, cursor = "top", "$cursor"
	for _, c := range []struct{ pipeline, where, want string }{
		{`[{"$group": {"_id": "$s"}}]`, top, `GROUP(COLLSCAN)`},
		{`[{"$match": {"a": 1}}, {"$group": {"_id": "$s", "n": {"$sum": 1}}}]`, top, `GROUP(FETCH(IXSCAN a_1))`},
		{`[{"$match": {"b": 1}}, {"$group": {"_id": "$a", "n": {"$sum": 1}}}]`, top, `GROUP(PROJECTION_COVERED(IXSCAN ba))`},
		{`[{"$sort": {"s": 1}}, {"$limit": 5}, {"$group": {"_id": "$b", "l": {"$push": "$s"}}}]`, top, `GROUP(SORT(COLLSCAN))`},
		{`[{"$group": {"_id": "$s"}}, {"$group": {"_id": null, "n": {"$sum": 1}}}]`, top, `GROUP(GROUP(COLLSCAN))`},
		{`[{"$sortByCount": "$s"}]`, cursor, `GROUP(COLLSCAN)`},
		{`[{"$group": {"_id": "$s"}}, {"$match": {"n": 1}}, {"$project": {"x": 1}}]`, cursor, `GROUP(COLLSCAN)`},
		{`[{"$group": {"_id": "$s"}}, {"$out": "o"}]`, cursor, `GROUP(COLLSCAN)`},
		{`[{"$match": {"_id": 3}}, {"$group": {"_id": "$s"}}]`, "", `FETCH(IXSCAN _id_)`},
		{`[{"$group": {"_id": "$a"}}]`, "", `DISTINCT_SCAN a_1`},
		{`[{"$match": {"$text": {"$search": "x1"}}}, {"$group": {"_id": "$s"}}]`, "", `TEXT_MATCH words(FETCH(IXSCAN words))`},
		{`[{"$match": {"p": {"$geoWithin": {"$center": [[0, 0], 1]}}}}, {"$group": {"_id": "$s"}}]`, "", `COLLSCAN`},
		{`[{"$match": {"$expr": {"$eq": [{"$toInt": "$b"}, 1]}}}, {"$group": {"_id": "$s"}}]`, "", `COLLSCAN`},
		{`[{"$group": {"_id": {"$toString": "$s"}}}]`, "", `COLLSCAN`},
		{`[{"$group": {"_id": "$b", "m": {"$median": {"input": "$a", "method": "approximate"}}}}]`, "", `COLLSCAN`},
		{`[{"$unwind": "$s"}, {"$group": {"_id": "$s"}}]`, "", `COLLSCAN`},
		{`[{"$sample": {"size": 3}}, {"$group": {"_id": "$s"}}]`, "", `COLLSCAN`},
	} {
		for _, verb := range []string{"queryPlanner", "executionStats", "allPlansExecution"} {
			r := n.ok("d", fmt.Sprintf(`{"explain": {"aggregate": "c", "pipeline": %s, "cursor": {}}, "verbosity": %q}`, c.pipeline, verb))
			planned, version := r, "2"
			switch c.where {
			case cursor, "":
				if c.where == "" {
					version = "1"
				}
				stages, _ := r["stages"].(bson.A)
				if len(stages) == 0 {
					t.Fatalf("%s: no stages but %v", c.pipeline, docAt(t, r, "queryPlanner", "winningPlan"))
				}
				planned = docAt(t, asM(stages[0]), "$cursor")
			}
			plan := docAt(t, planned, "queryPlanner", "winningPlan")
			if version == "2" {
				if s := docAt(t, plan, "slotBasedPlan")["stages"]; !strings.Contains(fmt.Sprint(s), "group") {
					t.Errorf("%s: stages %q", c.pipeline, s)
				}
				plan = docAt(t, plan, "queryPlan")
			}
			got := chain(plan)
			if c.where == "" {
				got = strings.TrimPrefix(strings.TrimPrefix(got, "PROJECTION_SIMPLE("), "PROJECTION_COVERED(")
				got = strings.TrimSuffix(got, ")")
			}
			if got != c.want || r["explainVersion"] != version {
				t.Errorf("%s %s: %s, version %v", c.pipeline, verb, got, r["explainVersion"])
			}
			if stats := asM(planned["executionStats"]); (stats != nil) != (verb != "queryPlanner") {
				t.Errorf("%s %s: statistics %v", c.pipeline, verb, stats)
			}
		}
	}
}

// TestExplainGroupFigures checks the inputs and outputs of groups, and matches each stage of the plan by its number.
func TestExplainGroupFigures(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 100, `{"a": 1}`)
	r := n.ok("d", `{"explain": {"aggregate": "c", "pipeline": [{"$match": {"a": 1}}, {"$group": {"_id": "$b", "n": {"$sum": 1}}}, {"$sort": {"n": 1}}], "cursor": {}}, "verbosity": "executionStats"}`)
	stages := r["stages"].(bson.A)
	if _, sorts := asM(stages[1])["$sort"]; len(stages) != 2 || !sorts || asM(stages[1])["nReturned"] != int64(7) || asM(stages[0])["nReturned"] != int64(7) {
		t.Errorf("stages %v", stages)
	}
	ids := map[any]string{}
	for p := docAt(t, asM(stages[0]), "$cursor", "queryPlanner", "winningPlan", "queryPlan"); p != nil; p = asM(p["inputStage"]) {
		ids[p["planNodeId"]] = p["stage"].(string)
	}
	if len(ids) != 3 || ids[int32(3)] != "GROUP" || ids[int32(2)] != "FETCH" || ids[int32(1)] != "IXSCAN" {
		t.Errorf("numbers %v", ids)
	}
	es := docAt(t, asM(stages[0]), "$cursor", "executionStats")
	group := docAt(t, es, "executionStages")
	nlj := docAt(t, group, "inputStage")
	seek, ix := docAt(t, nlj, "innerStage"), docAt(t, nlj, "outerStage")
	got := []any{es["nReturned"], es["totalDocsExamined"], group["stage"], group["planNodeId"], group["nReturned"], group["usedDisk"], nlj["planNodeId"], nlj["nReturned"],
		seek["numReads"], ix["keysExamined"], ix["planNodeId"]}
	want := []any{int32(7), int32(20), "group", int32(3), int32(7), false, int32(2), int32(20), int32(20), int32(20), int32(1)}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("figures %v, want %v", got, want)
			break
		}
	}
}

// A comparison of a field with a variable of $lookup uses an index of the other collection, also within an $and and after a $match that could be moved
// to the front; explain counts what each $lookup has read.
func TestExplainLookup(t *testing.T) {
	n := newTestNode(t)
	n.fill("o", 40, `{"a": 1}`)
	n.fill("i", 30, `{"a": 1}`)
	for _, c := range []struct {
		stages      string
		docs, scans int64
		used        string
	}{
		{`{"$lookup": {"from": "i", "let": {"v": "$_id"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$_id", "$$v"]}}}], "as": "x"}}`, 30, 0, "[_id_]"},
		{`{"$lookup": {"from": "i", "let": {"v": "$_id"}, "pipeline": [{"$match": {"$expr": {"$and": [{"$gte": ["$$v", 0]}, {"$eq": ["$$v", "$a"]}]}}}], "as": "x"}}`, 30, 0, "[a_1]"},
		{`{"$lookup": {"from": "i", "let": {"v": "$_id"}, "pipeline": [{"$match": {"$expr": {"$eq": [{"$toString": "$_id"}, "$$v"]}}}], "as": "x"}}`, 40 * 30, 40, "[]"},
		{`{"$lookup": {"from": "i", "localField": "_id", "foreignField": "_id", "as": "x"}}`, 30, 0, "[_id_]"},
		{`{"$lookup": {"from": "i", "let": {"v": "$_id"}, "pipeline": [{"$match": {"$expr": {"$eq": [{"$toString": "$_id"}, "$$v"]}}}], "as": "x"}}, {"$match": {"$expr": {"$in": ["$_id", [3, 4]]}}}`, 2 * 30, 2, "[]"},
	} {
		r := n.ok("d", `{"explain": {"aggregate": "o", "pipeline": [`+c.stages+`], "cursor": {}}, "verbosity": "executionStats"}`)
		st := asM(r["stages"].(bson.A)[1])
		if st["totalDocsExamined"] != c.docs || st["collectionScans"] != c.scans || fmt.Sprint(st["indexesUsed"]) != c.used {
			t.Errorf("%s\nreads %v documents by %v scans and indexes %v; want %d, %d, %s", c.stages, st["totalDocsExamined"], st["collectionScans"], st["indexesUsed"], c.docs, c.scans, c.used)
		}
	}
}

// TestExplainGroupFramework selects the classic engine by the parameter and by query settings.
func TestExplainGroupFramework(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 10)
	const query = `"aggregate": "c", "pipeline": [{"$group": {"_id": "$b"}}]`
	check := func(when, version, control string) {
		t.Helper()
		r := n.ok("d", `{"explain": {`+query+`, "cursor": {}}, "verbosity": "queryPlanner"}`)
		if got := docAt(t, r, "serverParameters")["internalQueryFrameworkControl"]; r["explainVersion"] != version || got != control {
			t.Errorf("%s: version %v, control %v", when, r["explainVersion"], got)
		}
	}
	check("at first", "2", "trySbeRestricted")
	if code := n.code("admin", `{"setParameter": 1, "internalQueryFrameworkControl": "fast"}`); code != int32(mongoerr.BadValue) {
		t.Errorf("no such engine: %d", code)
	}
	n.ok("admin", `{"setParameter": 1, "internalQueryFrameworkControl": "forceClassicEngine"}`)
	check("by the parameter", "1", "forceClassicEngine")
	n.ok("admin", `{"setParameter": 1, "internalQueryFrameworkControl": "trySbeEngine"}`)
	n.ok("admin", `{"setQuerySettings": {`+query+`, "$db": "d"}, "settings": {"queryFramework": "classic"}}`)
	check("by settings", "1", "trySbeEngine")
}

// TestExplainOfSeries checks that a condition on the metaField of a time series is evaluated on buckets alone.
func TestExplainOfSeries(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	n.ok("d", `{"insert": "ts", "documents": [{"t": {"$date": 0}, "m": 1, "v": 1}, {"t": {"$date": 5}, "m": 1, "v": 2}, {"t": {"$date": 5}, "m": 2, "v": 1}]}`)
	for filter, want := range map[string]string{
		`{"m": 1}`:                              "$cursor $_internalUnpackBucket",
		`{"m": {"$gt": 0}, "$and": [{"m": 1}]}`: "$cursor $_internalUnpackBucket",
		`{"m": 1, "v": 1}`:                      "$cursor $_internalUnpackBucket $match",
	} {
		m := n.ok("d", fmt.Sprintf(`{"explain": {"find": "ts", "filter": %s}}`, filter))
		var names []string
		for _, st := range m["stages"].(bson.A) {
			names = append(names, st.(bson.D)[0].Key)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: stages %s, want %s", filter, got, want)
		}
	}
	m := n.ok("d", `{"count": "ts", "query": {"m": 1}}`)
	if fmt.Sprint(m["n"]) != "2" {
		t.Errorf("%v measurements have m: 1, want 2", m["n"])
	}
}
