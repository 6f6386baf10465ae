package shardnode

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/querytest"
	"github.com/shoaldb/shoal/query/value"
)

// knobs sets the planner's parameters at random: plans that rarely win do so in some rounds, and cached plans are
// abandoned at once in others.
func (r *planRound) knobs() {
	g := r.g
	r.ok("admin", fmt.Sprintf(`{"setParameter": 1, "internalQueryForceIntersectionPlans": %v, "internalQueryPlannerEnableHashIntersection": %v,
		"internalQueryCacheEvictionRatio": %v, "internalQueryPlanEvaluationWorks": %d, "internalQueryPlanEvaluationMaxResults": %d,
		"internalQueryPlanOrChildrenIndependently": %v, "internalQueryMaxScansToExplode": %d}`,
		g.Chance(0.3), g.Chance(0.5), []float64{10, 10, 1, 0.2}[g.R.IntN(4)], []int{10000, 20, 3}[g.R.IntN(3)], []int{101, 101, 5, 1}[g.R.IntN(4)],
		g.Chance(0.8), []int{200, 3, 0}[g.R.IntN(3)]))
}

// narrow is a selective conjunction that an index can serve well.
func (r *planRound) narrow() bson.D {
	g := r.g
	out := bson.D{}
	for range 1 + g.R.IntN(3) {
		var v any = g.Number()
		switch g.R.IntN(6) {
		case 0:
			v = bson.D{{Key: "$in", Value: bson.A{g.Number(), g.Number(), g.Word()}}}
		case 1:
			v = bson.D{{Key: []string{"$gt", "$gte", "$lt", "$lte"}[g.R.IntN(4)], Value: g.Number()}}
		case 2:
			v = g.Word()
		}
		if path := g.Path(); value.Lookup(mustRaw(out), path).IsMissing() {
			out = append(out, bson.E{Key: path, Value: v})
		}
	}
	return out
}

func mustRaw(d bson.D) []byte {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

// alternatives is a filter that is an $or, or contains one among other conditions.
func (r *planRound) alternatives() bson.D {
	g := r.g
	list := bson.A{}
	for range 2 + g.R.IntN(3) {
		switch {
		case g.Chance(0.2):
			list = append(list, g.Filter())
		case g.Chance(0.15):
			list = append(list, append(r.narrow(), bson.E{Key: "$or", Value: bson.A{r.narrow(), r.narrow()}}))
		default:
			list = append(list, r.narrow())
		}
	}
	out := bson.D{{Key: "$or", Value: list}}
	if g.Chance(0.3) {
		out = append(r.narrow(), out...)
	}
	return out
}

// form is a command over alternatives or a narrow conjunction.
func (r *planRound) form() (name string, args bson.D, ordered bool) {
	g := r.g
	filter := r.alternatives()
	if g.Chance(0.3) {
		filter = r.narrow()
	}
	switch g.R.IntN(8) {
	case 0:
		return "count", bson.D{{Key: "query", Value: filter}}, false
	case 1:
		return "distinct", bson.D{{Key: "key", Value: g.Path()}, {Key: "query", Value: filter}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}, false
	}
	args = bson.D{{Key: "filter", Value: filter}}
	if g.Chance(0.6) {
		ordered = true
		args = append(args, bson.E{Key: "sort", Value: append(g.Sort(), bson.E{Key: "_id", Value: 1 - 2*g.R.IntN(2)})})
		if g.Chance(0.5) {
			args = append(args, bson.E{Key: "limit", Value: 1 + g.R.IntN(12)}, bson.E{Key: "skip", Value: g.R.IntN(5)})
		}
	}
	if p := g.Projection(); p != nil {
		args = append(args, bson.E{Key: "projection", Value: p})
	}
	if c := g.Collation(); c != nil {
		args = append(args, bson.E{Key: "collation", Value: c})
	}
	return "find", append(args, bson.E{Key: "batchSize", Value: g.R.IntN(30)}, bson.E{Key: "allowDiskUse", Value: g.Chance(0.5)}), ordered
}

// ids runs a find and returns the identifiers, in order.
func (r *planRound) ids(coll string, filter bson.D, more ...bson.E) (out []string, code int64) {
	o := r.outcome(coll, append(bson.D{{Key: "find", Value: coll}, {Key: "filter", Value: filter}}, more...))
	for _, d := range o.docs {
		out = append(out, value.Show(value.Lookup(d.Doc(), "_id")))
	}
	return out, o.code
}

func (r *planRound) fail(what string, filter bson.D, got, want any) {
	r.t.Helper()
	text, _ := bson.MarshalExtJSON(filter, false, false)
	r.t.Fatalf("%s %s\nindexes %s\ngot  %v\nwant %v", what, text, r.indexes, got, want)
}

// among keeps the elements that are also among the others.
func among(list, others []string) (out []string) {
	for _, s := range list {
		if slices.Contains(others, s) {
			out = append(out, s)
		}
	}
	return out
}

// special checks searches that a collection without indexes cannot answer: combined with a filter they return what both
// find by themselves, in the order of the search.
func (r *planRound) special() {
	g := r.g
	beside := r.narrow()
	if g.Chance(0.4) {
		beside = r.alternatives()
	}
	search, sort := bson.E{Key: "$text", Value: bson.D{{Key: "$search", Value: []string{"coffee", "cake tea", "run -shoes", `"coffee shop"`}[g.R.IntN(4)]}}}, bson.E{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}
	near := g.Geo && (!g.Text || g.Chance(0.5))
	if near {
		at := bson.A{float64(g.R.IntN(20) - 10), float64(g.R.IntN(20) - 10)}
		sort = bson.E{Key: "batchSize", Value: 10}
		search = bson.E{Key: "geo", Value: bson.D{{Key: "$nearSphere", Value: bson.D{{Key: "$geometry", Value: bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: at}}}, {Key: "$maxDistance", Value: 4e5 + g.R.Float64()*1e6}}}}}
		if g.Chance(0.4) {
			search = bson.E{Key: "xy", Value: bson.D{{Key: "$near", Value: at}, {Key: "$maxDistance", Value: 3 + g.R.Float64()*9}}}
		}
	}
	found, code := r.ids(r.coll, bson.D{search}, sort)
	if code != 0 {
		return // there is no index for it
	}
	all, code := r.ids(r.bare, beside, bson.E{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}})
	if code != 0 {
		return
	}
	want := among(found, all)
	filter := append(slices.Clone(beside), search)
	got, _ := r.ids(r.coll, filter, sort)
	if near { // points at the same distance are in any order
		slices.Sort(got)
		slices.Sort(want)
	}
	if !slices.Equal(got, want) {
		r.fail("search", filter, got, want)
	}
}

