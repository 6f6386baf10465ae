package update

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxBackfill limits the number of nulls that are added to an array so that an index beyond its end
// can be set.
const maxBackfill = 1500000

// run is one application of an operator update.
type run struct {
	record
	ctx  *Context
	path []string // components from the root to the current position
	work []byte   // values that operators build
}

func (u *Update) applyOperators(ctx *Context) ([]byte, error) {
	dst := ctx.Buf[:0]
	if cap(dst) < len(ctx.Doc) {
		dst = make([]byte, 0, len(ctx.Doc)+64)
	}
	r := &ctx.run
	r.ctx, r.path, r.work = ctx, r.path[:0], r.work[:0]
	r.reset()
	return r.object(dst, ctx.Doc, u.root)
}

func (r *run) dotted() string { return strings.Join(r.path, ".") }

// docID identifies the document in error messages.
func (r *run) docID() string {
	return "{_id: " + value.Show(value.Lookup(r.ctx.Doc, "_id")) + "}"
}

func (n *node) kid(kids []*node, key []byte) int {
	for i, k := range kids {
		if k.name == string(key) {
			return i
		}
	}
	return -1
}

// object appends doc with the changes of n.
func (r *run) object(dst, doc []byte, n *node) ([]byte, error) {
	kids, err := r.children(n)
	if err != nil {
		return dst, err
	}
	dst, mark := value.Begin(dst)
	var few [16]bool
	seen := few[:]
	if len(kids) > len(few) {
		seen = make([]bool, len(kids))
	}
	off, left := 4, len(kids)
	for it := value.Walk(doc); left > 0; {
		raw, key, v, ok := it.NextRaw()
		if !ok {
			break
		}
		off += len(raw)
		i := n.kid(kids, key)
		if i < 0 || seen[i] {
			dst = append(dst, raw...)
			continue
		}
		seen[i] = true
		left--
		if dst, err = r.existing(dst, raw, v, kids[i], -1); err != nil {
			return dst, err
		}
	}
	if left == 0 {
		if off < len(doc)-1 {
			dst = append(dst, doc[off:len(doc)-1]...)
		}
		return value.End(dst, mark), nil
	}
	for i, k := range kids {
		if seen[i] {
			continue
		}
		end := len(dst)
		if dst, err = r.missing(dst, k); err != nil {
			return dst, err
		}
		if len(dst) > end {
			r.add(inserted, k.name, 0, end, len(dst))
		}
	}
	return value.End(dst, mark), nil
}

// children returns the named children of n, with the child of $ at the index that the filter matched.
func (r *run) children(n *node) ([]*node, error) {
	if n.positional == nil {
		return n.kids, nil
	}
	if r.ctx.Positional < 0 {
		return nil, mongoerr.New(mongoerr.BadValue, "The positional operator did not find the match needed from the query.")
	}
	at := *n.positional
	at.name = strconv.Itoa(r.ctx.Positional)
	out := make([]*node, 0, len(n.kids)+1)
	placed := false
	for _, k := range n.kids {
		c := compareNames(k.name, at.name)
		if c == 0 {
			m, err := merge(k, &at, joinPath(r.dotted(), at.name))
			if err != nil {
				return nil, err
			}
			k, placed = m, true
		} else if c > 0 && !placed {
			out, placed = append(out, &at), true
		}
		out = append(out, k)
	}
	if !placed {
		out = append(out, &at)
	}
	return out, nil
}

// existing appends the element raw, whose value is v, with the changes of n. index is its position in an array, -1 in a
// document.
func (r *run) existing(dst, raw []byte, v value.Value, n *node, index int) ([]byte, error) {
	r.path = append(r.path, n.name)
	mark := len(dst)
	dst, err := r.change(dst, raw, v, n, index)
	if err != nil {
		return dst, err
	}
	if len(r.path) == 1 && n.name[0] == '$' && n.flag&creates != 0 && !r.ctx.Insert {
		return dst, dollarField(n.name)
	}
	if len(r.path) == 1 && n.name == "_id" {
		now := value.Value{}
		if mark < len(dst) {
			now, _ = value.FromElement(value.Type(dst[mark]), dst[mark+5:])
		}
		target, renamed := n.op.(*renameTarget)
		if now.T == value.Missing || value.Compare(v, now) != 0 || renamed && target.source.present(r) {
			return dst, immutableID(n)
		}
	}
	r.path = r.path[:len(r.path)-1]
	return dst, nil
}

func immutableID(n *node) error {
	path := "_id"
	for n.op == nil && len(n.kids) > 0 {
		n = n.kids[0]
		path = joinPath(path, n.name)
	}
	return mongoerr.Newf(mongoerr.ImmutableField, "Performing an update on the path '%s' would modify the immutable field '_id'", path)
}

