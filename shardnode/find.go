package shardnode

import (
	"context"
	"strconv"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/viewquery"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func itoa(i int) string { return strconv.Itoa(i) }

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

// mergeKeyOption is how a router asks that each document brings what it was sorted by, in a last field of mergeKeyField,
// because only the shards know it: a distance, a text score.
const (
	mergeKeyOption = "_withMergeKey"
	mergeKeyField  = "$sortKey"
)

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
		if q != nil && q.snap != nil {
			q.snap.Release()
		}
		return dst, err
	}
	op.Stats.CollType = "collection"
	if q.coll == nil {
		if c, err := n.findOnView(op, q); c != nil || err != nil {
			if err != nil {
				q.snap.Release()
				return dst, err
			}
			c.during = duringAggregate(ns)
			return n.firstBatch(op, dst, c, args.size, args.single)
		}
	}
	stream, err := n.execute(op, q)
	if err != nil {
		q.snap.Release()
		return dst, err
	}
	c := &cursor{ns: ns, during: duringFind(ns), stream: stream, snap: q.snap, noTimeout: op.Bool("noCursorTimeout"), tailable: args.tail, awaitData: args.await}
	return n.firstBatch(op, dst, c, args.size, args.single)
}

// findOnView answers a find on a view by a pipeline, whose cursor owns the snapshot; nil where it is no view.
func (n *Node) findOnView(op *command.Op, q *query) (*cursor, error) {
	r, err := n.resolveFor(op, q.snap, q.ns)
	op.Stats.CollType = r.collType()
	if err != nil || r == nil {
		return nil, err
	}
	stages, hint, err := viewquery.Find(op.Req.Body, q.skip, q.limit)
	if err != nil {
		return nil, err
	}
	a := &aggregation{n: n, op: op, ns: r.ns, snap: q.snap, hint: hint}
	src, err := a.open(value.NewArray(value.ArrayOf(append(r.pipeline, stages...)...)), r.collation)
	if err != nil {
		return nil, err
	}
	return &cursor{ns: q.ns, stream: &aggStream{src: src}, snap: q.snap, noTimeout: op.Bool("noCursorTimeout")}, nil
}

