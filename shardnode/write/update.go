package write

import (
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/command/sampling"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/update"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func updateSpec(wr *Writer) command.Spec {
	return command.Spec{
		Name: "update", Roles: command.All, Kind: command.Write, Namespace: true, WriteConcern: true, ReadConcern: true,
		Txn: true, Retryable: true, API: true, Run: wr.runUpdate,
		Fields: []command.Field{
			command.Req("updates", command.TArray), command.Opt("ordered", command.TSafeBool),
			command.Opt("bypassDocumentValidation", command.TSafeBool), command.Opt("bypassEmptyTsReplacement", command.TSafeBool),
			command.Opt("let", command.TObject), command.Opt("collectionUUID", command.TOther),
			command.Opt("runtimeConstants", command.TObject), command.Opt("encryptionInformation", command.TObject),
			command.Opt("isTimeseriesNamespace", command.TSafeBool), command.Opt(writtenRanges, command.TArray),
		},
	}
}

// statement is one update or delete: the selection of documents, and the change.
type statement struct {
	filter    []byte
	sort      []byte
	hint      value.Value
	collation value.Value
	let       []byte

	u            value.Value // the update; Missing for deletes
	constants    []byte      // c
	arrayFilters []value.Value
	upsert       bool
	multi        bool
	during       string      // the execution that its errors are attributed to
	supply       bool        // upsertSupplied: an upsert inserts the constant "new"
	supplied     value.Value // the constant "new"
	sampled      sampledWrite

	// Set by compileStatement.
	coll *collation.Spec
	lang *exec.Lang
	upd  *update.Update

	// onWrite, if not nil, is called for each changed document: old and new (nil for a delete, or for an insert's
	// old).
	onWrite func(old, new []byte)
	// image, if not nil, stores the reply of findAndModify in the unit of the change.
	image func(s *storage.Snapshot, u *storage.UnitOfWork) error
}

// result is the outcome of a statement.
type result struct {
	matched, modified int64
	deleted           int64
	upserted          value.Value // the _id of the document that an upsert made; Missing if none
}

func (wr *Writer) runUpdate(op *command.Op, dst []byte) ([]byte, error) {
	a, stmts, err := parseBatchOf(op, "updates", parseUpdates)
	op.Stats.NS, op.Stats.Type = a.ns, "update"
	if err != nil {
		return dst, err
	}
	w, err := wr.beginBatch(op, a.ns)
	if err != nil {
		return dst, err
	}
	defer w.release()
	var matched, modified int64
	var upserted []value.Value
	err = w.runBatch(&a, stmts, "Cannot use retryable writes with multi=true", func(i int, r *result) {
		matched += r.matched
		modified += r.modified
		if !r.upserted.IsMissing() {
			matched++
			upserted = append(upserted, value.NewDocument(value.Doc(value.F("index", value.NewInt32(int32(i))), value.F("_id", r.upserted))))
		}
	})
	if err != nil {
		return dst, err
	}
	wr.Counts.Updates.Add(int64(len(stmts)))
	op.Stats.NMatched, op.Stats.NModified = matched, modified
	dst = w.endWrite(value.Append(dst, "n", value.NewInt32(int32(matched))))
	if len(upserted) > 0 {
		dst = value.Append(dst, "upserted", value.NewArray(value.ArrayOf(upserted...)))
	}
	return value.Append(dst, "nModified", value.NewInt32(int32(modified))), nil
}

// runBatch runs the statements of an update or a delete, and calls count with the result of each, including those that failed
// half-way. noMulti is the error of a statement for many documents in a retryable write.
func (w *Command) runBatch(a *batchArgs, stmts []statement, noMulti string, count func(i int, r *result)) error {
	for i := range stmts {
		if err := w.refuseMulti(&stmts[i], noMulti); err != nil {
			return err
		}
	}
	for i := range stmts {
		w.stmt = int32(i)
		r, err := w.runNoted(a.ns, &stmts[i], i == len(stmts)-1 && !stmts[i].multi)
		count(i, &r)
		if err != nil && w.fail(i, err, a.ordered) {
			break
		}
	}
	if err := w.commandError(); err != nil {
		return err
	}
	w.settle(len(stmts) > 1 || stmts[0].multi)
	return nil
}

// settle waits for the write concern if the last commit did not.
func (w *Command) settle(several bool) {
	if several || w.last == 0 || len(w.errs) > 0 || w.Concern.BeyondMajority() {
		w.Finish()
	}
}

// parseBatchOf reads the arguments of update or delete: field is the name of the list of statements, and parse reads them.
func parseBatchOf(op *command.Op, field string, parse func(list command.Docs, let []byte) ([]statement, error)) (a batchArgs, stmts []statement, err error) {
	if a, err = parseBatch(op, field); err == nil {
		stmts, err = parse(a.list, op.Req.Doc("let"))
	}
	return a, stmts, err
}

// parseUpdates reads the statements of an update command.
func parseUpdates(list command.Docs, let []byte) ([]statement, error) {
	out := make([]statement, 0, list.Count())
	err := list.Each("update.updates", func(i int, doc []byte) error {
		st := statement{let: let, during: duringUpdate}
		var q bool
		for it := value.Walk(doc); ; {
			k, v, ok := it.Next()
			if !ok {
				break
			}
			if string(k) == "q" {
				q = true
			}
			if err := st.updateField(string(k), v); err != nil {
				return err
			}
		}
		if !q {
			return command.MissingField("update.updates.q")
		}
		if st.u.IsMissing() {
			return command.MissingField("update.updates.u")
		}
		if st.supply {
			if st.supplied = value.Lookup(st.constants, "new"); st.supplied.T != value.Document {
				return mongoerr.New(mongoerr.FailedToParse, "upsertSupplied needs a document in the constant 'new'")
			}
		}
		out = append(out, st)
		return nil
	})
	return out, err
}

// fieldOf identifies a field of a statement, for the errors of type checks.
type fieldOf struct {
	of, name string
	v        value.Value
}

// is returns nil if ok, otherwise the error for a value that is not of type t.
func (f fieldOf) is(t command.Types, ok bool) error {
	if ok {
		return nil
	}
	return command.WrongType(f.of+f.name, f.v.T, t)
}

// updateField reads a field of a statement of update.
func (st *statement) updateField(k string, v value.Value) error {
	if err := command.CheckUpdateField(k, v); err != nil {
		return err
	}
	st.set(k, v)
	return nil
}

// set sets what a field of a checked statement says.
func (st *statement) set(k string, v value.Value) {
	switch k {
	case "q":
		st.filter = v.Doc()
	case "u":
		st.u = v
	case "c":
		st.constants = v.Doc()
	case "upsert":
		st.upsert = v.Truthy()
	case "multi":
		st.multi = v.Truthy()
	case "hint":
		st.hint = v
	case "collation":
		st.collation = v
	case "sort":
		st.sort = v.Doc()
	case "arrayFilters":
		st.arrayFilters = value.Values(v.Doc())
	case "upsertSupplied":
		st.supply = v.Truthy()
	case "sampleId":
		st.sampled.id = v
	}
}

// compileStatement compiles a statement for the current state of a collection.
func (w *Command) compileStatement(st *statement, c *catalog.Collection) error {
	var err error
	if st.coll, err = w.writer.Compiled.CollationOf(st.collation, c); err != nil {
		return err
	}
	if st.lang, err = w.writer.Exec.NewLang(w.Op, st.coll, st.let); err != nil {
		return err
	}
	if w.env == nil {
		w.env = st.lang.Env
		if w.env.ClusterTime == 0 { // writes have one on a standalone server, too, where reads have none
			w.env.ClusterTime = w.clusterTime()
		}
	}
	st.lang.Env.NowMS, st.lang.Env.ClusterTime = w.env.NowMS, w.env.ClusterTime // one time for the whole command
	if st.multi && len(st.sort) > 5 {
		return mongoerr.New(mongoerr.FailedToParse, "Cannot specify sort with multi=true")
	}
	if st.u.IsMissing() {
		return nil
	}
	if st.constants != nil && st.u.T != value.Array {
		return mongoerr.New(51198, "Constant values may only be specified for pipeline updates")
	}
	for k, v := range value.Elements(st.constants) {
		st.lang.Scope.DefineConst(k, v)
	}
	st.upd, err = update.Compile(st.u, update.Options{
		ArrayFilters: st.arrayFilters, Collator: st.coll.Collator(), Upsert: st.upsert, Multi: st.multi, Scope: st.lang.Scope,
	})
	return err
}

// runStatement runs one update or delete. last means that no statement follows, so its commit may wait for the
// write concern itself.
func (w *Command) runStatement(ns string, st *statement, last bool) (result, error) {
	if w.recordsDiff(st) {
		defer w.noteDiff(ns, st)
	}
	if b := w.bucketsIn(w.Catalog(), ns); b != nil {
		return w.runOnSeries(ns, b, st, last)
	}
	return w.runStored(ns, st, last)
}

// runStored runs a statement on the documents of a collection as they are stored.
func (w *Command) runStored(ns string, st *statement, last bool) (result, error) {
	if err := w.compileStatement(st, w.Catalog().Lookup(ns)); err != nil {
		return result{}, err
	}
	if r, done, err := w.replay(st); done || err != nil {
		return r, err
	}
	if err := w.refuseUnknown(); err != nil {
		return result{}, err
	}
	wc := replication.Visible
	if last {
		wc = w.lastConcern()
	}
	if st.multi {
		r, err := w.runMulti(ns, st)
		if err != nil || r.matched > 0 || !st.upsert {
			return r, err
		}
	}
	var r result
	collisions := int64(0)
	err := w.Retry(func() error {
		if st.onWrite != nil {
			st.onWrite(nil, nil) // discards what an earlier attempt reported
		}
		var err error
		r, err = w.runOne(ns, st, wc)
		if st.upsert && mongoerr.CodeOf(err) == mongoerr.DuplicateKey && w.retryUpsert(ns, st, err) {
			if collisions++; collisions > w.writer.Params.Int("upsertMaxRetryAttemptsOnDuplicateKeyError") {
				return err // the duplicate is a document that no attempt finds, such as an orphan
			}
			return mongoerr.New(mongoerr.WriteConflict, "upsert met a document inserted meanwhile")
		}
		return err
	})
	return r, err
}

// newQuery makes a statement's query against a snapshot.
func (w *Command) newQuery(ns string, st *statement, s *storage.Snapshot) (*exec.Query, error) {
	q := &exec.Query{NS: ns, Snap: s, Coll: s.Catalog().Lookup(ns), Collation: st.lang.Coll, Scope: st.lang.Scope, Filter: st.filter, Sort: st.sort, Hint: st.hint, AllowDiskUse: true}
	var err error
	if q.Owned, err = w.ownedBy(q.Coll); err != nil {
		return nil, err
	}
	return q, q.Compile(nil)
}

// runOne is one attempt at a statement that changes at most one document.
func (w *Command) runOne(ns string, st *statement, wc replication.WriteConcern) (r result, err error) {
	s := w.Snapshot()
	defer s.Release()
	q, err := w.newQuery(ns, st, s)
	if err != nil {
		return r, err
	}
	u := w.Unit(s)
	defer w.Drop(u)
	if q.Coll, err = w.Target(u, s.Catalog(), ns, false); err != nil {
		return r, err
	}
	root, err := w.writer.Exec.Plan(w.Op, q)
	if err != nil {
		return r, err
	}
	defer root.Close()
	var found exec.Row
	ok, err := root.Next(w.Op, &found)
	if err != nil {
		return r, exec.During(st.during, err)
	}
	if !ok {
		if err := w.foundAll(q.Coll, s); err != nil {
			return r, err
		}
		if st.upsert {
			r, err = w.upsert(ns, st, q, u, s.Catalog(), wc)
			return r, exec.During(st.during, err)
		}
		return r, nil
	}
	changed, err := w.writeRow(u, q, st, found.RID.Clone(), found.Doc, &r)
	if err != nil {
		return result{}, exec.During(st.during, err)
	}
	if !changed {
		return r, nil
	}
	if st.image != nil {
		if err := st.image(s, u); err != nil {
			return result{}, err
		}
	}
	return r, w.commitRun(u, wc, w.runOf(&r))
}

// writeRow applies a statement to one document; changed is false if the document remains as it is.
func (w *Command) writeRow(u *storage.UnitOfWork, q *exec.Query, st *statement, rid storage.RecordID, doc []byte, r *result) (changed bool, err error) {
	if w.Transaction() != nil {
		if err := txn.Writable(q.Coll); err != nil {
			return false, err
		}
	}
	if err := checkIdentityWrite(w, q.Coll.NS, doc); err != nil {
		return false, err
	}
	if st.u.IsMissing() {
		if err := w.records.Delete(u, doc); err != nil {
			return false, err
		}
		if err := u.Delete(q.Coll, rid, doc, w.imageInfo(q.NS, nil)); err != nil {
			return false, err
		}
		r.deleted++
		if st.onWrite != nil {
			st.onWrite(doc, nil)
		}
		return true, nil
	}
	ctx := update.Context{Doc: doc, Positional: -1, NowMS: st.lang.Env.NowMS, ClusterTime: w.clusterTime()}
	if err := positional(q, st, &ctx); err != nil {
		return false, err
	}
	next, changed, err := st.upd.Apply(&ctx)
	if err != nil {
		return false, err
	}
	r.matched++
	if st.upd.IsReplacement() {
		changed = true // a replacement always counts, even by an equal document
	}
	if !changed {
		if st.onWrite != nil {
			st.onWrite(doc, doc)
		}
		return false, nil
	}
	if len(next) > maxStoredSize {
		return false, mongoerr.Newf(17419, "Resulting document after update is larger than %d", maxStoredSize)
	}
	if err := w.validate(q.Coll, next, doc); err != nil {
		return false, err
	}
	if st.sampled.on {
		st.sampled.diff = sampling.Diff(doc, next) // an update that moves the document ends here with an error
	}
	if next, err = w.replace(u, q, st, rid, &ctx, next); err != nil {
		return false, err
	}
	r.modified++
	w.noteWritten(q.NS, next)
	if st.onWrite != nil {
		st.onWrite(doc, next)
	}
	return true, nil
}

// replace stages the new form of a document, and returns it as it is stored.
func (w *Command) replace(u *storage.UnitOfWork, q *exec.Query, st *statement, rid storage.RecordID, ctx *update.Context, next []byte) ([]byte, error) {
	doc := ctx.Doc
	if err := w.checkOwner(q, st, doc, next); err != nil {
		return nil, err
	}
	o := st.upd.OplogEntry(ctx, next)
	if w.records != nil {
		var err error
		if next, err = w.records.Put(u, doc, next); err != nil {
			return nil, err
		}
		o = nil // the whole document
	}
	return next, u.Update(q.Coll, rid, doc, next, w.imageInfo(q.NS, o))
}

// positional finds the array element that the $ operator refers to, if the update has one.
func positional(q *exec.Query, st *statement, ctx *update.Context) error {
	if !st.upd.NeedsPositional() || q.Matcher == nil {
		return nil
	}
	var d match.Detail
	if _, err := q.Matcher.MatchDetail(ctx.Doc, &d); err != nil {
		return err
	}
	ctx.Positional = d.ArrayIndex
	return nil
}

// info returns the oplog information of a write.
func (w *Command) info(ns string, o []byte) storage.OpInfo {
	info := storage.OpInfo{O: o, StmtID: -1, Key: w.documentKey(ns)}
	if w.Op.Req.HasTxnNumber {
		info.StmtID = w.stmtID(int(w.stmt))
	}
	return info
}

// imageInfo is info for a write that stores one of its documents for retries.
func (w *Command) imageInfo(ns string, o []byte) storage.OpInfo {
	info := w.info(ns, o)
	if w.imageKind != "" && w.session != nil {
		info.Extra = value.Doc(value.F("needsRetryImage", value.NewString(w.imageKind)))
	}
	return info
}

// documentKey returns the function that makes the document keys in a sharded collection's oplog entries; nil
// if the key is the _id alone.
func (w *Command) documentKey(ns string) func(doc []byte) []byte {
	if s := w.writer.node.Sharding(); s != nil && w.Op.Req.ShardVersion != nil {
		return s.DocumentKey(w.Op, ns)
	}
	return nil
}

// noteWritten counts the documents that this shard writes for a router.
func (w *Command) noteWritten(ns string, doc []byte) {
	if s := w.writer.node.Sharding(); s != nil && w.Op.Req.ShardVersion != nil {
		s.NoteWritten(ns, doc)
	}
}

func (w *Command) clusterTime() uint64 {
	return uint64(w.writer.Engine.Visible()) + 1
}

// upsert inserts the document that a statement creates if nothing matched.
func (w *Command) upsert(ns string, st *statement, q *exec.Query, u *storage.UnitOfWork, cat *catalog.Snapshot, wc replication.WriteConcern) (r result, err error) {
	ctx := update.Context{Insert: true, Positional: -1, NowMS: st.lang.Env.NowMS, ClusterTime: w.clusterTime()}
	doc := st.supplied.Doc()
	if doc == nil {
		doc, err = st.upd.NewUpsertDocument(st.filter, &ctx, func() value.Value { return value.NewObjectID(cluster.NewObjectID()) })
	}
	if err != nil {
		return r, err
	}
	// Only inserted documents and replacements have their empty timestamps filled with the time.
	doc, err = prepareInsert(doc, w.keepTS || st.supplied.Doc() == nil && !st.upd.IsReplacement(), w.now)
	if err != nil {
		return r, err
	}
	c, err := w.Target(u, cat, ns, true)
	if err != nil {
		return r, err
	}
	if err := w.validate(c, doc, nil); err != nil {
		return r, err
	}
	if err := w.checkUpsert(ns, doc); err != nil {
		return r, err
	}
	if w.records != nil {
		if doc, err = w.records.Put(u, nil, doc); err != nil {
			return r, err
		}
	}
	if _, err := u.Insert(c, doc, w.imageInfo(c.NS, nil)); err != nil {
		return r, err
	}
	if st.onWrite != nil {
		st.onWrite(nil, doc)
	}
	if st.image != nil {
		if err := st.image(q.Snap, u); err != nil {
			return r, err
		}
	}
	r.upserted = value.Lookup(doc, "_id")
	w.noteWritten(ns, doc)
	if err := w.commitRun(u, wc, w.runOf(&r)); err != nil {
		return result{}, err
	}
	return r, nil
}

// retryUpsert reports whether an upsert that met a duplicate key may be retried as an update: the filter must
// consist of equalities on exactly the fields of the unique index with the values that collided, and compare
// them as the index does. Otherwise the next attempt would find nothing and collide again, forever.
func (w *Command) retryUpsert(ns string, st *statement, err error) bool {
	details := mongoerr.From(err).Details
	pattern, key := value.Lookup(details, "keyPattern"), value.Lookup(details, "keyValue")
	asked, ok := equalities(st.filter, nil)
	if pattern.T != value.Document || !ok || len(asked) != value.Count(pattern.Doc()) {
		return false
	}
	coll := st.coll
	if c := w.Catalog().Lookup(ns); c != nil {
		for _, ix := range c.Indexes {
			if ix.Unique && string(ix.Spec.KeyPattern) == string(pattern.Doc()) && !collation.Same(ix.Spec.Collation, coll) {
				return false
			}
		}
	}
	for k := range value.Elements(pattern.Doc()) {
		v, asks := asked[k]
		had := value.Lookup(key.Doc(), k)
		if !asks || had.T == value.Missing {
			return false
		}
		hidden := coll != nil && v.T == value.String // the error shows a sort key in its place
		if !hidden && value.Compare(v, had) != 0 {
			return false
		}
	}
	return true
}

// equalities returns the values that a filter requires paths to equal; ok is false if it has other conditions, too.
func equalities(filter []byte, into map[string]value.Value) (map[string]value.Value, bool) {
	if into == nil {
		into = map[string]value.Value{}
	}
	for k, v := range value.Elements(filter) {
		switch {
		case k == "$and" && v.T == value.Array:
			for _, part := range value.Values(v.Doc()) {
				if part.T != value.Document {
					return nil, false
				}
				if _, ok := equalities(part.Doc(), into); !ok {
					return nil, false
				}
			}
			continue
		case v.T == value.Document && value.IsOperatorDoc(v.Doc()):
			if eq := value.Lookup(v.Doc(), "$eq"); !eq.IsMissing() && value.Count(v.Doc()) == 1 {
				v = eq
				break
			}
			return nil, false
		case v.T == value.Regex || strings.HasPrefix(k, "$"):
			return nil, false
		}
		into[k] = v
	}
	return into, true
}
