package exec

import (
	"testing"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
)

// IDOf recognises what is one look-up in the _id index, and nothing that may match in another way.
func TestIDOf(t *testing.T) {
	b := &bench{t: t}
	for filter, want := range map[string]bool{
		`{"_id": 1}`: true, `{"_id": "a"}`: true, `{"_id": {"a": 1}}`: true, `{"_id": {}}`: true, `{"_id": {"a": {"$gt": 1}}}`: true, `{"_id": {"$oid": "650000000000000000000001"}}`: true,
		`{"_id": {"$ref": "c", "$id": 1}}`: true, `{"_id": {"$minKey": 1}}`: true, `{"_id": {"$binary": {"base64": "", "subType": "00"}}}`: true,
		`{}`: false, `{"_id": null}`: false, `{"_id": {"$undefined": true}}`: false, `{"_id": []}`: false, `{"_id": [1]}`: false, `{"_id": {"$gt": 1}}`: false, `{"_id": {"$eq": 1}}`: false,
		`{"_id": {"$regularExpression": {"pattern": "a", "options": ""}}}`: false, `{"_id": {"$in": [1]}}`: false,
		`{"_id": 1, "a": 1}`: false, `{"a": 1, "_id": 1}`: false, `{"_ids": 1}`: false, `{"_id.a": 1}`: false, `{"$comment": "x", "_id": 1}`: false, `{"_id": 1, "$comment": "x"}`: false,
	} {
		if _, ok := IDOf(b.doc(filter)); ok != want {
			t.Errorf("%s: %v", filter, ok)
		}
	}
	if _, ok := IDOf(nil); ok {
		t.Error("no filter")
	}
}

// A read by _id in one step finds, counts and reports what the planned query does, with the ownership filter of a router's query and without.
func TestExpressIsThePlannedQuery(t *testing.T) {
	b := newBench(t)
	b.ex.Filters.Set("d.other", "shape", &IndexFilter{})
	type outcome struct {
		doc, summary, shape, key       string
		keys, docs, used, misses, skip int64
	}
	for _, owned := range []bool{false, true} {
		for _, filter := range []string{`{"_id": 3}`, `{"_id": 3.0}`, `{"_id": 1000}`, `{"_id": "x"}`} {
			outcomeOf := func(read func(*command.Op, *Query) ([]byte, bool, error)) (o outcome) {
				op, q := &command.Op{}, b.query(filter, "")
				usage := &q.Coll.IDIndex().Usage.Ops
				used, misses, skipped := usage.Load(), b.ex.Counters.Misses.Load(), b.ex.Counters.Skipped.Load()
				doc, ok, err := read(op, q)
				if err != nil || ok == (doc == nil) {
					t.Fatalf("%s: %x %v %v", filter, doc, ok, err)
				}
				o = outcome{doc: string(doc), summary: op.Stats.PlanSummary, keys: op.Stats.KeysExamined, docs: op.Stats.DocsExamined, used: usage.Load() - used,
					misses: b.ex.Counters.Misses.Load() - misses, skip: b.ex.Counters.Skipped.Load() - skipped}
				if op.Stats.Plan != nil {
					o.shape, o.key = op.Stats.Plan.PlanKeys()
				}
				return o
			}
			planned := outcomeOf(func(op *command.Op, q *Query) ([]byte, bool, error) {
				if owned {
					q.Owned = func([]byte) (bool, error) { return true, nil }
				}
				s, err := b.ex.Execute(op, q)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				return s.NextDoc(op)
			})
			express := outcomeOf(func(op *command.Op, q *Query) ([]byte, bool, error) {
				id, ok := IDOf(q.Filter)
				x := &Express{Snap: q.Snap, Coll: q.Coll, Filter: q.Filter, ID: id, Owned: owned}
				if !ok || !x.Begin(b.ex, op) {
					t.Fatalf("%s is planned", filter)
				}
				return x.Read(op)
			})
			if planned != express || owned != (planned.shape != "") {
				t.Errorf("%s, owned %v:\nplanned %+v\nexpress %+v", filter, owned, planned, express)
			}
		}
	}
}

// What restricts a planned query's indexes, or watches its stages, is not passed over.
func TestExpressLeavesRestrictedQueriesToThePlanner(t *testing.T) {
	b := newBench(t)
	q := b.query(`{"_id": 3}`, "")
	begins := func(op *command.Op) bool {
		return (&Express{Snap: q.Snap, Coll: q.Coll, Filter: q.Filter, ID: value.NewInt32(3), Owned: true}).Begin(b.ex, op)
	}
	explained := &command.Op{}
	explained.Stats.IndexesUsed = map[string]bool{}
	if !begins(&command.Op{}) || begins(explained) {
		t.Error("an unrestricted query is planned, or an explained one is not")
	}
	b.env.settings = b.doc(`{"indexHints": {}}`)
	if begins(&command.Op{}) {
		t.Error("query settings are passed over")
	}
	b.env.settings = nil
	b.env.observes = true
	if begins(&command.Op{}) {
		t.Error("the profiler is passed over")
	}
	b.env.observes = false
	b.ex.Filters.Set("d.c", "shape", &IndexFilter{})
	if begins(&command.Op{}) {
		t.Error("index filters are passed over")
	}
	if misses := b.ex.Counters.Misses.Load(); misses != 1 {
		t.Errorf("%d queries were counted of 1", misses)
	}
}
