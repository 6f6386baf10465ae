package command

import (
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/query/usage"
	"github.com/shoaldb/shoal/query/value"
)

// WorkCounters are the counters of serverStatus.metrics for the work of operations.
type WorkCounters struct {
	returned, keys, docs, sorts, conflicts, scans, tailScans atomic.Int64
	used                                                     *usage.Counters
}

// Init creates the counters of stages and operators.
func (w *WorkCounters) Init() { w.used = usage.New() }

// Note counts an operation that has ended.
func (w *WorkCounters) Note(op *Op) {
	st := &op.Stats
	add := func(c *atomic.Int64, n int64) {
		if n != 0 { // most counters are zero for most operations: avoid writing to the shared cache line
			c.Add(n)
		}
	}
	add(&w.returned, st.NReturned)
	add(&w.keys, st.KeysExamined)
	add(&w.docs, st.DocsExamined)
	add(&w.conflicts, st.Conflicts)
	add(&w.scans, st.CollScans)
	add(&w.tailScans, st.TailScans)
	if st.HasSortStage {
		w.sorts.Add(1)
	}
	w.noteUses(op)
}

// noteUses counts the stages and operators of a command, and of its statements.
func (w *WorkCounters) noteUses(op *Op) {
	list := ""
	switch op.Req.Spec.Name {
	case "update":
		list = "updates"
	case "delete":
		list = "deletes"
	case "bulkWrite":
		list = "ops"
	case "findAndModify":
		w.noteUpdate(op, op.Req.Body, "update")
		fallthrough
	case "find", "aggregate", "count", "distinct":
		w.used.Count(op.Req.Body)
		return
	default:
		return
	}
	// A list that is malformed has been refused with an error of its own.
	_ = op.Req.DocList(list).Each(list, func(_ int, doc []byte) error {
		w.used.Count(doc)
		switch list {
		case "updates":
			w.noteUpdate(op, doc, "u")
		case "ops":
			w.noteUpdate(op, doc, "updateMods")
		}
		return nil
	})
}

// noteUpdate counts the special features of an update: array filters, a pipeline in place of operators.
func (w *WorkCounters) noteUpdate(op *Op, statement []byte, field string) {
	if !value.Lookup(statement, "arrayFilters").IsMissing() {
		op.Service.CounterOf(op.Req.Spec).ArrayFilters.Add(1)
	}
	if value.Lookup(statement, field).T == value.Array {
		op.Service.CounterOf(op.Req.Spec).Pipelines.Add(1)
	}
}

// Uses returns metrics.aggStageCounters and metrics.operatorCounters.
func (w *WorkCounters) Uses() []value.Field {
	return []value.Field{value.F("aggStageCounters", value.NewDocument(w.used.Stages.Doc())), value.F("operatorCounters", value.NewDocument(w.used.Operators()))}
}

// Returned returns how many documents were sent to clients.
func (w *WorkCounters) Returned() int64 { return w.returned.Load() }

// Executor returns metrics.operation and metrics.queryExecutor.
func (w *WorkCounters) Executor() []value.Field {
	all := w.scans.Load()
	return []value.Field{
		subDoc("operation", i64("scanAndOrder", w.sorts.Load()), i64("writeConflicts", w.conflicts.Load())),
		subDoc("queryExecutor", i64("scanned", w.keys.Load()), i64("scannedObjects", w.docs.Load()),
			subDoc("collectionScans", i64("nonTailable", all-w.tailScans.Load()), i64("total", all))),
	}
}

// CursorCounts are the counters in metrics.cursor of cursors that outlived a batch.
type CursorCounts struct {
	Opened, TimedOut, MoreThanOneBatch atomic.Int64
	lives                              [len(lifespans) + 1]atomic.Int64
}

var lifespans = [...]struct {
	below time.Duration
	name  string
}{
	{time.Second, "lessThan1Second"}, {5 * time.Second, "lessThan5Seconds"}, {15 * time.Second, "lessThan15Seconds"},
	{30 * time.Second, "lessThan30Seconds"}, {time.Minute, "lessThan1Minute"}, {10 * time.Minute, "lessThan10Minutes"},
}

// Closed counts a cursor that has ended, with its lifetime.
func (c *CursorCounts) Closed(life time.Duration) {
	for i, l := range lifespans {
		if life < l.below {
			c.lives[i].Add(1)
			return
		}
	}
	c.lives[len(lifespans)].Add(1)
}

// Doc returns metrics.cursor; open has the figures of the open cursors.
func (c *CursorCounts) Doc(open ...value.Field) value.Field {
	lives := []value.Field{i64("greaterThanOrEqual10Minutes", c.lives[len(lifespans)].Load())}
	for i, l := range lifespans {
		lives = append(lives, i64(l.name, c.lives[i].Load()))
	}
	return subDoc("cursor", i64("moreThanOneBatch", c.MoreThanOneBatch.Load()), i64("timedOut", c.TimedOut.Load()), i64("totalOpened", c.Opened.Load()),
		subDoc("lifespan", lives...), subDoc("open", open...))
}
