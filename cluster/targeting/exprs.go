package targeting

import (
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
)

// exprSpans returns the values that a field may have where an expression is true: an $and, or a comparison of the field with a constant. Documents have no arrays
// in their shard keys, so that a comparison as a whole and one of elements are the same.
func exprSpans(e value.Value, path string, collated bool) []Span {
	if e.T != value.Document || value.Count(e.Doc()) != 1 {
		return everything
	}
	it := value.Walk(e.Doc())
	op, arg, _ := it.Next()
	if arg.T != value.Array {
		return everything
	}
	args := value.Values(arg.Doc())
	if string(op) == "$and" {
		out := everything
		for _, a := range args {
			out = intersect(out, exprSpans(a, path, collated))
		}
		return out
	}
	if string(op) == "$in" && len(args) == 2 && isField(args[0], path) {
		return memberSpans(args[1], collated)
	}
	name := string(op)
	other, compares := expr.Mirrored(name)
	if !compares || len(args) != 2 {
		return everything
	}
	if !isField(args[0], path) {
		name, args[0], args[1] = other, args[1], args[0]
	}
	if v, ok := constant(args[1]); ok && isField(args[0], path) && !(collated && hasStrings(v)) {
		return []Span{comparisonSpan(name, v)}
	}
	return everything
}

// memberSpans returns the values of an array of constants.
func memberSpans(e value.Value, collated bool) []Span {
	if e.T != value.Array {
		return everything
	}
	var list []value.Value
	for _, x := range value.Values(e.Doc()) {
		v, ok := constant(x)
		if !ok {
			return everything
		}
		list = append(list, v)
	}
	return inSpans(value.NewArray(value.ArrayOf(list...)), collated)
}

func isField(e value.Value, path string) bool { return e.T == value.String && e.Str() == "$"+path }

// constant returns the value of an expression that is a constant.
func constant(e value.Value) (v value.Value, ok bool) {
	if e.T == value.Document {
		it := value.Walk(e.Doc())
		op, arg, one := it.Next()
		if !one || string(op) != "$literal" && string(op) != "$const" {
			return v, false
		}
		e = arg
	} else if e.T == value.String && strings.HasPrefix(e.Str(), "$") {
		return v, false
	}
	switch e.T {
	case value.Missing, value.Undefined, value.Array:
		return v, false
	}
	return e, true
}

func hasStrings(v value.Value) bool {
	return v.T == value.String || v.T == value.Symbol || v.T == value.Document
}

// comparisonSpan returns the values of a comparison, which are of all types. A missing field comes below null, and is null in a shard key.
func comparisonSpan(op string, v value.Value) Span {
	s := everything[0]
	switch op {
	case "$gt", "$gte":
		s.Lo, s.loIncl = v, op == "$gte"
	case "$lt", "$lte":
		s.Hi, s.hiIncl = v, op == "$lte" || v.T == value.Null
	default:
		s.Lo, s.Hi = v, v
	}
	return s
}
