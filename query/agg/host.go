package agg

import (
	"context"
	"io"

	"github.com/shoaldb/shoal/query/value"
)

// Namespace is a database and a collection.
type Namespace struct{ DB, Coll string }

func (n Namespace) String() string { return n.DB + "." + n.Coll }

// Query is the part of a pipeline that a host runs below it, with indexes where it can.
type Query struct {
	Filter []byte   // a filter without variables; nil for all
	Sort   []byte   // a sort specification; nil for none
	Skip   int64    // 0 for none
	Limit  int64    // 0 for none
	Fields []string // the top-level fields that are read above, sorted; nil for the whole document
	// Distinct is set where only the different values of this path are wanted; a document for each, at the least.
	Distinct string
	// Collation is the collation document that the query runs under; nil for binary order.
	Collation []byte
}

// Host is what stages ask of the server that runs them. A host belongs to one operation.
type Host interface {
	// Resolve follows a view to the collection below it; pipeline is what the view puts before, nil for a collection.
	Resolve(ctx context.Context, ns Namespace) (on Namespace, pipeline []value.Value, err error)
	// Find opens a cursor on a collection (never a view): for $lookup, $graphLookup, $unionWith and $merge.
	Find(ctx context.Context, ns Namespace, q Query) (Source, error)
	// Info gives the documents of a stage that reports on the server: $collStats, $indexStats, $currentOp,
	// $listSessions, $planCacheStats, …: stage is its name, spec its argument.
	Info(ctx context.Context, ns Namespace, stage string, spec value.Value) (Source, error)
	// Writer opens the target of $out or $merge.
	Writer(ctx context.Context, w WriteSpec) (Writer, error)
	// Spill gives temporary files for stages that outgrow their memory; nil if the operation may not spill.
	Spill() Spiller
}

// NearFinder is a Host that knows the path of the places that a $geoNear without a key is about.
type NearFinder interface {
	NearPath(ns Namespace) (string, error)
}

// HeadRunner is a Host over several nodes. A $geoNear, or a $match with $text, is asked of them as a pipeline of its own:
// a query would lose the distances and scores, and the order.
type HeadRunner interface {
	// RunHead runs the shards' part of a first stage on a collection (never a view) and merges what they give.
	RunHead(ctx context.Context, ns Namespace, head Split) (Source, error)
}

// Spiller makes temporary files.
type Spiller interface {
	Create() (SpillFile, error)
}

// SpillFile is written once, then read from the start as often as asked.
type SpillFile interface {
	io.Writer
	Reader() (io.ReadCloser, error)
	Close() error
}

// WriteSpec is the target of $out or $merge as parsed.
type WriteSpec struct {
	Stage          string // "$out" or "$merge"
	NS             Namespace
	TimeSeries     []byte        // $out's timeseries options, nil without
	On             []string      // $merge's identifying fields
	DefaultOn      bool          // On was not given: it is _id, and for a sharded target the shard key with it
	WhenMatched    string        // replace, keepExisting, merge, fail, pipeline
	WhenNotMatched string        // insert, discard, fail
	Pipeline       []value.Value // for whenMatched: [pipeline]
	Let            value.Value   // its variables, new among them, by name; Missing without a pipeline
}

// Writer takes the documents of $out or $merge. Nothing of $out is visible before Commit.
type Writer interface {
	// Write takes one document; let holds the values of WriteSpec.Let's variables in their order (Missing ones are
	// undefined). Both are valid during the call only.
	Write(ctx context.Context, doc []byte, let []value.Value) error
	Commit(ctx context.Context) error
	Abort(ctx context.Context)
}
