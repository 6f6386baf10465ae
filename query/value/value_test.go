package value

import (
	"bytes"
	"math"
	"math/rand"
	"testing"
)

// samples is one value or more of every kind, in ascending order; each row holds values equal to each other.
func samples() [][]Value {
	dec := func(s string) Value {
		v, err := ParseDecimal128(s)
		if err != nil {
			panic(err)
		}
		return v
	}
	return [][]Value{
		{NewMinKey()},
		{NewUndefined(), Value{}},
		{NewNull()},
		{NewDouble(math.NaN()), dec("NaN")},
		{NewDouble(math.Inf(-1)), dec("-Infinity")},
		{dec("-1E6000")},
		{NewInt64(math.MinInt64), NewDouble(-9223372036854775808)},
		{NewInt32(-1), NewDouble(-1), dec("-1.0")},
		{NewInt32(0), NewInt64(0), NewDouble(0), NewDouble(math.Copysign(0, -1)), dec("0E+3"), dec("-0")},
		{dec("0.1")},
		{NewDouble(0.1)}, // the double is a little more than the decimal
		{NewDouble(0.5), dec("0.50")},
		{NewInt32(1), NewInt64(1), NewDouble(1), dec("1"), dec("1.000")},
		{NewInt64(1 << 53), NewDouble(1 << 53)},
		{NewInt64(1<<53 + 1), dec("9007199254740993")},
		{NewInt64(math.MaxInt64)},
		{NewDouble(9223372036854775808)},
		{dec("1E6000")},
		{NewDouble(math.Inf(1)), dec("Infinity")},
		{NewString("")},
		{NewString("a"), NewSymbol([]byte("a"))},
		{NewString("b")},
		{NewDocument(Doc())},
		{NewDocument(Doc(F("a", NewInt32(1)))), NewDocument(Doc(F("a", NewDouble(1))))},
		{NewDocument(Doc(F("a", NewInt32(1)), F("b", NewInt32(1))))},
		{NewDocument(Doc(F("b", NewInt32(0))))},
		{NewDocument(Doc(F("a", NewString(""))))},
		{NewArray(ArrayOf())},
		{NewArray(ArrayOf(NewInt32(1)))},
		{NewArray(ArrayOf(NewInt32(1), NewInt32(0)))},
		{NewBinary(0, []byte{9})},
		{NewBinary(5, []byte{1})},
		{NewBinary(0, []byte{0, 0})},
		{NewObjectID([12]byte{1})},
		{NewBool(false)},
		{NewBool(true)},
		{NewDateTime(-1)},
		{NewDateTime(0)},
		{NewTimestamp(1, 1)},
		{NewTimestampU64(1 << 63)},
		{NewRegex("a", "")},
		{NewRegex("a", "i")},
		{NewRegex("b", "")},
		{NewDBPointer("d.c", [12]byte{})},
		{NewJavaScript([]byte("f"))},
		{NewCodeWithScope("f", Doc())},
		{NewMaxKey()},
	}
}

func TestOrder(t *testing.T) {
	rows := samples()
	for i, a := range rows {
		for j, b := range rows {
			for _, x := range a {
				for _, y := range b {
					if got := Compare(x, y); got != cmp(i, j) {
						t.Errorf("Compare(%s %s, %s %s) = %d, want %d", x.T.Name(), Show(x), y.T.Name(), Show(y), got, cmp(i, j))
					}
					if Equal(x, y) != (i == j) {
						t.Errorf("Equal(%s, %s)", Show(x), Show(y))
					}
					same := bytes.Equal(AppendGroupKey(nil, x, nil), AppendGroupKey(nil, y, nil))
					if same != (i == j) && x.T != Missing && y.T != Missing {
						t.Errorf("group keys of %s and %s: same %v", Show(x), Show(y), same)
					}
				}
			}
		}
	}
}

// random makes a value no deeper than depth.
func random(r *rand.Rand, depth int) Value {
	rows := samples()
	switch k := r.Intn(12); {
	case k == 0 && depth > 0:
		var fs []Field
		for n := r.Intn(3); n > 0; n-- {
			fs = append(fs, F(string(rune('a'+r.Intn(3))), random(r, depth-1)))
		}
		return NewDocument(Doc(fs...))
	case k == 1 && depth > 0:
		var vs []Value
		for n := r.Intn(3); n > 0; n-- {
			vs = append(vs, random(r, depth-1))
		}
		return NewArray(ArrayOf(vs...))
	case k == 2:
		return NewDouble(float64(r.Intn(9)-4) / 2)
	case k == 3:
		return NewInt64(int64(r.Intn(9) - 4))
	}
	row := rows[r.Intn(len(rows))]
	return row[r.Intn(len(row))]
}

