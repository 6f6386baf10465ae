package exec

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The planner has no statistics to rank plans by. If it finds several, they are run side by side for a while and the
// one with the most results for its work is kept; the collection's plan cache remembers it for queries of the same
// shape.
const (
	trialSlice    = 32 // the most works that a plan does per turn; it starts with one
	trialBonus    = 1e-4
	eofBonus      = 1 // bonus of a plan that reached its end
	forcedBonus   = 3 // internalQueryForceIntersectionPlans
	unboundedWork = math.MaxInt64
)

// errPaused is returned by a leaf once its plan has used up its share of work. Nothing is lost: the next call continues from
// there.
var errPaused = errors.New("the plan has used up its share of work")

// pace is the work that the leaves of a tree may still do; nil for no limit.
type pace struct{ left, done int64 }

// step consumes one unit of work, or reports that there is none left.
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
	plan   *plan.Node
	nodes  map[*plan.Node]Node // by stage
	root   Node
	pace   *pace
	rows   []Row
	size   int // bytes in rows
	eof    bool
	err    error
	score  float64
	keys   bool  // whether rows keep their index keys
	sought int64 // number of documents examined
}

// maxTrialBytes limits the results that a plan may keep in a trial; a plan that has reached it wins nothing by going on.
const maxTrialBytes = 16 << 20

// chosen is the selected plan, ready to run.
type chosen struct {
	result *plan.Result
	plan   *plan.Node
	root   Node
	nodes  map[*plan.Node]Node
	trial  []*candidate // all candidates, best first; nil if there was no trial. All but the first are closed.
	keys   planKeys
	ran    *Ran // nil if statistics are not wanted
}

// planKeys computes the keys under which a query's plan is cached.
type planKeys struct {
	q *plan.Query
	c *plan.Collection
}

// PlanKeys returns the keys as explain and the log show them.
func (k *planKeys) PlanKeys() (shape, key string) {
	s := k.q.Shape()
	return plan.ShapeHash(s), k.q.CacheKey(k.c, s)
}

// Counters are serverStatus's metrics.query.planCache.
type Counters struct{ Hits, Misses, Replanned, Skipped atomic.Int64 }

