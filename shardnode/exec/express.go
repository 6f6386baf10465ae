package exec

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// IDOf returns the _id of a filter that is an equality on _id and nothing else. ok is false for every other filter, including one that may
// match other documents than the one that the _id index has under the value.
func IDOf(filter []byte) (id value.Value, ok bool) {
	it := value.Walk(filter)
	k, id, ok := it.Next()
	if !ok || string(k) != "_id" || !pointID(id) {
		return value.Value{}, false
	}
	if id.T == value.Document && value.IsCondition(id.Doc()) {
		return value.Value{}, false
	}
	if _, _, more := it.Next(); more {
		return value.Value{}, false
	}
	return id, true
}

// pointID reports whether an equality on _id with the value is one look-up: arrays and nulls match in several ways.
func pointID(id value.Value) bool {
	switch id.T {
	case value.Array, value.Null, value.Undefined, value.Regex:
		return false
	}
	return true
}

// Express is the read of a document by its _id in one step, without a compiled filter, a plan or nodes: the most common query of all.
type Express struct {
	Snap   *storage.Snapshot
	Coll   *catalog.Collection
	Filter []byte
	ID     value.Value // as IDOf returns it for Filter
	Owned  bool        // the query has an ownership filter, which the caller applies
}

// Begin records the plan of the read as Plan does. It returns false, and records nothing, if the query has to be planned: no index serves it, or
// settings, index filters or the profiler have a say.
func (x *Express) Begin(e *Executor, op *command.Op) bool {
	idx := x.Coll.IDIndex()
	if x.Coll.Collation != nil || idx == nil && (!x.Coll.Clustered || x.Owned) || op.Stats.IndexesUsed != nil || e.observes(op) {
		return false
	}
	if x.Owned {
		if e.Filters.any(x.Coll.NS) || e.env.QuerySettings(op) != nil {
			return false
		}
		e.Counters.Misses.Add(1)
		if op.Stats.Plan == nil {
			op.Stats.Plan = &expressKeys{e, x.Coll, x.Filter}
		}
	}
	if idx != nil {
		idx.Usage.Ops.Add(1)
	}
	op.UsePlan(&expressSummary)
	return true
}

// Read returns the document, which is borrowed until the next call on the snapshot.
func (x *Express) Read(op *command.Op) (doc []byte, ok bool, err error) {
	_, doc, ok, err = x.Snap.FindByID(x.Coll, x.ID)
	if ok && err == nil {
		op.Stats.KeysExamined++
		op.Stats.DocsExamined++
	}
	return doc, ok && err == nil, err
}

// expressKeys computes the keys of an Express once they are asked for, which only the log of slow operations and the profiler do.
type expressKeys struct {
	e      *Executor
	coll   *catalog.Collection
	filter []byte
}

// PlanKeys implements command.PlanKeys.
func (k *expressKeys) PlanKeys() (shape, key string) {
	q := &Query{NS: k.coll.NS, Coll: k.coll, Filter: k.filter}
	if err := q.Compile(nil); err != nil {
		return "", ""
	}
	pc, err := k.e.env.Planning(k.coll).planIndexes()
	if err != nil {
		return "", ""
	}
	return (&planKeys{q: q.planQuery(), c: pc}).PlanKeys()
}
