package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func repeat(n int, d bson.D) bson.A {
	out := make(bson.A, n)
	for i := range out {
		out[i] = d
	}
	return out
}

// nest wraps v n times: {op: [v]}.
func nest(n int, op string, v any) any {
	for range n {
		v = bson.D{{Key: op, Value: bson.A{v}}}
	}
	return v
}

func pipeline(stages ...bson.D) bson.D {
	a := bson.A{}
	for _, s := range stages {
		a = append(a, s)
	}
	return bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: a}, {Key: "cursor", Value: bson.D{}}}
}

func project(expr any) bson.D { return bson.D{{Key: "$project", Value: bson.D{{Key: "x", Value: expr}}}} }

func d(k string, v any) bson.D { return bson.D{{Key: k, Value: v}} }

// Commands made to eat time or memory: each ends in time with an answer that is one of those given, an error code or ok.
var bombs = []struct {
	name string
	cmd  bson.D
	want string
}{
	{"range of 2^31", pipeline(project(d("$range", bson.A{0, 2147483647}))), "?"},
	{"range of ranges", pipeline(project(d("$map", bson.D{{Key: "input", Value: d("$range", bson.A{0, 100000})}, {Key: "in", Value: d("$range", bson.A{0, 100000})}}))), "?"},
	{"reduce that concatenates", pipeline(project(d("$reduce", bson.D{{Key: "input", Value: d("$range", bson.A{0, 100000})}, {Key: "initialValue", Value: strings.Repeat("x", 1000)}, {Key: "in", Value: d("$concat", bson.A{"$$value", "$$value"})}}))), "?"},
	{"reduce that doubles an array", pipeline(project(d("$reduce", bson.D{{Key: "input", Value: d("$range", bson.A{0, 1000})}, {Key: "initialValue", Value: bson.A{1}}, {Key: "in", Value: d("$concatArrays", bson.A{"$$value", "$$value"})}}))), "?"},
	{"nested maps", pipeline(project(d("$map", bson.D{{Key: "input", Value: d("$range", bson.A{0, 10000})}, {Key: "in", Value: d("$sum", d("$map", bson.D{{Key: "input", Value: d("$range", bson.A{0, 10000})}, {Key: "in", Value: 1}}))}}))), "?"},
	{"deep expression", pipeline(project(nest(85, "$abs", 1))), "?"},
	{"deep filter", bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: nest(90, "$and", bson.D{{Key: "a", Value: 1}})}}, "?"},
	{"long pipeline", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: repeat(1001, d("$match", bson.D{}))}, {Key: "cursor", Value: bson.D{}}}, "?"},
	{"longest pipeline", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: repeat(1000, d("$match", d("a", 1)))}, {Key: "cursor", Value: bson.D{}}}, "?"},
	{"longest pipeline of groups", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: repeat(1000, d("$group", bson.D{{Key: "_id", Value: "$_id"}}))}, {Key: "cursor", Value: bson.D{}}}, "?"},
	{"catastrophic regex", bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: bson.D{{Key: "s", Value: bson.Regex{Pattern: "^(a+)+$"}}}}}, "?"},
	{"catastrophic regex with backreference", bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: bson.D{{Key: "s", Value: bson.Regex{Pattern: "^(a+)+\\1$"}}}}}, "?"},
	{"catastrophic regexMatch", pipeline(project(d("$regexMatch", bson.D{{Key: "input", Value: "$s"}, {Key: "regex", Value: "^(?=(a+)+$)b"}}))), "?"},
	{"sort without disk", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{project(d("$range", bson.A{0, 200000})), d("$unwind", "$x"), d("$sort", d("x", -1)), d("$limit", 1)}}, {Key: "cursor", Value: bson.D{}}, {Key: "allowDiskUse", Value: false}}, "?"},
	{"big sort without disk", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{project(d("$range", bson.A{0, 1000000})), d("$unwind", "$x"), d("$addFields", d("p", strings.Repeat("x", 500))), d("$sort", d("x", -1)), d("$count", "n")}}, {Key: "cursor", Value: bson.D{}}, {Key: "allowDiskUse", Value: false}}, "?"},
	{"push of everything", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{project(d("$range", bson.A{0, 1000000})), d("$unwind", "$x"), d("$addFields", d("p", strings.Repeat("x", 500))), d("$group", bson.D{{Key: "_id", Value: nil}, {Key: "all", Value: d("$push", "$$ROOT")}})}}, {Key: "cursor", Value: bson.D{}}}, "?"},
	{"group of everything without disk", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{project(d("$range", bson.A{0, 1000000})), d("$unwind", "$x"), d("$group", bson.D{{Key: "_id", Value: bson.D{{Key: "x", Value: "$x"}, {Key: "p", Value: strings.Repeat("x", 300)}}}}), d("$count", "n")}}, {Key: "cursor", Value: bson.D{}}, {Key: "allowDiskUse", Value: false}}, "?"},
	{"facet bomb", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{project(d("$range", bson.A{0, 1000000})), d("$unwind", "$x"), d("$addFields", d("p", strings.Repeat("x", 500))), d("$facet", d("a", bson.A{d("$match", bson.D{})}))}}, {Key: "cursor", Value: bson.D{}}}, "?"},
	{"document bomb", pipeline(d("$addFields", d("p", d("$map", bson.D{{Key: "input", Value: d("$range", bson.A{0, 20000})}, {Key: "in", Value: strings.Repeat("x", 1000)}})))), "?"},
	{"lookup times lookup", pipeline(d("$lookup", bson.D{{Key: "from", Value: "many"}, {Key: "pipeline", Value: bson.A{}}, {Key: "as", Value: "a"}}), d("$unwind", "$a"), d("$lookup", bson.D{{Key: "from", Value: "many"}, {Key: "pipeline", Value: bson.A{}}, {Key: "as", Value: "b"}}), d("$unwind", "$b"), d("$count", "n")), "?"},
	{"where that never ends", bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: d("$where", "while(true){}")}}, "?"},
	{"function that never ends", pipeline(project(d("$function", bson.D{{Key: "body", Value: "function(){for(;;){}}"}, {Key: "args", Value: bson.A{}}, {Key: "lang", Value: "js"}}))), "?"},
	{"function that eats memory", pipeline(project(d("$function", bson.D{{Key: "body", Value: "function(){var a=[];for(;;){a.push(new Array(10000).fill('x'))}}"}, {Key: "args", Value: bson.A{}}, {Key: "lang", Value: "js"}}))), "?"},
	{"function of endless recursion", pipeline(project(d("$function", bson.D{{Key: "body", Value: "function f(){return f()+1}"}, {Key: "args", Value: bson.A{}}, {Key: "lang", Value: "js"}}))), "?"},
	{"split of a long string", pipeline(project(d("$size", d("$split", bson.A{d("$reduce", bson.D{{Key: "input", Value: d("$range", bson.A{0, 20})}, {Key: "initialValue", Value: "ab"}, {Key: "in", Value: d("$concat", bson.A{"$$value", "$$value"})}}), "a"})))), "?"},
	{"update multi", bson.D{{Key: "update", Value: "many"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.A{d("$set", d("z", d("$size", d("$range", bson.A{0, 1000000}))))}}, {Key: "multi", Value: true}}}}}, "?"},
	{"distinct", bson.D{{Key: "distinct", Value: "many"}, {Key: "key", Value: "_id"}, {Key: "query", Value: d("$expr", d("$gt", bson.A{d("$size", d("$range", bson.A{0, 1000000})), "$_id"}))}}, "?"},
	{"find and modify", bson.D{{Key: "findAndModify", Value: "many"}, {Key: "query", Value: d("$expr", d("$lt", bson.A{d("$size", d("$range", bson.A{0, 1000000})), "$_id"}))}, {Key: "remove", Value: true}}, "?"},
	{"create indexes", bson.D{{Key: "createIndexes", Value: "many"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "name", Value: "q"}, {Key: "key", Value: d("q", 1)}}}}, {Key: "maxTimeMS", Value: 1}}, "?"},
	{"graphLookup", pipeline(d("$graphLookup", bson.D{{Key: "from", Value: "many"}, {Key: "startWith", Value: "$_id"}, {Key: "connectFromField", Value: "n"}, {Key: "connectToField", Value: "n"}, {Key: "as", Value: "g"}})), "?"},
	{"densify bomb", pipeline(d("$addFields", d("t", 0)), d("$densify", bson.D{{Key: "field", Value: "t"}, {Key: "range", Value: bson.D{{Key: "step", Value: 1}, {Key: "bounds", Value: bson.A{0, 1000000000}}}}}), d("$count", "n")), "?"},
	{"merge to oneself", pipeline(d("$match", d("_id", 77)), d("$merge", "c")), "?"},
	{"jsonSchema nested", bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: d("$jsonSchema", nest2(80))}}, "?"},
	{"in of many", bson.D{{Key: "count", Value: "many"}, {Key: "query", Value: d("_id", d("$in", numbers(500000)))}}, "?"},
	{"or of many", bson.D{{Key: "count", Value: "many"}, {Key: "query", Value: d("$or", ors(20000))}}, "?"},
	{"sample", pipeline(d("$sample", d("size", int64(1)<<40))), "?"},
	{"window", pipeline(d("$unionWith", "many"), d("$setWindowFields", bson.D{{Key: "sortBy", Value: d("_id", 1)}, {Key: "output", Value: d("all", bson.D{{Key: "$push", Value: "$$ROOT"}})}}), d("$count", "n")), "?"},
}

