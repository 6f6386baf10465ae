package match

import (
	"github.com/shoaldb/shoal/query/regex"
	"github.com/shoaldb/shoal/query/value"
)

// Serialize returns the optimised tree in the form of explain's parsedQuery.
func (m *Matcher) Serialize() []byte { return m.root.Serialize() }

// Serialize returns the node as a filter document of its own.
func (n *Node) Serialize() []byte {
	out, mark := value.Begin(nil)
	return value.End(n.append(out), mark)
}

// append adds the node's elements to a document.
func (n *Node) append(dst []byte) []byte {
	switch n.Kind {
	case And:
		if len(n.Children) == 0 {
			return dst
		}
		return appendList(dst, "$and", n.Children)
	case Or:
		return appendList(dst, "$or", n.Children)
	case Nor:
		return appendList(dst, "$nor", n.Children)
	case Not:
		return n.appendNot(dst)
	case Expr:
		return value.Append(dst, "$expr", n.Expr.Serialize())
	case Schema:
		return value.Append(dst, "$jsonSchema", value.NewDocument(n.Schema.Document()))
	case AlwaysTrue:
		return value.Append(dst, "$alwaysTrue", value.NewInt32(1))
	case AlwaysFalse:
		return value.Append(dst, "$alwaysFalse", value.NewInt32(1))
	case SampleRate:
		return value.Append(dst, "$sampleRate", value.NewDouble(n.Rate))
	case Text:
		return value.Append(dst, "$text", n.Value)
	case Where:
		return value.Append(dst, "$where", n.Value)
	}
	dst, mark := value.BeginKey(dst, value.Document, n.Path)
	return value.End(n.appendOperator(dst), mark)
}

func appendList(dst []byte, name string, children []*Node) []byte {
	dst, mark := value.BeginKey(dst, value.Array, name)
	for i, c := range children {
		dst = value.AppendIndex(dst, i, value.NewDocument(c.Serialize()))
	}
	return value.End(dst, mark)
}

// appendNot prints {path: {$not: …}} for one path's predicate and {$nor: […]} for the rest.
func (n *Node) appendNot(dst []byte) []byte {
	c := n.Children[0]
	path, ok := c.onePath()
	if !ok {
		return appendList(dst, "$nor", n.Children)
	}
	dst, outer := value.BeginKey(dst, value.Document, path)
	dst, inner := value.BeginKey(dst, value.Document, "$not")
	dst = c.appendOperators(dst)
	return value.End(value.End(dst, inner), outer)
}

// onePath returns the path that a leaf, or an And of leaves on one path, reads.
func (n *Node) onePath() (string, bool) {
	if n.Kind == And && len(n.Children) > 0 {
		path, ok := n.Children[0].onePath()
		for _, c := range n.Children[1:] {
			p, sub := c.onePath()
			ok = ok && sub && p == path
		}
		return path, ok
	}
	if n.Kind == Not {
		return n.Children[0].onePath()
	}
	return n.Path, n.Leaf()
}

// appendOperators adds the operators of a leaf, or of an And of leaves, without their path.
func (n *Node) appendOperators(dst []byte) []byte {
	switch n.Kind {
	case And:
		for _, c := range n.Children {
			dst = c.appendOperators(dst)
		}
		return dst
	case Not:
		dst, mark := value.BeginKey(dst, value.Document, "$not")
		return value.End(n.Children[0].appendOperators(dst), mark)
	case Or, Nor:
		return n.append(dst)
	}
	return n.appendOperator(dst)
}

var kindNames = map[Kind]string{
	Eq: "$eq", Lt: "$lt", Lte: "$lte", Gt: "$gt", Gte: "$gte",
	BitsAllSet: "$bitsAllSet", BitsAllClear: "$bitsAllClear", BitsAnySet: "$bitsAnySet", BitsAnyClear: "$bitsAnyClear",
	ExprEq: "$_internalExprEq", ExprGt: "$_internalExprGt", ExprGte: "$_internalExprGte", ExprLt: "$_internalExprLt", ExprLte: "$_internalExprLte",
}

// appendOperator adds {…: the leaf's own operator}.
func (n *Node) appendOperator(dst []byte) []byte {
	switch n.Kind {
	case Eq, Lt, Lte, Gt, Gte, ExprEq, ExprGt, ExprGte, ExprLt, ExprLte:
		return value.Append(dst, kindNames[n.Kind], n.Value)
	case In:
		vals := append([]value.Value(nil), n.Values...)
		for _, r := range n.Regexes {
			vals = append(vals, value.NewRegex(r.Pattern, r.Options))
		}
		return value.Append(dst, "$in", value.NewArray(value.ArrayOf(vals...)))
	case RegexMatch:
		return appendRegex(dst, n.Regexes[0])
	case Mod:
		return value.Append(dst, "$mod", value.NewArray(value.ArrayOf(value.NewInt64(n.Num), value.NewInt64(n.Rem))))
	case Exists:
		return value.Append(dst, "$exists", value.NewBool(true))
	case TypeIs:
		return value.Append(dst, "$type", value.NewArray(typeNumbers(n.Types)))
	case Size:
		return value.Append(dst, "$size", value.NewInt32(int32(n.Num)))
	case ElemMatchObject:
		return value.Append(dst, "$elemMatch", value.NewDocument(n.Children[0].Serialize()))
	case ElemMatchValue:
		dst, mark := value.BeginKey(dst, value.Document, "$elemMatch")
		for _, c := range n.Children {
			dst = c.appendOperators(dst)
		}
		return value.End(dst, mark)
	case BitsAllSet, BitsAllClear, BitsAnySet, BitsAnyClear:
		pos := make([]value.Value, len(n.Bits.Positions))
		for i, p := range n.Bits.Positions {
			pos[i] = value.NewInt32(int32(p))
		}
		return value.Append(dst, kindNames[n.Kind], value.NewArray(value.ArrayOf(pos...)))
	case Geo, GeoNear:
		for k, v := range value.Elements(n.Value.Doc()) {
			dst = value.Append(dst, k, v)
		}
	}
	return dst
}

func appendRegex(dst []byte, r *regex.Regexp) []byte {
	dst = value.Append(dst, "$regex", value.NewString(r.Pattern))
	if r.Options != "" {
		dst = value.Append(dst, "$options", value.NewString(r.Options))
	}
	return dst
}

func typeNumbers(s value.TypeSet) []byte {
	var out []value.Value
	if s.Number {
		out = append(out, value.NewString("number"))
	}
	for _, t := range s.Types() {
		out = append(out, value.NewInt32(int32(int8(t))))
	}
	return value.ArrayOf(out...)
}
