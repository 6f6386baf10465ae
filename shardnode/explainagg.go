package shardnode

import (
	"context"
	"strconv"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// explainOption answers aggregate's own explain argument: the plan, not run.
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
		// The missing blank is the real server's.
		return dst, mongoerr.New(mongoerr.FailedToParse, "Aggregation explain does not support the'writeConcern' option")
	}
	if err := x.n.checkVersion(x.op, ns); err != nil {
		return dst, err
	}
	s, err := x.n.readSnapshot(x.op)
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

// pipeline explains a pipeline: as its query alone where the planner runs all of it, else as a list of stages.
func (x *explanation) pipeline(dst []byte, a *aggregation, pipeline value.Value, defaultCollation []byte) ([]byte, error) {
	rest, err := a.prepare(pipeline, defaultCollation)
	if err != nil {
		return dst, err
	}
	if spec, ok := a.pipeline.WritesTo(); ok && spec.Stage == "$merge" {
		if _, err := writesFor(x.n, x.op, replication.WriteConcern{}).newMergeWriter(spec, a.host.lang.Coll); err != nil {
			return dst, err
		}
	}
	dst = append(dst, explainVersion...)
	if a.q != nil && rest.Empty() {
		return x.n.exec.Explain(x.op, dst, a.q, x.verb, nil)
	}
	if a.q != nil {
		a.q.ShapeSuffix = shapeSuffix(rest)
	}
	dst, m := value.BeginKey(dst, value.Array, "stages")
	if dst, err = x.stages(dst, a, rest); err != nil {
		return dst, err
	}
	return value.End(dst, m), nil
}

// shapeSuffix is what the stages above a query add to its plan cache shape: those that a planner could take over.
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

// stageCount counts what a stage gives and the time until then.
type stageCount struct {
	in    agg.Source
	name  string
	n     int64
	bytes int64
	took  time.Duration
}

func (s *stageCount) Next(ctx context.Context) (agg.Doc, bool, error) {
	start := time.Now()
	d, ok, err := s.in.Next(ctx)
	s.took += time.Since(start)
	if ok {
		s.n++
		s.bytes += int64(len(d.Raw))
	}
	return d, ok, err
}

func (s *stageCount) Close() { s.in.Close() }

func (s *stageCount) append(dst []byte) []byte {
	dst = s.appendMemory(dst)
	dst = value.Append(dst, "nReturned", value.NewInt64(s.n))
	return value.Append(dst, "executionTimeMillisEstimate", value.NewInt64(s.took.Milliseconds()))
}

// appendMemory shows what a stage held and spilled, where it is one that may.
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

// stages writes the elements of `stages`: $cursor, then the stages above the query, with what they did where they ran.
func (x *explanation) stages(dst []byte, a *aggregation, rest *agg.Pipeline) ([]byte, error) {
	var p *exec.Explained
	var err error
	if a.q != nil {
		if p, err = x.n.exec.PlanExplained(x.op, a.q, x.verb); err != nil {
			return dst, err
		}
		defer p.Close()
	}
	ran := x.verb > exec.QueryPlanner
	counts := make([]*stageCount, len(rest.Stages()))
	bottom := &stageCount{}
	if ran {
		if err := x.runStages(p, rest, bottom, counts); err != nil {
			return dst, err
		}
	}
	i := 0
	if p != nil {
		var m, cm int
		dst, m = value.BeginKey(dst, value.Document, "0")
		dst, cm = value.BeginKey(dst, value.Document, "$cursor")
		dst = p.AppendPlanner(dst)
		if ran {
			dst = p.AppendStats(dst, bottom.n, bottom.took)
		}
		dst = value.End(dst, cm)
		if ran {
			dst = bottom.append(dst)
		}
		dst = value.End(dst, m)
		i++
	}
	for k, st := range value.Values(rest.Serialize().Doc()) {
		var m int
		dst, m = value.BeginKey(dst, value.Document, strconv.Itoa(i+k))
		dst = append(dst, st.Doc()[4:len(st.Doc())-1]...)
		if c := counts[k]; c != nil {
			dst = c.append(dst)
		} else if ran {
			dst = (&stageCount{}).append(dst)
		}
		dst = value.End(dst, m)
	}
	return dst, nil
}

// runStages runs a pipeline to its end, except that what writes is left out.
func (x *explanation) runStages(p *exec.Explained, rest *agg.Pipeline, bottom *stageCount, counts []*stageCount) error {
	var src agg.Source
	if p != nil {
		bottom.in = exec.NewSource(p.Stream(), nil)
		src = bottom
	}
	out, err := rest.RunObserved(src, func(i int, s agg.Source) agg.Source {
		counts[i] = &stageCount{in: s, name: rest.Stages()[i].Name()}
		return counts[i]
	})
	if err != nil {
		return err
	}
	defer out.Close()
	for {
		_, ok, err := out.Next(x.op)
		if err != nil || !ok {
			return err
		}
	}
}