func (r *run) skips(n *node) bool { return n.flag&insertOnly != 0 && !r.ctx.Insert }

func (r *run) change(dst, raw []byte, v value.Value, n *node, index int) ([]byte, error) {
	mark := len(dst)
	switch {
	case n.op != nil:
		return r.leaf(dst, raw, v, n, index)
	case v.T != value.Array && len(n.filtered) > 0:
		return dst, mongoerr.Newf(mongoerr.BadValue, "Cannot apply array updates to non-array element %s: %s", n.name, value.Show(v))
	case v.T == value.Array || v.T == value.Document:
		dst = append(dst, raw[:len(raw)-len(v.Doc())]...)
		outer := r.enter(n.name, index, v.T == value.Array)
		var err error
		if v.T == value.Array {
			dst, err = r.array(dst, v, n)
		} else {
			dst, err = r.object(dst, v.Doc(), n)
		}
		r.leave(outer, mark, len(dst))
		return dst, err
	}
	kids, err := r.children(n)
	if err != nil {
		return dst, err
	}
	for _, k := range kids {
		if err := r.notViable(k, k, k.name, v); err != nil {
			return dst, err
		}
	}
	return append(dst, raw...), nil
}

// leaf appends the element raw as the operator of n changes it.
func (r *run) leaf(dst, raw []byte, v value.Value, n *node, index int) ([]byte, error) {
	if r.skips(n) {
		return append(dst, raw...), nil
	}
	if index >= 0 && n.flag&anyPath != 0 {
		if s, ok := n.op.(*renameSource); ok {
			return dst, s.inArray(r)
		}
	}
	r.grown = 0
	now, err := n.op.apply(r, v)
	if err != nil {
		return dst, err
	}
	if now.T == value.Missing && index >= 0 {
		now = value.NewNull()
	}
	if now.T == value.Missing {
		r.add(deleted, n.name, 0, 0, 0)
		return dst, nil
	}
	mark, head := len(dst), len(n.name)+2
	dst = append(append(append(dst, byte(now.T)), raw[1:head-1]...), 0)
	dst = value.AppendPayload(dst, now)
	switch {
	case bytes.Equal(dst[mark:], raw):
	case r.grown > 0:
		outer := r.enter(n.name, index, true)
		r.add(appended, "", r.grown, mark+len(raw)-1, len(dst)-1)
		r.leave(outer, mark, len(dst))
	default:
		r.add(updated, n.name, index, mark, len(dst))
	}
	return dst, nil
}

// notViable returns the error for operators whose path leads through v, which cannot have a child with the name of first.
// n is first or below it, at the path below v.
func (r *run) notViable(first, n *node, path string, v value.Value) error {
	if len(n.filtered) > 0 {
		return noArray(joinPath(r.dotted(), path))
	}
	if n.op == nil {
		kids, err := r.children(n)
		if err != nil {
			return err
		}
		for _, k := range kids {
			if err := r.notViable(first, k, joinPath(path, k.name), v); err != nil {
				return err
			}
		}
		return nil
	}
	name := r.path[len(r.path)-1]
	switch {
	case r.skips(n):
		return nil
	case n.flag&creates != 0:
		if t, ok := n.op.(*renameTarget); ok && !t.source.present(r) {
			return nil
		}
		return mongoerr.Newf(mongoerr.PathNotViable, "Cannot create field '%s' in element {%s: %s}", first.name, name, value.Show(v))
	}
	if s, ok := n.op.(*renameSource); ok {
		return mongoerr.Newf(mongoerr.PathNotViable, "cannot use the part (%s of %s) to traverse the element ({%s: %s})",
			name, s.path, name, value.Show(v))
	}
	if n.flag&anyPath != 0 {
		return nil
	}
	return mongoerr.Newf(mongoerr.PathNotViable, "Cannot use the part (%s) of (%s.%s) to traverse the element ({%s: %s})",
		first.name, r.dotted(), first.name, name, value.Show(v))
}

func noArray(path string) error {
	return mongoerr.Newf(mongoerr.BadValue, "The path '%s' must exist in the document in order to apply array updates.", path)
}

// array appends the array v with the changes of n.
func (r *run) array(dst []byte, v value.Value, n *node) ([]byte, error) {
	if len(n.filtered) > 0 {
		return r.matching(dst, v.Doc(), n)
	}
	kids, err := r.children(n)
	if err != nil {
		return dst, err
	}
	for _, k := range kids {
		if !value.IsIndex(k.name) {
			if err := r.notViable(k, k, k.name, v); err != nil {
				return dst, err
			}
		}
	}
	dst, mark := value.Begin(dst)
	count := 0
	for it := value.Walk(v.Doc()); ; count++ {
		raw, key, e, ok := it.NextRaw()
		if !ok {
			break
		}
		if i := n.kid(kids, key); i >= 0 {
			if dst, err = r.existing(dst, raw, e, kids[i], count); err != nil {
				return dst, err
			}
			continue
		}
		dst = append(dst, raw...)
	}
	for _, k := range kids {
		if !value.IsIndex(k.name) {
			continue
		}
		if i, _ := strconv.Atoi(k.name); i >= count {
			if dst, count, err = r.extend(dst, k, count, i); err != nil {
				return dst, err
			}
		}
	}
	return value.End(dst, mark), nil
}

