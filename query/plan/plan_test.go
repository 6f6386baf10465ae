package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// index reads {key: …, sparse: …, partial: …, multikey: ["a"]} into a description.
func index(t testing.TB, js string) *Index {
	doc := valuetest.Doc(t, js)
	x := &Index{KeyPattern: value.Lookup(doc, "key").Doc(), Version: 2, MultikeyPaths: []uint64{}}
	var name []string
	multi := value.Values(value.Lookup(doc, "multikey").Doc())
	for k, v := range value.Elements(x.KeyPattern) {
		f := Field{Path: k, Desc: v.AsFloat64() < 0}
		switch {
		case v.T == value.String:
			f.Kind, x.Kind = Hashed, Hashed
		case strings.HasSuffix(k, "$**"):
			f.Kind, x.Kind = Wildcard, Wildcard
			x.Covers, x.CoversBelow = func(path string) bool { return path != "_id" }, func(string) bool { return true }
		}
		x.Fields = append(x.Fields, f)
		mask := uint64(0)
		for _, m := range multi {
			if k == m.Str() || strings.HasPrefix(k, m.Str()+".") {
				mask |= 1 << uint(strings.Count(m.Str(), "."))
				x.Multikey = true
			}
		}
		x.MultikeyPaths = append(x.MultikeyPaths, mask)
		name = append(name, k, strings.Trim(bsontext.Value(v), `"`))
	}
	x.Name = strings.Join(name, "_")
	x.IsID = x.Name == "_id_1"
	x.Sparse, x.Unique, x.Hidden = value.Lookup(doc, "sparse").Truthy(), value.Lookup(doc, "unique").Truthy(), value.Lookup(doc, "hidden").Truthy()
	if p := value.Lookup(doc, "partial"); p.T == value.Document {
		m, err := match.Compile(p.Doc(), nil)
		if err != nil {
			t.Fatal(err)
		}
		x.Partial = m
	}
	return x
}

func query(t testing.TB, js string) *Query {
	doc := valuetest.Doc(t, js)
	q := &Query{Hint: value.Lookup(doc, "hint")}
	if f := value.Lookup(doc, "filter"); f.T == value.Document {
		m, err := match.Compile(f.Doc(), &match.Options{Derive: true})
		if err != nil {
			t.Fatal(err)
		}
		q.Filter = m
	}
	if s := value.Lookup(doc, "sort"); s.T == value.Document {
		q.SortPattern = s.Doc()
		q.Sort, _ = ParseSort(s.Doc())
	}
	if p := value.Lookup(doc, "projection"); p.T == value.Document {
		q.Projection = &Projection{Raw: p.Doc(), Simple: true, Inclusion: true}
		for k, v := range value.Elements(p.Doc()) {
			if v.Truthy() {
				q.Projection.Paths = append(q.Projection.Paths, k)
			}
		}
		if value.Lookup(p.Doc(), "_id").T == value.Missing {
			q.Projection.Paths = append(q.Projection.Paths, "_id")
		}
	}
	q.Skip, _ = value.Lookup(doc, "skip").AsInt64()
	q.Limit, _ = value.Lookup(doc, "limit").AsInt64()
	q.Count = value.Lookup(doc, "count").Truthy()
	q.Distinct = value.Lookup(doc, "distinct").Str()
	q.ShardFilter = value.Lookup(doc, "shard").Truthy()
	for _, path := range value.Values(value.Lookup(doc, "shardKey").Doc()) {
		q.ShardFilter, q.ShardKey = true, append(q.ShardKey, path.Str())
	}
	q.NoExpress = value.Lookup(doc, "noExpress").Truthy()
	if v := value.Lookup(doc, "min"); v.T == value.Document {
		q.Min = v.Doc()
	}
	if v := value.Lookup(doc, "max"); v.T == value.Document {
		q.Max = v.Doc()
	}
	return q
}

// brief prints a plan in one line.
func brief(n *Node) string {
	s := n.Stage.String()
	if n.Filter != nil {
		s += bsontext.Doc(n.Filter.Serialize())
	}
	switch n.Stage {
	case IndexScan, CountScan, DistinctScan:
		s += " " + n.Index.Name
		if n.Direction < 0 {
			s += " backward"
		}
		for k, v := range value.Elements(n.bounds()) {
			s += " " + k + ":"
			if v.T == value.Document {
				s += bsontext.Value(v)
				continue
			}
			for _, e := range value.Values(v.Doc()) {
				s += e.Str()
			}
		}
	case Sort:
		s += fmt.Sprintf(" limit %d", n.Limit)
	}
	var in []string
	for _, i := range n.Inputs {
		in = append(in, brief(i))
	}
	switch len(in) {
	case 0:
		return s
	case 1:
		return s + " < " + in[0]
	}
	return s + " < (" + strings.Join(in, " | ") + ")"
}

func TestPlans(t *testing.T) {
	for _, g := range planCases {
		c := &Collection{NS: "db.c"}
		for _, x := range append([]string{`{"key":{"_id":1}}`}, g.indexes...) {
			c.Indexes = append(c.Indexes, index(t, x))
		}
		for _, k := range g.cases {
			n, err := first(query(t, k.query), c)
			got := ""
			if err != nil {
				got = fmt.Sprintf("%d %s", mongoerr.CodeOf(err), mongoerr.From(err).Message)
			} else {
				got = brief(n)
			}
			if got != k.want {
				t.Errorf("%v %s:\n got %s\nwant %s", g.indexes, k.query, got, k.want)
			}
		}
	}
}

