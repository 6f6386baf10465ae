package update

import (
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// push is $push: what to add, where, and how to sort and slice the array afterwards.
type push struct {
	each     []value.Value
	position int64
	end      bool // add at the end
	slice    int64
	sliced   bool
	sort     *elementSort
}

func parsePush(c *compiler, _ string, v value.Value) (operator, error) {
	o := &push{end: true}
	if v.T != value.Document || value.Lookup(v.Doc(), "$each").T == value.Missing {
		o.each = []value.Value{v.Clone()}
		return o, nil
	}
	for it := value.Walk(v.Clone().Doc()); ; {
		k, arg, ok := it.Next()
		if !ok {
			return o, nil
		}
		if err := o.clause(c, string(k), arg); err != nil {
			return nil, err
		}
	}
}

func (o *push) clause(c *compiler, name string, arg value.Value) (err error) {
	switch name {
	case "$each":
		if arg.T != value.Array {
			return mongoerr.Newf(mongoerr.BadValue,
				"The argument to $each in $push must be an array but it was of type: %s", arg.T.Name())
		}
		o.each = value.Values(arg.Doc())
	case "$slice":
		o.slice, o.sliced = arg.AsInt64()
		if !o.sliced {
			return mongoerr.Newf(mongoerr.BadValue,
				"The value for $slice must be an integer value but was given type: %s", arg.T.Name())
		}
	case "$position":
		o.end = false
		var ok bool
		if o.position, ok = arg.AsInt64(); !ok {
			return mongoerr.Newf(mongoerr.BadValue,
				"The value for $position must be an integer value, not of type: %s", arg.T.Name())
		}
	case "$sort":
		o.sort, err = parseElementSort(c, arg)
	default:
		return mongoerr.Newf(mongoerr.BadValue, "Unrecognized clause in $push: %s", name)
	}
	return err
}

func (o *push) apply(r *run, old value.Value) (value.Value, error) {
	if old.T != value.Missing && old.T != value.Array {
		return old, mongoerr.Newf(mongoerr.BadValue, "The field '%s' must be an array but is of type %s in document %s",
			r.dotted(), old.T.Name(), r.docID())
	}
	if old.T == value.Array && o.onlyAppends(value.Count(old.Doc())) {
		return r.appended(old, o.each), nil
	}
	elems := value.Values(old.Doc())
	at := len(elems)
	switch {
	case o.end:
	case o.position >= 0:
		at = int(min(o.position, int64(len(elems))))
	default:
		at = int(max(0, int64(len(elems))+o.position))
	}
	elems = slices.Insert(elems, at, o.each...)
	if o.sort != nil {
		slices.SortStableFunc(elems, o.sort.compare)
	}
	if o.sliced {
		elems = cutSlice(elems, o.slice)
	}
	return r.arrayOf(elems), nil
}

// onlyAppends reports whether an array of n elements keeps them all at their positions: it is not sorted, nothing is inserted
// before its end, and $slice cuts nothing off.
func (o *push) onlyAppends(n int) bool {
	all := int64(n + len(o.each))
	cuts := o.sliced && (o.slice >= 0 && o.slice < all || o.slice < 0 && o.slice > -all)
	return o.sort == nil && !cuts && (o.end || o.position > int64(n))
}

func cutSlice(elems []value.Value, n int64) []value.Value {
	if n >= 0 {
		return elems[:min(n, int64(len(elems)))]
	}
	if n < -int64(len(elems)) {
		n = -int64(len(elems))
	}
	return elems[int64(len(elems))+n:]
}

// appended returns the array old with more elements; its bytes are copied unchanged.
func (r *run) appended(old value.Value, more []value.Value) value.Value {
	if len(more) == 0 {
		return old
	}
	n := value.Count(old.Doc())
	r.grown = n
	mark := len(r.work)
	r.work = append(r.work, old.Doc()[:len(old.Doc())-1]...)
	for i, v := range more {
		r.work = value.AppendIndex(r.work, n+i, v)
	}
	r.work = value.End(r.work, mark)
	return value.NewArray(r.work[mark:])
}

func (r *run) arrayOf(elems []value.Value) value.Value {
	var mark int
	r.work, mark = value.Begin(r.work)
	for i, v := range elems {
		r.work = value.AppendIndex(r.work, i, v)
	}
	r.work = value.End(r.work, mark)
	return value.NewArray(r.work[mark:])
}

// elementSort is $push's $sort: by whole elements, or by fields of those that are documents.
type elementSort struct {
	whole int
	paths [][]string
	signs []int
	coll  value.Collator
}

func parseElementSort(c *compiler, v value.Value) (*elementSort, error) {
	s := &elementSort{coll: c.collator}
	if v.T.Numeric() {
		n, ok := v.AsInt64()
		if !ok || n != 1 && n != -1 {
			return nil, mongoerr.New(mongoerr.BadValue, "The $sort element value must be either 1 or -1")
		}
		s.whole = int(n)
		return s, nil
	}
	if v.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.BadValue, "The $sort is invalid: use 1/-1 to sort the whole element, or "+
			"{field:1/-1} to sort embedded fields")
	}
	for it := value.Walk(v.Doc()); ; {
		k, dir, ok := it.Next()
		if !ok {
			break
		}
		n, isInt := dir.AsInt64()
		if !isInt || n != 1 && n != -1 {
			return nil, mongoerr.New(mongoerr.BadValue, "The $sort element value must be either 1 or -1")
		}
		parts := strings.Split(string(k), ".")
		if len(k) == 0 {
			return nil, mongoerr.New(mongoerr.BadValue, "The $sort field cannot be empty")
		}
		if slices.Contains(parts, "") {
			return nil, mongoerr.Newf(mongoerr.BadValue, "The $sort field is a dotted field but has an empty part: %s", k)
		}
		s.paths = append(s.paths, parts)
		s.signs = append(s.signs, int(n))
	}
	if len(s.paths) == 0 {
		return nil, mongoerr.New(mongoerr.BadValue, "The $sort pattern is empty when it should be a set of fields.")
	}
	return s, nil
}

