package write

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/update"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ParseExplained reads the one statement of an update, delete or findAndModify that is to be explained.
func ParseExplained(op *command.Op) (st *statement, err error) {
	if op.Req.Spec.Name == "findAndModify" {
		a, err := parseFindAndModify(op)
		return &a.statement, err
	}
	field, parse := "updates", parseUpdates
	if op.Req.Spec.Name == "delete" {
		field, parse = "deletes", parseDeletes
	}
	list := op.Req.DocList(field)
	if list.Count() != 1 {
		return nil, mongoerr.New(mongoerr.InvalidLength, "explained write batches must be of size 1")
	}
	stmts, err := parse(list, op.Req.Doc("let"))
	if err != nil {
		return nil, err
	}
	return &stmts[0], nil
}

// Explain returns the query that finds a statement's documents, and the callback for each document that it would write.
func (wr *Writer) Explain(op *command.Op, ns string, st *statement, s *storage.Snapshot) (*exec.Query, *exec.ExplainedWrite, error) {
	w := wr.With(op, replication.WriteConcern{})
	if err := w.compileStatement(st, s.Catalog().Lookup(ns)); err != nil {
		return nil, nil, err
	}
	q, err := w.newQuery(ns, st, s)
	if err != nil {
		return nil, nil, err
	}
	e := &exec.ExplainedWrite{Stage: "DELETE", One: !st.multi, Upsert: st.upsert}
	e.See = func(*exec.Row) error { e.Matched++; return nil }
	if !st.u.IsMissing() {
		e.Stage = "UPDATE"
		e.See = func(r *exec.Row) error {
			e.Matched++
			ctx := update.Context{Doc: r.Doc, Positional: -1, NowMS: st.lang.Env.NowMS, ClusterTime: w.clusterTime()}
			if err := positional(q, st, &ctx); err != nil {
				return err
			}
			_, changed, err := st.upd.Apply(&ctx)
			if changed {
				e.Modified++
			}
			return err
		}
	}
	return q, e, nil
}
