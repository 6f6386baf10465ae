package indexkey

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzSpec: no index specification may do worse than fail to be parsed or to generate keys.
func FuzzSpec(f *testing.F) {
	names := []string{"key", "name", "unique", "sparse", "hidden", "partialFilterExpression", "collation", "wildcardProjection", "weights", "default_language", "language_override",
		"textIndexVersion", "2dsphereIndexVersion", "bits", "min", "max", "$**", "a.$**", "_fts", "_ftsx", "locale", "strength", "2d", "2dsphere", "text", "hashed", "expireAfterSeconds"}
	f.Fuzz(func(t *testing.T, in []byte) {
		g := valuetest.NewGenerator(in, names)
		key := g.Doc()
		rest := g.Doc()
		b, mark := value.Begin(nil)
		b = value.Append(b, "key", value.NewDocument(key))
		s, err := ParseSpec(value.End(append(b, rest[4:len(rest)-1]...), mark))
		if err != nil || value.Count(key) == 0 {
			return
		}
		gen, err := NewGenerator(s, Options{})
		if err != nil {
			return
		}
		for _, d := range valuetest.Subjects() {
			var set KeySet
			_ = gen.Keys(d, &set)
		}
	})
}
