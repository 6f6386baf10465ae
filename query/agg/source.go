package agg

import (
	"context"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
)

// Source yields documents one at a time. ok is false at the end. A document is valid until the next call.
type Source interface {
	Next(ctx context.Context) (doc Doc, ok bool, err error)
	Close()
}

// watched ends a stage's output when the operation has to stop.
type watched struct {
	Source
	frame *expr.Frame
}

func (w *watched) Next(ctx context.Context) (Doc, bool, error) {
	if err := w.frame.Check(); err != nil {
		return Doc{}, false, err
	}
	return w.Source.Next(ctx)
}

// Doc is a raw document in a pipeline, with its metadata.
type Doc struct {
	Raw  []byte
	Meta *Meta // nil if there is none
}

// Meta is a document's metadata, read by {$meta: …}. Kinds that are not set are Missing.
type Meta struct {
	SortKey     value.Value
	TextScore   value.Value
	RecordID    value.Value
	GeoDistance value.Value
	GeoPoint    value.Value
	RandVal     value.Value
	IndexKey    value.Value
	SearchScore value.Value

	Score, ScoreDetails value.Value
}

// Meta returns one kind of metadata, by its name in the language. It implements expr.Metadata.
func (m *Meta) Meta(kind string) value.Value {
	if m == nil {
		return value.Value{}
	}
	switch kind {
	case "textScore":
		return m.TextScore
	case "sortKey":
		return m.SortKey
	case "recordId":
		return m.RecordID
	case "geoNearDistance":
		return m.GeoDistance
	case "geoNearPoint":
		return m.GeoPoint
	case "randVal":
		return m.RandVal
	case "indexKey":
		return m.IndexKey
	case "searchScore":
		return m.SearchScore
	case "score":
		switch {
		case m.Score.T != value.Missing:
			return m.Score
		case m.TextScore.T != value.Missing:
			return m.TextScore
		}
		return m.GeoDistance
	case "scoreDetails":
		return m.ScoreDetails
	}
	return value.Value{}
}

// withSortKey returns the metadata with a document's sort key: a list of its parts.
func (m *Meta) withSortKey(key []value.Value) *Meta {
	out := &Meta{}
	if m != nil {
		*out = *m
	}
	parts := make([]value.Value, len(key))
	for i, v := range key {
		if parts[i] = v; v.T == value.Missing {
			parts[i] = value.NewNull()
		}
	}
	out.SortKey = value.NewArray(value.ArrayOf(parts...))
	return out
}

// clone copies a document so that it outlives the next call of Next.
func (d Doc) clone() Doc {
	return Doc{Raw: append(make([]byte, 0, len(d.Raw)), d.Raw...), Meta: d.Meta}
}

// sliceSource yields documents that are in memory.
type sliceSource struct{ docs []Doc }

// NewSliceSource returns a Source of documents in memory.
func NewSliceSource(docs [][]byte) Source {
	s := &sliceSource{docs: make([]Doc, len(docs))}
	for i, d := range docs {
		s.docs[i].Raw = d
	}
	return s
}

func (s *sliceSource) Next(context.Context) (Doc, bool, error) {
	if len(s.docs) == 0 {
		return Doc{}, false, nil
	}
	d := s.docs[0]
	s.docs = s.docs[1:]
	return d, true, nil
}

func (s *sliceSource) Close() {}

// Drain reads a source to its end and closes it; the documents are copies.
func Drain(ctx context.Context, src Source) ([][]byte, error) {
	defer src.Close()
	var out [][]byte
	for {
		d, ok, err := src.Next(ctx)
		if err != nil || !ok {
			return out, err
		}
		out = append(out, append([]byte(nil), d.Raw...))
	}
}
