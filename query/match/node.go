package match

import (
	"slices"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/geo"
	"github.com/shoaldb/shoal/query/js"
	"github.com/shoaldb/shoal/query/jsonschema"
	"github.com/shoaldb/shoal/query/regex"
	"github.com/shoaldb/shoal/query/text"
	"github.com/shoaldb/shoal/query/value"
)

// Kind identifies the test of a Node. The order of the constants is the order in which the server sorts the children of $and, $or
// and $nor when it normalises a filter, which explain shows.
type Kind uint8

// Kinds of nodes.
const (
	And             Kind = iota // all Children
	Or                          // any of Children
	ElemMatchObject             // some element of the array at Path, taken as a document, satisfies Children[0]
	ElemMatchValue              // some element of the array at Path satisfies all Children (whose paths are empty)
	Size                        // the array at Path has Num elements
	Eq                          // Value; null also matches a missing field
	Lte                         // Value
	Lt                          // Value
	Gt                          // Value
	Gte                         // Value
	RegexMatch                  // Regexes[0]
	Mod                         // Num is the divisor, Rem the remainder
	Exists                      // Path leads to some value
	In                          // any of Values or Regexes
	BitsAllSet                  // Bits
	BitsAllClear                // Bits
	BitsAnySet                  // Bits
	BitsAnyClear                // Bits
	Not                         // Children[0] is false
	Nor                         // none of Children
	TypeIs                      // Types
	Geo                         // geospatial predicates
	Where                       // $where
	Expr                        // Expr
	AlwaysFalse                 // nothing
	AlwaysTrue                  // everything
	GeoNear                     // $near, $nearSphere
	Text                        // $text
	Schema                      // $jsonSchema
	SampleRate                  // $sampleRate
	ExprEq                      // Value: the expressions' comparisons, which an $expr in the same And requires (Options.Derive)
	ExprGt                      // Value
	ExprGte                     // Value
	ExprLt                      // Value
	ExprLte                     // Value
)

// Node is one predicate of a filter. Which fields hold something depends on Kind.
type Node struct {
	Kind     Kind
	Path     string          // dotted path of a leaf; empty for logical nodes and inside $elemMatch of values
	Children []*Node         // And, Or, Nor, Not, ElemMatchObject, ElemMatchValue
	Value    value.Value     // operand of Eq, Lt, Lte, Gt, Gte and of the Expr kinds; specification of Text and Where; the operators of Geo and GeoNear
	Values   []value.Value   // operands of In: sorted, without duplicates
	Regexes  []*regex.Regexp // RegexMatch (one), In
	Num, Rem int64           // Size, Mod
	Types    value.TypeSet   // TypeIs
	Bits     *Bits           // the Bits kinds
	Expr     *expr.Expr      // Expr
	Schema   *jsonschema.Schema
	Rate     float64     // SampleRate
	Geo      *geo.Query  // Geo
	Near     *geo.Near   // GeoNear
	Text     *text.Query // Text; it needs the index before it can match
	Script   *js.Func    // Where

	spelling
	components
	*onePass      // nil except for a prepared And
	hasNil   bool // In: null is among Values, so a missing field matches
}

// components are a node's Path split at its dots.
type components struct {
	parts []part
	one   [1]part // room for parts of a path without dots
}

// spelling is the node's original form in the filter, to explain why a document does not match.
type spelling struct {
	op      string      // the operator; empty for {path: value}
	written value.Value // its operand, Missing if the node was not written in the filter
}

// onePass is an And as it is evaluated: in a single pass over a document.
type onePass struct {
	fields []*field // leaves by the top-level field they read
	rest   []*Node  // the other children
}

// part is one component of a path; num is its value as an array index, or -1.
type part struct {
	key value.FieldName
	num int
}

// field groups the predicates that read one top-level field.
type field struct {
	key   value.FieldName
	preds []pred
}

type pred struct {
	n       *Node
	negated bool
}

// Leaf reports whether the node tests one path.
func (n *Node) Leaf() bool {
	switch n.Kind {
	case Eq, Lt, Lte, Gt, Gte, In, RegexMatch, Mod, Exists, TypeIs, Size, ElemMatchObject, ElemMatchValue,
		BitsAllSet, BitsAllClear, BitsAnySet, BitsAnyClear, Geo:
		return true
	}
	return false
}

// appendParts appends the components of a dotted path, array indexes recognised.
func appendParts(parts []part, path string) []part {
	parts = slices.Grow(parts, strings.Count(path, ".")+1)
	for name := range strings.SplitSeq(path, ".") {
		p := part{key: value.NewFieldName(name), num: -1}
		if name == "0" || name != "" && '1' <= name[0] && name[0] <= '9' {
			if n, err := strconv.ParseUint(name, 10, 31); err == nil {
				p.num = int(n)
			}
		}
		parts = append(parts, p)
	}
	return parts
}
