package match

// Sub returns a Matcher for a part of the tree, or for a conjunction of parts: what a plan still has to check.
// It shares the nodes, which are not changed.
func (m *Matcher) Sub(nodes ...*Node) *Matcher {
	c := *m
	if len(nodes) == 1 {
		c.root = nodes[0]
		return &c
	}
	and := &Node{Kind: And, Children: nodes}
	and.group()
	c.root = and
	return &c
}