// extend sets element i of an array of count elements, filling the gap with nulls.
func (r *run) extend(dst []byte, k *node, count, i int) ([]byte, int, error) {
	start := len(dst)
	tmp, err := r.missing(nil, k)
	if err != nil || len(tmp) == 0 {
		return dst[:start], count, err
	}
	if _, ok := k.op.(*renameTarget); ok {
		return dst, count, targetInArray(r, k.name)
	}
	if i-count > maxBackfill {
		return dst, count, mongoerr.Newf(mongoerr.CannotBackfillArray, "can't backfill more than %d elements", maxBackfill)
	}
	for ; count < i; count++ {
		dst = value.AppendIndex(dst, count, value.NewNull())
	}
	end := len(dst)
	dst = append(dst, tmp...)
	r.add(updated, k.name, i, end, len(dst))
	return dst, count + 1, nil
}

// matching applies the children of an array node to the elements they match.
func (r *run) matching(dst, arr []byte, n *node) ([]byte, error) {
	dst, mark := value.Begin(dst)
	matched, changed, only := 0, 0, change{}
	it := value.Walk(arr)
	for i := 0; ; i++ {
		raw, key, e, ok := it.NextRaw()
		if !ok {
			break
		}
		child, err := r.childFor(n, key, e)
		if err != nil {
			return dst, err
		}
		if child == nil {
			dst = append(dst, raw...)
			continue
		}
		at := *child
		at.name = string(key)
		start, before := len(dst), len(r.changes)
		if dst, err = r.existing(dst, raw, e, &at, i); err != nil {
			return dst, err
		}
		matched++
		if len(r.changes) > before {
			changed++
			only = change{kind: updated, name: at.name, index: int32(i), from: int32(start), to: int32(len(dst))}
		}
	}
	switch {
	case changed > 1:
		r.replaceLevel()
	case matched > 1 && changed == 1:
		r.replaceChanges(only)
	}
	return value.End(dst, mark), nil
}

// childFor returns the children of an array node that match an element, merged; nil if none does.
func (r *run) childFor(n *node, key []byte, e value.Value) (child *node, err error) {
	for _, f := range n.filtered {
		hit, err := f.matches(e)
		if err != nil {
			return nil, err
		}
		switch {
		case !hit:
		case child == nil:
			child = f.child
		default:
			if child, err = merge(child, f.child, joinPath(r.dotted(), string(key))); err != nil {
				return nil, err
			}
		}
	}
	return child, nil
}

// alone returns a matcher that no other goroutine uses.
func alone(m *match.Matcher) *match.Matcher {
	if m.Stateless() {
		return m
	}
	return m.Fork()
}

func (f *filtered) matches(e value.Value) (bool, error) {
	if f.filter == nil {
		return true, nil
	}
	return alone(f.filter).Match(value.Doc(value.F(f.id, e)))
}

// missing appends the field that n creates if there is none; nothing if it creates none.
func (r *run) missing(dst []byte, n *node) ([]byte, error) {
	r.path = append(r.path, n.name)
	mark := len(dst)
	dst, err := r.make(dst, n)
	if err != nil {
		return dst, err
	}
	if len(r.path) == 1 && len(dst) > mark && n.name[0] == '$' && !r.ctx.Insert {
		return dst, dollarField(n.name)
	}
	r.path = r.path[:len(r.path)-1]
	return dst, nil
}

func (r *run) make(dst []byte, n *node) ([]byte, error) {
	if n.op != nil {
		if r.skips(n) || n.flag&creates == 0 {
			return dst, nil
		}
		v, err := n.op.apply(r, value.Value{})
		if err != nil {
			return dst, err
		}
		return value.Append(dst, n.name, v), nil
	}
	if len(n.filtered) > 0 {
		return dst, noArray(r.dotted())
	}
	kids, err := r.children(n)
	if err != nil {
		return dst, err
	}
	start := len(dst)
	dst, mark := value.BeginKey(dst, value.Document, n.name)
	empty := len(dst)
	for _, k := range kids {
		if dst, err = r.missing(dst, k); err != nil {
			return dst, err
		}
	}
	if len(dst) == empty {
		return dst[:start], nil
	}
	return value.End(dst, mark), nil
}
