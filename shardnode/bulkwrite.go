package shardnode

import (
	"sort"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func bulkWriteSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "bulkWrite", Roles: command.All, Kind: command.Write, AdminOnly: true, WriteConcern: true, ReadConcern: true,
		Txn: true, Retryable: true, API: true, Run: n.runBulkWrite,
		Fields: []command.Field{
			command.Req("ops", command.TArray), command.Req("nsInfo", command.TArray), command.Opt("cursor", command.TObject),
			command.Opt("bypassDocumentValidation", command.TSafeBool), command.Opt("ordered", command.TBool), command.Opt("let", command.TObject),
			command.Opt("errorsOnly", command.TBool), command.Opt("bypassEmptyTsReplacement", command.TBool),
		},
	}
}

// bulkOp is one operation of a bulkWrite: a document to insert, or a statement.
type bulkOp struct {
	ns     string
	kind   string // insert, update, delete
	insert []byte
	st     statement
}

// bulk is a bulkWrite at work: its operations and what they did so far.
type bulk struct {
	w       *writeOp
	n       *Node
	ops     []bulkOp
	ordered bool
	results [][]byte
	// onlyErrors leaves the results of what succeeded out.
	onlyErrors bool
	entered    string // the namespace that is locked, empty for none

	errors, inserted, matched, modified, upserted, deleted int64
}

func (n *Node) runBulkWrite(op *command.Op, dst []byte) ([]byte, error) {
	op.Stats.NS, op.Stats.Type = "admin.$cmd.bulkWrite", "bulkWrite"
	b := &bulk{n: n, ordered: op.Req.BoolOr("ordered", true), onlyErrors: op.Bool("errorsOnly")}
	size, err := bulkCursor(op)
	if err != nil {
		return dst, err
	}
	if err := b.parse(op); err != nil {
		return dst, err
	}
	if b.w, err = n.newWriteOp(op); err != nil {
		return dst, err
	}
	defer b.w.leave()
	if err := b.run(op); err != nil {
		return dst, err
	}
	b.w.leave()
	b.w.finish()
	n.sizes.inserts.Add(b.inserted)
	op.Stats.NInserted, op.Stats.NMatched, op.Stats.NModified, op.Stats.NDeleted = b.inserted, b.matched, b.modified, b.deleted
	sort.SliceStable(b.results, func(i, j int) bool { return resultIndex(b.results[i]) < resultIndex(b.results[j]) })
	c := &cursor{ns: "admin.$cmd.bulkWrite", stream: &listStream{docs: b.results}}
	if dst, err = n.firstBatch(op, dst, c, size, false); err != nil {
		return dst, err
	}
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"nErrors", b.errors}, {"nInserted", b.inserted}, {"nMatched", b.matched}, {"nModified", b.modified},
		{"nUpserted", b.upserted}, {"nDeleted", b.deleted},
	} {
		dst = value.Append(dst, f.name, value.NewInt32(int32(f.n)))
	}
	return dst, nil
}

// resultIndex is the operation that a result belongs to.
func resultIndex(doc []byte) int32 { return value.Lookup(doc, "idx").Int32() }

func bulkCursor(op *command.Op) (size int64, err error) {
	size = -1
	for k, v := range value.Elements(op.Req.Doc("cursor")) {
		if k != "batchSize" {
			return 0, command.UnknownField("bulkWrite.cursor." + k)
		}
		if v.IsNullish() {
			continue
		}
		if !v.T.Numeric() {
			return 0, command.WrongType("bulkWrite.cursor.batchSize", v.T, command.TNumber)
		}
		if size = safeInt64(v); size < 0 {
			return 0, mongoerr.Newf(51024, "BSON field 'batchSize' value must be >= 0, actual value '%d'", size)
		}
	}
	return size, nil
}

