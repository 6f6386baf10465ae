package plan

import (
	"github.com/shoaldb/shoal/query/hashkey"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// tightness is the part of a predicate that remains to be checked within its bounds.
type tightness uint8

const (
	exact   tightness = iota // nothing
	covered                  // the predicate, on the key
	fetch                    // the predicate, on the document
)

// target is the index field that bounds are made for.
type target struct {
	x     *Index
	i     int
	multi bool // its path has arrays
}

// boundsOf returns the intervals of a predicate; ok is false if the field has none for it.
func (t *target) boundsOf(n *match.Node) (l Intervals, tight tightness, ok bool) {
	switch t.kind() {
	case Hashed:
		return t.hashed(n)
	case Other:
		return t.geo(n)
	}
	switch n.Kind {
	case match.Eq:
		return t.equality(n.Value)
	case match.Lt, match.Lte, match.Gt, match.Gte:
		return t.comparison(n.Kind, n.Value)
	case match.In:
		return t.in(n)
	case match.RegexMatch:
		return t.regex(n)
	case match.Exists:
		if t.x.Sparse && len(t.x.Fields) == 1 && t.x.Kind == BTree {
			return everything(), exact, true
		}
		return everything(), fetch, true
	case match.Not:
		return t.negation(n.Children[0])
	case match.TypeIs:
		return t.types(n)
	case match.Mod:
		return Intervals{{nan, posInf, true, true}}, covered, true
	case match.Size:
		return everything(), fetch, t.kind() == BTree
	case match.BitsAllSet, match.BitsAllClear, match.BitsAnySet, match.BitsAnyClear:
		return Intervals{{nan, posInf, true, true}, {noBin, minOID, true, false}}, covered, true
	case match.ElemMatchValue:
		return t.elemMatchValue(n)
	case match.ExprEq, match.ExprGt, match.ExprGte, match.ExprLt, match.ExprLte:
		return t.exprComparison(n)
	}
	return nil, fetch, false
}

// exprComparison returns the bounds of a comparison that an expression requires: of all types, in their order. An array is compared as a
// whole, but its elements are the keys; a missing field comes below null, but has its key.
func (t *target) exprComparison(n *match.Node) (Intervals, tightness, bool) {
	null := n.Value.T == value.Null
	missing := null || n.Kind == match.ExprLt || n.Kind == match.ExprLte || n.Value.T == value.MinKey // whether a missing field may satisfy it
	switch {
	case t.multi, t.x.Sparse && missing:
		return nil, fetch, false
	case t.kind() == Wildcard && (n.Kind != match.ExprEq || null || n.Value.T == value.Document):
		return nil, fetch, false
	}
	b, v := everything()[0], t.collated(n.Value)
	switch n.Kind {
	case match.ExprEq:
		b = point(v)
	case match.ExprGt, match.ExprGte:
		b.Lo, b.LoInc = v, n.Kind == match.ExprGte
	default:
		b.Hi, b.HiInc = v, n.Kind == match.ExprLte || null
	}
	if b.empty() {
		return Intervals{}, exact, true
	}
	return Intervals{b}, exact, true
}

// kind returns the kind of the field itself; a compound hashed index has ordinary fields, too.
func (t *target) kind() Kind { return t.x.Fields[t.i].Kind }

// geo returns the bounds of $geoWithin and $geoIntersects: the cells that intersect their shape.
func (t *target) geo(n *match.Node) (Intervals, tightness, bool) {
	if n.Kind != match.Geo {
		return nil, fetch, false
	}
	var ranges [][2]int64
	switch geoType(t.x, t.i) {
	case "2dsphere":
		ranges = n.Geo.SphereCells()
	case "2d":
		ranges = n.Geo.PlaneCells(t.x.Plane)
	}
	return cellIntervals(ranges), fetch, ranges != nil
}

func (t *target) hashed(n *match.Node) (Intervals, tightness, bool) {
	switch n.Kind {
	case match.Eq, match.ExprEq:
		if n.Value.T == value.Array || n.Kind == match.ExprEq && t.multi || n.Kind == match.Eq && t.leavesOut(n.Value) {
			return nil, fetch, false
		}
		return Intervals{point(t.hash(n.Value))}, fetch, true
	case match.In:
		if len(n.Regexes) > 0 {
			return nil, fetch, false
		}
		var l Intervals
		for _, v := range n.Values {
			if v.T == value.Array || t.leavesOut(v) {
				return nil, fetch, false
			}
			l = append(l, point(t.hash(v)))
		}
		return union(l), fetch, true
	}
	return nil, fetch, false
}

// leavesOut reports whether a value is also that of a missing field, for which a sparse index has no key.
func (t *target) leavesOut(v value.Value) bool {
	return t.x.Sparse && (v.T == value.Null || v.T == value.Undefined)
}

func (t *target) hash(v value.Value) value.Value {
	return value.NewInt64(hashkey.Hash(t.collated(v)))
}

// collated replaces strings by their collation keys, as the index has them.
func (t *target) collated(v value.Value) value.Value {
	if t.x.Collator == nil {
		return v
	}
	return value.Collated(v, t.x.Collator)
}

func (t *target) equality(v value.Value) (Intervals, tightness, bool) {
	switch v.T {
	case value.Null, value.Undefined, value.Missing:
		// A path with an array index in it is also null in each document of the array, for which there is no key.
		if t.x.Sparse || t.kind() == Wildcard || hasIndexComponent(t.x.Fields[t.i].Path) {
			return nil, fetch, false
		}
		return Intervals{point(value.NewNull())}, fetch, true
	case value.Array:
		first := value.NewUndefined() // what an empty array is indexed as
		it := value.Walk(v.Doc())
		if _, e, ok := it.Next(); ok {
			first = e
		}
		if t.kind() == Wildcard && first.T == value.Document {
			return nil, fetch, false
		}
		return union(Intervals{point(t.collated(first)), point(t.collated(v))}), fetch, true
	case value.Document:
		if t.kind() == Wildcard && value.Count(v.Doc()) > 0 {
			return nil, fetch, false // the document's fields are indexed, not the document
		}
	}
	return Intervals{point(t.collated(v))}, exact, true
}

func (t *target) comparison(k match.Kind, v value.Value) (Intervals, tightness, bool) {
	switch v.T {
	case value.Null, value.Undefined:
		if k == match.Lt || k == match.Gt {
			return Intervals{}, exact, true
		}
		return t.equality(value.NewNull())
	case value.Array:
		return everything(), fetch, t.kind() != Wildcard
	case value.MinKey, value.MaxKey:
		return t.extreme(k, v)
	case value.Document:
		if t.kind() == Wildcard {
			return nil, fetch, false
		}
	}
	b, ok := bracket(v.T)
	if !ok {
		return nil, fetch, false
	}
	if v.T.Numeric() {
		if v.IsNaN() {
			if k == match.Lt || k == match.Gt {
				return Intervals{}, exact, true
			}
			return Intervals{point(v)}, exact, true
		}
		b.Lo = negInf
	}
	v = t.collated(v)
	switch k {
	case match.Lt, match.Lte:
		b.Hi, b.HiInc = v, k == match.Lte
	default:
		b.Lo, b.LoInc = v, k == match.Gte
	}
	if b.empty() {
		return Intervals{}, exact, true
	}
	return Intervals{b}, exact, true
}

// extreme returns the bounds of comparisons with MinKey and MaxKey, which are comparable with values of every kind.
func (t *target) extreme(k match.Kind, v value.Value) (Intervals, tightness, bool) {
	b := everything()[0]
	switch k {
	case match.Lt, match.Lte:
		b.Hi, b.HiInc = v, k == match.Lte
	default:
		b.Lo, b.LoInc = v, k == match.Gte
	}
	if b.empty() {
		return Intervals{}, fetch, true
	}
	if t.x.Sparse || t.kind() == Wildcard {
		return nil, fetch, false
	}
	if t.multi {
		return everything(), fetch, true // the array as a whole is compared, too, and is not in the index
	}
	return Intervals{b}, fetch, true
}

func (t *target) in(n *match.Node) (Intervals, tightness, bool) {
	l := make(Intervals, 0, len(n.Values)+2*len(n.Regexes))
	tight := exact
	for _, v := range n.Values {
		one, tt, ok := t.equality(v)
		if !ok {
			return nil, fetch, false
		}
		l, tight = append(l, one...), max(tight, tt)
	}
	for range n.Regexes {
		one, tt, ok := t.regex(n)
		if !ok {
			return nil, fetch, false
		}
		l, tight = append(l, one...), max(tight, tt, covered)
	}
	return union(l), tight, true
}

// regex returns the bounds of strings with the pattern's prefix, and of the stored regular expression itself.
func (t *target) regex(n *match.Node) (Intervals, tightness, bool) {
	var l Intervals
	tight := exact
	for _, r := range n.Regexes {
		prefix, whole := r.Prefix()
		lo, hi := value.NewString(prefix), noDoc
		if prefix != "" && t.x.Collator == nil {
			if next := successor(prefix); next != nil {
				hi = value.NewStringBytes(next)
			}
		} else {
			lo, whole = noStr, false
		}
		if !whole {
			tight = covered
		}
		self := value.NewRegex(r.Pattern, r.Options)
		l = append(l, Interval{lo, hi, true, false}, point(self))
	}
	if t.x.Collator != nil {
		tight = fetch // the index has collation keys, not strings
	}
	return union(l), tight, true
}

// successor returns the least string after all that start with s; nil if there is none.
func successor(s string) []byte {
	b := []byte(s)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0xFF {
			b[i]++
			return b[:i+1]
		}
	}
	return nil
}

