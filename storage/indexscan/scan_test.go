package indexscan

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/storage/indexkey"
)

type entry struct {
	key, tb []byte
	rid     int
}

// table is a collection in memory, with its indexes.
type table struct {
	docs    [][]byte
	coll    *plan.Collection
	entries map[string][]entry // by the index's name
	specs   map[string]*indexkey.Spec
}

func newTable(t testing.TB, docs [][]byte, indexes []string) *table {
	tb := &table{docs: docs, coll: &plan.Collection{NS: "db.c"}, entries: map[string][]entry{}, specs: map[string]*indexkey.Spec{}}
	for _, js := range indexes {
		spec, err := indexkey.ValidateSpec(valuetest.Doc(t, js), indexkey.Context{})
		if err != nil {
			t.Fatalf("%s: %v", js, err)
		}
		x, err := Describe(spec)
		if err != nil {
			t.Fatal(err)
		}
		o := indexkey.Options{}
		if x.Partial != nil {
			o.Filter = x.Partial.Match
		}
		g, err := indexkey.NewGenerator(spec, o)
		if err != nil {
			t.Fatal(err)
		}
		var set indexkey.KeySet
		var ents []entry
		failed := false
		x.MultikeyPaths = make([]uint64, len(x.Fields))
		for rid, d := range docs {
			if err := g.Keys(d, &set); err != nil {
				failed = true
				break
			}
			for i := range set.Len() {
				ents = append(ents, entry{bytes.Clone(set.Key(i)), bytes.Clone(set.TypeBits(i)), rid})
			}
			for i, m := range set.Multikey {
				x.MultikeyPaths[i] |= m
				x.Multikey = x.Multikey || m != 0
			}
			x.ArrayPaths = append(x.ArrayPaths, set.ArrayPaths...)
		}
		if failed {
			continue // parallel arrays: the index is impossible
		}
		slices.Sort(x.ArrayPaths)
		x.ArrayPaths = slices.Compact(x.ArrayPaths)
		slices.SortStableFunc(ents, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
		tb.coll.Indexes = append(tb.coll.Indexes, x)
		tb.entries[x.Name], tb.specs[x.Name] = ents, spec
	}
	return tb
}

type row struct {
	rid int
	doc []byte
}

// run executes a plan, stage by stage, on whole lists.
func (tb *table) run(t testing.TB, n *plan.Node) (out []row) {
	var in []row
	if len(n.Inputs) == 1 {
		in = tb.run(t, n.Inputs[0])
	}
	keep := func(doc []byte) bool {
		if n.Filter == nil {
			return true
		}
		ok, err := n.Filter.Match(doc)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	switch n.Stage {
	case plan.EOF:
	case plan.CollScan:
		for i, d := range tb.docs {
			if keep(d) {
				out = append(out, row{i, d})
			}
		}
	case plan.ExpressID:
		for i, d := range tb.docs {
			if value.Compare(value.Lookup(d, "_id"), n.Value) == 0 {
				out = append(out, row{i, d})
			}
		}
	case plan.IndexScan, plan.CountScan:
		out = tb.scan(t, n, keep)
	case plan.Fetch:
		for _, r := range in {
			if keep(tb.docs[r.rid]) {
				out = append(out, row{r.rid, tb.docs[r.rid]})
			}
		}
	case plan.Or, plan.SortMerge:
		seen := map[int]bool{}
		for _, i := range n.Inputs {
			for _, r := range tb.run(t, i) {
				if !seen[r.rid] {
					seen[r.rid] = true
					out = append(out, r)
				}
			}
		}
	case plan.AndSorted, plan.AndHash:
		return tb.intersect(t, n)
	default:
		if len(n.Inputs) == 1 {
			return in
		}
		t.Fatalf("the test cannot run stage %s", n.Stage)
	}
	return out
}

// intersect returns the rows that all inputs return.
func (tb *table) intersect(t testing.TB, n *plan.Node) (out []row) {
	count := map[int]int{}
	for _, i := range n.Inputs {
		rows := tb.run(t, i)
		if n.Stage == plan.AndSorted && !slices.IsSortedFunc(rows, func(a, b row) int { return a.rid - b.rid }) {
			t.Fatalf("%s: the rows of an input are not in order", bsontext.Doc(i.Explain(nil)))
		}
		for _, r := range rows {
			if count[r.rid]++; count[r.rid] == len(n.Inputs) {
				out = append(out, r)
			}
		}
	}
	return out
}

// scan walks an index with the bounds' seeks and checks.
func (tb *table) scan(t testing.TB, n *plan.Node, keep func([]byte) bool) (out []row) {
	ents := tb.entries[n.Index.Name]
	b := Compile(n)
	kd := NewKeyDoc(n.Bounds)
	seek, ok := b.Start()
	seen := map[int]bool{}
	for steps := 0; ok; steps++ {
		if steps > 10*len(ents)+10 {
			t.Fatalf("%s: the scan does not move on", bsontext.Doc(n.Explain(nil)))
		}
		i := sort.Search(len(ents), func(i int) bool { return bytes.Compare(ents[i].key, seek) >= 0 })
		step := 1
		if n.Direction < 0 {
			i, step = i-1, -1
		}
		ok = false
	walk:
		for ; i >= 0 && i < len(ents); i += step {
			switch b.Check(ents[i].key) {
			case Done:
				return out
			case Skip:
				seek, ok = b.Next(), true
				break walk
			}
			if seen[ents[i].rid] {
				continue
			}
			doc, good := kd.Doc(ents[i].key, ents[i].tb)
			if !good {
				t.Fatal("broken key")
			}
			if keep(doc) {
				seen[ents[i].rid] = true
				out = append(out, row{ents[i].rid, bytes.Clone(doc)})
			}
		}
	}
	return out
}

var testIndexes = []string{
	`{"key":{"_id":1},"name":"_id_"}`, `{"key":{"a":1},"name":"a"}`, `{"key":{"a":1,"b":-1},"name":"ab"}`, `{"key":{"b":1,"a.x":1,"c":1},"name":"baxc"}`,
	`{"key":{"a.x":1,"a.y":-1},"name":"axay"}`, `{"key":{"c":-1},"name":"c","sparse":true}`, `{"key":{"b":1},"name":"pb","partialFilterExpression":{"c":{"$gt":1}}}`,
	`{"key":{"a":"hashed"},"name":"ah"}`, `{"key":{"$**":1},"name":"wild"}`, `{"key":{"a.x.y":1},"name":"axy"}`, `{"key":{"a.0":1},"name":"a0"}`,
	`{"key":{"b":1,"c":-1,"a":1},"name":"bca"}`,
	`{"key":{"b":1,"$**":1},"name":"cwi","wildcardProjection":{"b":0}}`, `{"key":{"c":1},"name":"pc","partialFilterExpression":{"$or":[{"a":{"$exists":true}},{"b":1}]}}`,
}

func randomValue(r *rand.Rand, depth int) string {
	switch n := r.IntN(14); {
	case n < 5:
		return fmt.Sprint(r.IntN(4))
	case n == 5:
		return fmt.Sprintf("%q", []string{"", "x", "xy", "b"}[r.IntN(4)])
	case n == 6:
		return "null"
	case n == 7:
		return fmt.Sprintf(`{"$numberDouble":"%s"}`, []string{"1.5", "NaN", "-Infinity", "2"}[r.IntN(4)])
	case n == 8:
		return []string{"true", "false", `{"$date":"2020-01-01T00:00:00Z"}`, `{"$minKey":1}`, `{"$maxKey":1}`}[r.IntN(5)]
	case n < 11 && depth > 0:
		var e []string
		for range r.IntN(3) {
			e = append(e, randomValue(r, depth-1))
		}
		return "[" + strings.Join(e, ",") + "]"
	case depth > 0:
		var e []string
		for _, k := range []string{"x", "y", "0"} {
			if r.IntN(3) > 0 {
				e = append(e, fmt.Sprintf("%q:%s", k, randomValue(r, depth-1)))
			}
		}
		return "{" + strings.Join(e, ",") + "}"
	}
	return "7"
}

func randomDoc(r *rand.Rand, id int) string {
	s := fmt.Sprintf(`{"_id":%d`, id)
	for _, k := range []string{"a", "b", "c"} {
		if r.IntN(5) > 0 {
			s += fmt.Sprintf(",%q:%s", k, randomValue(r, 2+r.IntN(2)))
		}
	}
	return s + "}"
}

func randomLeaf(r *rand.Rand) string {
	path := []string{"a", "a", "b", "c", "a.x", "a.y", "a.x.y", "a.0", "_id"}[r.IntN(9)]
	return fmt.Sprintf("%q:%s", path, randomOperators(r))
}

func randomOperators(r *rand.Rand) string {
	v := func() string { return randomValue(r, 1) }
	switch r.IntN(16) {
	case 0, 1, 2:
		return v()
	case 3:
		return fmt.Sprintf(`{"$gt":%s}`, v())
	case 4:
		return fmt.Sprintf(`{"$gte":%s,"$lt":%s}`, v(), v())
	case 5:
		return fmt.Sprintf(`{"$lte":%s}`, v())
	case 6:
		return fmt.Sprintf(`{"$in":[%s,%s,%s]}`, v(), v(), v())
	case 7:
		return fmt.Sprintf(`{"$ne":%s}`, v())
	case 8:
		return fmt.Sprintf(`{"$nin":[%s,%s]}`, v(), v())
	case 9:
		return fmt.Sprintf(`{"$exists":%v}`, r.IntN(2) == 0)
	case 10:
		return fmt.Sprintf(`{"$not":{"$gt":%s}}`, v())
	case 11:
		return fmt.Sprintf(`{"$elemMatch":{"$gte":%s,"$lt":%s}}`, v(), v())
	case 12:
		return fmt.Sprintf(`{"$elemMatch":{"x":%s,"y":{"$gt":%s}}}`, v(), v())
	case 13:
		return fmt.Sprintf(`{"$type":%q}`, []string{"number", "int", "string", "null", "array", "object", "bool"}[r.IntN(7)])
	case 14:
		return []string{`{"$regex":"^x"}`, `{"$regex":"y"}`, `{"$size":1}`, `{"$mod":[2,1]}`}[r.IntN(4)]
	}
	return fmt.Sprintf(`{"$lt":%s}`, v())
}

func randomFilter(r *rand.Rand) string {
	var parts []string
	for range 1 + r.IntN(3) {
		parts = append(parts, "{"+randomLeaf(r)+"}")
	}
	f := `{"$and":[` + strings.Join(parts, ",") + `]}`
	if r.IntN(4) == 0 {
		f = fmt.Sprintf(`{"$and":[%s,{"$or":[{%s},{%s,"$and":[{%s}]}]}]}`, f, randomLeaf(r), randomLeaf(r), randomLeaf(r))
	}
	if r.IntN(5) == 0 {
		f = fmt.Sprintf(`{"$or":[%s,{%s}]}`, f, randomLeaf(r))
	}
	return f
}

// TestPlansAgree runs all candidates of random queries and compares them with the filter itself.
func TestPlansAgree(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 77))
		var docs [][]byte
		scalar := r.IntN(3) == 0 // some collections without arrays, for which other rules apply
		for i := range 40 {
			js := randomDoc(r, i)
			if scalar {
				js = strings.NewReplacer("[", `{"x":`, "]", "}", ",]", "]").Replace(js)
				var d bson.D
				if bson.UnmarshalExtJSON([]byte(js), false, &d) != nil {
					continue
				}
			}
			docs = append(docs, valuetest.Doc(t, js))
		}
		tb := newTable(t, docs, testIndexes)
		for range 60 {
			checkQuery(t, seed, tb, randomFilter(r), r)
		}
	}
}

