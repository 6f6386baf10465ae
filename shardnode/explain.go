package shardnode

import (
	"strconv"
	"strings"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// verbosity is how much explain tells: the plan, what running it takes, and what running the others takes.
type verbosity uint8

const (
	queryPlanner verbosity = iota
	executionStats
	allPlansExecution
)

func explainSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "explain", Roles: command.All, Kind: command.Read, ArgTypes: command.TObject | command.TOther, ReadConcern: true, API: true, Run: n.runExplain,
		Fields: []command.Field{command.Opt("verbosity", command.TString)},
	}
}

func parseVerbosity(v value.Value) (verbosity, error) {
	switch {
	case v.IsMissing():
		return allPlansExecution, nil
	case v.Str() == "queryPlanner":
		return queryPlanner, nil
	case v.Str() == "executionStats":
		return executionStats, nil
	case v.Str() == "allPlansExecution":
		return allPlansExecution, nil
	}
	return 0, mongoerr.New(mongoerr.BadValue, "verbosity string must be one of {'queryPlanner', 'executionStats', 'allPlansExecution'}")
}

// explanation is the explain of one command. Its answer is written in two parts: head, by the command's explainer, and
// the trailer all have.
type explanation struct {
	n     *Node
	op    *command.Op // the explained command's
	verb  verbosity
	shape string // queryShapeHash
}

// explainers write what explain tells of a command, by its name.
var explainers = map[string]func(x *explanation, dst []byte) ([]byte, error){
	"find": (*explanation).find, "count": (*explanation).count, "distinct": (*explanation).distinct, "aggregate": (*explanation).aggregate,
	"update": (*explanation).update, "delete": (*explanation).delete, "findAndModify": (*explanation).findAndModify,
}

func (n *Node) runExplain(op *command.Op, dst []byte) ([]byte, error) {
	if t := op.Req.Cmd.T; t == value.Null || t == value.Undefined {
		return dst, command.MissingField("explain.explain")
	} else if t != value.Document {
		return dst, command.WrongType("explain.explain", t, command.TObject)
	}
	body := op.Req.Cmd.Doc()
	verb, err := parseVerbosity(op.Arg("verbosity"))
	if err != nil {
		return dst, err
	}
	it := value.Walk(body)
	name, _, _ := it.Next()
	spec := n.Service.Table.Lookup(string(name))
	if spec == nil {
		return dst, mongoerr.Newf(mongoerr.CommandNotFound, "Explain failed due to unknown command: %s", name)
	}
	explain, ok := explainers[spec.Name]
	if !ok {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "Cannot explain cmd: %s", name)
	}
	in, err := op.Nested(body)
	if err != nil {
		return dst, err
	}
	defer in.Close()
	x := &explanation{n: n, op: in, verb: verb}
	if dst, err = explain(x, dst); err != nil {
		return dst, err
	}
	return x.trailer(dst), nil
}

// trailer appends what stands at the end of every explain.
func (x *explanation) trailer(dst []byte) []byte {
	if x.shape != "" {
		dst = value.Append(dst, "queryShapeHash", value.NewString(x.shape))
	}
	cmd, m := value.Begin(nil)
	for it := value.Walk(x.op.Req.Body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		switch string(k) {
		case "$db", "lsid", "$clusterTime", "$readPreference":
		default:
			cmd = append(cmd, raw...)
		}
	}
	cmd = value.Append(cmd, "$db", value.NewString(x.op.DB()))
	dst = value.Append(dst, "command", value.NewDocument(value.End(cmd, m)))
	return x.n.appendServer(dst)
}

