package projection

import (
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// kind is the action of a node on its field.
type kind uint8

const (
	nested    kind = iota // applies to its fields
	include               // keeps it
	exclude               // drops it
	computed              // gives it the value of expr
	slice                 // keeps a part of an array
	elemMatch             // keeps the first element of an array that matches
)

// node is the projection's action on one field of a document at its level.
type node struct {
	kind     kind
	name     string
	children []*node // nested: in the order of the spec

	expr    *expr.Expr     // computed
	match   *match.Matcher // elemMatch
	spec    value.Value    // slice, elemMatch: as written
	skip    int64          // slice: from this index; negative: from the end
	limit   int64          // slice: number of elements
	hasSkip bool           // slice: written [skip, limit]

	inclusive bool // fields without a child are dropped
	computes  bool // a computed node is below
	wanted    int  // how many children apply to existing fields
	index     map[string]int
}

// find looks up a child by name.
func (n *node) find(name []byte) (int, *node) {
	if n.index != nil {
		if i, ok := n.index[string(name)]; ok {
			return i, n.children[i]
		}
		return -1, nil
	}
	for i, c := range n.children {
		if c.name == string(name) {
			return i, c
		}
	}
	return -1, nil
}

// add adds a leaf at a path, creating the nodes in between.
func (n *node) add(parts []string, leaf *node) error {
	at := n
	for i, name := range parts {
		_, c := at.find([]byte(name))
		last := i == len(parts)-1
		switch {
		case c == nil && last:
			leaf.name = name
			at.children = append(at.children, leaf)
			return nil
		case c == nil:
			c = &node{kind: nested, name: name}
			at.children = append(at.children, c)
		case last:
			return mongoerr.Newf(31250, "Path collision at %s", strings.Join(parts, "."))
		case c.kind != nested:
			return mongoerr.Newf(31249, "Path collision at %s remaining portion %s", strings.Join(parts, "."), strings.Join(parts[1:], "."))
		}
		at = c
	}
	return nil
}

// linearSearch is the number of children up to which they are compared one after another.
const linearSearch = 8

// settle marks the tree as including or excluding, and sets index, wanted and computes.
func (n *node) settle(inclusive bool) {
	n.inclusive = inclusive
	if len(n.children) > linearSearch {
		n.index = make(map[string]int, len(n.children))
	}
	for i, c := range n.children {
		if n.index != nil {
			n.index[c.name] = i
		}
		c.settle(inclusive)
		if !inclusive || c.kind != computed && c.kind != elemMatch {
			n.wanted++
		}
		n.computes = n.computes || c.computes || c.kind == computed
	}
}