// choose plans a query and decides between plans if there are several. With observe, statistics of each stage are kept
// and the plan cache is left alone.
func (e *Executor) choose(op *command.Op, q *Query, observe bool) (c *chosen, err error) {
	pc, err := e.env.Planning(q.Coll).planIndexes()
	if err != nil {
		return nil, err
	}
	bindText(q, pc)
	pq := q.planQuery()
	knobs := e.knobs.Load()
	pq.Knobs = &knobs.Knobs
	e.env.Restrict(op, q.NS, pq)
	e.applyFilters(q, pq)
	q.keys = planKeys{q: pq, c: pc}
	if op.Stats.Plan == nil {
		op.Stats.Plan = &q.keys
	}
	rooted := knobs.branches && !q.Tailable && pq.Rooted()
	if rooted {
		if c, err = e.chooseBranches(op, q, observe); c != nil || err != nil {
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
	if observe || !pq.Cacheable() {
		e.Counters.Skipped.Add(1)
		if len(r.Candidates) > 1 {
			return e.tryAll(op, q, r, observe)
		}
		return e.runOnly(op, q, r, observe)
	}
	if len(r.Candidates) == 1 {
		e.Counters.Misses.Add(1)
		return e.runOnly(op, q, r, false)
	}
	return e.chooseCached(op, q, r)
}

// runOnly builds the only plan.
func (e *Executor) runOnly(op *command.Op, q *Query, r *plan.Result, observe bool) (*chosen, error) {
	b := builder{e: e, q: q}
	keep := e.observes(op)
	if observe || keep {
		b.nodes, b.timed = map[*plan.Node]Node{}, true
	}
	root, err := b.build(r.Winner())
	if err == nil && !observe {
		noteUsage(op, r.Winner())
	}
	return (&chosen{result: r, plan: r.Winner(), root: root, nodes: b.nodes, keys: q.keys}).kept(keep), err
}

// chooseCached looks in the plan cache before it starts a trial.
func (e *Executor) chooseCached(op *command.Op, q *Query, r *plan.Result) (*chosen, error) {
	cache := e.env.Planning(q.Coll).cache
	knobs := e.knobs.Load()
	shape := q.keys.q.Shape()
	key := q.keys.q.CacheKey(q.keys.c, shape)
	compete := func() (*chosen, error) {
		c, err := e.tryAll(op, q, r, false)
		if err == nil {
			cache.Put(key, shape, plan.WithoutSubplan(c.plan), c.trial[0].pace.done, knobs.growth, originOf(q, c.trial))
			noteUsage(op, c.plan)
		}
		return c, err
	}
	known, ok := cache.Get(key)
	p := candidateOf(r, known.Signature)
	if !ok || !known.Active || p == nil {
		e.Counters.Misses.Add(1)
		return compete()
	}
	e.Counters.Hits.Add(1)
	limit := &pace{left: knobs.replanAt(known.Works)}
	b := builder{e: e, q: q, pace: limit}
	keep := e.observes(op)
	if keep {
		b.nodes, b.timed = map[*plan.Node]Node{}, true
	}
	root, err := b.build(p)
	if err != nil {
		return nil, err
	}
	noteUsage(op, p)
	out := (&chosen{result: r, plan: p, nodes: b.nodes}).kept(keep)
	op.Stats.FromPlanCache = true
	run := &cachedNode{in: root, pace: limit, keys: q.showsKeys()}
	_, run.results = knobs.trialLimits(q.Coll, q.Limit)
	run.replan = func() (Node, error) {
		cache.Deactivate(key)
		e.Counters.Replanned.Add(1)
		op.Stats.FromPlanCache = false
		op.Stats.ReplanReason = fmt.Sprintf("cached plan was less efficient than expected: expected trial execution to take %d works but it took at least %d works", known.Works, limit.done)
		c, err := compete()
		if err != nil {
			return nil, err
		}
		if keep {
			*out.ran = Ran{plan: c.plan, exec: executed{nodes: c.nodes}}
		}
		return c.root, nil
	}
	out.root = run
	return out, nil
}

// cachedSignature returns the signature of the plan that the plan cache has for a query; empty for none.
func (e *Executor) cachedSignature(q *Query, k planKeys) string {
	if !k.q.Cacheable() {
		return ""
	}
	if c, ok := e.env.Planning(q.Coll).cache.Get(k.q.CacheKey(k.c, k.q.Shape())); ok && c.Active {
		return c.Signature
	}
	return ""
}

// originOf returns what $planCacheStats shows about the origin of an entry.
func originOf(q *Query, trial []*candidate) plan.Origin {
	o := plan.Origin{At: time.Now(), Filter: bytes.Clone(q.Filter), Sort: bytes.Clone(q.Sort), Projection: bytes.Clone(q.rawProj), Collation: bytes.Clone(q.Collation.Document())}
	o.Trials = trialsOf(trial)
	return o
}

// trialsOf returns the part of a trial that the plan cache keeps. The scores do not include the bonus of plans that
// reached their end.
func trialsOf(trial []*candidate) (out []plan.Trial) {
	for _, c := range trial {
		t := plan.Trial{Score: c.score, Stats: c.stats(false)}
		if c.eof {
			t.Score -= eofBonus
		}
		out = append(out, t)
	}
	return out
}

// stats describes what a candidate did, as explain and $planCacheStats show it.
func (c *candidate) stats(score bool) []byte {
	e := executed{nodes: c.nodes}
	p := plan.WithoutSubplan(c.plan)
	keys, docs := e.totals(p)
	dst, m := value.Begin(nil)
	dst = appendCount(dst, "nReturned", int64(len(c.rows)))
	dst = value.Append(dst, "executionTimeMillisEstimate", value.NewInt64(e.took(p).Milliseconds()))
	dst = appendCount(dst, "totalKeysExamined", keys)
	dst = appendCount(dst, "totalDocsExamined", docs)
	if score {
		dst = value.Append(dst, "score", value.NewDouble(c.score))
	}
	dst = value.Append(dst, "executionStages", value.NewDocument(p.Explain(e.append)))
	return value.End(dst, m)
}

// noteUsage counts the use of a plan's indexes for $indexStats, and summarises the plan for the log and the profiler.
func noteUsage(op *command.Op, p *plan.Node) {
	l := p
	for len(l.Inputs) == 1 {
		l = l.Inputs[0]
	}
	if len(l.Inputs) == 0 && l.Stage == plan.IndexScan { // the most common: one scan, whose summary is known
		noteIndex(op, l)
		op.UsePlan(&l.Index.ScanSummary)
		return
	}
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
		noteIndex(op, l)
	})
	op.UsePlan(&summary)
}

