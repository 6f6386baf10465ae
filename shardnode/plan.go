package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// plan chooses how to read what a query asks for and builds the execution tree.
func (n *Node) plan(op *command.Op, q *query) (node, error) {
	if q.coll == nil {
		return &eofNode{}, nil
	}
	if q.tailable {
		return n.planTail(q), nil
	}
	var root node
	if id, rest, ok := idEquality(q); ok {
		root = &idLookup{snap: q.snap, coll: q.coll, id: id, matcher: rest}
	} else {
		root = n.planScan(q)
	}
	if q.owned != nil {
		root = &filterNode{in: root, keep: func(doc []byte) (bool, error) { return q.owned(doc), nil }}
	}
	if len(q.sort) > 5 && value.Lookup(q.sort, "$natural").IsMissing() {
		s, err := newSortNode(root, q)
		if err != nil {
			return nil, err
		}
		root = s
	}
	return withSkipLimit(root, q), nil
}

func withSkipLimit(root node, q *query) node {
	if q.skip == 0 && q.limit == 0 {
		return root
	}
	limit := q.limit
	if limit == 0 {
		limit = -1
	}
	return &skipLimit{in: root, skip: q.skip, limit: limit}
}

func (n *Node) planScan(q *query) *collScan {
	o := storage.ScanOptions{}
	for _, spec := range [][]byte{q.sort, q.hint.Doc()} {
		if v := value.Lookup(spec, "$natural"); v.T.Numeric() && v.AsFloat64() < 0 {
			o.Reverse = true
		}
	}
	return &collScan{snap: q.snap, coll: q.coll, opts: o, matcher: q.matcher}
}

func (n *Node) planTail(q *query) node {
	t := &tailNode{node: n, ns: q.ns}
	t.collScan = *n.planScan(q)
	return withSkipLimit(t, q)
}

// idEquality recognises a filter that is an equality on _id, alone or among other conditions. rest is what remains to be
// checked on the document, nil for nothing.
func idEquality(q *query) (id value.Value, rest *match.Matcher, ok bool) {
	if q.matcher == nil || q.hint.T != value.Missing || q.min != nil || q.max != nil || q.coll.IDIndex() == nil && !q.coll.Clustered {
		return id, nil, false
	}
	if q.lang.coll != nil { // another collation than the _id index has
		return id, nil, false
	}
	root := q.matcher.Root()
	if eq := idEq(root); eq != nil {
		return eq.Value, nil, true
	}
	if root.Kind != match.And {
		return id, nil, false
	}
	for _, c := range root.Children {
		if eq := idEq(c); eq != nil {
			return eq.Value, q.matcher, true
		}
	}
	return id, nil, false
}

func idEq(n *match.Node) *match.Node {
	if n.Kind != match.Eq || n.Path != "_id" {
		return nil
	}
	switch n.Value.T {
	case value.Array, value.Null, value.Undefined, value.Regex:
		return nil
	}
	return n
}

// execute plans a query and gives its documents.
func (n *Node) execute(op *command.Op, q *query) (*queryStream, error) {
	root, err := n.plan(op, q)
	if err != nil {
		return nil, err
	}
	return &queryStream{q: q, root: root, tail: q.tailable}, nil
}

// coveredDoc builds a document of the fields of an index key.
func coveredDoc(r *row, _ []byte) []byte { return value.Doc() }