func nest2(n int) any {
	var v any = bson.D{{Key: "bsonType", Value: "object"}}
	for range n {
		v = bson.D{{Key: "properties", Value: bson.D{{Key: "a", Value: v}}}}
	}
	return v
}

func numbers(n int) bson.A {
	out := make(bson.A, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func ors(n int) bson.A {
	out := make(bson.A, n)
	for i := range out {
		out[i] = bson.D{{Key: "f" + itoa(i%100), Value: i}}
	}
	return out
}

func itoa(i int) string { return string(rune('a'+i%26)) + string(rune('a'+i/26)) }

func TestBombs(t *testing.T) {
	p := launch(t, t.TempDir(), "--shards", "1")
	defer p.kill(t)
	ctx := context.Background()
	db := p.client.Database("bombs")
	if _, err := db.Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "s", Value: strings.Repeat("a", 40) + "b"}}); err != nil {
		t.Fatal(err)
	}
	many := make([]any, 20000)
	for i := range many {
		many[i] = bson.D{{Key: "_id", Value: i}, {Key: "n", Value: i % 10}, {Key: "s", Value: "some text"}}
	}
	if _, err := db.Collection("many").InsertMany(ctx, many); err != nil {
		t.Fatal(err)
	}
	for _, b := range bombs {
		cmd := b.cmd
		hasTime := false
		for _, e := range cmd {
			hasTime = hasTime || e.Key == "maxTimeMS"
		}
		if !hasTime {
			cmd = append(cmd, bson.E{Key: "maxTimeMS", Value: 1000})
		}
		begin := time.Now()
		err := db.RunCommand(ctx, cmd).Err() // a context with a deadline would have the driver send another maxTimeMS
		text := "ok"
		if err != nil {
			text = err.Error()
		}
		t.Logf("%-40s %8v rss %4d MiB  %.150s", b.name, time.Since(begin).Round(time.Millisecond), resident(t, p)>>20, text)
		if err := db.Client().Ping(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
}
