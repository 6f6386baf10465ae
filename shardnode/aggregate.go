package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func aggregateSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "aggregate", Roles: command.All, Kind: command.Read, Namespace: true, ArgTypes: command.TString | command.TNumber,
		ReadConcern: true, WriteConcern: true, Txn: true, API: true, Run: n.runAggregate,
		Fields: []command.Field{
			{Name: "pipeline", Types: command.TArray, Required: true, NotNull: true, Refusal: "A pipeline must be an array of objects"},
			{Name: "cursor", Types: command.TObject, NotNull: true, Refusal: "cursor field must be missing or an object"}, command.Strict("explain", command.TBool),
			command.Strict("allowDiskUse", command.TBool), command.Opt("bypassDocumentValidation", command.TSafeBool),
			command.Opt("collation", command.TObject), command.Opt("hint", command.TAny),
			command.Opt("let", command.TObject), command.Opt("fromMongos", command.TSafeBool), command.Opt("fromRouter", command.TSafeBool),
			command.Opt("needsMerge", command.TSafeBool), command.Opt("exchange", command.TObject),
			command.Opt("runtimeConstants", command.TObject), command.Opt("collectionUUID", command.TOther),
			command.Opt("isMapReduceCommand", command.TSafeBool), command.Opt("viewStages", command.TNumber), command.Opt("passthroughToShard", command.TObject),
			command.Opt("querySettings", command.TObject), command.Opt("encryptionInformation", command.TObject),
			command.Opt("includeQueryStatsMetrics", command.TSafeBool), command.Opt("isHybridSearch", command.TSafeBool),
		},
	}
}

// aggregation is an aggregate command in progress.
type aggregation struct {
	n          *Node
	op         *command.Op
	ns         string
	q          *exec.Query // the query that feeds the pipeline; nil if the pipeline produces its own documents
	snap       *storage.Snapshot
	pipeline   *agg.Pipeline
	host       *aggHost
	viewStages int  // the number of leading stages that come from views
	fromRouter bool // a router split the pipeline
	explain    bool
	readArgs
}

// aggregateArgs are the arguments of aggregate.
type aggregateArgs struct {
	readArgs
	ns         string
	pipeline   value.Value
	size       int64 // of the first batch
	viewStages int   // sent by a router: see aggregation
	fromRouter bool
	explain    bool
}

// readAggregate reads an aggregate command, whether it is to be run or explained.
func readAggregate(op *command.Op, ns string) *aggregateArgs {
	return &aggregateArgs{
		readArgs: readArgs{
			collation: op.Arg("collation"), hint: op.Arg("hint"), let: op.Req.Doc("let"), constants: op.Req.Doc("runtimeConstants"),
			allowDiskUse: op.Arg("allowDiskUse"),
		},
		ns: ns, pipeline: op.Arg("pipeline"), viewStages: int(op.Req.Int("viewStages", 0)), fromRouter: fromRouter(op),
		explain: op.Bool("explain"),
	}
}

// parseAggregate is readAggregate with the checks for an aggregate that is run.
func parseAggregate(op *command.Op, ns string) (a *aggregateArgs, err error) {
	a = readAggregate(op, ns)
	if a.size, err = cursorOption(op, a.explain); err != nil {
		return nil, err
	}
	if err := checkWritingPipeline(op, a.pipeline); err != nil {
		return nil, err
	}
	return a, nil
}

// over begins the aggregation on a snapshot.
func (a *aggregateArgs) over(n *Node, op *command.Op, s *storage.Snapshot) *aggregation {
	return &aggregation{n: n, op: op, ns: a.ns, snap: s, readArgs: a.readArgs, viewStages: a.viewStages, fromRouter: a.fromRouter}
}

func (n *Node) runAggregate(op *command.Op, dst []byte) ([]byte, error) {
	ns, err := aggregateNS(op)
	if err != nil {
		return dst, err
	}
	op.Stats.NS, op.Stats.Type = ns, "command"
	a, err := parseAggregate(op, ns)
	if err != nil {
		return dst, err
	}
	if a.explain {
		return n.explainOption(op, dst)
	}
	s, err := openRead(n, op, ns)
	if err != nil {
		return dst, err
	}
	if watches(a.pipeline) {
		return runChangeStream(n, op, dst, a, s)
	}
	c, err := a.open(n, op, s)
	if err != nil {
		s.Release()
		return dst, err
	}
	return n.firstBatch(op, dst, c, a.size, false)
}

func aggregateNS(op *command.Op) (string, error) {
	if v := op.Req.Cmd; v.T.Numeric() {
		if v.AsFloat64() != 1 {
			return "", mongoerr.New(mongoerr.BadValue, "Invalid command format: the 'aggregate' field must specify a collection name or 1")
		}
		return op.DB() + ".$cmd.aggregate", nil
	}
	coll, err := op.Req.Coll()
	return op.Req.NS(coll), err
}

