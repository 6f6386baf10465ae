package write

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A batch of inserts is cut into units of work of at most this many documents and bytes, so that no unit delays the
// commits of others for long.
const (
	insertUnitDocs  = 1000
	insertUnitBytes = 1 << 20
)

func insertSpec(wr *Writer) command.Spec {
	return command.Spec{
		Name: "insert", Roles: command.All, Kind: command.Write, Namespace: true, WriteConcern: true, ReadConcern: true,
		Txn: true, Retryable: true, API: true, Run: wr.runInsert,
		Fields: []command.Field{
			command.Req("documents", command.TArray), command.Opt("ordered", command.TBool),
			command.Opt("bypassDocumentValidation", command.TSafeBool), command.Opt("bypassEmptyTsReplacement", command.TSafeBool),
			command.Opt("collectionUUID", command.TOther), command.Opt("encryptionInformation", command.TObject),
			command.Opt("isTimeseriesNamespace", command.TSafeBool),
		},
	}
}

func (wr *Writer) runInsert(op *command.Op, dst []byte) ([]byte, error) {
	a, err := parseBatch(op, "documents")
	op.Stats.NS, op.Stats.Type = a.ns, "insert"
	if err != nil {
		return dst, err
	}
	w, err := wr.beginBatch(op, a.ns)
	if err != nil {
		return dst, err
	}
	defer w.release()
	inserted, err := w.insertAll(&a)
	if err == nil {
		err = w.commandError()
	}
	if err != nil {
		return dst, err
	}
	wr.Counts.Inserts.Add(inserted)
	op.Stats.NInserted = inserted
	dst = value.Append(dst, "n", value.NewInt32(int32(inserted)))
	return w.endWrite(dst), nil
}

// endWrite appends the fields that all write replies end with.
func (w *Command) endWrite(dst []byte) []byte {
	if w.Concern == (replication.WriteConcern{}) && !w.Op.Client.Internal {
		return dst // with w: 0 errors are not reported, but to a router, which has to know where an ordered batch ends and what it sends again
	}
	return w.appendRetried(appendWriteErrors(dst, w.errs))
}

// pendingDoc is a document of the batch, ready to be stored.
type pendingDoc struct {
	index int
	doc   []byte
}

// insertUnit is a part of a batch that is one unit of work if none of its documents fails.
type insertUnit struct {
	ns      string
	docs    []pendingDoc
	ordered bool // of the batch
	last    bool // nothing follows, so the commit itself may wait for the write concern
}

// insertAll inserts a batch, in order, unit by unit.
func (w *Command) insertAll(a *batchArgs) (inserted int64, err error) {
	total := a.list.Count()
	var unit []pendingDoc
	size := 0
	stop := false
	flush := func(last bool) {
		if len(unit) > 0 && !stop {
			n, s := w.insert(insertUnit{a.ns, unit, a.ordered, last})
			inserted += n
			stop = s
		}
		unit, size = unit[:0], 0
	}
	multi := false
	err = a.list.Each("insert.documents", func(i int, doc []byte) error {
		if stop {
			return nil
		}
		if _, done := w.executed(i); done {
			flush(false)
			multi = true
			inserted++
			return nil
		}
		stored, err := w.prepareNew(a.ns, doc)
		if err != nil {
			flush(false)
			multi = true
			if !stop {
				stop = w.fail(i, err, a.ordered)
			}
			return nil
		}
		unit = append(unit, pendingDoc{i, stored})
		if size += len(stored); len(unit) == insertUnitDocs || size >= insertUnitBytes || w.records != nil {
			last := i == total-1 && !multi
			flush(last)
			multi = true
		}
		return nil
	})
	if err != nil {
		return inserted, err
	}
	flush(true)
	w.settle(multi)
	return inserted, nil
}

// now returns the value that replaces an empty timestamp in a stored document: the time, never the same twice.
func (w *Command) now() uint64 {
	now := uint64(storage.TimestampOf(uint32(w.writer.Now().Unix()), 1))
	for {
		last := w.writer.filledTS.Load()
		next := max(now, last+1)
		if w.writer.filledTS.CompareAndSwap(last, next) {
			return next
		}
	}
}

// insert inserts the documents of a unit or, if one fails, of several units around it; stop means that the
// rest of the batch is skipped.
func (w *Command) insert(unit insertUnit) (inserted int64, stop bool) {
	if k := w.consecutive(unit.docs); k < len(unit.docs) {
		head, tail := unit, unit
		head.docs, head.last, tail.docs = unit.docs[:k], false, unit.docs[k:]
		n, stop := w.insert(head)
		if stop {
			return n, true
		}
		m, stop := w.insert(tail)
		return n + m, stop
	}
	docs := unit.docs
	raw := make([][]byte, len(docs))
	for i := range docs {
		raw[i] = docs[i].doc
	}
	wc := replication.Visible
	if unit.last {
		wc = w.lastConcern()
	}
	for len(docs) > 0 {
		var done int
		var docErr error
		err := w.Retry(func() error {
			var err error
			done, docErr, err = w.tryInsert(unit.ns, raw, wc, docs[0].index)
			return err
		})
		inserted += int64(done)
		if err != nil { // the unit itself failed: nothing of it was written
			for _, d := range docs[done:] {
				if w.fail(d.index, err, unit.ordered) {
					return inserted, true
				}
			}
			return inserted, false
		}
		if docErr == nil {
			return inserted, false
		}
		if w.fail(docs[done].index, docErr, unit.ordered) {
			return inserted, true
		}
		docs, raw = docs[done+1:], raw[done+1:]
	}
	return inserted, false
}

// tryInsert is one attempt at a unit. docErr is the error of the document at done; those before it are inserted.
func (w *Command) tryInsert(ns string, raw [][]byte, wc replication.WriteConcern, stmt int) (done int, docErr, err error) {
	if w.bucketsIn(w.Catalog(), ns) != nil {
		if w.Transaction() != nil {
			return 0, nil, mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot insert into a time-series collection in a multi-document transaction: %s", ns)
		}
		return w.tryMeasurements(ns, raw, wc, stmt)
	}
	u := w.Unit(nil)
	defer w.Drop(u)
	coll, err := w.Target(u, w.Catalog(), ns, true)
	if err == nil && w.Transaction() != nil {
		err = txn.Writable(coll)
	}
	if err != nil {
		return 0, nil, err
	}
	info := storage.OpInfo{StmtID: -1, Key: w.documentKey(ns), Vectored: true}
	if w.Op.Req.HasTxnNumber {
		info.StmtID = w.stmtID(stmt)
	}
	if w.records != nil {
		record, err := w.records.Put(u, nil, raw[0]) // its unit has no other
		if err != nil {
			return 0, nil, err
		}
		raw = [][]byte{record}
	}
	done, docErr = u.InsertMany(coll, raw, info)
	if docErr != nil && storage.ErrConflict(docErr) {
		return 0, nil, docErr
	}
	if done == 0 && docErr != nil {
		return 0, docErr, nil
	}
	if err := w.commitRun(u, wc, txn.Run{From: info.StmtID, To: info.StmtID + int32(done) - 1, Op: 'i'}); err != nil {
		return 0, nil, err
	}
	for _, doc := range raw[:done] {
		w.noteWritten(ns, doc)
	}
	return done, docErr, nil
}

// validateNew runs the collection's validator on a document to be inserted.
func (w *Command) validateNew(ns string, doc []byte) error {
	c := w.Catalog().Lookup(ns)
	if c == nil {
		return nil
	}
	if err := namespace.CheckBucketSchema(c, doc); err != nil {
		return err
	}
	return w.validate(c, doc, nil)
}