// negation returns the complement as the bounds of $not, if missing fields are in the index and the bounds are exact.
func (t *target) negation(n *match.Node) (Intervals, tightness, bool) {
	if t.kind() == Wildcard && isNotNull(n) && !t.multi {
		return everything(), fetch, true
	}
	if t.kind() != BTree {
		return nil, fetch, false
	}
	switch n.Kind {
	case match.Exists:
		if t.x.Sparse {
			return nil, fetch, false
		}
		return Intervals{point(value.NewNull())}, fetch, true
	case match.Eq, match.In, match.Lt, match.Lte, match.Gt, match.Gte:
	default:
		return nil, fetch, false
	}
	nullish := nullEquality(n)
	member := n.Kind == match.Eq || n.Kind == match.In
	if nullish && t.multi || t.x.Sparse && !(nullish && member) || len(n.Regexes) > 0 {
		return nil, fetch, false
	}
	for _, v := range operands(n) {
		if v.T == value.Array {
			return nil, fetch, false
		}
	}
	var l Intervals
	var ok bool
	tight := exact
	if t.x.Sparse {
		l = Intervals{point(value.NewNull())} // {$ne: null}: missing fields do not match either
		tight = fetch
	} else if l, tight, ok = t.boundsOf(n); !ok {
		return nil, fetch, false
	}
	if t.multi && (l.Contains(value.NewNull()) || l.Contains(value.NewUndefined())) {
		return nil, fetch, false // a path that ends in an empty array has the key null, but no value
	}
	if t.multi || !member {
		tight = fetch
	}
	return complement(l), tight, true
}