// cursorOption reads the cursor argument, which is required unless the aggregate is explained.
func cursorOption(op *command.Op, explain bool) (size int64, err error) {
	cur := op.Arg("cursor")
	if cur.IsMissing() {
		if explain {
			return 101, nil
		}
		return 0, mongoerr.New(mongoerr.FailedToParse, "The 'cursor' option is required, except for aggregate with the explain argument")
	}
	size = 101
	for k, v := range value.Elements(cur.Doc()) {
		if k != "batchSize" {
			return 0, command.UnknownField("cursor." + k)
		}
		if v.T == value.Null {
			continue
		}
		if !v.T.Numeric() {
			return 0, command.WrongType("cursor.batchSize", v.T, command.TNumber)
		}
		if size = value.SafeInt64(v); size < 0 {
			return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field 'batchSize' value must be >= 0, actual value '%d'", size)
		}
	}
	return size, nil
}

// open builds the cursor of a pipeline over a snapshot, which the cursor then owns.
func (args *aggregateArgs) open(n *Node, op *command.Op, s *storage.Snapshot) (*cursor, error) {
	a, ns, pipeline := args.over(n, op, s), args.ns, args.pipeline
	var viewCollation []byte
	resolve := n.resolveFor
	if reportsOnView(pipeline) {
		resolve = n.readView // the report does not read the view's collection, wherever that is
	}
	r, err := resolve(op, s, ns)
	if err != nil {
		return nil, err
	}
	if op.Stats.CollType = "collection"; s.Catalog().Lookup(ns) == nil {
		op.Stats.CollType = r.CollType()
	}
	if namespace.IsBuckets(ns) {
		err = checkOnSeries(pipeline)
	} else if r != nil {
		err = viewAllowsPipeline(r, op, ns)
	}
	if err != nil {
		return nil, err
	}
	if r != nil && !reportsOnView(pipeline) {
		pipeline = value.NewArray(value.ArrayOf(append(append([]value.Value(nil), r.Pipeline...), value.Values(pipeline.Doc())...)...))
		a.ns, viewCollation, a.viewStages = r.NS, r.Collation, len(r.Pipeline)
	}
	src, err := a.open(pipeline, viewCollation)
	if err != nil {
		return nil, err
	}
	return &cursor{ns: ns, during: duringAggregate, stream: &aggStream{src: src}, snap: s}, nil
}

// viewAllowsPipeline refuses pipelines that a view does not support; a time series collection is a view, too.
func viewAllowsPipeline(r *namespace.Resolved, op *command.Op, ns string) error {
	switch {
	case op.Bool("isMapReduceCommand"):
		return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
	case r.Timeseries:
		return checkOnSeries(op.Arg("pipeline"))
	}
	return nil
}

// reportsOnView reports whether a pipeline's first stage is about the namespace itself, even if that is a view.
func reportsOnView(pipeline value.Value) bool {
	it := value.Walk(pipeline.Doc())
	_, first, _ := it.Next()
	return !value.Lookup(first.Doc(), "$collStats").IsMissing()
}

// open parses, optimises, plans and starts a pipeline.
func (a *aggregation) open(pipeline value.Value, defaultCollation []byte) (agg.Source, error) {
	rest, err := a.prepare(pipeline, defaultCollation)
	if err != nil {
		return nil, err
	}
	if a.q == nil {
		return rest.Run(nil)
	}
	stream, err := a.n.exec.Execute(a.op, a.q)
	if err != nil {
		return nil, err
	}
	return rest.Run(exec.NewSource(stream, a.pipeline.RecordMetas()))
}

// checkStages checks stages against the command's read concern.
func checkStages(op *command.Op, pipeline value.Value) error {
	if op.Req.ReadConcern == nil || pipeline.T != value.Array {
		return nil
	}
	level := op.Req.ReadConcern.Level
	for i, st := range value.Values(pipeline.Doc()) {
		it := value.Walk(st.Doc())
		k, _, _ := it.Next()
		name := string(k)
		if level == "" || level == "local" {
			continue
		}
		if i == 0 && agg.Has(name, agg.ServerMemory) && op.Req.ReadConcern.ByDefault {
			op.Req.ReadConcern = nil // the default applies only to stages that support it
			return nil
		}
		if i == 0 && agg.Has(name, agg.ServerMemory) || level == "linearizable" && (name == "$out" || name == "$merge") {
			return mongoerr.Newf(mongoerr.InvalidOptions, "Aggregation stage %s cannot run with a readConcern other than 'local', or in a multi-document transaction. "+
				"Current readConcern: %s", name, level)
		}
	}
	return nil
}

// checkExchange refuses cursors that several consumers share: they are not implemented.
func checkExchange(op *command.Op) error {
	if op.Req.Shared("exchange").IsNullish() {
		return nil
	}
	return mongoerr.New(mongoerr.NotImplemented, "aggregate's exchange is not implemented")
}

