package agg

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// What the optimiser makes of pipelines. See https://www.mongodb.com/docs/manual/core/aggregation-pipeline-optimization/.
func TestMovedMatches(t *testing.T) {
	for _, c := range []struct{ stages, want string }{
		{`{"$project":{"z":"$a"}} {"$match":{"z":5}}`, `{ $match: { a: 5 } } { $project: { z: "$a" } }`},
		{`{"$addFields":{"z":"$a","q":{"$add":["$a",1]}}} {"$match":{"z.y":{"$gt":5},"q":2,"b":3}}`,
			`{ $match: { $and: [ { a.y: { $gt: 5 } }, { b: 3 } ] } } { $addFields: { z: "$a", q: { $add: [ "$a", 1 ] } } } { $match: { q: 2 } }`},
		{`{"$addFields":{"a":"$b","b":"$a"}} {"$match":{"$or":[{"a":1},{"b":2,"c":3}]}}`,
			`{ $match: { $or: [ { b: 1 }, { a: 2, c: 3 } ] } } { $addFields: { a: "$b", b: "$a" } }`},
		{`{"$project":{"z":"$a.b"}} {"$match":{"z":5}}`, `{ $project: { z: "$a.b" } } { $match: { z: 5 } }`},
		{`{"$project":{"z":"$$ROOT"}} {"$match":{"z":5}}`, `{ $project: { z: "$$ROOT" } } { $match: { z: 5 } }`},
		{`{"$addFields":{"z":"$a"}} {"$match":{"$expr":{"$eq":["$z",5]}}}`, `{ $addFields: { z: "$a" } } { $match: { $expr: { $eq: [ "$z", 5 ] } } }`},
		{`{"$addFields":{"z":1}} {"$match":{"$expr":{"$eq":["$a","$b"]}}}`, `{ $match: { $expr: { $eq: [ "$a", "$b" ] } } } { $addFields: { z: 1 } }`},
		{`{"$addFields":{"z":1}} {"$match":{"$expr":{"$lt":[{"$rand":{}},0.5]}}}`, `{ $addFields: { z: 1 } } { $match: { $expr: { $lt: [ { $rand: {} }, 0.5 ] } } }`},
		{`{"$unwind":"$a"} {"$match":{"$expr":{"$and":[{"$eq":["$b",1]},{"$eq":["$a",2]}]}}}`, `{ $unwind: { path: "$a" } } { $match: { $expr: { $and: [ { $eq: [ "$b", 1 ] }, { $eq: [ "$a", 2 ] } ] } } }`},
		{`{"$redact":"$$KEEP"} {"$match":{"year":2014,"category":{"$ne":"Z"}}}`, `{ $match: { year: 2014 } } { $redact: "$$KEEP" } { $match: { year: 2014, category: { $ne: "Z" } } }`},
		{`{"$redact":"$$KEEP"} {"$match":{"a":{"$in":[1,2]},"b":null,"c.0":1,"d":{"x":1},"e":{"$lt":3,"$exists":true},"f":{"$gte":"x"}}}`,
			`{ $match: { $and: [ { a: { $in: [ 1, 2 ] } }, { f: { $gte: "x" } } ] } } { $redact: "$$KEEP" } { $match: { a: { $in: [ 1, 2 ] }, b: null, c.0: 1, d: { x: 1 }, e: { $lt: 3, $exists: true }, f: { $gte: "x" } } }`},
	} {
		var stages []value.Value
		for s := range strings.SplitSeq(c.stages, "} {") {
			s = "{" + strings.TrimPrefix(s, "{")
			if strings.Count(s, "{") > strings.Count(s, "}") {
				s += "}"
			}
			stages = append(stages, value.NewDocument(valuetest.Doc(t, s)))
		}
		p, err := Parse(value.NewArray(value.ArrayOf(stages...)), &Options{NS: Namespace{DB: "d", Coll: "c"}})
		if err != nil {
			t.Fatal(c.stages, err)
		}
		p.Optimize()
		var got []string
		for _, s := range p.Stages() {
			spec := s.Spec()
			if m, ok := s.(*matchStage); ok {
				spec = value.NewDocument(m.filter)
			}
			got = append(got, "{ "+s.Name()+": "+bsontext.Value(spec)+" }")
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.stages, g, c.want)
		}
	}
}
