package keystring

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

func dec(t testing.TB, s string) value.Value {
	t.Helper()
	v, err := value.ParseDecimal128(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// edgeValues are values at the boundaries between kinds, widths and representations.
func edgeValues(t testing.TB) []value.Value {
	vs := []value.Value{
		value.NewMinKey(), value.NewMaxKey(), value.NewNull(), value.NewUndefined(), {},
		value.NewBool(false), value.NewBool(true),
		value.NewDateTime(0), value.NewDateTime(-1), value.NewDateTime(math.MaxInt64), value.NewDateTime(math.MinInt64),
		value.NewTimestamp(1, 2), value.NewTimestamp(0, 0), value.NewTimestamp(math.MaxUint32, math.MaxUint32),
		value.NewObjectID([12]byte{1, 2, 3}), value.NewObjectID([12]byte{255, 2, 3}),
		value.NewRegex("a", "i"), value.NewRegex("a", ""), value.NewRegex("ab", ""), value.NewRegex("", "x"),
		value.NewDBPointer("db.c", [12]byte{9}), value.NewDBPointer("db.cc", [12]byte{1}),
		value.NewJavaScript([]byte("x")), value.NewCodeWithScope("x", value.Doc(value.F("a", value.NewInt32(1)))),
		value.NewCodeWithScope("x", value.Doc()),
	}
	for _, s := range []string{"", "a", "a\x00", "a\x00b", "a\x01", "a\x02", "ab", "\x00", "\x01", "\x02", "\xff", "é"} {
		vs = append(vs, value.NewString(s), value.NewSymbol([]byte(s)), value.NewBinary(0, []byte(s)), value.NewBinary(5, []byte(s)))
	}
	vs = append(vs, value.NewBinary(2, []byte("abc")), value.NewBinary(0, make([]byte, 254)), value.NewBinary(0, make([]byte, 255)),
		value.NewBinary(0, bytes.Repeat([]byte{7}, 300)))
	vs = append(vs, edgeNumbers(t)...)
	n := len(vs)
	for i := 0; i < n; i += 3 {
		if vs[i].T != value.Missing {
			vs = append(vs, value.NewArray(value.ArrayOf(vs[i])), value.NewArray(value.ArrayOf(vs[i], vs[(i+7)%n])),
				value.NewDocument(value.Doc(value.F("a", vs[i]))), value.NewDocument(value.Doc(value.F("b", vs[i]), value.F("", vs[(i+5)%n]))))
		}
	}
	return append(vs, value.NewArray(value.ArrayOf()), value.NewDocument(value.Doc()))
}

func edgeNumbers(t testing.TB) (vs []value.Value) {
	for _, i := range []int64{0, 1, -1, 63, 64, 127, 128, 255, 256, 32767, 32768, 1 << 24, math.MaxInt32, math.MinInt32} {
		vs = append(vs, value.NewInt32(int32(i)), value.NewInt64(i), value.NewDouble(float64(i)), value.NewDouble(float64(i)+0.5))
	}
	for _, i := range []int64{1 << 53, 1<<53 + 1, -(1<<53 + 1), 1 << 62, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1} {
		vs = append(vs, value.NewInt64(i), value.NewDouble(float64(i)))
	}
	for _, f := range []float64{math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64,
		0.1, 1.1, 0.5, 1.5, 123456.789, 1e18 + 0.5, 1e19, 1e300, 4503599627370496.5, 1 << 63} {
		vs = append(vs, value.NewDouble(f), value.NewDouble(-f), value.NewDouble(math.Nextafter(f, 0)))
	}
	for _, s := range []string{"0", "-0", "0E+10", "0E-6176", "1", "1.0", "1.10", "1.1", "0.1", "0.10", "0.5", "1.5", "-1.5", "NaN", "Infinity",
		"-Infinity", "9.999999999999999999999999999999999E+6144", "1E-6176", "-1E-6176", "1E-400", "1E+400", "9223372036854775807",
		"9223372036854775808", "9223372036854775807.5", "-9223372036854775808", "-9223372036854775808.5", "9007199254740993",
		"9007199254740992.5", "1.100000000000000088817841970012523", "1.100000000000000088817841970012524", "1.000000000000000000000000000000001",
		"1.000000000000000000000000000000002", "0.1000000000000000055511151231257827", "0.3", "1E+19", "1E+18", "1.7976931348623157E+308",
		"1.7976931348623159E+308", "4.9E-324", "5E-324", "2E-324", "123456.789", "1000000000000000000000000000000001"} {
		vs = append(vs, dec(t, s))
		if s[0] != '-' && s[0] != 'N' {
			vs = append(vs, dec(t, "-"+s))
		}
	}
	return vs
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

func checkPair(t *testing.T, a, b value.Value) {
	t.Helper()
	want := sign(value.Compare(a, b))
	for _, desc := range []bool{false, true} {
		ka, _ := Append(nil, nil, a, desc, nil)
		kb, _ := Append(nil, nil, b, desc, nil)
		got := bytes.Compare(ka, kb)
		if desc {
			got = -got
		}
		if got != want {
			t.Fatalf("desc=%v %s against %s: keys %x %x compare %d, values %d", desc, show(a), show(b), ka, kb, got, want)
		}
		if want != 0 && (bytes.HasPrefix(ka, kb) || bytes.HasPrefix(kb, ka)) {
			t.Fatalf("%x is a prefix of %x: %s %s", ka, kb, show(a), show(b))
		}
	}
}

func show(v value.Value) string {
	return fmt.Sprintf("%s(%x)", v.T.Name(), value.AppendPayload(nil, v))
}

func checkRoundTrip(t *testing.T, v value.Value) {
	t.Helper()
	for ord := range Ordering(4) {
		key, tb := Append(nil, nil, v, ord.Descending(0), nil)
		n := FieldLen(key, ord.Descending(0))
		if n != len(key) {
			t.Fatalf("FieldLen(%x) of %s = %d, want %d", key, show(v), n, len(key))
		}
		key, tb = Append(key, tb, v, ord.Descending(1), nil)
		out, ok := Decode(AppendRecordID(key, 77), TrimTypeBits(tb), ord, 2)
		if !ok {
			t.Fatalf("%s: key %x does not decode", show(v), key)
		}
		for _, o := range out {
			if o.T != v.T || !bytes.Equal(value.AppendPayload(nil, o), value.AppendPayload(nil, v)) {
				t.Fatalf("%s came back as %s (key %x, type bits %x)", show(v), show(o), key, tb)
			}
		}
	}
}

func TestOrderOfEdges(t *testing.T) {
	vs := edgeValues(t)
	for _, a := range vs {
		for _, b := range vs {
			checkPair(t, a, b)
		}
	}
}

func TestRoundTripOfEdges(t *testing.T) {
	for _, v := range edgeValues(t) {
		if v.T != value.Missing {
			checkRoundTrip(t, v)
		}
	}
}

func TestRandomNumbers(t *testing.T) {
	seed := uint64(20251)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20000 {
		a, b := randomNumber(t, r), randomNumber(t, r)
		checkPair(t, a, b)
		checkRoundTrip(t, a)
	}
}

func randomNumber(t *testing.T, r *rand.Rand) value.Value {
	switch r.IntN(5) {
	case 0:
		return value.NewInt64(int64(r.Uint64()) >> r.IntN(64))
	case 1:
		return value.NewDouble(math.Float64frombits(r.Uint64()))
	case 2:
		return value.NewDouble(float64(int64(r.Uint64())>>r.IntN(64)) / float64(int64(1)<<r.IntN(60)))
	case 3:
		return dec(t, fmt.Sprintf("%d.%d", int64(r.Uint64())>>r.IntN(64), r.Uint64()>>(20+r.IntN(40))))
	}
	return dec(t, fmt.Sprintf("%dE%d", int64(r.Uint64())>>r.IntN(64), r.IntN(700)-350))
}

func TestRecordID(t *testing.T) {
	var before []byte
	ids := []int64{0, 1, 31, 32, 511, 512, 513, 1 << 16, 1<<17 - 1, 1 << 17, 1 << 25, 1 << 40, 1 << 62, math.MaxInt64}
	for _, id := range ids {
		k := AppendRecordID([]byte("k"), id)
		if before != nil && bytes.Compare(before, k) >= 0 {
			t.Fatalf("id %d sorts behind the next", id)
		}
		before = k
		p, got, ok := SplitRecordID(k)
		if !ok || string(p) != "k" || got != id || k[1] == 0 || k[1] == 0xFF {
			t.Fatalf("id %d: %x split to %q %d %v", id, k, p, got, ok)
		}
	}
	for _, n := range []int{0, 1, 127, 128, 16383, 16384, 1 << 21, 1<<21 + 5} {
		id := bytes.Repeat([]byte{3}, n)
		p, got, ok := SplitRecordIDBytes(AppendRecordIDBytes([]byte("k"), id))
		if !ok || string(p) != "k" || !bytes.Equal(id, got) {
			t.Fatalf("clustered id of %d bytes: split to %d %d %v", n, len(p), len(got), ok)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, v := range edgeValues(f) {
		k, tb := Append(nil, nil, v, false, nil)
		f.Add(k, tb, uint64(0))
		k, tb = Append(nil, nil, v, true, nil)
		f.Add(k, tb, uint64(1))
	}
	f.Fuzz(func(t *testing.T, key, tb []byte, ord uint64) {
		n := FieldLen(key, ord&1 != 0)
		vs, ok := Decode(key, tb, Ordering(ord), 1)
		if !ok || n < 0 {
			return
		}
		again, tb2 := Append(nil, nil, vs[0], ord&1 != 0, nil)
		back, ok := Decode(again, tb2, Ordering(ord), 1)
		if !ok || value.Compare(back[0], vs[0]) != 0 {
			t.Fatalf("%s changes on its way: %x", show(vs[0]), again)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name string
		v    value.Value
	}{
		{"int", value.NewInt32(123456)}, {"objectId", value.NewObjectID([12]byte{1, 2, 3})}, {"double", value.NewDouble(1.25)},
		{"string16", value.NewString("customer_0012345")}, {"decimal", dec(b, "12.99")},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			key, tb := make([]byte, 0, 256), make([]byte, 0, 64)
			for b.Loop() {
				key, tb = Append(key[:0], tb[:0], c.v, false, nil)
				key = AppendRecordID(key, 1234567)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	b.ReportAllocs()
	key, tb := Append(nil, nil, value.NewInt32(123456), false, nil)
	key, tb = Append(key, tb, value.NewString("customer_0012345"), false, nil)
	var d Decoder
	for b.Loop() {
		d.Reset(key, tb, 0)
		d.Next()
		d.Next()
	}
}
