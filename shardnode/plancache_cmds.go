package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// planCacheSpecs returns the commands over a collection's plan cache and index filters. Their arguments are not
// type-checked by the pipeline: one of another type counts as missing, or is refused by the command itself.
func (n *Node) planCacheSpecs() []command.Spec {
	row := func(name string, run command.Handler) command.Spec {
		return command.Spec{
			Name: name, Roles: command.All, Namespace: true, Lenient: true, Run: run,
			Fields: []command.Field{
				command.Opt("query", command.TAny), command.Opt("sort", command.TAny), command.Opt("projection", command.TAny),
				command.Opt("collation", command.TAny), command.Opt("indexes", command.TAny),
			},
		}
	}
	return []command.Spec{
		row("planCacheClear", n.runPlanCacheClear), row("planCacheListFilters", n.runListFilters),
		row("planCacheSetFilter", n.runSetFilter), row("planCacheClearFilters", n.runClearFilters),
	}
}

// shapeQuery returns a query on the collection that the command names; its Coll is nil if there is no such
// collection.
func (n *Node) shapeQuery(op *command.Op, s *storage.Snapshot) (*exec.Query, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return nil, err
	}
	q := &exec.Query{NS: op.Req.NS(coll), Snap: s, AllowDiskUse: true}
	op.Stats.NS, op.Stats.Type = q.NS, "command"
	c, ts, err := namespace.FindCollection(s, q.NS)
	if err != nil {
		return nil, err
	}
	if ts != nil {
		return nil, namespace.NotOnView(q.NS)
	}
	q.Coll = c
	return q, nil
}

// shapeOf computes the shape of the arguments; ok is false if they name no query.
func (n *Node) shapeOf(op *command.Op, q *exec.Query) (shape string, ok bool, err error) {
	filter := op.Arg("query")
	if !isObject(filter) {
		return "", false, nil
	}
	doc := func(name string) []byte {
		if v := op.Arg(name); isObject(v) {
			return v.Doc()
		}
		return nil
	}
	q.Filter, q.Sort = filter.Doc(), doc("sort")
	coll := op.Arg("collation")
	if coll.T != value.Document {
		coll = value.Value{}
	}
	spec, err := n.metas.CollationOf(coll, q.Coll)
	if err != nil {
		return "", false, err
	}
	l, err := n.exec.NewLang(op, spec, nil)
	if err != nil {
		return "", false, err
	}
	q.Collation, q.Scope = spec, l.Scope
	shape, err = q.CompileShape(doc("projection"))
	return shape, err == nil, err
}

func (n *Node) runPlanCacheClear(op *command.Op, dst []byte) ([]byte, error) {
	s := n.Engine.Snapshot()
	defer s.Release()
	q, err := n.shapeQuery(op, s)
	if err != nil || q.Coll == nil {
		return dst, err
	}
	shape, one, err := n.shapeOf(op, q)
	if err != nil {
		return dst, err
	}
	if !one {
		n.clearPlans(q.Coll, nil)
		return dst, nil
	}
	n.clearPlans(q.Coll, func(c *plan.Choice) bool { return c.Shape == shape })
	return dst, nil
}

func (n *Node) runListFilters(op *command.Op, dst []byte) ([]byte, error) {
	s := n.Engine.Snapshot()
	defer s.Release()
	q, err := n.shapeQuery(op, s)
	if err != nil {
		return dst, err
	}
	dst, m := value.BeginKey(dst, value.Array, "filters")
	if q.Coll != nil {
		for i, f := range n.exec.Filters.List(q.NS) {
			fields := []value.Field{value.F("query", value.NewDocument(f.Query)), value.F("sort", value.NewDocument(f.Sort)), value.F("projection", value.NewDocument(f.Projection))}
			if f.Collation != nil {
				fields = append(fields, value.F("collation", value.NewDocument(f.Collation)))
			}
			fields = append(fields, value.F("indexes", value.NewArray(value.ArrayOf(f.Indexes...))))
			dst = value.AppendIndex(dst, i, value.NewDocument(value.Doc(fields...)))
		}
	}
	return value.End(dst, m), nil
}

// isObject takes arrays for objects, as the real commands do.
func isObject(v value.Value) bool { return v.T == value.Document || v.T == value.Array }

// filterArgs checks the arguments that identify an index filter: query is required, and each must be a document.
func filterArgs(op *command.Op) error {
	if !isObject(op.Arg("query")) {
		return mongoerr.New(mongoerr.BadValue, "required field query missing or not an object")
	}
	for _, name := range []string{"sort", "projection", "collation"} {
		v := op.Arg(name)
		if !v.IsMissing() && !(isObject(v) && (name != "collation" || v.T == value.Document)) {
			return mongoerr.Newf(mongoerr.BadValue, "optional field %s must be an object", name)
		}
		if name == "collation" && v.T == value.Document && value.Count(v.Doc()) == 0 {
			return mongoerr.New(mongoerr.BadValue, "optional field collation cannot be empty")
		}
	}
	return nil
}

