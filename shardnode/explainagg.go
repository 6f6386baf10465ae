package shardnode

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// explainOption handles aggregate's own explain argument: the plan without running it.
func (n *Node) explainOption(op *command.Op, dst []byte) ([]byte, error) {
	x := &explanation{n: n, op: op, verb: exec.QueryPlanner}
	dst, err := x.aggregate(dst)
	if err != nil {
		return dst, err
	}
	return x.trailer(dst), nil
}

func (x *explanation) aggregate(dst []byte) ([]byte, error) {
	ns, err := aggregateNS(x.op)
	if err != nil {
		return dst, err
	}
	if !value.Lookup(x.op.Req.Body, "writeConcern").IsNullish() {
		// The missing space is the real server's.
		return dst, mongoerr.New(mongoerr.FailedToParse, "Aggregation explain does not support the'writeConcern' option")
	}
	s, err := versionedSnapshot(x.n, x.op, ns)
	if err != nil {
		return dst, err
	}
	defer s.Release()
	x.shapeOf()
	args := readAggregate(x.op, ns)
	a, pipeline := args.over(x.n, x.op, s), args.pipeline
	a.viewStages, a.explain = 0, true
	r, err := x.n.resolveFor(x.op, s, ns)
	if err != nil {
		return dst, err
	}
	if r == nil {
		return x.pipeline(dst, a, pipeline, nil)
	}
	a.ns, a.viewStages = r.NS, len(r.Pipeline)
	all := append(append([]value.Value(nil), r.Pipeline...), value.Values(pipeline.Doc())...)
	return x.pipeline(dst, a, value.NewArray(value.ArrayOf(all...)), r.Collation)
}

// pipeline explains a pipeline: as its query alone if the planner runs all of it, else as a list of stages.
func (x *explanation) pipeline(dst []byte, a *aggregation, pipeline value.Value, defaultCollation []byte) ([]byte, error) {
	rest, err := a.prepare(pipeline, defaultCollation)
	if err != nil {
		return dst, err
	}
	if spec, ok := a.pipeline.WritesTo(); ok && spec.Stage == "$merge" {
		if err := x.n.writes.CheckMerge(x.op, spec, a.host.lang.Coll); err != nil {
			return dst, err
		}
	}
	if a.q != nil && rest.Empty() {
		return x.n.exec.Explain(x.op, append(dst, explainVersion...), a.q, x.verb, nil)
	}
	run := &explainedRun{x: x, rest: rest, counts: make([]*stageCount, len(rest.Stages())), bottom: &stageCount{}}
	if a.q != nil {
		a.q.ShapeSuffix = shapeSuffix(rest)
		if run.p, err = x.n.exec.PlanExplained(x.op, a.q, x.verb); err != nil {
			return dst, err
		}
		defer run.p.Close()
	}
	if x.verb > exec.QueryPlanner {
		if err := run.run(); err != nil {
			return dst, err
		}
	}
	return run.append(dst, x.storeGroups(a.ns, rest, run.p)), nil
}

// storeGroups counts the $group stages directly above the query that the 8.2 line would run in its slot-based engine:
// explain shows them as part of the plan.
func (x *explanation) storeGroups(ns string, rest *agg.Pipeline, p *exec.Explained) int {
	if p == nil || ns == storage.OplogNS || !p.CanGroup() {
		return 0
	}
	framework := command.QueryFramework(x.n.Params)
	if set := value.Lookup(x.n.settings.OfQuery(x.op), "queryFramework"); set.T == value.String {
		framework = set.Str()
	}
	if framework == "forceClassicEngine" || framework == "classic" {
		return 0
	}
	return rest.StoreGroups()
}

// shapeSuffix returns what the first stage above a query adds to its plan cache shape: its name if a planner could take
// it over.
func shapeSuffix(rest *agg.Pipeline) string {
	first := rest.Stages()[0]
	switch name := first.Name(); name {
	case "$_internalSetWindowFields", "$setWindowFields":
		if value.Lookup(first.Spec().Doc(), "sortBy").T == value.Document {
			return "@" + name // it sorts
		}
	case "$group", "$lookup", "$densify", "$_internalDensify", "$replaceRoot", "$project", "$sort":
		return "@" + name
	}
	return ""
}

