package match

import (
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// benchDoc is a document of about 300 bytes with the queried field in its middle.
func benchDoc() []byte {
	return value.Doc(
		value.F("_id", value.NewObjectID([12]byte{1, 2, 3})),
		value.F("name", value.NewString("Some Customer Name")),
		value.F("email", value.NewString("customer@example.com")),
		value.F("active", value.NewBool(true)),
		value.F("created", value.NewDateTime(1700000000000)),
		value.F("qty", value.NewInt32(42)),
		value.F("price", value.NewDouble(12.5)),
		value.F("status", value.NewString("A")),
		value.F("tags", value.NewArray(value.ArrayOf(value.NewString("red"), value.NewString("blue"), value.NewString("green")))),
		value.F("address", value.NewDocument(value.Doc(value.F("city", value.NewString("Berlin")), value.F("zip", value.NewString("10115"))))),
		value.F("notes", value.NewString("a somewhat longer text that nobody asks for in these queries")),
	)
}

func BenchmarkMatch(b *testing.B) {
	gte := value.F("qty", value.NewDocument(value.Doc(value.F("$gte", value.NewInt32(10)))))
	lt := value.F("price", value.NewDocument(value.Doc(value.F("$lt", value.NewInt32(100)))))
	status := value.F("status", value.NewString("A"))
	in := func(n int) value.Field {
		var vs []value.Value
		for i := 0; i < n; i++ {
			vs = append(vs, value.NewString(fmt.Sprint("key", i)))
		}
		return value.F("status", value.NewDocument(value.Doc(value.F("$in", value.NewArray(value.ArrayOf(vs...))))))
	}
	for _, c := range []struct {
		name   string
		filter []byte
	}{
		{"gte", value.Doc(gte)},
		{"eq_string", value.Doc(status)},
		{"three_fields", value.Doc(gte, lt, status)},
		{"or", value.Doc(value.F("$or", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("qty", value.NewInt32(1)))), value.NewDocument(value.Doc(status))))))},
		{"dotted", value.Doc(value.F("address.city", value.NewString("Berlin")))},
		{"array_element", value.Doc(value.F("tags", value.NewString("green")))},
		{"in_3", value.Doc(in(3))},
		{"in_1000", value.Doc(in(1000))},
		{"regex_prefix", value.Doc(value.F("name", value.NewRegex("^Some", "")))},
		{"regex_i", value.Doc(value.F("name", value.NewRegex("customer", "i")))},
		{"ne_missing", value.Doc(value.F("nothing", value.NewDocument(value.Doc(value.F("$ne", value.NewInt32(1))))))},
	} {
		m, err := Compile(c.filter, nil)
		if err != nil {
			b.Fatal(err)
		}
		doc := benchDoc()
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; i < b.N; i++ {
				m.Match(doc)
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	f := value.Doc(value.F("qty", value.NewDocument(value.Doc(value.F("$gte", value.NewInt32(10)), value.F("$lt", value.NewInt32(20))))), value.F("status", value.NewString("A")))
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		Compile(f, nil)
	}
}
