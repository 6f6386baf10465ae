package exec

import (
	"bytes"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
)

// chooseBranches plans a query whose filter is an $or: each branch gets its plan as a query of its own would, by
// a trial or from the plan cache, and the plans are joined. It returns nil if some branch has no index: then the
// filter is planned as a whole.
func (e *Executor) chooseBranches(op *command.Op, q *Query, observe bool) (*chosen, error) {
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
		if branches[i], err = e.chooseBranch(op, q, planKeys{queries[i], pc}, r, observe); err != nil {
			return nil, err
		}
	}
	whole, reached := plan.Assemble(pq, pc, branches)
	return e.runOnly(op, q, &plan.Result{Candidates: []*plan.Node{whole}, Reached: reached}, observe)
}

// chooseBranch decides between the plans for one branch of an $or. The result of a branch's trial is cached only
// if it found something and one plan was better than the others.
func (e *Executor) chooseBranch(op *command.Op, q *Query, k planKeys, r *plan.Result, observe bool) (*plan.Node, error) {
	if len(r.Candidates) == 1 {
		return r.Winner(), nil
	}
	b := k.q
	cache := e.env.Planning(q.Coll).cache
	var shape, key string
	if !observe {
		shape = b.Shape()
		key = b.CacheKey(k.c, shape)
		if c, ok := cache.Get(key); ok && c.Active {
			if p := candidateOf(r, c.Signature); p != nil {
				e.Counters.Hits.Add(1)
				return p, nil
			}
		}
		e.Counters.Misses.Add(1)
	}
	all, err := e.race(op, q, r, false, 0)
	for _, c := range all {
		c.root.Close()
	}
	if err != nil {
		return nil, err
	}
	if best := all[0]; !observe && len(best.rows) > 0 && best.score > all[1].score {
		from := plan.Origin{At: time.Now(), Filter: b.Filter.Serialize(), Collation: bytes.Clone(b.CollationDoc), Trials: trialsOf(all)}
		cache.Put(key, shape, best.plan, best.pace.done, e.knobs.Load().growth, from)
	}
	return all[0].plan, nil
}

// candidateOf finds the plan with the signature of a plan cache entry; nil if it is not among the candidates.
func candidateOf(r *plan.Result, signature string) *plan.Node {
	for _, p := range r.Candidates {
		if plan.WithoutSubplan(p).Signature() == signature {
			return p
		}
	}
	return nil
}
