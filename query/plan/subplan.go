package plan

import (
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// Rooted reports whether the query's filter is an $or and nothing else: then each branch is planned by itself.
func (q *Query) Rooted() bool {
	return q.Filter != nil && q.Filter.Root().Kind == match.Or && q.Min == nil && q.Max == nil && q.unhinted() &&
		q.Filter.Text() == nil && q.Filter.GeoNear() == nil
}

// Branches splits a Rooted query: each branch is planned, tried and cached as a query of its own, without sort and
// projection.
func (q *Query) Branches() []*Query {
	root := q.Filter.Root()
	out := make([]*Query, len(root.Children))
	for i, b := range root.Children {
		out[i] = &Query{Filter: q.Filter.Sub(b), CollationDoc: q.CollationDoc, Collator: q.Collator, NoExpress: true, Allowed: q.Allowed, Knobs: q.Knobs}
	}
	return out
}

// Cacheable reports whether the plan cache is used for a query.
func (q *Query) Cacheable() bool {
	return (q.Filter != nil || len(q.Sort) > 0) && q.Min == nil && q.Max == nil && q.unhinted()
}

func (q *Query) unhinted() bool {
	return q.Hint.T == value.Missing || q.Hint.T == value.Document && value.Count(q.Hint.Doc()) == 0
}

// ReadsAll reports whether a plan reads the collection itself instead of an index.
func (n *Node) ReadsAll() bool { return n.Has(CollScan) || n.Has(ClusteredScan) }

// Assemble joins the plans that were chosen for a query's branches, none of which ReadsAll.
func Assemble(q *Query, c *Collection, branches []*Node) (*Node, Reached) {
	p := &planner{q: q, c: c, parts: conjuncts(q.Filter.Root())}
	in := make([]*Node, len(branches))
	for i, b := range branches {
		if b.Stage == Fetch && b.Filter == nil {
			b = b.input()
		}
		in[i] = b
	}
	return Subplan(p.finishUnion(joinScans(in, q.Filter.Root().Children), nil)), p.reached
}

// Subplan adds a SUBPLAN on top of a plan, below a COUNT.
func Subplan(n *Node) *Node {
	if n.Stage == Count {
		c := *n
		c.Inputs = []*Node{over(SubPlan, n.input())}
		return &c
	}
	return over(SubPlan, n)
}

// WithoutSubplan undoes Subplan, for plans that lost a trial.
func WithoutSubplan(n *Node) *Node {
	switch {
	case n.Stage == SubPlan:
		return n.input()
	case n.Stage == Count && n.input().Stage == SubPlan:
		c := *n
		c.Inputs = []*Node{n.input().input()}
		return &c
	}
	return n
}