// isNotNull reports whether the negation of n is {$ne: null}, which requires a field as $exists does.
func isNotNull(n *match.Node) bool { return n.Kind == match.Eq && nullEquality(n) }

// wantsBelow reports whether documents that have only fields below a path may satisfy a predicate on the path: a
// wildcard index has no key at the path for them.
func wantsBelow(n *match.Node) bool {
	switch n.Kind {
	case match.Exists:
		return true
	case match.Not:
		return isNotNull(n.Children[0])
	case match.TypeIs:
		return n.Types.Has(value.Array)
	}
	return false
}

func nullEquality(n *match.Node) bool {
	for _, v := range operands(n) {
		if v.T == value.Null || v.T == value.Undefined {
			return true
		}
	}
	return false
}

func operands(n *match.Node) []value.Value {
	if n.Kind == match.In {
		return n.Values
	}
	return []value.Value{n.Value}
}

func (t *target) types(n *match.Node) (Intervals, tightness, bool) {
	if n.Types.Has(value.Array) {
		return everything(), fetch, true
	}
	var l Intervals
	tight := exact
	for _, k := range allTypes {
		if !n.Types.Has(k) {
			continue
		}
		b, ok := bracket(k)
		if !ok {
			return nil, fetch, false
		}
		switch k {
		case value.Null, value.Undefined:
			if t.x.Sparse && k == value.Null {
				tight = fetch
			}
			tight = fetch // missing fields and empty arrays have these keys, too
		case value.Int32, value.Int64, value.Double, value.Decimal128, value.String, value.Symbol:
			tight = max(tight, covered)
		case value.Document:
			if t.kind() == Wildcard {
				return nil, fetch, false
			}
		}
		l = append(l, b)
	}
	if t.multi {
		tight = fetch
	}
	return union(l), tight, true
}

var allTypes = []value.Type{value.Double, value.String, value.Document, value.Binary, value.Undefined, value.ObjectID, value.Boolean,
	value.DateTime, value.Null, value.Regex, value.DBPointer, value.JavaScript, value.Symbol, value.CodeWithScope, value.Int32,
	value.Timestamp, value.Int64, value.Decimal128, value.MinKey, value.MaxKey}

// elemMatchValue intersects the bounds: one element must satisfy all predicates.
func (t *target) elemMatchValue(n *match.Node) (Intervals, tightness, bool) {
	l := everything()
	for _, c := range n.Children {
		if one, _, ok := t.boundsOf(c); ok && c.Kind != match.Not && c.Kind != match.Exists {
			l = intersect(l, one)
		}
	}
	if l.Full() && t.kind() == Wildcard {
		return nil, fetch, false
	}
	return l, fetch, true
}