// parse reads namespaces and operations.
func (b *bulk) parse(op *command.Op) error {
	var names []string
	err := op.Req.DocList("nsInfo").Each("bulkWrite.nsInfo", func(i int, doc []byte) error {
		ns, err := b.namespace(doc)
		names = append(names, ns)
		return err
	})
	if err != nil {
		return err
	}
	list := op.Req.DocList("ops")
	b.ops = make([]bulkOp, 0, list.Count())
	let := op.Req.Doc("let")
	err = list.Each("bulkWrite.ops", func(i int, doc []byte) error {
		o := bulkOp{st: statement{let: let}}
		at, err := o.parse(doc)
		if err != nil {
			return err
		}
		if at < 0 || at >= int64(len(names)) {
			return mongoerr.Newf(mongoerr.BadValue, "BulkWrite ops entry %d has an invalid nsInfo index.", i)
		}
		if op.Req.HasTxnNumber && op.Req.Autocommit.IsMissing() && o.st.multi {
			return mongoerr.New(mongoerr.InvalidOptions, "Cannot use retryable writes with multi=true")
		}
		o.ns = names[at]
		b.ops = append(b.ops, o)
		return nil
	})
	if err != nil {
		return err
	}
	return checkBatch(len(b.ops))
}

// namespace reads an entry of nsInfo.
func (b *bulk) namespace(doc []byte) (string, error) {
	var ns string
	var uuid value.Value
	for k, v := range value.Elements(doc) {
		switch k {
		case "ns":
			if v.IsNullish() {
				continue
			}
			if v.T != value.String {
				return "", command.WrongType("bulkWrite.nsInfo.ns", v.T, command.TString)
			}
			ns = v.Str()
			if err := checkNamespace(ns); err != nil {
				return "", err
			}
		case "collectionUUID":
			uuid = v
		case "encryptionInformation", "shardVersion", "databaseVersion", "isTimeseriesNamespace":
		default:
			return "", command.UnknownField("bulkWrite.nsInfo." + k)
		}
	}
	if ns == "" {
		return "", command.MissingField("bulkWrite.nsInfo.ns")
	}
	if uuid.IsNullish() {
		return ns, nil
	}
	if uuid.T != value.Binary || uuid.Subtype() != 4 || len(uuid.Bytes()) != 16 {
		return "", mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'bulkWrite.nsInfo.collectionUUID' is the wrong type '%s', expected type 'binData'", uuid.T.Name())
	}
	return ns, checkUUID(b.n.Engine.Catalog(), ns, catalog.UUID(uuid.Bytes()))
}

// checkNamespace refuses what is no database and collection.
func checkNamespace(ns string) error {
	db, coll := catalog.DBOf(ns), catalog.CollOf(ns)
	if coll == "" || db == ns || command.CheckDBName(db) != nil || command.CheckCollName(db, coll) != nil {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified for bulkWrite: '%s'", ns)
	}
	return nil
}

// parse reads one operation: its first field says what it is and where.
func (o *bulkOp) parse(doc []byte) (at int64, err error) {
	it := value.Walk(doc)
	k, v, ok := it.Next()
	if !ok {
		return 0, mongoerr.New(mongoerr.BadValue, "BulkWrite operation must not be empty")
	}
	o.kind = string(k)
	path := "bulkWrite." + o.kind + "."
	switch o.kind {
	case "insert", "update", "delete":
	default:
		return 0, command.UnknownField("bulkWrite.ops." + o.kind)
	}
	if v.IsNullish() {
		return 0, command.MissingField(path + o.kind)
	}
	if !v.T.Numeric() {
		return 0, command.WrongType(path+o.kind, v.T, command.TNumber)
	}
	at = safeInt64(v)
	for {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		if err := o.field(path, string(k), v); err != nil {
			return at, err
		}
	}
	switch {
	case o.kind == "insert" && o.insert == nil:
		return at, command.MissingField(path + "document")
	case o.kind != "insert" && o.st.filter == nil:
		return at, command.MissingField(path + "filter")
	case o.kind == "update" && o.st.u.IsMissing():
		return at, command.MissingField(path + "updateMods")
	}
	return at, nil
}