// stageCount counts the documents that a stage returns, and the time that they take.
type stageCount struct {
	in    agg.Source
	name  string
	n     int64
	bytes int64
	took  time.Duration
	reads reads           // of the stage and of those before it
	below *stageCount     // the stage before, nil for none
	used  map[string]bool // the indexes that the stage has used
}

// reads counts what has been read from collections.
type reads struct{ docs, keys, scans int64 }

func readsOf(op *command.Op) reads {
	return reads{op.Stats.DocsExamined, op.Stats.KeysExamined, op.Stats.CollScans}
}

func (r reads) minus(o reads) reads {
	return reads{r.docs - o.docs, r.keys - o.keys, r.scans - o.scans}
}
func (r reads) plus(o reads) reads { return reads{r.docs + o.docs, r.keys + o.keys, r.scans + o.scans} }

func (s *stageCount) Next(ctx context.Context) (agg.Doc, bool, error) {
	start, op := time.Now(), command.FromContext(ctx)
	before, outer := readsOf(op), op.Stats.IndexesUsed
	if s.used == nil {
		s.used = map[string]bool{}
	}
	op.Stats.IndexesUsed = s.used
	d, ok, err := s.in.Next(ctx)
	op.Stats.IndexesUsed = outer
	s.reads = s.reads.plus(readsOf(op).minus(before))
	s.took += time.Since(start)
	if ok {
		s.n++
		s.bytes += int64(len(d.Raw))
	}
	return d, ok, err
}

func (s *stageCount) Close() { s.in.Close() }

// group returns the figures of a $group, as part of the query's plan.
func (s *stageCount) group() *exec.StoreGroup {
	if s == nil {
		return &exec.StoreGroup{}
	}
	g := &exec.StoreGroup{Returned: s.n, Took: s.took}
	if r, ok := s.in.(agg.SpillReporter); ok {
		g.Spill = r.SpillStats()
	}
	return g
}

func (s *stageCount) append(dst []byte) []byte {
	dst = s.appendReads(s.appendMemory(dst))
	dst = value.Append(dst, "nReturned", value.NewInt64(s.n))
	return value.Append(dst, "executionTimeMillisEstimate", value.NewInt64(s.took.Milliseconds()))
}

// appendReads shows what a $lookup has read. See https://www.mongodb.com/docs/manual/reference/explain-results/.
func (s *stageCount) appendReads(dst []byte) []byte {
	if s.name != "$lookup" {
		return dst
	}
	own := s.reads
	if s.below != nil {
		own = own.minus(s.below.reads)
	}
	dst = value.Append(dst, "totalDocsExamined", value.NewInt64(own.docs))
	dst = value.Append(dst, "totalKeysExamined", value.NewInt64(own.keys))
	dst = value.Append(dst, "collectionScans", value.NewInt64(own.scans))
	var names []value.Value
	for _, name := range slices.Sorted(maps.Keys(s.used)) {
		names = append(names, value.NewString(name))
	}
	return value.Append(dst, "indexesUsed", value.NewArray(value.ArrayOf(names...)))
}