// appendServer appends serverInfo and serverParameters.
func (n *Node) appendServer(dst []byte) []byte {
	host, port := n.Host, int64(27017)
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		if p, err := strconv.ParseInt(host[i+1:], 10, 32); err == nil {
			host, port = host[:i], p
		}
	}
	dst = value.Append(dst, "serverInfo", value.NewDocument(value.Doc(
		value.F("host", value.NewString(host)), value.F("port", value.NewInt32(int32(port))),
		value.F("version", value.NewString(command.Version)), value.F("gitVersion", value.NewString(command.GitVersion)))))
	const limit = 100 << 20
	dst, m := value.BeginKey(dst, value.Document, "serverParameters")
	for _, p := range []struct {
		name string
		v    int32
	}{
		{"internalQueryFacetBufferSizeBytes", limit}, {"internalQueryFacetMaxOutputDocSizeBytes", limit},
		{"internalLookupStageIntermediateDocumentMaxSizeBytes", limit}, {"internalDocumentSourceGroupMaxMemoryBytes", limit},
		{"internalQueryMaxBlockingSortMemoryUsageBytes", limit}, {"internalQueryProhibitBlockingMergeOnMongoS", 0},
		{"internalQueryMaxAddToSetBytes", limit}, {"internalDocumentSourceSetWindowFieldsMaxMemoryBytes", limit},
	} {
		dst = value.Append(dst, p.name, value.NewInt32(p.v))
	}
	dst = value.Append(dst, "internalQueryFrameworkControl", value.NewString("forceClassicEngine"))
	dst = value.Append(dst, "internalQueryPlannerIgnoreIndexWithCollationForRegex", value.NewInt32(1))
	return value.End(dst, m)
}

// planned is a query that was planned for explain.
type planned struct {
	x    *explanation
	q    *query
	c    *chosen
	took time.Duration // of planning
	sig  string        // of the plan that the plan cache would use; empty for none
	rest []value.Value // allPlansExecution
	w    *explainedWrite
	exec executed
}

// explainedWrite is the stage on top of a write's plan, and what it would do.
type explainedWrite struct {
	stage           string // UPDATE or DELETE
	one             bool   // it ends with the first document
	upsert          bool
	see             func(r *row) error
	matched, modify int64
}

// plan decides how a query would run.
func (x *explanation) plan(q *query) (*planned, error) {
	start := time.Now()
	p := &planned{x: x, q: q}
	if q.coll == nil {
		root := &plan.Node{Stage: plan.EOF, Value: value.NewString("nonExistentNamespace")}
		b := builder{n: x.n, q: q, nodes: map[*plan.Node]node{}, timed: true}
		node, err := b.build(root)
		if err != nil {
			return nil, err
		}
		p.c = &chosen{result: &plan.Result{Candidates: []*plan.Node{root}}, plan: root, root: node, nodes: b.nodes, keys: planKeys{q: q.planQuery(), c: &plan.Collection{}}}
	} else {
		var err error
		if p.c, err = x.n.choose(x.op, q, true); err != nil {
			return nil, err
		}
		p.sig = x.n.cachedSignature(q, p.c.keys)
	}
	if x.verb == allPlansExecution {
		for _, c := range p.c.trial {
			p.rest = append(p.rest, value.NewDocument(c.stats(true)))
		}
	}
	p.exec.nodes = p.c.nodes
	p.took = time.Since(start)
	return p, nil
}

// explain plans a query, runs it if asked to, and appends queryPlanner and executionStats.
func (x *explanation) explain(dst []byte, q *query, w *explainedWrite) ([]byte, error) {
	p, err := x.plan(q)
	if err != nil {
		return dst, err
	}
	p.w = w
	defer p.close()
	dst = p.appendPlanner(dst)
	if x.verb == queryPlanner {
		return dst, nil
	}
	start := time.Now()
	var returned int64
	s := &queryStream{q: q, root: p.c.root}
	for {
		ok, err := s.root.next(x.op, &s.row)
		if err != nil {
			return dst, err
		}
		if !ok {
			break
		}
		if w != nil {
			if err := w.see(&s.row); err != nil {
				return dst, err
			}
			if w.one {
				break
			}
			continue
		}
		if !q.count {
			returned++
		}
	}
	return p.appendStats(dst, returned, time.Since(start)), nil
}

func (p *planned) close() {
	if p.c.root != nil {
		p.c.root.close()
	}
}

