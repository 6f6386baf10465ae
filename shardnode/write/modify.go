package write

import (
	"strconv"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func findAndModifySpec(wr *Writer) command.Spec {
	return command.Spec{
		Name: "findAndModify", Aliases: []string{"findandmodify"}, Roles: command.All, Kind: command.Write, Namespace: true,
		WriteConcern: true, ReadConcern: true, Txn: true, Retryable: true, API: true, Run: wr.runFindAndModify,
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

// modifyArgs are the arguments of findAndModify.
type modifyArgs struct {
	ns        string
	statement        // the change of one document
	returnNew bool   // whether it returns the document after the change
	fields    []byte // the projection of the returned document
}

func (wr *Writer) runFindAndModify(op *command.Op, dst []byte) ([]byte, error) {
	a, err := parseFindAndModify(op)
	op.Stats.NS, op.Stats.Type = a.ns, "command"
	if err != nil {
		return dst, err
	}
	if err := CheckWritable(op, a.ns); err != nil {
		return dst, err
	}
	w, err := wr.Begin(op)
	if err != nil {
		return dst, err
	}
	if err := w.acquire(a.ns); err != nil {
		return dst, err
	}
	defer w.release()
	st := &a.statement
	var old, next []byte
	st.onWrite = func(o, x []byte) {
		old, next = append(old[:0], o...), append(next[:0], x...)
	}
	w.imageKind = "preImage"
	if a.returnNew {
		w.imageKind = "postImage"
	}
	st.image = func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if a.returnNew {
			return w.keepImage(s, u, next)
		}
		return w.keepImage(s, u, old)
	}
	r, err := w.runStatement(a.ns, st, true)
	op.Stats.Exec = st.wrote(op.Stats.Exec, &r)
	if err != nil {
		return dst, a.showMoved(err)
	}
	shown := old
	if a.returnNew {
		shown = next
	}
	if w.session != nil && len(w.retried) == 0 {
		w.session.Image = append([]byte(nil), shown...)
	}
	w.settle(false)
	if len(shown) > 0 {
		if shown, err = a.project(shown); err != nil {
			return dst, err
		}
	}
	dst = appendModified(dst, st, r, shown)
	if len(w.retried) > 0 {
		dst = value.Append(dst, "retriedStmtId", w.retried[0])
	}
	return dst, nil
}

// parseFindAndModify reads a findAndModify command and checks its arguments against each other.
func parseFindAndModify(op *command.Op) (a modifyArgs, err error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return a, err
	}
	a = modifyArgs{ns: op.Req.NS(coll), returnNew: op.Bool("new"), fields: op.Req.Doc("fields")}
	st := &a.statement
	*st = statement{
		filter: op.Req.Doc("query"), sort: op.Req.Doc("sort"), hint: op.Arg("hint"), collation: op.Arg("collation"),
		let: op.Req.Doc("let"), u: op.Arg("update"), upsert: op.Bool("upsert"), during: duringFindAndModify,
		sampled: sampledWrite{id: op.Arg("sampleId")},
	}
	remove := op.Bool("remove")
	switch st.u.T {
	case value.Null, value.Undefined:
		st.u = value.Value{}
	case value.Missing, value.Document, value.Array:
	default:
		return a, mongoerr.New(mongoerr.FailedToParse, "Update argument must be either an object or an array")
	}
	if id := value.Lookup(st.filter, "_id"); value.Count(st.filter) == 1 && id.T != value.Missing && id.T != value.Document && id.T != value.Regex {
		st.sort = nil // with a single document the order is irrelevant, and not checked
	}
	if f := op.Arg("arrayFilters"); f.T == value.Array {
		if remove {
			return a, mongoerr.New(mongoerr.FailedToParse, "Cannot specify arrayFilters and remove=true")
		}
		st.arrayFilters = value.Values(f.Doc())
		for i, e := range st.arrayFilters {
			if e.T != value.Document {
				return a, command.WrongType("findAndModify.arrayFilters."+strconv.Itoa(i), e.T, command.TObject)
			}
		}
	}
	fail := func(text string) error { return mongoerr.New(mongoerr.FailedToParse, text) }
	switch {
	case remove && !st.u.IsMissing():
		return a, fail("Cannot specify both an update and remove=true")
	case remove && st.upsert:
		return a, fail("Cannot specify both upsert=true and remove=true ")
	case remove && a.returnNew:
		return a, fail("Cannot specify both new=true and remove=true; 'remove' always returns the deleted document")
	case !remove && st.u.IsMissing():
		return a, fail("Either an update or remove=true must be specified")
	case st.u.T == value.Array && len(st.arrayFilters) > 0:
		return a, fail("Cannot specify arrayFilters and a pipeline update")
	}
	return a, command.CheckHint(st.hint)
}

// showMoved adds the command's reply to the error for a document that has to move to another shard; the router
// returns it once the document has moved.
func (a *modifyArgs) showMoved(err error) error {
	if mongoerr.CodeOf(err) != mongoerr.WouldChangeOwningShard {
		return err
	}
	e := mongoerr.From(err)
	kind := "preImage"
	if a.returnNew {
		kind = "postImage"
	}
	shown := value.Lookup(e.Details, kind).Doc()
	if shown == nil {
		return err
	}
	shown, perr := a.project(shown)
	if perr != nil {
		return perr
	}
	return e.WithDetails(value.WithField(e.Details, "value", value.NewDocument(shown)))
}

// project applies `fields` to the document that is returned.
func (a *modifyArgs) project(doc []byte) ([]byte, error) {
	if len(a.fields) <= 5 {
		return doc, nil
	}
	m, err := exec.CompileFilter(a.filter, a.lang.Scope, a.coll)
	if err != nil {
		return nil, err
	}
	p, err := projection.Compile(a.fields, &projection.Options{Collator: a.coll.Collator(), Filter: m, Expr: a.lang.Scope})
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