// appendMemory shows the memory and spilling of a stage, if it is one that may spill.
func (s *stageCount) appendMemory(dst []byte) []byte {
	r, ok := s.in.(agg.SpillReporter)
	if !ok {
		return dst
	}
	st := r.SpillStats()
	switch s.name {
	case "$sort":
		dst = value.Append(dst, "totalDataSizeSortedBytesEstimate", value.NewInt64(st.Data))
	case "$group":
		var m int
		dst, m = value.BeginKey(dst, value.Document, "maxAccumulatorMemoryUsageBytes")
		for _, f := range st.Fields {
			dst = value.Append(dst, f, value.NewInt64(st.Memory/int64(len(st.Fields))))
		}
		dst = value.End(dst, m)
		dst = value.Append(dst, "totalOutputDataSizeBytes", value.NewInt64(s.bytes))
	case "$setWindowFields":
		dst = value.Append(dst, "maxTotalMemoryUsageBytes", value.NewInt64(st.Memory))
	}
	dst = value.Append(dst, "usedDisk", value.NewBool(st.Spills > 0))
	dst = value.Append(dst, "spills", value.NewInt64(st.Spills))
	dst = value.Append(dst, "spilledDataStorageSize", value.NewInt64(st.Bytes))
	dst = value.Append(dst, "spilledBytes", value.NewInt64(st.Bytes))
	return value.Append(dst, "spilledRecords", value.NewInt64(st.Records))
}

// explainedRun is a pipeline that explain shows, with the figures of its stages if it ran.
type explainedRun struct {
	x      *explanation
	p      *exec.Explained // the query below; nil if the pipeline makes its own documents
	rest   *agg.Pipeline   // the stages above the query
	bottom *stageCount     // what the query returned
	counts []*stageCount   // of the stages; nil for those that did not run
}

// append writes the query with the first groups stages on top of it: alone if there are no further stages, else as
// the first of `stages`.
func (r *explainedRun) append(dst []byte, groups int) []byte {
	if groups == 0 {
		dst = append(dst, explainVersion...)
	} else {
		dst = append(dst, slotVersion...)
		list := make([]*exec.StoreGroup, groups)
		for i := range list {
			list[i] = r.counts[i].group()
		}
		r.p.SetGroups(list)
		r.bottom = &stageCount{n: list[groups-1].Returned, took: list[groups-1].Took}
		if groups == len(r.counts) {
			return r.query(dst)
		}
	}
	dst, m := value.BeginKey(dst, value.Array, "stages")
	i := 0
	if r.p != nil {
		var m, cm int
		dst, m = value.BeginKey(dst, value.Document, "0")
		dst, cm = value.BeginKey(dst, value.Document, "$cursor")
		dst = value.End(r.query(dst), cm)
		if r.ran() {
			dst = r.bottom.append(dst)
		}
		dst = value.End(dst, m)
		i++
	}
	for k, st := range value.Values(r.rest.Serialize().Doc())[groups:] {
		var m int
		dst, m = value.BeginKey(dst, value.Document, strconv.Itoa(i+k))
		dst = append(dst, st.Doc()[4:len(st.Doc())-1]...)
		if r.ran() {
			dst = r.top(groups + k).append(dst)
		}
		dst = value.End(dst, m)
	}
	return value.End(dst, m)
}

func (r *explainedRun) ran() bool { return r.x.verb > exec.QueryPlanner }

// query writes the query's plan and what it did.
func (r *explainedRun) query(dst []byte) []byte {
	dst = r.p.AppendPlanner(dst)
	if r.ran() {
		dst = r.p.AppendStats(dst, r.bottom.n, r.bottom.took)
	}
	return dst
}

// top returns the figures of stage i.
func (r *explainedRun) top(i int) *stageCount {
	if c := r.counts[i]; c != nil {
		return c
	}
	return &stageCount{}
}

// run runs the pipeline to its end, without the stages that write.
func (r *explainedRun) run() error {
	var src agg.Source
	if r.p != nil {
		r.bottom.in = exec.NewSource(r.p.Stream(), nil)
		src = r.bottom
	}
	out, err := r.rest.RunObserved(src, func(i int, s agg.Source) agg.Source {
		below := r.bottom
		if i > 0 {
			below = r.counts[i-1]
		}
		r.counts[i] = &stageCount{in: s, name: r.rest.Stages()[i].Name(), below: below}
		return r.counts[i]
	})
	if err != nil {
		return err
	}
	defer out.Close()
	for {
		_, ok, err := out.Next(r.x.op)
		if err != nil || !ok {
			return err
		}
	}
}
