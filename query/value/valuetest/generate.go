package valuetest

import (
	"math"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// Generator makes documents from arbitrary bytes, for fuzzing: names come from a dictionary, so that most documents pass
// the first check of a parser.
type Generator struct {
	in    []byte
	names []string
	left  int // values still to be made
}

// NewGenerator reads decisions from in; names are what fields are called.
func NewGenerator(in []byte, names []string) *Generator {
	return &Generator{in: in, names: names, left: 200}
}

func (g *Generator) byte() int {
	if len(g.in) == 0 {
		return 0
	}
	b := g.in[0]
	g.in = g.in[1:]
	return int(b)
}

func (g *Generator) pick(n int) int {
	if n > 256 {
		return (g.byte()<<8 | g.byte()) % n
	}
	return g.byte() % n
}

var paths = []string{"a", "b", "_id", "a.b", "a.0", "c", "x.y.z", "", "$a", "a.", ".a", "a..b", "$$ROOT", "a.$", "a.$[]", "a.$[i]", "\x00", "é"}

func (g *Generator) name() string {
	if len(g.names) > 0 && g.byte()%3 != 0 {
		return g.names[g.pick(len(g.names))]
	}
	return paths[g.pick(len(paths))]
}

// Doc makes a document.
func (g *Generator) Doc() []byte { return g.doc(0) }

func (g *Generator) doc(depth int) []byte {
	dst, mark := value.Begin(nil)
	for range g.byte() % 4 {
		dst = value.Append(dst, strings.ReplaceAll(g.name(), "\x00", ""), g.value(depth+1))
	}
	return value.End(dst, mark)
}

// Value makes a value.
func (g *Generator) Value() value.Value { return g.value(0) }

// Array makes an array.
func (g *Generator) Array() value.Value { return g.array(0) }

func (g *Generator) array(depth int) value.Value {
	var vs []value.Value
	for range g.byte() % 5 {
		vs = append(vs, g.value(depth+1))
	}
	return value.NewArray(value.ArrayOf(vs...))
}

var numbers = []float64{0, 1, -1, 2, 3.5, -0.5, 1e10, 1e300, -1e300, math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 1 << 31, 1 << 53, 1 << 62, 180, 90}

var texts = []string{"", "a", "$a", "$a.b", "$$ROOT", "$$NOW", "$$v", "$$REMOVE", "abc", "A", "é", "int", "string", "object", "js", "Point", "Polygon", "LineString",
	"day", "month", "%Y-%m-%d", "UTC", "America/New_York", "+05:30", "2024-01-31T10:00:00Z", "en", "simple", "a*b+", "(a|b)*c", "[a-", "(?<x>a)\\1", "ix", "left", "current", "unbounded",
	"full", "replace", "fail", "approximate", "textScore", "base64", "urn:x-mongodb:crs:strictwinding:EPSG:4326", "\x00"}

func (g *Generator) value(depth int) value.Value {
	if g.left--; g.left < 0 {
		return value.NewNull()
	}
	kind := g.byte() % 24
	if depth > 12 && kind < 10 {
		kind += 10
	}
	switch {
	case kind < 7:
		return value.NewDocument(g.doc(depth))
	case kind < 10:
		return g.array(depth)
	case kind < 13:
		return value.NewInt32(int32(g.byte()) - 3)
	case kind < 16:
		return value.NewString(texts[g.pick(len(texts))])
	}
	return g.scalar(kind)
}

func (g *Generator) scalar(kind int) value.Value {
	switch kind {
	case 16:
		return value.NewDouble(numbers[g.pick(len(numbers))])
	case 17:
		return value.NewInt64(int64(numbers[g.pick(len(numbers))]))
	case 18:
		return value.NewBool(g.byte()&1 == 1)
	case 19:
		d, _ := value.ParseDecimal128([]string{"1", "NaN", "Infinity", "9.99E+6144", "1E-6176", "-0", "0.1", "12345678901234567890.5"}[g.pick(8)])
		return d
	case 20:
		return value.NewDateTime([]int64{0, 86400000, -1, math.MaxInt64, math.MinInt64, 1700000000000, 253402300800000}[g.pick(7)])
	case 21:
		return value.NewRegex(strings.ReplaceAll(texts[g.pick(len(texts))], "\x00", ""), []string{"", "i", "m", "x", "sx", "q"}[g.pick(6)])
	case 22:
		return value.NewBinary(byte([]int{0, 2, 3, 4, 5, 9, 128}[g.pick(7)]), []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}[:g.pick(17)])
	}
	return [...]value.Value{value.NewNull(), value.NewUndefined(), value.NewMinKey(), value.NewMaxKey(), value.NewTimestamp(1, 2), value.NewObjectID([12]byte{7}),
		value.NewJavaScript([]byte("function() { return 1 }")), value.NewSymbol([]byte("s")), value.NewDBPointer("d.c", [12]byte{}), value.NewCodeWithScope("x", value.Doc())}[g.pick(10)]
}

// Subjects returns documents to run generated input against.
func Subjects() [][]byte {
	n, s := value.NewInt32, value.NewString
	sub := value.NewDocument(value.Doc(value.F("b", n(2)), value.F("c", s("x"))))
	point := value.NewDocument(value.Doc(value.F("type", s("Point")), value.F("coordinates", value.NewArray(value.ArrayOf(value.NewDouble(1), value.NewDouble(2))))))
	return [][]byte{
		value.Doc(),
		value.Doc(value.F("_id", n(1)), value.F("a", n(5)), value.F("b", s("abc")), value.F("c", value.NewNull())),
		value.Doc(value.F("_id", n(2)), value.F("a", sub), value.F("b", value.NewArray(value.ArrayOf(n(1), s("a"), sub, value.NewArray(value.ArrayOf(n(3))))))),
		value.Doc(value.F("_id", s("x")), value.F("a", value.NewArray(value.ArrayOf(sub, sub, n(7)))), value.F("b", value.NewDateTime(1700000000000)), value.F("c", point)),
		value.Doc(value.F("a", value.NewDouble(math.NaN())), value.F("b", value.NewBinary(4, make([]byte, 16))), value.F("c", value.NewRegex("a", "i"))),
	}
}

// Budget is an operation that has to stop after Left checks.
type Budget struct{ Left int }

type spent struct{}

func (spent) Error() string { return "the budget is spent" }

// Check implements expr.Work.
func (b *Budget) Check() error {
	if b.Left--; b.Left < 0 {
		return spent{}
	}
	return nil
}
