package agg

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzPipeline: no pipeline may do worse than fail, to parse or to run, within its operation's time.
func FuzzPipeline(f *testing.F) {
	stages := StageNames()
	names := []string{"groupBy", "boundaries", "output", "buckets", "granularity", "path", "includeArrayIndex", "preserveNullAndEmptyArrays", "newRoot", "size", "sortBy", "partitionBy",
		"window", "documents", "range", "unit", "method", "partitionByFields", "field", "step", "bounds", "input", "n", "by", "init", "accumulate", "accumulateArgs", "merge", "lang",
		"alpha", "N", "from", "startWith", "connectFromField", "connectToField", "as", "pipeline", "into", "on", "db", "coll", "let", "whenMatched", "$meta", "$eq", "$add", "$cond", "$map"}
	for _, n := range []string{"$sum", "$avg", "$min", "$max", "$push", "$addToSet", "$first", "$last", "$topN", "$bottom", "$minN", "$median", "$percentile", "$stdDevPop",
		"$mergeObjects", "$setUnion", "$rank", "$shift", "$derivative", "$integral", "$expMovingAvg", "$locf", "$linearFill", "$covariancePop", "$denseRank"} {
		names = append(names, n)
		_ = accum.Known(n)
	}
	names = append(names, expr.Operators()...)
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) == 0 {
			return
		}
		n := int(in[0])%4 + 1
		var specs []value.Value
		g := valuetest.NewGenerator(in[1:], names)
		for i := range n {
			name := stages[(int(in[min(i, len(in)-1)])*31+i*7)%len(stages)]
			specs = append(specs, value.NewDocument(value.Doc(value.F(name, g.Value()))))
		}
		env := &expr.Env{NowMS: 1, ClusterTime: 1 << 32, Work: &valuetest.Budget{Left: 2000}}
		p, err := ParseStages(specs, &Options{NS: Namespace{"d", "c"}, Scope: expr.NewScope(env), Host: noHost{}, MemoryLimit: 1 << 20})
		if err != nil {
			return
		}
		p.Optimize()
		p.Split()
		src, err := p.Run(NewSliceSource(valuetest.Subjects()))
		if err != nil {
			return
		}
		defer src.Close()
		for range 1000 {
			if _, ok, err := src.Next(context.Background()); err != nil || !ok {
				return
			}
		}
	})
}

// noHost is a host without collections.
type noHost struct{ Host }

func (noHost) Resolve(_ context.Context, ns Namespace) (Namespace, []value.Value, error) {
	return ns, nil, nil
}
func (noHost) Find(context.Context, Namespace, Query) (Source, error) {
	return NewSliceSource(valuetest.Subjects()), nil
}
func (noHost) Info(context.Context, Namespace, string, value.Value) (Source, error) {
	return NewSliceSource(nil), nil
}
func (noHost) Writer(context.Context, WriteSpec) (Writer, error) { return nil, context.Canceled }
func (noHost) Spill() Spiller                                    { return nil }
