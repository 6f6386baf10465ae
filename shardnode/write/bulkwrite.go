package write

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func bulkWriteSpec(wr *Writer) command.Spec {
	return command.BulkWriteSpec(command.All, wr.runBulkWrite)
}

// bulkNS is an entry of nsInfo.
type bulkNS struct {
	ns   string
	uuid value.Value // the UUID that the client expects, Missing for any

	shardVersion, databaseVersion []byte // the versions sent by a router, nil from others
}

// bulkOp is one operation of a bulkWrite: an insert's document, or a statement.
type bulkOp struct {
	*bulkNS
	doc  []byte     // an insert's
	stmt *statement // an update's or delete's
}

func (o *bulkOp) isInsert() bool { return o.stmt == nil }
func (o *bulkOp) isUpdate() bool { return o.stmt != nil && !o.stmt.u.IsMissing() }

// bulkWrite is a bulkWrite command in progress.
type bulkWrite struct {
	wr         *Writer
	op         *command.Op
	ops        []bulkOp
	ordered    bool
	errorsOnly bool
	w          *Command // for all namespaces; in is the current one
	in         *bulkNS  // whose collection is locked, nil for none: entries of one name may expect different UUIDs
	results    [][]byte
	whole      error           // fails the whole command
	stale      *mongoerr.Error // why it stopped, if the router's placement is out of date

	errors, inserted, matched, modified, upserted, deleted int64
}

func (wr *Writer) runBulkWrite(op *command.Op, dst []byte) ([]byte, error) {
	op.Stats.NS, op.Stats.Type = "admin.$cmd.bulkWrite", "bulkWrite"
	b := &bulkWrite{wr: wr, op: op, ordered: op.BoolOr("ordered", true), errorsOnly: op.Bool("errorsOnly")}
	read, err := b.parse()
	if err != nil {
		return dst, err
	}
	size := read.BatchSize
	if b.w, err = wr.Begin(op); err != nil {
		return dst, err
	}
	defer b.w.release()
	if err := b.w.startRetry(); err != nil {
		return dst, err
	}
	for i := range b.ops {
		if st := b.ops[i].stmt; st != nil {
			if err := b.w.refuseMulti(st, "Cannot use retryable writes with multi=true"); err != nil {
				return dst, err
			}
		}
	}
	b.run()
	if b.whole != nil {
		return dst, b.whole
	}
	if b.stale != nil {
		if len(b.results) == 1 && b.errors == 1 && value.Lookup(b.results[0], "idx").Int32() == 0 {
			return dst, b.stale // nothing was done
		}
		size = 1<<31 - 1 // the router continues after the last result
	}
	if err := b.w.commandError(); err != nil {
		return dst, err
	}
	b.w.Finish()
	wr.Counts.Inserts.Add(b.inserted)
	if dst, err = wr.node.ReplyCursor(op, dst, "admin.$cmd.bulkWrite", b.results, size); err != nil {
		return dst, err
	}
	for _, f := range []struct {
		name string
		n    int64
	}{{"nErrors", b.errors}, {"nInserted", b.inserted}, {"nMatched", b.matched}, {"nModified", b.modified},
		{"nUpserted", b.upserted}, {"nDeleted", b.deleted}} {
		dst = value.Append(dst, f.name, value.NewInt32(int32(f.n)))
	}
	return b.w.appendRetried(dst), nil
}

// parse reads namespaces and operations.
func (b *bulkWrite) parse() (command.BulkWrite, error) {
	var names []*bulkNS
	b.ops = make([]bulkOp, 0, min(b.op.Req.DocList("ops").Count(), command.MaxWriteBatch))
	let := b.op.Req.Doc("let")
	entry := func(d []byte) {
		names = append(names, &bulkNS{"", value.Lookup(d, "collectionUUID"), value.Lookup(d, "shardVersion").Doc(), value.Lookup(d, "databaseVersion").Doc()})
	}
	read, err := command.ReadBulkWrite(b.op, entry, func(kind string, at int64, d []byte) {
		b.ops = append(b.ops, newBulkOp(names[at], kind, d, let))
	})
	for i, ns := range read.Names {
		names[i].ns = ns
	}
	return read, err
}

// newBulkOp makes an operation of its checked document.
func newBulkOp(ns *bulkNS, kind string, d, let []byte) bulkOp {
	if kind == "insert" {
		return bulkOp{bulkNS: ns, doc: value.Lookup(d, "document").Doc()}
	}
	o := bulkOp{bulkNS: ns, stmt: &statement{let: let}}
	if kind == "update" {
		o.stmt.during = duringUpdate
	}
	it := value.Walk(d)
	it.Next() // the kind
	for {
		k, v, ok := it.Next()
		if !ok {
			return o
		}
		if !command.BulkUnset(string(k), v) {
			o.stmt.set(command.BulkFieldOf(string(k)), v)
		}
	}
}

// run runs the operations; consecutive inserts by one entry of nsInfo form a batch.
func (b *bulkWrite) run() {
	for i := 0; i < len(b.ops); {
		end, stop := i+1, false
		if b.ops[i].isInsert() {
			for end < len(b.ops) && b.ops[end].isInsert() && b.ops[end].bulkNS == b.ops[i].bulkNS && end-i < insertUnitDocs {
				end++
			}
			stop = b.insert(i, end)
		} else {
			stop = b.statement(i)
		}
		if stop {
			return
		}
		i = end
	}
}