func checkQuery(t *testing.T, seed uint64, tb *table, filter string, r *rand.Rand) {
	m, err := match.Compile(valuetest.Doc(t, filter), nil)
	if err != nil {
		return
	}
	var want []int
	for i, d := range tb.docs {
		if ok, err := m.Match(d); err != nil {
			t.Fatal(err)
		} else if ok {
			want = append(want, i)
		}
	}
	q := &plan.Query{Filter: m, Count: r.IntN(4) == 0}
	if r.IntN(2) == 0 && !q.Count {
		dir := int32(1 - 2*r.IntN(2))
		q.SortPattern = value.Doc(value.F([]string{"a", "b", "c", "a.x"}[r.IntN(4)], value.NewInt32(dir)))
		q.Sort, _ = plan.ParseSort(q.SortPattern)
	}
	res, err := plan.Plan(q, tb.coll)
	if err != nil {
		t.Fatalf("%s: %v", filter, err)
	}
	for _, n := range res.Candidates {
		var got []int
		for _, row := range tb.run(t, n) {
			got = append(got, row.rid)
		}
		if len(q.Sort) > 0 && !hasStage(n, plan.Sort) && !hasStage(n, plan.SortMerge) {
			checkSorted(t, seed, tb, q, n, got, filter)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d, %s\nplan %s\n got %v\nwant %v%s", seed, filter, bsontext.Doc(n.Explain(nil)), got, want, difference(tb, got, want))
		}
	}
}

