package router

import (
	"context"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// aggCommand is an aggregate as the router plans it.
type aggCommand struct {
	ns       string
	pipeline value.Value
	body     []byte // the command, with its pipeline
	foreign  []string
	writes   []string
	as       string // the view that the client named, "" for none
	stages   int    // the number of leading stages that are that view's
	here     bool   // a stage must run on the router although the placement does not show it
}

// shown returns the namespace that the client sees in the cursor.
func (a *aggCommand) shown() string {
	if a.as != "" {
		return a.as
	}
	return a.ns
}

// aggregate implements the command.
func (r *Router) aggregate(op *command.Op, dst []byte) ([]byte, error) {
	coll := "$cmd.aggregate"
	if op.Req.Cmd.T == value.String {
		var err error
		if coll, err = op.Req.Coll(); err != nil {
			return r.relayAny(op, dst)
		}
	} else if n, ok := op.Req.Cmd.AsInt64(); !ok || n != 1 {
		return r.relayAny(op, dst)
	}
	if err := checkMemberFields(op.Req.Shared); err != nil {
		return dst, err
	}
	return r.atSnapshot(op, dst, func(dst []byte) ([]byte, error) { return r.aggregateIn(op, coll, dst) })
}

// checkMemberFields refuses in an aggregate the fields that a router sends to shards: with them a shard would
// treat a client's pipeline as a part of one that the router has checked as a whole.
func checkMemberFields(arg func(name string) value.Value) error {
	for _, name := range []string{"needsMerge", "fromRouter", "fromMongos"} {
		if arg(name).Truthy() {
			return mongoerr.Newf(51089, "Internal parameter(s) [%s] cannot be set to 'true' when sent to mongos", name)
		}
	}
	if !arg("exchange").IsNullish() {
		return mongoerr.New(51028, "Cannot specify exchange option to a mongos")
	}
	return nil
}

func (r *Router) aggregateIn(op *command.Op, coll string, dst []byte) ([]byte, error) {
	a := &aggCommand{ns: op.Req.NS(coll), pipeline: op.Arg("pipeline"), body: op.Req.Body}
	op.Stats.NS, op.Stats.Type = a.ns, "command"
	if coll == "$cmd.aggregate" {
		src, ok, err := r.selfStage(op, a.pipeline)
		if err != nil {
			return dst, err
		}
		if ok {
			return r.aggregateSelf(op, a, src, dst)
		}
	}
	if watchesChanges(a.pipeline) && !op.Bool("explain") {
		return r.openWatch(op, a, dst)
	}
	if err := r.statsOfSeries(op, a); err != nil {
		return dst, err
	}
	if asksMembers(a.pipeline) && !op.Bool("explain") {
		return r.aggregateMembers(op, a, dst)
	}
	a.scan(a.pipeline, op.DB())
	if len(a.writes) > 0 {
		op.Req.ReadPreference = nil
	}
	if err := a.checkWriting(op); err != nil {
		return dst, err
	}
	return r.runAggregate(op, a, dst)
}

func (r *Router) runAggregate(op *command.Op, a *aggCommand, dst []byte) ([]byte, error) {
	from := len(dst)
	if err := r.prepareWrites(op, a); err != nil {
		return dst, err
	}
	err := r.routed(op, a.ns, len(a.writes) > 0, func(info *cluster.CollectionInfo) error {
		var err error
		dst, err = r.aggregateOn(op, a, info, dst[:from])
		return err
	})
	if mongoerr.CodeOf(err) == mongoerr.CommandOnShardedViewNotSupportedOnMongod {
		if !a.here && r.noteForeign(err) {
			a.here = true
			return r.runAggregate(op, a, dst[:from])
		}
		view, verr := resolvedView(err)
		if verr != nil {
			return dst, verr
		}
		extra := rebuildElements(op.Req.Body, map[string]bool{"aggregate": true, "pipeline": true, "$db": true})
		return r.aggregateOnView(op, view, value.Values(a.pipeline.Doc()), extra, dst[:from])
	}
	return dst, err
}

// noteForeign reports whether a shard has refused a pipeline because a stage reads a sharded collection: the router's
// placement of that collection is out of date.
func (r *Router) noteForeign(err error) bool {
	if mongoerr.CodeOf(err) != mongoerr.CommandOnShardedViewNotSupportedOnMongod {
		return false
	}
	ns := value.Lookup(mongoerr.From(err).Details, "shardedForeign")
	if ns.T != value.String {
		return false
	}
	r.Catalog.InvalidateCollection(ns.Str())
	return true
}

// scan finds the namespaces that stages read or write besides the pipeline's own. A pipeline that is malformed is
// left to the shard, which reports the error.
func (a *aggCommand) scan(pipeline value.Value, db string) {
	if pipeline.T != value.Array {
		return
	}
	for it := value.Walk(pipeline.Doc()); ; {
		_, st, ok := it.Next()
		if !ok {
			return
		}
		if st.T == value.Document {
			in := value.Walk(st.Doc())
			if k, spec, ok := in.Next(); ok {
				a.scanStage(string(k), spec, db)
			}
		}
	}
}

func (a *aggCommand) scanStage(name string, spec value.Value, db string) {
	switch name {
	case "$lookup", "$graphLookup":
		if f := value.Lookup(spec.Doc(), "from"); f.T == value.String {
			a.foreign = append(a.foreign, db+"."+f.Str())
		} else if f.T == value.Document {
			a.foreign = append(a.foreign, value.Lookup(f.Doc(), "db").Str()+"."+value.Lookup(f.Doc(), "coll").Str())
		}
		a.scan(value.Lookup(spec.Doc(), "pipeline"), db)
	case "$unionWith":
		if spec.T == value.String {
			a.foreign = append(a.foreign, db+"."+spec.Str())
			return
		}
		if c := value.Lookup(spec.Doc(), "coll"); c.T == value.String {
			a.foreign = append(a.foreign, db+"."+c.Str())
		}
		a.scan(value.Lookup(spec.Doc(), "pipeline"), db)
	case "$facet":
		for it := value.Walk(spec.Doc()); ; {
			_, sub, ok := it.Next()
			if !ok {
				return
			}
			a.scan(sub, db)
		}
	case "$rankFusion", "$scoreFusion":
		a.foreign = append(a.foreign, a.ns) // it reads the collection several times
	case "$out":
		a.addWrite(spec, db)
	case "$merge":
		if spec.T == value.Document {
			spec = value.Lookup(spec.Doc(), "into")
		}
		a.addWrite(spec, db)
	}
}

func (a *aggCommand) addWrite(to value.Value, db string) {
	switch to.T {
	case value.String:
		a.writes = append(a.writes, db+"."+to.Str())
	case value.Document:
		d, c := value.Lookup(to.Doc(), "db"), value.Lookup(to.Doc(), "coll")
		if d.T == value.String {
			db = d.Str()
		}
		if c.T == value.String {
			a.writes = append(a.writes, db+"."+c.Str())
		}
	}
}

// prepareWrites creates the databases that $out and $merge write to.
func (r *Router) prepareWrites(op *command.Op, a *aggCommand) error {
	if len(a.writes) > 0 {
		scope, err := r.newScope(op, nil)
		if err != nil {
			return err
		}
		db, coll := cluster.SplitNS(a.ns)
		opts := &agg.Options{NS: agg.Namespace{DB: db, Coll: coll}, Host: &aggHost{r: r}, Scope: scope, ViewStages: a.stages}
		if _, err := agg.Parse(a.pipeline, opts); err != nil {
			return err
		}
	}
	for _, ns := range a.writes {
		if err := checkWritable(op, ns); err != nil {
			return err
		}
		if _, err := r.collectionForWrite(op, ns); err != nil && mongoerr.CodeOf(err) != mongoerr.InvalidNamespace {
			return err
		}
	}
	return nil
}

// local reports whether a shard can run the whole pipeline: all other namespaces are on it because it is the primary of their databases.
func (r *Router) local(op *command.Op, a *aggCommand, shard string) bool {
	at := readsAt(op)
	return r.allOn(op, a.foreign, at, shard) && r.allOn(op, a.writes, 0, shard)
}

// allOn reports whether a shard has several collections at a cluster time because it is the primary of their databases.
func (r *Router) allOn(op *command.Op, names []string, at uint64, shard string) bool {
	for _, ns := range names {
		info, err := r.Catalog.CollectionAt(op, ns, at)
		switch {
		case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound: // a database that does not exist is empty everywhere
		case err != nil || info.Map != nil || info.DB.Primary != shard:
			return false
		}
	}
	return true
}

func (r *Router) aggregateOn(op *command.Op, a *aggCommand, info *cluster.CollectionInfo, dst []byte) ([]byte, error) {
	filter := leadingMatch(a.pipeline)
	if filter == nil && a.stages > 0 {
		filter = unpackedMatch(a.pipeline)
	}
	shards, err := target(info, filter, collatedBy(info, value.LookupDoc(a.body, "collation")))
	if err != nil {
		return dst, err
	}
	r.targets.note(op.Req.Spec.Name, info, len(shards))
	if op.Req.Shared("explain").Truthy() && (info.Sharded() || a.here || !r.wholeOn(op, a.ns, a.body, shards)) {
		inner := rebuild(a.body, map[string]bool{"explain": true, "$db": true, "lsid": true, "$clusterTime": true, "readConcern": true}, nil)
		return r.explainSplit(op, info, shards, inner, value.NewString("queryPlanner"), dst)
	}
	if len(shards) == 1 && !a.here && !a.storesDocuments() && (len(a.foreign)+len(a.writes) == 0 || r.local(op, a, shards[0])) {
		from := len(dst)
		if plain, err := r.writesToPlain(op, a); err != nil {
			return dst, err
		} else if plain {
			return r.aggregateWriting(op, a, info, shards[0], dst)
		}
		out, at, err := r.relayAt(op, shards[0], a.body, info.Suffix(shards[0]), dst)
		switch {
		case err != nil:
		case a.as != "":
			out = r.adoptAs(op, at, a.as, out, from)
		default:
			r.adopt(op, at, out, from)
		}
		return out, err
	}
	return r.aggregateMerged(op, a, info, shards, dst)
}

// storesDocuments reports whether a pipeline writes documents of its own: there is nothing for a shard to run.
func (a *aggCommand) storesDocuments() bool {
	if len(a.writes) == 0 {
		return false
	}
	it := value.Walk(a.pipeline.Doc())
	_, first, _ := it.Next()
	return first.T == value.Document && !value.Lookup(first.Doc(), "$documents").IsMissing()
}

// leadingMatch returns the filter of a pipeline's first stage, nil if that is not a $match.
func leadingMatch(pipeline value.Value) []byte {
	it := value.Walk(pipeline.Doc())
	_, st, ok := it.Next()
	if !ok || st.T != value.Document {
		return nil
	}
	if m := value.Lookup(st.Doc(), "$match"); m.T == value.Document {
		return m.Doc()
	}
	return nil
}

// aggregateMerged runs the pipeline's shard part on the shards and its merge part here.
func (r *Router) aggregateMerged(op *command.Op, a *aggCommand, info *cluster.CollectionInfo, shards []string, dst []byte) ([]byte, error) {
	spec, err := r.pipelineCollation(op, a.body, info)
	if err != nil {
		return dst, err
	}
	size, err := cursorSize(a.body)
	if err != nil {
		return dst, err
	}
	db, coll := cluster.SplitNS(a.ns)
	host := &aggHost{r: r, collation: spec}
	scope, err := r.newScope(op, spec)
	if err != nil {
		return dst, err
	}
	opts := &agg.Options{
		NS: agg.Namespace{DB: db, Coll: coll}, Host: host, Collator: spec.Collator(), Collation: explicit(spec),
		AllowDiskUse: r.mayUseDisk(op), StageMemory: r.Params.StageMemory, MaxStages: int(r.Params.Int("internalPipelineLengthLimit")),
		Scope:      scope,
		ViewStages: a.stages,
	}
	p, err := agg.Parse(a.pipeline, opts)
	if err != nil {
		return dst, err
	}
	p.Optimize()
	if p.Fuses() || p.StartsWithDocuments() {
		src, err := p.Run(nil)
		if err != nil {
			return dst, err
		}
		return r.openMerged(op, a.shown(), &mergeCursor{source: src}, size, false, dst)
	}
	split := p.Split()
	body := shardAggregate(a, split, scope.Env())
	remotes, err := r.openRemotes(op, shards, func(s string) []byte { return versioned(body, info, s) })
	if err != nil {
		return dst, err
	}
	c := &mergeCursor{remotes: remotes, extra: carried(op)}
	if split.MergeSort != nil {
		if c.sort, err = newSortKeys(split.MergeSort, spec.Collator()); err != nil {
			c.close(context.WithoutCancel(op), r)
			return dst, err
		}
	}
	if split.Merge != nil {
		src, err := split.Merge.Run(&mergeSource{c: c, r: r})
		if err != nil {
			c.close(context.WithoutCancel(op), r)
			return dst, err
		}
		c = &mergeCursor{source: src}
	}
	return r.openMerged(op, a.shown(), c, size, false, dst)
}

// mayUseDisk returns the value of allowDiskUse, or if that is missing (a count on a view has none) of the parameter
// allowDiskUseByDefault.
func (r *Router) mayUseDisk(op *command.Op) bool {
	v := op.Req.Shared("allowDiskUse")
	if v.IsMissing() {
		return r.Params.Bool("allowDiskUseByDefault")
	}
	return v.Truthy()
}

// newScope returns the variables for the router's part of a pipeline. Constants such as $$NOW, of this router or of an
// upstream one, are the same for all shards.
func (r *Router) newScope(op *command.Op, spec *collation.Spec) (*expr.Scope, error) {
	env := &expr.Env{NowMS: time.Now().UnixMilli(), ClusterTime: r.Clock.ClusterTime(), Collator: spec.Collator(), Work: op.Work(), UserRoles: op.UserRoles(), NoScripts: !r.Params.Bool("javascriptEnabled")}
	env.MaxPushBytes, env.MaxAddToSetBytes = r.Params.ListMemory()
	env.SetConstants(op.Req.Shared("runtimeConstants").Doc())
	scope := expr.NewScope(env)
	return scope, scope.DefineLet(op.Req.Shared("let").Doc())
}

// shardAggregate returns the command that the shards run.
func shardAggregate(a *aggCommand, split agg.Split, env *expr.Env) []byte {
	extra := value.Append(nil, "pipeline", split.Shard.Wire())
	extra = value.Append(extra, "fromRouter", value.NewBool(true))
	extra = value.Append(extra, "needsMerge", value.NewBool(true))
	extra = value.Append(extra, "cursor", value.NewDocument(value.Doc()))
	extra = value.Append(extra, "runtimeConstants", env.Constants())
	return rebuild(a.body, map[string]bool{"pipeline": true, "cursor": true, "$clusterTime": true, "runtimeConstants": true,
		"fromRouter": true, "needsMerge": true}, extra)
}

// mergeSource feeds the merge part of a pipeline from the shards' cursors.
type mergeSource struct {
	c *mergeCursor
	r *Router
}

// Next implements agg.Source.
func (s *mergeSource) Next(ctx context.Context) (agg.Doc, bool, error) {
	raw, ok, err := s.c.next(ctx)
	return agg.Doc{Raw: raw}, ok, err
}

// Close implements agg.Source.
func (s *mergeSource) Close() { s.c.close(context.Background(), s.r) }

// rebuildElements returns the elements of a command without the named ones.
func rebuildElements(body []byte, drop map[string]bool) []byte {
	var out []byte
	for it := value.Walk(body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return out
		}
		if !drop[string(k)] {
			out = append(out, raw...)
		}
	}
}