// noteIndex counts the use of a leaf's index.
func noteIndex(op *command.Op, l *plan.Node) {
	if idx, ok := l.Index.Handle.(*catalog.Index); ok {
		idx.Usage.Ops.Add(1)
		if used := op.Stats.IndexesUsed; used != nil {
			used[l.Index.Name] = true
		}
	}
}

// tryAll runs the candidates side by side and keeps the best.
func (e *Executor) tryAll(op *command.Op, q *Query, r *plan.Result, observe bool) (*chosen, error) {
	all, err := e.race(op, q, r, observe, q.Limit)
	for i, c := range all {
		if i > 0 || err != nil {
			c.root.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	best := all[0]
	keys, docs := (&executed{nodes: best.nodes}).totals(best.plan)
	op.Stats.KeysExamined, op.Stats.DocsExamined = op.Stats.KeysExamined+keys, op.Stats.DocsExamined+docs
	op.Stats.HasSortStage = op.Stats.HasSortStage || best.plan.Has(plan.Sort)
	best.pace.left = unboundedWork
	root := Node(&replayNode{in: best.root, rows: best.rows})
	return (&chosen{result: r, plan: best.plan, root: root, nodes: best.nodes, trial: all, keys: q.keys}).kept(e.observes(op)), nil
}

// race runs candidates side by side and puts the best first. The caller closes them, also after an error. What they
// examined is not counted as the operation's: only the plan that continues is.
func (e *Executor) race(op *command.Op, q *Query, r *plan.Result, observe bool, limit int64) (all []*candidate, err error) {
	knobs := e.knobs.Load()
	t := trial{slice: trialSlice, force: knobs.force, ties: knobs.ties}
	if observe {
		t.slice = 1
	}
	t.works, t.results = knobs.trialLimits(q.Coll, limit)
	before := op.Stats
	for _, p := range r.Candidates {
		c := &candidate{plan: p, pace: &pace{}, nodes: map[*plan.Node]Node{}, keys: q.showsKeys()}
		b := builder{e: e, q: q, pace: c.pace, nodes: c.nodes, timed: observe || e.observes(op)}
		if c.root, err = b.build(p); err != nil {
			return all, err
		}
		all = append(all, c)
	}
	err = t.run(op, all)
	op.Stats.KeysExamined, op.Stats.DocsExamined, op.Stats.HasSortStage = before.KeysExamined, before.DocsExamined, before.HasSortStage
	op.Stats.FromMultiPlanner = true
	if err == nil {
		err = all[0].err
	}
	return all, err
}

// trial configures how plans are run side by side.
type trial struct {
	works   int64 // the most work that each plan does
	results int   // the number of results that ends the trial
	slice   int64 // the most work of a turn
	force   bool  // intersections are preferred
	ties    bool  // ties are broken by index heuristics
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
			over = over || c.eof || len(c.rows) >= t.results || c.size >= maxTrialBytes
		}
		if over || !alive {
			break
		}
	}
	for _, c := range all {
		c.rate(t.force)
	}
	slices.SortStableFunc(all, func(a, b *candidate) int {
		if a.score != b.score || !t.ties {
			return cmp.Compare(b.score, a.score)
		}
		if a.sought != b.sought {
			return cmp.Compare(a.sought, b.sought)
		}
		return cmp.Compare(b.plan.BoundPrefix(), a.plan.BoundPrefix())
	})
	return nil
}

