package exec

import (
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
)

// Verbosity is the amount of detail that explain shows: the plan, the figures of its execution, and those of the other
// plans.
type Verbosity uint8

const (
	QueryPlanner Verbosity = iota
	ExecutionStats
	AllPlansExecution
)

// Explained is a query that was planned for explain.
type Explained struct {
	verb Verbosity
	q    *Query
	c    *chosen
	took time.Duration // time spent on planning
	sig  string        // signature of the plan that the plan cache would use; empty for none
	rest []value.Value // allPlansExecution
	set  []byte        // the query's settings
	w    *ExplainedWrite
	exec executed

	groups []*StoreGroup // on top of the plan, from the bottom
	ids    map[*plan.Node]int32
}

// ExplainedWrite is the stage on top of a write's plan, with the changes that it would make.
type ExplainedWrite struct {
	Stage             string // UPDATE or DELETE
	One               bool   // it ends with the first document
	Upsert            bool
	See               func(r *Row) error
	Matched, Modified int64
}

// PlanExplained plans a query for explain. The caller closes the result.
func (e *Executor) PlanExplained(op *command.Op, q *Query, verb Verbosity) (*Explained, error) {
	start := time.Now()
	p := &Explained{verb: verb, q: q, set: e.env.QuerySettings(op)}
	if q.Coll == nil {
		root := &plan.Node{Stage: plan.EOF, Value: value.NewString("nonExistentNamespace")}
		b := builder{e: e, q: q, nodes: map[*plan.Node]Node{}, timed: true}
		node, err := b.build(root)
		if err != nil {
			return nil, err
		}
		p.c = &chosen{result: &plan.Result{Candidates: []*plan.Node{root}}, plan: root, root: node, nodes: b.nodes, keys: planKeys{q: q.planQuery(), c: &plan.Collection{}}}
	} else {
		var err error
		if p.c, err = e.choose(op, q, true); err != nil {
			return nil, err
		}
		p.sig = e.cachedSignature(q, p.c.keys)
	}
	if verb == AllPlansExecution {
		for _, c := range p.c.trial {
			p.rest = append(p.rest, value.NewDocument(c.stats(true)))
		}
	}
	p.exec.nodes = p.c.nodes
	p.took = time.Since(start)
	return p, nil
}

// Explain plans a query, runs it if asked to, and appends queryPlanner and executionStats. w is the write above the query,
// nil for none.
func (e *Executor) Explain(op *command.Op, dst []byte, q *Query, verb Verbosity, w *ExplainedWrite) ([]byte, error) {
	p, err := e.PlanExplained(op, q, verb)
	if err != nil {
		return dst, err
	}
	p.w = w
	defer p.Close()
	dst = p.AppendPlanner(dst)
	if verb == QueryPlanner {
		return dst, nil
	}
	start := time.Now()
	var returned int64
	s := p.Stream()
	for {
		ok, err := s.root.Next(op, &s.row)
		if err != nil {
			return dst, err
		}
		if !ok {
			break
		}
		if w != nil {
			if err := w.See(&s.row); err != nil {
				return dst, err
			}
			if w.One {
				break
			}
			continue
		}
		if !q.Count {
			returned++
		}
	}
	return p.AppendStats(dst, returned, time.Since(start)), nil
}

// Stream returns the query's documents.
func (p *Explained) Stream() *Stream { return &Stream{q: p.q, root: p.c.root} }

func (p *Explained) Close() {
	if p.c.root != nil {
		p.c.root.Close()
	}
}

