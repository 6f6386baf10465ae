package agg

import (
	"context"
	"slices"
)

// Split divides a pipeline between shards and the merger. Shard is what each shard runs (Wire returns the form
// for that); Merge is what runs over all their documents, nil if nothing remains to be done; MergeSort is the
// sort specification by which the shards' streams are merged, nil for any order.
type Split struct {
	Shard     *Pipeline
	Merge     *Pipeline
	MergeSort []byte
}

// Split divides the pipeline for a sharded collection. As much as possible runs on the shards: everything up to the first
// stage that must see all documents, and the shard part of that stage if it can be divided.
func (p *Pipeline) Split() Split {
	out := p.divide()
	out.carryMetadata(p)
	return out
}

// ranksItself reports whether the first stage sets distances or scores of documents.
func (p *Pipeline) ranksItself() bool {
	m, ok := firstStage[*matchStage](p.stages)
	return p.GeoNear() != nil || ok && m.text
}

// runOn runs the first stage on the nodes behind a host and the others here.
func (p *Pipeline) runOn(ctx context.Context, r HeadRunner, ns Namespace) (Source, error) {
	first := p.stages[0]
	if m, ok := first.(*matchStage); ok {
		inlined, err := newMatch(p.opts, inlineVariables(m.filter, p.opts.scope()))
		if err != nil {
			return nil, err
		}
		first = inlined
	}
	head := &Pipeline{opts: p.opts, metas: p.metas, stages: []Stage{first}}
	split := head.divide()
	split.pack(head)
	src, err := r.RunHead(ctx, ns, split)
	if err != nil {
		return nil, err
	}
	rest := &Pipeline{opts: p.opts, metas: p.metas, stages: append(split.Merge.stages, p.stages[1:]...)}
	return rest.Run(src)
}

// ExplainSplit is Split without the stages that only carry metadata across.
func (p *Pipeline) ExplainSplit() Split {
	out := p.divide()
	if out.Merge == nil {
		out.Merge = &Pipeline{opts: p.opts}
	}
	return out
}

func (p *Pipeline) divide() Split {
	out := Split{}
	for i, s := range p.stages {
		shard, merge, sort, streams := halves(s)
		if streams {
			continue
		}
		out.MergeSort = sort
		out.Shard = &Pipeline{opts: p.opts, metas: p.metas, stages: append(slices.Clone(p.stages[:i]), shard...)}
		rest := append(slices.Clone(merge), p.stages[i+1:]...)
		if sort != nil && len(merge) == 0 {
			out.Shard.stages, rest = cutSorted(out.Shard.stages, rest)
		}
		if len(rest) > 0 {
			out.Merge = &Pipeline{opts: p.opts, metas: p.metas, stages: rest}
		}
		return out
	}
	out.Shard = p
	return out
}

// halves returns the parts of a stage that run on the shards and over their merged streams; streams is true if the
// whole stage runs on the shards and the next one may follow it there.
func halves(s Stage) (shard, merge []Stage, sort []byte, streams bool) {
	switch s := s.(type) {
	case *matchStage, *fieldsStage, *rootStage, *unwindStage, *redactStage, *infoStage, *unpackStage:
		return nil, nil, nil, true
	case *scoreStage:
		if s.normalization != minMaxScaler {
			return nil, nil, nil, true
		}
	case *limitStage:
		return []Stage{s}, []Stage{s}, nil, false
	case *sampleStage:
		return []Stage{s}, []Stage{s}, nil, false
	case *sortStage:
		if sortsByMeta(s) {
			if s.limit > 0 {
				shard = []Stage{s}
			}
			return shard, []Stage{s}, nil, false
		}
		if s.limit > 0 {
			merge = []Stage{&limitStage{s.limit}}
		}
		return []Stage{s}, merge, s.pattern.Spec(), false
	case *GeoNearStage:
		return []Stage{s}, nil, s.mergeSort(), false
	case *groupStage:
		if s.partial || s.merging {
			return nil, []Stage{s}, nil, false
		}
		half, whole := *s, *s
		half.partial, whole.merging = true, true
		return []Stage{&half}, []Stage{&whole}, nil, false
	}
	return nil, []Stage{s}, nil, false
}

// cutSorted lets shards also run the stages after a sort that preserve its order and need only one document at a time.
func cutSorted(shard, rest []Stage) ([]Stage, []Stage) {
	if len(rest) > 0 {
		if l, ok := rest[0].(*limitStage); ok {
			return append(shard, l), rest
		}
	}
	return shard, rest
}
