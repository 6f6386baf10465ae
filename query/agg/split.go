package agg

import (
	"context"
	"slices"
)

// Split divides a pipeline between shards and the merger. Shard is the part that each shard runs (Wire returns the form
// for that); Merge is the part that runs over all their documents, nil if nothing remains to be done; MergeSort is the
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
		h := halvesOf(s)
		if h.streams {
			continue
		}
		out.MergeSort = h.sort
		out.Shard = &Pipeline{opts: p.opts, metas: p.metas, stages: append(slices.Clone(p.stages[:i]), h.shard...)}
		rest := append(slices.Clone(h.merge), p.stages[i+1:]...)
		if h.sort != nil && len(h.merge) == 0 {
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

// halves are the parts of a stage that run on the shards and over their merged streams.
type halves struct {
	shard, merge []Stage
	sort         []byte // by which the shards' streams are merged; nil for any order
	streams      bool   // the whole stage runs on the shards, and the next one may follow it there
}

// divisible is implemented by the stages that run on shards, as a whole or in part. All others run where the shards' documents are merged.
type divisible interface{ halves() halves }

func halvesOf(s Stage) halves {
	if d, ok := s.(divisible); ok {
		return d.halves()
	}
	return halves{merge: []Stage{s}}
}

// cutSorted lets shards also run a $limit that follows a sort; the merging part repeats it.
func cutSorted(shard, rest []Stage) ([]Stage, []Stage) {
	if len(rest) > 0 {
		if l, ok := rest[0].(*limitStage); ok {
			return append(shard, l), rest
		}
	}
	return shard, rest
}
