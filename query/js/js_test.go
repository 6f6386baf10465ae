package js

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func TestCall(t *testing.T) {
	doc := value.NewDocument(value.Doc(value.F("a", value.NewInt32(3)), value.F("s", value.NewString("x")), value.F("l", value.NewInt64(1<<60)),
		value.F("arr", value.NewArray(value.ArrayOf(value.NewInt32(1), value.NewDouble(2.5)))), value.F("d", value.NewDateTime(86400000)),
		value.F("id", value.NewObjectID([12]byte{1})), value.F("re", value.NewRegex("a+", "ix")), value.F("n", value.NewNull())))
	for _, c := range []struct {
		src  string
		want value.Value
	}{
		{"function(x) { return x.a * 2; }", value.NewDouble(6)},
		{"(x) => x.s + '!'", value.NewString("x!")},
		{"x => x.n === null && x.missing === undefined", value.NewBool(true)},
		{"function() { return this.a }", value.NewDouble(3)},
		{"this.a == 3", value.NewBool(true)},
		{"return this.s;", value.NewString("x")},
		{"function(x) { return x }", doc},
		{"function(x) { return x.l }", value.NewInt64(1 << 60)},
		{"function(x) { return x.l + 1 >= 1152921504606846976 }", value.NewBool(true)},
		{"function(x) { return new Date(x.d.getTime() + 1) }", value.NewDateTime(86400001)},
		{"function(x) { return Array.sum(x.arr) }", value.NewDouble(3.5)},
		{"function() { return [NumberLong('5'), NumberInt(6), {a: NumberDecimal('1.5')}] }", value.NewArray(value.ArrayOf(value.NewInt64(5), value.NewInt32(6),
			value.NewDocument(value.Doc(value.F("a", must(value.ParseDecimal128("1.5")))))))},
		{"function(x) { x.a = 7; return {a: x.a} }", value.NewDocument(value.Doc(value.F("a", value.NewDouble(7))))},
		{"function() { }", value.NewUndefined()},
		{"function(x) { return tojsononeline({a: x.a, l: [x.l, x.id], d: x.d, e: [], n: null}) }", value.NewString(
			`{ "a" : 3, "l" : [ NumberLong("1152921504606846976"), ObjectId("010000000000000000000000") ], "d" : ISODate("1970-01-02T00:00:00Z"), "e" : [ ], "n" : null }`)},
		{"function(x) { return tojson({a: {b: [1]}}) }", value.NewString(`{ "a" : { "b" : [ 1 ] } }`)},
		{"function(x) { return tojson({a: [1], b: '" + strings.Repeat("x", 80) + "'}) }", value.NewString("{\n\t\"a\" : [\n\t\t1\n\t],\n\t\"b\" : \"" + strings.Repeat("x", 80) + "\"\n}")},
		{"function(x) { return hex_md5('Anya') }", value.NewString("9b53e667f30cd329dca1ec9e6a83e994")},
		{"function(x) { return [MD5('9b53e667f30cd329dca1ec9e6a83e994').subtype(), UUID().length(), HexData(0, '01ff').hex()] }",
			value.NewArray(value.ArrayOf(value.NewInt32(5), value.NewInt32(16), value.NewString("01ff")))},
		{"function(x) { return tojson(UUID('00112233-4455-6677-8899-aabbccddeeff')) }", value.NewString(`UUID("00112233-4455-6677-8899-aabbccddeeff")`)},
		{"function(x) { return bsonWoCompare({a: 1}, {a: 2}) + bsonWoCompare([1], [1]) }", value.NewDouble(-1)},
		{"function(x) { return new DBRef('c', 1).$ref + tojson(DBRef('c', 1, 'd')) }", value.NewString(`c{ "$ref" : "c", "$id" : 1, "$db" : "d" }`)},
		{"function(x) { return x.id.getTimestamp().getTime() + String(ObjectId()).length }", value.NewDouble(16777216000 + 36)},
		{"function(x) { return x.re.test('BAA') }", value.NewBool(true)},
		// A comparison function that returns a boolean never reports that an element comes first: it used to sort nothing.
		{"function() { return [3, 1, 2].sort((a, b) => a > b).join() }", value.NewString("1,2,3")},
		{"function() { return [3, 1, 2].sort((a, b) => a < b).join() + [10, 9].sort() + [2, 3, 1].toSorted((a, b) => a > b) }", value.NewString("3,2,110,91,2,3")},
		{`function() { var a = []; for (var i = 0; i < 1000; i++) a.push((i * 7919) % 1009); var b = a.slice().sort((x, y) => x - y), c = a.slice().sort((x, y) => x > y);
			return b.join() == c.join() && b.every((x, i) => i == 0 || b[i - 1] <= x) }`, value.NewBool(true)},
		{"function() { var a = []; for (var i = 0; i < 100; i++) a.push({k: i % 3, i: i}); a.sort((x, y) => x.k > y.k); return a.every((x, i) => i == 0 || a[i-1].k < x.k || a[i-1].k == x.k && a[i-1].i < x.i) }", value.NewBool(true)},
	} {
		f, err := Compile(c.src)
		if err != nil {
			t.Errorf("%s: %v", c.src, err)
			continue
		}
		got, err := New().Call(f, doc, doc)
		if err != nil {
			t.Errorf("%s: %v", c.src, err)
			continue
		}
		if got.T != c.want.T || value.Compare(got, c.want) != 0 {
			t.Errorf("%s: %s, want %s", c.src, value.Show(got), value.Show(c.want))
		}
	}
}

func must(v value.Value, err error) value.Value {
	if err != nil {
		panic(err)
	}
	return v
}

func TestErrors(t *testing.T) {
	if _, err := Compile("function( {"); mongoerr.CodeOf(err) != mongoerr.JSInterpreterFailure {
		t.Errorf("syntax: %v", err)
	}
	for src, want := range map[string]string{
		"function() { throw new Error('mine') }":                "mine",
		"function() { return nosuch.x }":                        "nosuch is not defined",
		"function() { function f() { return f() } return f() }": "",
		"function() { var a = {}; a.a = a; return a }":          "cycle",
		"function() { return require('fs') }":                   "require is not defined",
		"function() { return new ObjectId('zz') }":              "invalid argument",
	} {
		f, err := Compile(src)
		if err != nil {
			t.Fatal(src, err)
		}
		_, err = New().Call(f, value.Value{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", src, err)
		}
	}
}

func TestGlobals(t *testing.T) {
	f, err := Compile("function() { for (var i = 0; i < 3; i++) emit(i, {n: base + i}); }")
	if err != nil {
		t.Fatal(err)
	}
	r := New()
	r.SetValue("base", value.NewInt32(10))
	var seen []string
	r.Set("emit", func(args []value.Value) (value.Value, error) {
		seen = append(seen, value.Show(args[0])+value.Show(args[1]))
		return value.NewUndefined(), nil
	})
	if _, err := r.Call(f, value.Value{}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, " "); got != "0.0{ n: 10.0 } 1.0{ n: 11.0 } 2.0{ n: 12.0 }" {
		t.Error(got)
	}
}

func BenchmarkCall(b *testing.B) {
	f, err := Compile("function(x, y) { return x * y }")
	if err != nil {
		b.Fatal(err)
	}
	r := New()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Call(f, value.Value{}, value.NewInt32(6), value.NewDouble(7)); err != nil {
			b.Fatal(err)
		}
	}
}
