package sortkey

import (
	"math/rand/v2"
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Part is one field of a sort specification.
type Part struct {
	Path []string
	Sign int    // 1 ascending, -1 descending
	Meta string // a kind of metadata instead of a path
}

// Pattern is a compiled sort specification.
type Pattern struct {
	Parts    []Part
	Collator value.Collator
	flat     bool // every path is a single component
}

// MaxParts is the maximum number of fields in a sort.
const MaxParts = 32

// New returns a pattern of parts.
func New(parts []Part, c value.Collator) *Pattern {
	p := &Pattern{Parts: parts, Collator: c, flat: true}
	for _, x := range parts {
		p.flat = p.flat && len(x.Path) == 1 && x.Meta == ""
	}
	return p
}

// Dotted returns the path as written.
func (p Part) Dotted() string { return strings.Join(p.Path, ".") }

// Spec returns the sort specification as a document.
func (p *Pattern) Spec() []byte {
	dst, mark := value.Begin(nil)
	for _, x := range p.Parts {
		if x.Meta != "" {
			dst = value.Append(dst, x.Dotted(), value.NewDocument(value.Doc(value.F("$meta", value.NewString(x.Meta)))))
			continue
		}
		dst = value.Append(dst, x.Dotted(), value.NewInt32(int32(x.Sign)))
	}
	return value.End(dst, mark)
}

// Compare orders two keys of the pattern.
func (p *Pattern) Compare(a, b []value.Value) int {
	for i := range p.Parts {
		if c := value.CompareCollated(a[i], b[i], p.Collator); c != 0 {
			return c * p.Parts[i].Sign
		}
	}
	return 0
}

// Key appends doc's key to dst. The values borrow from doc. meta returns metadata for parts with Meta; it may be
// nil if there are none.
func (p *Pattern) Key(dst []value.Value, doc []byte, meta func(kind string) value.Value) ([]value.Value, error) {
	start := len(dst)
	arrays := 0
	for i := range p.Parts {
		part := &p.Parts[i]
		var v value.Value
		switch {
		case part.Meta != "":
			if meta != nil {
				v = meta(part.Meta)
			}
			if v.T == value.Missing {
				v = part.withoutMeta()
			}
		case len(part.Path) == 1:
			v = value.Lookup(doc, part.Path[0])
			if v.T == value.Array {
				arrays++
			} else if v.T == value.Missing {
				v = value.NewNull()
			}
		default:
			var hit bool
			if v, hit = descend(doc, part.Path); hit {
				arrays++
			}
		}
		dst = append(dst, v)
	}
	switch {
	case arrays == 0:
		return dst, nil
	case len(p.Parts) == 1:
		dst[start] = p.best(doc, &p.Parts[0])
		return dst, nil
	}
	return dst, p.compound(dst[start:], doc)
}

// withoutMeta returns the key of a document without the metadata: null, or any number if a random order is
// requested.
func (p *Part) withoutMeta() value.Value {
	if p.Meta == "randVal" {
		return value.NewDouble(rand.Float64())
	}
	return value.NewNull()
}

// descend follows a path through documents; hit is true if it meets an array.
func descend(doc []byte, path []string) (v value.Value, hit bool) {
	for i, name := range path {
		v = value.Lookup(doc, name)
		switch v.T {
		case value.Array:
			return v, true
		case value.Document:
			doc = v.Doc()
		case value.Missing:
			return value.NewNull(), false
		default:
			if i < len(path)-1 {
				return value.NewNull(), false
			}
		}
	}
	return v, false
}

// best returns the key of a single part whose path leads through arrays.
func (p *Pattern) best(doc []byte, part *Part) value.Value {
	var out value.Value
	found := false
	each(value.NewDocument(doc), part.Path, func(v value.Value) {
		if !found || value.CompareCollated(v, out, p.Collator)*part.Sign < 0 {
			out, found = v, true
		}
	})
	if !found {
		return value.NewNull()
	}
	return out
}

// each calls fn for the values that an index on path would have for v.
func each(v value.Value, path []string, fn func(value.Value)) {
	if len(path) == 0 {
		if v.T != value.Array {
			if v.T == value.Missing {
				v = value.NewNull()
			}
			fn(v)
			return
		}
		if value.Count(v.Doc()) == 0 {
			fn(value.NewUndefined())
			return
		}
		for it := value.Walk(v.Doc()); ; {
			_, e, ok := it.Next()
			if !ok {
				return
			}
			fn(e)
		}
	}
	switch v.T {
	case value.Document:
		each(value.Lookup(v.Doc(), path[0]), path[1:], fn)
	case value.Array:
		eachElement(v, path, fn)
	default:
		fn(value.NewNull())
	}
}

// eachElement leads a path through an array: into its documents, or to one element by its index.
func eachElement(arr value.Value, path []string, fn func(value.Value)) {
	if e := value.Lookup(arr.Doc(), path[0]); e.T != value.Missing && value.IsIndex(path[0]) {
		each(e, path[1:], fn)
		return
	}
	any := false
	for it := value.Walk(arr.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			break
		}
		any = true
		if e.T == value.Document {
			each(e, path, fn)
		} else {
			fn(value.NewNull())
		}
	}
	if !any {
		fn(value.NewNull())
	}
}

