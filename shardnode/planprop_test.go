package shardnode

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/querytest"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// rawDo runs a command made of driver values on database d and returns the reply.
func (n *testNode) rawDo(cmd bson.D) []byte {
	n.t.Helper()
	body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: "d"}))
	if err != nil {
		n.t.Fatal(err)
	}
	return n.srv.Service.Run(n.t.Context(), n.cl, &wire.Message{Body: body}, nil)
}

// outcome is the result of a command: an error's code, or its documents (values of a distinct, the n of a count).
type outcome struct {
	code int64
	msg  string
	docs []value.Value
}

// against describes how an outcome differs from the expected one.
func (o outcome) against(want outcome) string {
	if o.code != 0 || want.code != 0 {
		return fmt.Sprintf("error %d %s instead of %d %s", o.code, o.msg, want.code, want.msg)
	}
	return querytest.Diff(querytest.SortFields(o.docs), querytest.SortFields(want.docs))
}

// outcome runs a command to its end.
func (n *testNode) outcome(coll string, cmd bson.D) outcome {
	n.t.Helper()
	reply := value.NewDocument(n.rawDo(cmd))
	o := outcome{}
	if value.Lookup(reply.Doc(), "ok").AsFloat64() != 1 {
		o.code, _ = value.Lookup(reply.Doc(), "code").AsInt64()
		o.msg = value.Lookup(reply.Doc(), "errmsg").Str()
		return o
	}
	if v := value.Lookup(reply.Doc(), "values"); v.T == value.Array {
		o.docs = value.Values(v.Doc())
		return o
	}
	cur := value.Lookup(reply.Doc(), "cursor")
	if cur.T != value.Document {
		o.docs = []value.Value{value.Lookup(reply.Doc(), "n"), value.Lookup(reply.Doc(), "nModified"), value.Lookup(reply.Doc(), "value")}
		return o
	}
	for batch := "firstBatch"; ; batch = "nextBatch" {
		o.docs = append(o.docs, value.Values(value.Lookup(cur.Doc(), batch).Doc())...)
		id, _ := value.Lookup(cur.Doc(), "id").AsInt64()
		if id == 0 {
			return o
		}
		reply = value.NewDocument(n.rawDo(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: coll}, {Key: "batchSize", Value: 50}}))
		if cur = value.Lookup(reply.Doc(), "cursor"); cur.T != value.Document {
			o.code, _ = value.Lookup(reply.Doc(), "code").AsInt64()
			o.msg = value.Lookup(reply.Doc(), "errmsg").Str()
			return o
		}
	}
}

// planRound is one collection with random indexes, and the same documents in another that has none.
type planRound struct {
	*testNode
	t          *testing.T
	g          *querytest.Gen
	coll, bare string
	hints      []string // indexes that hold every document
	indexes    []string // all, described
	specs      map[string]bson.D
	collated   bool // the collection has a collation of its own
}

func newPlanRound(t *testing.T, n *testNode, seed uint64) *planRound {
	r := &planRound{testNode: n, t: t, g: querytest.New(seed), coll: fmt.Sprintf("c%d", seed), bare: fmt.Sprintf("bare%d", seed), specs: map[string]bson.D{}}
	r.g.Geo, r.g.Text = r.g.Chance(0.3), r.g.Chance(0.1)
	if r.g.Chance(0.4) {
		r.g.Places, r.g.Arrays = 0.4, 0.35
	}
	var collation bson.D
	if r.g.Chance(0.2) {
		collation = r.g.Collation()
	}
	r.collated = collation != nil
	for _, c := range []string{r.coll, r.bare} {
		cmd := bson.D{{Key: "create", Value: c}}
		if collation != nil {
			cmd = append(cmd, bson.E{Key: "collation", Value: collation})
		}
		if o := n.outcome(c, cmd); o.code != 0 {
			t.Fatal(o.msg)
		}
	}
	early := r.g.Chance(0.5)
	if early {
		r.createIndexes()
	}
	var docs bson.A
	for i := range 30 + r.g.R.IntN(60) {
		docs = append(docs, append(r.g.Doc(i), bson.E{Key: "v", Value: float64(r.g.R.IntN(20)) / 2}))
	}
	n.rawDo(bson.D{{Key: "insert", Value: r.coll}, {Key: "documents", Value: docs}, {Key: "ordered", Value: false}})
	if !early {
		r.createIndexes()
	}
	r.copy()
	return r
}

