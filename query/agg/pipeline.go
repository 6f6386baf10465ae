package agg

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Options are what an aggregate command says besides its pipeline.
type Options struct {
	NS           Namespace // the collection; Coll is "$cmd.aggregate" for a database-level aggregate
	Host         Host
	Collator     value.Collator
	Collation    []byte // the document Collator was made of
	AllowDiskUse bool
	Explain      bool
	FromRouter   bool  // the pipeline is a shard's part
	InTxn        bool  // a transaction refuses $out, $merge and others
	MemoryLimit  int64 // bytes per blocking stage; 0 for 100 MB
}

// Pipeline is a parsed pipeline.
type Pipeline struct {
	opts *Options
}

// Parse checks and compiles a pipeline (an array of stage documents).
func Parse(pipeline value.Value, opts *Options) (*Pipeline, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "aggregation")
}

// Optimize rewrites the pipeline by the rules in their order.
func (p *Pipeline) Optimize() {}

// Pushdown is what the query planner below a pipeline can do for it.
type Pushdown struct {
	Query
	Filter value.Value
	Rest   *Pipeline // the stages that remain
	Count  bool      // Rest only counts documents
}

// Pushdown takes the leading stages that the planner can run.
func (p *Pipeline) Pushdown() Pushdown { return Pushdown{Rest: p} }

// GeneratesDocuments is true where the first stage makes its own documents and reads no collection ($documents, $collStats, …).
func (p *Pipeline) GeneratesDocuments() bool { return false }

// Run builds the iterators over src; src is nil where GeneratesDocuments. Closing the result closes src.
func (p *Pipeline) Run(src Source) (Source, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "aggregation")
}

// Split divides a pipeline between shards and the merger. Serialised forms are for the wire.
type Split struct {
	Shard     *Pipeline
	Merge     *Pipeline
	MergeSort []byte // the sort specification by which the shards' streams are merged, nil for any order
}

// Split divides the pipeline for a sharded collection.
func (p *Pipeline) Split() Split { return Split{Shard: p} }

// Namespaces are the other collections that the pipeline reads or writes.
func (p *Pipeline) Namespaces() (reads, writes []Namespace) { return nil, nil }

// Serialize gives the stages as an array, as explain prints them and as a router sends them.
func (p *Pipeline) Serialize() value.Value { return value.Value{} }