// first returns the first plan of a query, and of each branch of a query that is planned by branches.
func first(q *Query, c *Collection) (*Node, error) {
	r, err := Plan(q, c)
	if err != nil {
		return nil, err
	}
	if !q.Rooted() {
		return r.Winner(), nil
	}
	var branches []*Node
	for _, b := range q.Branches() {
		one, err := Plan(b, c)
		if err != nil || one.Winner().ReadsAll() {
			return Subplan(r.Winner()), err
		}
		branches = append(branches, one.Winner())
	}
	n, _ := Assemble(q, c, branches)
	return n, nil
}

type planCase struct{ query, want string }

var planCases = []struct {
	indexes []string
	cases   []planCase
}{
	{[]string{`{"key":{"a":1},"multikey":["a"]}`, `{"key":{"b":1},"sparse":true}`, `{"key":{"c":"hashed"}}`, `{"key":{"d.0":1}}`}, []planCase{
		{`{"filter":{"$expr":{"$eq":["$a",5]}}}`, `COLLSCAN{ $and: [ { $expr: { $eq: [ "$a", { $const: 5 } ] } }, { a: { $_internalExprEq: 5 } } ] }`},
		{`{"filter":{"$expr":{"$gt":["$b",5]}}}`, `FETCH{ $expr: { $gt: [ "$b", { $const: 5 } ] } } < IXSCAN b_1 b:(5, MaxKey]`},
		{`{"filter":{"$expr":{"$lt":["$b",5]}}}`, `COLLSCAN{ $and: [ { $expr: { $lt: [ "$b", { $const: 5 } ] } }, { b: { $_internalExprLt: 5 } } ] }`},
		{`{"filter":{"$expr":{"$eq":["$b",null]}}}`, `COLLSCAN{ $and: [ { $expr: { $eq: [ "$b", { $const: null } ] } }, { b: { $_internalExprEq: null } } ] }`},
		{`{"filter":{"$expr":{"$eq":["$d.0",5]}}}`, `COLLSCAN{ $expr: { $eq: [ "$d.0", { $const: 5 } ] } }`},
	}},
	{[]string{`{"key":{"a":1}}`}, []planCase{
		{`{}`, `COLLSCAN`},
		{`{"filter":{"b":1}}`, `COLLSCAN{ b: { $eq: 1 } }`},
		{`{"filter":{"_id":5}}`, `EXPRESS_IXSCAN`},
		{`{"filter":{"_id":5},"projection":{"a":1}}`, `EXPRESS_IXSCAN`},
		{`{"filter":{"_id":5},"sort":{"a":1}}`, `SORT limit 0 < FETCH < IXSCAN _id_1 _id:[5, 5]`},
		{`{"filter":{"_id":5,"b":1}}`, `FETCH{ b: { $eq: 1 } } < IXSCAN _id_1 _id:[5, 5]`},
		{`{"filter":{"a":5}}`, `FETCH < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"$expr":{"$eq":["$a",5]}}}`, `FETCH{ $expr: { $eq: [ "$a", { $const: 5 } ] } } < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"$expr":{"$lt":[5,"$a"]}}}`, `FETCH{ $expr: { $lt: [ { $const: 5 }, "$a" ] } } < IXSCAN a_1 a:(5, MaxKey]`},
		{`{"filter":{"$expr":{"$lt":["$a",5]}}}`, `FETCH{ $expr: { $lt: [ "$a", { $const: 5 } ] } } < IXSCAN a_1 a:[MinKey, 5)`},
		{`{"filter":{"$expr":{"$lt":["$a",null]}}}`, `FETCH{ $expr: { $lt: [ "$a", { $const: null } ] } } < IXSCAN a_1 a:[MinKey, null]`},
		{`{"filter":{"$expr":{"$gte":["$a",{"$add":[2,3]}]},"a":{"$lt":9}}}`, `FETCH{ $expr: { $gte: [ "$a", { $const: 5 } ] } } < IXSCAN a_1 a:[5, 9)`},
		{`{"filter":{"$expr":{"$and":[{"$gt":["$a",1]},{"$eq":["$b",2]},{"$ne":["$c",3]}]}}}`, `FETCH{ $and: [ { $expr: { $and: [ { $gt: [ "$a", { $const: 1 } ] }, { $eq: [ "$b", { $const: 2 } ] }, { $ne: [ "$c", { $const: 3 } ] } ] } }, { b: { $_internalExprEq: 2 } } ] } < IXSCAN a_1 a:(1, MaxKey]`},
		{`{"filter":{"$expr":{"$or":[{"$eq":["$a",1]},{"$eq":["$_id",2]}]}}}`, `FETCH{ $expr: { $or: [ { $eq: [ "$a", { $const: 1 } ] }, { $eq: [ "$_id", { $const: 2 } ] } ] } } < OR < (IXSCAN _id_1 _id:[2, 2] | IXSCAN a_1 a:[1, 1])`},
		{`{"filter":{"$expr":{"$or":[{"$eq":["$a",1]},{"$ne":["$_id",2]}]}}}`, `COLLSCAN{ $expr: { $or: [ { $eq: [ "$a", { $const: 1 } ] }, { $ne: [ "$_id", { $const: 2 } ] } ] } }`},
		{`{"filter":{"$expr":{"$eq":["$a",[1]]}}}`, `COLLSCAN{ $expr: { $eq: [ "$a", { $const: [ 1 ] } ] } }`},
		{`{"filter":{"$expr":{"$eq":["$a","$b"]}}}`, `COLLSCAN{ $expr: { $eq: [ "$a", "$b" ] } }`},
		{`{"filter":{"a":5},"shard":true}`, `SHARDING_FILTER < FETCH < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":5},"shardKey":["a"]}`, `FETCH < SHARDING_FILTER < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":5},"shardKey":["b"]}`, `SHARDING_FILTER < FETCH < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":5},"shardKey":["a","b"]}`, `SHARDING_FILTER < FETCH < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":5,"b":1},"shardKey":["a"]}`, `FETCH{ b: { $eq: 1 } } < SHARDING_FILTER < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":{"$gt":5}},"sort":{"b":1},"limit":2,"shardKey":["a"]}`, `SORT limit 2 < FETCH < SHARDING_FILTER < IXSCAN a_1 a:(5, inf.0]`},
		{`{"filter":{"a":5},"projection":{"a":1,"_id":0},"shardKey":["a"]}`, `PROJECTION_COVERED < SHARDING_FILTER < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":5},"projection":{"a":1,"_id":0},"shard":true}`, `PROJECTION_SIMPLE < SHARDING_FILTER < FETCH < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":5},"count":true,"shardKey":["a"]}`, `COUNT < SHARDING_FILTER < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":5},"count":true,"shard":true}`, `COUNT < SHARDING_FILTER < FETCH < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":{"$gt":5}}}`, `FETCH < IXSCAN a_1 a:(5, inf.0]`},
		{`{"filter":{"a":{"$lte":5}}}`, `FETCH < IXSCAN a_1 a:[-inf.0, 5]`},
		{`{"filter":{"a":{"$gt":1,"$lt":5}}}`, `FETCH < IXSCAN a_1 a:(1, 5)`},
		{`{"filter":{"a":{"$gt":5,"$lt":1}}}`, `FETCH < IXSCAN a_1 a:`},
		{`{"filter":{"a":{"$gte":"x"}}}`, `FETCH < IXSCAN a_1 a:["x", {})`},
		{`{"filter":{"a":{"$lt":"x"}}}`, `FETCH < IXSCAN a_1 a:["", "x")`},
		{`{"filter":{"a":{"$in":[3,1]}}}`, `FETCH < IXSCAN a_1 a:[1, 1][3, 3]`},
		{`{"filter":{"a":{"$ne":5}}}`, `FETCH < IXSCAN a_1 a:[MinKey, 5)(5, MaxKey]`},
		{`{"filter":{"a":{"$nin":[5,7]}}}`, `FETCH < IXSCAN a_1 a:[MinKey, 5)(5, 7)(7, MaxKey]`},
		{`{"filter":{"a":{"$not":{"$gt":5}}}}`, `FETCH{ a: { $not: { $gt: 5 } } } < IXSCAN a_1 a:[MinKey, 5](inf.0, MaxKey]`},
		{`{"filter":{"a":null}}`, `FETCH{ a: { $eq: null } } < IXSCAN a_1 a:[null, null]`},
		{`{"filter":{"a":{"$ne":null}}}`, `FETCH{ a: { $not: { $eq: null } } } < IXSCAN a_1 a:[MinKey, null)(null, MaxKey]`},
		{`{"filter":{"a":{"$exists":false}}}`, `FETCH{ a: { $not: { $exists: true } } } < IXSCAN a_1 a:[null, null]`},
		{`{"filter":{"a":{"$exists":true}}}`, `FETCH{ a: { $exists: true } } < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"filter":{"a":{"$regex":"^abc"}}}`, `FETCH < IXSCAN a_1 a:["abc", "abd")[/^abc/, /^abc/]`},
		{`{"filter":{"a":{"$regex":"abc"}}}`, `FETCH < IXSCAN{ a: { $regex: "abc" } } a_1 a:["", {})[/abc/, /abc/]`},
		{`{"filter":{"a":[1,2]}}`, `FETCH{ a: { $eq: [ 1, 2 ] } } < IXSCAN a_1 a:[1, 1][[ 1, 2 ], [ 1, 2 ]]`},
		{`{"filter":{"a":5,"b":{"$gt":1}}}`, `FETCH{ b: { $gt: 1 } } < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":{"$elemMatch":{"$gt":1,"$lt":5}}}}`, `FETCH{ a: { $elemMatch: { $lt: 5, $gt: 1 } } } < IXSCAN a_1 a:(1, 5)`},
		{`{"sort":{"a":1}}`, `FETCH < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"sort":{"a":-1},"limit":3,"skip":2}`, `LIMIT < SKIP < FETCH < IXSCAN a_1 backward a:[MaxKey, MinKey]`},
		{`{"sort":{"b":1},"limit":3,"skip":2}`, `SKIP < SORT limit 5 < COLLSCAN`},
		{`{"filter":{"a":{"$gt":1}},"sort":{"a":-1}}`, `FETCH < IXSCAN a_1 backward a:[inf.0, 1)`},
		{`{"filter":{"a":{"$gt":1}},"sort":{"b":-1}}`, `SORT limit 0 < FETCH < IXSCAN a_1 a:(1, inf.0]`},
		{`{"filter":{"a":1},"projection":{"a":1,"_id":0}}`, `PROJECTION_COVERED < IXSCAN a_1 a:[1, 1]`},
		{`{"filter":{"a":1},"projection":{"a":1}}`, `PROJECTION_SIMPLE < FETCH < IXSCAN a_1 a:[1, 1]`},
		{`{"filter":{"a":1},"count":true}`, `COUNT < COUNT_SCAN a_1 a:[1, 1]`},
		{`{"filter":{"a":{"$in":[1,2]}},"count":true}`, `COUNT < IXSCAN a_1 a:[1, 1][2, 2]`},
		{`{"filter":{"b":1},"count":true}`, `COUNT < COLLSCAN{ b: { $eq: 1 } }`},
		{`{"count":true}`, `COUNT < RECORD_STORE_FAST_COUNT`},
		{`{"distinct":"a"}`, `PROJECTION_COVERED < DISTINCT_SCAN a_1 a:[MinKey, MaxKey]`},
		{`{"distinct":"a","filter":{"a":{"$gt":3}}}`, `PROJECTION_COVERED < DISTINCT_SCAN a_1 a:(3, inf.0]`},
		{`{"distinct":"b"}`, `COLLSCAN`},
		{`{"hint":"a_1"}`, `FETCH < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"filter":{"b":2},"hint":{"a":1}}`, `FETCH{ b: { $eq: 2 } } < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"filter":{"a":2},"hint":{"$natural":-1}}`, `COLLSCAN{ a: { $eq: 2 } }`},
		{`{"hint":"nope"}`, "2 error processing query: ns=db.cTree: $and\nSort: {}\nProj: {}\n planner returned error :: caused by :: hint provided does not correspond to an existing index"},
		{`{"filter":{"a":1,"b":{"$not":{"$in":[1,"x"]}},"$or":[{"c":{"$exists":true}},{"d":{"$gt":5}}]},"hint":"nope","limit":3}`, `2 error processing query: ns=db.c limit=3Tree: $and
    $or
        d $gt 5
        c exists
    a $eq 1
    $not
        b $in [ 1 "x" ]
Sort: {}
Proj: {}
 planner returned error :: caused by :: hint provided does not correspond to an existing index`},
		{`{"filter":{"$or":[{"a":1},{"_id":2}]}}`, `SUBPLAN < FETCH < OR < (IXSCAN _id_1 _id:[2, 2] | IXSCAN a_1 a:[1, 1])`},
		{`{"filter":{"$or":[{"a":1},{"b":2}]}}`, `SUBPLAN < COLLSCAN{ $or: [ { a: { $eq: 1 } }, { b: { $eq: 2 } } ] }`},
		{`{"filter":{"$or":[{"a":1,"b":2},{"_id":2}]}}`,
			`SUBPLAN < FETCH < OR < (FETCH{ b: { $eq: 2 } } < IXSCAN a_1 a:[1, 1] | IXSCAN _id_1 _id:[2, 2])`},
		{`{"filter":{"$or":[{"a":1,"b":2},{"_id":2,"c":3}]}}`,
			`SUBPLAN < OR < (FETCH{ c: { $eq: 3 } } < IXSCAN _id_1 _id:[2, 2] | FETCH{ b: { $eq: 2 } } < IXSCAN a_1 a:[1, 1])`},
		{`{"filter":{"$or":[{"a":1},{"a":{"$gt":5}}]}}`, `SUBPLAN < FETCH < IXSCAN a_1 a:[1, 1](5, inf.0]`},
		{`{"filter":{"$or":[{"a":1},{"_id":2}]},"count":true}`, `COUNT < SUBPLAN < OR < (IXSCAN _id_1 _id:[2, 2] | IXSCAN a_1 a:[1, 1])`},
		{`{"filter":{"$or":[{"a":1},{"_id":2}]},"sort":{"b":1},"limit":2,"projection":{"b":1}}`,
			`SUBPLAN < PROJECTION_SIMPLE < SORT limit 2 < FETCH < OR < (IXSCAN _id_1 _id:[2, 2] | IXSCAN a_1 a:[1, 1])`},
		{`{"filter":{"$or":[{"a":1},{"_id":2}]},"hint":"a_1"}`, `FETCH{ $or: [ { _id: { $eq: 2 } }, { a: { $eq: 1 } } ] } < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"filter":{"$or":[{"a":1,"$or":[{"a":3},{"b":1}]},{"b":2,"$or":[{"_id":3},{"a":5}]}]}}`,
			`SUBPLAN < OR < (FETCH{ b: { $eq: 2 } } < OR < (IXSCAN _id_1 _id:[3, 3] | IXSCAN a_1 a:[5, 5]) | ` +
				`FETCH{ $or: [ { a: { $eq: 3 } }, { b: { $eq: 1 } } ] } < IXSCAN a_1 a:[1, 1])`},
		{`{"filter":{"a":{"$mod":[2,1]}}}`, `FETCH < IXSCAN{ a: { $mod: [ 2, 1 ] } } a_1 a:[nan.0, inf.0]`},
		{`{"filter":{"a":{"$type":"string"}}}`, `FETCH < IXSCAN{ a: { $type: [ 2 ] } } a_1 a:["", {})`},
		{`{"filter":{"a":true}}`, `FETCH < IXSCAN a_1 a:[true, true]`},
		{`{"filter":{"$alwaysFalse":1}}`, `EOF`},
		{`{"min":{"a":1}}`, `51173 When using min()/max() a hint of which index to use must be provided`},
		{`{"min":{"a":1},"max":{"a":5},"hint":{"a":1}}`, `FETCH < IXSCAN a_1 startKey:{ a: 1 } endKey:{ a: 5 }`},
		{`{"min":{"a":5},"max":{"a":1},"hint":{"a":1}}`, `51175 The value provided for min must be less than the value provided for max`},
	}},
	{[]string{`{"key":{"a":1,"b":1,"c":-1}}`}, []planCase{
		{`{"filter":{"a":1,"b":{"$gt":2}}}`, `FETCH < IXSCAN a_1_b_1_c_-1 a:[1, 1] b:(2, inf.0] c:[MaxKey, MinKey]`},
		{`{"filter":{"a":1,"c":{"$gt":2}}}`, `FETCH < IXSCAN a_1_b_1_c_-1 a:[1, 1] b:[MinKey, MaxKey] c:[inf.0, 2)`},
		{`{"filter":{"b":1}}`, `COLLSCAN{ b: { $eq: 1 } }`},
		{`{"filter":{"a":1},"sort":{"b":-1}}`, `FETCH < IXSCAN a_1_b_1_c_-1 backward a:[1, 1] b:[MaxKey, MinKey] c:[MinKey, MaxKey]`},
		{`{"filter":{"a":1},"sort":{"b":1,"c":-1}}`, `FETCH < IXSCAN a_1_b_1_c_-1 a:[1, 1] b:[MinKey, MaxKey] c:[MaxKey, MinKey]`},
		{`{"filter":{"a":1},"sort":{"b":1,"c":1}}`, `SORT limit 0 < FETCH < IXSCAN a_1_b_1_c_-1 a:[1, 1] b:[MinKey, MaxKey] c:[MaxKey, MinKey]`},
		{`{"filter":{"a":1,"b":3},"sort":{"a":1,"c":1}}`, `FETCH < IXSCAN a_1_b_1_c_-1 backward a:[1, 1] b:[3, 3] c:[MinKey, MaxKey]`},
		{`{"filter":{"a":{"$in":[1,2]}},"sort":{"b":1}}`,
			`FETCH < SORT_MERGE < (IXSCAN a_1_b_1_c_-1 a:[1, 1] b:[MinKey, MaxKey] c:[MaxKey, MinKey] | IXSCAN a_1_b_1_c_-1 a:[2, 2] b:[MinKey, MaxKey] c:[MaxKey, MinKey])`},
		{`{"filter":{"a":{"$gt":1}},"sort":{"b":1}}`, `SORT limit 0 < FETCH < IXSCAN a_1_b_1_c_-1 a:(1, inf.0] b:[MinKey, MaxKey] c:[MaxKey, MinKey]`},
		{`{"filter":{"a":1},"projection":{"_id":0,"b":1,"c":1},"sort":{"c":1}}`,
			`PROJECTION_SIMPLE < SORT limit 0 < FETCH < IXSCAN a_1_b_1_c_-1 a:[1, 1] b:[MinKey, MaxKey] c:[MaxKey, MinKey]`},
		{`{"filter":{"a":1,"b":{"$regex":"x"}}}`, `FETCH < IXSCAN{ b: { $regex: "x" } } a_1_b_1_c_-1 a:[1, 1] b:["", {})[/x/, /x/] c:[MaxKey, MinKey]`},
		{`{"filter":{"a":1,"b":2,"c":3},"count":true}`, `COUNT < COUNT_SCAN a_1_b_1_c_-1 a:[1, 1] b:[2, 2] c:[3, 3]`},
		{`{"filter":{"a":1,"$or":[{"b":2},{"b":{"$gt":7}}]}}`,
			`FETCH{ a: { $eq: 1 } } < OR < (IXSCAN a_1_b_1_c_-1 a:[1, 1] b:[2, 2] c:[MaxKey, MinKey] | IXSCAN a_1_b_1_c_-1 a:[1, 1] b:(7, inf.0] c:[MaxKey, MinKey])`},
	}},
	{[]string{`{"key":{"a":1,"c":1}}`, `{"key":{"b":1,"c":1}}`}, []planCase{
		{`{"filter":{"$or":[{"a":1},{"b":2}]},"sort":{"c":1}}`,
			`SUBPLAN < FETCH < SORT_MERGE < (IXSCAN a_1_c_1 a:[1, 1] c:[MinKey, MaxKey] | IXSCAN b_1_c_1 b:[2, 2] c:[MinKey, MaxKey])`},
		{`{"filter":{"$or":[{"a":{"$in":[1,2]},"d":1},{"b":2}]},"sort":{"c":-1}}`,
			`SUBPLAN < FETCH < SORT_MERGE < (FETCH{ d: { $eq: 1 } } < IXSCAN a_1_c_1 backward a:[1, 1] c:[MaxKey, MinKey] | ` +
				`FETCH{ d: { $eq: 1 } } < IXSCAN a_1_c_1 backward a:[2, 2] c:[MaxKey, MinKey] | IXSCAN b_1_c_1 backward b:[2, 2] c:[MaxKey, MinKey])`},
		{`{"filter":{"$or":[{"a":1,"c":1},{"b":2}]},"projection":{"c":1,"_id":0}}`,
			`SUBPLAN < PROJECTION_COVERED < OR < (IXSCAN a_1_c_1 a:[1, 1] c:[1, 1] | IXSCAN b_1_c_1 b:[2, 2] c:[MinKey, MaxKey])`},
		{`{"filter":{"a":{"$in":[1,2]},"d":1},"sort":{"c":1}}`,
			`SORT_MERGE < (FETCH{ d: { $eq: 1 } } < IXSCAN a_1_c_1 a:[1, 1] c:[MinKey, MaxKey] | FETCH{ d: { $eq: 1 } } < IXSCAN a_1_c_1 a:[2, 2] c:[MinKey, MaxKey])`},
	}},
	{[]string{`{"key":{"a":1},"multikey":["a"]}`}, []planCase{
		{`{"filter":{"a":5}}`, `FETCH < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":{"$gt":1,"$lt":5}}}`, `FETCH{ a: { $gt: 1 } } < IXSCAN a_1 a:[-inf.0, 5)`},
		{`{"filter":{"a":{"$elemMatch":{"$gt":1,"$lt":5}}}}`, `FETCH{ a: { $elemMatch: { $lt: 5, $gt: 1 } } } < IXSCAN a_1 a:(1, 5)`},
		{`{"filter":{"a":{"$ne":5}}}`, `FETCH{ a: { $not: { $eq: 5 } } } < IXSCAN a_1 a:[MinKey, 5)(5, MaxKey]`},
		{`{"filter":{"a":{"$ne":null}}}`, `COLLSCAN{ a: { $not: { $eq: null } } }`},
		{`{"filter":{"a":5},"projection":{"a":1,"_id":0}}`, `PROJECTION_SIMPLE < FETCH < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":{"$gt":5}},"sort":{"a":1}}`, `SORT limit 0 < FETCH < IXSCAN a_1 a:(5, inf.0]`},
		{`{"sort":{"a":1}}`, `FETCH < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"filter":{"a":5},"count":true}`, `COUNT < IXSCAN a_1 a:[5, 5]`},
	}},
	{[]string{`{"key":{"a.b":1,"a.c":1},"multikey":["a"]}`}, []planCase{
		{`{"filter":{"a.b":1,"a.c":2}}`, `FETCH{ a.c: { $eq: 2 } } < IXSCAN a.b_1_a.c_1 a.b:[1, 1] a.c:[MinKey, MaxKey]`},
		{`{"filter":{"a":{"$elemMatch":{"b":1,"c":2}}}}`,
			`FETCH{ a: { $elemMatch: { $and: [ { b: { $eq: 1 } }, { c: { $eq: 2 } } ] } } } < IXSCAN a.b_1_a.c_1 a.b:[1, 1] a.c:[2, 2]`},
		{`{"filter":{"a":{"$elemMatch":{"b":{"$gt":1,"$lt":5}}}}}`,
			`FETCH{ a: { $elemMatch: { $and: [ { b: { $lt: 5 } }, { b: { $gt: 1 } } ] } } } < IXSCAN a.b_1_a.c_1 a.b:(1, 5) a.c:[MinKey, MaxKey]`},
	}},
	{[]string{`{"key":{"a":1,"b":1},"multikey":["b"]}`}, []planCase{
		{`{"filter":{"a":{"$gt":1,"$lt":9},"b":2}}`, `FETCH < IXSCAN a_1_b_1 a:(1, 9) b:[2, 2]`},
		{`{"filter":{"a":3},"sort":{"b":1}}`, `FETCH < IXSCAN a_1_b_1 a:[3, 3] b:[MinKey, MaxKey]`},
		{`{"filter":{"a":3},"projection":{"a":1,"_id":0}}`, `PROJECTION_COVERED < IXSCAN a_1_b_1 a:[3, 3] b:[MinKey, MaxKey]`},
	}},
	{[]string{`{"key":{"a":1},"sparse":true}`, `{"key":{"z":1},"hidden":true}`}, []planCase{
		{`{"filter":{"a":5}}`, `FETCH < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":null}}`, `COLLSCAN{ a: { $eq: null } }`},
		{`{"filter":{"a":{"$exists":false}}}`, `COLLSCAN{ a: { $not: { $exists: true } } }`},
		{`{"filter":{"a":{"$ne":5}}}`, `COLLSCAN{ a: { $not: { $eq: 5 } } }`},
		{`{"filter":{"a":{"$exists":true}}}`, `FETCH < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"sort":{"a":1}}`, `SORT limit 0 < COLLSCAN`},
		{`{"filter":{"a":null},"hint":"a_1"}`, `FETCH{ a: { $eq: null } } < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"sort":{"a":1},"hint":"a_1"}`, `FETCH < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"filter":{"z":1}}`, `COLLSCAN{ z: { $eq: 1 } }`},
	}},
	{[]string{`{"key":{"a":1},"partial":{"b":{"$gt":5}}}`}, []planCase{
		{`{"filter":{"a":5}}`, `COLLSCAN{ a: { $eq: 5 } }`},
		{`{"filter":{"a":5,"b":7}}`, `FETCH{ b: { $eq: 7 } } < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":5,"b":{"$gte":5}}}`, `COLLSCAN{ $and: [ { a: { $eq: 5 } }, { b: { $gte: 5 } } ] }`},
		{`{"filter":{"a":5,"b":{"$in":[7,8]}}}`, `FETCH{ b: { $in: [ 7, 8 ] } } < IXSCAN a_1 a:[5, 5]`},
		{`{"filter":{"a":5},"hint":"a_1"}`, `FETCH{ a: { $eq: 5 } } < IXSCAN a_1 a:[MinKey, MaxKey]`},
		{`{"count":true,"hint":"a_1"}`, `COUNT < COUNT_SCAN a_1 a:[MinKey, MaxKey]`},
	}},
	// An object mapper extracts the field's name from between the namespace and the rest of the message, to create the index.
	{nil, []planCase{
		{`{"filter":{"location":{"$nearSphere":[1,2],"$maxDistance":3.14}},"limit":100}`,
			"291 error processing query: ns=db.c limit=100Tree: GEONEAR  field=location maxdist=3.14 isNearSphere=1\nSort: {}\nProj: {}\n planner returned error :: caused by :: unable to find index for $geoNear query"},
		{`{"filter":{"a":1,"loc":{"$near":{"$geometry":{"type":"Point","coordinates":[1,2]}}}}}`,
			"291 error processing query: ns=db.cTree: $and\n    a $eq 1\n    GEONEAR  field=loc maxdist=1.79769e+308 isNearSphere=0\nSort: {}\nProj: {}\n planner returned error :: caused by :: unable to find index for $geoNear query"},
	}},
	{[]string{`{"key":{"a":"hashed"}}`}, []planCase{
		{`{"filter":{"a":1}}`, `FETCH{ a: { $eq: 1 } } < IXSCAN a_hashed a:[5902408780260971510, 5902408780260971510]`},
		{`{"filter":{"a":{"$gt":1}}}`, `COLLSCAN{ a: { $gt: 1 } }`},
		{`{"sort":{"a":1}}`, `SORT limit 0 < COLLSCAN`},
	}},
	{[]string{`{"key":{"$**":1}}`}, []planCase{
		{`{"filter":{"a":1}}`, `FETCH < IXSCAN $**_1 $_path:["a", "a"] a:[1, 1]`},
		{`{"filter":{"a.b":{"$lt":3}}}`, `FETCH < IXSCAN $**_1 $_path:["a.b", "a.b"] a.b:[-inf.0, 3)`},
		{`{"filter":{"a":{"$exists":true}}}`, `FETCH{ a: { $exists: true } } < IXSCAN $**_1 $_path:["a", "a"]["a.", "a/") a:[MinKey, MaxKey]`},
		{`{"filter":{"a":null}}`, `COLLSCAN{ a: { $eq: null } }`},
		{`{"filter":{"a":1},"hint":"$**_1"}`, `FETCH < IXSCAN $**_1 $_path:["a", "a"] a:[1, 1]`},
		{`{"filter":{"_id":{"$gt":1}},"hint":"$**_1"}`, "291 error processing query: ns=db.cTree: _id $gt 1\nSort: {}\nProj: {}\n planner returned error :: caused by :: No query solutions"},
	}},
}

