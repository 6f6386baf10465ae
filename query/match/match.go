package match

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Options are what a filter's meaning depends on besides its text.
type Options struct {
	Collator value.Collator // nil: strings compare as bytes
}

// Matcher is a compiled filter.
type Matcher struct {
	root *Node
}

// Detail tells where in a document a filter matched.
type Detail struct {
	// ArrayIndex is the index, as its decimal text, of the first array element that made a predicate over an array
	// true; what the positional operator $ stands for. Empty where no array was traversed.
	ArrayIndex string
}

// Compile parses and optimises a filter. Errors carry the server's codes and texts.
func Compile(filter []byte, o *Options) (*Matcher, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "filters are not implemented yet")
}

// Root is the optimised tree; nil stands for the filter that matches everything.
func (m *Matcher) Root() *Node { return m.root }

// Match reports whether doc satisfies the filter.
func (m *Matcher) Match(doc []byte) (bool, error) { return m.root == nil, nil }

// MatchDetail is Match, also filling in d.
func (m *Matcher) MatchDetail(doc []byte, d *Detail) (bool, error) { return m.root == nil, nil }

// MatchValue runs a filter on one value instead of a document, as $pull does with its condition's operators: v stands
// at the empty path for predicates without a path.
func (m *Matcher) MatchValue(v value.Value) (bool, error) { return m.root == nil, nil }

// Serialize gives the optimised tree as explain prints it in parsedQuery.
func (m *Matcher) Serialize() []byte { return value.Doc() }
