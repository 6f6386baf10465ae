package querytest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// Sorted sorts documents in an order that depends only on their values.
func Sorted(docs []value.Value) []value.Value {
	out := slices.Clone(docs)
	slices.SortStableFunc(out, value.Compare)
	return out
}

// Same reports whether two lists have the same documents; with ordered, also in the same order.
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

// Identical reports whether two lists have the same documents in the same order, with values of the same types.
func Identical(a, b []value.Value) bool {
	return slices.EqualFunc(a, b, func(x, y value.Value) bool {
		return x.T == y.T && bytes.Equal(value.Doc(value.F("", x)), value.Doc(value.F("", y)))
	})
}

// SortFields returns documents with their fields, at every depth, in the order of their names: results made from
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

// Diff shows what two lists of documents do not have in common or, if they have the same documents, the first position that differs.
func Diff(got, want []value.Value) string {
	g, w := Sorted(got), Sorted(want)
	var b strings.Builder
	fmt.Fprintf(&b, "%d results instead of %d", len(g), len(w))
	lines := 0
	line := func(sign string, v value.Value) {
		if lines++; lines < 20 {
			b.WriteString("\n  " + sign + " " + value.Show(v))
		}
	}
	for len(g)+len(w) > 0 {
		switch c := compareHeads(g, w); {
		case c < 0:
			line("+", g[0])
			g = g[1:]
		case c > 0:
			line("-", w[0])
			w = w[1:]
		default:
			g, w = g[1:], w[1:]
		}
	}
	for i := range want {
		if lines == 0 && i < len(got) && value.Compare(got[i], want[i]) != 0 {
			fmt.Fprintf(&b, "\n  at %d: %s\n  instead of %s", i, value.Show(got[i]), value.Show(want[i]))
			break
		}
	}
	return b.String()
}

func compareHeads(a, b []value.Value) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return value.Compare(a[0], b[0])
}
