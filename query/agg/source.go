package agg

import (
	"context"

	"github.com/shoaldb/shoal/query/value"
)

// Source gives documents one at a time. ok is false at the end. The document is valid until the next call.
type Source interface {
	Next(ctx context.Context) (doc Doc, ok bool, err error)
	Close()
}

// Doc is a raw document on its way through a pipeline, and what travels with it outside its fields.
type Doc struct {
	Raw  []byte
	Meta *Meta // nil where nothing travels with it
}

// Meta is a document's metadata, read by {$meta: …}. Missing values are not set.
type Meta struct {
	SortKey     value.Value
	TextScore   value.Value
	RecordID    value.Value
	GeoDistance value.Value
	GeoPoint    value.Value
	RandVal     value.Value
	IndexKey    value.Value
}
