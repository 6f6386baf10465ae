package command

import (
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// WorkCounters is what serverStatus.metrics tells of the work that operations did.
type WorkCounters struct {
	returned, keys, docs, sorts, conflicts, scans, tailScans atomic.Int64
	stages                                                   map[string]*atomic.Int64
	names                                                    []string // of stages
}

// Init names the stages that are counted.
func (w *WorkCounters) Init(stages []string) {
	w.names, w.stages = stages, make(map[string]*atomic.Int64, len(stages))
	for _, s := range stages {
		w.stages[s] = new(atomic.Int64)
	}
}

// Note counts an operation that ended.
func (w *WorkCounters) Note(op *Op) {
	st := &op.Stats
	add := func(c *atomic.Int64, n int64) {
		if n != 0 { // most figures of most operations: the line that is shared between cores is left alone
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
	if op.Req.Spec.Name == "aggregate" {
		w.noteStages(op.Req.Doc("pipeline"))
	}
}

func (w *WorkCounters) noteStages(pipeline []byte) {
	for it := value.Walk(pipeline); ; {
		_, stage, ok := it.Next()
		if !ok {
			return
		}
		if stage.T != value.Document {
			continue
		}
		inner := value.Walk(stage.Doc())
		if name, _, ok := inner.Next(); ok {
			if c := w.stages[string(name)]; c != nil {
				c.Add(1)
			}
		}
	}
}

// Stages is metrics.aggStageCounters.
func (w *WorkCounters) Stages() value.Field {
	f := make([]value.Field, 0, len(w.names))
	for _, n := range w.names {
		f = append(f, i64(n, w.stages[n].Load()))
	}
	return subDoc("aggStageCounters", f...)
}

// Returned is how many documents were sent to clients.
func (w *WorkCounters) Returned() int64 { return w.returned.Load() }

// Executor is metrics.operation and metrics.queryExecutor.
func (w *WorkCounters) Executor() []value.Field {
	all := w.scans.Load()
	return []value.Field{
		subDoc("operation", i64("scanAndOrder", w.sorts.Load()), i64("writeConflicts", w.conflicts.Load())),
		subDoc("queryExecutor", i64("scanned", w.keys.Load()), i64("scannedObjects", w.docs.Load()),
			subDoc("collectionScans", i64("nonTailable", all-w.tailScans.Load()), i64("total", all))),
	}
}

// CursorCounts are metrics.cursor's figures of cursors that outlived a batch.
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

// Closed counts a cursor that ended after a life of that length.
func (c *CursorCounts) Closed(life time.Duration) {
	for i, l := range lifespans {
		if life < l.below {
			c.lives[i].Add(1)
			return
		}
	}
	c.lives[len(lifespans)].Add(1)
}

// Doc is metrics.cursor; open are the figures of the cursors that are open.
func (c *CursorCounts) Doc(open ...value.Field) value.Field {
	lives := []value.Field{i64("greaterThanOrEqual10Minutes", c.lives[len(lifespans)].Load())}
	for i, l := range lifespans {
		lives = append(lives, i64(l.name, c.lives[i].Load()))
	}
	return subDoc("cursor", i64("moreThanOneBatch", c.MoreThanOneBatch.Load()), i64("timedOut", c.TimedOut.Load()), i64("totalOpened", c.Opened.Load()),
		subDoc("lifespan", lives...), subDoc("open", open...))
}