// parseFind reads and compiles a find command against a fresh snapshot, which the query then owns.
func (n *Node) parseFind(op *command.Op, ns string) (*query, findArgs, error) {
	a := findArgs{size: 101, single: op.Bool("singleBatch"), tail: op.Bool("tailable"), await: op.Bool("awaitData")}
	q := &query{ns: ns, filter: op.Req.Doc("filter"), sort: op.Req.Doc("sort"), hint: op.Arg("hint"), min: op.Req.Doc("min"), max: op.Req.Doc("max")}
	var err error
	if q.skip, err = nonNegative(op, "skip"); err != nil {
		return q, a, err
	}
	if q.limit, err = nonNegative(op, "limit"); err != nil {
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
	if a.tail && len(q.sort) > 5 {
		if i, ok := value.Lookup(q.sort, "$natural").AsInt64(); !ok || i != 1 || value.Count(q.sort) != 1 {
			return q, a, mongoerr.New(mongoerr.BadValue, "cannot use tailable option with a sort other than {$natural: 1}")
		}
	}
	q.returnKey, q.showRecordID, q.tailable = op.Bool("returnKey"), op.Bool("showRecordId"), a.tail
	q.diskUse, q.mergeKey = op.BoolOr("allowDiskUse", true), op.Bool(mergeKeyOption)
	if q.mergeKey && op.Req.ShardVersion == nil {
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
	if q.snap, err = n.readSnapshot(op); err != nil {
		return q, a, err
	}
	op.AdvanceOperationTime(uint64(q.snap.Timestamp()))
	q.coll = q.snap.Catalog().Lookup(ns)
	if q.owned, err = n.readFilter(op, q.coll); err != nil {
		return q, a, err
	}
	spec, err := n.collationOf(op.Arg("collation"), q.coll)
	if err != nil {
		return q, a, err
	}
	if q.lang, err = n.newLang(op, spec, op.Req.Doc("let")); err != nil {
		return q, a, err
	}
	if err := q.compile(op.Req.Doc("projection")); err != nil {
		return q, a, err
	}
	if a.tail && q.coll != nil && !q.coll.Capped && !q.coll.Oplog {
		return q, a, mongoerr.New(mongoerr.BadValue, "error processing query: ns="+ns+" tailable cursor requested on non capped collection")
	}
	return q, a, nil
}

// queryStream gives the projected documents of a query.
type queryStream struct {
	q    *query
	root node
	row  row
	buf  []byte
	tail bool
	meta projection.Meta
	keys *sortKeys // where the projection shows the sort key
}

func (s *queryStream) nextDoc(op *command.Op) ([]byte, bool, error) {
	ok, err := s.root.next(op, &s.row)
	if err != nil || !ok {
		return nil, false, err
	}
	q := s.q
	if q.proj == nil && !q.showRecordID && !q.returnKey && !q.mergeKey {
		return s.row.doc, true, nil
	}
	return s.shape()
}

// shape applies projection, returnKey, showRecordId and the key for merging.
func (s *queryStream) shape() ([]byte, bool, error) {
	q := s.q
	doc := s.row.doc
	if q.returnKey {
		doc = keyFields(&s.row)
	} else if q.proj != nil {
		var err error
		if err = s.metadata(q.proj.Metas()); err != nil {
			return nil, false, err
		}
		if s.buf, err = q.proj.Apply(s.buf[:0], doc, &s.meta); err != nil {
			return nil, false, err
		}
		doc = s.buf
	}
	if q.showRecordID && !q.returnKey {
		out := append([]byte(nil), doc[:len(doc)-1]...)
		doc = value.End(value.Append(out, "$recordId", recordIDValue(s.row.rid)), 0)
	}
	if q.mergeKey {
		out := append([]byte(nil), doc[:len(doc)-1]...)
		doc = value.End(value.Append(out, mergeKeyField, value.NewBinary(0, s.row.sortKey)), 0)
	}
	return doc, true, nil
}

// metadata reads the kinds of metadata that something above shows.
func (s *queryStream) metadata(kinds []string) (err error) {
	for _, kind := range kinds {
		switch kind {
		case "recordId":
			s.meta.RecordID = recordIDValue(s.row.rid)
		case "textScore":
			s.meta.TextScore = s.q.textScore(s.row.doc)
		case "geoNearDistance", "geoNearPoint":
			s.nearMetadata()
		case "indexKey":
			s.meta.IndexKey = value.Value{}
			if s.row.key != nil && s.row.index.Spec.Kind != indexkey.Text {
				s.meta.IndexKey = value.NewDocument(keyFields(&s.row))
			}
		case "sortKey":
			if s.keys == nil {
				if s.keys, err = newSortKeys(s.q.sort, s.q.lang.coll.Collator()); err != nil {
					return err
				}
			}
			if s.meta.SortKey, err = s.keys.values(s.row.doc); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *queryStream) stop()  { s.root.save() }
func (s *queryStream) close() { s.root.close() }

// recordIDValue is a RecordId as $recordId shows it: a long, or binary for clustered collections.
func recordIDValue(rid storage.RecordID) value.Value {
	if n, ok := rid.Int64(); ok {
		return value.NewInt64(n)
	}
	return value.NewBinary(0, rid)
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
			if e := op.CheckNow(); e != nil && mongoerr.CodeOf(e) != mongoerr.MaxTimeMSExpired {
				return dst, 0, true, e
			}
			return dst, 0, true, nil
		}
		if err = n.refresh(c); err != nil {
			return dst, 0, true, err
		}
		if dst, count, done, err = c.fillBatch(op, dst, size); err != nil || count > 0 {
			return dst, count, done, err
		}
	}
}
