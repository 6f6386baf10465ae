package exec

import (
	"strconv"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
)

// timedNode wraps each stage of an explained plan and measures the time that it and its inputs take.
type timedNode struct {
	in   Node
	took time.Duration
}

func (t *timedNode) Next(op *command.Op, r *Row) (bool, error) {
	start := time.Now()
	ok, err := t.in.Next(op, r)
	t.took += time.Since(start)
	return ok, err
}

func (t *timedNode) Save()             { t.in.Save() }
func (t *timedNode) Close()            { t.in.Close() }
func (t *timedNode) stats() *nodeStats { return t.in.stats() }

// figures are the fields common to every stage in executionStats.
type figures struct {
	advanced, works int64
	eof             bool
}

// executed collects the figures of plans that ran.
type executed struct {
	nodes map[*plan.Node]Node
}

func (e *executed) stats(p *plan.Node) *nodeStats {
	if t := e.nodes[p]; t != nil {
		return t.stats()
	}
	return &nodeStats{}
}

// figures derives the works of a stage from the statistics of the stage and its inputs: each unit of work returns a
// result, needs another unit, or finds the end.
func (e *executed) figures(p *plan.Node) figures {
	st := e.stats(p)
	f := figures{advanced: st.advanced, eof: st.eof}
	end := int64(0)
	if st.eof {
		end = 1
	}
	switch p.Stage {
	case plan.CollScan, plan.ClusteredScan:
		f.works = st.docs + end
	case plan.IndexScan, plan.CountScan, plan.DistinctScan:
		f.works = st.keys + end
	case plan.EOF:
		f.works = 1
	case plan.Count:
		in := e.figures(p.Inputs[0])
		return figures{works: in.works, eof: true}
	case plan.Limit:
		f.eof = true
		f.works = st.advanced + 1
	default:
		for _, in := range p.Inputs {
			f.works += e.figures(in).works
		}
		switch p.Stage {
		case plan.Sort:
			f.works += st.advanced + end
		case plan.SortMerge:
			f.works += st.advanced // it finds its end without a further unit
		case plan.SubPlan:
			if p.Inputs[0].Stage == plan.SortMerge || p.Inputs[0].Stage == plan.Fetch && p.Inputs[0].Inputs[0].Stage == plan.SortMerge {
				f.works += end
			}
		}
	}
	return f
}

// totals adds up the keys and documents that a plan examined.
func (e *executed) totals(p *plan.Node) (keys, docs int64) {
	for _, in := range p.Inputs {
		k, d := e.totals(in)
		keys, docs = keys+k, docs+d
	}
	if e.passes(p) {
		return keys, docs
	}
	st := e.stats(p)
	return keys + st.keys, docs + st.docs
}

// passes reports whether a stage has no node of its own, so that the work of its input is not counted twice.
func (e *executed) passes(p *plan.Node) bool {
	return len(p.Inputs) == 1 && e.nodes[p] != nil && e.nodes[p.Inputs[0]] != nil && e.stats(p) == e.stats(p.Inputs[0])
}

// append is the plan.Figures of a plan that ran.
func (e *executed) append(p *plan.Node, dst []byte, own bool) []byte {
	if express := p.Stage == plan.ExpressID || p.Stage == plan.ExpressIndex; express {
		if !own {
			return dst
		}
		st := e.stats(p)
		dst = appendCount(dst, "keysExamined", st.keys)
		dst = appendCount(dst, "docsExamined", st.docs)
		return appendCount(dst, "nReturned", st.advanced)
	}
	if !own {
		f := e.figures(p)
		return appendFigures(dst, f, e.took(p))
	}
	return e.appendOwn(p, dst)
}

func (e *executed) took(p *plan.Node) time.Duration {
	if t, ok := e.nodes[p].(*timedNode); ok {
		return t.took
	}
	return 0
}

func appendFigures(dst []byte, f figures, took time.Duration) []byte {
	need := f.works - f.advanced
	if f.eof {
		need--
	}
	dst = appendCount(dst, "nReturned", f.advanced)
	dst = value.Append(dst, "executionTimeMillisEstimate", value.NewInt64(took.Milliseconds()))
	dst = appendCount(dst, "works", f.works)
	dst = appendCount(dst, "advanced", f.advanced)
	dst = appendCount(dst, "needTime", max(need, 0))
	dst = appendCount(dst, "needYield", 0)
	dst = appendCount(dst, "saveState", 0)
	dst = appendCount(dst, "restoreState", 0)
	eof := int32(0)
	if f.eof {
		eof = 1
	}
	return value.Append(dst, "isEOF", value.NewInt32(eof))
}

// appendOwn appends the fields that are specific to this kind of stage.
func (e *executed) appendOwn(p *plan.Node, dst []byte) []byte {
	st := e.stats(p)
	switch p.Stage {
	case plan.CollScan, plan.ClusteredScan:
		dst = appendCount(dst, "docsExamined", st.docs)
	case plan.IndexScan:
		dst = appendCount(dst, "keysExamined", st.keys)
		dst = appendCount(dst, "seeks", st.seeks)
		tested := int64(0)
		if p.Dedupe {
			tested = st.keys
		}
		dst = appendCount(dst, "dupsTested", tested)
		dst = appendCount(dst, "dupsDropped", st.rejected)
	case plan.CountScan, plan.DistinctScan:
		dst = appendCount(dst, "keysExamined", st.keys)
	case plan.Fetch:
		dst = appendCount(dst, "docsExamined", st.docs)
		dst = appendCount(dst, "alreadyHasObj", st.again)
	case plan.Sort:
		dst = value.Append(dst, "totalDataSizeSorted", value.NewInt64(st.memory))
		dst = value.Append(dst, "usedDisk", value.NewBool(st.spills > 0))
		dst = value.Append(dst, "spills", value.NewInt64(st.spills))
		dst = value.Append(dst, "spilledRecords", value.NewInt64(st.spilled))
		dst = value.Append(dst, "spilledBytes", value.NewInt64(st.spilledBytes))
		dst = value.Append(dst, "spilledDataStorageSize", value.NewInt64(st.spilledBytes))
	case plan.Or, plan.SortMerge:
		dst = appendCount(dst, "dupsTested", e.inputs(p))
		dst = appendCount(dst, "dupsDropped", st.rejected)
	case plan.AndSorted:
		for i, n := range st.failed {
			dst = appendCount(dst, "failedAnd_"+strconv.Itoa(i), n)
		}
	case plan.AndHash:
		dst = value.Append(dst, "memUsage", value.NewInt64(st.memory))
		dst = value.Append(dst, "memLimit", value.NewInt64(maxHashed))
		for i, n := range st.failed {
			dst = appendCount(dst, "mapAfterChild_"+strconv.Itoa(i), n)
		}
	case plan.ShardingFilter:
		dst = appendCount(dst, "chunkSkips", st.rejected)
	case plan.Count:
		dst = appendCount(dst, "nCounted", e.inputs(p))
		dst = appendCount(dst, "nSkipped", 0)
	}
	return dst
}

// inputs counts the results that a stage received from its inputs.
func (e *executed) inputs(p *plan.Node) (n int64) {
	for _, in := range p.Inputs {
		n += e.stats(in).advanced
	}
	return n
}

// appendCount appends a number as an int if it fits, like explain's counters.
func appendCount(dst []byte, key string, n int64) []byte {
	return value.Append(dst, key, value.NewInt(n))
}