// fromRouter reports whether a pipeline is a shard's part of one that a router has split. The claim is ignored
// if the client is not a member of the cluster: otherwise its pipeline could refer to what a whole pipeline may
// not.
func fromRouter(op *command.Op) bool {
	return (op.Client.InProcess || op.Client.Internal) && (op.Req.Shared("fromMongos").Truthy() || op.Req.Shared("fromRouter").Truthy())
}

// prepare parses and optimises a pipeline and splits it into the query that the planner runs (nil if the
// pipeline produces its own documents) and the stages above it.
func (a *aggregation) prepare(pipeline value.Value, defaultCollation []byte) (rest *agg.Pipeline, err error) {
	coll := a.snap.Catalog().Lookup(a.ns)
	spec, err := a.n.metas.CollationOf(a.collation, coll)
	if err == nil && defaultCollation != nil && a.collation.IsMissing() {
		spec, err = collation.Parse(defaultCollation)
	}
	if err != nil {
		return nil, err
	}
	l, err := a.n.exec.NewLang(a.op, spec, a.let)
	if err != nil {
		return nil, err
	}
	limitLists(a.n.Params, l)
	l.Env.SetConstants(a.constants)
	if err := command.CheckHint(a.hint); err != nil {
		return nil, err
	}
	if err := checkExchange(a.op); err != nil {
		return nil, err
	}
	if err := checkStages(a.op, pipeline); err != nil {
		return nil, err
	}
	a.host = &aggHost{n: a.n, versioned: a.op.Req.ShardVersion != nil, snap: a.snap, lang: l}
	opts := &agg.Options{
		NS: namespaceOf(a.ns), Host: a.host, Collation: spec.Document(), Scope: l.Scope, Explain: a.explain,
		AllowDiskUse: mayUseDisk(a.n.Params, a.allowDiskUse), FromRouter: a.fromRouter,
		ViewStages: a.viewStages, MaxStages: maxStages(a.n.Params, a.fromRouter), StageMemory: a.n.stageMemory, Lone: a.n.lone(),
	}
	if a.pipeline, err = agg.Parse(pipeline, opts); err != nil {
		return nil, err
	}
	from, _ := a.pipeline.Namespaces()
	if err := a.n.checkForeignViews(a.snap, from, spec); err != nil {
		return nil, err
	}
	if err := a.host.bindAll(a.op, from, opts); err != nil {
		return nil, err
	}
	plain := a.n.Points != nil && a.n.Points.On("disablePipelineOptimization")
	if !plain {
		a.pipeline.Optimize()
	}
	if a.pipeline.GeoNear() != nil && a.hint.T == value.Document && !value.Lookup(a.hint.Doc(), "$natural").IsMissing() {
		return nil, mongoerr.New(mongoerr.BadValue, "$geoNear is not allowed with a $natural hint")
	}
	if near := a.pipeline.GeoNear(); near != nil && near.Key() == "" {
		path, err := exec.NearPath(a.ns, coll)
		if err != nil {
			return nil, err
		}
		near.SetKey(path)
	}
	if a.pipeline.GeneratesDocuments() {
		return a.pipeline, nil
	}
	down := a.pipeline.Pushdown()
	if plain && a.pipeline.GeoNear() == nil && !a.pipeline.StartsWithText() {
		down = agg.Pushdown{Rest: a.pipeline}
	}
	a.q = &exec.Query{NS: a.ns, Coll: coll, Snap: a.snap, Collation: spec, Scope: l.Scope, Filter: down.Filter, Sort: down.Sort, Skip: down.Skip, Limit: down.Limit, Hint: a.hint, AllowDiskUse: opts.AllowDiskUse}
	if err := a.n.bindMetadata(a.op, a.q); err != nil {
		return nil, err
	}
	a.q.Fields, a.q.Distinct = down.Fields, down.Distinct
	return down.Rest, a.q.Compile(nil)
}

// aggStream passes a pipeline's documents to a cursor.
type aggStream struct {
	src agg.Source
}

func (s *aggStream) NextDoc(op *command.Op) ([]byte, bool, error) {
	d, ok, err := s.src.Next(op)
	return d.Raw, ok, err
}

func (s *aggStream) Stop() {
	if p, ok := s.src.(interface{ Pause() }); ok {
		p.Pause()
	}
}

func (s *aggStream) Close() { s.src.Close() }

// aggregateOne runs a pipeline for a command other than aggregate, and returns its last result; nil for none.
func aggregateOne(a *aggregation, stages []value.Value, defaultCollation []byte) (doc []byte, err error) {
	src, err := a.open(value.NewArray(value.ArrayOf(stages...)), defaultCollation)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	for {
		d, ok, err := src.Next(a.op)
		if err != nil || !ok {
			return doc, err
		}
		doc = append(doc[:0], d.Raw...)
	}
}
