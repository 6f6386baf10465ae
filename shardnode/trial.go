package shardnode

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The planner orders plans by guesses. Where it leaves several, they are run side by side for a while and the one that
// gives most results for its work is kept; the collection's plan cache remembers it for queries of the same shape.
const (
	trialSlice    = 32 // the most works a plan does before it is the next one's turn: it begins with one
	trialBonus    = 1e-4
	forcedBonus   = 3 // internalQueryForceIntersectionPlans
	unboundedWork = math.MaxInt64
)

// errPaused is what a leaf answers when its share of work is done. Nothing is lost: the next call goes on from there.
var errPaused = errors.New("share of work is used up")

// pace is the work that the leaves of a tree may still do; nil for as much as it takes.
type pace struct{ left, done int64 }

// step takes one unit of work, or tells that there is none left.
func (p *pace) step() error {
	if p.left <= 0 {
		return errPaused
	}
	p.left--
	p.done++
	return nil
}

// candidate is one plan in a trial.
type candidate struct {
	plan  *plan.Node
	nodes map[*plan.Node]*timedNode // for explain; nil otherwise
	root  node
	pace  *pace
	rows  []row
	eof   bool
	err   error
	score float64
}

// chosen is a plan that was decided on, ready to run.
type chosen struct {
	result *plan.Result
	plan   *plan.Node
	cached bool
	root   node
	nodes  map[*plan.Node]*timedNode
	trial  []*candidate // all that took part, best first; nil without trial. All but the first are closed.
}

// choose plans a query and decides between plans where there are several. observe asks for the figures of each stage, and
// leaves the plan cache alone.
func (n *Node) choose(op *command.Op, q *query, observe bool) (*chosen, error) {
	m := n.meta(q.coll)
	pc, err := m.planIndexes()
	if err != nil {
		return nil, err
	}
	bindText(q, pc)
	pq := q.planQuery()
	knobs := n.knobs.Load()
	pq.Knobs = &knobs.Knobs
	n.admin.settings.apply(op, q, pq)
	n.applyFilters(q, pq)
	rooted := knobs.branches && !q.tailable && pq.Rooted()
	if rooted {
		if c, err := n.chooseBranches(op, q, pq, pc, observe); c != nil || err != nil {
			return c, err
		}
	}
	r, err := plan.Plan(pq, pc)
	if err != nil {
		return nil, err
	}
	if rooted {
		for i, p := range r.Candidates {
			r.Candidates[i] = plan.Subplan(p)
		}
	}
	if len(r.Candidates) == 1 {
		return n.runOnly(op, q, r, observe)
	}
	if observe {
		return n.tryAll(op, q, r, true)
	}
	return n.chooseCached(op, q, pq, pc, r)
}

// runOnly builds the one plan there is.
func (n *Node) runOnly(op *command.Op, q *query, r *plan.Result, observe bool) (*chosen, error) {
	b := builder{n: n, q: q}
	if observe {
		b.nodes = map[*plan.Node]*timedNode{}
	}
	root, err := b.build(r.Winner())
	if err == nil && !observe {
		noteUsage(op, r.Winner())
	}
	return &chosen{result: r, plan: r.Winner(), root: root, nodes: b.nodes}, err
}

// chooseCached asks the plan cache before it starts a trial.
func (n *Node) chooseCached(op *command.Op, q *query, pq *plan.Query, pc *plan.Collection, r *plan.Result) (*chosen, error) {
	cache := n.meta(q.coll).cache
	knobs := n.knobs.Load()
	shape := pq.Shape()
	key := pq.CacheKey(pc, shape)
	compete := func() (*chosen, error) {
		c, err := n.tryAll(op, q, r, false)
		if err == nil {
			cache.Put(key, shape, plan.WithoutSubplan(c.plan), c.trial[0].pace.done, knobs.growth, originOf(q, c.trial))
			noteUsage(op, c.plan)
		}
		return c, err
	}
	e, ok := cache.Get(key)
	if !ok || !e.Active {
		return compete()
	}
	p := candidateOf(r, e.Signature)
	if p == nil {
		return compete()
	}
	limit := &pace{left: knobs.replanAt(e.Works)}
	b := builder{n: n, q: q, pace: limit}
	root, err := b.build(p)
	if err != nil {
		return nil, err
	}
	noteUsage(op, p)
	replan := func() (node, error) {
		cache.Deactivate(key)
		c, err := compete()
		if err != nil {
			return nil, err
		}
		return c.root, nil
	}
	return &chosen{result: r, plan: p, cached: true, root: &cachedNode{in: root, pace: limit, replan: replan}}, nil
}

// originOf is what $planCacheStats tells of an entry's making.
func originOf(q *query, trial []*candidate) plan.Origin {
	o := plan.Origin{At: time.Now(), Filter: bytes.Clone(q.filter), Sort: bytes.Clone(q.sort), Projection: bytes.Clone(q.rawProj), Collation: bytes.Clone(q.lang.coll.Document())}
	o.Trials = trialsOf(trial)
	return o
}

func trialsOf(trial []*candidate) (out []plan.Trial) {
	for _, c := range trial {
		out = append(out, plan.Trial{Score: c.score, Returned: int64(len(c.rows)), Works: c.pace.done, Plan: plan.WithoutSubplan(c.plan)})
	}
	return out
}

// noteUsage counts a plan for $indexStats, and summarises it for the log and the profiler.
func noteUsage(op *command.Op, p *plan.Node) {
	summary := ""
	p.Leaves(func(l *plan.Node) {
		if summary != "" {
			summary += ", "
		}
		summary += l.Stage.String()
		if l.Index == nil {
			return
		}
		summary += l.Index.Summary
		if idx, ok := l.Index.Handle.(*catalog.Index); ok {
			idx.Usage.Ops.Add(1)
		}
	})
	op.Stats.PlanSummary = summary
}