// viewDef is a view resolved to a collection, as reported in a shard's error.
type viewDef struct {
	ns        string
	pipeline  []value.Value
	collation []byte
}

// resolvedView reads the view from an error; it returns the error itself if that contains none.
func resolvedView(err error) (*viewDef, error) {
	v := value.Lookup(mongoerr.From(err).Details, "resolvedView")
	if v.T != value.Document {
		return nil, err
	}
	d := &viewDef{ns: value.Lookup(v.Doc(), "ns").Str(), pipeline: value.Values(value.Lookup(v.Doc(), "pipeline").Doc())}
	if c := value.Lookup(v.Doc(), "collation"); c.T == value.Document {
		d.collation = c.Doc()
	}
	return d, nil
}

// aggregateOnView runs stages on top of a view; extra has the other elements of the command.
func (r *Router) aggregateOnView(op *command.Op, view *viewDef, stages []value.Value, extra, dst []byte) ([]byte, error) {
	db, coll := cluster.SplitNS(view.ns)
	if kind := "view"; op.Query != nil {
		if strings.HasPrefix(coll, "system.buckets.") {
			kind = "timeseries"
		}
		op.Query.On(kind)
	}
	pipeline := value.NewArray(value.ArrayOf(append(append([]value.Value(nil), view.pipeline...), stages...)...))
	m := &msg.Aggregate{DB: db, On: value.NewString(coll), Pipeline: pipeline.Doc(), ViewStages: int64(len(view.pipeline))}
	if value.Lookup(op.Req.Body, "collation").IsMissing() {
		m.Collation = view.collation
	}
	a := &aggCommand{ns: view.ns, as: op.Stats.NS, stages: len(view.pipeline), pipeline: pipeline, body: msg.With(m, extra)}
	a.scan(pipeline, db)
	return r.runAggregate(op, a, dst)
}

// viewDocs runs stages on top of a view and returns all results.
func (r *Router) viewDocs(op *command.Op, view *viewDef, stages []value.Value) ([][]byte, error) {
	extra := value.Append(nil, "cursor", value.NewDocument(value.Doc(value.F("batchSize", value.NewInt64(1<<31-1)))))
	for _, f := range []string{"hint", "collation", "comment", "maxTimeMS", "readConcern", querySettingsField} {
		extra = value.Append(extra, f, value.Lookup(op.Req.Body, f))
	}
	dst, mark := value.Begin(nil)
	out, err := r.aggregateOnView(op, view, stages, extra, dst)
	if err != nil {
		return nil, err
	}
	reply := value.End(out, mark)
	var docs [][]byte
	for _, v := range value.Values(value.Lookup(value.Lookup(reply, "cursor").Doc(), "firstBatch").Doc()) {
		docs = append(docs, v.Doc())
	}
	return docs, nil
}
