package update

import (
	"strings"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// node is one component of the paths of an update. It is a leaf (op set), an object node (children by name, perhaps one
// for the positional operator) or an array node (children by array filter).
type node struct {
	name string // the component, as text
	op   operator
	flag opFlags

	kids       []*node // children by name, in the order of compareNames
	positional *node   // the child under $
	filtered   []filtered
}

type opFlags uint8

const (
	creates    opFlags = 1 << iota // the operator creates a missing field
	insertOnly                     // $setOnInsert
	anyPath                        // a path that leads through a scalar is skipped silently
	refuseElem                     // the path may not end in an array element ($rename)
)

// filtered is a child of an array node: for all elements (filter nil) or for those that match.
type filtered struct {
	id     string
	filter *match.Matcher
	child  *node
}

// cutDot splits a path at its first dot.
func cutDot(path string) (head, rest string) {
	if i := strings.IndexByte(path, '.'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return path, ""
}

func allDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// compareNames returns the order in which new fields are added: two numbers by value, other names by bytes. Numbers precede all other names but those that begin with a
// smaller byte than a digit: it has to be an order, which "two numbers by value, everything else by bytes" is not ("9" < "10" < "1a" < "9").
func compareNames(a, b string) int {
	switch x, y := allDigits(a), allDigits(b); {
	case x && !y:
		if b == "" || b[0] < '0' {
			return 1
		}
		return -1
	case y && !x:
		return -compareNames(b, a)
	case x:
		ta, tb := strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		if len(ta) != len(tb) {
			return len(ta) - len(tb)
		}
		if c := strings.Compare(ta, tb); c != 0 {
			return c
		}
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func conflict(path, at string) error {
	return mongoerr.Newf(mongoerr.ConflictingUpdateOperators, "Updating the path '%s' would create a conflict at '%s'", path, at)
}

// insert adds an operator at a path below n.
func (c *compiler) insert(path string, op operator, flag opFlags) error {
	n, done := c.root, ""
	for rest := path; ; {
		var head string
		head, rest = cutDot(rest)
		child, err := c.child(n, path, done, head)
		if err != nil {
			return err
		}
		done = joinPath(done, head)
		if rest == "" {
			if child.op != nil || child.inner() {
				return conflict(path, done)
			}
			child.op, child.flag = op, flag
			c.paths = append(c.paths, path)
			return nil
		}
		if child.op != nil {
			return conflict(path, done)
		}
		n = child
	}
}

func (n *node) inner() bool { return len(n.kids) > 0 || n.positional != nil || len(n.filtered) > 0 }

func joinPath(a, b string) string {
	if a == "" {
		return b
	}
	return a + "." + b
}

// child finds or makes the child of n for a component; at is the path of n.
func (c *compiler) child(n *node, path, at, head string) (*node, error) {
	if id, ok := filterID(head); ok {
		if len(n.kids) > 0 || n.positional != nil {
			return nil, conflict(path, at)
		}
		return c.filteredChild(n, path, id)
	}
	if len(n.filtered) > 0 {
		return nil, conflict(path, at)
	}
	if head == "$" {
		if n.positional == nil {
			n.positional = &node{name: head}
		}
		return n.positional, nil
	}
	i := 0
	for ; i < len(n.kids); i++ {
		r := compareNames(n.kids[i].name, head)
		if r == 0 {
			return n.kids[i], nil
		}
		if r > 0 {
			break
		}
	}
	n.kids = append(n.kids, nil)
	copy(n.kids[i+1:], n.kids[i:])
	n.kids[i] = &node{name: head}
	return n.kids[i], nil
}

// filterID reads the identifier of $[identifier]; it is empty for $[].
func filterID(head string) (id string, ok bool) {
	if strings.HasPrefix(head, "$[") && strings.HasSuffix(head, "]") {
		return head[2 : len(head)-1], true
	}
	return "", false
}

func (c *compiler) filteredChild(n *node, path, id string) (*node, error) {
	for _, f := range n.filtered {
		if f.id == id {
			return f.child, nil
		}
	}
	f := filtered{id: id, child: &node{name: "$[" + id + "]"}}
	if id != "" {
		af := c.filters[id]
		if af == nil {
			return nil, mongoerr.Newf(mongoerr.BadValue, "No array filter found for identifier '%s' in path '%s'", id, path)
		}
		af.used = true
		f.filter = af.matcher
	}
	i := 0
	for i < len(n.filtered) && n.filtered[i].id < id {
		i++
	}
	n.filtered = append(n.filtered, filtered{})
	copy(n.filtered[i+1:], n.filtered[i:])
	n.filtered[i] = f
	return f.child, nil
}

// merge joins two nodes that meet in one array element; at is that element's path.
func merge(a, b *node, at string) (*node, error) {
	if a.op != nil || b.op != nil || (len(a.filtered) > 0) != (len(b.filtered) > 0) {
		return nil, mongoerr.Newf(mongoerr.ConflictingUpdateOperators, "Update created a conflict at '%s'", at)
	}
	m := &node{name: a.name, positional: a.positional}
	if b.positional != nil {
		m.positional = b.positional
		if a.positional != nil {
			p, err := merge(a.positional, b.positional, joinPath(at, "$"))
			if err != nil {
				return nil, err
			}
			m.positional = p
		}
	}
	if err := m.mergeKids(a, b, at); err != nil {
		return nil, err
	}
	return m, m.mergeFiltered(a, b, at)
}

func (n *node) mergeKids(a, b *node, at string) error {
	i, j := 0, 0
	for i < len(a.kids) || j < len(b.kids) {
		r := 0
		switch {
		case i == len(a.kids):
			r = 1
		case j == len(b.kids):
			r = -1
		default:
			r = compareNames(a.kids[i].name, b.kids[j].name)
		}
		switch {
		case r < 0:
			n.kids = append(n.kids, a.kids[i])
			i++
		case r > 0:
			n.kids = append(n.kids, b.kids[j])
			j++
		default:
			k, err := merge(a.kids[i], b.kids[j], joinPath(at, a.kids[i].name))
			if err != nil {
				return err
			}
			n.kids = append(n.kids, k)
			i, j = i+1, j+1
		}
	}
	return nil
}

func (n *node) mergeFiltered(a, b *node, at string) error {
	n.filtered = append(n.filtered, a.filtered...)
outer:
	for _, f := range b.filtered {
		for i, g := range n.filtered {
			if g.id != f.id {
				continue
			}
			k, err := merge(g.child, f.child, joinPath(at, g.child.name))
			if err != nil {
				return err
			}
			n.filtered[i].child = k
			continue outer
		}
		n.filtered = append(n.filtered, f)
	}
	return nil
}
