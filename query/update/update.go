package update

import (
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Options are the other settings of an update statement.
type Options struct {
	ArrayFilters []value.Value  // the statement's arrayFilters
	HasFilters   bool           // arrayFilters was given, if only as an empty array
	Collator     value.Collator // orders strings in $pull, $addToSet, $min, $max and array filters
	Scope        *expr.Scope    // variables of update pipelines (let, c); nil for none
	Upsert       bool           // the statement may insert
	Multi        bool           // multi: true refuses replacement documents
}

type form uint8

const (
	operators form = iota
	replacement
	pipeline
)

// Update is a compiled update, safe for use by several goroutines.
type Update struct {
	form     form
	root     *node
	paths    []string // dotted paths of the operators, positional parts included
	position bool
	doc      []byte // the replacement
	stages   []pipelineStage
	scope    *expr.Scope
}

// Context is the input of one application of an update.
type Context struct {
	Doc         []byte      // the current document
	Positional  int         // the array index that the filter matched, for the positional operator $; -1 if none
	Insert      bool        // an upsert is making the document: $setOnInsert applies, _id may be set
	NowMS       int64       // for $currentDate
	ClusterTime uint64      // for $currentDate: {$type: "timestamp"}, and timestamps of zero in replacements
	Frame       *expr.Frame // of Options.Scope, reused between documents of an update pipeline; nil makes a new one
	Buf         []byte      // the new document is appended to Buf[:0]

	run    run                      // memory of the walk, kept from document to document
	forks  []*projection.Projection // of forkOf's stages
	forkOf *Update
}

// Compile checks and compiles an update: a document of operators, a replacement document or a pipeline.
func Compile(u value.Value, opts Options) (*Update, error) {
	switch u.T {
	case value.Array:
		return compilePipeline(u, opts)
	case value.Document:
	default:
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "Update argument must be either an object or an array")
	}
	it := value.Walk(u.Doc())
	if k, _, ok := it.Next(); ok && len(k) > 0 && k[0] == '$' {
		return compileOperators(u, opts)
	}
	return compileReplacement(u, opts)
}

// Apply returns the result of the update for ctx.Doc; changed is false if it is the same.
func (u *Update) Apply(ctx *Context) (doc []byte, changed bool, err error) {
	switch u.form {
	case replacement:
		doc, err = u.replace(ctx)
	case pipeline:
		doc, err = u.runPipeline(ctx)
	default:
		doc, err = u.applyOperators(ctx)
	}
	if err != nil {
		return nil, false, err
	}
	if u.form != replacement && string(doc) == string(ctx.Doc) {
		return doc, false, nil // a replacement counts as a change even if it is equal
	}
	if len(doc) > maxDocument {
		return nil, false, mongoerr.Newf(17419, "Resulting document after update is larger than %d", maxDocument)
	}
	return doc, true, nil
}

const maxDocument = 16 << 20

// IsReplacement reports whether the update is a replacement document.
func (u *Update) IsReplacement() bool { return u.form == replacement }

// IsPipeline reports whether the update is a pipeline.
func (u *Update) IsPipeline() bool { return u.form == pipeline }

// NeedsPositional reports whether a path has the positional operator $, so that the filter must determine
// which element matched.
func (u *Update) NeedsPositional() bool { return u.position }

// Paths returns the dotted paths that an operator update names, positional components included; nil if the update
// may touch every field.
func (u *Update) Paths() []string {
	if u.form != operators {
		return nil
	}
	return u.paths
}

// MayTouch reports whether the update may change the value at path (dotted, without array indexes), below or above it.
func (u *Update) MayTouch(path string) bool {
	if u.form != operators {
		return true
	}
	for _, p := range u.paths {
		if pathsMeet(p, path) {
			return true
		}
	}
	return false
}

// pathsMeet compares two dotted paths component by component; array indexes and positional components of the update's
// path have no counterpart in an index's path.
func pathsMeet(update, path string) bool {
	for update != "" && path != "" {
		head, rest := cutDot(update)
		if head[0] == '$' || value.IsIndex(head) {
			if own, _ := cutDot(path); own != head {
				update = rest
				continue
			}
		}
		own, more := cutDot(path)
		if own != head {
			return value.IsIndex(own) && pathsMeet(update, more)
		}
		update, path = rest, more
	}
	return true
}
