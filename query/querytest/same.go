package querytest

import (
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// Sorted puts documents into an order that depends on nothing but their values.
func Sorted(docs []value.Value) []value.Value {
	out := slices.Clone(docs)
	slices.SortStableFunc(out, value.Compare)
	return out
}

// Same tells whether two lists hold the same documents; ordered asks for the same order, too.
func Same(a, b []value.Value, ordered bool) bool {
	if len(a) != len(b) {
		return false
	}
	if !ordered {
		a, b = Sorted(a), Sorted(b)
	}
	for i := range a {
		if value.Compare(a[i], b[i]) != 0 {
			return false
		}
	}
	return true
}

// SortFields gives documents with their fields, at every depth, in the order of their names: results that were made of
// index keys have them in the order of the key.
func SortFields(docs []value.Value) []value.Value {
	out := make([]value.Value, len(docs))
	for i, d := range docs {
		out[i] = sortFields(d)
	}
	return out
}

func sortFields(v value.Value) value.Value {
	if v.T != value.Document {
		return v
	}
	var fields []value.Field
	for k, e := range value.Elements(v.Doc()) {
		fields = append(fields, value.F(k, sortFields(e)))
	}
	slices.SortStableFunc(fields, func(a, b value.Field) int { return strings.Compare(a.Key, b.Key) })
	return value.NewDocument(value.Doc(fields...))
}
