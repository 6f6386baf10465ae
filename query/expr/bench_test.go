package expr

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

func benchmark(b *testing.B, src value.Value) {
	s := NewScope(&Env{})
	e, err := Compile(src, s)
	if err != nil {
		b.Fatal(err)
	}
	var items []value.Value
	for i := range 10 {
		items = append(items, value.NewDocument(value.Doc(value.F("price", value.NewDouble(float64(i))), value.F("qty", value.NewInt32(int32(i))))))
	}
	doc := value.Doc(value.F("_id", value.NewInt32(1)), value.F("name", value.NewString("a name of some length")), value.F("a", value.NewInt32(7)),
		value.F("b", value.NewInt32(9)), value.F("d", value.NewDateTime(1700000000000)), value.F("items", value.NewArray(value.ArrayOf(items...))),
		value.F("sub", value.NewDocument(value.Doc(value.F("x", value.NewDouble(1.5))))), value.F("dec", value.NewDecimal128(0x3040000000000000, 15)))
	f := NewFrame(s)
	b.ReportAllocs()
	for b.Loop() {
		f.SetRoot(doc)
		if _, err := e.Eval(f); err != nil {
			b.Fatal(err)
		}
	}
}

func op(name string, args ...value.Value) value.Value {
	return value.NewDocument(value.Doc(value.F(name, value.NewArray(value.ArrayOf(args...)))))
}

func BenchmarkPath(b *testing.B) { benchmark(b, value.NewString("$sub.x")) }
func BenchmarkCompare(b *testing.B) {
	benchmark(b, op("$gt", value.NewString("$a"), value.NewInt32(5)))
}
func BenchmarkAdd(b *testing.B) {
	benchmark(b, op("$add", value.NewString("$a"), value.NewString("$b")))
}
func BenchmarkMultiply(b *testing.B) {
	benchmark(b, op("$multiply", value.NewString("$sub.x"), value.NewString("$b")))
}
func BenchmarkCond(b *testing.B) {
	benchmark(b, op("$cond", op("$and", op("$gte", value.NewString("$a"), value.NewInt32(1)), op("$lt", value.NewString("$b"), value.NewInt32(10))),
		value.NewString("$name"), value.NewString("none")))
}
func BenchmarkConcat(b *testing.B) {
	benchmark(b, op("$concat", value.NewString("$name"), value.NewString("-x-"), value.NewString("$name")))
}
func BenchmarkArrayPath(b *testing.B) { benchmark(b, op("$sum", value.NewString("$items.price"))) }
func BenchmarkObject(b *testing.B) {
	benchmark(b, value.NewDocument(value.Doc(value.F("x", value.NewString("$a")), value.F("y", value.NewDocument(value.Doc(value.F("z", value.NewString("$b"))))))))
}
func BenchmarkMap(b *testing.B) {
	benchmark(b, value.NewDocument(value.Doc(value.F("$map", value.NewDocument(value.Doc(value.F("input", value.NewString("$items")),
		value.F("in", op("$multiply", value.NewString("$$this.price"), value.NewString("$$this.qty")))))))))
}
func BenchmarkReduce(b *testing.B) {
	benchmark(b, value.NewDocument(value.Doc(value.F("$reduce", value.NewDocument(value.Doc(value.F("input", value.NewString("$items.price")),
		value.F("initialValue", value.NewInt32(0)), value.F("in", op("$add", value.NewString("$$value"), value.NewString("$$this")))))))))
}
func BenchmarkDateTrunc(b *testing.B) {
	benchmark(b, value.NewDocument(value.Doc(value.F("$dateTrunc", value.NewDocument(value.Doc(value.F("date", value.NewString("$d")),
		value.F("unit", value.NewString("day"))))))))
}
func BenchmarkYearZone(b *testing.B) {
	benchmark(b, value.NewDocument(value.Doc(value.F("$year", value.NewDocument(value.Doc(value.F("date", value.NewString("$d")),
		value.F("timezone", value.NewString("America/New_York"))))))))
}
func BenchmarkDecimalAdd(b *testing.B) {
	benchmark(b, op("$add", value.NewString("$dec"), value.NewString("$dec")))
}
