package agg

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Options are the other settings of an aggregate command.
type Options struct {
	NS           Namespace // the collection; Coll is "$cmd.aggregate" for a database-level aggregate
	Host         Host
	Scope        *expr.Scope    // environment, and the command's let variables as constants; nil for a plain one
	Collator     value.Collator // used if Scope is nil; otherwise the scope's environment has it
	Collation    []byte         // the collator's document, nil for binary order
	AllowDiskUse bool
	Explain      bool
	FromRouter   bool                     // the pipeline is a shard's part: its $group returns unfinished states
	InTxn        bool                     // in a transaction, which refuses $out, $merge and others
	InView       bool                     // the pipeline is being checked as a view's definition
	Lone         bool                     // on a standalone server, which has no change streams
	MemoryLimit  int64                    // bytes per blocking stage; 0 for StageMemory's
	StageMemory  func(stage string) int64 // bytes that a stage may hold; nil for 100 MB each
	MaxStages    int                      // how many stages a pipeline may have; 0 for 1000
	ViewStages   int                      // how many leading stages come from the definition of a view

	within place // set for sub-pipelines
	// unbound means that the variables of let have no values yet, so that what has to be constant cannot be evaluated.
	unbound bool
	facet   bool // the pipeline is within a $facet, at any depth
	depth   int
}

// place is the stage that contains a sub-pipeline.
type place uint8

const (
	topLevel place = iota
	inFacet
	inLookup
	inUnion
)

const (
	maxStages    = 1000
	maxNesting   = 20
	defaultLimit = 100 << 20
)

// DatabaseAggregate is the collection name of an aggregate on a database.
const DatabaseAggregate = "$cmd.aggregate"

func (o *Options) scope() *expr.Scope {
	if o.Scope == nil {
		o.Scope = expr.NewScope(&expr.Env{Collator: o.Collator})
	}
	return o.Scope
}

func (o *Options) limit() int64 {
	if o.MemoryLimit > 0 {
		return o.MemoryLimit
	}
	return defaultLimit
}

func (o *Options) collator() value.Collator { return o.scope().Env().Collator }

// Pipeline is a parsed pipeline.
type Pipeline struct {
	opts   *Options
	stages []Stage
	metas  []string // see RecordMetas
}

// Parse checks and compiles a pipeline (an array of stage documents).
func Parse(pipeline value.Value, opts *Options) (*Pipeline, error) {
	if pipeline.T != value.Array {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "'pipeline' option must be specified as an array")
	}
	return parseStages(value.Values(pipeline.Clone().Doc()), opts)
}

// ParseStages is Parse for a list of stages.
func ParseStages(stages []value.Value, opts *Options) (*Pipeline, error) {
	return parseStages(stages, opts)
}

func parseStages(specs []value.Value, opts *Options) (*Pipeline, error) {
	p := &Pipeline{opts: opts, metas: recordMetas(specs)}
	if limit := cmp.Or(opts.MaxStages, maxStages); len(specs) > limit {
		return nil, mongoerr.Newf(7749501, "Pipeline length must be no longer than %d stages", limit)
	}
	if opts.depth > maxNesting {
		return nil, mongoerr.Newf(mongoerr.MaxSubPipelineDepthExceeded, "Maximum number of nested sub-pipelines exceeded. Limit is %d", maxNesting)
	}
	rows := make([]*row, len(specs))
	names := make([]string, len(specs))
	args := make([]value.Value, len(specs))
	for i, s := range specs {
		var err error
		if names[i], args[i], err = splitStage(s, opts); err != nil {
			return nil, err
		}
		rows[i] = registry[names[i]]
		if rows[i] == nil || rows[i].split && !opts.FromRouter {
			return nil, mongoerr.Newf(40324, "Unrecognized pipeline stage name: '%s'", names[i])
		}
		if err := rows[i].allowed(names[i], opts); err != nil {
			return nil, err
		}
		stages, err := rows[i].parse(opts, args[i])
		if err != nil {
			return nil, err
		}
		if m, ok := stages[0].(*matchStage); ok && m.text && i > 0 {
			return nil, mongoerr.New(17313, "$match with $text is only allowed as the first pipeline stage")
		}
		p.stages = append(p.stages, stages...)
	}
	if err := checkPositions(names, rows, args, opts); err != nil {
		return nil, err
	}
	p.afterView(specs)
	if i := slices.Index(names, "$geoNear"); i > 0 {
		p.stages = p.stages[i:] // only empty $match stages may precede it
	}
	for i := 1; i < len(p.stages); i++ {
		l, isLookup := p.stages[i-1].(*lookupStage)
		u, isUnwind := p.stages[i].(*unwindStage)
		if isLookup && isUnwind && u.dotted == strings.Join(l.as, ".") {
			l.unwound = true
		}
	}
	if _, ok := p.ChangeStream(); ok {
		for _, s := range p.stages {
			if !allowedOnStream(s) {
				return nil, mongoerr.Newf(mongoerr.IllegalOperation, "%s is not permitted in a $changeStream pipeline", s.Name())
			}
		}
	}
	return p, p.checkMetadata()
}