// run lets a candidate work for its turn.
func (c *candidate) run(op *command.Op, results int) {
	var r Row
	for len(c.rows) < results && c.size < maxTrialBytes {
		ok, err := c.root.Next(op, &r)
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
		c.rows = append(c.rows, r.keep(c.keys))
		c.size += len(r.Doc)
	}
}

// rate scores a candidate: results per unit of work, and small bonuses that decide between equals.
func (c *candidate) rate(force bool) {
	if c.err != nil {
		c.score = -1
		return
	}
	returned := float64(len(c.rows))
	c.score = 1 + returned/float64(max(c.pace.done, 1))
	eps := math.Min(1/(10*max(returned, 1)), trialBonus)
	intersects := c.plan.Intersects()
	for _, without := range []bool{!c.plan.Has(plan.Fetch), !c.plan.Has(plan.Sort), !intersects} {
		if without {
			c.score += eps
		}
	}
	if c.eof {
		c.score += eofBonus
	}
	if force && intersects {
		c.score += forcedBonus
	}
	_, c.sought = (&executed{nodes: c.nodes}).totals(c.plan)
}

// clone returns a row that outlives the next one.
func (r *Row) clone() Row {
	c := *r
	c.RID, c.Doc, c.key = r.RID.Clone(), bytes.Clone(r.Doc), bytes.Clone(r.key)
	c.typeBits, c.sortKey = bytes.Clone(r.typeBits), bytes.Clone(r.sortKey)
	return c
}

// keep returns a row that outlives the next one, with its index key only where that is wanted.
func (r *Row) keep(key bool) Row {
	if key {
		return r.clone()
	}
	return Row{RID: r.RID.Clone(), Doc: bytes.Clone(r.Doc), sortKey: bytes.Clone(r.sortKey), Covered: r.Covered, peeked: r.peeked}
}

// replayNode returns the rows that a trial has already read, then continues with the plan.
type replayNode struct {
	in   Node
	rows []Row
	at   int
}

func (p *replayNode) Next(op *command.Op, r *Row) (bool, error) {
	if p.at < len(p.rows) {
		*r = p.rows[p.at]
		p.rows[p.at] = Row{}
		p.at++
		return true, nil
	}
	return p.in.Next(op, r)
}

func (p *replayNode) Save()             { p.in.Save() }
func (p *replayNode) Close()            { p.in.Close() }
func (p *replayNode) stats() *nodeStats { return p.in.stats() }

// cachedNode runs a plan from the cache. It begins with a trial of its own: if the plan takes far more work than in the
// trial that chose it before it reaches its end or the number of results that ends a trial, replan chooses again.
type cachedNode struct {
	in      Node
	pace    *pace
	results int
	keys    bool
	tried   bool
	rows    []Row
	at      int
	replan  func() (Node, error)
}

func (c *cachedNode) Next(op *command.Op, r *Row) (bool, error) {
	if !c.tried {
		c.tried = true
		if err := c.try(op); err != nil {
			return false, err
		}
	}
	if c.at < len(c.rows) {
		*r = c.rows[c.at]
		c.rows[c.at] = Row{}
		c.at++
		return true, nil
	}
	return c.in.Next(op, r)
}

func (c *cachedNode) try(op *command.Op) error {
	before := op.Stats
	var r Row
	for size := 0; len(c.rows) < c.results && size < maxTrialBytes; size += len(r.Doc) {
		ok, err := c.in.Next(op, &r)
		if err == errPaused {
			op.Stats.KeysExamined, op.Stats.DocsExamined, op.Stats.HasSortStage = before.KeysExamined, before.DocsExamined, before.HasSortStage
			return c.restart()
		}
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		c.rows = append(c.rows, r.keep(c.keys))
	}
	c.pace.left = unboundedWork
	return nil
}

// restart discards the plan with its results and plans again.
func (c *cachedNode) restart() error {
	c.in.Close()
	c.rows, c.in = nil, &eofNode{}
	in, err := c.replan()
	if err == nil {
		c.in = in
	}
	return err
}

func (c *cachedNode) Save()             { c.in.Save() }
func (c *cachedNode) Close()            { c.in.Close() }
func (c *cachedNode) stats() *nodeStats { return c.in.stats() }
