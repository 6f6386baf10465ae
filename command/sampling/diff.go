package sampling

import "github.com/shoaldb/shoal/query/value"

// Diff returns the fields that differ between two versions of a document: {name: "i"} for a new field, "d" for a removed one, "u" for a changed
// value, and a document of the same form if both values are documents. It contains no values.
func Diff(old, next []byte) []byte {
	out, m := value.Begin(nil)
	for k, a := range value.Elements(old) {
		b := value.Lookup(next, k)
		switch {
		case b.IsMissing():
			out = value.Append(out, k, value.NewString("d"))
		case a.T == value.Document && b.T == value.Document:
			if d := Diff(a.Doc(), b.Doc()); value.Count(d) > 0 {
				out = value.Append(out, k, value.NewDocument(d))
			}
		case a.T != b.T || value.Compare(a, b) != 0:
			out = value.Append(out, k, value.NewString("u"))
		}
	}
	for k := range value.Elements(next) {
		if value.Lookup(old, k).IsMissing() {
			out = value.Append(out, k, value.NewString("i"))
		}
	}
	return value.End(out, m)
}

// Touches reports whether a diff has a change at a path, above it or below it.
func Touches(diff []byte, path string) bool {
	head, rest := cutDot(path)
	v := value.Lookup(diff, head)
	switch {
	case v.IsMissing():
		return false
	case v.T != value.Document || rest == "":
		return true
	}
	return Touches(v.Doc(), rest)
}