func splitStage(s value.Value, opts *Options) (string, value.Value, error) {
	if s.T != value.Document {
		if opts.within == inFacet {
			return "", s, mongoerr.New(40171, "elements of arrays in $facet spec must be non-empty objects")
		}
		return "", s, mongoerr.New(mongoerr.TypeMismatch, "Each element of the 'pipeline' array must be an object")
	}
	it := value.Walk(s.Doc())
	k, v, ok := it.Next()
	if _, _, more := it.Next(); !ok || more {
		return "", s, mongoerr.New(40323, "A pipeline stage specification object must contain exactly one field.")
	}
	return string(k), v, nil
}

// onlyEmptyMatches reports whether all stages are empty $match stages.
func onlyEmptyMatches(names []string, args []value.Value) bool {
	for i, name := range names {
		if name != "$match" || value.Count(args[i].Doc()) > 0 {
			return false
		}
	}
	return true
}

// checkPositions applies the rules on the positions of stages.
func checkPositions(names []string, rows []*row, args []value.Value, opts *Options) error {
	if opts.NS.Coll == DatabaseAggregate && opts.within == topLevel {
		if len(rows) == 0 {
			return mongoerr.New(mongoerr.InvalidNamespace, "{aggregate: 1} is not valid for an empty pipeline.")
		}
		if !rows[0].database {
			return mongoerr.Newf(mongoerr.InvalidNamespace, "{aggregate: 1} is not valid for '%s'; a collection is required.", names[0])
		}
	}
	for i, r := range rows {
		switch {
		case r.hybrid && i > opts.ViewStages:
			return mongoerr.Newf(10170100, "%s can only be the first stage of a pipeline", names[i])
		case names[i] == "$geoNear" && !onlyEmptyMatches(names[:i], args):
			return mongoerr.New(40603, "$geoNear was not the first stage in the pipeline.")
		case r.first && i > opts.ViewStages, r.reports && opts.within == topLevel && !onlyUnpacks(names[:i]):
			return mongoerr.Newf(40602, "%s is only valid as the first stage in a pipeline.", names[i])
		case r.last && i < len(rows)-1:
			return mongoerr.Newf(40601, "%s can only be the final stage in the pipeline", names[i])
		}
	}
	return nil
}

// onlyUnpacks reports whether nothing but the unpacking of a time series' buckets precedes a stage, which then is on the collection itself.
func onlyUnpacks(before []string) bool {
	return len(before) == 0 || len(before) == 1 && before[0] == "$_internalUnpackBucket"
}

// StartsWithText reports whether the pipeline begins with a text search, or continues one that ran elsewhere.
func (p *Pipeline) StartsWithText() bool {
	if len(p.stages) == 0 {
		return p.opts.FromRouter
	}
	m, ok := p.stages[0].(*matchStage)
	return ok && m.text || p.opts.FromRouter
}

// checkMetadata refuses to sort by metadata that no earlier stage provides.
func (p *Pipeline) checkMetadata() error {
	scored := p.scored()
	for _, s := range p.stages {
		if err := p.checkScores(s, scored); err != nil {
			return err
		}
		if fields, ok := s.(*fieldsStage); ok && slices.Contains(fields.p.Metas(), "textScore") && !p.StartsWithText() {
			return mongoerr.New(40218, "query requires text score metadata, but it is not available")
		}
		sort, ok := s.(*sortStage)
		if !ok {
			continue
		}
		for _, part := range sort.pattern.Parts {
			first, isMatch := p.stages[0].(*matchStage)
			switch {
			case part.Meta == "textScore" && !(isMatch && first.text):
				return mongoerr.New(40218, "query requires text score metadata, but it is not available")
			case part.Meta == "score" && !scored.score:
				return mongoerr.New(40218, "query requires score metadata, but it is not available")
			case part.Meta == "geoNearDistance" && p.stages[0].Name() != "$geoNear":
				return mongoerr.New(40218, "query requires $geoNear distance metadata, but it is not available")
			}
		}
	}
	return nil
}

