package agg

import (
	"context"
	"io"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Namespace is a database and a collection.
type Namespace struct{ DB, Coll string }

func (n Namespace) String() string { return n.DB + "." + n.Coll }

// Query is the part of a pipeline that a host runs below it, with indexes if possible.
type Query struct {
	Filter []byte   // a filter without variables; nil for all
	Sort   []byte   // a sort specification; nil for none
	Skip   int64    // 0 for none
	Limit  int64    // 0 for none
	Fields []string // the top-level fields that the stages above read, sorted; nil for the whole document
	// Distinct is set if only the distinct values of this path are needed: at least one document for each.
	Distinct string
	// Collation is the collation document that the query runs under; nil for binary order.
	Collation []byte
}

// Host gives stages access to the server that runs them. A host belongs to one operation.
type Host interface {
	// Resolve resolves a view to the collection below it; pipeline has the view's stages, nil for a collection.
	Resolve(ctx context.Context, ns Namespace) (on Namespace, pipeline []value.Value, err error)
	// Find opens a cursor on a collection (never a view): for $lookup, $graphLookup, $unionWith and $merge.
	Find(ctx context.Context, ns Namespace, q Query) (Source, error)
	// Info returns the documents of a stage that reports on the server: $collStats, $indexStats, $currentOp,
	// $listSessions, $planCacheStats, …: stage is its name, spec its argument.
	Info(ctx context.Context, ns Namespace, stage string, spec value.Value) (Source, error)
	// Writer opens the target of $out or $merge.
	Writer(ctx context.Context, w WriteSpec) (Writer, error)
	// Spill returns temporary files for stages that exceed their memory; nil if the operation may not spill.
	Spill() Spiller
}

// NearFinder is a Host that finds the path of the locations for a $geoNear without a key.
type NearFinder interface {
	NearPath(ns Namespace) (string, error)
}

// HeadRunner is a Host over several nodes. A $geoNear, or a $match with $text, is sent to them as a pipeline of its own:
// a query would lose the distances and scores, and the order.
type HeadRunner interface {
	// RunHead runs the shards' part of a first stage on a collection (never a view) and merges the results.
	RunHead(ctx context.Context, ns Namespace, head Split) (Source, error)
}

// Spiller makes temporary files.
type Spiller interface {
	Create() (SpillFile, error)
}

// SpillFile is written once, then read from the start any number of times.
type SpillFile interface {
	io.Writer
	Reader() (io.ReadCloser, error)
	Close() error
}

// WriteSpec is the target of $out or $merge as parsed.
type WriteSpec struct {
	Stage          string // "$out" or "$merge"
	NS             Namespace
	TimeSeries     []byte        // $out's timeseries options, nil if none
	On             []string      // $merge's identifying fields
	DefaultOn      bool          // On was not given: it is _id and, for a sharded target, the shard key
	WhenMatched    string        // replace, keepExisting, merge, fail, pipeline
	WhenNotMatched string        // insert, discard, fail
	Pipeline       []value.Value // for whenMatched: [pipeline]
	Let            value.Value   // its variables by name, including new; Missing without a pipeline
}

// Interrupted returns the error of an $out whose temporary collection is gone. A new primary drops those that it finds (they are of commands that its predecessor has not finished), so the client is
// answered as if the command had met the change of primaries itself.
func (s *WriteSpec) Interrupted() error {
	return mongoerr.Newf(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted: the temporary collection of $out is gone, which a new primary drops; %s is unchanged", s.NS)
}

// Writer writes the documents of $out or $merge. Nothing of $out is visible before Commit.
type Writer interface {
	// Write writes one document; let has the values of WriteSpec.Let's variables in their order (Missing ones are
	// undefined). Both are valid only during the call.
	Write(ctx context.Context, doc []byte, let []value.Value) error
	Commit(ctx context.Context) error
	Abort(ctx context.Context)
}
