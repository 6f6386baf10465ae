package collation

import (
	"bytes"
	"math/rand"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func doc(fs ...value.Field) []byte { return value.Doc(fs...) }

func str(k, v string) value.Field { return value.F(k, value.NewString(v)) }

func TestParseErrors(t *testing.T) {
	locale := str("locale", "en")
	for _, c := range []struct {
		doc  []byte
		code mongoerr.Code
	}{
		{doc(), mongoerr.IDLFailedToParse},
		{doc(value.F("locale", value.NewInt32(1))), mongoerr.TypeMismatch},
		{doc(str("locale", "xx_yy")), mongoerr.BadValue},
		{doc(str("locale", "en-US")), mongoerr.BadValue},
		{doc(str("locale", "en_us")), mongoerr.BadValue},
		{doc(str("locale", "de@collation=nonsense")), mongoerr.BadValue},
		{doc(locale, value.F("strength", value.NewInt32(6))), mongoerr.BadValue},
		{doc(locale, value.F("strength", value.NewString("3"))), mongoerr.TypeMismatch},
		{doc(locale, value.F("backwards", value.NewNull())), mongoerr.TypeMismatch},
		{doc(locale, value.F("strength", value.NewInt32(1)), value.F("backwards", value.NewBool(true))), mongoerr.BadValue},
		{doc(locale, value.F("strength", value.NewInt32(2)), str("caseFirst", "upper")), mongoerr.BadValue},
		{doc(locale, str("alternate", "off")), mongoerr.BadValue},
		{doc(locale, str("version", "58")), mongoerr.IncompatibleCollationVersion},
		{doc(locale, str("Strength", "3")), mongoerr.IDLUnknownField},
	} {
		if _, err := Parse(c.doc); mongoerr.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want code %d", value.ShowDoc(c.doc), err, c.code)
		}
	}
}

