package shardnode

import (
	"bytes"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
)

// chooseBranches plans a query whose filter is an $or: each branch chooses its plan as a query of its own would, by a trial
// or from the plan cache, and the choices are joined. nil where some branch has no index: then the whole is planned.
func (n *Node) chooseBranches(op *command.Op, q *query, observe bool) (*chosen, error) {
	pq, pc := q.keys.q, q.keys.c
	queries := pq.Branches()
	choices := make([]*plan.Result, len(queries))
	for i, b := range queries {
		r, err := plan.Plan(b, pc)
		if err != nil || r.Winner().ReadsAll() {
			return nil, nil
		}
		choices[i] = r
	}
	branches := make([]*plan.Node, len(queries))
	for i, r := range choices {
		var err error
		if branches[i], err = n.chooseBranch(op, q, planKeys{queries[i], pc}, r, observe); err != nil {
			return nil, err
		}
	}
	whole, reached := plan.Assemble(pq, pc, branches)
	return n.runOnly(op, q, &plan.Result{Candidates: []*plan.Node{whole}, Reached: reached}, observe)
}

// chooseBranch decides between the plans for one branch of an $or. What the trial of a branch finds is remembered only
// where it found something and one plan was better than the rest.
func (n *Node) chooseBranch(op *command.Op, q *query, k planKeys, r *plan.Result, observe bool) (*plan.Node, error) {
	if len(r.Candidates) == 1 {
		return r.Winner(), nil
	}
	b := k.q
	cache := n.meta(q.coll).cache
	var shape, key string
	if !observe {
		shape = b.Shape()
		key = b.CacheKey(k.c, shape)
		if e, ok := cache.Get(key); ok && e.Active {
			if p := candidateOf(r, e.Signature); p != nil {
				n.plans.hits.Add(1)
				return p, nil
			}
		}
		n.plans.misses.Add(1)
	}
	all, err := n.race(op, q, r, false, 0)
	for _, c := range all {
		c.root.close()
	}
	if err != nil {
		return nil, err
	}
	if best := all[0]; !observe && len(best.rows) > 0 && best.score > all[1].score {
		from := plan.Origin{At: time.Now(), Filter: b.Filter.Serialize(), Collation: bytes.Clone(b.CollationDoc), Trials: trialsOf(all)}
		cache.Put(key, shape, best.plan, best.pace.done, n.knobs.Load().growth, from)
	}
	return all[0].plan, nil
}

// candidateOf finds the plan that an entry of the plan cache stands for; nil where it is none of the candidates.
func candidateOf(r *plan.Result, signature string) *plan.Node {
	for _, p := range r.Candidates {
		if plan.WithoutSubplan(p).Signature() == signature {
			return p
		}
	}
	return nil
}