func difference(tb *table, got, want []int) (s string) {
	for _, i := range append(slices.Clone(got), want...) {
		if slices.Contains(got, i) != slices.Contains(want, i) {
			s += "\n" + bsontext.Doc(tb.docs[i])
		}
	}
	return s
}

func hasStage(n *plan.Node, s plan.Stage) bool {
	return n.Stage == s || slices.ContainsFunc(n.Inputs, func(i *plan.Node) bool { return hasStage(i, s) })
}

// checkSorted compares the order of results with that of sort keys.
func checkSorted(t *testing.T, seed uint64, tb *table, q *plan.Query, n *plan.Node, got []int, filter string) {
	spec, _ := indexkey.ParseSpec(value.Doc(value.F("key", value.NewDocument(q.SortPattern))))
	g, _ := indexkey.NewGenerator(spec, indexkey.Options{})
	var before []byte
	for _, rid := range got {
		var set indexkey.KeySet
		if err := g.Keys(tb.docs[rid], &set); err != nil {
			t.Fatal(err)
		}
		if before != nil && bytes.Compare(before, set.Key(0)) > 0 {
			t.Fatalf("seed %d, %s sorted by %s: plan %s gives %s too late", seed, filter, bsontext.Doc(q.SortPattern), bsontext.Doc(n.Explain(nil)), bsontext.Doc(tb.docs[rid]))
		}
		before = bytes.Clone(set.Key(0))
	}
}

func BenchmarkCheck(b *testing.B) {
	spec, _ := indexkey.ParseSpec(valuetest.Doc(b, `{"key":{"a":1,"b":1}}`))
	x, err := Describe(spec)
	if err != nil {
		b.Fatal(err)
	}
	m, _ := match.Compile(valuetest.Doc(b, `{"a":{"$in":[1,5,9]},"b":{"$gt":3}}`), nil)
	res, err := plan.Plan(&plan.Query{Filter: m}, &plan.Collection{Indexes: []*plan.Index{x}})
	if err != nil {
		b.Fatal(err)
	}
	scan := res.Winner().Inputs[0]
	g, _ := indexkey.NewGenerator(spec, indexkey.Options{})
	var set indexkey.KeySet
	g.Keys(valuetest.Doc(b, `{"a":5,"b":77}`), &set)
	bounds := Compile(scan)
	b.ReportAllocs()
	for b.Loop() {
		if bounds.Check(set.Key(0)) != Inside {
			b.Fatal("not inside")
		}
	}
}
