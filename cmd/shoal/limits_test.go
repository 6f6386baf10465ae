package main

import (
	"context"
	"strconv"
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

func project(expr any) bson.D {
	return bson.D{{Key: "$project", Value: bson.D{{Key: "x", Value: expr}}}}
}

func d(k string, v any) bson.D { return bson.D{{Key: k, Value: v}} }

// Commands designed to consume time or memory: each ends in time with one of the given results, an error code or ok.
var bombs = []struct {
	name string
	cmd  bson.D
	want string
}{
	{"range of 2^31", pipeline(project(d("$range", bson.A{0, 2147483647}))), "146"},
	{"range of ranges", pipeline(project(d("$map", bson.D{{Key: "input", Value: d("$range", bson.A{0, 100000})}, {Key: "in", Value: d("$range", bson.A{0, 100000})}}))), "146"},
	{"reduce that concatenates", pipeline(project(d("$reduce", bson.D{{Key: "input", Value: d("$range", bson.A{0, 100000})}, {Key: "initialValue", Value: strings.Repeat("x", 1000)}, {Key: "in", Value: d("$concat", bson.A{"$$value", "$$value"})}}))), "16493"},
	{"reduce that doubles an array", pipeline(project(d("$reduce", bson.D{{Key: "input", Value: d("$range", bson.A{0, 1000})}, {Key: "initialValue", Value: bson.A{1}}, {Key: "in", Value: d("$concatArrays", bson.A{"$$value", "$$value"})}}))), "146"},
	{"deep expression", pipeline(project(nest(85, "$abs", 1))), "ok"},
	{"deep filter", bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: nest(90, "$and", bson.D{{Key: "a", Value: 1}})}}, "ok"},
	{"long pipeline", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: repeat(1001, d("$match", bson.D{}))}, {Key: "cursor", Value: bson.D{}}}, "7749501"},
	{"catastrophic regex", bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: bson.D{{Key: "s", Value: bson.Regex{Pattern: "^(a+)+$"}}}}}, "ok"},
	{"catastrophic regexMatch", pipeline(project(d("$regexMatch", bson.D{{Key: "input", Value: "$s"}, {Key: "regex", Value: "^(?=(a+)+$)b"}}))), "ok"},
	{"big sort without disk", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{project(d("$range", bson.A{0, 1000000})), d("$unwind", "$x"), d("$addFields", d("p", strings.Repeat("x", 500))), d("$sort", d("x", -1)), d("$count", "n")}}, {Key: "cursor", Value: bson.D{}}, {Key: "allowDiskUse", Value: false}}, "292"},
	{"push of everything", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{project(d("$range", bson.A{0, 1000000})), d("$unwind", "$x"), d("$addFields", d("p", strings.Repeat("x", 500))), d("$group", bson.D{{Key: "_id", Value: nil}, {Key: "all", Value: d("$push", "$$ROOT")}})}}, {Key: "cursor", Value: bson.D{}}}, "146"},
	{"group of everything without disk", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{project(d("$range", bson.A{0, 1000000})), d("$unwind", "$x"), d("$group", bson.D{{Key: "_id", Value: bson.D{{Key: "x", Value: "$x"}, {Key: "p", Value: strings.Repeat("x", 300)}}}}), d("$count", "n")}}, {Key: "cursor", Value: bson.D{}}, {Key: "allowDiskUse", Value: false}}, "292"},
	{"facet bomb", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{project(d("$range", bson.A{0, 1000000})), d("$unwind", "$x"), d("$addFields", d("p", strings.Repeat("x", 500))), d("$facet", d("a", bson.A{d("$match", bson.D{})}))}}, {Key: "cursor", Value: bson.D{}}}, "146"},
	{"document bomb", pipeline(d("$addFields", d("p", d("$map", bson.D{{Key: "input", Value: d("$range", bson.A{0, 20000})}, {Key: "in", Value: strings.Repeat("x", 1000)}})))), "10334"},
	{"lookup times lookup", pipeline(d("$lookup", bson.D{{Key: "from", Value: "many"}, {Key: "pipeline", Value: bson.A{}}, {Key: "as", Value: "a"}}), d("$unwind", "$a"), d("$lookup", bson.D{{Key: "from", Value: "many"}, {Key: "pipeline", Value: bson.A{}}, {Key: "as", Value: "b"}}), d("$unwind", "$b"), d("$count", "n")), "50"},
	{"where that never ends", bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: d("$where", "while(true){}")}}, "50"},
	{"function that never ends", pipeline(project(d("$function", bson.D{{Key: "body", Value: "function(){for(;;){}}"}, {Key: "args", Value: bson.A{}}, {Key: "lang", Value: "js"}}))), "50"},
	{"function that eats memory", pipeline(project(d("$function", bson.D{{Key: "body", Value: "function(){var a=[];for(;;){a.push(new Array(10000).fill('x'))}}"}, {Key: "args", Value: bson.A{}}, {Key: "lang", Value: "js"}}))), "50"},
	{"function of endless recursion", pipeline(project(d("$function", bson.D{{Key: "body", Value: "function f(){return f()+1}"}, {Key: "args", Value: bson.A{}}, {Key: "lang", Value: "js"}}))), "139"},
	{"create indexes", bson.D{{Key: "createIndexes", Value: "many"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "name", Value: "q"}, {Key: "key", Value: d("q", 1)}}}}, {Key: "maxTimeMS", Value: 1}}, "ok"}, // or 50, as everywhere: a fast machine may be done by then
	{"densify bomb", pipeline(d("$addFields", d("t", 0)), d("$densify", bson.D{{Key: "field", Value: "t"}, {Key: "range", Value: bson.D{{Key: "step", Value: 1}, {Key: "bounds", Value: bson.A{0, 1000000000}}}}}), d("$count", "n")), "5897900"},
	{"or of many", bson.D{{Key: "count", Value: "many"}, {Key: "query", Value: d("$or", ors(20000))}}, "ok"},
	{"sample", pipeline(d("$sample", d("size", int64(1)<<40))), "ok"},
	{"window", pipeline(d("$unionWith", "many"), d("$setWindowFields", bson.D{{Key: "sortBy", Value: d("_id", 1)}, {Key: "output", Value: d("all", bson.D{{Key: "$push", Value: "$$ROOT"}})}}), d("$count", "n")), "?"},
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
	t.Parallel()
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
		before := cpuTime(t, p) // the machine may be busy with something else
		cmd := b.cmd
		if cmd[len(cmd)-1].Key != "maxTimeMS" {
			cmd = append(cmd, bson.E{Key: "maxTimeMS", Value: 500})
		}
		got := "ok"
		if err := db.RunCommand(ctx, cmd).Err(); err != nil { // a context with a deadline would have the driver send another maxTimeMS
			if got = strconv.Itoa(int(codeOf(err))); got == "0" {
				got = err.Error()
			}
		}
		took := cpuTime(t, p) - before
		t.Logf("%-35s %-8s %6v of CPU, %d MiB resident", b.name, got, took.Round(time.Millisecond), resident(t, p)>>20)
		if got != b.want && got != timedOut {
			t.Errorf("%s: %s, want %s", b.name, got, b.want)
		}
		if took > 5*time.Second {
			t.Errorf("%s took %v of CPU", b.name, took)
		}
	}
	if rss := resident(t, p); rss > 2<<30 {
		t.Errorf("%d MiB resident", rss>>20)
	}
}

// timedOut is MaxTimeMSExpired: on a slow machine it may occur before a command's expected result.
const timedOut = "50"
