package match

import (
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
)

// exprKinds are the comparisons of expressions that an index can serve.
var exprKinds = map[string]Kind{"$eq": ExprEq, "$gt": ExprGt, "$gte": ExprGte, "$lt": ExprLt, "$lte": ExprLte}

// deriveComparisons adds to each $expr what it requires of single fields, as comparisons that an index can serve. The expression remains,
// because it distinguishes arrays and missing fields, which the comparisons do not. See
// https://www.mongodb.com/docs/manual/reference/operator/query/expr/.
func deriveComparisons(n *Node) *Node {
	for i, c := range n.Children {
		n.Children[i] = deriveComparisons(c)
	}
	if n.Kind != Expr {
		return n
	}
	if d := derived(n.Expr); d != nil {
		return &Node{Kind: And, Children: []*Node{n, d}}
	}
	return n
}

// derived returns a condition that holds wherever an expression is true, nil if none is known: an $and requires any of its
// operands, an $or one of all of them.
func derived(e *expr.Expr) *Node {
	op, args := e.Call()
	switch op {
	case "$and":
		and := &Node{Kind: And}
		for _, a := range args {
			if d := derived(a); d != nil {
				and.Children = append(and.Children, d)
			}
		}
		if len(and.Children) > 0 {
			return and
		}
	case "$or":
		or := &Node{Kind: Or}
		for _, a := range args {
			d := derived(a)
			if d == nil {
				return nil
			}
			or.Children = append(or.Children, d)
		}
		if len(or.Children) > 0 {
			return or
		}
	case "$in":
		return membership(args[0], args[1])
	default:
		if other, ok := expr.Mirrored(op); ok {
			if n := fieldAndConstant(exprKinds[op], args[0], args[1]); n != nil {
				return n
			}
			return fieldAndConstant(exprKinds[other], args[1], args[0])
		}
	}
	return nil
}

// fieldAndConstant returns a comparison of a field with a constant. Numbers in a path name fields in expressions, and also elements
// of arrays in indexes. An array is compared as a whole in expressions, and its elements are in indexes.
func fieldAndConstant(k Kind, field, constant *expr.Expr) *Node {
	v, ok := constant.Constant()
	if !ok || v.T == value.Missing || v.T == value.Undefined || v.T == value.Array {
		return nil
	}
	n := fieldNode(k, field)
	if n != nil {
		n.Value = v.Clone()
	}
	return n
}

// membership returns the $in of a field and constants: it is also true of arrays that contain one of them, and null of a missing field.
func membership(field, constants *expr.Expr) *Node {
	list, ok := constants.Constant()
	if !ok || list.T != value.Array {
		return nil
	}
	n := fieldNode(In, field)
	if n == nil {
		return nil
	}
	for _, v := range value.Values(list.Clone().Doc()) {
		switch v.T {
		case value.Undefined, value.Array, value.Regex:
			return nil
		}
		n.Values = append(n.Values, v)
	}
	_ = n.prepareIn(nil, &value.Pace{}) // which never stops
	return n
}

// fieldNode returns a node for a field, nil if it cannot be derived.
func fieldNode(k Kind, field *expr.Expr) *Node {
	path, ok := field.FieldPath()
	if !ok {
		return nil
	}
	n := &Node{Kind: k, Path: path}
	for _, p := range appendParts(nil, path) {
		if strings.Trim(p.key.String(), "0123456789") == "" {
			return nil
		}
		n.parts = append(n.parts, p)
	}
	return n
}

// exprComparison evaluates a derived comparison. It is true, too, where an array is met: the expression decides.
func (c *context) exprComparison(n *Node, doc []byte) bool {
	v := value.NewDocument(doc)
	for _, p := range n.parts {
		if v.T != value.Document {
			if v.T == value.Array {
				return true
			}
			v = value.Value{}
			break
		}
		v = p.key.Lookup(v.Doc())
	}
	r := 0
	switch {
	case v.T == value.Array:
		return true
	case v.T != value.Missing:
		r = value.CompareCollated(v, n.Value, c.m.coll)
	case n.Value.T == value.MinKey:
		r = 1
	default:
		r = -1
	}
	switch n.Kind {
	case ExprEq:
		return r == 0
	case ExprGt:
		return r > 0
	case ExprGte:
		return r >= 0
	case ExprLt:
		return r < 0
	}
	return r <= 0
}
