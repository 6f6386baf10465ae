package match

import (
	"bytes"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// rule rewrites one node whose children are rewritten already; it returns its argument if it does not apply.
type rule struct {
	name    string
	rewrite func(*Node) *Node
}

// rules run in order on every node, from the leaves up. The planner and explain see the result.
var rules = []rule{
	{"an $and in an $and, an $or in an $or are one", flatten},
	{"constants decide their parents", foldConstants},
	{"$not of $not is nothing, $not of $or is $nor", simplifyNot},
	{"$nor of one is $not", norToNot},
	{"$or of equalities on one path is $in", orToIn},
	{"$in of one value is $eq", inToEq},
	{"children are in the order of kind, path and operand", sortChildren},
	{"the same child twice is once", dedupe},
	{"an $and or $or of one child is that child", unwrap},
}

func optimise(n *Node) *Node {
	for i, c := range n.Children {
		n.Children[i] = optimise(c)
	}
	for _, r := range rules {
		n = r.rewrite(n)
	}
	return n
}

func flatten(n *Node) *Node {
	if n.Kind != And && n.Kind != Or && n.Kind != ElemMatchValue {
		return n
	}
	same := n.Kind
	if same == ElemMatchValue {
		same = And
	}
	if !slices.ContainsFunc(n.Children, func(c *Node) bool { return c.Kind == same }) {
		return n
	}
	var out []*Node
	for _, c := range n.Children {
		if c.Kind == same {
			out = append(out, c.Children...)
		} else {
			out = append(out, c)
		}
	}
	n.Children = out
	return n
}

func isTrue(n *Node) bool { return n.Kind == AlwaysTrue || n.Kind == And && len(n.Children) == 0 }

func isFalse(n *Node) bool { return n.Kind == AlwaysFalse }

func foldConstants(n *Node) *Node {
	switch n.Kind {
	case And:
		if slices.ContainsFunc(n.Children, isFalse) {
			return &Node{Kind: AlwaysFalse}
		}
		n.Children = slices.DeleteFunc(n.Children, isTrue)
	case Or:
		if slices.ContainsFunc(n.Children, isTrue) {
			return &Node{Kind: And}
		}
		n.Children = slices.DeleteFunc(n.Children, isFalse)
		if len(n.Children) == 0 {
			return &Node{Kind: AlwaysFalse}
		}
	case Nor:
		if slices.ContainsFunc(n.Children, isTrue) {
			return &Node{Kind: AlwaysFalse}
		}
		n.Children = slices.DeleteFunc(n.Children, isFalse)
		if len(n.Children) == 0 {
			return &Node{Kind: And}
		}
	case In:
		if len(n.Values) == 0 && len(n.Regexes) == 0 {
			return &Node{Kind: AlwaysFalse}
		}
	case ElemMatchObject:
		if isFalse(n.Children[0]) {
			return &Node{Kind: AlwaysFalse}
		}
	case ElemMatchValue:
		if slices.ContainsFunc(n.Children, isFalse) {
			return &Node{Kind: AlwaysFalse}
		}
	case Expr:
		if v, ok := n.Expr.Constant(); ok {
			if v.Truthy() {
				return &Node{Kind: And}
			}
			return &Node{Kind: AlwaysFalse}
		}
	case SampleRate:
		switch n.Rate {
		case 0:
			return &Node{Kind: AlwaysFalse}
		case 1:
			return &Node{Kind: And}
		}
	}
	return n
}

func simplifyNot(n *Node) *Node {
	if n.Kind != Not {
		return n
	}
	switch c := n.Children[0]; {
	case c.Kind == Not:
		return c.Children[0]
	case c.Kind == Nor && len(c.Children) > 1:
		return &Node{Kind: Or, Children: c.Children}
	case c.Kind == Or:
		return &Node{Kind: Nor, Children: c.Children}
	case isTrue(c):
		return &Node{Kind: AlwaysFalse}
	case isFalse(c):
		return &Node{Kind: And}
	}
	return n
}

func norToNot(n *Node) *Node {
	if n.Kind == Nor && len(n.Children) == 1 {
		return simplifyNot(not(n.Children[0]))
	}
	return n
}

// orToIn joins equalities (and regular expressions and $in) on one path. Null keeps its meaning in $in. Linking sorts the
// operands again if there is a collation.
func orToIn(n *Node) *Node {
	if n.Kind != Or {
		return n
	}
	byPath := map[string][]*Node{}
	for _, c := range n.Children {
		if c.Kind == Eq || c.Kind == In || c.Kind == RegexMatch {
			byPath[c.Path] = append(byPath[c.Path], c)
		}
	}
	var out []*Node
	done := map[string]bool{}
	for _, c := range n.Children {
		group := byPath[c.Path]
		if c.Kind != Eq && c.Kind != In && c.Kind != RegexMatch || len(group) < 2 {
			out = append(out, c)
			continue
		}
		if done[c.Path] {
			continue
		}
		done[c.Path] = true
		in := c.sibling(In)
		for _, e := range group {
			if e.Kind == Eq {
				in.Values = append(in.Values, e.Value)
			}
			in.Values = append(in.Values, e.Values...)
			in.Regexes = append(in.Regexes, e.Regexes...)
		}
		_ = in.prepareIn(nil, &value.Pace{})
		out = append(out, in)
	}
	n.Children = out
	return n
}

func inToEq(n *Node) *Node {
	if n.Kind != In || len(n.Values)+len(n.Regexes) != 1 {
		return n
	}
	if len(n.Regexes) == 1 {
		r := n.sibling(RegexMatch)
		r.Regexes = n.Regexes
		return r
	}
	e := n.sibling(Eq)
	e.Value = n.Values[0]
	return e
}

func sortChildren(n *Node) *Node {
	switch n.Kind {
	case And, Or, Nor, ElemMatchValue:
		slices.SortStableFunc(n.Children, Compare)
	}
	return n
}

// Compare orders nodes by kind, path and operands: the normal order of a filter's parts.
func Compare(a, b *Node) int {
	if a.Kind != b.Kind {
		return int(a.Kind) - int(b.Kind)
	}
	if r := strings.Compare(a.Path, b.Path); r != 0 {
		return r
	}
	for i := 0; i < len(a.Children) && i < len(b.Children); i++ {
		if r := Compare(a.Children[i], b.Children[i]); r != 0 {
			return r
		}
	}
	if r := len(a.Children) - len(b.Children); r != 0 {
		return r
	}
	if a.Value.T != value.Missing && b.Value.T != value.Missing {
		if r := value.Compare(a.Value, b.Value); r != 0 {
			return r
		}
	}
	return bytes.Compare(a.Serialize(), b.Serialize())
}

// dedupe drops repeated predicates, except those whose result may differ from call to call.
func dedupe(n *Node) *Node {
	if n.Kind != And && n.Kind != Or && n.Kind != Nor {
		return n
	}
	n.Children = slices.CompactFunc(n.Children, func(a, b *Node) bool {
		return a.Kind == b.Kind && !a.Has(SampleRate) && !a.Has(Expr) && !a.Has(Schema) && Compare(a, b) == 0
	})
	return n
}

func unwrap(n *Node) *Node {
	if (n.Kind == And || n.Kind == Or) && len(n.Children) == 1 {
		return n.Children[0]
	}
	return n
}
