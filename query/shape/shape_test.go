package shape

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/querytest"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// TestShapes: "shape" shows the queryShape of a command without namespace and command, "hmac" the same with each name in
// brackets in place of its hash, "same" and "differ" compare the shapes of several commands.
func TestShapes(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "shape":
				return show(of(t, d.Input)) + "\n"
			case "hmac":
				return show(Transform(nil, of(t, d.Input), bracket)) + "\n"
			case "same", "differ":
				lines := strings.Split(d.Input, "\n")
				for _, l := range lines[1:] {
					if a, b := of(t, lines[0]), of(t, l); bytes.Equal(a, b) != (d.Cmd == "same") {
						return fmt.Sprintf("%s\n%s\n", show(a), show(b))
					}
				}
				return "yes\n"
			}
			return "unknown directive " + d.Cmd
		})
	})
}

func bracket(name string) string { return "<" + name + ">" }

func of(t *testing.T, text string) []byte {
	t.Helper()
	out, ok := Command(nil, "db", valuetest.Doc(t, text))
	if !ok {
		t.Fatalf("%s has no shape", text)
	}
	return out
}

func show(shape []byte) string {
	var parts []string
	for k, v := range value.Elements(shape) {
		if k != "command" && !(k == "cmdNs" && !strings.Contains(value.Show(v), "<")) {
			parts = append(parts, value.ShowElement(k, v))
		}
	}
	return strings.Join(parts, ", ")
}

// TestLiterals: commands that differ only in literals have the same shape, which contains none of them and is its
// own shape.
func TestLiterals(t *testing.T) {
	for seed := range uint64(2000) {
		g := querytest.New(seed)
		filter := g.Filter()
		cmds := []bson.D{
			{{Key: "find", Value: "c"}, {Key: "filter", Value: filter}, {Key: "sort", Value: g.Sort()}, {Key: "projection", Value: g.Projection()}},
			{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: append(bson.A{bson.D{{Key: "$match", Value: filter}}}, stagesOf(g)...)}},
		}
		for i, cmd := range cmds {
			one := command(t, cmd)
			cmd[1].Value = changed(rand.New(rand.NewPCG(seed, 1)), cmd[1].Value, i == 1)
			if other := command(t, cmd); i == 0 && !bytes.Equal(one, other) {
				t.Fatalf("seed %d:\n%s\n%s\n%s", seed, show(one), show(other), cmd)
			}
			if again := Transform(nil, one, func(n string) string { return n }); !bytes.Equal(one, again) {
				t.Fatalf("seed %d:\n%s\nagain\n%s", seed, show(one), show(again))
			}
		}
	}
}

func stagesOf(g *querytest.Gen) (out bson.A) {
	return append(out, g.Pipeline(4, "other").Stages...)
}

func command(t *testing.T, cmd bson.D) []byte {
	t.Helper()
	raw, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	out, _ := Command(nil, "db", raw)
	return out
}

// changed replaces every literal of a filter by another value of its type.
func changed(r *rand.Rand, v any, within bool) any {
	switch v := v.(type) {
	case bson.D:
		out := bson.D{}
		for _, e := range v {
			if e.Key != "$type" && e.Key != "$geometry" && e.Key != "$exists" {
				e.Value = changed(r, e.Value, within)
			}
			out = append(out, e)
		}
		return out
	case bson.A:
		out := bson.A{}
		for _, e := range v {
			out = append(out, changed(r, e, within))
		}
		return out
	case int32:
		return v + r.Int32N(9)
	case int64:
		return v + r.Int64N(9)
	case int:
		return v + r.IntN(9)
	case float64:
		return v * 3
	case bool:
		return v != (r.IntN(2) == 0)
	case string:
		if !strings.HasPrefix(v, "$") {
			return v + "z"
		}
	case bson.DateTime:
		return v + 1
	}
	return v
}

// TestEveryStageHasAForm: every stage must have a form, or be listed here as one that has only options.
func TestEveryStageHasAForm(t *testing.T) {
	options := map[string]bool{"$changeStreamSplitLargeEvent": true, "$collStats": true, "$currentOp": true, "$indexStats": true, "$limit": true,
		"$listCatalog": true, "$listClusterCatalog": true, "$listLocalSessions": true, "$listSampledQueries": true, "$listSearchIndexes": true,
		"$listSessions": true, "$planCacheStats": true, "$querySettings": true, "$queryStats": true, "$sample": true, "$search": true,
		"$searchBeta": true, "$searchMeta": true, "$shardedDataDistribution": true, "$skip": true, "$vectorSearch": true}
	for _, name := range agg.StageNames() {
		if (stages[name] != nil) == options[name] {
			t.Errorf("stage %s: it needs a row in stages (pipeline.go), or one here if its argument has only options and no names; not both", name)
		}
	}
}

// FuzzShape: every input has a shape, which is its own shape and keeps its size under a transformation that keeps names.
func FuzzShape(f *testing.F) {
	words := append(agg.StageNames(), expr.Operators()...)
	words = append(words, "$and", "$or", "$nor", "$not", "$in", "$elemMatch", "$all", "$type", "$regex", "$options", "$exists", "$near", "$geoWithin", "$geometry",
		"$jsonSchema", "properties", "items", "required", "from", "let", "pipeline", "vars", "in", "as", "input", "sortBy", "output", "window", "documents", "a", "a.b")
	kinds := []string{"find", "aggregate", "distinct", "count"}
	f.Add([]byte("find"))
	f.Add([]byte("22A00201021")) // an operator and a field side by side, under a path
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) == 0 {
			return
		}
		g := valuetest.NewGenerator(in[1:], words)
		name := kinds[int(in[0])%len(kinds)]
		cmd := value.Doc(value.F(name, value.NewString("c")), value.F("pipeline", g.Array()), value.F("filter", g.Value()), value.F("query", g.Value()),
			value.F("projection", g.Value()), value.F("sort", g.Value()), value.F("let", g.Value()), value.F("key", g.Value()), value.F("limit", g.Value()))
		one, ok := Command(nil, "db", cmd)
		if !ok {
			t.Fatal("no shape")
		}
		if err := bson.Raw(one).Validate(); err != nil {
			t.Fatal(err)
		}
		if again := Transform(nil, one, func(n string) string { return n }); !bytes.Equal(one, again) {
			t.Fatalf("%s\nagain\n%s", show(one), show(again))
		}
	})
}

func BenchmarkShape(b *testing.B) {
	cmd := valuetest.Doc(b, `{"find":"c","filter":{"a":1,"b":{"$gt":5,"$lt":9}},"sort":{"a":1},"limit":10,"projection":{"a":1}}`)
	b.ReportAllocs()
	var buf []byte
	for b.Loop() {
		buf, _ = Command(buf[:0], "db", cmd)
	}
}
