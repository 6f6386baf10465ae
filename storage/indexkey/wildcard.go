package indexkey

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// wildcard generates the keys of an index with a field that ends in $**. Such a field contributes two to the key:
// the path that was found, and the value there.
//
// Documents are entered and arrays are expanded one level without naming the element; empty documents and arrays in arrays
// are values, an empty array is undefined. A document in which the wildcard finds nothing has, in a compound index, one
// key with MinKey for path and value; in others it has none.
type wildcard struct {
	at     int    // index in the key pattern
	prefix string // of "a.b.$**", "a.b"
	scope  Scope
}

// Scope describes which paths a wildcard covers.
type Scope struct {
	prefix   string
	paths    []string // of wildcardProjection, flattened
	includes bool
	id       bool // _id is covered too
}

func newWildcard(spec *Spec) (*wildcard, error) {
	w := &wildcard{}
	for i, f := range spec.Fields {
		if f.Kind == Wildcard {
			w.at, w.prefix = i, strings.TrimSuffix(strings.TrimSuffix(f.Path, "$**"), ".")
		}
	}
	w.scope = WildcardScope(spec)
	return w, nil
}

// WildcardScope reads the scope out of a wildcard index's specification.
func WildcardScope(spec *Spec) Scope {
	var s Scope
	for _, f := range spec.Fields {
		if f.Kind == Wildcard {
			s.prefix = strings.TrimSuffix(strings.TrimSuffix(f.Path, "$**"), ".")
		}
	}
	if s.prefix != "" {
		s.id = true
	}
	flatten(spec.WildcardProjection, "", func(path string, v value.Value) {
		switch {
		case path == "_id":
			s.id = v.Truthy()
		default:
			s.paths, s.includes = append(s.paths, path), v.Truthy()
		}
	})
	if len(s.paths) == 0 && spec.WildcardProjection != nil && value.Count(spec.WildcardProjection) > 0 {
		s.includes = s.id // {_id: 1} covers _id alone, {_id: 0} everything else
	}
	return s
}

func flatten(doc []byte, prefix string, f func(path string, v value.Value)) {
	for k, v := range value.Elements(doc) {
		if v.T == value.Document {
			flatten(v.Doc(), prefix+k+".", f)
			continue
		}
		f(prefix+k, v)
	}
}

// Covers reports whether values at path are in the index.
func (s *Scope) Covers(path string) bool {
	if s.prefix != "" {
		return within(path, s.prefix)
	}
	if within(path, "_id") {
		return s.id
	}
	for _, p := range s.paths {
		if within(path, p) {
			return s.includes
		}
	}
	return !s.includes
}

// CoversBelow reports whether a covered path's subdocuments are covered with all their fields.
func (s *Scope) CoversBelow(path string) bool {
	if s.prefix != "" || s.includes {
		return true
	}
	for _, p := range s.paths {
		if within(p, path) {
			return false
		}
	}
	return true
}

// mayHold reports whether some path below a document at path is covered.
func (s *Scope) mayHold(path string) bool {
	if s.prefix != "" {
		return within(path, s.prefix) || within(s.prefix, path)
	}
	if s.Covers(path) {
		return true
	}
	for _, p := range s.paths {
		if s.includes && within(p, path) {
			return true
		}
	}
	return false
}

// within reports whether path is outer or lies below it.
func within(path, outer string) bool {
	return strings.HasPrefix(path, outer) && (len(path) == len(outer) || path[len(outer)] == '.')
}

// wildWalk is the state of one document's walk.
type wildWalk struct {
	g      *Generator
	set    *KeySet
	before []byte // encoded fields before the wildcard, with their type bits
	tb     []byte
	after  []value.Value
	path   []byte
}

func (w *wildcard) keys(g *Generator, doc []byte, dst *KeySet) error {
	walk := &wildWalk{g: g, set: dst}
	for range g.fields {
		dst.Multikey = append(dst.Multikey, 0)
	}
	for i := range g.fields {
		if i == w.at {
			continue
		}
		c := cursor{v: value.NewDocument(doc), rest: g.fields[i].parts}
		c.follow()
		if !c.done {
			return mongoerr.New(7246301, "Non-wildcard field of compound wildcard index cannot be multikey")
		}
		if i > w.at {
			walk.after = append(walk.after, c.v)
			continue
		}
		walk.before, walk.tb = keystring.Append(walk.before, walk.tb, c.v, g.fields[i].desc, g.opts.Collator)
	}
	walk.document(w, doc)
	if len(dst.ents) == 0 && len(g.fields) > 1 {
		walk.add(w, value.NewMinKey(), value.NewMinKey())
	}
	dst.finish()
	return nil
}

// document visits the fields of a document at walk.path.
func (k *wildWalk) document(w *wildcard, doc []byte) {
	for it := value.Walk(doc); ; {
		name, v, ok := it.Next()
		if !ok {
			return
		}
		mark := len(k.path)
		if mark > 0 {
			k.path = append(k.path, '.')
		}
		k.path = append(k.path, name...)
		if w.scope.mayHold(string(k.path)) {
			k.value(w, v)
		}
		k.path = k.path[:mark]
	}
}

func (k *wildWalk) value(w *wildcard, v value.Value) {
	switch {
	case v.T == value.Document && value.Count(v.Doc()) > 0:
		k.document(w, v.Doc())
	case v.T == value.Array:
		k.set.Multikey[w.at] |= 1
		if n := len(k.set.ArrayPaths); n == 0 || k.set.ArrayPaths[n-1] != string(k.path) {
			k.set.ArrayPaths = append(k.set.ArrayPaths, string(k.path))
		}
		k.array(w, v)
	default:
		k.leaf(w, v)
	}
}

func (k *wildWalk) array(w *wildcard, arr value.Value) {
	if value.Count(arr.Doc()) == 0 {
		k.leaf(w, value.NewUndefined())
		return
	}
	for it := value.Walk(arr.Doc()); ; {
		_, e, ok := it.Next()
		switch {
		case !ok:
			return
		case e.T == value.Document && value.Count(e.Doc()) > 0:
			k.document(w, e.Doc())
		default:
			k.leaf(w, e)
		}
	}
}

func (k *wildWalk) leaf(w *wildcard, v value.Value) {
	if w.scope.Covers(string(k.path)) {
		k.add(w, value.NewStringBytes(k.path), v)
	}
}

// add writes one key. The path is never collated.
func (k *wildWalk) add(w *wildcard, path, v value.Value) {
	s := k.set
	key, tb := append(s.key[:0], k.before...), append(s.tb[:0], k.tb...)
	key, tb = keystring.Append(key, tb, path, false, nil)
	key, tb = keystring.Append(key, tb, v, k.g.fields[w.at].desc, k.g.opts.Collator)
	for i, a := range k.after {
		key, tb = keystring.Append(key, tb, a, k.g.fields[w.at+1+i].desc, k.g.opts.Collator)
	}
	s.key, s.tb = key, tb
	s.add(key, tb)
}
