package main

import (
	"context"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ring is a polygon of n corners at two alternating radii.
func ring(n int) bson.D {
	at := make(bson.A, 0, n+1)
	for i := range n {
		a, r := 2*math.Pi*float64(i)/float64(n), 10*(1-0.2*float64(i%2))
		at = append(at, bson.A{r * math.Cos(a), r * math.Sin(a)})
	}
	return bson.D{{Key: "$geometry", Value: bson.D{{Key: "type", Value: "Polygon"}, {Key: "coordinates", Value: bson.A{append(at, at[0])}}}}}
}

// times computes an expression for each number below n.
func times(n int, expr any) bson.D {
	return d("$map", bson.D{{Key: "input", Value: d("$range", bson.A{0, n})}, {Key: "in", Value: d("$size", d("$objectToArray", d("a", expr)))}})
}

func find(filter bson.D) bson.D {
	return bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: filter}}
}

func texts(n int) bson.A {
	out := make(bson.A, n)
	for i := range out {
		out[i] = strconv.Itoa(i * 7919 % n)
	}
	return out
}

// heavy are commands that would take long, most of it within one step of the query language.
func heavy() map[string]bson.D {
	number := func(n int) bson.D { return d("$multiply", bson.A{"$_id", n}) } // not constant: it depends on the document
	long := d("$range", bson.A{0, number(1_000_000)})
	return map[string]bson.D{
		"geoWithin":           find(d("g", d("$geoWithin", ring(200_000)))),
		"geoIntersects":       find(d("g", d("$geoIntersects", ring(200_000)))),
		"backtracking":        find(d("long", bson.Regex{Pattern: `(?=(a|aa|b)+$)a+c`})),
		"scanning":            find(d("long", bson.Regex{Pattern: `a\w*(?=b)b\w*(?<=a)\z`})),
		"regexFindAll":        pipeline(project(times(20, d("$regexFindAll", bson.D{{Key: "input", Value: "$long"}, {Key: "regex", Value: "(a)(b)?"}})))),
		"regexMatch":          pipeline(project(d("$regexMatch", bson.D{{Key: "input", Value: "$long"}, {Key: "regex", Value: `(a|b|ab)*?(?!.)c?(?<=a)`}}))),
		"in":                  pipeline(project(times(1000, d("$in", bson.A{-1, long})))),
		"indexOfArray":        pipeline(project(times(1000, d("$indexOfArray", bson.A{long, -1})))),
		"reduce":              pipeline(project(d("$reduce", bson.D{{Key: "input", Value: long}, {Key: "initialValue", Value: bson.A{}}, {Key: "in", Value: d("$concatArrays", bson.A{"$$value", bson.A{"$$this"}})}}))),
		"reduce that doubles": pipeline(project(times(100, d("$reduce", bson.D{{Key: "input", Value: d("$range", bson.A{0, 22})}, {Key: "initialValue", Value: bson.A{1}}, {Key: "in", Value: d("$concatArrays", bson.A{"$$value", "$$value"})}})))),
		"setUnion":            pipeline(project(times(100, d("$setUnion", bson.A{long, d("$range", bson.A{500_000, number(1_500_000)})})))),
		"setIntersection":     pipeline(project(times(100, d("$setIntersection", bson.A{long, long})))),
		"setDifference":       pipeline(project(times(100, d("$setDifference", bson.A{long, bson.A{1}})))),
		"sortArray":           pipeline(project(times(100, d("$sortArray", bson.D{{Key: "input", Value: d("$map", bson.D{{Key: "input", Value: long}, {Key: "in", Value: d("$mod", bson.A{d("$multiply", bson.A{"$$this", 7919}), 999983})}})}, {Key: "sortBy", Value: 1}})))),
		"maxN":                pipeline(project(times(100, d("$maxN", bson.D{{Key: "input", Value: long}, {Key: "n", Value: 10}})))),
		"reverseArray":        pipeline(project(times(100, d("$reverseArray", long)))),
		"slice":               pipeline(project(times(100, d("$slice", bson.A{long, -999_999})))),
		"zip":                 pipeline(project(times(100, d("$zip", d("inputs", bson.A{long, long}))))),
		"concatArrays":        pipeline(project(times(100, d("$concatArrays", bson.A{long, long})))),
		"split":               pipeline(project(times(100, d("$split", bson.A{"$long", "a"})))),
		"replaceAll":          pipeline(project(times(10_000, d("$replaceAll", bson.D{{Key: "input", Value: "$long"}, {Key: "find", Value: "a"}, {Key: "replacement", Value: "cc"}})))),
		"sum":                 pipeline(project(times(1000, d("$sum", long)))),
		"allElementsTrue":     pipeline(project(times(1000, d("$allElementsTrue", bson.A{d("$range", bson.A{1, number(1_000_000)})})))),
		"function":            pipeline(project(d("$function", bson.D{{Key: "body", Value: "function(){for(;;){}}"}, {Key: "args", Value: bson.A{}}, {Key: "lang", Value: "js"}}))),
		"graphLookup":         pipeline(d("$addFields", d("x", long)), d("$graphLookup", bson.D{{Key: "from", Value: "many"}, {Key: "startWith", Value: "$x"}, {Key: "connectFromField", Value: "q"}, {Key: "connectToField", Value: "n"}, {Key: "as", Value: "y"}})),
		"jsonSchema":          find(d("$jsonSchema", d("properties", d("long", d("pattern", `(?=(a|aa|b)+$)a+c`))))),
		"constant":            pipeline(project(times(100, d("$setIntersection", bson.A{d("$range", bson.A{0, 1_000_000}), d("$range", bson.A{0, 1_000_000})})))),
		"many in":             find(d("s", d("$in", texts(500_000)))),
	}
}