// compound makes whole keys if parts lead through arrays, and leaves the first of them in key.
func (p *Pattern) compound(key []value.Value, doc []byte) error {
	roots := make([]value.Value, len(p.Parts))
	paths := make([][]string, len(p.Parts))
	for i := range p.Parts {
		roots[i], paths[i] = value.NewDocument(doc), p.Parts[i].Path
		if p.Parts[i].Meta != "" {
			roots[i], paths[i] = key[i], nil
		}
	}
	var out []value.Value
	err := p.expand(roots, paths, func(k []value.Value) {
		if out == nil || p.Compare(k, out) < 0 {
			out = append(out[:0], k...)
		}
	})
	copy(key, out)
	return err
}

// expand follows all parts down to the first array, and continues once per element of it.
func (p *Pattern) expand(at []value.Value, paths [][]string, emit func([]value.Value)) error {
	at, paths = append([]value.Value(nil), at...), append([][]string(nil), paths...)
	var arr value.Value
	for i := range at {
		for len(paths[i]) > 0 && at[i].T == value.Document {
			at[i], paths[i] = value.Lookup(at[i].Doc(), paths[i][0]), paths[i][1:]
		}
		if at[i].T != value.Array {
			if at[i].T == value.Missing || len(paths[i]) > 0 {
				at[i], paths[i] = value.NewNull(), nil
			}
			continue
		}
		if arr.T == value.Array && !sameBytes(arr.Doc(), at[i].Doc()) {
			return mongoerr.New(mongoerr.BadValue, "cannot sort with keys that are parallel arrays")
		}
		arr = at[i]
	}
	if arr.T != value.Array {
		emit(at)
		return nil
	}
	elems := value.Values(arr.Doc())
	if len(elems) == 0 {
		elems = []value.Value{{}}
	}
	for _, e := range elems {
		next, rest := append([]value.Value(nil), at...), append([][]string(nil), paths...)
		for i := range next {
			if next[i].T != value.Array {
				continue
			}
			switch {
			case len(paths[i]) == 0 && e.T == value.Missing:
				next[i] = value.NewUndefined()
			case len(paths[i]) > 0 && value.IsIndex(paths[i][0]):
				next[i], rest[i] = value.Lookup(arr.Doc(), paths[i][0]), paths[i][1:]
			case len(paths[i]) > 0 && e.T != value.Document:
				next[i], rest[i] = value.NewNull(), nil
			default:
				next[i] = e
			}
		}
		if err := p.settle(next, rest, emit); err != nil {
			return err
		}
	}
	return nil
}

// settle continues the parts whose paths do not end yet; an array inside an array is itself the key.
func (p *Pattern) settle(at []value.Value, paths [][]string, emit func([]value.Value)) error {
	for i := range at {
		if len(paths[i]) > 0 {
			return p.expand(at, paths, emit)
		}
	}
	emit(at)
	return nil
}

func sameBytes(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
