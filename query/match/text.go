package match

import "github.com/shoaldb/shoal/query/text"

// checkText refuses a second $text, and one whose negation is asked.
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

// Text is the filter's $text, nil where there is none.
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