func (s *elementSort) compare(a, b value.Value) int {
	if s.whole != 0 {
		return s.whole * value.CompareCollated(a, b, s.coll)
	}
	for i, p := range s.paths {
		if c := value.CompareCollated(sortField(a, p), sortField(b, p), s.coll); c != 0 {
			return c * s.signs[i]
		}
	}
	return 0
}

// sortField reads a path; a missing value sorts as null.
func sortField(v value.Value, parts []string) value.Value {
	for _, p := range parts {
		if v.T != value.Document && v.T != value.Array {
			return value.NewNull()
		}
		v = value.Lookup(v.Doc(), p)
	}
	if v.T == value.Missing {
		return value.NewNull()
	}
	return v
}

type addToSet struct {
	each []value.Value
	coll value.Collator
}

func parseAddToSet(c *compiler, _ string, v value.Value) (operator, error) {
	o := &addToSet{coll: c.collator}
	v = v.Clone()
	if v.T == value.Document {
		it := value.Walk(v.Doc())
		if k, each, ok := it.Next(); ok && string(k) == "$each" {
			if each.T != value.Array {
				return nil, mongoerr.Newf(mongoerr.TypeMismatch,
					"The argument to $each in $addToSet must be an array but it was of type %s", each.T.Name())
			}
			if _, _, more := it.Next(); more {
				return nil, mongoerr.Newf(mongoerr.BadValue, "Found unexpected fields after $each in $addToSet: %s", value.Show(v))
			}
			o.each = value.Values(each.Doc())
			return o, nil
		}
	}
	o.each = []value.Value{v}
	return o, nil
}

func (o *addToSet) apply(r *run, old value.Value) (value.Value, error) {
	if old.T != value.Missing && old.T != value.Array {
		return old, mongoerr.Newf(mongoerr.BadValue,
			"Cannot apply $addToSet to non-array field. Field named '%s' has non-array type %s",
			r.path[len(r.path)-1], old.T.Name())
	}
	var fresh []value.Value
	for _, v := range o.each {
		if !holds(old.Doc(), v, o.coll) && !slices.ContainsFunc(fresh, func(w value.Value) bool {
			return value.CompareCollated(v, w, o.coll) == 0
		}) {
			fresh = append(fresh, v)
		}
	}
	if old.T == value.Missing {
		return r.arrayOf(fresh), nil
	}
	return r.appended(old, fresh), nil
}

