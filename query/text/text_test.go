package text

import (
	"math"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

func document(s string) []byte { return value.Doc(value.F("a", value.NewString(s))) }

func index(language string) *Index {
	return NewIndex(value.Doc(value.F("weights", value.NewDocument(value.Doc(value.F("a", value.NewInt32(2))))),
		value.F("default_language", value.NewString(language))))
}

func TestQueries(t *testing.T) {
	flag := func(name string) value.Field { return value.F(name, value.NewBool(true)) }
	for _, c := range []struct {
		search, doc string
		want        bool
		flags       []value.Field
	}{
		{"running", "I run every morning", true, nil},
		{"the", "the fox", false, nil},
		{"well-known", "well done", true, nil},
		{"fox -brown", "the brown fox", false, nil},
		{"-brown", "red", false, nil},
		{`"brown fox" quick`, "a brown fox", true, nil},
		{`"brown fox" quick`, "quick rabbit", false, nil},
		{`fox -"quick brown"`, "quick brown fox", false, nil},
		{"cafe", "Café", true, nil},
		{"cafe", "Café", false, []value.Field{flag("$diacriticSensitive")}},
		{"Coffee", "COFFEE", false, []value.Field{flag("$caseSensitive")}},
		{"数据库", "数据库系统", false, nil},
		{"\xffword", "word", true, nil},
	} {
		q, err := ParseQuery(value.NewDocument(value.Doc(append(c.flags, value.F("$search", value.NewString(c.search)))...)))
		if err != nil {
			t.Fatal(err)
		}
		q.Bind(index("english"))
		if _, ok := q.Score(document(c.doc)); ok != c.want {
			t.Errorf("%s in %q: %v", c.search, c.doc, ok)
		}
	}
}

func TestScores(t *testing.T) {
	for _, c := range []struct {
		doc, term string
		want      float64
	}{
		{"coffee", "coffe", 2},       // the stem is not the whole text
		{"fox", "fox", 2.2},          // here it is
		{"fox dog", "fox", 2 * 0.75}, // half of the words
		{"fox fox", "fox", 2 * 1.5},  // the second occurrence counts half
		{"the fox", "fox", 2},        // stop words do not count
	} {
		if got := index("english").Scores(document(c.doc))[c.term]; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%q: %s scores %v, want %v", c.doc, c.term, got, c.want)
		}
	}
}

func TestLanguages(t *testing.T) {
	if n := len(index("none").Scores(document("the running"))); n != 2 {
		t.Errorf("%d terms without a language", n)
	}
	spanish := value.Doc(value.F("language", value.NewString("spanish")), value.F("a", value.NewString("corriendo")))
	if _, ok := index("english").Scores(spanish)["corr"]; !ok {
		t.Error("a document's own language is not used")
	}
}
