package exec

import (
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
)

// Ran is a plan that runs or has run, with the statistics of its stages so far.
type Ran struct {
	plan *plan.Node
	exec executed
}

// kept adds execution statistics to a chosen plan, if they are wanted.
func (c *chosen) kept(want bool) *chosen {
	if want {
		c.ran = &Ran{plan: c.plan, exec: executed{nodes: c.nodes}}
	}
	return c
}

// AppendExecStats implements command.ExecStats: the stages as explain's executionStages has them.
func (r *Ran) AppendExecStats(dst []byte) []byte {
	return value.Append(dst, "execStats", value.NewDocument(r.plan.Explain(r.exec.append)))
}

// Wrote is the stage of a write on top of its plan, and how many documents it changed.
type Wrote struct {
	*Ran
	Stage                      string // UPDATE or DELETE
	Matched, Modified, Deleted int64
	Upserted                   bool
}

// AppendExecStats implements command.ExecStats: the write's stage with the plan below it.
func (w *Wrote) AppendExecStats(dst []byte) []byte {
	name := w.Stage
	if w.plan.Stage == plan.ExpressID {
		name = "EXPRESS_" + name
	}
	dst, m := value.BeginKey(dst, value.Document, "execStats")
	dst = value.Append(dst, "stage", value.NewString(name))
	dst = appendFigures(dst, figures{works: w.exec.figures(w.plan).works + 1, eof: true}, w.exec.took(w.plan))
	if w.Stage == "UPDATE" {
		upserts := int64(0)
		if w.Upserted {
			upserts = 1
		}
		dst = appendCount(dst, "nMatched", w.Matched)
		dst = appendCount(dst, "nWouldModify", w.Modified)
		dst = appendCount(dst, "nWouldUpsert", upserts)
	} else {
		dst = appendCount(dst, "nWouldDelete", w.Deleted)
	}
	dst = value.Append(dst, "inputStage", value.NewDocument(w.plan.Explain(w.exec.append)))
	return value.End(dst, m)
}
