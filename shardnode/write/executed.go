package write

import (
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
)

// Executed has the facts about a statement of update or delete that the log and the profiler record.
type Executed struct {
	Name     string // of the command
	NS       string
	Stats    *command.Stats
	Doc      []byte // the statement
	Upserted bool
	Err      error
	Took     time.Duration
}

// runNoted is runStatement for a statement that the log and the profiler record as an operation of its own.
func (w *Command) runNoted(ns string, st *statement, last bool) (result, error) {
	before, began := w.Op.Stats, time.Now()
	w.Op.Stats.Exec = nil // that of the previous statement
	r, err := w.runStatement(ns, st, last)
	took := time.Since(began)
	if !w.writer.node.Notes(w.Op.Req.DB, took) {
		return r, err
	}
	s := w.Op.Stats
	s.KeysExamined -= before.KeysExamined
	s.DocsExamined -= before.DocsExamined
	s.Conflicts -= before.Conflicts
	s.KeysInserted -= before.KeysInserted
	s.KeysDeleted -= before.KeysDeleted
	s.NMatched, s.NModified, s.NDeleted = r.matched, r.modified, r.deleted
	x := &Executed{Name: "update", NS: ns, Stats: &s, Doc: value.WithField(st.doc(), "comment", w.Op.Req.Comment), Upserted: !r.upserted.IsMissing(), Err: err, Took: took}
	if st.u.IsMissing() {
		x.Name = "delete"
	}
	s.Exec = st.wrote(s.Exec, &r)
	w.writer.node.NoteStatement(w.Op, x)
	return r, err
}

// wrote adds the statement's own stage above the plan that found its documents.
func (st *statement) wrote(stats command.ExecStats, r *result) command.ExecStats {
	ran, ok := stats.(*exec.Ran)
	if !ok {
		return stats
	}
	w := &exec.Wrote{Ran: ran, Stage: "UPDATE", Matched: r.matched, Modified: r.modified, Deleted: r.deleted, Upserted: !r.upserted.IsMissing()}
	if st.u.IsMissing() {
		w.Stage = "DELETE"
	}
	return w
}

// doc returns the statement in the form of update's and delete's arguments.
func (st *statement) doc() []byte {
	out, m := value.Begin(nil)
	out = value.Append(out, "q", value.NewDocument(st.filter))
	add := func(name string, v value.Value, set bool) {
		if set {
			out = value.Append(out, name, v)
		}
	}
	if st.u.IsMissing() {
		limit := int32(1)
		if st.multi {
			limit = 0
		}
		add("limit", value.NewInt32(limit), true)
		add("collation", st.collation, st.collation.T == value.Document)
		add("hint", st.hint, !st.hint.IsMissing())
		return value.End(out, m)
	}
	add("u", st.u, true)
	add("c", value.NewDocument(st.constants), len(st.constants) > 0)
	add("arrayFilters", value.NewArray(value.ArrayOf(st.arrayFilters...)), len(st.arrayFilters) > 0)
	add("hint", st.hint, !st.hint.IsMissing())
	add("multi", value.NewBool(st.multi), true)
	add("upsert", value.NewBool(st.upsert), true)
	add("collation", st.collation, st.collation.T == value.Document)
	return value.End(out, m)
}
