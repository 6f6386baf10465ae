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
		op.Stats.PlanSummary = "EOF"
		return &eofNode{}, nil
	}
	if q.tailable {
		return n.planTail(q), nil
	}
	if id, ok := idEquality(q); ok {
		op.Stats.PlanSummary = "EXPRESS_IXSCAN { _id: 1 }"
		return &idLookup{snap: q.snap, coll: q.coll, id: id}, nil
	}
	c, err := n.choose(op, q, false)
	if err != nil {
		return nil, err
	}
	return c.root, nil
}

// planTail reads a capped collection or the oplog for a cursor that outlives its end.
func (n *Node) planTail(q *query) node {
	o := storage.ScanOptions{}
	t := &tailNode{node: n, ns: q.ns}
	t.collScan = collScan{snap: q.snap, coll: q.coll, opts: o, matcher: q.matcher}
	if q.skip == 0 && q.limit == 0 {
		return t
	}
	limit := q.limit
	if limit == 0 {
		limit = -1
	}
	return &skipLimit{in: t, skip: q.skip, limit: limit}
}

// idEquality recognises the commonest query of all, an equality on _id and nothing else, before anything is planned.
func idEquality(q *query) (id value.Value, ok bool) {
	if q.matcher == nil || q.hint.T != value.Missing || q.min != nil || q.max != nil || q.skip > 0 || q.owned != nil ||
		q.lang.coll != nil || q.returnKey || q.showRecordID || q.coll.Collation != nil {
		return id, false
	}
	root := q.matcher.Root()
	if root == nil || root.Kind != match.Eq || root.Path != "_id" {
		return id, false
	}
	switch root.Value.T {
	case value.Array, value.Null, value.Undefined, value.Regex:
		return id, false
	}
	return root.Value, q.coll.Clustered || q.coll.IDIndex() != nil
}

// execute plans a query and gives its documents.
func (n *Node) execute(op *command.Op, q *query) (*queryStream, error) {
	root, err := n.plan(op, q)
	if err != nil {
		return nil, err
	}
	return &queryStream{q: q, root: root, tail: q.tailable}, nil
}