// The order is total: antisymmetric and transitive; equal values have equal group keys and unequal ones differ.
func TestOrderProperties(t *testing.T) {
	r := rand.New(rand.NewSource(42))
	for i := 0; i < 20000; i++ {
		a, b, c := random(r, 3), random(r, 3), random(r, 3)
		ab, ba := Compare(a, b), Compare(b, a)
		if ab != -ba {
			t.Fatalf("Compare(%s, %s) = %d, reversed %d", Show(a), Show(b), ab, ba)
		}
		if ab <= 0 && Compare(b, c) <= 0 && Compare(a, c) > 0 {
			t.Fatalf("not transitive: %s, %s, %s", Show(a), Show(b), Show(c))
		}
		if a.T != Missing && b.T != Missing && bytes.Equal(AppendGroupKey(nil, a, nil), AppendGroupKey(nil, b, nil)) != (ab == 0) {
			t.Fatalf("group keys of %s and %s disagree with the order (%d)", Show(a), Show(b), ab)
		}
	}
}

// What is appended is read back unchanged, by every way of iterating.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewSource(7))
	for i := 0; i < 2000; i++ {
		key := "k"
		for n := r.Intn(20); n > 0; n-- {
			key += string(rune('a' + r.Intn(26)))
		}
		v := random(r, 2)
		if v.T == Missing {
			continue
		}
		doc := Doc(F("before", random(r, 2)), F(key, v), F("after", NewInt32(1)))
		if got := Lookup(doc, key); got.T != v.T || Compare(got, v) != 0 {
			t.Fatalf("Lookup gave %s for %s", Show(got), Show(v))
		}
		if Lookup(doc, key+"x").T != Missing {
			t.Fatal("found a field that is not there")
		}
		it, cur := Walk(doc), Scan(doc)
		for {
			raw, k, w, ok := it.NextRaw()
			if cur.Next() != ok {
				t.Fatal("Walk and Scan end at different places")
			}
			if !ok {
				break
			}
			if !bytes.Equal(k, cur.Key()) || !bytes.Equal(raw, cur.Raw()) || cur.Type() != w.T || Compare(w, cur.Value()) != 0 {
				t.Fatalf("Walk and Scan differ at %q", k)
			}
		}
	}
}

// Invalid documents end the iteration; they never cause a panic.
func TestBrokenDocuments(t *testing.T) {
	var fs []Field
	for i, row := range samples() {
		fs = append(fs, F(string(rune('A'+i)), row[0]))
	}
	doc := Doc(fs...)
	r := rand.New(rand.NewSource(3))
	for i := 0; i < 20000; i++ {
		b := append([]byte(nil), doc[:r.Intn(len(doc)+1)]...)
		for n := r.Intn(4); n > 0 && len(b) > 0; n-- {
			b[r.Intn(len(b))] = byte(r.Intn(256))
		}
		for it := Walk(b); ; {
			_, v, ok := it.Next()
			if !ok {
				break
			}
			Show(v)
			Compare(v, v)
			AppendGroupKey(nil, v, nil)
		}
		for c := Scan(b); c.Next(); {
			c.Value()
		}
		Lookup(b, "zz")
	}
}

func TestNumbers(t *testing.T) {
	dec := func(s string) Value { v, _ := ParseDecimal128(s); return v }
	for _, c := range []struct {
		v     Value
		trunc int64
		ok    bool
		exact bool
	}{
		{NewDouble(2.9), 2, true, false}, {NewDouble(-2.9), -2, true, false}, {NewDouble(1e19), 0, false, false}, {NewDouble(math.NaN()), 0, false, false},
		{dec("4.5"), 4, true, false}, {dec("1E+3"), 1000, true, true}, {dec("9223372036854775808"), 0, false, false}, {dec("Infinity"), 0, false, false},
		{NewInt64(math.MaxInt64), math.MaxInt64, true, true}, {NewString("1"), 0, false, false},
	} {
		if i, ok := c.v.Truncate(); i != c.trunc && ok || ok != c.ok {
			t.Errorf("Truncate(%s) = %d, %v", Show(c.v), i, ok)
		}
		if _, exact := c.v.AsInt64(); exact != c.exact {
			t.Errorf("AsInt64(%s) exact: %v", Show(c.v), exact)
		}
	}
}

func TestTypeSet(t *testing.T) {
	var s TypeSet
	s.AddNumber()
	s.Add(MinKey)
	s.Add(String)
	for typ, want := range map[Type]bool{Int32: true, Decimal128: true, MinKey: true, MaxKey: false, Missing: false, Array: false, String: true} {
		if s.Has(typ) != want {
			t.Errorf("Has(%s) = %v", typ.Name(), !want)
		}
	}
	if got := s.Types(); len(got) != 2 || got[0] != MinKey || got[1] != String {
		t.Errorf("Types() = %v", got)
	}
}

func BenchmarkLookup(b *testing.B) {
	var fs []Field
	for _, k := range []string{"_id", "name", "email", "active", "created", "qty", "price", "status"} {
		fs = append(fs, F(k, NewString("some value of it")))
	}
	doc := Doc(fs...)
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		if Lookup(doc, "status").T != String {
			b.Fatal("not found")
		}
	}
}

func BenchmarkCompareNumbers(b *testing.B) {
	x, y := NewInt32(5), NewDouble(5.5)
	for i := 0; i < b.N; i++ {
		Compare(x, y)
	}
}
