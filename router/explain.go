package router

import (
	"strconv"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/shape"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/viewquery"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// explain runs explain: each shard explains its part, and the router adds how it would merge them.
func (r *Router) explain(op *command.Op, dst []byte) ([]byte, error) {
	inner := op.Req.Cmd
	if inner.T != value.Document {
		return r.relayAny(op, dst)
	}
	it := value.Walk(inner.Doc())
	name, arg, ok := it.Next()
	if !ok {
		return r.relayAny(op, dst)
	}
	if name := string(name); name == "aggregate" && !value.Lookup(inner.Doc(), "writeConcern").IsNullish() {
		return dst, mongoerr.New(mongoerr.FailedToParse, "Aggregation explain does not support the'writeConcern' option")
	}
	if string(name) == "aggregate" {
		if err := checkMemberFields(func(arg string) value.Value { return value.Lookup(inner.Doc(), arg) }); err != nil {
			return dst, err
		}
	}
	coll := "$cmd.aggregate"
	if arg.T == value.String {
		coll = arg.Str()
	}
	ns := op.Req.NS(coll)
	cmd := string(name)
	return r.routedOrView(op, ns, dst,
		func(op *command.Op, info *cluster.CollectionInfo, dst []byte) ([]byte, error) {
			return r.explainOn(op, info, cmd, inner.Doc(), dst)
		},
		func(op *command.Op, view *viewDef, dst []byte) ([]byte, error) {
			return r.explainView(op, view, cmd, inner.Doc(), dst)
		})
}

func (r *Router) explainOn(op *command.Op, info *cluster.CollectionInfo, cmd string, inner, dst []byte) ([]byte, error) {
	shards, err := explainTargets(info, cmd, inner)
	if err != nil {
		return dst, err
	}
	if len(shards) == 0 {
		return dst, mongoerr.Newf(mongoerr.CommandNotFound, "Explain failed due to unknown command: %s", cmd)
	}
	if cmd == "aggregate" && (info.Sharded() || !r.wholeOn(op, info.NS, inner, shards)) {
		return r.explainSplit(op, info, shards, inner, op.Arg("verbosity"), dst)
	}
	replies := r.scatter(op, shards, func(s string) ([]byte, []wire.Sequence) { return explainFor(op, info, s), op.Req.Msg.Seqs })
	if err := firstError(replies); cmd == "aggregate" && r.noteForeign(err) {
		return r.explainParts(op, info, shards, inner, op.Arg("verbosity"), dst)
	} else if err != nil {
		return dst, err
	}
	if cmd == "aggregate" {
		return append(dst, rebuildElements(replies[0].body, replyTrailer)...), nil
	}
	return r.explainFind(dst, op, info, inner, replies), nil
}

// explainView explains the aggregate that a command on a view translates to.
func (r *Router) explainView(op *command.Op, view *viewDef, cmd string, inner, dst []byte) ([]byte, error) {
	hint := value.Lookup(inner, "hint")
	skip, limit := value.SafeInt64(value.Lookup(inner, "skip")), value.SafeInt64(value.Lookup(inner, "limit"))
	var stages []value.Value
	switch cmd {
	case "aggregate":
		stages = value.Values(value.Lookup(inner, "pipeline").Doc())
	case "find":
		var err error
		if stages, hint, err = viewquery.Find(inner, skip, limit); err != nil {
			return dst, err
		}
	case "count":
		stages = viewquery.Count(inner, skip, limit)
	case "distinct":
		stages = viewquery.Distinct(inner)
	default:
		return dst, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", op.Req.NS(value.Lookup(inner, cmd).Str()))
	}
	pipeline := value.NewArray(value.ArrayOf(append(append([]value.Value(nil), view.pipeline...), stages...)...))
	_, coll := cluster.SplitNS(view.ns)
	one := value.Doc(value.F("aggregate", value.NewString(coll)), value.F("pipeline", pipeline), value.F("cursor", value.NewDocument(value.Doc())),
		value.F("hint", hint), value.F("let", value.Lookup(inner, "let")), value.F("collation", viewCollation(inner, view)),
		value.F(querySettingsField, value.Lookup(inner, querySettingsField)))
	from := len(dst)
	err := r.routed(op, view.ns, false, func(info *cluster.CollectionInfo) error {
		filter := leadingMatch(pipeline)
		if filter == nil {
			filter = unpackedMatch(pipeline)
		}
		shards, err := target(info, filter, collatedBy(info, view.collation))
		if err != nil {
			return err
		}
		dst, err = r.explainSplit(op, info, shards, one, op.Arg("verbosity"), dst[:from])
		return err
	})
	return dst, err
}

// viewCollation returns the collation of a command on a view: the command's own, which has to be the view's, or
// the view's; Missing for the binary one.
func viewCollation(body []byte, view *viewDef) value.Value {
	if c := value.Lookup(body, "collation"); c.T == value.Document || view.collation == nil {
		return c
	}
	return value.NewDocument(view.collation)
}

// wholeOn reports whether one shard runs an aggregate as a whole, as aggregateOn decides it: a pipeline that reads
// collections elsewhere is divided even if one shard has its own collection.
func (r *Router) wholeOn(op *command.Op, ns string, inner []byte, shards []string) bool {
	a := &aggCommand{ns: ns, pipeline: value.Lookup(inner, "pipeline")}
	a.scan(a.pipeline, op.DB())
	return len(shards) == 1 && r.local(op, a, shards[0])
}

// explainSplit explains an aggregate on a sharded collection, or one that reads such a collection: each shard
// explains its part of the pipeline.
func (r *Router) explainSplit(op *command.Op, info *cluster.CollectionInfo, shards []string, inner []byte, verbosity value.Value, dst []byte) ([]byte, error) {
	if !r.wholeOn(op, info.NS, inner, shards) {
		return r.explainParts(op, info, shards, inner, verbosity, dst)
	}
	replies := r.explainCommand(op, info, shards, inner, verbosity)
	if err := firstError(replies); r.noteForeign(err) {
		return r.explainParts(op, info, shards, inner, verbosity, dst)
	} else if err != nil {
		return dst, err
	}
	if !info.Sharded() {
		return append(dst, rebuildElements(replies[0].body, replyTrailer)...), nil
	}
	return appendShapeHash(r.appendSplit(dst, nil, replies), op), nil
}

// explainParts explains a pipeline that is divided between shards and this router.
func (r *Router) explainParts(op *command.Op, info *cluster.CollectionInfo, shards []string, inner []byte, verbosity value.Value, dst []byte) ([]byte, error) {
	p, err := r.parseExplained(op, info, inner)
	if err != nil {
		return dst, err
	}
	if p.StartsWithDocuments() {
		dst = value.Append(dst, "mongos", value.NewDocument(value.Doc(
			value.F("host", value.NewString(r.Service.Host)), value.F("stages", p.Serialize()))))
		return appendShapeHash(dst, op), nil
	}
	split := p.ExplainSplit()
	extra := value.Append(nil, "pipeline", split.Shard.Wire())
	inner = rebuild(inner, map[string]bool{"pipeline": true, "fromRouter": true, "needsMerge": true}, value.Append(value.Append(extra,
		"fromRouter", value.NewBool(true)), "needsMerge", value.NewBool(true)))
	replies := r.explainCommand(op, info, shards, inner, verbosity)
	if err := firstError(replies); err != nil {
		return dst, err
	}
	return appendShapeHash(r.appendSplit(dst, &split, replies), op), nil
}

func (r *Router) explainCommand(op *command.Op, info *cluster.CollectionInfo, shards []string, inner []byte, verbosity value.Value) []shardReply {
	body := msg.Doc(&msg.Explain{DB: op.DB(), Command: inner, Verbosity: verbosity})
	return r.scatter(op, shards, func(s string) ([]byte, []wire.Sequence) { return versioned(body, info, s), nil })
}

// appendShapeHash adds the queryShapeHash of the command as the client sent it: the shards were asked for parts of it.
func appendShapeHash(dst []byte, op *command.Op) []byte {
	body := op.Req.Body
	if op.Req.Cmd.T == value.Document {
		body = op.Req.Cmd.Doc() // of explain
	}
	if doc, ok := shape.Command(nil, op.DB(), body); ok {
		dst = value.Append(dst, "queryShapeHash", value.NewString(shape.Hash(doc)))
	}
	return dst
}

// parseExplained prepares a pipeline for division, as aggregateMerged does.
func (r *Router) parseExplained(op *command.Op, info *cluster.CollectionInfo, inner []byte) (*agg.Pipeline, error) {
	spec, err := r.pipelineCollation(op, inner, info)
	if err != nil {
		return nil, err
	}
	scope := expr.NewScope(&expr.Env{NowMS: time.Now().UnixMilli(), ClusterTime: r.Clock.ClusterTime(), Collator: spec.Collator(), NoScripts: !r.Params.Bool("javascriptEnabled")})
	if err := scope.DefineLet(value.Lookup(inner, "let").Doc()); err != nil {
		return nil, err
	}
	db, coll := cluster.SplitNS(info.NS)
	p, err := agg.Parse(value.Lookup(inner, "pipeline"), &agg.Options{NS: agg.Namespace{DB: db, Coll: coll}, Host: &aggHost{r: r, collation: spec}, Collator: spec.Collator(),
		Collation: explicit(spec), AllowDiskUse: true, Explain: true, Scope: scope})
	if err != nil {
		return nil, err
	}
	p.Optimize()
	return p, nil
}

// appendSplit writes how a pipeline is divided, and each shard's explain of its part.
func (r *Router) appendSplit(dst []byte, split *agg.Split, replies []shardReply) []byte {
	if split == nil {
		dst = value.Append(dst, "mergeType", value.NewString(replies[0].shard))
		dst = value.Append(dst, "splitPipeline", value.NewNull())
	} else {
		cursors, m := value.Begin(nil)
		if split.MergeSort != nil {
			cursors = value.Append(cursors, "sort", value.NewDocument(split.MergeSort))
		}
		cursors = value.End(cursors, m)
		merger := append([]value.Value{value.NewDocument(value.Doc(value.F("$mergeCursors", value.NewDocument(cursors))))},
			value.Values(split.Merge.Serialize().Doc())...)
		dst = value.Append(dst, "mergeType", value.NewString("router"))
		dst = value.Append(dst, "splitPipeline", value.NewDocument(value.Doc(
			value.F("shardsPart", split.Shard.Serialize()), value.F("mergerPart", value.NewArray(value.ArrayOf(merger...))))))
	}
	dst, m := value.BeginKey(dst, value.Document, "shards")
	for i := range replies {
		body := rebuild(replies[i].body, replyTrailer, nil)
		one, mark := value.BeginKey(dst, value.Document, replies[i].shard)
		one = value.Append(one, "host", value.NewString(r.connString(replies[i].shard)))
		dst = value.End(append(one, rebuildElements(body, nil)...), mark)
	}
	return value.End(dst, m)
}

// explainFor returns the explain command for one shard: the versions belong to the inner command, where the shard
// checks them too.
func explainFor(op *command.Op, info *cluster.CollectionInfo, shard string) []byte {
	return rebuild(op.Req.Body, map[string]bool{"$clusterTime": true}, info.Suffix(shard))
}

func explainTargets(info *cluster.CollectionInfo, cmd string, inner []byte) ([]string, error) {
	var filter []byte
	switch cmd {
	case "find":
		filter = value.Lookup(inner, "filter").Doc()
	case "count", "distinct", "findAndModify", "findandmodify":
		filter = value.Lookup(inner, "query").Doc()
	case "aggregate":
		filter = leadingMatch(value.Lookup(inner, "pipeline"))
	case "update", "delete":
		list := value.Lookup(inner, cmd+"s")
		for _, st := range value.Values(list.Doc()) {
			filter = value.Lookup(st.Doc(), "q").Doc()
			break
		}
	}
	return target(info, filter, collatedBy(info, value.Lookup(inner, "collation").Doc()))
}

// explainFind writes queryPlanner and executionStats of a command that returns documents of one collection.
func (r *Router) explainFind(dst []byte, op *command.Op, info *cluster.CollectionInfo, inner []byte, replies []shardReply) []byte {
	stage := "SINGLE_SHARD"
	if len(replies) > 1 {
		stage = "SHARD_MERGE"
		if s := value.Lookup(inner, "sort"); s.T == value.Document && value.Count(s.Doc()) > 0 {
			stage = "SHARD_MERGE_SORT"
		}
	}
	if it := value.Walk(inner); true {
		switch k, _, _ := it.Next(); string(k) {
		case "update", "delete", "findAndModify", "findandmodify":
			if stage = "SHARD_WRITE"; len(replies) == 1 {
				stage = "SINGLE_SHARD"
			}
		}
	}
	dst, qp := value.BeginKey(dst, value.Document, "queryPlanner")
	dst = value.Append(dst, "mongosPlannerVersion", value.NewInt32(1))
	dst, wp := value.BeginKey(dst, value.Document, "winningPlan")
	dst = value.Append(dst, "stage", value.NewString(stage))
	dst, arr := value.BeginKey(dst, value.Array, "shards")
	for i := range replies {
		var m int
		dst, m = value.BeginKey(dst, value.Document, strconv.Itoa(i))
		dst = value.Append(dst, "explainVersion", value.Lookup(replies[i].body, "explainVersion"))
		dst = value.Append(dst, "shardName", value.NewString(replies[i].shard))
		dst = value.Append(dst, "connectionString", value.NewString(r.connString(replies[i].shard)))
		dst = value.Append(dst, "serverInfo", value.Lookup(replies[i].body, "serverInfo"))
		dst = append(dst, rebuildElements(value.Lookup(replies[i].body, "queryPlanner").Doc(), nil)...)
		dst = value.End(dst, m)
	}
	dst = value.End(value.End(value.End(dst, arr), wp), qp)
	if es := value.Lookup(replies[0].body, "executionStats"); es.T == value.Document {
		dst = explainStats(dst, stage, replies)
	}
	dst = appendShapeHash(dst, op)
	dst = command.AppendServer(dst, r.Service.Host, r.Params)
	return value.Append(dst, "command", value.NewDocument(rebuild(op.Req.Cmd.Doc(), map[string]bool{querySettingsField: true})))
}

func explainStats(dst []byte, stage string, replies []shardReply) []byte {
	var s sums
	for i := range replies {
		s.add(value.Lookup(replies[i].body, "executionStats").Doc(), map[string]bool{"executionSuccess": true})
	}
	dst, es := value.BeginKey(dst, value.Document, "executionStats")
	for _, n := range []string{"nReturned", "executionTimeMillis", "totalKeysExamined", "totalDocsExamined"} {
		dst = value.Append(dst, n, intValue(int64(s.total[n])))
	}
	dst, st := value.BeginKey(dst, value.Document, "executionStages")
	dst = value.Append(dst, "stage", value.NewString(stage))
	for _, n := range []string{"nReturned", "executionTimeMillis", "totalKeysExamined", "totalDocsExamined"} {
		dst = value.Append(dst, n, intValue(int64(s.total[n])))
	}
	dst = value.Append(dst, "totalChildMillis", value.NewInt64(int64(s.total["executionTimeMillis"])))
	dst, arr := value.BeginKey(dst, value.Array, "shards")
	for i := range replies {
		var m int
		dst, m = value.BeginKey(dst, value.Document, strconv.Itoa(i))
		dst = value.Append(dst, "shardName", value.NewString(replies[i].shard))
		dst = append(dst, rebuildElements(value.Lookup(replies[i].body, "executionStats").Doc(), map[string]bool{"allPlansExecution": true})...)
		dst = value.End(dst, m)
	}
	dst = explainTrials(value.End(value.End(dst, arr), st), replies)
	return value.End(dst, es)
}

// explainTrials lists, shard by shard, the statistics of each plan's trial.
func explainTrials(dst []byte, replies []shardReply) []byte {
	all := func(i int) value.Value {
		return value.Lookup(value.Lookup(replies[i].body, "executionStats").Doc(), "allPlansExecution")
	}
	if all(0).IsMissing() {
		return dst
	}
	dst, arr := value.BeginKey(dst, value.Array, "allPlansExecution")
	for i := range replies {
		dst = value.AppendIndex(dst, i, value.NewDocument(value.Doc(
			value.F("shardName", value.NewString(replies[i].shard)), value.F("allPlans", all(i)))))
	}
	return value.End(dst, arr)
}