// keys checks returnKey and showRecordId of a hinted index against the documents.
func (r *planRound) keys() {
	if len(r.hints) == 0 || r.collated {
		return
	}
	name := r.hints[r.g.R.IntN(len(r.hints))]
	spec := r.specs[name]
	filter := r.narrow()
	simple := bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}
	hint := bson.E{Key: "hint", Value: name}
	want := r.outcome(r.bare, bson.D{{Key: "find", Value: r.bare}, {Key: "filter", Value: filter}, simple})
	shown := r.outcome(r.coll, bson.D{{Key: "find", Value: r.coll}, {Key: "filter", Value: filter}, hint, {Key: "showRecordId", Value: true}, simple})
	var docs []value.Value
	rids := map[string]bool{}
	for _, d := range shown.docs {
		var fields []value.Field
		for k, v := range value.Elements(d.Doc()) {
			if k != "$recordId" {
				fields = append(fields, value.F(k, v))
				continue
			}
			rids[value.Show(v)] = true
		}
		docs = append(docs, value.NewDocument(value.Doc(fields...)))
	}
	if !querytest.Same(docs, want.docs, false) || len(rids) != len(docs) {
		r.fail("showRecordId by "+name, filter, len(docs), len(want.docs))
	}
	key := spec[0].Value.(bson.D)
	if r.g.Arrays > 0 || slices.ContainsFunc(spec, func(e bson.E) bool { return e.Key == "collation" }) || slices.ContainsFunc(key, func(e bson.E) bool { return e.Value == "hashed" }) {
		return
	}
	keys := r.outcome(r.coll, bson.D{{Key: "find", Value: r.coll}, {Key: "filter", Value: filter}, hint, {Key: "returnKey", Value: true}, simple})
	var made []value.Value
	for _, d := range want.docs {
		var fields []value.Field
		for _, e := range key {
			v := d
			for _, p := range strings.Split(e.Key, ".") {
				v = value.Lookup(v.Doc(), p)
			}
			if v.T == value.Array {
				return // an update made it: the document has a key for each element
			}
			if v.IsMissing() {
				v = value.NewNull()
			}
			fields = append(fields, value.F(e.Key, v))
		}
		made = append(made, value.NewDocument(value.Doc(fields...)))
	}
	if !querytest.Same(keys.docs, made, false) {
		r.fail("returnKey of "+name, filter, value.NewArray(value.ArrayOf(keys.docs...)), value.NewArray(value.ArrayOf(made...)))
	}
}

// TestFormsOfPlans runs queries that make the planner's rarer plans, under random server parameters: unions with sorts and
// limits, intersections, merges, covered results, cached plans given up, searches with filters beside them.
func TestFormsOfPlans(t *testing.T) {
	n := newTestNode(t)
	querytest.Rounds(t, 3*time.Second, func(t *testing.T, seed uint64) {
		r := newPlanRound(t, n, seed)
		r.knobs()
		if r.g.Text {
			r.rawDo(bson.D{{Key: "createIndexes", Value: r.coll}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "txt", Value: "text"}}},
				{Key: "name", Value: "words"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}}}})
		}
		for k := range 60 {
			name, args, ordered := r.form()
			for range 1 + 2*r.g.R.IntN(2) { // by trial, by another, from the cache
				r.compare(name, args, ordered)
			}
			switch {
			case k%6 == 0 && (r.g.Geo || r.g.Text):
				r.special()
			case k%6 == 3:
				r.keys()
			case k%20 == 19:
				r.knobs()
				if !r.write() {
					return
				}
			}
		}
		n.rawDo(bson.D{{Key: "drop", Value: r.coll}})
		n.rawDo(bson.D{{Key: "drop", Value: r.bare}})
	})
}