func TestDocument(t *testing.T) {
	s, err := Parse(doc(str("locale", "fr_CA"), value.F("strength", value.NewDouble(2.9))))
	if err != nil {
		t.Fatal(err)
	}
	want := `{ locale: "fr_CA", caseLevel: false, caseFirst: "off", strength: 2, numericOrdering: false, alternate: "non-ignorable", maxVariable: "punct", normalization: false, backwards: true, version: "57.1" }`
	if got := value.ShowDoc(s.Document()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s, err := Parse(doc(str("locale", "simple"), value.F("strength", value.NewInt32(1)))); s != nil || err != nil || s.Collator() != nil {
		t.Errorf("simple: %v %v", s, err)
	}
}

func collator(t *testing.T, fs ...value.Field) value.Collator {
	t.Helper()
	s, err := Parse(doc(fs...))
	if err != nil {
		t.Fatal(err)
	}
	return s.Collator()
}

func TestOrder(t *testing.T) {
	strength := func(n int32) value.Field { return value.F("strength", value.NewInt32(n)) }
	on := func(k string) value.Field { return value.F(k, value.NewBool(true)) }
	for _, c := range []struct {
		spec []value.Field
		a, b string
		want int
	}{
		{[]value.Field{str("locale", "en")}, "a", "A", -1},
		{[]value.Field{str("locale", "en")}, "A", "b", -1},
		{[]value.Field{str("locale", "en"), strength(2)}, "a", "A", 0},
		{[]value.Field{str("locale", "en"), strength(2)}, "a", "á", -1},
		{[]value.Field{str("locale", "en"), strength(1)}, "a", "Á", 0},
		{[]value.Field{str("locale", "en"), strength(1), on("caseLevel")}, "a", "á", 0},
		{[]value.Field{str("locale", "en"), strength(1), on("caseLevel")}, "a", "A", -1},
		{[]value.Field{str("locale", "en"), str("caseFirst", "upper")}, "a", "A", 1},
		{[]value.Field{str("locale", "en"), str("caseFirst", "upper")}, "A", "á", -1},
		{[]value.Field{str("locale", "en"), on("numericOrdering")}, "a10", "a9", 1},
		{[]value.Field{str("locale", "en"), str("alternate", "shifted")}, "a b", "ab", 0},
		{[]value.Field{str("locale", "en"), str("alternate", "shifted")}, "a-b", "ab", 0},
		{[]value.Field{str("locale", "en"), str("alternate", "shifted"), strength(4)}, "a-b", "ab", -1},
		{[]value.Field{str("locale", "en"), str("alternate", "shifted"), str("maxVariable", "space")}, "a b", "ab", 0},
		{[]value.Field{str("locale", "en"), str("alternate", "shifted"), str("maxVariable", "space")}, "a-b", "ab", -1},
		{[]value.Field{str("locale", "en"), str("alternate", "shifted"), on("numericOrdering")}, "file 2", "file10", -1},
		{[]value.Field{str("locale", "en"), str("alternate", "shifted"), on("numericOrdering")}, "file 10", "file10", 0},
		{[]value.Field{str("locale", "en"), str("alternate", "shifted"), on("numericOrdering")}, "file-9", "file 10", -1},
		{[]value.Field{str("locale", "en"), str("alternate", "shifted"), on("numericOrdering"), strength(4)}, "file 10", "file10", -1},
		{[]value.Field{str("locale", "es")}, "chico", "cz", -1},
		{[]value.Field{str("locale", "de@collation=phonebook")}, "ä", "ad", 1},
		{[]value.Field{str("locale", "da")}, "a", "A", 1},
		{[]value.Field{str("locale", "fr_CA")}, "coté", "côte", 1},
		{[]value.Field{str("locale", "fr")}, "coté", "côte", -1},
		{[]value.Field{str("locale", "de"), strength(1)}, "straße", "strasse", 0},
		{[]value.Field{str("locale", "tr"), strength(1)}, "I", "ı", 0},
		{[]value.Field{str("locale", "sv")}, "ä", "z", 1},
		{[]value.Field{str("locale", "en_US_POSIX"), strength(1)}, "B", "a", -1},
		{[]value.Field{str("locale", "en"), strength(5)}, "é", "e\u0301", 0},
		{[]value.Field{str("locale", "en"), strength(5)}, "a", "a\x00", -1},
	} {
		col := collator(t, c.spec...)
		if got := sign(col.Compare([]byte(c.a), []byte(c.b))); got != c.want {
			t.Errorf("%s: %q against %q: %d, want %d", value.ShowDoc(doc(c.spec...)), c.a, c.b, got, c.want)
		}
	}
}

// Compare and keys agree, whichever path Compare takes.
func TestKeysAgree(t *testing.T) {
	letters := []string{"a", "A", "b", "B", "z", " ", "-", "é", "e\u0301", "ß", "0", "9", "$", "ä", "\x00", "ー", "あ", "ア"}
	var specs [][]value.Field
	for _, loc := range []string{"en", "de", "sv", "ja"} {
		for n := int32(1); n <= 5; n++ {
			for _, alt := range []string{"shifted", "non-ignorable"} {
				for _, max := range []string{"space", "punct"} {
					for _, cl := range []bool{true, false} {
						specs = append(specs, []value.Field{str("locale", loc), value.F("strength", value.NewInt32(n)), str("alternate", alt), str("maxVariable", max), value.F("caseLevel", value.NewBool(cl))})
					}
				}
			}
		}
	}
	r := rand.New(rand.NewSource(1))
	word := func() (s []byte) {
		for n := r.Intn(5); n > 0; n-- {
			s = append(s, letters[r.Intn(len(letters))]...)
		}
		return s
	}
	for _, spec := range specs {
		col := collator(t, spec...)
		for i := 0; i < 100; i++ {
			a, b := word(), word()
			if c, k := sign(col.Compare(a, b)), bytes.Compare(col.Key(nil, a), col.Key(nil, b)); c != k {
				t.Fatalf("%s: %q against %q: Compare %d, keys %d", value.ShowDoc(doc(spec...)), a, b, c, k)
			}
		}
	}
}

func BenchmarkCompareASCII(b *testing.B) { benchmarkCompare(b, "some words", "some other words") }

func BenchmarkCompareAccents(b *testing.B) { benchmarkCompare(b, "déjà vu", "deja vu") }

func benchmarkCompare(b *testing.B, x, y string) {
	s, _ := Parse(doc(str("locale", "en"), value.F("strength", value.NewInt32(2))))
	c, xs, ys := s.Collator(), []byte(x), []byte(y)
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		c.Compare(xs, ys)
	}
}
