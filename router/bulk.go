package router

import (
	"bytes"
	"errors"
	"iter"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// bulk runs a bulkWrite whose namespaces are on several shards: each operation becomes an insert, update or delete of its
// own, routed as if a client had sent it.
type bulk struct {
	r                   *Router
	op                  *command.Op
	in                  []bulkNS // nsInfo
	ops                 []bulkOp
	ordered, errorsOnly bool
	batchSize           int64 // how many results the first batch may have
	results             [][]byte

	errors, inserted, matched, modified, upserted, deleted int64
	retried                                                []value.Value // the ids of statements that had been executed before
	stop                                                   bool
	whole                                                  error // fails the whole command, not one operation
	done                                                   int   // the number of operations that a shard had run before the router took over
}

// check notes which of the namespaces must not be written, each with the error that its operations get, and returns the index of the first that is written, -1 if none is.
func (b *bulk) check() (first int) {
	first = -1
	for i := range b.in {
		in := &b.in[i]
		if !in.used {
			continue
		}
		err := checkWritable(b.op, in.name)
		if err == nil {
			if _, err = b.r.collectionForWrite(b.op, in.name); mongoerr.CodeOf(err) != mongoerr.DatabaseDifferCase {
				err = nil // reported when the placement is looked up to be used
			}
		}
		if in.refusal = err; err == nil && first < 0 {
			first = i
		}
	}
	return first
}

// bulkNS is an entry of nsInfo.
type bulkNS struct {
	name    string
	uuid    value.Value // the UUID that the client expects, Missing for any
	used    bool        // whether an operation names it
	refusal error       // why operations must not write there, nil if they may
}

// bulkOp is an operation of a bulkWrite.
type bulkOp struct {
	kind string // insert, update or delete
	at   int64  // index in nsInfo
	doc  []byte
}

// readBulk checks the form of a bulkWrite as a member does: where one member would refuse the whole command, no part of it may be executed.
func readBulk(r *Router, op *command.Op) (b bulk, err error) {
	b = bulk{r: r, op: op, ordered: op.Req.BoolOr("ordered", true), errorsOnly: op.Bool("errorsOnly")}
	multi := false
	read, err := command.ReadBulkWrite(op, func(d []byte) {
		b.in = append(b.in, bulkNS{uuid: value.Lookup(d, "collectionUUID")})
	}, func(kind string, at int64, d []byte) {
		b.ops = append(b.ops, bulkOp{kind, at, d})
		b.in[at].used = true
		multi = multi || value.Lookup(d, "multi").Truthy()
	})
	for i, name := range read.Names {
		b.in[i].name = name
	}
	if b.batchSize = read.BatchSize; err == nil && multi && op.Req.HasTxnNumber && !op.InTransaction() {
		err = mongoerr.New(mongoerr.InvalidOptions, "Cannot use retryable writes with multi=true")
	}
	return b, err
}

func (b *bulk) run(dst []byte) (_ []byte, err error) {
	for i := b.done; i < len(b.ops) && !b.stop; {
		n := b.insertsFrom(i)
		err := b.refused(i)
		switch {
		case err != nil:
			n = 1
		case n > 1:
			err = b.insertAll(i, n)
		default:
			n, err = 1, b.one(i)
		}
		if err != nil && (b.whole != nil || hasLabels(err)) {
			return dst, err
		}
		for k := i; err != nil && k < i+n && !b.stop; k++ {
			b.failed(k, err)
			b.stop = b.endsAtError()
		}
		i += n
	}
	b.nameActual()
	if dst, err = b.replyCursor(dst); err != nil {
		return dst, err
	}
	for name, n := range b.counters() {
		dst = value.Append(dst, name, value.NewInt32(int32(*n)))
	}
	slices.SortFunc(b.retried, value.Compare) // shards reply in any order
	dst = command.AppendRetried(dst, b.retried)
	return dst, nil
}

// nameActual completes the errors among the results, of which a cursor may keep some.
func (b *bulk) nameActual() {
	if b.errors == 0 {
		return
	}
	names := actualNames{r: b.r}
	for i, d := range b.results {
		b.results[i], _ = names.complete(b.op, d)
	}
}

// withNames returns a shard's reply with completed errors; dst has its elements from from on. They get longer than the shard's batches may be, so that the router makes batches of its own.
func (b *bulk) withNames(shard string, at cluster.Peer, dst []byte, from int) ([]byte, error) {
	reply := bytes.Clone(dst[from-4:])
	m := &remote{shard: shard, peer: at}
	if err := m.take(reply, "firstBatch"); err != nil {
		return dst[:from], err
	}
	if m.id == 0 && !someNameNone(value.Lookup(value.LookupDoc(reply, "cursor"), "firstBatch").Doc()) {
		return dst, nil
	}
	names := actualNames{r: b.r}
	c := &mergeCursor{remotes: []*remote{m}, extra: carried(b.op), shape: names.complete}
	dst, err := b.r.openMerged(b.op, bulkResultsNS, c, b.batchSize, false, dst[:from])
	if err != nil {
		return dst, err
	}
	for it := value.Walk(reply); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return dst, nil
		}
		if string(k) != "cursor" {
			dst = append(dst, raw...)
		}
	}
}

