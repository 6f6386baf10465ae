package shardnode

import (
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
)

// runNoted is runStatement for a statement that the log and the profiler tell of by itself, as of an operation.
func (w *writeOp) runNoted(ns string, st *statement, last bool) (result, error) {
	before, began := w.op.Stats, time.Now()
	w.op.Stats.Exec = nil // that of the statement before
	r, err := w.runStatement(ns, st, last)
	took, p := time.Since(began), &w.n.admin.profiler
	if set := p.of(w.op.Req.DB); took.Milliseconds() < p.slowMS.Load() && set.level < 2 && set.filter == nil {
		return r, err
	}
	s := w.op.Stats
	s.KeysExamined -= before.KeysExamined
	s.DocsExamined -= before.DocsExamined
	s.Conflicts -= before.Conflicts
	s.KeysInserted -= before.KeysInserted
	s.KeysDeleted -= before.KeysDeleted
	s.NMatched, s.NModified, s.NDeleted = r.matched, r.modified, r.deleted
	x := &execution{op: w.op, name: "update", ns: ns, stats: &s, statement: st.doc(), upserted: !r.upserted.IsMissing(), err: err, took: took}
	if st.u.IsMissing() {
		x.name = "delete"
	}
	s.Exec = st.wrote(s.Exec, &r)
	w.n.note(x)
	return r, err
}

// wrote puts the statement's own stage above the plan that found its documents.
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

// doc is the statement as update and delete take it.
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
