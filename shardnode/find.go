package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/viewquery"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func findSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "find", Roles: command.All, Kind: command.Read, Namespace: true, ArgTypes: command.TString | command.TOther,
		ReadConcern: true, Txn: true, API: true, Run: n.runFind,
		Fields: []command.Field{
			command.Kept("filter"), command.Kept("projection"), command.Kept("sort"),
			command.Opt("hint", command.TAny), command.Kept("collation"),
			command.Opt("skip", command.TNumber), command.Opt("limit", command.TNumber), command.Opt("batchSize", command.TNumber),
			command.Opt("singleBatch", command.TSafeBool), command.Opt("allowDiskUse", command.TSafeBool),
			command.Kept("min"), command.Kept("max"),
			command.Opt("returnKey", command.TSafeBool), command.Opt("showRecordId", command.TSafeBool),
			command.Opt("tailable", command.TSafeBool), command.Opt("awaitData", command.TSafeBool),
			command.Opt("oplogReplay", command.TSafeBool), command.Opt("noCursorTimeout", command.TSafeBool),
			command.Opt("allowPartialResults", command.TSafeBool), command.Opt("mirrored", command.TSafeBool),
			command.Opt("let", command.TObject), command.Opt("term", command.TInt), command.Opt("readOnce", command.TSafeBool),
			command.Opt("querySettings", command.TObject), command.Opt("options", command.TNumber), command.Opt("collectionUUID", command.TOther),
			command.Opt("runtimeConstants", command.TObject), command.Opt("includeQueryStatsMetrics", command.TSafeBool),
			command.Opt(mergeKeyOption, command.TSafeBool),
		},
	}
}

// mergeKeyOption is the option with which a router asks for each document's sort values in a last field named
// exec.MergeKeyField, because only the shards know them: a distance, a text score.
const mergeKeyOption = "_withMergeKey"

// readArgs are the arguments that find, aggregate, count and distinct have in common, as far as each has them.
type readArgs struct {
	collation    value.Value
	hint         value.Value
	let          []byte
	constants    []byte      // runtimeConstants: the values that a router gave $$NOW and similar variables
	allowDiskUse value.Value // see mayUseDisk
}

// findArgs are the arguments of find.
type findArgs struct {
	readArgs
	ns                       string
	filter, projection, sort []byte
	min, max                 []byte
	skip, limit              int64
	size                     int64 // of the first batch
	single                   bool  // there is no second batch
	tailable, awaitData      bool
	noTimeout                bool
	returnKey, showRecordID  bool
	mergeKey                 bool // see mergeKeyOption
}