// scored returns which of score and scoreDetails the stages provide.
func (p *Pipeline) scored() (by struct{ score, details bool }) {
	by.score = p.opts.facet || p.StartsWithText() || p.GeoNear() != nil
	by.details = p.opts.facet || p.opts.FromRouter
	if fused := p.firstFusion(); fused != nil {
		by.score, by.details = true, by.details || fused.details
	}
	for _, s := range p.stages {
		if s, ok := s.(*scoreStage); ok {
			by.score, by.details = true, by.details || s.details
		}
	}
	return by
}

// checkScores refuses to read scores that no stage computes.
func (p *Pipeline) checkScores(s Stage, by struct{ score, details bool }) error {
	fields, ok := s.(*fieldsStage)
	if !ok {
		return nil
	}
	for _, kind := range fields.p.Metas() {
		if kind == "score" && !by.score || kind == "scoreDetails" && !by.details {
			return mongoerr.Newf(40218, "query requires %s metadata, but it is not available", kind)
		}
	}
	return nil
}

// RecordMetas returns the kinds of metadata that the pipeline reads from the records themselves.
func (p *Pipeline) RecordMetas() []string { return p.metas }

// recordMetas finds these kinds in an unparsed pipeline.
func recordMetas(specs []value.Value) (kinds []string) {
	for _, kind := range []string{"recordId", "indexKey", "sortKey"} {
		if slices.ContainsFunc(specs, func(s value.Value) bool { return readsMeta(s, kind) }) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// readsMeta looks for {$meta: kind} in a specification.
func readsMeta(v value.Value, kind string) bool {
	if v.T != value.Document && v.T != value.Array || !bytes.Contains(v.Doc(), []byte("$meta")) {
		return false
	}
	for k, e := range value.Elements(v.Doc()) {
		if k == "$meta" && e.T == value.String && e.Str() == kind || readsMeta(e, kind) {
			return true
		}
	}
	return false
}

// Stages returns the stages in order.
func (p *Pipeline) Stages() []Stage { return p.stages }

// Options returns the options the pipeline was parsed with.
func (p *Pipeline) Options() *Options { return p.opts }

// Empty reports whether the pipeline has no stages.
func (p *Pipeline) Empty() bool { return len(p.stages) == 0 }

// GeneratesDocuments reports whether the first stage makes its own documents and reads no collection
// ($documents, $collStats, …).
func (p *Pipeline) GeneratesDocuments() bool {
	if len(p.stages) == 0 {
		return false
	}
	_, ok := p.stages[0].(generator)
	return ok
}

// WritesTo returns the target of a last $out or $merge.
func (p *Pipeline) WritesTo() (WriteSpec, bool) {
	if len(p.stages) == 0 {
		return WriteSpec{}, false
	}
	w, ok := p.stages[len(p.stages)-1].(*writeStage)
	if !ok {
		return WriteSpec{}, false
	}
	return w.spec, true
}

// Run builds the iterators over src; src is nil if GeneratesDocuments. Closing the result closes src.
func (p *Pipeline) Run(src Source) (Source, error) {
	x := &exec{opts: p.opts, host: p.opts.Host, sortKeys: slices.Contains(p.metas, "sortKey")}
	inSlots := p.StoreGroups()
	for i, s := range p.stages {
		x.last, x.slot = i == len(p.stages)-1, i < inSlots
		next, err := s.open(x, src)
		if err != nil {
			if src != nil {
				src.Close()
			}
			return nil, err
		}
		src = next
		if Has(s.Name(), Slow) {
			src = &watched{Source: src, frame: x.frame()}
		}
	}
	if src == nil {
		return NewSliceSource(nil), nil
	}
	return src, nil
}

// Wire returns the stages as an array that Parse reads back, for a router to send to shards.
func (p *Pipeline) Wire() value.Value {
	var out []value.Value
	for _, s := range p.stages {
		out = append(out, doc(f(s.Name(), s.Spec())))
		if so, ok := s.(*sortStage); ok && so.limit > 0 {
			out = append(out, doc(f("$limit", value.NewInt64(so.limit))))
		}
	}
	return array(out...)
}

// Serialize returns the stages as an array in the form of explain.
func (p *Pipeline) Serialize() value.Value {
	out := make([]value.Value, len(p.stages))
	for i, s := range p.stages {
		if e, ok := s.(interface{ explain() value.Value }); ok {
			out[i] = e.explain()
		} else {
			out[i] = doc(f(s.Name(), s.Spec()))
		}
	}
	return array(out...)
}

// Namespaces returns the other collections that the pipeline reads or writes.
func (p *Pipeline) Namespaces() (reads, writes []Namespace) {
	for _, s := range p.stages {
		if n, ok := s.(foreign); ok {
			r, w := n.namespaces()
			reads, writes = append(reads, r...), append(writes, w...)
		}
	}
	return reads, writes
}