// bulkResultsNS is the namespace of cursors over the results of a bulkWrite.
const bulkResultsNS = "admin.$cmd.bulkWrite"

// replyCursor appends the first batch of results; a cursor of the router keeps the others.
func (b *bulk) replyCursor(dst []byte) ([]byte, error) {
	size := b.batchSize
	if size == int64(len(b.results)) {
		size++ // a batch that has every result leaves no cursor
	}
	return b.r.openMerged(b.op, bulkResultsNS, &mergeCursor{source: agg.NewSliceSource(b.results)}, size, false, dst)
}

// hasLabels reports whether an error's labels tell the client to retry its transaction or this command. Labels
// belong in the reply of the whole command; drivers do not look for them in the results of operations.
func hasLabels(err error) bool {
	var e *mongoerr.Error
	return errors.As(err, &e) && len(e.Labels) > 0
}

// takeOver checks whether a shard has stopped at an operation because the router's placement differs from the
// shard's. The results of the operations before it count, and the router sends the remaining operations one
// by one.
func (b *bulk) takeOver(at cluster.Peer, reply []byte) (stopped bool, err error) {
	if n, _ := value.Lookup(reply, "nErrors").AsInt64(); n == 0 {
		return false, nil
	}
	cur := value.Lookup(reply, "cursor").Doc()
	if id, _ := value.Lookup(cur, "id").AsInt64(); id != 0 {
		return false, nil
	}
	list := value.Values(value.Lookup(cur, "firstBatch").Doc())
	if len(list) == 0 {
		return false, nil
	}
	last := list[len(list)-1].Doc()
	if !b.r.noteStale(writeErrorOf(last)) {
		return false, nil
	}
	for _, d := range list[:len(list)-1] {
		b.results = append(b.results, slices.Clone(d.Doc())) // the router's own reply takes the place of this one
	}
	idx, _ := value.Lookup(last, "idx").AsInt64()
	b.done = int(idx)
	for name, to := range b.counters() {
		*to, _ = value.Lookup(reply, name).AsInt64()
	}
	b.errors--
	b.noteRetried(reply)
	return true, nil
}

// noteRetried adds the ids of the statements that a shard had executed before.
func (b *bulk) noteRetried(reply []byte) {
	for _, id := range value.Values(value.Lookup(reply, "retriedStmtIds").Doc()) {
		b.retried = append(b.retried, id.Clone())
	}
}

// counters returns the counters of the reply with their names, in the reply's order.
func (b *bulk) counters() iter.Seq2[string, *int64] {
	return func(yield func(string, *int64) bool) {
		for _, c := range []struct {
			name string
			n    *int64
		}{{"nErrors", &b.errors}, {"nInserted", &b.inserted}, {"nMatched", &b.matched}, {"nModified", &b.modified},
			{"nUpserted", &b.upserted}, {"nDeleted", &b.deleted}} {
			if !yield(c.name, c.n) {
				return
			}
		}
	}
}