func (n *Node) runSetFilter(op *command.Op, dst []byte) ([]byte, error) {
	s := n.Engine.Snapshot()
	defer s.Release()
	q, err := n.shapeQuery(op, s)
	if err != nil {
		return dst, err
	}
	if q.Coll == nil {
		return dst, mongoerr.New(mongoerr.BadValue, "no such collection")
	}
	list := op.Arg("indexes")
	if list.IsMissing() {
		return dst, mongoerr.New(mongoerr.BadValue, "required field indexes missing")
	}
	if list.T != value.Array {
		return dst, mongoerr.New(mongoerr.BadValue, "required field indexes must be an array")
	}
	f := &exec.IndexFilter{}
	for _, v := range value.Values(list.Doc()) {
		switch {
		case v.T == value.Document && value.Count(v.Doc()) == 0:
			return dst, mongoerr.New(mongoerr.BadValue, "index specification cannot be empty")
		case v.T != value.Document && v.T != value.String:
			return dst, mongoerr.New(mongoerr.BadValue, "each item in indexes must be an object or string")
		}
		f.Indexes = append(f.Indexes, v.Clone())
	}
	if len(f.Indexes) == 0 {
		return dst, mongoerr.New(mongoerr.BadValue, "required field indexes must contain at least one index")
	}
	if err := filterArgs(op); err != nil {
		return dst, err
	}
	shape, _, err := n.shapeOf(op, q)
	if err != nil {
		return dst, err
	}
	keep := func(name string) []byte {
		if d := op.Req.Doc(name); d != nil {
			return append([]byte(nil), d...)
		}
		return value.Doc()
	}
	f.Query, f.Sort, f.Projection = keep("query"), keep("sort"), keep("projection")
	if op.Arg("collation").T == value.Document {
		f.Collation = keep("collation")
	}
	n.exec.Filters.Set(q.NS, shape, f)
	n.clearPlans(q.Coll, func(c *plan.Choice) bool { return c.Shape == shape })
	return dst, nil
}

func (n *Node) runClearFilters(op *command.Op, dst []byte) ([]byte, error) {
	s := n.Engine.Snapshot()
	defer s.Release()
	q, err := n.shapeQuery(op, s)
	if err != nil || q.Coll == nil {
		return dst, err
	}
	if op.Arg("query").IsMissing() {
		for _, name := range []string{"sort", "projection", "collation"} {
			if !op.Arg(name).IsMissing() {
				return dst, mongoerr.New(mongoerr.BadValue, "sort, projection, or collation provided without query")
			}
		}
		n.exec.Filters.Set(q.NS, "", nil)
		n.clearPlans(q.Coll, nil)
		return dst, nil
	}
	if err := filterArgs(op); err != nil {
		return dst, err
	}
	shape, _, err := n.shapeOf(op, q)
	if err != nil {
		return dst, err
	}
	n.exec.Filters.Set(q.NS, shape, nil)
	n.clearPlans(q.Coll, func(c *plan.Choice) bool { return c.Shape == shape })
	return dst, nil
}

// planCache returns a collection's cache of plans.
func (n *Node) planCache(c *catalog.Collection) *plan.Cache { return n.metas.Of(c).Plans.Cache() }

// clearPlans drops the cached plans of a collection for which drop returns true; all if drop is nil.
func (n *Node) clearPlans(c *catalog.Collection, drop func(*plan.Choice) bool) {
	n.planCache(c).Clear(drop)
}

// planCacheStats returns the documents of $planCacheStats.
func (n *Node) planCacheStats(s *storage.Snapshot, ns string) [][]byte {
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return nil
	}
	var out [][]byte
	for _, e := range n.planCache(c).Entries() {
		doc := n.planCacheEntry(ns, &e)
		out = append(out, doc)
	}
	return out
}

// planCacheEntry returns the document of one entry.
func (n *Node) planCacheEntry(ns string, e *plan.Choice) []byte {
	object := func(d []byte) value.Value {
		if d == nil {
			d = value.Doc()
		}
		return value.NewDocument(d)
	}
	o := &e.Origin
	query := []value.Field{value.F("query", object(o.Filter)), value.F("sort", object(o.Sort)), value.F("projection", object(o.Projection))}
	if o.Collation != nil {
		query = append(query, value.F("collation", value.NewDocument(o.Collation)))
	}
	var stats, scores []value.Value
	size := int64(len(e.Shape) + len(e.Key) + len(o.Filter) + len(o.Sort) + len(o.Projection) + 512)
	for _, t := range o.Trials {
		scores = append(scores, value.NewDouble(t.Score))
		stats = append(stats, value.NewDocument(t.Stats))
		size += int64(len(t.Stats))
	}
	d, m := value.Begin(nil)
	for _, f := range []value.Field{
		value.F("version", value.NewString("1")), value.F("queryHash", value.NewString(plan.ShapeHash(e.Shape))),
		value.F("planCacheShapeHash", value.NewString(plan.ShapeHash(e.Shape))), value.F("planCacheKey", value.NewString(e.Key)),
		value.F("isActive", value.NewBool(e.Active)), value.F("works", value.NewInt64(e.Works)), value.F("worksType", value.NewString("works")),
		value.F("timeOfCreation", value.NewTime(o.At)), value.F("createdFromQuery", value.NewDocument(value.Doc(query...))),
		value.F("cachedPlan", value.NewDocument(e.Plan.Explain(nil))), value.F("creationExecStats", value.NewArray(value.ArrayOf(stats...))),
		value.F("candidatePlanScores", value.NewArray(value.ArrayOf(scores...))), value.F("indexFilterSet", value.NewBool(n.exec.Filters.Get(ns, e.Shape) != nil)),
		value.F("estimatedSizeBytes", value.NewInt64(size)), value.F("host", value.NewString(n.host())),
	} {
		d = value.Append(d, f.Key, f.Val)
	}
	return value.End(n.appendShard(d), m)
}
