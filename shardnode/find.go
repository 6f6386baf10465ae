package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/viewquery"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func findSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "find", Roles: command.All, Kind: command.Read, Namespace: true, ArgTypes: command.TString | command.TOther,
		ReadConcern: true, Txn: true, API: true, Run: n.runFind,
		Fields: []command.Field{
			command.Strict("filter", command.TObject), command.Opt("projection", command.TObject), command.Opt("sort", command.TObject),
			command.Opt("hint", command.TAny), command.Opt("collation", command.TObject),
			command.Opt("skip", command.TNumber), command.Opt("limit", command.TNumber), command.Opt("batchSize", command.TNumber),
			command.Opt("singleBatch", command.TSafeBool), command.Opt("allowDiskUse", command.TSafeBool),
			command.Opt("min", command.TObject), command.Opt("max", command.TObject),
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

// mergeKeyOption is how a router asks that each document brings what it was sorted by, in a last field of exec.MergeKeyField,
// because only the shards know it: a distance, a text score.
const mergeKeyOption = "_withMergeKey"

// findArgs are the arguments of find, checked.
type findArgs struct {
	size                int64
	single, tail, await bool
}

func (n *Node) runFind(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "query"
	q, args, err := n.parseFind(op, ns)
	if err != nil {
		if q != nil && q.Snap != nil {
			q.Snap.Release()
		}
		return dst, err
	}
	op.Stats.CollType = "collection"
	if q.Coll == nil {
		if c, err := n.findOnView(op, q); c != nil || err != nil {
			if err != nil {
				q.Snap.Release()
				return dst, err
			}
			c.during = duringAggregate(ns)
			return n.firstBatch(op, dst, c, args.size, args.single)
		}
	}
	stream, err := n.exec.Execute(op, q)
	if err != nil {
		q.Snap.Release()
		return dst, err
	}
	c := &cursor{ns: ns, during: duringFind(ns), stream: stream, snap: q.Snap, noTimeout: op.Bool("noCursorTimeout"), tailable: args.tail, awaitData: args.await}
	return n.firstBatch(op, dst, c, args.size, args.single)
}

// findOnView answers a find on a view by a pipeline, whose cursor owns the snapshot; nil where it is no view.
func (n *Node) findOnView(op *command.Op, q *exec.Query) (*cursor, error) {
	r, err := n.resolveFor(op, q.Snap, q.NS)
	op.Stats.CollType = r.collType()
	if err != nil || r == nil {
		return nil, err
	}
	stages, hint, err := viewquery.Find(op.Req.Body, q.Skip, q.Limit)
	if err != nil {
		return nil, err
	}
	a := &aggregation{n: n, op: op, ns: r.ns, snap: q.Snap, hint: hint}
	src, err := a.open(value.NewArray(value.ArrayOf(append(r.pipeline, stages...)...)), r.collation)
	if err != nil {
		return nil, err
	}
	return &cursor{ns: q.NS, stream: &aggStream{src: src}, snap: q.Snap, noTimeout: op.Bool("noCursorTimeout")}, nil
}

// parseFind reads and compiles a find command against a fresh snapshot, which the query then owns.
func (n *Node) parseFind(op *command.Op, ns string) (*exec.Query, findArgs, error) {
	a := findArgs{size: 101, single: op.Bool("singleBatch"), tail: op.Bool("tailable"), await: op.Bool("awaitData")}
	q := &exec.Query{NS: ns, Filter: op.Req.Doc("filter"), Sort: op.Req.Doc("sort"), Hint: op.Arg("hint"), Min: op.Req.Doc("min"), Max: op.Req.Doc("max")}
	var err error
	if q.Skip, err = nonNegative(op, "skip"); err != nil {
		return q, a, err
	}
	if q.Limit, err = nonNegative(op, "limit"); err != nil {
		return q, a, err
	}
	if bs := op.Arg("batchSize"); !bs.IsMissing() {
		if a.size, err = nonNegative(op, "batchSize"); err != nil {
			return q, a, err
		}
	}
	if a.await && !a.tail {
		return q, a, mongoerr.New(mongoerr.FailedToParse, "Cannot set 'awaitData' without also setting 'tailable'")
	}
	if a.tail && a.single {
		return q, a, mongoerr.New(mongoerr.BadValue, "Cannot use tailable option with the 'singleBatch' option")
	}
	if a.tail && len(q.Sort) > 5 {
		if i, ok := value.Lookup(q.Sort, "$natural").AsInt64(); !ok || i != 1 || value.Count(q.Sort) != 1 {
			return q, a, mongoerr.New(mongoerr.BadValue, "cannot use tailable option with a sort other than {$natural: 1}")
		}
	}
	q.ReturnKey, q.ShowRecordID, q.Tailable = op.Bool("returnKey"), op.Bool("showRecordId"), a.tail
	q.AllowDiskUse, q.MergeKey = op.BoolOr("allowDiskUse", true), op.Bool(mergeKeyOption)
	if q.MergeKey && (op.Req.ShardVersion == nil || !op.Client.InProcess && !op.Client.Internal) {
		return q, a, command.UnknownField("find." + mergeKeyOption)
	}
	if c := op.Req.Cmd.Str(); len(c) > 0 && c[0] == '$' && c[1:] != "cmd" {
		return q, a, mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	if err := n.checkVersion(op, ns); err != nil {
		return q, a, err
	}
	if err := n.checkCollectionUUID(op, ns); err != nil {
		return q, a, err
	}
	if q.Snap, err = n.readSnapshot(op); err != nil {
		return q, a, err
	}
	op.AdvanceOperationTime(uint64(q.Snap.Timestamp()))
	q.Coll = q.Snap.Catalog().Lookup(ns)
	if err := n.bindMetadata(op, q); err != nil {
		return q, a, err
	}
	spec, err := n.collationOf(op.Arg("collation"), q.Coll)
	if err != nil {
		return q, a, err
	}
	l, err := n.newLang(op, spec, op.Req.Doc("let"))
	if err != nil {
		return q, a, err
	}
	q.Collation, q.Scope = spec, l.scope
	if err := q.Compile(op.Req.Doc("projection")); err != nil {
		return q, a, err
	}
	if a.tail && q.Coll != nil && !q.Coll.Capped && !q.Coll.Oplog {
		return q, a, mongoerr.New(mongoerr.BadValue, "error processing query: ns="+ns+" tailable cursor requested on non capped collection")
	}
	return q, a, nil
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
		_, werr := n.Engine.WaitVisible(ctx, n.tailFrom(c))
		if werr != nil {
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
