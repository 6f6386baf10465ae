package accum

import (
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
)

func dec(s string) value.Value { v, _ := value.ParseDecimal128(s); return v }

func text(v value.Value) string { return bson.Raw(value.Doc(value.F("v", v))).String() }

func TestSumTypes(t *testing.T) {
	i32, i64, f64 := value.NewInt32, value.NewInt64, value.NewDouble
	for _, c := range []struct {
		in   []value.Value
		want value.Value
	}{
		{nil, i32(0)},
		{[]value.Value{i32(1), i32(2), value.NewString("x"), value.NewNull()}, i32(3)},
		{[]value.Value{i32(math.MaxInt32), i32(1)}, i64(math.MaxInt32 + 1)},
		{[]value.Value{i32(1), i64(2)}, i64(3)},
		{[]value.Value{i64(math.MaxInt64), i64(math.MaxInt64), i64(-math.MaxInt64)}, i64(math.MaxInt64)},
		{[]value.Value{i64(math.MaxInt64), i64(1)}, f64(9223372036854775808)},
		{[]value.Value{f64(0.1), f64(0.2), f64(0.3)}, f64(0.6)},
		{[]value.Value{f64(1e100), f64(1), f64(-1e100)}, f64(1)},
		{[]value.Value{f64(math.Inf(1)), i32(1)}, f64(math.Inf(1))},
		{[]value.Value{f64(math.Inf(1)), f64(math.Inf(-1))}, f64(math.NaN())},
		{[]value.Value{dec("1.10"), i32(2)}, dec("3.10")},
	} {
		var total Total
		for _, v := range c.in {
			total.Add(v)
		}
		if got := total.Value(); text(got) != text(c.want) {
			t.Errorf("sum of %d values: %s, want %s", len(c.in), text(got), text(c.want))
		}
	}
}

// TestPartials: merging the states of two halves yields the same result as one state for the whole.
func TestPartials(t *testing.T) {
	in := []value.Value{value.NewInt32(4), value.NewDouble(2.5), value.NewInt64(1 << 40), value.NewNull(), value.NewString("x"), value.NewInt32(4),
		dec("1.5"), value.NewInt32(-7), value.NewArray(value.ArrayOf(value.NewInt32(1))), value.NewInt32(9)}
	scope := expr.NewScope(nil)
	n := func(name string) value.Value {
		return value.NewDocument(value.Doc(value.F("input", value.NewString("$x")), value.F("n", value.NewInt32(3))))
	}
	specs := map[string]value.Value{
		"$sum": value.NewString("$x"), "$avg": value.NewString("$x"), "$min": value.NewString("$x"), "$max": value.NewString("$x"),
		"$first": value.NewString("$x"), "$last": value.NewString("$x"), "$push": value.NewString("$x"), "$addToSet": value.NewString("$x"),
		"$firstN": n("$firstN"), "$lastN": n("$lastN"), "$minN": n("$minN"), "$maxN": n("$maxN"),
		"$topN": value.NewDocument(value.Doc(value.F("n", value.NewInt32(2)), value.F("output", value.NewString("$x")),
			value.F("sortBy", value.NewDocument(value.Doc(value.F("x", value.NewInt32(-1))))))),
	}
	script := func(src string) value.Value { return value.NewJavaScript([]byte(src)) }
	specs["$accumulator"] = value.NewDocument(value.Doc(value.F("init", script("function(a) { return {n: 0, s: '' + a} }")), value.F("initArgs", value.NewArray(value.ArrayOf(value.NewString("$g")))),
		value.F("accumulate", script("function(s, x) { return {n: s.n + 1, s: s.s + tojson(x)} }")), value.F("accumulateArgs", value.NewArray(value.ArrayOf(value.NewString("$x")))),
		value.F("merge", script("function(a, b) { return {n: a.n + b.n, s: a.s + b.s.slice(4)} }")), value.F("lang", value.NewString("js"))))
	for name, arg := range specs {
		spec, err := Parse(name, arg, scope)
		if err != nil {
			t.Fatal(err)
		}
		f := expr.NewFrame(scope)
		feed := func(in []value.Value) State {
			f.SetRoot(value.Doc())
			st, err := spec.New(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range in {
				f.SetRoot(value.Doc(value.F("x", v)))
				got, err := spec.Arg.Eval(f)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := st.Add(got, f); err != nil {
					t.Fatal(err)
				}
			}
			return st
		}
		want, _ := feed(in).Result()
		for cut := 0; cut <= len(in); cut++ {
			merged := feed(nil)
			for _, half := range [][]value.Value{in[:cut], in[cut:]} {
				if len(half) == 0 {
					continue
				}
				part, err := feed(half).Partial()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := merged.Merge(part); err != nil {
					t.Fatal(err)
				}
			}
			if got, _ := merged.Result(); text(got) != text(want) {
				t.Errorf("%s cut at %d: %s, want %s", name, cut, text(got), text(want))
			}
		}
	}
}
