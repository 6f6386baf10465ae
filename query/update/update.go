package update

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Options are what an update statement says besides its update document.
type Options struct {
	ArrayFilters []value.Value  // the statement's arrayFilters, nil where it has none
	Collator     value.Collator // orders strings in $pull, $addToSet, $min, $max and array filters
	Upsert       bool           // the statement may insert
	Multi        bool           // multi: true refuses replacement documents
}

// Update is a compiled update, safe for use by several goroutines.
type Update struct {
}

// Context is what one application of an update works on.
type Context struct {
	Doc         []byte // the document as it stands
	Positional  int    // the array index that the filter matched, for the positional operator $; -1 where none
	Insert      bool   // the document is being made by an upsert: $setOnInsert applies, _id may be set
	NowMS       int64  // for $currentDate
	ClusterTime uint64 // for $currentDate: {$type: "timestamp"}
	Buf         []byte // the new document is appended to Buf[:0] where it has room
}

// Compile checks and compiles an update: a document of operators, a replacement document or a pipeline.
func Compile(u value.Value, opts Options) (*Update, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "update")
}

// Apply gives the document that the update makes of ctx.Doc; changed is false where that is the same.
func (u *Update) Apply(ctx *Context) (doc []byte, changed bool, err error) {
	return nil, false, mongoerr.New(mongoerr.NotImplemented, "update")
}

// NewUpsertDocument makes the document that an upsert inserts: the equalities of the filter, then the update. newID
// gives the _id where neither holds one.
func (u *Update) NewUpsertDocument(filter []byte, ctx *Context, newID func() value.Value) ([]byte, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "update")
}

// IsReplacement is true for a replacement document.
func (u *Update) IsReplacement() bool { return false }

// IsPipeline is true for an update pipeline.
func (u *Update) IsPipeline() bool { return false }

// NeedsPositional is true where a path holds the positional operator $, so that the filter must say which element matched.
func (u *Update) NeedsPositional() bool { return false }

// MayTouch reports whether the update may change what stands at path (dotted), below it or above it.
func (u *Update) MayTouch(path string) bool { return true }

// Diff states the change from old to new as an oplog delta ({u: …, i: …, d: …, s<field>: …}); ok is false where a delta
// would be no smaller than the new document, and a replacement should be logged instead.
func Diff(old, new []byte) (diff []byte, ok bool) { return nil, false }

// ApplyDiff applies a delta made by Diff.
func ApplyDiff(doc, diff []byte) ([]byte, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "update")
}