// refused returns the error of an operation that is not sent: on a collection that must not be written, or after one whose wtimeout has passed, so that the client does not wait for
// each of them again.
func (b *bulk) refused(i int) error {
	e := b.op.WriteConcernError()
	if e == nil || e.Code != mongoerr.WriteConcernTimeout {
		return b.in[b.ops[i].at].refusal
	}
	return mongoerr.New(e.Code, "waiting for replication timed out, so that this statement was not executed")
}

func (b *bulk) result(f ...value.Field) {
	b.results = append(b.results, value.Doc(f...))
}

// endsAtError reports whether no operation is executed after one that has failed. An error aborts a transaction: the next operation would fail the whole command, with a label by which
// clients repeat the transaction, which fails again.
func (b *bulk) endsAtError() bool { return b.ordered || b.op.InTransaction() }

// failed records the error of an operation.
func (b *bulk) failed(i int, err error) {
	e := hidden(mongoerr.From(err))
	b.errors++
	if t := transactionOf(b.op); t != nil {
		t.fail() // no shard may have seen the operation
	}
	f := []value.Field{
		value.F("ok", value.NewDouble(0)), value.F("idx", value.NewInt32(int32(i))),
		value.F("code", value.NewInt32(int32(e.Code))),
	}
	for k, v := range value.Elements(e.Details) {
		f = append(f, value.F(k, v))
	}
	f = append(f, value.F("errmsg", value.NewString(e.Message)), value.F("n", value.NewInt32(0)))
	if b.ops[i].kind == "update" {
		f = append(f, value.F("nModified", value.NewInt32(0)))
	}
	b.result(f...)
}

// insertsFrom counts the operations from the i-th on that insert into one collection: they can be sent as one command, whose reply
// has the outcome of each. (The reply to an update or a delete has counts of all statements together.)
func (b *bulk) insertsFrom(i int) (n int) {
	for i+n < len(b.ops) && b.ops[i+n].kind == "insert" && b.ops[i+n].at == b.ops[i].at {
		n++
	}
	return n
}

// insertAll runs n operations that insert into one collection, the first of them the i-th, and records their results.
func (b *bulk) insertAll(i, n int) error {
	docs := make([]value.Value, n)
	for k := range docs {
		docs[k] = value.Lookup(b.ops[i+k].doc, "document")
	}
	reply, err := b.sent(i, "insert", "documents", docs...)
	if err != nil {
		return err
	}
	b.noteRetried(reply)
	errs := map[int]error{}
	for _, e := range value.Values(value.Lookup(reply, "writeErrors").Doc()) {
		at, _ := value.Lookup(e.Doc(), "index").AsInt64()
		errs[int(at)] = writeErrorOf(e.Doc())
	}
	for k := range n {
		switch err := errs[k]; {
		case hasLabels(err):
			return err
		case err != nil:
			if b.failed(i+k, err); b.endsAtError() {
				b.stop = true
				return nil
			}
		default:
			b.inserted++
			if !b.errorsOnly {
				b.result(value.F("ok", value.NewDouble(1)), value.F("idx", value.NewInt32(int32(i+k))), value.F("n", value.NewInt32(1)))
			}
		}
	}
	return nil
}

// one runs one operation and records its result.
func (b *bulk) one(i int) error {
	name, list, st := b.ops[i].statement()
	reply, err := b.sent(i, name, list, st)
	if err != nil {
		return err
	}
	for _, e := range value.Values(value.Lookup(reply, "writeErrors").Doc()) {
		return writeErrorOf(e.Doc())
	}
	b.noteRetried(reply)
	matched, _ := value.Lookup(reply, "n").AsInt64()
	res := []value.Field{value.F("ok", value.NewDouble(1)), value.F("idx", value.NewInt32(int32(i))), value.F("n", value.NewInt32(int32(matched)))}
	switch name {
	case "insert":
		b.inserted += matched
	case "delete":
		b.deleted += matched
	default:
		mod, _ := value.Lookup(reply, "nModified").AsInt64()
		b.modified += mod
		res = append(res, value.F("nModified", value.NewInt32(int32(mod))))
		if up := value.Values(value.Lookup(reply, "upserted").Doc()); len(up) > 0 {
			b.upserted++
			res = append(res, value.F("upserted", value.NewDocument(value.Doc(value.F("_id", value.Lookup(up[0].Doc(), "_id"))))))
		} else {
			b.matched += matched
		}
	}
	if !b.errorsOnly {
		b.result(res...)
	}
	return nil
}

