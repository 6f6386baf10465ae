package shardnode

import (
	"bytes"
	"errors"
	"math"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The planner orders plans by guesses. Where it leaves several, they are run side by side for a while and the one that
// gives most results for its work is kept; the collection's plan cache remembers it for queries of the same shape.
const (
	trialResults  = 101   // a plan that gave so many results ends the trial
	trialWorks    = 10000 // so does this much work, or that share of the collection where it is more
	trialShare    = 0.3
	trialSlice    = 32 // the most works a plan does before it is the next one's turn: it begins with one
	replanFactor  = 10 // a cached plan that takes so many times the work of its trial is planned anew
	trialBonus    = 1e-4
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
	n.admin.settings.apply(op, q, pq)
	n.applyFilters(q, pq)
	r, err := plan.Plan(pq, pc)
	if err != nil {
		return nil, err
	}
	if len(r.Candidates) == 1 {
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
	if observe {
		return n.tryAll(op, q, r, true)
	}
	return n.chooseCached(op, q, pq, pc, r)
}

// chooseCached asks the plan cache before it starts a trial.
func (n *Node) chooseCached(op *command.Op, q *query, pq *plan.Query, pc *plan.Collection, r *plan.Result) (*chosen, error) {
	cache := n.meta(q.coll).cache
	shape := pq.Shape()
	key := pq.CacheKey(pc, shape)
	compete := func() (*chosen, error) {
		c, err := n.tryAll(op, q, r, false)
		if err == nil {
			cache.Put(key, shape, c.plan, c.trial[0].pace.done, originOf(q, c.trial))
			noteUsage(op, c.plan)
		}
		return c, err
	}
	e, ok := cache.Get(key)
	if !ok || !e.Active {
		return compete()
	}
	for _, p := range r.Candidates {
		if p.Signature() != e.Signature {
			continue
		}
		limit := &pace{left: max(e.Works, 1) * replanFactor}
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
	return compete()
}

// originOf is what $planCacheStats tells of an entry's making.
func originOf(q *query, trial []*candidate) plan.Origin {
	o := plan.Origin{At: time.Now(), Filter: bytes.Clone(q.filter), Sort: bytes.Clone(q.sort), Projection: bytes.Clone(q.rawProj), Collation: bytes.Clone(q.lang.coll.Document())}
	for _, c := range trial {
		o.Trials = append(o.Trials, plan.Trial{Score: c.score, Returned: int64(len(c.rows)), Works: c.pace.done, Plan: c.plan})
	}
	return o
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
	all := make([]*candidate, 0, len(r.Candidates))
	defer func() {
		for i, c := range all {
			if i > 0 {
				c.root.close()
			}
		}
	}()
	for _, p := range r.Candidates {
		c := &candidate{plan: p, pace: &pace{}}
		b := builder{n: n, q: q, pace: c.pace}
		if observe {
			b.nodes = map[*plan.Node]*timedNode{}
		}
		root, err := b.build(p)
		if err != nil {
			return nil, err
		}
		c.root, c.nodes = root, b.nodes
		all = append(all, c)
	}
	limit := max(int64(trialWorks), int64(trialShare*float64(q.coll.Counters.Records.Load())))
	err := compete(op, all, limit)
	if err == nil && all[0].err != nil {
		err = all[0].err
	}
	if err != nil {
		all[0].root.close()
		return nil, err
	}
	best := all[0]
	best.pace.left = unboundedWork
	root := node(&replayNode{in: best.root, rows: best.rows})
	return &chosen{result: r, plan: best.plan, root: root, nodes: best.nodes, trial: append([]*candidate(nil), all...)}, nil
}

// compete runs candidates in turns until one is done, then puts the best first.
func compete(op *command.Op, all []*candidate, limit int64) error {
	for done := int64(0); done < limit; {
		slice := min(max(done/8, 1), trialSlice)
		done += slice
		over, alive := false, false
		for _, c := range all {
			if c.err != nil {
				continue
			}
			c.pace.left = slice
			if c.run(op); c.err != nil {
				if err := op.CheckNow(); err != nil {
					return err
				}
				continue
			}
			alive = true
			over = over || c.eof || len(c.rows) >= trialResults
		}
		if over || !alive {
			break
		}
	}
	best := 0
	for i, c := range all {
		c.rate()
		if c.score > all[best].score {
			best = i
		}
	}
	first := all[best]
	copy(all[1:best+1], all[:best])
	all[0] = first
	return nil
}

// run lets a candidate work for its turn.
func (c *candidate) run(op *command.Op) {
	var r row
	for len(c.rows) < trialResults {
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
func (c *candidate) rate() {
	if c.err != nil {
		c.score = -1
		return
	}
	works := float64(max(c.pace.done, 1))
	c.score = 1 + float64(len(c.rows))/works
	eps := math.Min(1/(10*works), trialBonus)
	if !c.plan.Has(plan.Fetch) {
		c.score += eps
	}
	if !c.plan.Has(plan.Sort) {
		c.score += eps
	}
	c.score += eps
	if c.eof {
		c.score++
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
