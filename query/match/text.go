package match

import (
	"slices"

	"github.com/shoaldb/shoal/query/text"
)

// checkText refuses a second $text, and a negated one.
func checkText(root *Node) error {
	count := 0
	var walk func(n *Node, negated bool) error
	walk = func(n *Node, negated bool) error {
		if n.Kind == Text {
			if count++; negated {
				return badValue("text expression not allowed in nor")
			}
			if count > 1 {
				return badValue("Too many text expressions")
			}
		}
		for _, c := range n.Children {
			if err := walk(c, negated || n.Kind == Nor || n.Kind == Not); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(root, false)
}

// Classic reports whether the filter has an operator that the 8.2 line runs only in its classic engine: one on geometries,
// $text, or an expression with one of ops.
func (m *Matcher) Classic(ops map[string]bool) bool { return m.root.classic(ops) }

func (n *Node) classic(ops map[string]bool) bool {
	switch n.Kind {
	case Geo, GeoNear, Text:
		return true
	case Expr:
		return n.Expr.Uses(ops)
	}
	return slices.ContainsFunc(n.Children, func(c *Node) bool { return c.classic(ops) })
}

// Text returns the filter's $text, nil if there is none.
func (m *Matcher) Text() *text.Query {
	if n := m.root.find(Text); n != nil {
		return n.Text
	}
	return nil
}

func (n *Node) find(k Kind) *Node {
	if n.Kind == k {
		return n
	}
	for _, c := range n.Children {
		if f := c.find(k); f != nil {
			return f
		}
	}
	return nil
}