// endsBulkWrite reports whether an error of a command that was sent for operations is one of which a member makes the error of the whole bulkWrite: its session or its read concern
// does not admit the command, or it was interrupted. Every other error of a command is that of each of its operations: its collection must not be written, or is not the one that
// is meant. (Errors of transactions that clients repeat have labels.)
func endsBulkWrite(err error) bool {
	switch mongoerr.CodeOf(err) {
	case mongoerr.Interrupted, mongoerr.MaxTimeMSExpired, mongoerr.ClientDisconnect, mongoerr.TransactionTooOld, mongoerr.NoSuchTransaction, mongoerr.TransactionCommitted, mongoerr.ConflictingOperationInProgress, mongoerr.IncompleteTransactionHistory,
		mongoerr.OperationNotSupportedInTransaction, mongoerr.InvalidOptions:
		return true
	}
	return mongoerr.In(err, mongoerr.CategorySnapshot)
}

// statement returns an operation as the statement of a command of its own, and the name of that command's list of statements.
func (o *bulkOp) statement() (name, list string, st value.Value) {
	d := o.doc
	if o.kind == "insert" {
		return "insert", "documents", value.Lookup(d, "document")
	}
	name, list = o.kind, o.kind+"s"
	out, mark := value.Begin(nil)
	field := func(names ...string) {
		for _, f := range names {
			if v := value.Lookup(d, f); !command.BulkUnset(f, v) {
				out = value.Append(out, command.BulkFieldOf(f), v)
			}
		}
	}
	field("filter", "hint", "collation")
	if name == "update" {
		field("updateMods", "multi", "upsert", "constants", "arrayFilters", "sort")
	} else {
		limit := int32(1)
		if value.Lookup(d, "multi").Truthy() {
			limit = 0
		}
		out = value.Append(out, "limit", value.NewInt32(limit))
	}
	return name, list, value.NewDocument(value.End(out, mark))
}

// sent runs statements as one command on their collection; the first is the i-th operation.
func (b *bulk) sent(i int, name, list string, statements ...value.Value) ([]byte, error) {
	req, at := &b.op.Req, b.ops[i].at
	db, coll := cluster.SplitNS(b.in[at].name)
	c, mark := value.Begin(nil)
	c = value.Append(c, name, value.NewString(coll))
	c = value.Append(c, list, value.NewArray(value.ArrayOf(statements...)))
	c = value.Append(c, "ordered", value.NewBool(b.ordered))
	c = value.Append(c, "bypassDocumentValidation", req.Arg("bypassDocumentValidation"))
	if name != "insert" {
		c = value.Append(c, "let", req.Arg("let"))
	}
	if name != "delete" {
		c = value.Append(c, "bypassEmptyTsReplacement", req.Arg("bypassEmptyTsReplacement"))
	}
	c = value.Append(c, "collectionUUID", b.in[at].uuid)
	if req.LSID != nil {
		c = value.Append(c, "lsid", value.NewDocument(req.LSID))
	}
	if req.HasTxnNumber {
		c = value.Append(c, "txnNumber", value.NewInt64(req.TxnNumber))
		ids := make([]value.Value, len(statements))
		for k := range ids {
			ids[k] = value.NewInt32(req.StatementID(i + k))
		}
		c = value.Append(c, "stmtIds", value.NewArray(value.ArrayOf(ids...)))
	}
	if req.WriteConcern != nil {
		c = value.Append(c, "writeConcern", value.NewDocument(req.WriteConcern.Doc))
	}
	c = value.End(value.Append(c, "$db", value.NewString(db)), mark)
	m := wire.Message{OpCode: wire.OpMsg, Body: c}
	reply := b.r.Service.Run(b.op, b.r.internalClient(), &m, nil)
	if err := cluster.ReplyError(reply); err != nil {
		if endsBulkWrite(err) {
			b.whole = err
		}
		return nil, err
	}
	if e := cluster.WriteConcernErrorOf(reply); e != nil {
		b.op.SetWriteConcernError(e)
	}
	return reply, nil
}
