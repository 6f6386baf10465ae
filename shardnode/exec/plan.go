package exec

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

var eofSummary, scanSummary, expressSummary = "EOF", "COLLSCAN", "EXPRESS_IXSCAN { _id: 1 }"

// Plan chooses how to read the result of a query and builds the execution tree.
func (e *Executor) Plan(op *command.Op, q *Query) (Node, error) {
	if q.Coll == nil {
		op.UsePlan(&eofSummary)
		return &eofNode{}, nil
	}
	if q.Tailable {
		op.UsePlan(&scanSummary)
		return planTail(q), nil
	}
	if id, ok := idEquality(q); ok {
		op.UsePlan(&expressSummary)
		if idx := q.Coll.IDIndex(); idx != nil {
			idx.Usage.Ops.Add(1)
		}
		root := &idLookup{snap: q.Snap, coll: q.Coll, id: id}
		if e.observes(op) {
			return e.observed(op, expressID(q, id), root), nil
		}
		return root, nil
	}
	c, err := e.choose(op, q, false)
	if err != nil {
		return nil, err
	}
	if c.ran != nil {
		op.Stats.Exec = c.ran
	}
	return c.root, nil
}

// expressID returns the plan of an equality on _id.
func expressID(q *Query, id value.Value) *plan.Node {
	p := &plan.Node{Stage: plan.ExpressID, Value: id, Clustered: q.Coll.Clustered}
	if idx := q.Coll.IDIndex(); idx != nil {
		p.Index = &plan.Index{Name: idx.Name, KeyPattern: idx.Spec.KeyPattern}
	}
	return p
}

// observes reports whether execution statistics of a plan's stages are kept: those of an operation's first plan,
// its own, and not of plans that look something up for it.
func (e *Executor) observes(op *command.Op) bool { return op.Stats.Exec == nil && e.env.Observes(op) }

// observed keeps the execution statistics of a plan with one stage.
func (e *Executor) observed(op *command.Op, p *plan.Node, root Node) Node {
	root = &timedNode{in: root}
	op.Stats.Exec = &Ran{plan: p, exec: executed{nodes: map[*plan.Node]Node{p: root}}}
	return root
}

// planTail returns the plan of a tailable cursor on a capped collection or the oplog.
func planTail(q *Query) Node {
	o := storage.ScanOptions{}
	if q.Coll.Oplog {
		o = scanOptions(plan.Times(q.Matcher), false)
	}
	t := &tailNode{}
	t.collScan = collScan{snap: q.Snap, coll: q.Coll, opts: o, matcher: q.Matcher, follow: true}
	if q.Skip == 0 && q.Limit == 0 {
		return t
	}
	limit := q.Limit
	if limit == 0 {
		limit = -1
	}
	return &skipLimit{in: t, skip: q.Skip, limit: limit}
}

// idEquality recognises the most common query of all, an equality on _id and nothing else, before anything is planned.
func idEquality(q *Query) (id value.Value, ok bool) {
	if q.Matcher == nil || q.Hint.T != value.Missing || q.Min != nil || q.Max != nil || q.Skip > 0 || q.Owned != nil ||
		q.Collation != nil || q.ReturnKey || q.ShowRecordID || q.Coll.Collation != nil {
		return id, false
	}
	root := q.Matcher.Root()
	if root == nil || root.Kind != match.Eq || root.Path != "_id" {
		return id, false
	}
	if !pointID(root.Value) {
		return id, false
	}
	return root.Value, q.Coll.Clustered || q.Coll.IDIndex() != nil
}

// Execute plans a query and returns its documents.
func (e *Executor) Execute(op *command.Op, q *Query) (*Stream, error) {
	root, err := e.Plan(op, q)
	if err != nil {
		return nil, err
	}
	return &Stream{q: q, root: root}, nil
}