// TestCandidates checks which plans take part in a trial.
func TestCandidates(t *testing.T) {
	one := func(name string) string { return `{"key":{` + name + `}}` }
	for _, c := range []struct {
		query   string
		knobs   *Knobs
		indexes []string
		want    []string // in any order
	}{
		{`{"filter":{"a":1,"b":2}}`, nil, []string{one(`"a":1`), one(`"b":1`)}, []string{
			`FETCH{ b: { $eq: 2 } } < IXSCAN a_1 a:[1, 1]`, `FETCH{ a: { $eq: 1 } } < IXSCAN b_1 b:[2, 2]`,
			`FETCH{ $and: [ { a: { $eq: 1 } }, { b: { $eq: 2 } } ] } < AND_SORTED < (IXSCAN a_1 a:[1, 1] | IXSCAN b_1 b:[2, 2])`}},
		{`{"filter":{"a":1,"b":2}}`, &Knobs{Plans: 64}, []string{one(`"a":1`), one(`"b":1`)}, []string{
			`FETCH{ b: { $eq: 2 } } < IXSCAN a_1 a:[1, 1]`, `FETCH{ a: { $eq: 1 } } < IXSCAN b_1 b:[2, 2]`}},
		{`{"filter":{"a":1,"b":{"$gt":2}}}`, nil, []string{one(`"a":1`), one(`"b":1`)}, []string{
			`FETCH{ b: { $gt: 2 } } < IXSCAN a_1 a:[1, 1]`, `FETCH{ a: { $eq: 1 } } < IXSCAN b_1 b:(2, inf.0]`}},
		{`{"filter":{"a":1,"b":{"$gt":2}}}`, &Knobs{Intersect: true, HashIntersect: true, Intersections: 3, Plans: 64}, []string{one(`"a":1`), one(`"b":1`)}, []string{
			`FETCH{ b: { $gt: 2 } } < IXSCAN a_1 a:[1, 1]`, `FETCH{ a: { $eq: 1 } } < IXSCAN b_1 b:(2, inf.0]`,
			`FETCH{ $and: [ { a: { $eq: 1 } }, { b: { $gt: 2 } } ] } < AND_HASH < (IXSCAN a_1 a:[1, 1] | IXSCAN b_1 b:(2, inf.0])`}},
		{`{"filter":{"a":1,"b":2}}`, nil, []string{one(`"a":1`), one(`"a":1,"b":1`)}, []string{ // the second has all that the first has
			`FETCH{ b: { $eq: 2 } } < IXSCAN a_1 a:[1, 1]`, `FETCH < IXSCAN a_1_b_1 a:[1, 1] b:[2, 2]`}},
		{`{"filter":{"a":1},"sort":{"c":1}}`, nil, []string{one(`"a":1`), one(`"c":1`)}, []string{
			`SORT limit 0 < FETCH < IXSCAN a_1 a:[1, 1]`, `FETCH{ a: { $eq: 1 } } < IXSCAN c_1 c:[MinKey, MaxKey]`}},
		{`{"filter":{"a":1},"sort":{"c":1}}`, nil, []string{one(`"a":1,"c":1`), one(`"c":1`)}, []string{ // no need for a full scan of c_1
			`FETCH < IXSCAN a_1_c_1 a:[1, 1] c:[MinKey, MaxKey]`}},
		{`{"filter":{"z":1,"$or":[{"a":1,"b":2},{"c":3}]}}`, nil, []string{one(`"a":1`), one(`"b":1`), one(`"c":1`)}, []string{
			`FETCH{ z: { $eq: 1 } } < OR < (FETCH{ b: { $eq: 2 } } < IXSCAN a_1 a:[1, 1] | IXSCAN c_1 c:[3, 3])`,
			`FETCH{ z: { $eq: 1 } } < OR < (FETCH{ a: { $eq: 1 } } < IXSCAN b_1 b:[2, 2] | IXSCAN c_1 c:[3, 3])`}},
	} {
		coll := &Collection{NS: "db.c"}
		for _, x := range append([]string{`{"key":{"_id":1}}`}, c.indexes...) {
			coll.Indexes = append(coll.Indexes, index(t, x))
		}
		q := query(t, c.query)
		q.Knobs = c.knobs
		r, err := Plan(q, coll)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range r.Candidates {
			got = append(got, brief(n))
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s over %s:\n got %s\nwant %s", c.query, c.indexes, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
	}
}

func TestReachedLimits(t *testing.T) {
	var or, keys []string
	for i := range 4 {
		or = append(or, fmt.Sprintf(`{"a%d":1,"b%d":1}`, i, i))
		keys = append(keys, fmt.Sprintf(`{"key":{"a%d":1}}`, i), fmt.Sprintf(`{"key":{"b%d":1}}`, i))
	}
	coll := &Collection{NS: "db.c"}
	for _, k := range keys {
		coll.Indexes = append(coll.Indexes, index(t, k))
	}
	r, err := Plan(query(t, `{"filter":{"z":1,"$or":[`+strings.Join(or, ",")+`]}}`), coll)
	if err != nil || len(r.Candidates) != 10 || r.Reached != (Reached{Or: true}) {
		t.Errorf("%d unions, %+v, %v", len(r.Candidates), r.Reached, err)
	}
	r, err = Plan(query(t, `{"filter":{"a0":1,"a1":1,"a2":1,"a3":1}}`), coll)
	if err != nil || len(r.Candidates) != 7 || r.Reached != (Reached{And: true}) {
		t.Errorf("%d plans with intersections, %+v, %v", len(r.Candidates), r.Reached, err)
	}
	coll.Indexes = append(coll.Indexes, index(t, `{"key":{"x":1,"y":1}}`))
	q := query(t, `{"filter":{"x":{"$in":[1,2,3]}},"sort":{"y":1}}`)
	q.Knobs = &Knobs{Explode: 2, Plans: 64}
	if r, err = Plan(q, coll); err != nil || !r.Winner().Has(Sort) || r.Reached != (Reached{Explode: true}) {
		t.Errorf("explode: %s, %+v, %v", brief(r.Winner()), r.Reached, err)
	}
}

func TestIntervals(t *testing.T) {
	n := func(i int32) value.Value { return value.NewInt32(i) }
	a := union(Intervals{{n(5), n(9), true, false}, {n(1), n(3), true, true}, {n(3), n(5), false, false}, {n(20), n(20), true, true}})
	if got := fmt.Sprint(texts(a)); got != "[[1, 5) [5, 9) [20, 20]]" && got != "[[1, 9) [20, 20]]" {
		t.Errorf("union %s", got)
	}
	b := complement(a)
	if got := fmt.Sprint(texts(b)); got != "[[MinKey, 1) [9, 20) (20, MaxKey]]" {
		t.Errorf("complement %s", got)
	}
	if got := intersect(a, b); len(got) != 0 {
		t.Errorf("intersection with the complement: %v", texts(got))
	}
	if !union(append(append(Intervals{}, a...), b...)).Full() {
		t.Error("union with the complement is not everything")
	}
}

func texts(l Intervals) (out []string) {
	for i := range l {
		out = append(out, l[i].text(false, false))
	}
	return out
}

func TestExplainShape(t *testing.T) {
	c := &Collection{NS: "db.c", Indexes: []*Index{index(t, `{"key":{"_id":1}}`), index(t, `{"key":{"a.b":1,"c":-1},"multikey":["a"]}`)}}
	for q, want := range map[string]string{
		`{"filter":{"a.b":5,"d":1}}`: `{ isCached: false, stage: "FETCH", filter: { d: { $eq: 1 } }, inputStage: { stage: "IXSCAN", keyPattern: { a.b: 1, c: -1 }, ` +
			`indexName: "a.b_1_c_-1", isMultiKey: true, multiKeyPaths: { a.b: [ "a" ], c: [] }, isUnique: false, isSparse: false, isPartial: false, ` +
			`indexVersion: 2, direction: "forward", indexBounds: { a.b: [ "[5, 5]" ], c: [ "[MaxKey, MinKey]" ] } } }`,
		`{"filter":{"_id":5}}`: `{ isCached: false, stage: "EXPRESS_IXSCAN", keyPattern: "{ _id: 1 }", indexName: "_id_1" }`,
		// A find by _id with a projection is one stage; it used to be shown as two.
		`{"filter":{"_id":5},"projection":{"a":1}}`:   `{ isCached: false, stage: "EXPRESS_IXSCAN", keyPattern: "{ _id: 1 }", indexName: "_id_1", projection: { a: 1 }, projectionCovered: false }`,
		`{"filter":{"_id":5},"projection":{"_id":1}}`: `{ isCached: false, stage: "EXPRESS_IXSCAN", keyPattern: "{ _id: 1 }", indexName: "_id_1", projection: { _id: 1 }, projectionCovered: true }`,
		`{"filter":{"d":5},"sort":{"d":1},"limit":2}`: `{ isCached: false, stage: "SORT", sortPattern: { d: 1 }, memLimit: 104857600, limitAmount: 2, type: "simple", ` +
			`inputStage: { stage: "COLLSCAN", filter: { d: { $eq: 5 } }, direction: "forward" } }`,
		`{"filter":{"_id":{"$gt":5}},"count":true}`: `{ isCached: false, stage: "COUNT", inputStage: { stage: "COUNT_SCAN", keyPattern: { _id: 1 }, indexName: "_id_1", isMultiKey: false, ` +
			`multiKeyPaths: { _id: [] }, isUnique: true, isSparse: false, isPartial: false, indexVersion: 2, indexBounds: { startKey: { _id: 5 }, startKeyInclusive: false, ` +
			`endKey: { _id: inf.0 }, endKeyInclusive: true } } }`,
	} {
		r, err := Plan(query(t, q), c)
		if err != nil {
			t.Fatal(err)
		}
		if got := bsontext.Doc(r.Winner().WinningPlan(false)); got != want {
			t.Errorf("%s:\n got %s\nwant %s", q, got, want)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	c := &Collection{NS: "db.c", Indexes: []*Index{index(b, `{"key":{"_id":1}}`), index(b, `{"key":{"a":1}}`), index(b, `{"key":{"b":1,"c":1}}`)}}
	for _, k := range []struct{ name, q string }{
		{"id", `{"filter":{"_id":5}}`}, {"equality", `{"filter":{"a":5}}`}, {"compound", `{"filter":{"b":5,"c":{"$gt":3}}}`},
	} {
		b.Run(k.name, func(b *testing.B) {
			b.ReportAllocs()
			q := query(b, k.q)
			for b.Loop() {
				if _, err := Plan(q, c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
