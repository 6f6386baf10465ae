package expr

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// samples holds values of all types, and the awkward ones of each.
var samples = []value.Value{
	value.NewNull(), value.NewUndefined(), value.NewBool(true), value.NewInt32(0), value.NewInt32(-1), value.NewInt32(math.MinInt32),
	value.NewInt64(math.MaxInt64), value.NewInt64(math.MinInt64), value.NewDouble(0.5), value.NewDouble(math.NaN()), value.NewDouble(math.Inf(-1)),
	value.NewDouble(1e300), value.NewDouble(math.Copysign(0, -1)), value.NewDecimal128(0x3040000000000000, 3), value.NewDecimal128(0x7c00000000000000, 0),
	value.NewDecimal128(0xf800000000000000, 0), value.NewDecimal128(0x5ffe314dc6448d93, 0x38c15b0a00000000), value.NewDecimal128(0, 1),
	value.NewString(""), value.NewString("a"), value.NewString("é\x00z"), value.NewString("\xff\xfe"), value.NewString("$a.b"), value.NewString("$$ROOT"), value.NewString("$$this"),
	value.NewString("day"), value.NewString("2020-02-30T25:61"), value.NewString("%Y%"), value.NewString("America/New_York"), value.NewString("[a-"),
	value.NewDateTime(0), value.NewDateTime(math.MinInt64), value.NewDateTime(math.MaxInt64), value.NewTimestamp(1, 2), value.NewObjectID([12]byte{0xff}),
	value.NewBinary(0, []byte{1}), value.NewBinary(4, make([]byte, 16)), value.NewBinary(2, nil), value.NewRegex("a(b)?", "i"), value.NewRegex("(", ""),
	value.NewMinKey(), value.NewMaxKey(), value.NewJavaScript([]byte("x")), value.NewSymbol([]byte("s")), value.NewCodeWithScope("x", value.Doc()),
	value.NewDBPointer("ns", [12]byte{1}), value.NewDocument(value.Doc()), value.NewArray(value.ArrayOf()),
}

type generator struct{ r *rand.Rand }

func (g *generator) value(depth int) value.Value {
	switch n := g.r.IntN(10); {
	case depth <= 0 || n < 4:
		return samples[g.r.IntN(len(samples))]
	case n < 6:
		var vs []value.Value
		for range g.r.IntN(4) {
			vs = append(vs, g.value(depth-1))
		}
		return value.NewArray(value.ArrayOf(vs...))
	case n < 7:
		return value.NewDocument(value.Doc(value.F("k", g.value(depth-1)), value.F("v", g.value(depth-1))))
	case n < 8:
		return value.NewDocument(value.Doc(value.F("$literal", g.value(depth-1))))
	}
	return g.expression(depth - 1)
}

// expression applies a random operator to operands of the shape it takes.
func (g *generator) expression(depth int) value.Value {
	names := Operators()
	o := operators[names[g.r.IntN(len(names))]]
	if o.name == "$function" {
		return null
	}
	if o.fields != nil && g.r.IntN(8) > 0 {
		var fs []value.Field
		for _, fd := range o.fields {
			if fd.required != 0 || g.r.IntN(2) == 0 {
				fs = append(fs, value.F(fd.name, g.value(depth)))
			}
		}
		return value.NewDocument(value.Doc(value.F(o.name, value.NewDocument(value.Doc(fs...)))))
	}
	n := g.r.IntN(4)
	if o.min == o.max && g.r.IntN(8) > 0 {
		n = o.min
	}
	vs := make([]value.Value, n)
	for i := range vs {
		vs[i] = g.value(depth)
	}
	return value.NewDocument(value.Doc(value.F(o.name, value.NewArray(value.ArrayOf(vs...)))))
}

// TestRandom runs random expressions over random documents: nothing panics, evaluation is repeatable, the results are
// valid BSON, and what explain prints compiles again.
func TestRandom(t *testing.T) {
	g := &generator{rand.New(rand.NewPCG(1, 2))}
	ran := 0
	for i := range 30000 {
		src, doc := g.expression(3), value.Doc(value.F("a", g.value(2)), value.F("b", g.value(1)))
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Fatalf("%d: %s over %s: panic: %v", i, value.Show(src), value.ShowDoc(doc), p)
				}
			}()
			s := testScope()
			e, err := Compile(src, s)
			if err != nil {
				return
			}
			ran++
			f := NewFrame(s)
			f.SetRoot(doc)
			v, err := e.Eval(f)
			first := fmt.Sprint(v.T, value.Show(v), err)
			if err := sound(v); err != nil {
				t.Fatalf("%d: %s over %s: %v", i, value.Show(src), value.ShowDoc(doc), err)
			}
			f.SetRoot(doc)
			v, err = e.Eval(f)
			if again := fmt.Sprint(v.T, value.Show(v), err); again != first {
				t.Fatalf("%d: %s over %s: %s, then %s", i, value.Show(src), value.ShowDoc(doc), first, again)
			}
			if _, err := Compile(e.Serialize(), testScope()); err != nil {
				t.Fatalf("%d: %s printed as %s: %v", i, value.Show(src), value.Show(e.Serialize()), err)
			}
			e.Deps()
		}()
	}
	if ran < 3000 {
		t.Errorf("only %d expressions compiled", ran)
	}
}

// sound checks that a nested value can be walked to its end.
func sound(v value.Value) error {
	if v.T != value.Document && v.T != value.Array {
		return nil
	}
	total := 5
	for it := value.Walk(v.Doc()); ; {
		raw, _, e, ok := it.NextRaw()
		if !ok {
			break
		}
		total += len(raw)
		if err := sound(e); err != nil {
			return err
		}
	}
	if total != len(v.Doc()) {
		return fmt.Errorf("document of %d bytes walks to %d", len(v.Doc()), total)
	}
	return nil
}
