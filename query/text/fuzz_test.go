package text

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzSearch: no search text may do worse than fail.
func FuzzSearch(f *testing.F) {
	for _, s := range []string{"coffee -cake", `"ssl certificate" -"a b"`, "-", `"`, `""`, `- "a`, "naïve Straße-nbahn", "l'été", "\xff\xfe"} {
		f.Add([]byte{}, s, "english")
		f.Add([]byte{1, 2}, s, "fr")
	}
	f.Fuzz(func(t *testing.T, in []byte, search, language string) {
		if q, err := ParseQuery(value.NewDocument(valuetest.NewGenerator(in, []string{"$search", "$language", "$caseSensitive", "$diacriticSensitive"}).Doc())); err == nil {
			q.Terms()
		}
		q, err := ParseQuery(value.NewDocument(value.Doc(value.F("$search", value.NewString(search)), value.F("$language", value.NewString(language)))))
		if err != nil {
			return
		}
		q.Bind(NewIndex(value.Doc(value.F("weights", value.NewDocument(value.Doc(value.F("$**", value.NewInt32(1))))),
			value.F("default_language", value.NewString("english")), value.F("language_override", value.NewString("language")))))
		q.Terms()
		for _, d := range valuetest.Subjects() {
			q.Score(d)
		}
	})
}
