package match

import (
	"github.com/shoaldb/shoal/query/value"
)

// Explain returns why a document does not satisfy a collection's validator, in the form of errInfo.details;
// nil if it does.
func (m *Matcher) Explain(doc []byte) []byte {
	if ok, err := m.Match(doc); ok && err == nil {
		return nil
	}
	return m.explain(m.root, doc, false)
}

var operatorNames = map[Kind]string{
	And: "$and", Or: "$or", Nor: "$nor", Not: "$not", Eq: "$eq", Lt: "$lt", Lte: "$lte", Gt: "$gt", Gte: "$gte", In: "$in",
	RegexMatch: "$regex", Mod: "$mod", Exists: "$exists", TypeIs: "$type", Size: "$size", ElemMatchObject: "$elemMatch",
	ElemMatchValue: "$elemMatch", BitsAllSet: "$bitsAllSet", BitsAllClear: "$bitsAllClear", BitsAnySet: "$bitsAnySet",
	BitsAnyClear: "$bitsAnyClear", Expr: "$expr", AlwaysFalse: "$alwaysFalse", AlwaysTrue: "$alwaysTrue", SampleRate: "$sampleRate",
	Geo: "$geoWithin", Where: "$where", Text: "$text", GeoNear: "$near",
}

// explain describes a node that is false, or, inverted (below $not and $nor), one that is true.
func (m *Matcher) explain(n *Node, doc []byte, inverted bool) []byte {
	switch n.Kind {
	case And, Or, Nor:
		return m.explainList(n, doc, inverted)
	case Not:
		if n.op == "$ne" || n.op == "$nin" {
			return value.Doc(append([]value.Field{
				value.F("operatorName", value.NewString(n.op)), value.F("specifiedAs", value.NewDocument(n.asWritten()))},
				m.explainLeaf(n.Children[0], doc, !inverted)...)...)
		}
		inner := m.explain(n.Children[0], doc, !inverted)
		return value.Doc(value.F("operatorName", value.NewString("$not")), value.F("details", value.NewDocument(inner)))
	case Schema:
		if d := n.Schema.Explain(doc); d != nil {
			return d
		}
		return value.Doc(value.F("operatorName", value.NewString("$jsonSchema")), value.F("reason", value.NewString("schema matched")))
	}
	fs := []value.Field{
		value.F("operatorName", value.NewString(operatorNames[n.Kind])),
		value.F("specifiedAs", value.NewDocument(n.asWritten())),
	}
	if n.Kind == Expr {
		fs = append(fs, value.F("reason", value.NewString(pick(inverted, "expression did match", "expression did not match"))))
		return value.Doc(append(fs, value.F("expressionResult", value.NewBool(inverted)))...)
	}
	return value.Doc(append(fs, m.explainLeaf(n, doc, inverted)...)...)
}

// asWritten returns a leaf in its original form in the filter.
func (n *Node) asWritten() []byte {
	path := n.Path
	if n.Kind == Not {
		path = n.Children[0].Path
	}
	switch {
	case n.written.IsMissing(), n.op == "$regex": // its options are in a separate field
		return n.Serialize()
	case n.Kind == Expr:
		return value.Doc(value.F("$expr", n.written))
	case n.op == "":
		return value.Doc(value.F(path, n.written))
	}
	return value.Doc(value.F(path, value.NewDocument(value.Doc(value.F(n.op, n.written)))))
}

func pick(inverted bool, yes, no string) string {
	if inverted {
		return yes
	}
	return no
}

func (m *Matcher) explainList(n *Node, doc []byte, inverted bool) []byte {
	// A false $and shows its false clauses, a true $or its true ones; for $nor it is the other way round.
	wantTrue := inverted
	if n.Kind == Nor {
		wantTrue = !inverted
	}
	var clauses []value.Value
	for i, c := range n.Children {
		ctx := context{m: m}
		if ctx.document(c, doc) != wantTrue {
			continue
		}
		d := m.explain(c, doc, wantTrue)
		clauses = append(clauses, value.NewDocument(value.Doc(value.F("index", value.NewInt32(int32(i))), value.F("details", value.NewDocument(d)))))
	}
	return value.Doc(value.F("operatorName", value.NewString(operatorNames[n.Kind])),
		value.F(pick(wantTrue, "clausesSatisfied", "clausesNotSatisfied"), value.NewArray(value.ArrayOf(clauses...))))
}

// reasons are the texts for a leaf that is false, and for one that is true.
var reasons = map[Kind][2]string{
	In: {"no matching value found in array", "matching value found in array"}, RegexMatch: {"regular expression did not match", "regular expression did match"},
	Mod: {"$mod did not evaluate to expected remainder", "$mod did evaluate to expected remainder"}, Exists: {"path does not exist", "path does exist"},
	TypeIs: {"type did not match", "type did match"}, Size: {"array length was not equal to given size", "array length was equal to given size"},
	ElemMatchObject: {"array did not satisfy the child predicate", "array did satisfy the child predicate"},
	ElemMatchValue:  {"array did not satisfy the child predicate", "array did satisfy the child predicate"},
	BitsAllSet:      {"bitwise operator failed to match", "bitwise operator matched successfully"}, BitsAllClear: {"bitwise operator failed to match", "bitwise operator matched successfully"},
	BitsAnySet: {"bitwise operator failed to match", "bitwise operator matched successfully"}, BitsAnyClear: {"bitwise operator failed to match", "bitwise operator matched successfully"},
	AlwaysFalse: {"expression always evaluates to false", ""}, AlwaysTrue: {"", "expression always evaluates to true"},
}

func (m *Matcher) explainLeaf(n *Node, doc []byte, inverted bool) []value.Field {
	why, ok := reasons[n.Kind]
	if !ok {
		why = [2]string{"comparison failed", "comparison succeeded"}
	}
	reason := value.F("reason", value.NewString(pick(inverted, why[1], why[0])))
	if n.Kind == Exists || !n.Leaf() {
		return []value.Field{reason}
	}
	vs := reached(nil, value.NewDocument(doc), n.parts)
	switch {
	case len(vs) == 0:
		if inverted {
			return []value.Field{reason}
		}
		return []value.Field{value.F("reason", value.NewString("field was missing"))}
	case len(vs) > 1:
		return []value.Field{reason, value.F("consideredValues", value.NewArray(value.ArrayOf(vs...)))}
	}
	fs := []value.Field{reason, value.F("consideredValue", vs[0])}
	if n.Kind == TypeIs {
		fs = append(fs, value.F("consideredType", value.NewString(vs[0].T.Name())))
	}
	return fs
}

// reached collects the values that a path leads to, without expanding an array at its end.
func reached(out []value.Value, v value.Value, parts []part) []value.Value {
	if v.T == value.Missing {
		return out
	}
	if len(parts) == 0 {
		return append(out, v)
	}
	switch v.T {
	case value.Document:
		return reached(out, parts[0].key.Lookup(v.Doc()), parts[1:])
	case value.Array:
		for i, e := range value.Values(v.Doc()) {
			if e.T == value.Document {
				out = reached(out, e, parts)
			}
			if parts[0].num == i {
				out = reached(out, e, parts[1:])
			}
		}
	}
	return out
}
