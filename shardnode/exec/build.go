package exec

import (
	"slices"

	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexscan"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// builder turns a plan into an execution tree over one snapshot.
type builder struct {
	e *Executor
	q *Query
	// nodes maps each stage to the node that runs it, for explain and the plan cache; nil if not needed.
	nodes map[*plan.Node]Node
	// timed means that the time of each stage is measured.
	timed bool
	// pace limits the work of the leaves; nil for no limit.
	pace *pace
}

func (b *builder) build(p *plan.Node) (Node, error) {
	x, err := b.stage(p)
	if err != nil || b.nodes == nil {
		return x, err
	}
	if b.timed {
		x = &timedNode{in: x}
	}
	b.nodes[p] = x
	return x, nil
}

func (b *builder) stage(p *plan.Node) (Node, error) {
	q := b.q
	switch p.Stage {
	case plan.EOF:
		return &eofNode{}, nil
	case plan.CollScan:
		var times plan.TimeRange
		if p.Times != nil {
			times = *p.Times
		}
		return &collScan{snap: q.Snap, coll: q.Coll, opts: scanOptions(times, p.Direction < 0), matcher: p.Filter, pace: b.pace}, nil
	case plan.ClusteredScan:
		return b.clusteredScan(p), nil
	case plan.ExpressID:
		return &idLookup{snap: q.Snap, coll: q.Coll, id: p.Value, matcher: p.Filter}, nil
	case plan.IndexScan, plan.CountScan, plan.DistinctScan:
		return b.indexScan(p)
	case plan.FastCount:
		return &collScan{snap: q.Snap, coll: q.Coll}, nil // a count without a plan uses the collection's own count
	}
	switch p.Stage {
	case plan.Or, plan.SortMerge, plan.AndSorted, plan.AndHash:
		return b.union(p)
	}
	if len(p.Inputs) != 1 {
		return nil, command238("plan stage %s", p.Stage)
	}
	in, err := b.build(p.Inputs[0])
	if err != nil {
		return nil, err
	}
	return b.above(p, in)
}

// above builds a stage that has one input.
func (b *builder) above(p *plan.Node, in Node) (Node, error) {
	q := b.q
	switch p.Stage {
	case plan.Fetch:
		return &fetchNode{in: in, snap: q.Snap, coll: q.Coll, matcher: p.Filter}, nil
	case plan.Sort:
		s, err := newSortNode(b.e.env, in, q)
		if err != nil {
			return nil, err
		}
		s.limit = p.Limit
		return s, nil
	case plan.GeoNear2D, plan.GeoNear2DSphere:
		return newNearNode(b.e.env, in, p, q)
	case plan.Limit:
		return &skipLimit{in: in, limit: p.Limit}, nil
	case plan.Skip:
		return &skipLimit{in: in, skip: p.Skip, limit: -1}, nil
	case plan.ShardingFilter:
		if q.Owned == nil {
			return in, nil
		}
		return b.shardFilter(p, in), nil
	case plan.ProjectionCovered:
		return b.covered(p, in), nil
	case plan.ProjectionSimple, plan.ProjectionDefault, plan.SubPlan, plan.Count, plan.TextMatch:
		return in, nil // the projection itself is the stream's work
	}
	return nil, command238("plan stage %s", p.Stage)
}

func command238(format string, args ...any) error {
	return mongoerr.Newf(mongoerr.NotImplemented, format+" is not implemented", args...)
}

// scanOptions limits a scan of the oplog to a time range; a scan of any other collection has no limits.
func scanOptions(t plan.TimeRange, reverse bool) storage.ScanOptions {
	o := storage.ScanOptions{Reverse: reverse}
	if !t.Min.IsMissing() {
		o.From = storage.NewRecordID(t.Min.Int64())
	}
	if !t.Max.IsMissing() {
		o.To = storage.NewRecordID(t.Max.Int64())
	}
	return o
}

func (b *builder) clusteredScan(p *plan.Node) Node {
	o := storage.ScanOptions{Reverse: p.Direction < 0}
	if len(p.IDBounds) == 0 {
		return &eofNode{}
	}
	c := b.q.Collation.Collator()
	o.From = keystring.AppendKey(nil, p.IDBounds[0].Lo, false, c)
	o.To = keystring.After(keystring.AppendKey(nil, p.IDBounds[len(p.IDBounds)-1].Hi, false, c))
	return &collScan{snap: b.q.Snap, coll: b.q.Coll, opts: o, matcher: p.Filter, pace: b.pace}
}

func (b *builder) indexScan(p *plan.Node) (Node, error) {
	idx, ok := p.Index.Handle.(*catalog.Index)
	if !ok {
		return nil, mongoerr.Newf(mongoerr.InternalError, "the plan's index %s has no storage", p.Index.Name)
	}
	x := &ixScan{snap: b.q.Snap, coll: b.q.Coll, idx: idx, back: p.Direction < 0, bounds: indexscan.Compile(p), matcher: p.Filter, dedupe: p.Dedupe, distinct: p.Stage == plan.DistinctScan, pace: b.pace}
	if p.Filter != nil || p.Stage == plan.DistinctScan {
		x.keys = indexscan.NewKeyDoc(p.Bounds)
	}
	x.fields = p.Bounds
	return x, nil
}

// covered makes documents from index keys, for results that need nothing else.
func (b *builder) covered(p *plan.Node, in Node) Node {
	c := &coverNode{in: in, snap: b.q.Snap, coll: b.q.Coll}
	p.Leaves(func(l *plan.Node) {
		for _, k := range c.keys {
			if k.index == l.Index.Handle {
				return
			}
		}
		c.keys = append(c.keys, newCoverKey(p.Projection.Paths, l))
	})
	return c
}

// newCoverKey determines how documents are made from the keys of a scan.
func newCoverKey(paths []string, l *plan.Node) *coverKey {
	k := &coverKey{index: l.Index.Handle, doc: indexscan.NewKeyDocOf(l.Bounds, paths)}
	if l.Stage == plan.DistinctScan {
		return k // one null represents many documents: the distinct command itself resolves its meaning
	}
	for i := range l.Bounds {
		if slices.Contains(paths, l.Bounds[i].Path) && l.Bounds[i].Path != "_id" {
			k.shown = append(k.shown, i)
		}
	}
	return k
}

// shardFilter drops orphans: directly above a scan by its keys, else by the documents.
func (b *builder) shardFilter(p *plan.Node, in Node) Node {
	f := &filterNode{in: in, keep: b.q.Owned}
	if scan := p.Inputs[0]; scan.Stage == plan.IndexScan {
		f.keys = indexscan.NewKeyDocOf(scan.Bounds, b.q.shardKey())
	}
	return f
}

func (b *builder) union(p *plan.Node) (Node, error) {
	ins := make([]Node, len(p.Inputs))
	for i, in := range p.Inputs {
		x, err := b.build(in)
		if err != nil {
			return nil, err
		}
		ins[i] = x
	}
	switch p.Stage {
	case plan.Or:
		return &orNode{ins: ins, seen: map[string]struct{}{}}, nil
	case plan.AndSorted:
		return &andSorted{ins: ins}, nil
	case plan.AndHash:
		return &andHash{ins: ins}, nil
	}
	k, err := newSortKeys(p.SortPattern, b.q.Collation.Collator())
	if err != nil {
		return nil, err
	}
	return &sortMergeNode{ins: ins, keys: k, snap: b.q.Snap, coll: b.q.Coll, seen: map[string]struct{}{}, due: -1, keepKeys: b.q.showsKeys()}, nil
}

// planQuery returns the query in the planner's form.
func (q *Query) planQuery() *plan.Query {
	p := &plan.Query{
		Filter: q.Matcher, Skip: q.Skip, Limit: q.Limit, Hint: q.Hint, Min: q.Min, Max: q.Max,
		CollationDoc: q.Collation.Document(), Collator: q.Collation.Collator(), NoExpress: q.ReturnKey || q.ShowRecordID || q.Tailable,
		ShardFilter: q.Owned != nil, ShardKey: q.shardKey(), Count: q.Count, Distinct: q.Distinct,
	}
	if len(q.Sort) > 5 {
		p.SortPattern = q.Sort
		var natural int
		if p.Sort, natural = plan.ParseSort(q.Sort); natural != 0 && p.Hint.IsMissing() {
			p.Hint = value.NewDocument(q.Sort)
		}
	}
	if q.Fields != nil {
		p.Projection = fieldsProjection(q.Fields)
	}
	if q.proj != nil {
		paths, whole := q.proj.Deps()
		p.Projection = &plan.Projection{Raw: q.rawProj, Paths: paths, Whole: whole || q.ShowRecordID || q.ReturnKey, Inclusion: q.proj.Inclusion(), Simple: q.proj.Simple()}
	}
	return p
}

// showsKeys reports whether results include the index keys that they came from.
func (q *Query) showsKeys() bool {
	return q.ReturnKey || q.proj != nil && slices.Contains(q.proj.Metas(), "indexKey")
}

// fieldsProjection returns the fields that a pipeline reads, as a projection: an index that has all of them
// covers the query.
func fieldsProjection(fields []string) *plan.Projection {
	raw, m := value.Begin(nil)
	id := int32(0)
	for _, f := range fields {
		if f == "_id" {
			id = 1
			continue
		}
		raw = value.Append(raw, f, value.NewInt32(1))
	}
	raw = value.Append(raw, "_id", value.NewInt32(id))
	return &plan.Projection{Raw: value.End(raw, m), Paths: fields, Simple: true, Inclusion: true}
}