// TestHeavySteps: time limits end commands within one step of the query language, at little cost.
func TestHeavySteps(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir(), "--shards", "1")
	defer p.kill(t)
	ctx := context.Background()
	db := p.client.Database("heavy")
	if _, err := db.Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "long", Value: strings.Repeat("ab", 1<<20)}, {Key: "g", Value: bson.A{1, 1}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Collection("many").InsertOne(ctx, bson.D{{Key: "n", Value: -1}}); err != nil {
		t.Fatal(err)
	}
	for name, cmd := range heavy() {
		before := cpuTime(t, p)
		err := db.RunCommand(ctx, append(cmd, bson.E{Key: "maxTimeMS", Value: 50})).Err()
		took := cpuTime(t, p) - before
		t.Logf("%-20s %v: %v of CPU", name, codeOf(err), took)
		if codeOf(err) != int32(mongoerr.MaxTimeMSExpired) && name != "many in" { // which may be fast enough
			t.Errorf("%s: %v", name, err)
		}
		if took > time.Second {
			t.Errorf("%s: %v of CPU", name, took)
		}
	}
}

// TestHeavyStepsKilled: killOp ends commands within one step of the query language.
func TestHeavyStepsKilled(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir(), "--shards", "1")
	defer p.kill(t)
	ctx := context.Background()
	db, admin := p.client.Database("heavy"), p.client.Database("admin")
	if _, err := db.Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "long", Value: strings.Repeat("ab", 1<<20)}, {Key: "g", Value: bson.A{1, 1}}}); err != nil {
		t.Fatal(err)
	}
	cmds := heavy()
	for _, name := range []string{"scanning", "constant", "sortArray", "replaceAll"} {
		ended := make(chan error, 1)
		go func() {
			ended <- db.RunCommand(ctx, append(cmds[name], bson.E{Key: "comment", Value: name})).Err()
		}()
		await.True(t, name+" is killed", func() bool {
			var ops struct{ Inprog []struct{ Opid any } }
			if err := admin.RunCommand(ctx, bson.D{{Key: "currentOp", Value: 1}, {Key: "command.comment", Value: name}}).Decode(&ops); err != nil {
				t.Fatal(err)
			}
			for _, op := range ops.Inprog {
				if err := admin.RunCommand(ctx, bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: op.Opid}}).Err(); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case err := <-ended:
				if codeOf(err) != int32(mongoerr.Interrupted) {
					t.Errorf("%s: %v", name, err)
				}
				return true
			default:
				return false
			}
		})
	}
}

// cpuTime returns the processor time that a process has used.
func cpuTime(t testing.TB, p *process) time.Duration {
	t.Helper()
	return cpuTimeOf(t, strconv.Itoa(p.cmd.Process.Pid))
}

// cpuTimeOf is cpuTime of the process that has a directory of that name in /proc.
func cpuTimeOf(t testing.TB, name string) time.Duration {
	t.Helper()
	b, err := os.ReadFile("/proc/" + name + "/stat")
	if err != nil {
		t.Skip("no /proc")
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+2:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}
