package exec

import (
	"context"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
)

// Source passes a query's documents to a pipeline.
type Source struct {
	stream *Stream
	metas  []string
}

// NewSource makes a source of a stream; metas lists the kinds of metadata that the pipeline's stages read.
func NewSource(s *Stream, metas []string) *Source { return &Source{stream: s, metas: metas} }

// Next implements agg.Source.
func (s *Source) Next(ctx context.Context) (agg.Doc, bool, error) {
	doc, ok, err := s.stream.NextDoc(command.FromContext(ctx))
	d := agg.Doc{Raw: doc}
	if ok && s.stream.q.hasText() {
		d.Meta = &agg.Meta{TextScore: s.stream.q.textScore(doc)}
	}
	if ok && len(s.metas) > 0 {
		if d.Meta == nil {
			d.Meta = &agg.Meta{}
		}
		if err := s.stream.metadata(s.metas); err != nil {
			return d, false, err
		}
		m := s.stream.meta
		d.Meta.RecordID, d.Meta.IndexKey, d.Meta.SortKey = m.RecordID.Clone(), m.IndexKey.Clone(), m.SortKey.Clone()
	}
	return d, ok, err
}

// Close implements agg.Source.
func (s *Source) Close() { s.stream.Close() }

// Pause releases the store between two batches.
func (s *Source) Pause() { s.stream.Stop() }
