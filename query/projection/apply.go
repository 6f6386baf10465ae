package projection

import (
	"strconv"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// applier is the state of one Apply.
type applier struct {
	p    *Projection
	root []byte
	err  error
}

// Apply appends the projected form of doc to dst. meta may be nil. After an error the appended bytes are invalid.
func (p *Projection) Apply(dst, doc []byte, meta *Meta) ([]byte, error) {
	a := applier{p: p, root: doc}
	if p.frame != nil {
		p.frame.SetRoot(doc)
		if len(p.metas) > 0 {
			p.frame.SetMeta(meta)
		}
	}
	if p.positional != nil {
		return p.applyPositional(dst, doc, &a)
	}
	dst = a.document(dst, doc, p.root)
	return dst, a.err
}

// document writes one level: the fields that the document has, in its order, then new ones.
func (a *applier) document(dst, doc []byte, n *node) []byte {
	dst, mark := value.Begin(dst)
	done := newMarks(len(n.children))
	left := n.wanted
	start, end := 4, 4 // the run of elements of doc to be copied next
	at := 4
	for it := value.Walk(doc); ; {
		if left == 0 { // no more fields to look for: the rest is kept or dropped as a whole
			if !n.inclusive && len(doc) > 5 {
				end = len(doc) - 1
			}
			break
		}
		raw, key, v, ok := it.NextRaw()
		if !ok {
			break
		}
		before := at
		at += len(raw)
		i, c := n.find(key)
		if c == nil && !n.inclusive || c != nil && c.kind == include {
			if c != nil && !done.has(i) {
				done.set(i)
				left--
			}
			if end != before {
				dst = append(dst, doc[start:end]...)
				start = before
			}
			end = at
			continue
		}
		dst = append(dst, doc[start:end]...)
		start, end = at, at
		if c == nil || done.has(i) {
			continue
		}
		if n.inclusive && (c.kind == computed || c.kind == elemMatch) {
			continue // new fields of an inclusion come last
		}
		done.set(i)
		left--
		dst = a.field(dst, key, v, c)
	}
	dst = append(dst, doc[start:end]...)
	for i, c := range n.children {
		if !done.has(i) {
			dst = a.absent(dst, doc, c)
		}
	}
	return value.End(dst, mark)
}

// marks is a set of children; up to 64 need no allocation.
type marks struct {
	few  uint64
	many []bool
}

func newMarks(n int) (m marks) {
	if n > 64 {
		m.many = make([]bool, n)
	}
	return m
}

func (m *marks) has(i int) bool {
	if m.many != nil {
		return m.many[i]
	}
	return m.few&(1<<i) != 0
}

func (m *marks) set(i int) {
	if m.many != nil {
		m.many[i] = true
		return
	}
	m.few |= 1 << i
}

// field writes a field that the document has.
func (a *applier) field(dst, key []byte, v value.Value, c *node) []byte {
	switch c.kind {
	case computed:
		return value.AppendKeyBytes(dst, key, a.eval(c))
	case slice:
		if v.T != value.Array {
			return value.AppendKeyBytes(dst, key, v)
		}
		dst = append(append(append(dst, byte(value.Array)), key...), 0)
		return appendSlice(dst, v.Doc(), c)
	case elemMatch:
		return a.elemMatch(dst, v, c)
	case nested:
		return a.nested(dst, key, v, c)
	}
	return dst
}

// absent writes a field that the document does not have, or that an inclusion computes.
func (a *applier) absent(dst, doc []byte, c *node) []byte {
	switch {
	case c.kind == computed:
		return value.Append(dst, c.name, a.eval(c))
	case c.kind == nested && c.computes:
		dst, mark := value.BeginKey(dst, value.Document, c.name)
		return value.End(a.onlyComputed(dst, c), mark)
	case c.kind == elemMatch && c.inclusive:
		return a.elemMatch(dst, value.Lookup(doc, c.name), c)
	}
	return dst
}

// onlyComputed writes the computed fields of a new document.
func (a *applier) onlyComputed(dst []byte, n *node) []byte {
	for _, c := range n.children {
		dst = a.absent(dst, nil, c)
	}
	return dst
}

func (a *applier) eval(c *node) value.Value {
	if a.err != nil {
		return value.Value{}
	}
	v, err := c.expr.Eval(a.p.frame)
	if err != nil {
		a.err = err
		return value.Value{}
	}
	return v
}

// nested applies to a value: to documents, and to those in arrays. Other values are kept by an exclusion, dropped
// by an inclusion, and replaced by a new document if a field below is computed.
func (a *applier) nested(dst, key []byte, v value.Value, c *node) []byte {
	if v.T != value.Document && v.T != value.Array && !c.computes {
		if c.inclusive {
			return dst
		}
		return value.AppendKeyBytes(dst, key, v)
	}
	t := value.Document
	if v.T == value.Array {
		t = value.Array
	}
	dst = append(append(append(dst, byte(t)), key...), 0)
	return a.nestedPayload(dst, v, c)
}

func (a *applier) nestedPayload(dst []byte, v value.Value, c *node) []byte {
	switch v.T {
	case value.Document:
		return a.document(dst, v.Doc(), c)
	case value.Array:
		return a.array(dst, v.Doc(), c)
	}
	dst, mark := value.Begin(dst)
	return value.End(a.onlyComputed(dst, c), mark)
}

func (a *applier) array(dst, arr []byte, c *node) []byte {
	dst, mark := value.Begin(dst)
	i := 0
	for it := value.Walk(arr); ; {
		_, e, ok := it.Next()
		if !ok {
			return value.End(dst, mark)
		}
		switch {
		case e.T == value.Document || e.T == value.Array || c.computes:
			t := value.Document
			if e.T == value.Array {
				t = value.Array
			}
			dst = append(dst, byte(t))
			dst = append(strconv.AppendInt(dst, int64(i), 10), 0)
			dst = a.nestedPayload(dst, e, c)
		case c.inclusive:
			continue
		default:
			dst = value.AppendIndex(dst, i, e)
		}
		i++
	}
}

// elemMatch writes the first element that matches, as an array of one; nothing if none does.
func (a *applier) elemMatch(dst []byte, v value.Value, c *node) []byte {
	if v.T != value.Array {
		return dst
	}
	var d match.Detail
	one, mark := value.Begin(a.p.scratch[:0])
	a.p.scratch = value.End(value.Append(one, c.name, v), mark)
	ok, err := c.match.MatchDetail(a.p.scratch, &d)
	if err != nil {
		a.err = err
	}
	if !ok || d.ArrayIndex < 0 {
		return dst
	}
	dst, arr := value.BeginKey(dst, value.Array, c.name)
	e, _ := elementAt(v.Doc(), d.ArrayIndex)
	return value.End(value.AppendIndex(dst, 0, e), arr)
}

func elementAt(arr []byte, i int) (value.Value, bool) {
	for it := value.Walk(arr); ; i-- {
		_, e, ok := it.Next()
		if !ok {
			return value.Value{}, false
		}
		if i == 0 {
			return e, true
		}
	}
}

// appendSlice writes the part of an array that $slice selects.
func appendSlice(dst, arr []byte, c *node) []byte {
	n := int64(value.Count(arr))
	from, count := int64(0), c.limit
	switch {
	case c.hasSkip && c.skip >= 0:
		from = min(c.skip, n)
	case c.hasSkip:
		from = max(n+c.skip, 0)
	case c.limit < 0:
		from = max(n+c.limit, 0)
		count = n - from
	}
	dst, mark := value.Begin(dst)
	i, out := int64(0), 0
	for it := value.Walk(arr); int64(out) < count; i++ {
		_, e, ok := it.Next()
		if !ok {
			break
		}
		if i >= from {
			dst = value.AppendIndex(dst, out, e)
			out++
		}
	}
	return value.End(dst, mark)
}

// applyPositional projects, then reduces the first array on the operator's path to the element that the query matched.
func (p *Projection) applyPositional(dst, doc []byte, a *applier) ([]byte, error) {
	post := a.document(nil, doc, p.root)
	if a.err != nil {
		return dst, a.err
	}
	d := match.Detail{ArrayIndex: -1}
	if p.filter != nil {
		if _, err := p.filter.MatchDetail(doc, &d); err != nil {
			return dst, err
		}
	}
	return pickElement(dst, post, p.positional, d.ArrayIndex)
}

func pickElement(dst, doc []byte, path []string, index int) ([]byte, error) {
	dst, mark := value.Begin(dst)
	for it := value.Walk(doc); ; {
		raw, key, v, ok := it.NextRaw()
		if !ok {
			return value.End(dst, mark), nil
		}
		if string(key) != path[0] || v.T != value.Array && (v.T != value.Document || len(path) == 1) {
			dst = append(dst, raw...)
			continue
		}
		dst = append(append(append(dst, byte(v.T)), key...), 0)
		if v.T == value.Document {
			var err error
			if dst, err = pickElement(dst, v.Doc(), path[1:], index); err != nil {
				return dst, err
			}
			continue
		}
		if index < 0 {
			return dst, mongoerr.New(51246, "positional operator '.$' couldn't find a matching element in the array")
		}
		e, found := elementAt(v.Doc(), index)
		if !found {
			return dst, mongoerr.New(51247, "positional operator '.$' element mismatch")
		}
		var arr int
		dst, arr = value.Begin(dst)
		dst = value.End(value.AppendIndex(dst, 0, e), arr)
	}
}