// copy fills the bare collection with what the indexed one holds.
func (r *planRound) copy() {
	r.rawDo(bson.D{{Key: "delete", Value: r.bare}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
	all := r.outcome(r.coll, bson.D{{Key: "find", Value: r.coll}, {Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}}})
	var docs bson.A
	for _, d := range all.docs {
		docs = append(docs, bson.Raw(d.Doc()))
	}
	if len(docs) == 0 {
		return
	}
	reply := r.rawDo(bson.D{{Key: "insert", Value: r.bare}, {Key: "documents", Value: docs}})
	if got, _ := value.Lookup(reply, "n").AsInt64(); int(got) != len(docs) {
		r.t.Fatalf("copy: %s", value.ShowDoc(reply))
	}
}

func (r *planRound) createIndexes() {
	for i := range 1 + r.g.R.IntN(4) {
		spec := r.g.Index()
		name := fmt.Sprint("x", i)
		full := append(spec, bson.E{Key: "name", Value: name})
		reply := r.rawDo(bson.D{{Key: "createIndexes", Value: r.coll}, {Key: "indexes", Value: bson.A{full}}})
		if value.Lookup(reply, "ok").AsFloat64() != 1 {
			continue // parallel arrays, a duplicate key, an index like it
		}
		text, _ := bson.MarshalExtJSON(full, false, false)
		r.indexes = append(r.indexes, string(text))
		r.specs[name] = spec
		whole := true
		for _, e := range spec {
			whole = whole && e.Key != "sparse" && e.Key != "partialFilterExpression"
		}
		for _, e := range spec[0].Value.(bson.D) {
			whole = whole && (e.Value == 1 || e.Value == -1 || e.Value == "hashed") && !strings.Contains(e.Key, "$**")
		}
		if whole {
			r.hints = append(r.hints, name)
		}
	}
}

// find creates a find's arguments; ordered reports whether its results have a defined order.
func (r *planRound) find() (args bson.D, ordered bool) {
	g := r.g
	args = bson.D{{Key: "filter", Value: g.Filter()}}
	projection := g.Projection()
	if g.Chance(0.5) {
		sort := g.Sort()
		switch {
		case g.Chance(0.5):
			sort, ordered = append(sort, bson.E{Key: "_id", Value: 1 - 2*g.R.IntN(2)}), true
		case g.Chance(0.5): // documents with equal keys may come in any order, but the keys have one
			projection, ordered = bson.D{{Key: "_id", Value: 0}, {Key: "key", Value: bson.D{{Key: "$meta", Value: "sortKey"}}}, {Key: "nothing", Value: 1}}, true
		}
		args = append(args, bson.E{Key: "sort", Value: sort})
		if ordered && g.Chance(0.5) {
			args = append(args, bson.E{Key: "limit", Value: 1 + g.R.IntN(20)})
			if g.Chance(0.5) {
				args = append(args, bson.E{Key: "skip", Value: g.R.IntN(10)})
			}
		}
	}
	if projection != nil {
		args = append(args, bson.E{Key: "projection", Value: projection})
	}
	if g.Chance(0.3) {
		args = append(args, bson.E{Key: "batchSize", Value: g.R.IntN(5)})
	}
	return args, ordered
}

// query creates a command of one of several kinds.
func (r *planRound) query() (name string, args bson.D, ordered bool) {
	g := r.g
	grouped := false
	switch g.R.IntN(10) {
	case 0:
		args = bson.D{{Key: "query", Value: g.Filter()}}
		if g.Chance(0.3) {
			args = append(args, bson.E{Key: "skip", Value: g.R.IntN(10)}, bson.E{Key: "limit", Value: g.R.IntN(20)})
		}
		name = "count"
	case 1:
		args = bson.D{{Key: "key", Value: g.Path()}}
		if g.Chance(0.7) {
			args = append(args, bson.E{Key: "query", Value: g.Filter()})
		}
		name, grouped = "distinct", true
	case 2:
		name = "aggregate"
		pipeline := bson.A{bson.D{{Key: "$match", Value: g.Filter()}}}
		if g.Chance(0.5) {
			pipeline = append(pipeline, bson.D{{Key: "$sort", Value: append(g.Sort(), bson.E{Key: "_id", Value: 1})}})
			ordered = true
		}
		if p := g.Projection(); p != nil && g.Chance(0.5) {
			pipeline = append(pipeline, bson.D{{Key: "$project", Value: dropSlice(p)}})
		}
		if g.Chance(0.3) {
			pipeline = append(pipeline, bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$" + g.Path()}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}})
			ordered, grouped = false, true
		}
		args = bson.D{{Key: "pipeline", Value: pipeline}, {Key: "cursor", Value: bson.D{}}}
	default:
		name = "find"
		args, ordered = r.find()
	}
	simple := bson.D{{Key: "locale", Value: "simple"}}
	if c := g.Collation(); grouped {
		args = append(args, bson.E{Key: "collation", Value: simple}) // otherwise it is undefined which of several equal strings is returned
	} else if c != nil {
		args = append(args, bson.E{Key: "collation", Value: c})
	}
	return name, args, ordered
}

// dropSlice removes the parts of find projections that $project does not support.
func dropSlice(p bson.D) bson.D {
	for _, e := range p {
		if d, ok := e.Value.(bson.D); ok && d[0].Key == "$slice" {
			return bson.D{{Key: "a", Value: 1}}
		}
	}
	return p
}

// sameOutcome compares the results of an indexed collection with those of the bare one.
func sameOutcome(got, want outcome, ordered, limited bool) bool {
	switch {
	case parallel(got) || parallel(want):
		return true // some plans need no sort, or stop before they reach the document
	case got.code != 0 || want.code != 0:
		return got.code == want.code || limited
	}
	return querytest.Same(querytest.SortFields(got.docs), querytest.SortFields(want.docs), ordered)
}

func parallel(o outcome) bool { return strings.Contains(o.msg, "parallel arrays") }

func (r *planRound) check() { r.compare(r.query()) }

// compare runs a command on both collections, and with the hint of every index that holds all documents.
func (r *planRound) compare(name string, args bson.D, ordered bool) {
	run := func(coll string, more ...bson.E) outcome {
		return r.outcome(coll, append(append(bson.D{{Key: name, Value: coll}}, args...), more...))
	}
	limited := false
	for _, a := range args {
		limited = limited || a.Key == "limit" || a.Key == "skip"
	}
	want := run(r.bare)
	hints := append([]string{""}, r.hints...)
	for _, h := range hints {
		var more []bson.E
		if h != "" {
			more = append(more, bson.E{Key: "hint", Value: h})
		}
		if got := run(r.coll, more...); !sameOutcome(got, want, ordered, limited) && !(h != "" && got.code == int64(mongoerr.NoQueryExecutionPlans)) {
			text, _ := bson.MarshalExtJSON(append(bson.D{{Key: name, Value: r.coll}}, append(args, more...)...), false, false)
			explained := r.rawDo(bson.D{{Key: "explain", Value: append(append(bson.D{{Key: name, Value: r.coll}}, args...), more...)}, {Key: "verbosity", Value: "queryPlanner"}})
			r.t.Fatalf("%s\nindexes %s\nplan %s\n%s", text, r.indexes, value.Show(value.Lookup(value.Lookup(explained, "queryPlanner").Doc(), "winningPlan")), got.against(want))
		}
	}
}

// between scans an index without arrays from one key to another and compares with the keys computed from the documents.
func (r *planRound) between() {
	if r.g.Arrays > 0 || len(r.hints) == 0 || r.collated {
		return
	}
	name := r.hints[r.g.R.IntN(len(r.hints))]
	spec := r.specs[name]
	key := spec[0].Value.(bson.D)
	for _, e := range append(key[:len(key):len(key)], spec...) {
		if e.Value == "hashed" || e.Key == "collation" {
			return
		}
	}
	all := r.outcome(r.bare, bson.D{{Key: "find", Value: r.bare}})
	keyOf := func(d value.Value) (vals []value.Value) {
		for _, e := range key {
			v := d
			for _, p := range strings.Split(e.Key, ".") {
				v = value.Lookup(v.Doc(), p)
			}
			if v.T == value.Missing {
				v = value.NewNull()
			}
			vals = append(vals, v)
		}
		return vals
	}
	compare := func(a, b []value.Value) int {
		for i := range a {
			if c := value.Compare(a[i], b[i]); c != 0 {
				return c * key[i].Value.(int)
			}
		}
		return 0
	}
	low, high := keyOf(all.docs[r.g.R.IntN(len(all.docs))]), keyOf(all.docs[r.g.R.IntN(len(all.docs))])
	if compare(low, high) >= 0 {
		return
	}
	bound := func(vals []value.Value) bson.Raw {
		var fs []value.Field
		for i, e := range key {
			fs = append(fs, value.F(e.Key, vals[i]))
		}
		return value.Doc(fs...)
	}
	var want outcome
	for _, d := range all.docs {
		if k := keyOf(d); compare(k, low) >= 0 && compare(k, high) < 0 {
			want.docs = append(want.docs, d)
		}
	}
	got := r.outcome(r.coll, bson.D{{Key: "find", Value: r.coll}, {Key: "hint", Value: name}, {Key: "min", Value: bound(low)}, {Key: "max", Value: bound(high)},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}, {Key: "batchSize", Value: r.g.R.IntN(9)}})
	if !querytest.Same(got.docs, want.docs, false) {
		r.t.Fatalf("min %s max %s on %s\n%s", bound(low), bound(high), r.indexes, got.against(want))
	}
}

// write changes the documents of both collections alike, through any plan; it returns false if the indexes refuse a document.
func (r *planRound) write() bool {
	g := r.g
	one := bson.D{{Key: "q", Value: g.Filter()}, {Key: "u", Value: g.Update()}, {Key: "multi", Value: true}}
	cmd := func(coll string) bson.D {
		return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{one}}}
	}
	if g.Chance(0.2) {
		del := bson.D{{Key: "q", Value: append(bson.D{{Key: "v", Value: g.R.IntN(8)}}, g.Filter()...)}, {Key: "limit", Value: 0}}
		cmd = func(coll string) bson.D {
			return bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{del}}}
		}
	}
	reply := r.rawDo(cmd(r.coll))
	if !value.Lookup(reply, "writeErrors").IsMissing() {
		return false
	}
	bare := r.rawDo(cmd(r.bare))
	got := r.outcome(r.coll, bson.D{{Key: "find", Value: r.coll}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}})
	want := r.outcome(r.bare, bson.D{{Key: "find", Value: r.bare}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}})
	if value.Compare(value.Lookup(reply, "n"), value.Lookup(bare, "n")) != 0 || !querytest.Same(got.docs, want.docs, true) {
		text, _ := bson.MarshalExtJSON(cmd(r.coll), false, false)
		r.t.Fatalf("%s\nindexes %s\n%s instead of %s\n%s", text, r.indexes, value.ShowDoc(reply), value.ShowDoc(bare), got.against(want))
	}
	return true
}