// AppendPlanner appends queryPlanner.
func (p *Explained) AppendPlanner(dst []byte) []byte {
	q := p.q
	shape := p.c.keys.q.Shape() + q.ShapeSuffix
	hash := plan.ShapeHash(shape)
	parsed := value.Doc()
	if q.Matcher != nil {
		parsed = q.Matcher.Serialize()
	}
	dst, m := value.BeginKey(dst, value.Document, "queryPlanner")
	dst = value.Append(dst, "namespace", value.NewString(q.NS))
	dst = value.Append(dst, "parsedQuery", value.NewDocument(parsed))
	if c := q.Collation.Document(); c != nil {
		dst = value.Append(dst, "collation", value.NewDocument(c))
	}
	dst = value.Append(dst, "indexFilterSet", value.NewBool(q.filtered))
	if p.set != nil {
		dst = value.Append(dst, "querySettings", value.NewDocument(p.set))
	}
	dst = value.Append(dst, "queryHash", value.NewString(hash))
	dst = value.Append(dst, "planCacheShapeHash", value.NewString(hash))
	dst = value.Append(dst, "planCacheKey", value.NewString(p.c.keys.q.CacheKey(p.c.keys.c, shape)))
	dst = value.Append(dst, "optimizationTimeMillis", value.NewInt32(int32(p.took.Milliseconds())))
	dst = value.Append(dst, "maxIndexedOrSolutionsReached", value.NewBool(p.c.result.Reached.Or))
	dst = value.Append(dst, "maxIndexedAndSolutionsReached", value.NewBool(p.c.result.Reached.And))
	dst = value.Append(dst, "maxScansToExplodeReached", value.NewBool(p.c.result.Reached.Explode))
	dst = value.Append(dst, "prunedSimilarIndexes", value.NewBool(false))
	dst = value.Append(dst, "winningPlan", value.NewDocument(p.winning()))
	dst, rm := value.BeginKey(dst, value.Array, "rejectedPlans")
	i := 0
	for _, c := range p.c.result.Candidates {
		if c != p.c.plan {
			dst = value.AppendIndex(dst, i, value.NewDocument(p.stages(plan.WithoutSubplan(c), nil)))
			i++
		}
	}
	return value.End(value.End(dst, rm), m)
}

func (p *Explained) winning() []byte {
	if len(p.groups) > 0 {
		return p.groupPlan()
	}
	return p.stages(p.c.plan, nil)
}

// stages prints a plan with the stages above it.
func (p *Explained) stages(c *plan.Node, fig plan.Figures) []byte {
	if c.Stage == plan.Count && c.Has(plan.FastCount) {
		return p.fastCount(fig != nil)
	}
	cached := p.sig != "" && plan.WithoutSubplan(c).Signature() == p.sig
	if p.w == nil {
		return c.Stages(cached, fig)
	}
	name := p.w.Stage
	if c.Stage == plan.ExpressID {
		name = "EXPRESS_" + name
	}
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "isCached", value.NewBool(cached))
	dst = value.Append(dst, "stage", value.NewString(name))
	if fig != nil {
		f := p.exec.figures(c)
		dst = appendFigures(dst, figures{works: f.works + 1, eof: true}, p.exec.took(c))
		if p.w.Stage == "UPDATE" {
			dst = appendCount(dst, "nMatched", p.w.Matched)
			dst = appendCount(dst, "nWouldModify", p.w.Modified)
			upserts := int64(0)
			if p.w.Upsert && p.w.Matched == 0 {
				upserts = 1
			}
			dst = appendCount(dst, "nWouldUpsert", upserts)
		} else {
			dst = appendCount(dst, "nWouldDelete", p.w.Matched)
		}
	}
	dst = value.Append(dst, "inputStage", value.NewDocument(c.Explain(fig)))
	return value.End(dst, m)
}

// fastCount returns the plan that asks the collection for its count.
func (p *Explained) fastCount(ran bool) []byte {
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "isCached", value.NewBool(false))
	dst = value.Append(dst, "stage", value.NewString("RECORD_STORE_FAST_COUNT"))
	if ran {
		n := p.q.Coll.Counters.Records.Load()
		skipped := min(p.q.Skip, n)
		n -= skipped
		if p.q.Limit > 0 {
			n = min(n, p.q.Limit)
		}
		dst = appendFigures(dst, figures{works: 1, eof: true}, 0)
		dst = appendCount(dst, "nCounted", n)
		dst = appendCount(dst, "nSkipped", skipped)
	}
	return value.End(dst, m)
}

// AppendStats appends executionStats.
func (p *Explained) AppendStats(dst []byte, returned int64, took time.Duration) []byte {
	keys, docs := p.exec.totals(p.c.plan)
	dst, m := value.BeginKey(dst, value.Document, "executionStats")
	dst = value.Append(dst, "executionSuccess", value.NewBool(true))
	dst = appendCount(dst, "nReturned", returned)
	dst = appendCount(dst, "executionTimeMillis", (took + p.took).Milliseconds())
	dst = appendCount(dst, "totalKeysExamined", keys)
	dst = appendCount(dst, "totalDocsExamined", docs)
	stages := p.groupStages
	if len(p.groups) == 0 {
		stages = func() []byte { return p.stages(p.c.plan, p.exec.append) }
	}
	dst = value.Append(dst, "executionStages", value.NewDocument(stages()))
	if p.verb == AllPlansExecution {
		dst = value.Append(dst, "allPlansExecution", value.NewArray(value.ArrayOf(p.rest...)))
	}
	return value.End(dst, m)
}
