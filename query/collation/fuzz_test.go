package collation

import (
	"bytes"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzCollation: no specification may do worse than fail, and sort keys are in the order of the strings.
func FuzzCollation(f *testing.F) {
	names := []string{"locale", "strength", "caseLevel", "caseFirst", "numericOrdering", "alternate", "maxVariable", "backwards", "normalization", "version"}
	f.Add([]byte{1, 0}, "résumé 10", "Resume 9")
	f.Fuzz(func(t *testing.T, in []byte, a, b string) {
		doc := valuetest.NewGenerator(in, names).Doc()
		if value.Lookup(doc, "locale").T == value.Missing {
			bits := append(in, 0, 0)
			doc = value.Doc(value.F("locale", value.NewString([]string{"en", "fr", "sv", "de", "zh"}[int(bits[0])%5])), value.F("strength", value.NewInt32(int32(bits[1]%5)+1)),
				value.F("numericOrdering", value.NewBool(bits[0]&8 != 0)), value.F("caseLevel", value.NewBool(bits[0]&16 != 0)), value.F("alternate", value.NewString([]string{"non-ignorable", "shifted"}[bits[0]>>5&1])))
		}
		spec, err := Parse(doc)
		if err != nil {
			return
		}
		_ = spec.Document()
		c := spec.Collator()
		if c == nil {
			return
		}
		got := c.Compare([]byte(a), []byte(b))
		if k := bytes.Compare(c.Key(nil, []byte(a)), c.Key(nil, []byte(b))); k != got || c.Compare([]byte(b), []byte(a)) != -got {
			t.Errorf("%q and %q under %s: %d, by their keys %d, the other way %d", a, b, value.ShowDoc(doc), got, k, c.Compare([]byte(b), []byte(a)))
		}
	})
}