// field reads a field of an operation beside its first.
func (o *bulkOp) field(path, k string, v value.Value) error {
	if o.kind == "insert" {
		if k != "document" {
			return command.UnknownField(path + k)
		}
		return o.doc(path+k, v, &o.insert)
	}
	st := &o.st
	switch {
	case k == "filter":
		return o.doc(path+k, v, &st.filter)
	case k == "multi":
		return o.flag(path+k, v, &st.multi)
	case k == "hint":
		if v.T != value.String && v.T != value.Document {
			return mongoerr.New(mongoerr.FailedToParse, "Hint must be a string or an object")
		}
		st.hint = v
		return nil
	case k == "collation":
		var doc []byte
		if err := o.doc(path+k, v, &doc); err != nil || doc == nil {
			return err
		}
		st.collation = v
		return nil
	case k == "sampleId":
		return nil
	case o.kind == "delete":
		return command.UnknownField(path + k)
	}
	return o.updateField(path, k, v)
}

func (o *bulkOp) updateField(path, k string, v value.Value) error {
	st := &o.st
	switch k {
	case "updateMods":
		if v.T != value.Document && v.T != value.Array {
			return mongoerr.New(mongoerr.FailedToParse, "Update argument must be either an object or an array")
		}
		st.u = v
	case "upsert":
		return o.flag(path+k, v, &st.upsert)
	case "upsertSupplied":
		var ignored bool
		return o.flag(path+k, v, &ignored)
	case "constants":
		return o.doc(path+k, v, &st.constants)
	case "sort":
		return o.doc(path+k, v, &st.sort)
	case "arrayFilters":
		if v.IsNullish() {
			return nil
		}
		if v.T != value.Array {
			return command.WrongType(path+k, v.T, command.TArray)
		}
		st.arrayFilters = value.Values(v.Doc())
		for i, f := range st.arrayFilters {
			if f.T != value.Document {
				return command.WrongType(path+k+"."+itoa(i), f.T, command.TObject)
			}
		}
	default:
		return command.UnknownField(path + k)
	}
	return nil
}

func (o *bulkOp) doc(path string, v value.Value, to *[]byte) error {
	if v.IsNullish() {
		return nil
	}
	if v.T != value.Document {
		return command.WrongType(path, v.T, command.TObject)
	}
	*to = v.Doc()
	return nil
}

func (o *bulkOp) flag(path string, v value.Value, to *bool) error {
	if v.IsNullish() {
		return nil
	}
	if v.T != value.Boolean {
		return command.WrongType(path, v.T, command.TBool)
	}
	*to = v.Bool()
	return nil
}

// run runs the operations in their order; neighbouring inserts into one collection are one unit of work.
func (b *bulk) run(op *command.Op) error {
	for i := 0; i < len(b.ops); {
		end := i + 1
		for b.ops[i].kind == "insert" && end < len(b.ops) && b.ops[end].kind == "insert" && b.ops[end].ns == b.ops[i].ns && end-i < insertUnitDocs {
			end++
		}
		stop, err := b.group(op, i, end)
		if err != nil {
			return err
		}
		if err := b.w.commandError(); err != nil {
			return err
		}
		if stop {
			return nil
		}
		i = end
	}
	return nil
}

// group runs the operations from first up to end, which are inserts of one collection, or one statement.
func (b *bulk) group(op *command.Op, first, end int) (stop bool, err error) {
	o := &b.ops[first]
	failed := len(b.w.errs)
	if err := b.enter(op, o.ns); err != nil {
		if isFatal(mongoerr.CodeOf(err)) {
			return true, err
		}
		for i := first; i < end && !stop; i++ {
			stop = b.w.fail(i, err, b.ordered)
		}
	} else if o.kind == "insert" {
		stop = b.insert(first, end)
	} else {
		stop = b.statement(first)
	}
	for _, e := range b.w.errs[failed:] {
		b.note(b.failure(e))
		b.errors++
	}
	return stop, nil
}