// tryAll runs the candidates side by side and keeps the best.
func (n *Node) tryAll(op *command.Op, q *query, r *plan.Result, observe bool) (*chosen, error) {
	all, err := n.race(op, q, r, observe, q.limit)
	for i, c := range all {
		if i > 0 || err != nil {
			c.root.close()
		}
	}
	if err != nil {
		return nil, err
	}
	best := all[0]
	best.pace.left = unboundedWork
	root := node(&replayNode{in: best.root, rows: best.rows})
	return &chosen{result: r, plan: best.plan, root: root, nodes: best.nodes, trial: all}, nil
}

// race runs candidates side by side and puts the best first. The caller closes them, after an error, too.
func (n *Node) race(op *command.Op, q *query, r *plan.Result, observe bool, limit int64) (all []*candidate, err error) {
	knobs := n.knobs.Load()
	t := trial{slice: trialSlice, force: knobs.force}
	t.works, t.results = knobs.trialLimits(q.coll, limit)
	for _, p := range r.Candidates {
		c := &candidate{plan: p, pace: &pace{}}
		b := builder{n: n, q: q, pace: c.pace}
		if observe {
			b.nodes, t.slice = map[*plan.Node]*timedNode{}, 1
		}
		root, err := b.build(p)
		if err != nil {
			return all, err
		}
		c.root, c.nodes = root, b.nodes
		all = append(all, c)
	}
	if err := t.run(op, all); err != nil {
		return all, err
	}
	return all, all[0].err
}

// trial is how plans are run side by side.
type trial struct {
	works   int64 // the most that each does
	results int   // as many end it
	slice   int64 // the most works of a turn
	force   bool  // intersections win
}

// run lets candidates work in turns until one is done, then puts the best first.
func (t *trial) run(op *command.Op, all []*candidate) error {
	for done := int64(0); done < t.works; {
		slice := min(max(done/8, 1), t.slice, t.works-done)
		done += slice
		over, alive := false, false
		for _, c := range all {
			if c.err != nil {
				continue
			}
			c.pace.left = slice
			if c.run(op, t.results); c.err != nil {
				if err := op.CheckNow(); err != nil {
					return err
				}
				continue
			}
			alive = true
			over = over || c.eof || len(c.rows) >= t.results
		}
		if over || !alive {
			break
		}
	}
	for _, c := range all {
		c.rate(t.force)
	}
	slices.SortStableFunc(all, func(a, b *candidate) int { return cmp.Compare(b.score, a.score) })
	return nil
}

// run lets a candidate work for its turn.
func (c *candidate) run(op *command.Op, results int) {
	var r row
	for len(c.rows) < results {
		ok, err := c.root.next(op, &r)
		switch {
		case err == errPaused:
			return
		case err != nil:
			c.err = err
			return
		case !ok:
			c.eof = true
			return
		}
		c.rows = append(c.rows, r.clone())
	}
}

// rate scores what a candidate did: results for its work, and small bonuses that decide between equals.
func (c *candidate) rate(force bool) {
	if c.err != nil {
		c.score = -1
		return
	}
	works := float64(max(c.pace.done, 1))
	c.score = 1 + float64(len(c.rows))/works
	eps := math.Min(1/(10*works), trialBonus)
	intersects := c.plan.Intersects()
	for _, without := range []bool{!c.plan.Has(plan.Fetch), !c.plan.Has(plan.Sort), !intersects} {
		if without {
			c.score += eps
		}
	}
	if c.eof {
		c.score++
	}
	if force && intersects {
		c.score += forcedBonus
	}
}

// clone is a row that outlives the next one.
func (r *row) clone() row {
	c := *r
	c.rid, c.doc, c.key = r.rid.Clone(), bytes.Clone(r.doc), bytes.Clone(r.key)
	c.typeBits, c.sortKey = bytes.Clone(r.typeBits), bytes.Clone(r.sortKey)
	return c
}

// replayNode gives again what a trial already read, then goes on.
type replayNode struct {
	in   node
	rows []row
	at   int
}

func (p *replayNode) next(op *command.Op, r *row) (bool, error) {
	if p.at < len(p.rows) {
		*r = p.rows[p.at]
		p.rows[p.at] = row{}
		p.at++
		return true, nil
	}
	return p.in.next(op, r)
}

func (p *replayNode) save()             { p.in.save() }
func (p *replayNode) close()            { p.in.close() }
func (p *replayNode) stats() *nodeStats { return p.in.stats() }

// cachedNode runs a plan from the cache. Where it takes far more work than its trial before its first result, replan
// decides anew.
type cachedNode struct {
	in     node
	pace   *pace
	given  bool
	replan func() (node, error)
}

func (c *cachedNode) next(op *command.Op, r *row) (bool, error) {
	ok, err := c.in.next(op, r)
	if err == errPaused {
		if !c.given {
			c.in.close()
			in, err := c.replan()
			if err != nil {
				c.in = &eofNode{}
				return false, err
			}
			c.in, c.given = in, true
			return c.in.next(op, r)
		}
		c.pace.left = unboundedWork
		return c.in.next(op, r)
	}
	c.given = true
	return ok, err
}

func (c *cachedNode) save()             { c.in.save() }
func (c *cachedNode) close()            { c.in.close() }
func (c *cachedNode) stats() *nodeStats { return c.in.stats() }
