package match

import (
	"slices"
	"testing"

	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzFilter: no filter may do worse than fail, to compile or to match.
func FuzzFilter(f *testing.F) {
	names := []string{"$and", "$or", "$nor", "$not", "$expr", "$jsonSchema", "$text", "$search", "$comment", "$geometry", "$maxDistance", "$minDistance", "type", "coordinates",
		"$box", "$center", "$centerSphere", "$polygon", "bsonType", "properties", "required", "$options", "$ref", "$id", "$eq", "$sampleRate", "$alwaysTrue"}
	for name := range operators {
		names = append(names, name)
	}
	slices.Sort(names)
	f.Fuzz(func(t *testing.T, in []byte) {
		doc := valuetest.NewGenerator(in, names).Doc()
		m, err := Compile(doc, &Options{})
		if err != nil {
			return
		}
		for _, d := range valuetest.Subjects() {
			if ok, err := m.Match(d); err == nil && !ok {
				m.Explain(d)
			}
		}
		_ = m.Root().Serialize()
	})
}