// enter locks the namespace that the next operations work on.
func (b *bulk) enter(op *command.Op, ns string) error {
	if b.entered == ns {
		return nil
	}
	b.w.leave()
	b.entered = ""
	if err := b.n.admin.block.checkTarget(op, ns); err != nil {
		return err
	}
	if err := checkWritable(op, ns); err != nil {
		return err
	}
	if err := b.w.enter(ns); err != nil {
		return err
	}
	b.entered = ns
	return nil
}

func (b *bulk) insert(first, end int) (stop bool) {
	var docs []pendingDoc
	failed := len(b.w.errs)
	flush := func() {
		if len(docs) > 0 && !stop {
			n, s := b.w.insertUnit(b.ops[first].ns, docs, b.ordered, false)
			b.inserted += n
			stop = s
		}
		docs = docs[:0]
	}
	for i := first; i < end && !stop; i++ {
		doc, err := prepareInsert(b.ops[i].insert, b.w.op.Bool("bypassEmptyTsReplacement"), b.w.now)
		if err == nil {
			err = b.w.validateNew(b.ops[i].ns, doc)
		}
		if err == nil {
			docs = append(docs, pendingDoc{i, doc})
			continue
		}
		flush()
		if !stop {
			stop = b.w.fail(i, err, b.ordered)
		}
	}
	flush()
	bad := make(map[int]bool)
	last := end
	for _, e := range b.w.errs[failed:] {
		bad[e.index] = true
		if b.ordered {
			last = e.index
		}
	}
	for i := first; i < last; i++ {
		if !bad[i] {
			b.note(bulkResult(i, 1))
		}
	}
	return stop
}

// note keeps a result; those of successes only where they are wanted.
func (b *bulk) note(doc []byte) {
	if b.onlyErrors && value.Lookup(doc, "ok").Truthy() {
		return
	}
	b.results = append(b.results, doc)
}

func bulkResult(i int, n int64, more ...value.Field) []byte {
	return value.Doc(append([]value.Field{
		value.F("ok", value.NewDouble(1)), value.F("idx", value.NewInt32(int32(i))), value.F("n", value.NewInt32(int32(n))),
	}, more...)...)
}

// failure is the result of an operation that failed.
func (b *bulk) failure(e writeError) []byte {
	out, m := value.Begin(nil)
	out = value.Append(out, "ok", value.NewDouble(0))
	out = value.Append(out, "idx", value.NewInt32(int32(e.index)))
	out = appendErrorFields(out, e.err)
	out = value.Append(out, "n", value.NewInt32(0))
	if b.ops[e.index].kind == "update" {
		out = value.Append(out, "nModified", value.NewInt32(0))
	}
	return value.End(out, m)
}

// statement runs an update or a delete.
func (b *bulk) statement(i int) (stop bool) {
	o := &b.ops[i]
	b.w.stmt = int32(i)
	if err := checkHint(o.st.hint); err != nil {
		return b.w.fail(i, err, b.ordered)
	}
	r, err := b.w.runStatement(o.ns, &o.st, false)
	if o.kind == "delete" {
		b.n.sizes.deletes.Add(1)
		b.deleted += r.deleted
		if err != nil {
			return b.w.fail(i, err, b.ordered)
		}
		b.note(bulkResult(i, r.deleted))
		return false
	}
	b.n.sizes.updates.Add(1)
	b.matched += r.matched
	b.modified += r.modified
	if err != nil {
		return b.w.fail(i, err, b.ordered)
	}
	mod := value.F("nModified", value.NewInt32(int32(r.modified)))
	if r.upserted.IsMissing() {
		b.note(bulkResult(i, r.matched, mod))
		return false
	}
	b.upserted++
	b.note(bulkResult(i, 1, mod, value.F("upserted", value.NewDocument(value.Doc(value.F("_id", r.upserted))))))
	return false
}
