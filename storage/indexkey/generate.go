package indexkey

import (
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/hashkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Options has a generator's inputs beyond the specification, which is pure data.
type Options struct {
	// Filter is the compiled partialFilterExpression; documents that it rejects have no keys. Nil accepts all.
	Filter func(doc []byte) (bool, error)
	// Collator is made from the specification's collation; nil compares strings bytewise.
	Collator value.Collator
}

// Generator computes the keys of documents in one index. It holds no state of a document and may be shared.
type Generator struct {
	spec   *Spec
	opts   Options
	fields []field
	flat   bool // no path has a dot
	wild   *wildcard
	geo    *geoFields  // nil if no field is geospatial
	text   *textFields // nil if no field is text
}

type field struct {
	path  string
	parts []string
	desc  bool
	hash  bool
}

// NewGenerator compiles a specification.
func NewGenerator(spec *Spec, opts Options) (*Generator, error) {
	g := &Generator{spec: spec, opts: opts, flat: true}
	for _, f := range spec.Fields {
		parts := strings.Split(f.Path, ".")
		g.flat = g.flat && len(parts) == 1
		g.fields = append(g.fields, field{path: f.Path, parts: parts, desc: f.Desc, hash: f.Kind == Hashed})
	}
	if spec.Kind == Wildcard {
		w, err := newWildcard(spec)
		g.wild = w
		return g, err
	}
	g.geo, g.text = newGeoFields(spec), newTextFields(spec)
	return g, nil
}

// Keys replaces the content of dst by the keys of doc.
func (g *Generator) Keys(doc []byte, dst *KeySet) error {
	dst.Reset()
	if g.opts.Filter != nil {
		if ok, err := g.opts.Filter(doc); err != nil || !ok {
			return err
		}
	}
	if g.wild != nil {
		return g.wild.keys(g, doc, dst)
	}
	if g.text != nil {
		if !g.text.read(doc, dst) {
			return nil
		}
	} else if g.geo != nil {
		if found, err := g.geo.read(g, doc, dst); err != nil || !found {
			return err
		}
	} else if g.flat && g.scalars(doc, dst) {
		return nil
	}
	for range g.fields {
		dst.Multikey = append(dst.Multikey, 0)
	}
	dst.stack = dst.stack[:0]
	for i := range g.fields {
		dst.stack = append(dst.stack, cursor{v: value.NewDocument(doc), rest: g.fields[i].parts, done: g.geo.has(i) || g.text.has(i)})
	}
	if err := g.expand(dst, 0); err != nil {
		return err
	}
	dst.finish()
	return nil
}

// scalars is the fast path for keys over top-level fields none of which holds an array or is hashed.
func (g *Generator) scalars(doc []byte, dst *KeySet) bool {
	key, tb := dst.buf, dst.tb[:0]
	found := false
	for i := range g.fields {
		f := &g.fields[i]
		v := value.Lookup(doc, f.path)
		switch {
		case v.T == value.Array || f.hash:
			return false
		case v.T == value.Missing:
			v = value.NewNull()
		default:
			found = true
		}
		key, tb = keystring.Append(key, tb, v, f.desc, g.opts.Collator)
	}
	if found || !g.spec.Sparse {
		mid := len(key)
		tb = keystring.TrimTypeBits(tb)
		key = append(key, tb...)
		dst.ents = append(dst.ents, entry{0, mid, len(key)})
	}
	dst.buf, dst.tb = key, tb
	return true
}

// cursor is the position that one field's path has reached in the document.
type cursor struct {
	v       value.Value // the value that the components before rest led to
	rest    []string
	done    bool // v is the value to be indexed
	missing bool // it was not there
}

// follow walks documents until the path's end or an array.
func (c *cursor) follow() {
	for !c.done && len(c.rest) > 0 {
		switch c.v.T {
		case value.Array:
			return
		case value.Document:
			c.v = value.Lookup(c.v.Doc(), c.rest[0])
			c.rest = c.rest[1:]
			if c.v.T != value.Missing {
				continue
			}
		}
		*c = cursor{v: value.NewNull(), done: true, missing: true}
	}
	if c.v.T != value.Array {
		c.done = true
	}
}

// expand completes the cursors at the top of the stack, from index `at` on, and emits their key; if paths meet an
// array it does so for each element. All paths that meet an array must meet the same one.
func (g *Generator) expand(s *KeySet, at int) error {
	first := -1
	for i := range g.fields {
		c := &s.stack[at+i]
		c.follow()
		if c.done {
			continue
		}
		if first < 0 {
			first = i
		} else if &s.stack[at+first].v.Doc()[0] != &c.v.Doc()[0] {
			return mongoerr.Newf(mongoerr.CannotIndexParallelArrays, "cannot index parallel arrays [%s] [%s]",
				g.lastPart(i, c), g.lastPart(first, &s.stack[at+first]))
		}
	}
	if first < 0 {
		return g.emit(s, at)
	}
	for i := range g.fields {
		if g.fields[i].hash && !s.stack[at+i].done {
			return mongoerr.Newf(16766, "hashed indexes do not currently support array values. Found array at path: %s",
				strings.Join(g.fields[i].parts[:g.depth(i, &s.stack[at+i])], "."))
		}
	}
	return g.expandArray(s, at, s.stack[at+first].v)
}

// depth returns how many components of field i's path its cursor has consumed.
func (g *Generator) depth(i int, c *cursor) int { return len(g.fields[i].parts) - len(c.rest) }

func (g *Generator) lastPart(i int, c *cursor) string { return g.fields[i].parts[g.depth(i, c)-1] }

func (g *Generator) expandArray(s *KeySet, at int, arr value.Value) error {
	n := len(g.fields)
	each := false
	for i := range n {
		c := &s.stack[at+i]
		if c.done {
			continue
		}
		if e, ok := positional(arr.Doc(), c.rest); ok {
			if err := checkAmbiguous(arr, c.rest[0]); err != nil {
				return err
			}
			c.jump(e)
			continue
		}
		each = true
		s.Multikey[i] |= 1 << min(uint(g.depth(i, c)-1), 63)
	}
	if !each {
		return g.expand(s, at)
	}
	next := at + n
	count := 0
	for it := value.Walk(arr.Doc()); ; count++ {
		_, e, ok := it.Next()
		if !ok && count > 0 {
			return nil
		}
		s.stack = append(s.stack[:next], s.stack[at:next]...)
		for i := range n {
			if c := &s.stack[next+i]; !c.done && sameArray(c.v, arr) {
				c.enter(e)
			}
		}
		if err := g.expand(s, next); err != nil {
			return err
		}
		if !ok {
			return nil
		}
	}
}

// jump continues from an array into the element that the path names by its index. An array found there is not
// expanded: it is either the value itself, or read as a document whose fields are its indexes; a field of that
// which holds an array is treated like any other. Matching does the same.
func (c *cursor) jump(e value.Value) {
	c.v, c.rest = e, c.rest[1:]
	inner := e.T == value.Array && len(c.rest) > 0
	if inner {
		c.v, c.rest = value.Lookup(e.Doc(), c.rest[0]), c.rest[1:]
	}
	switch {
	case c.v.T == value.Missing:
		*c = cursor{v: value.NewNull(), done: true, missing: true}
	case inner && c.v.T == value.Array:
	case len(c.rest) == 0:
		c.done = true
	}
}

func sameArray(v, arr value.Value) bool { return v.T == value.Array && &v.Doc()[0] == &arr.Doc()[0] }

// enter continues from an array into one of its elements; a Missing element represents those of an empty array.
func (c *cursor) enter(e value.Value) {
	switch {
	case e.T == value.Missing && len(c.rest) == 0:
		*c = cursor{v: value.NewUndefined(), done: true}
	case len(c.rest) == 0:
		*c = cursor{v: e, done: true}
	case e.T == value.Document:
		c.v = e
	default: // nothing is looked up in arrays directly within arrays
		*c = cursor{v: value.NewNull(), done: true, missing: true}
	}
}

// positional finds the element that a numeric path component names.
func positional(arr []byte, rest []string) (value.Value, bool) {
	if len(rest) == 0 || !isIndex(rest[0]) {
		return value.Value{}, false
	}
	v := value.Lookup(arr, rest[0])
	return v, v.T != value.Missing
}

func isIndex(s string) bool {
	if s == "" || len(s) > 1 && s[0] == '0' {
		return false
	}
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

func checkAmbiguous(arr value.Value, name string) error {
	for it := value.Walk(arr.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return nil
		}
		if e.T == value.Document && value.Lookup(e.Doc(), name).T != value.Missing {
			return mongoerr.Newf(16746, "Ambiguous field name found in array (do not use numeric field names in "+
				"embedded elements in an array), field: '%s' for array: %s", name, bsontext.Value(arr))
		}
	}
}

func (g *Generator) emit(s *KeySet, at int) error {
	if g.text != nil && !s.placing {
		return g.text.emit(g, s, at)
	}
	if g.geo != nil && !s.placing {
		return g.geo.emit(g, s, at, 0)
	}
	key, tb := s.key[:0], s.tb[:0]
	found := false
	for i := range g.fields {
		f, c := &g.fields[i], &s.stack[at+i]
		found = found || !c.missing
		v := c.v
		if f.hash {
			v = g.hashed(v)
		}
		key, tb = keystring.Append(key, tb, v, f.desc, g.collatorFor(f))
	}
	s.key, s.tb = key, tb
	if found || !g.spec.Sparse {
		s.add(key, tb)
	}
	return nil
}

func (g *Generator) collatorFor(f *field) value.Collator {
	if f.hash {
		return nil
	}
	return g.opts.Collator
}

// hashed returns the value that a hashed field stores for v.
func (g *Generator) hashed(v value.Value) value.Value {
	if g.opts.Collator != nil {
		v = value.Collated(v, g.opts.Collator)
	}
	return value.NewInt64(hashkey.Hash(v))
}