// parseFind reads a find command and checks its arguments against each other.
func parseFind(op *command.Op, ns string) (a findArgs, err error) {
	a = findArgs{
		readArgs: readArgs{
			collation: op.Arg("collation"), hint: op.Arg("hint"), let: op.Req.Doc("let"), constants: op.Req.Doc("runtimeConstants"),
			allowDiskUse: op.Arg("allowDiskUse"),
		},
		ns: ns, filter: op.Req.Doc("filter"), projection: op.Req.Doc("projection"), sort: op.Req.Doc("sort"), min: op.Req.Doc("min"), max: op.Req.Doc("max"),
		size: 101, single: op.Bool("singleBatch"), tailable: op.Bool("tailable"), awaitData: op.Bool("awaitData"), noTimeout: op.Bool("noCursorTimeout"),
		returnKey: op.Bool("returnKey"), showRecordID: op.Bool("showRecordId"), mergeKey: op.Bool(mergeKeyOption),
	}
	if a.skip, err = nonNegative(op, "skip"); err != nil {
		return a, err
	}
	if a.limit, err = nonNegative(op, "limit"); err != nil {
		return a, err
	}
	if bs := op.Arg("batchSize"); !bs.IsMissing() {
		if a.size, err = nonNegative(op, "batchSize"); err != nil {
			return a, err
		}
	}
	if err := a.checkTailable(); err != nil {
		return a, err
	}
	if a.mergeKey && (op.Req.ShardVersion == nil || !op.Client.InProcess && !op.Client.Internal) {
		return a, command.UnknownField("FindCommandRequest." + mergeKeyOption)
	}
	if c := op.Req.Cmd.Str(); len(c) > 0 && c[0] == '$' && c[1:] != "cmd" {
		return a, mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	return a, nil
}

func (a *findArgs) checkTailable() error {
	if a.awaitData && !a.tailable {
		return mongoerr.New(mongoerr.FailedToParse, "Cannot set 'awaitData' without also setting 'tailable'")
	}
	if a.tailable && a.single {
		return mongoerr.New(mongoerr.BadValue, "Cannot use tailable option with the 'singleBatch' option")
	}
	if a.tailable && len(a.sort) > 5 {
		if i, ok := value.Lookup(a.sort, "$natural").AsInt64(); !ok || i != 1 || value.Count(a.sort) != 1 {
			return mongoerr.New(mongoerr.BadValue, "cannot use tailable option with a sort other than {$natural: 1}")
		}
	}
	return nil
}

func (n *Node) runFind(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "query"
	a, err := parseFind(op, ns)
	if err != nil {
		return dst, err
	}
	s, err := openRead(n, op, ns)
	if err != nil {
		return dst, err
	}
	if x, ok := a.express(s); ok {
		if out, done, err := findExpress(n, op, dst, &x); done {
			return out, err
		}
	}
	c, err := a.open(n, op, s)
	if err != nil {
		s.Release()
		return dst, err
	}
	return n.firstBatch(op, dst, c, a.size, a.single)
}

// openRead returns the snapshot for a command that reads a namespace, after checking that the command's versions
// are this shard's, and that the UUID it names is the collection's.
func openRead(n *Node, op *command.Op, ns string) (*storage.Snapshot, error) {
	s, err := versionedSnapshot(n, op, ns)
	if err != nil {
		return nil, err
	}
	if err := namespace.CheckCollectionUUID(op, s.Catalog(), ns); err != nil {
		s.Release()
		return nil, err
	}
	op.AdvanceOperationTime(uint64(s.Timestamp()))
	return s, nil
}

// open makes the cursor of a find over a snapshot, which the cursor then owns.
func (a *findArgs) open(n *Node, op *command.Op, s *storage.Snapshot) (*cursor, error) {
	q, err := a.compile(n, op, s)
	if err != nil {
		return nil, err
	}
	op.Stats.CollType = "collection"
	if q.Coll == nil {
		r, err := n.resolveFor(op, s, a.ns)
		if op.Stats.CollType = r.CollType(); err != nil {
			return nil, err
		}
		if r != nil {
			return a.openOnView(n, op, s, r)
		}
	}
	stream, err := n.exec.Execute(op, q)
	if err != nil {
		return nil, err
	}
	return &cursor{ns: a.ns, during: duringFind, stream: stream, snap: s, noTimeout: a.noTimeout, tailable: a.tailable, awaitData: a.awaitData}, nil
}

// openOnView runs a find on a view as a pipeline.
func (a *findArgs) openOnView(n *Node, op *command.Op, s *storage.Snapshot, r *namespace.Resolved) (*cursor, error) {
	stages, hint, err := viewquery.Find(op.Req.Body, a.skip, a.limit)
	if err != nil {
		return nil, err
	}
	g := &aggregation{n: n, op: op, ns: r.NS, snap: s, readArgs: a.readArgs}
	g.hint = hint
	src, err := g.open(value.NewArray(value.ArrayOf(append(r.Pipeline, stages...)...)), r.Collation)
	if err != nil {
		return nil, err
	}
	return &cursor{ns: a.ns, during: duringAggregate, stream: &aggStream{src: src}, snap: s, noTimeout: a.noTimeout}, nil
}

// compile makes the query of a find over a snapshot.
func (a *findArgs) compile(n *Node, op *command.Op, s *storage.Snapshot) (*exec.Query, error) {
	q := &exec.Query{
		NS: a.ns, Snap: s, Coll: s.Catalog().Lookup(a.ns), Filter: a.filter, Sort: a.sort, Hint: a.hint, Min: a.min, Max: a.max, Skip: a.skip, Limit: a.limit,
		ReturnKey: a.returnKey, ShowRecordID: a.showRecordID, Tailable: a.tailable, AllowDiskUse: mayUseDisk(n.Params, a.allowDiskUse), MergeKey: a.mergeKey,
	}
	if err := n.bindMetadata(op, q); err != nil {
		return nil, err
	}
	spec, err := n.metas.CollationOf(a.collation, q.Coll)
	if err != nil {
		return nil, err
	}
	l, err := n.exec.NewLang(op, spec, a.let)
	if err != nil {
		return nil, err
	}
	q.Collation, q.Scope = spec, l.Scope
	if err := q.Compile(a.projection); err != nil {
		return nil, err
	}
	if a.tailable && q.Coll != nil && !q.Coll.Capped && !q.Coll.Oplog {
		return nil, mongoerr.New(mongoerr.BadValue, "error processing query: ns="+a.ns+" tailable cursor requested on non capped collection")
	}
	return q, nil
}

// awaitMore waits for new records of a capped collection or the oplog, for the getMore's maxTimeMS or a second.
func (n *Node) awaitMore(op *command.Op, dst []byte, c *cursor, size int64) (out []byte, count int64, done bool, err error) {
	wait := time.Second
	if op.Req.MaxTimeMS > 0 {
		wait = time.Duration(op.Req.MaxTimeMS) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	stop := context.AfterFunc(op, cancel)
	defer stop()
	for {
		if op.Await(func() error { _, err := n.Engine.WaitVisible(ctx, n.tailFrom(c)); return err }) != nil {
			return dst, 0, true, op.CheckNow()
		}
		if err = n.refresh(op, c); err != nil {
			return dst, 0, true, err
		}
		if dst, count, done, err = c.fillBatch(op, dst, size); err != nil || count > 0 {
			return dst, count, done, err
		}
	}
}
