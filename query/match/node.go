package match

import (
	"github.com/shoaldb/shoal/query/value"
)

// Kind is what a Node tests. The order of the constants is the order in which the server sorts the children of $and, $or
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
	BitsAllSet                  // BitPositions
	BitsAllClear                // BitPositions
	BitsAnySet                  // BitPositions
	BitsAnyClear                // BitPositions
	Not                         // Children[0] is false
	Nor                         // none of Children
	TypeIs                      // Types
	Geo                         // geospatial predicates
	Where                       // $where
	Expr                        // Expression
	AlwaysFalse                 // nothing
	AlwaysTrue                  // everything
	GeoNear                     // $near, $nearSphere
	Text                        // $text
	Schema                      // $jsonSchema
	SampleRate                  // $sampleRate
)

// Node is one predicate of a filter. Which fields hold something depends on Kind.
type Node struct {
	Kind     Kind
	Path     string        // dotted path of a leaf; empty for logical nodes and inside $elemMatch of values
	Children []*Node       // And, Or, Nor, Not, ElemMatchObject, ElemMatchValue
	Value    value.Value   // operand of Eq, Lt, Lte, Gt, Gte
	Values   []value.Value // operands of In: sorted, without duplicates
	Regexes  []*Regex      // RegexMatch (one), In
	Num, Rem int64         // Size, Mod
	Types    TypeSet       // TypeIs
	Bits     []uint32      // positions asked for by the Bits kinds, ascending
	Rate     float64       // SampleRate

	parts []string // Path split at its dots
}

// TypeSet is a set of BSON types, as $type takes it.
type TypeSet struct {
	mask   uint64 // bit t for types 1..19
	minKey bool
	maxKey bool
	number bool // written as "number": kept for serialising
}

// Has reports whether t is in the set.
func (s TypeSet) Has(t value.Type) bool {
	switch t {
	case value.MinKey:
		return s.minKey
	case value.MaxKey:
		return s.maxKey
	}
	return t < 64 && s.mask&(1<<t) != 0
}