// acquire acquires the operation's collection and releases the previous one.
func (b *bulkWrite) acquire(o *bulkOp) error {
	ns := o.ns
	if b.in == o.bulkNS {
		return nil
	}
	if err := b.w.mayFollow(); err != nil {
		return err
	}
	b.w.unlockCollection() // the session of a retryable write stays checked out, unless there is a critical section
	b.in = nil
	if err := CheckWritable(b.op, ns); err != nil {
		return err
	}
	b.op.Req.ShardVersion, b.op.Req.DatabaseVer = o.shardVersion, o.databaseVersion
	if err := b.w.waitCritical(b.w.acquireCollection(ns)); err != nil {
		return err
	}
	if id, ok := catalog.UUIDFrom(o.uuid); ok {
		if err := namespace.CheckUUID(b.w.Catalog(), ns, id); err != nil {
			return err
		}
	}
	b.in = o.bulkNS
	return nil
}

// notAcquired is failed for an operation whose collection could not be acquired. In a transaction a transient error is that of the whole command: its label, by which clients repeat the
// transaction, has no place in a result.
func (b *bulkWrite) notAcquired(i int, err error) (stop bool) {
	code := mongoerr.CodeOf(err)
	if b.whole == nil && b.w.Transaction() != nil && code.IsTransientTransaction(false) {
		b.whole = err
	}
	b.w.fail(i, err, b.ordered)
	return b.failed(i, err)
}

// failed records an operation's error; stop reports whether the remaining operations are skipped.
func (b *bulkWrite) failed(i int, err error) (stop bool) {
	ends := b.w.failed(0)
	e := mongoerr.From(err)
	if e.Code.IsStaleRouting() {
		b.stale = e
	}
	b.errors++
	d, m := value.Begin(nil)
	d = value.Append(d, "ok", value.NewDouble(0))
	d = value.Append(d, "idx", value.NewInt32(int32(i)))
	d = appendErrorFields(d, e)
	d = value.Append(d, "n", value.NewInt32(0))
	if b.ops[i].isUpdate() {
		d = value.Append(d, "nModified", value.NewInt32(0))
	}
	b.results = append(b.results, value.End(d, m))
	return ends || b.ordered || isFatal(e.Code)
}

func (b *bulkWrite) succeeded(i int, n int64, more ...value.Field) {
	if b.errorsOnly {
		return
	}
	f := append([]value.Field{value.F("ok", value.NewDouble(1)), value.F("idx", value.NewInt32(int32(i))), value.F("n", value.NewInt32(int32(n)))}, more...)
	b.results = append(b.results, value.Doc(f...))
}

// insert runs the inserts from i up to end.
func (b *bulkWrite) insert(i, end int) (stop bool) {
	ns := b.ops[i].ns
	if err := b.acquire(&b.ops[i]); err != nil {
		for ; i < end && !stop; i++ {
			stop = b.notAcquired(i, err)
		}
		return stop
	}
	before := len(b.w.errs)
	var unit []pendingDoc
	last := end // the first operation that is not attempted
	for k := i; k < end; k++ {
		if _, done := b.w.executed(k); done {
			b.inserted++
			continue
		}
		doc, err := b.w.prepareNew(ns, b.ops[k].doc)
		if err == nil {
			unit = append(unit, pendingDoc{k, doc})
			continue
		}
		if b.w.fail(k, err, b.ordered) {
			last = k + 1
			break
		}
	}
	n, over := b.w.insert(insertUnit{ns: ns, docs: unit, ordered: b.ordered})
	b.inserted += n
	stop = over || last < end
	failed := map[int]error{}
	for _, e := range b.w.errs[before:] {
		failed[e.index] = e.err
	}
	for k := i; k < last; k++ {
		err, bad := failed[k]
		if !bad {
			b.succeeded(k, 1)
			continue
		}
		if b.failed(k, err) {
			return true
		}
	}
	return stop
}

// statement runs one update or delete.
func (b *bulkWrite) statement(i int) (stop bool) {
	o := &b.ops[i]
	if err := b.acquire(o); err != nil {
		return b.notAcquired(i, err)
	}
	b.w.stmt = int32(i)
	if b.w.env != nil && b.w.env.ClusterTime != 0 {
		b.w.env.ClusterTime = b.w.clusterTime() // each statement has a $$CLUSTER_TIME of its own
	}
	r, err := b.w.runNoted(o.ns, o.stmt, false)
	b.matched, b.modified, b.deleted = b.matched+r.matched, b.modified+r.modified, b.deleted+r.deleted
	if err != nil {
		b.w.fail(i, err, b.ordered)
		return b.failed(i, err)
	}
	switch {
	case !o.isUpdate():
		b.wr.Counts.Deletes.Add(1)
		b.succeeded(i, r.deleted)
	case !r.upserted.IsMissing():
		b.wr.Counts.Updates.Add(1)
		b.upserted++
		b.succeeded(i, 1, value.F("nModified", value.NewInt32(0)), value.F("upserted", value.NewDocument(value.Doc(value.F("_id", r.upserted)))))
	default:
		b.wr.Counts.Updates.Add(1)
		b.succeeded(i, r.matched, value.F("nModified", value.NewInt32(int32(r.modified))))
	}
	return false
}
