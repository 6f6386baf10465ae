package agg

import (
	"context"

	"github.com/shoaldb/shoal/query/value"
)

func init() {
	parse := func(take bool) func(*Options, value.Value) (*carryStage, error) {
		return func(_ *Options, v value.Value) (*carryStage, error) { return &carryStage{take: take, spec: v}, nil }
	}
	register("$_internalPackMetadata", rules{internal: true, split: true}, one(parse(false)))
	register("$_internalTakeMetadata", rules{internal: true, split: true}, one(parse(true)))
}

// packedMeta is the field in which metadata travels from a shard to the router.
const packedMeta = "$metadata"

// carryStage writes the metadata of documents into a last field, at the end of a shard's part of a pipeline, or
// extracts it from there, at the beginning of the merging part. Its specification names the kinds that have to be read
// from the records themselves.
type carryStage struct {
	take bool
	spec value.Value
}

func (s *carryStage) Name() string {
	if s.take {
		return "$_internalTakeMetadata"
	}
	return "$_internalPackMetadata"
}

func (s *carryStage) Spec() value.Value { return s.spec }

func (s *carryStage) open(_ *exec, src Source) (Source, error) {
	if s.take {
		return &metaTaker{src}, nil
	}
	return &metaPacker{Source: src}, nil
}

type metaPacker struct {
	Source
	buf []byte
}

func (p *metaPacker) Next(ctx context.Context) (Doc, bool, error) {
	d, ok, err := p.Source.Next(ctx)
	if err != nil || !ok || d.Meta == nil {
		return d, ok, err
	}
	p.buf = append(p.buf[:0], d.Raw[:len(d.Raw)-1]...)
	p.buf = value.End(value.Append(p.buf, packedMeta, value.NewDocument(d.Meta.encode())), 0)
	return Doc{Raw: p.buf, Meta: d.Meta}, true, nil
}

type metaTaker struct{ Source }

func (t *metaTaker) Next(ctx context.Context) (Doc, bool, error) {
	d, ok, err := t.Source.Next(ctx)
	if err != nil || !ok {
		return d, ok, err
	}
	rest, v := CutLast(d.Raw, packedMeta)
	if v.T != value.Document {
		return d, true, nil
	}
	return Doc{Raw: rest, Meta: decodeMeta(v.Clone().Doc())}, true, nil
}

// CutLast returns a document without its last field, and that field's value, if the field has the given name;
// otherwise the unchanged document and Missing.
func CutLast(doc []byte, name string) (rest []byte, v value.Value) {
	start, last := 4, 4
	for it := value.Walk(doc); ; {
		raw, k, e, ok := it.NextRaw()
		if !ok {
			break
		}
		last, start = start, start+len(raw)
		v = value.Value{}
		if string(k) == name {
			v = e
		}
	}
	if v.IsMissing() {
		return doc, v
	}
	rest = append(make([]byte, 0, last+1), doc[:last]...)
	return value.End(rest, 0), v
}

// carriesMetadata reports whether the merging part of a pipeline may read metadata that documents get on the shards.
func (p *Pipeline) carriesMetadata(out *Split) bool {
	if p.GeoNear() != nil {
		return true
	}
	if out.Merge == nil {
		return false
	}
	if len(p.metas) > 0 || p.StartsWithText() {
		return true
	}
	for _, s := range out.Merge.stages {
		switch s := s.(type) {
		case *fieldsStage:
			if len(s.p.Metas()) > 0 {
				return true
			}
		case *sortStage:
			if sortsByMeta(s) {
				return true
			}
		}
	}
	return false
}

// carryMetadata makes the metadata of the shards' documents available to the merging part.
func (out *Split) carryMetadata(p *Pipeline) {
	if p.carriesMetadata(out) {
		out.pack(p)
	}
}

// pack ends the shards' part with a stage that packs the metadata and begins the merging part with one that unpacks it.
func (out *Split) pack(p *Pipeline) {
	var kinds []value.Field
	for _, k := range p.metas {
		kinds = append(kinds, f(k, doc(f("$meta", str(k)))))
	}
	pack, take := &carryStage{spec: doc(kinds...)}, &carryStage{take: true, spec: doc()}
	shard := *out.Shard
	shard.stages = append(shard.stages[:len(shard.stages):len(shard.stages)], pack)
	out.Shard = &shard
	merge := &Pipeline{opts: p.opts, metas: p.metas}
	if out.Merge != nil {
		*merge = *out.Merge
	}
	merge.stages = append([]Stage{take}, merge.stages...)
	out.Merge = merge
}
