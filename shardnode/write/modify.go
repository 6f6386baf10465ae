package write

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func findAndModifySpec(n *Writer) command.Spec {
	return command.Spec{
		Name: "findAndModify", Aliases: []string{"findandmodify"}, Roles: command.All, Kind: command.Write, Namespace: true,
		WriteConcern: true, ReadConcern: true, Txn: true, Retryable: true, API: true, Run: n.runFindAndModify,
		Fields: []command.Field{
			command.Opt("query", command.TObject), command.Opt("sort", command.TObject), command.Opt("remove", command.TSafeBool),
			command.Opt("update", command.TAny), command.Opt("new", command.TSafeBool), command.Opt("fields", command.TObject),
			command.Opt("upsert", command.TSafeBool), command.Opt("bypassDocumentValidation", command.TSafeBool),
			command.Opt("collation", command.TObject), command.Opt("arrayFilters", command.TArray),
			command.Opt("hint", command.TAny), command.Opt("let", command.TObject),
			command.Opt("bypassEmptyTsReplacement", command.TSafeBool), command.Opt("collectionUUID", command.TOther),
			command.Opt("runtimeConstants", command.TObject), command.Opt("encryptionInformation", command.TObject),
			command.Opt("sampleId", command.TOther), command.Opt("isTimeseriesNamespace", command.TSafeBool),
		},
	}
}

func (n *Writer) runFindAndModify(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	st, err := parseFindAndModify(op)
	if err != nil {
		return dst, err
	}
	if err := CheckWritable(op, ns); err != nil {
		return dst, err
	}
	w, err := n.Begin(op)
	if err != nil {
		return dst, err
	}
	if err := w.enter(ns); err != nil {
		return dst, err
	}
	defer w.leave()
	var old, next []byte
	st.onWrite = func(o, x []byte) {
		old, next = append(old[:0], o...), append(next[:0], x...)
	}
	w.imageKind = "preImage"
	if op.Bool("new") {
		w.imageKind = "postImage"
	}
	st.image = func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if op.Bool("new") {
			return w.keepImage(s, u, next)
		}
		return w.keepImage(s, u, old)
	}
	r, err := w.runStatement(ns, st, true)
	op.Stats.Exec = st.wrote(op.Stats.Exec, &r)
	if err != nil {
		return dst, n.showMoved(op, st, err)
	}
	w.settle(false)
	shown := old
	if op.Bool("new") {
		shown = next
	}
	if w.session != nil && len(w.retried) == 0 {
		w.session.Image = append([]byte(nil), shown...)
	}
	if len(shown) > 0 {
		if shown, err = n.projectModified(op, st, shown); err != nil {
			return dst, err
		}
	}
	dst = appendModified(dst, st, r, shown)
	if len(w.retried) > 0 {
		dst = value.Append(dst, "retriedStmtId", w.retried[0])
	}
	return dst, nil
}

func parseFindAndModify(op *command.Op) (*statement, error) {
	st := &statement{
		filter: op.Req.Doc("query"), sort: op.Req.Doc("sort"), hint: op.Arg("hint"), collation: op.Arg("collation"),
		let: op.Req.Doc("let"), u: op.Arg("update"), upsert: op.Bool("upsert"), during: duringFindAndModify,
	}
	remove := op.Bool("remove")
	switch st.u.T {
	case value.Null, value.Undefined:
		st.u = value.Value{}
	case value.Missing, value.Document, value.Array:
	default:
		return nil, mongoerr.New(mongoerr.FailedToParse, "Update argument must be either an object or an array")
	}
	if id := value.Lookup(st.filter, "_id"); value.Count(st.filter) == 1 && id.T != value.Missing && id.T != value.Document && id.T != value.Regex {
		st.sort = nil // of one document, no order is asked and none is checked
	}
	if a := op.Arg("arrayFilters"); a.T == value.Array {
		if remove {
			return nil, mongoerr.New(mongoerr.FailedToParse, "Cannot specify arrayFilters and remove=true")
		}
		st.arrayFilters = value.Values(a.Doc())
	}
	fail := func(text string) error { return mongoerr.New(mongoerr.FailedToParse, text) }
	switch {
	case remove && !st.u.IsMissing():
		return nil, fail("Cannot specify both an update and remove=true")
	case remove && st.upsert:
		return nil, fail("Cannot specify both upsert=true and remove=true ")
	case remove && op.Bool("new"):
		return nil, fail("Cannot specify both new=true and remove=true; 'remove' always returns the deleted document")
	case !remove && st.u.IsMissing():
		return nil, fail("Either an update or remove=true must be specified")
	case st.u.T == value.Array && len(st.arrayFilters) > 0:
		return nil, fail("Cannot specify arrayFilters and a pipeline update")
	}
	if err := exec.CheckHint(st.hint); err != nil {
		return nil, err
	}
	return st, nil
}

// showMoved adds to the refusal of a document that has to move what the command answers once it has.
func (n *Writer) showMoved(op *command.Op, st *statement, err error) error {
	if mongoerr.CodeOf(err) != mongoerr.WouldChangeOwningShard {
		return err
	}
	e := mongoerr.From(err)
	kind := "preImage"
	if op.Bool("new") {
		kind = "postImage"
	}
	shown := value.Lookup(e.Details, kind).Doc()
	if shown == nil {
		return err
	}
	shown, perr := n.projectModified(op, st, shown)
	if perr != nil {
		return perr
	}
	return e.WithDetails(value.WithField(e.Details, "value", value.NewDocument(shown)))
}

// projectModified applies `fields` to the document that is returned.
func (n *Writer) projectModified(op *command.Op, st *statement, doc []byte) ([]byte, error) {
	fields := op.Req.Doc("fields")
	if len(fields) <= 5 {
		return doc, nil
	}
	m, err := exec.CompileFilter(st.filter, st.lang.Scope, st.coll)
	if err != nil {
		return nil, err
	}
	p, err := projection.Compile(fields, &projection.Options{Collator: st.coll.Collator(), Filter: m, Expr: st.lang.Scope})
	if err != nil {
		return nil, err
	}
	return p.Apply(nil, doc, nil)
}

func appendModified(dst []byte, st *statement, r result, shown []byte) []byte {
	n := r.matched + r.deleted
	dst, m := value.BeginKey(dst, value.Document, "lastErrorObject")
	if !r.upserted.IsMissing() {
		n = 1
	}
	dst = value.Append(dst, "n", value.NewInt32(int32(n)))
	if !st.u.IsMissing() {
		dst = value.Append(dst, "updatedExisting", value.NewBool(r.matched > 0))
		dst = value.Append(dst, "upserted", r.upserted)
	}
	dst = value.End(dst, m)
	if len(shown) == 0 {
		return value.Append(dst, "value", value.NewNull())
	}
	return value.Append(dst, "value", value.NewDocument(shown))
}