// TestIndexPlansAgainstCollectionScans runs random queries over random documents with random indexes: whatever the
// planner chooses, and whatever a hint makes it choose, the result is that of a collection without indexes.
func TestIndexPlansAgainstCollectionScans(t *testing.T) {
	n := newTestNode(t)
	querytest.Rounds(t, 5*time.Second, func(t *testing.T, seed uint64) {
		r := newPlanRound(t, n, seed)
		for n := range 120 {
			r.check()
			if n%10 == 0 {
				r.between()
			}
			if n%20 == 19 && !r.write() {
				break
			}
		}
		n.rawDo(bson.D{{Key: "drop", Value: r.coll}})
		n.rawDo(bson.D{{Key: "drop", Value: r.bare}})
	})
}

// TestOptimisedPipelines runs random pipelines as written and as transformed by the optimiser and the planner.
func TestOptimisedPipelines(t *testing.T) {
	n := newTestNode(t)
	asWritten := func(mode string) {
		if _, err := n.srv.Node.Points.Configure("disablePipelineOptimization", value.NewString(mode), nil); err != nil {
			t.Fatal(err)
		}
	}
	querytest.Rounds(t, 4*time.Second, func(t *testing.T, seed uint64) {
		r := newPlanRound(t, n, seed)
		for range 60 {
			p := r.g.Pipeline(7, r.coll, r.bare)
			cmd := bson.D{{Key: "aggregate", Value: r.coll}, {Key: "pipeline", Value: p.Stages}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 20}}},
				{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}
			got := r.outcome(r.coll, cmd)
			asWritten("alwaysOn")
			want := r.outcome(r.coll, cmd)
			asWritten("off")
			if !sameOutcome(got, want, p.Ordered, p.Cut) {
				text, _ := bson.MarshalExtJSON(cmd, false, false)
				explained := r.rawDo(bson.D{{Key: "explain", Value: cmd}, {Key: "verbosity", Value: "queryPlanner"}})
				t.Fatalf("%s\nindexes %s\n%s\nexplained %s", text, r.indexes, got.against(want), value.ShowDoc(explained))
			}
		}
		n.rawDo(bson.D{{Key: "drop", Value: r.coll}})
		n.rawDo(bson.D{{Key: "drop", Value: r.bare}})
	})
}