// appendPlanner appends queryPlanner.
func (p *planned) appendPlanner(dst []byte) []byte {
	q := p.q
	shape := p.c.keys.q.Shape() + q.shapeSuffix
	hash := plan.ShapeHash(shape)
	parsed := value.Doc()
	if q.matcher != nil {
		parsed = q.matcher.Serialize()
	}
	dst, m := value.BeginKey(dst, value.Document, "queryPlanner")
	dst = value.Append(dst, "namespace", value.NewString(q.ns))
	dst = value.Append(dst, "parsedQuery", value.NewDocument(parsed))
	if c := q.lang.coll.Document(); c != nil {
		dst = value.Append(dst, "collation", value.NewDocument(c))
	}
	dst = value.Append(dst, "indexFilterSet", value.NewBool(q.filtered))
	dst = value.Append(dst, "queryHash", value.NewString(hash))
	dst = value.Append(dst, "planCacheShapeHash", value.NewString(hash))
	dst = value.Append(dst, "planCacheKey", value.NewString(p.c.keys.q.CacheKey(p.c.keys.c, shape)))
	dst = value.Append(dst, "optimizationTimeMillis", value.NewInt32(int32(p.took.Milliseconds())))
	dst = value.Append(dst, "maxIndexedOrSolutionsReached", value.NewBool(p.c.result.Reached.Or))
	dst = value.Append(dst, "maxIndexedAndSolutionsReached", value.NewBool(p.c.result.Reached.And))
	dst = value.Append(dst, "maxScansToExplodeReached", value.NewBool(p.c.result.Reached.Explode))
	dst = value.Append(dst, "prunedSimilarIndexes", value.NewBool(false))
	dst = value.Append(dst, "winningPlan", value.NewDocument(p.stages(p.c.plan, nil)))
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

// stages prints a plan with what stands above it.
func (p *planned) stages(c *plan.Node, fig plan.Figures) []byte {
	if c.Stage == plan.Count && c.Has(plan.FastCount) {
		return p.fastCount(fig != nil)
	}
	cached := p.sig != "" && plan.WithoutSubplan(c).Signature() == p.sig
	if p.w == nil {
		return c.Stages(cached, fig)
	}
	name := p.w.stage
	if c.Stage == plan.ExpressID {
		name = "EXPRESS_" + name
	}
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "isCached", value.NewBool(cached))
	dst = value.Append(dst, "stage", value.NewString(name))
	if fig != nil {
		f := p.exec.figures(c)
		dst = appendFigures(dst, figures{works: f.works + 1, eof: true}, p.exec.took(c))
		if p.w.stage == "UPDATE" {
			dst = appendCount(dst, "nMatched", p.w.matched)
			dst = appendCount(dst, "nWouldModify", p.w.modify)
			upserts := int64(0)
			if p.w.upsert && p.w.matched == 0 {
				upserts = 1
			}
			dst = appendCount(dst, "nWouldUpsert", upserts)
		} else {
			dst = appendCount(dst, "nWouldDelete", p.w.matched)
		}
	}
	dst = value.Append(dst, "inputStage", value.NewDocument(c.Explain(fig)))
	return value.End(dst, m)
}

// fastCount is the plan that asks the collection for its count.
func (p *planned) fastCount(ran bool) []byte {
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "isCached", value.NewBool(false))
	dst = value.Append(dst, "stage", value.NewString("RECORD_STORE_FAST_COUNT"))
	if ran {
		n := p.q.coll.Counters.Records.Load()
		skipped := min(p.q.skip, n)
		n -= skipped
		if p.q.limit > 0 {
			n = min(n, p.q.limit)
		}
		dst = appendFigures(dst, figures{works: 1, eof: true}, 0)
		dst = appendCount(dst, "nCounted", n)
		dst = appendCount(dst, "nSkipped", skipped)
	}
	return value.End(dst, m)
}

// appendStats appends executionStats.
func (p *planned) appendStats(dst []byte, returned int64, took time.Duration) []byte {
	keys, docs := p.exec.totals(p.c.plan)
	dst, m := value.BeginKey(dst, value.Document, "executionStats")
	dst = value.Append(dst, "executionSuccess", value.NewBool(true))
	dst = appendCount(dst, "nReturned", returned)
	dst = appendCount(dst, "executionTimeMillis", (took + p.took).Milliseconds())
	dst = appendCount(dst, "totalKeysExamined", keys)
	dst = appendCount(dst, "totalDocsExamined", docs)
	dst = value.Append(dst, "executionStages", value.NewDocument(p.stages(p.c.plan, p.exec.append)))
	if p.x.verb == allPlansExecution {
		dst = value.Append(dst, "allPlansExecution", value.NewArray(value.ArrayOf(p.rest...)))
	}
	return value.End(dst, m)
}
