package shape

import (
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// form appends the shape of one part of a command, under key.
type form = func(w *writer, dst, key []byte, v value.Value) []byte

// writer is one walk over a command.
type writer struct {
	shaped bool                // the input is a shape: its literals are types already
	name   func(string) string // replaces names; nil keeps them
}

// begin starts an element that is a document or an array.
func begin(dst []byte, t value.Type, key []byte) (out []byte, mark int) {
	dst = append(dst, byte(t))
	return value.Begin(append(append(dst, key...), 0))
}

func index(i int) []byte { return strconv.AppendInt(nil, int64(i), 10) }

// literal keeps only the type.
func literal(w *writer, dst, key []byte, v value.Value) []byte {
	if w.shaped {
		return value.AppendKeyBytes(dst, key, v)
	}
	return appendString(dst, key, typeOf(v))
}

func appendString(dst, key []byte, s string) []byte {
	return value.AppendKeyBytes(dst, key, value.NewString(s))
}

// typeOf returns the form of a literal in a shape. An array shows the common type of its elements.
func typeOf(v value.Value) string {
	if v.T != value.Array {
		return scalarType(v.T)
	}
	one, n := "", 0
	for it := value.Walk(v.Doc()); ; n++ {
		_, e, ok := it.Next()
		if !ok {
			break
		}
		if t := scalarType(e.T); n == 0 {
			one = t
		} else if t != one {
			return "?array<>"
		}
	}
	if n == 0 {
		return "[]"
	}
	return "?array<" + one + ">"
}

func scalarType(t value.Type) string {
	switch {
	case t.Numeric():
		return "?number"
	case t == value.String:
		return "?string"
	case t == value.Document:
		return "?object"
	}
	return "?" + t.Name()
}

// keep keeps a value unchanged: keywords, flags, collations.
func keep(_ *writer, dst, key []byte, v value.Value) []byte { return value.AppendKeyBytes(dst, key, v) }

// flag keeps a flag's meaning, however it is written.
func flag(_ *writer, dst, key []byte, v value.Value) []byte {
	return value.AppendKeyBytes(dst, key, value.NewBool(v.Truthy()))
}

// word keeps a string, which is a keyword, and treats anything else as a literal.
func word(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T == value.String {
		return keep(w, dst, key, v)
	}
	return literal(w, dst, key, v)
}

// unlessZero is the form of a number that is omitted if it is zero.
func unlessZero(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T.Numeric() && v.AsFloat64() == 0 {
		return dst
	}
	return literal(w, dst, key, v)
}

// notEmpty omits documents without fields.
func notEmpty(f form) form {
	return func(w *writer, dst, key []byte, v value.Value) []byte {
		if v.T == value.Document && len(v.Doc()) <= 5 {
			return dst
		}
		return f(w, dst, key, v)
	}
}

// renamed returns a dotted name in the form of the shape.
func (w *writer) renamed(name string) string {
	if w.name == nil || name == "" {
		return name
	}
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = w.name(p)
	}
	return strings.Join(parts, ".")
}

// renamedKey is renamed for a key.
func (w *writer) renamedKey(key []byte) []byte {
	if w.name == nil {
		return key
	}
	return []byte(w.renamed(string(key)))
}

// path is the form of a string that names a field.
func path(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T != value.String {
		return literal(w, dst, key, v)
	}
	if w.name == nil {
		return keep(w, dst, key, v)
	}
	return appendString(dst, key, w.renamed(v.Str()))
}

// paths is the form of one path, or a list of them.
func paths(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T == value.Array {
		return list(path)(w, dst, key, v)
	}
	return path(w, dst, key, v)
}

// whole is the form of a name that is not a path although it may have dots: a collection's, a database's, an index's.
func whole(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T != value.String {
		return literal(w, dst, key, v)
	}
	if w.name == nil {
		return keep(w, dst, key, v)
	}
	return appendString(dst, key, w.name(v.Str()))
}

var namespace = fields{"db": whole, "coll": whole}

// collection is the form of the name of a collection, or a document of database and collection.
func collection(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T == value.Document {
		return document(namespace)(w, dst, key, v)
	}
	return whole(w, dst, key, v)
}

// hint is the form of an index's name or pattern.
func hint(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T == value.Document {
		return notEmpty(sortOrder)(w, dst, key, v)
	}
	return whole(w, dst, key, v)
}

// list is the form of an array whose elements have one form.
func list(f form) form {
	return func(w *writer, dst, key []byte, v value.Value) []byte {
		if v.T != value.Array {
			return literal(w, dst, key, v)
		}
		dst, mark := begin(dst, value.Array, key)
		i := 0
		for it := value.Walk(v.Doc()); ; i++ {
			_, e, ok := it.Next()
			if !ok {
				return value.End(dst, mark)
			}
			dst = f(w, dst, index(i), e)
		}
	}
}

// fields are the keywords of a document, each with its form; "" is the form of all others.
type fields map[string]form

// document is the form of a document whose keys are keywords.
func document(fs fields) form {
	return eachField(func(w *writer, dst, k []byte, e value.Value) []byte {
		f := fs[string(k)]
		if f == nil {
			if f = fs[""]; f == nil {
				f = literal
			}
		}
		return f(w, dst, k, e)
	})
}

// names is the form of a document whose keys are the client's names.
func names(f form) form { return eachField(named(f)) }

// eachField is the form of a document whose fields have one form.
func eachField(f form) form {
	return func(w *writer, dst, key []byte, v value.Value) []byte {
		if v.T != value.Document {
			return literal(w, dst, key, v)
		}
		dst, mark := begin(dst, value.Document, key)
		for it := value.Walk(v.Doc()); ; {
			k, e, ok := it.Next()
			if !ok {
				return value.End(dst, mark)
			}
			dst = f(w, dst, k, e)
		}
	}
}

// named is the form of a value under a key that is a name.
func named(f form) form {
	return func(w *writer, dst, key []byte, v value.Value) []byte { return f(w, dst, w.renamedKey(key), v) }
}

// either is one form for documents and another for the rest.
func either(doc, other form) form {
	return func(w *writer, dst, key []byte, v value.Value) []byte {
		if v.T == value.Document {
			return doc(w, dst, key, v)
		}
		return other(w, dst, key, v)
	}
}

// sortOrder is the form of a sort pattern, which is not a literal: directions and metadata are kept.
func sortOrder(w *writer, dst, key []byte, v value.Value) []byte {
	return either(names(direction), literal)(w, dst, key, v)
}

func direction(w *writer, dst, key []byte, v value.Value) []byte {
	if v.T.Numeric() {
		if n, ok := v.AsInt64(); ok && int64(int32(n)) == n {
			v = value.NewInt32(int32(n))
		}
	}
	return keep(w, dst, key, v)
}

// anything is the form of what no table describes: fields keep their names, literals show their types.
func anything(w *writer, dst, key []byte, v value.Value) []byte {
	return eachField(anything)(w, dst, key, v)
}

// operatorDoc reports whether a value is a document that begins with an operator.
func operatorDoc(v value.Value) bool {
	if v.T != value.Document {
		return false
	}
	k := firstKey(v.Doc())
	return len(k) > 0 && k[0] == '$'
}

func firstKey(doc []byte) []byte {
	it := value.Walk(doc)
	k, _, _ := it.Next()
	return k
}