func holds(arr []byte, v value.Value, coll value.Collator) bool {
	for it := value.Walk(arr); ; {
		_, e, ok := it.Next()
		if !ok {
			return false
		}
		if value.CompareCollated(e, v, coll) == 0 {
			return true
		}
	}
}

type pop struct{ first bool }

func parsePop(_ *compiler, path string, v value.Value) (operator, error) {
	if !v.T.Numeric() {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "Expected a number in: %s: %s", path, value.Show(v))
	}
	n, ok := v.AsInt64()
	if !ok {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "Expected an integer: %s: %s", path, value.Show(v))
	}
	if n != 1 && n != -1 {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "$pop expects 1 or -1, found: %d", n)
	}
	return &pop{n == -1}, nil
}

func (o *pop) apply(r *run, old value.Value) (value.Value, error) {
	if old.T != value.Array {
		return old, mongoerr.Newf(mongoerr.TypeMismatch, "Path '%s' contains an element of non-array type '%s'",
			r.dotted(), old.T.Name())
	}
	elems := value.Values(old.Doc())
	switch {
	case len(elems) == 0:
		return old, nil
	case o.first:
		elems = elems[1:]
	default:
		elems = elems[:len(elems)-1]
	}
	return r.arrayOf(elems), nil
}

// pull is $pull and $pullAll: it removes the elements for which drop returns true.
type pull struct {
	name string
	drop func(e value.Value) (bool, error)
}

// elementOperators are the operators that make a $pull condition a predicate on elements instead of on their fields.
var elementOperators = map[string]bool{
	"$eq": true, "$ne": true, "$gt": true, "$gte": true, "$lt": true, "$lte": true, "$in": true, "$nin": true, "$not": true,
	"$exists": true, "$type": true, "$size": true, "$all": true, "$elemMatch": true, "$mod": true, "$regex": true,
	"$options": true, "$bitsAllSet": true, "$bitsAllClear": true, "$bitsAnySet": true, "$bitsAnyClear": true, "$near": true,
	"$nearSphere": true, "$geoWithin": true, "$within": true, "$geoIntersects": true, "$geoNear": true,
}

func parsePull(c *compiler, _ string, v value.Value) (operator, error) {
	v = v.Clone()
	byElement := v.T == value.Regex
	if v.T == value.Document {
		it := value.Walk(v.Doc())
		k, _, _ := it.Next()
		byElement = elementOperators[string(k)]
	}
	opts := &match.Options{Collator: c.collator, Expr: c.scope}
	switch {
	case byElement:
		m, err := match.Compile(value.Doc(value.F("e", v)), opts)
		if err != nil {
			return nil, err
		}
		return &pull{"$pull", func(e value.Value) (bool, error) { return alone(m).Match(value.Doc(value.F("e", e))) }}, nil
	case v.T == value.Document:
		m, err := match.Compile(v.Doc(), opts)
		if err != nil {
			return nil, err
		}
		return &pull{"$pull", func(e value.Value) (bool, error) {
			if e.T != value.Document {
				return false, nil
			}
			return alone(m).Match(e.Doc())
		}}, nil
	}
	coll := c.collator
	return &pull{"$pull", func(e value.Value) (bool, error) { return value.CompareCollated(e, v, coll) == 0, nil }}, nil
}

func parsePullAll(c *compiler, _ string, v value.Value) (operator, error) {
	if v.T != value.Array {
		return nil, mongoerr.Newf(mongoerr.BadValue, "$pullAll requires an array argument but was given a %s", v.T.Name())
	}
	arr, coll := v.Clone().Doc(), c.collator
	return &pull{"$pullAll", func(e value.Value) (bool, error) { return holds(arr, e, coll), nil }}, nil
}

func (o *pull) apply(r *run, old value.Value) (value.Value, error) {
	if old.T != value.Array {
		return old, mongoerr.Newf(mongoerr.BadValue, "Cannot apply %s to a non-array value", o.name)
	}
	elems := value.Values(old.Doc())
	kept := elems[:0]
	for _, e := range elems {
		drop, err := o.drop(e)
		if err != nil {
			return old, err
		}
		if !drop {
			kept = append(kept, e)
		}
	}
	if len(kept) == len(elems) {
		return old, nil
	}
	return r.arrayOf(kept), nil
}
