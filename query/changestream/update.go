package changestream

import (
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// description builds an updateDescription while it walks over a delta.
type description struct {
	updated, ambiguous       []byte
	removed, truncated, path []value.Value
	names                    []string
	unclear                  int // number of ambiguous components of the path
}

// describeUpdate turns a delta of the oplog ({u, i, d, s…}, see query/update) into an updateDescription. With expanded,
// ambiguous paths (a name with a dot, or one that looks like an index) are listed with their parts.
func describeUpdate(diff []byte, expanded bool) []byte {
	d := &description{}
	d.document(diff)
	dst, mark := value.Begin(nil)
	dst, m := value.BeginKey(dst, value.Document, "updatedFields")
	dst = value.End(append(dst, d.updated...), m)
	dst = value.Append(dst, "removedFields", value.NewArray(value.ArrayOf(d.removed...)))
	dst = value.Append(dst, "truncatedArrays", value.NewArray(value.ArrayOf(d.truncated...)))
	if expanded {
		dst, m = value.BeginKey(dst, value.Document, "disambiguatedPaths")
		dst = value.End(append(dst, d.ambiguous...), m)
	}
	return value.End(dst, mark)
}

func unclear(name string) int {
	if value.IsIndex(name) || strings.Contains(name, ".") {
		return 1
	}
	return 0
}

// at calls f with the path extended by one component: a field name or an array index.
func (d *description) at(name string, part value.Value, f func(path string)) {
	n := 0
	if part.T == value.String {
		n = unclear(name)
		if len(d.names) == 0 && value.IsIndex(name) {
			n = 0 // a number at the top can only be a field
		}
	}
	d.names, d.path, d.unclear = append(d.names, name), append(d.path, part), d.unclear+n
	f(strings.Join(d.names, "."))
	d.names, d.path, d.unclear = d.names[:len(d.names)-1], d.path[:len(d.path)-1], d.unclear-n
}

// note records the path as ambiguous, if it is.
func (d *description) note(path string) {
	if d.unclear > 0 {
		d.ambiguous = value.Append(d.ambiguous, path, value.NewArray(value.ArrayOf(d.path...)))
	}
}

func (d *description) update(v value.Value) func(path string) {
	return func(path string) {
		d.updated = value.Append(d.updated, path, v)
		d.note(path)
	}
}

func (d *description) document(diff []byte) {
	for key, v := range value.Elements(diff) {
		switch {
		case key == "d":
			for name := range value.Elements(v.Doc()) {
				d.at(name, value.NewString(name), func(path string) {
					d.removed = append(d.removed, value.NewString(path))
					d.note(path)
				})
			}
		case key == "u" || key == "i":
			for name, e := range value.Elements(v.Doc()) {
				d.at(name, value.NewString(name), d.update(e))
			}
		case strings.HasPrefix(key, "s") && v.T == value.Document:
			d.at(key[1:], value.NewString(key[1:]), func(path string) { d.below(path, v.Doc()) })
		}
	}
}

// below walks over the delta of the document or array that the path names.
func (d *description) below(path string, diff []byte) {
	if value.Lookup(diff, "a").Truthy() {
		d.array(path, diff)
	} else {
		d.document(diff)
	}
}

func (d *description) array(path string, diff []byte) {
	for key, v := range value.Elements(diff) {
		switch {
		case key == "l":
			n, _ := v.AsInt64()
			d.truncated = append(d.truncated, value.NewDocument(value.Doc(value.F("field", value.NewString(path)), value.F("newSize", value.NewInt32(int32(n))))))
			d.note(path)
		case len(key) > 1 && (key[0] == 'u' || key[0] == 's'):
			i, err := strconv.Atoi(key[1:])
			if err != nil {
				continue
			}
			part := value.NewInt32(int32(i))
			if key[0] == 'u' {
				d.at(key[1:], part, d.update(v))
			} else {
				d.at(key[1:], part, func(path string) { d.below(path, v.Doc()) })
			}
		}
	}
}
