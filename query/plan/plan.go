package plan

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Result is the plans for a query, the one expected to be cheapest first. There is at least one.
type Result struct {
	Candidates []*Node
	// Reached has the limits that excluded plans.
	Reached Reached
}

// Reached are the limits of planning that were reached.
type Reached struct{ Or, And, Explode bool }

// Winner returns the plan to run if there is no trial.
func (r *Result) Winner() *Node { return r.Candidates[0] }

// planner is the state of one Plan.
type planner struct {
	q     *Query
	c     *Collection
	parts []*match.Node // conjuncts of the filter
	hint  *Index
	// natural is the direction of a forced collection scan, 0 if it is not forced.
	natural int
	reached Reached
	first   *use   // of the first index that the filter leads to
	uses    []*use // of all indexes, if there are several
}

// Plan makes the plans for a query over a collection.
func Plan(q *Query, c *Collection) (*Result, error) {
	if q.Filter != nil && q.Filter.Trivial() {
		all := *q
		all.Filter = nil
		q = &all
	}
	p := &planner{q: q, c: c}
	if q.Filter != nil {
		if n := p.express(); n != nil {
			return &Result{Candidates: []*Node{n}}, nil
		}
		root := q.Filter.Root()
		if root.Kind == match.AlwaysFalse {
			return p.only(&Node{Stage: EOF}), nil
		}
		p.parts = conjuncts(root)
	}
	if err := p.readHint(); err != nil {
		return nil, err
	}
	if q.Filter != nil {
		if t := q.Filter.Text(); t != nil {
			return p.text(t)
		}
	}
	if near := p.nearPart(); near != nil {
		return p.near(near)
	}
	if q.Min != nil || q.Max != nil {
		return p.minMax()
	}
	if q.Count && q.Filter == nil && p.hint == nil && !q.ShardFilter && p.natural == 0 {
		return p.only(over(Count, p.skipLimit(&Node{Stage: FastCount}))), nil
	}
	if p.natural != 0 || p.hint == nil && q.Filter == nil && len(q.Sort) == 0 && q.Distinct == "" {
		scan := p.collScan()
		switch {
		case scan.Stage != CollScan || !p.mustUseIndex():
			return p.only(p.finish(scan)), nil
		case p.natural != 0:
			return nil, p.planError(mongoerr.NoQueryExecutionPlans, "hint $natural is not allowed, because 'notablescan' is enabled")
		}
		return nil, p.planError(mongoerr.NoQueryExecutionPlans, "No indexed plans available, and running with 'notablescan' 1")
	}
	return p.candidates()
}

// mustUseIndex reports whether scans of the collection are refused (notablescan), which applies only to users'
// collections.
func (p *planner) mustUseIndex() bool {
	db, coll, _ := strings.Cut(p.c.NS, ".")
	return p.q.knobs().NoTableScan && !strings.HasPrefix(coll, "system.") && db != "admin" && db != "config" && db != "local"
}

func (p *planner) only(n *Node) *Result { return &Result{Candidates: []*Node{n}} }

// express recognises an equality on _id and nothing else, the most common query of all.
func (p *planner) express() *Node {
	q := p.q
	if q.NoExpress || len(q.Sort) > 0 || q.Skip > 0 || q.Hint.T != value.Missing || q.Min != nil || q.Max != nil || q.Count || q.Distinct != "" {
		return nil
	}
	root := q.Filter.Root()
	if root.Kind != match.Eq || root.Path != "_id" {
		return nil
	}
	switch root.Value.T {
	case value.Array, value.Null, value.Undefined, value.Regex:
		return nil
	}
	n := &Node{Stage: ExpressID, Value: root.Value}
	if p.c.Clustered {
		if !sameCollation(q.CollationDoc, p.c.CollationDoc) {
			return nil
		}
		n.Clustered = true
	} else {
		x := p.c.idIndex()
		if x == nil || !sameCollation(q.CollationDoc, x.CollationDoc) || q.Allowed != nil && !q.Allowed(x) {
			return nil
		}
		n.Index = x
	}
	switch {
	case q.ShardFilter:
		if n = over(ShardingFilter, n); q.Projection != nil {
			n = p.project(n)
		}
	case q.Projection != nil:
		n.Projection = q.Projection // a part of the one stage
	}
	return n
}

func (c *Collection) idIndex() *Index {
	for _, x := range c.Indexes {
		if x.IsID {
			return x
		}
	}
	return nil
}

func sameCollation(a, b []byte) bool { return bytes.Equal(a, b) }

// readHint finds the index a hint names.
func (p *planner) readHint() error {
	h := p.q.Hint
	match := func(*Index) bool { return false }
	switch h.T {
	case value.Missing:
		return nil
	case value.String:
		match = func(x *Index) bool { return x.Name == h.Str() }
	case value.Document:
		if n := value.Lookup(h.Doc(), "$natural"); n.T != value.Missing {
			p.natural = 1
			if n.AsFloat64() < 0 {
				p.natural = -1
			}
			return nil
		}
		if value.Count(h.Doc()) == 0 {
			return nil
		}
		match = func(x *Index) bool { return value.CompareDocs(x.KeyPattern, h.Doc(), nil) == 0 }
	}
	for _, x := range p.c.Indexes {
		if match(x) && !x.Hidden {
			p.hint = x
			return nil
		}
	}
	if p.c.Clustered && (h.T == value.String && h.Str() == "_id_" || h.T == value.Document && bsontext.Doc(h.Doc()) == "{ _id: 1 }") {
		p.natural = 1
		return nil
	}
	return p.planError(mongoerr.BadValue, "hint provided does not correspond to an existing index")
}

// planError returns the planner's errors in the form that clients see.
func (p *planner) planError(code mongoerr.Code, reason string) error {
	return mongoerr.Newf(code, "error processing query: %s planner returned error :: caused by :: %s", p.q.describe(p.c.NS), reason)
}

// describe prints a query for an error.
func (q *Query) describe(ns string) string {
	out := "ns=" + ns
	if q.Limit > 0 {
		out += " limit=" + strconv.FormatInt(q.Limit, 10)
	}
	if q.Skip > 0 {
		out += " skip=" + strconv.FormatInt(q.Skip, 10)
	}
	tree, proj := "$and\n", []byte(nil)
	if q.Filter != nil {
		tree = q.Filter.Tree()
	}
	if q.Projection != nil {
		proj = q.Projection.Raw
	}
	out += "Tree: " + tree + "Sort: " + bsontext.Doc(q.SortPattern) + "\nProj: " + bsontext.Doc(proj) + "\n"
	if q.CollationDoc != nil {
		out += "Collation: " + bsontext.Doc(q.CollationDoc) + "\n"
	}
	return out
}

func (p *planner) collScan() *Node {
	n := &Node{Stage: CollScan, Direction: 1}
	if p.natural < 0 {
		n.Direction = -1
	}
	if p.q.Filter != nil {
		n.Filter = p.q.Filter
	}
	if p.c.Clustered && sameCollation(p.q.CollationDoc, p.c.CollationDoc) {
		if l := boundsOn("_id", p.parts); !l.Full() {
			n.Stage, n.IDBounds = ClusteredScan, l
		}
	}
	if p.c.Oplog {
		times := timesOf(p.parts)
		n.Times = &times
	}
	return n
}

// boundsOn returns the bounds of a field by which documents are stored, and which has no arrays.
func boundsOn(path string, parts []*match.Node) Intervals {
	t := target{x: &Index{Fields: []Field{{Path: path}}, MultikeyPaths: []uint64{0}}}
	l := everything()
	for _, n := range parts {
		if n.Leaf() && n.Path == path {
			if one, _, ok := t.boundsOf(n); ok {
				l = intersect(l, one)
			}
		}
	}
	return l
}

// usable reports whether a query may use an index at all.
func (p *planner) usable(x *Index) bool {
	switch {
	case x.Hidden || x.Kind == Other && !geospatial(x):
		return false
	case p.hint != nil:
		return x == p.hint
	case p.q.Allowed != nil && !p.q.Allowed(x):
		return false
	}
	return true
}

// partialFits reports whether all results of the conjunction are in a partial index.
func (p *planner) partialFits(x *Index, parts []*match.Node) bool {
	if x.Partial == nil {
		return true
	}
	if !sameCollation(p.q.CollationDoc, x.CollationDoc) && hasStrings(x.Partial.Root()) {
		return false
	}
	return implies(parts, x.Partial.Root(), p.q.Collator)
}

// candidates tries all indexes.
func (p *planner) candidates() (*Result, error) {
	conj := newConjunction(p.q.Filter, p.parts)
	out := p.overIndexes(conj)
	out = append(out, p.unions()...)
	out = append(out, p.intersections()...)
	if len(p.q.Sort) > 0 && p.hint == nil {
		out = p.sortedByIndex(out, conj)
	}
	if len(out) == 0 && p.q.Distinct != "" && p.q.Filter == nil {
		out = p.distinctScans(out)
	}
	if len(out) == 0 {
		if p.hint != nil {
			return nil, p.planError(mongoerr.NoQueryExecutionPlans, "No query solutions")
		}
		scan := p.collScan()
		if scan.Stage == CollScan && p.mustUseIndex() {
			return nil, p.planError(mongoerr.NoQueryExecutionPlans, "No indexed plans available, and running with 'notablescan' 1")
		}
		out = append(out, p.finish(scan))
	}
	rank(out, p.q)
	if limit := max(p.q.knobs().Plans, 1); len(out) > limit {
		out = out[:limit]
	}
	return &Result{Candidates: out, Reached: p.reached}, nil
}

// overIndexes returns the plans on one index each, and records how they use it.
func (p *planner) overIndexes(conj *conjunction) (out []*Node) {
	for _, x := range p.c.Indexes {
		switch {
		case !p.usable(x):
		case x.Kind == Other && !conj.geoServes(x):
			if x == p.hint {
				out = append(out, p.wholeIndex(x))
			}
		case !p.partialFits(x, p.parts):
			if x == p.hint && x.Kind != Wildcard {
				out = append(out, p.wholeIndex(x))
			}
		case x.Kind == Wildcard:
			out = p.tryWildcard(out, conj, x)
		case !p.collationFits(x, conj):
			if x == p.hint {
				out = append(out, p.wholeIndex(x))
			}
		case x != p.hint && !conj.hasPath(x.Fields[0].Path):
			// Without a predicate on its first field, the filter does not lead to the index (use.leads).
		default:
			u := conj.assign(x, "")
			if leading := u.leads(conj); leading || x == p.hint {
				out = append(out, p.finishIndex(p.indexScan(u), conj, u))
				if leading {
					p.note(u)
				}
			}
		}
	}
	return out
}

// note records a use; a single one needs no allocation.
func (p *planner) note(u *use) {
	switch {
	case p.first == nil:
		p.first = u
		return
	case p.uses == nil:
		p.uses = append(p.uses, p.first)
	}
	p.uses = append(p.uses, u)
}

// leads reports whether the filter has a predicate on the first field of the index.
func (u *use) leads(conj *conjunction) bool {
	return !u.bounds[0].Intervals.Full() || u.served > 0 && conj.hasPath(u.x.Fields[0].Path)
}

// sortedByIndex adds scans of whole indexes that provide the sort, if no plan so far does: an index has every document
// only if it is neither sparse nor hashed.
func (p *planner) sortedByIndex(out []*Node, conj *conjunction) []*Node {
	for _, n := range out {
		if !n.Has(Sort) {
			return out
		}
	}
	for _, x := range p.c.Indexes {
		if !p.usable(x) || x.Sparse || x.Kind != BTree || !p.partialFits(x, p.parts) || !p.collationFits(x, conj) {
			continue
		}
		u := conj.assign(x, "")
		if u.leads(conj) {
			continue
		}
		if n := p.finishIndex(p.indexScan(u), conj, u); !n.Has(Sort) {
			out = append(out, n)
		}
	}
	return out
}

// wholeIndex scans all of an index that a hint forces on a filter that does not use it: results that are not in the
// index are omitted, as such a hint requests.
func (p *planner) wholeIndex(x *Index) *Node {
	conj := newConjunction(p.q.Filter, nil)
	conj.parts = p.parts
	u := conj.assign(x, "")
	return p.finishIndex(p.indexScan(u), conj, u)
}

func (c *conjunction) hasPath(path string) bool {
	for i := range c.preds {
		if c.preds[i].path == path {
			return true
		}
	}
	return false
}

// tryWildcard adds a plan for each path the filter names that the index covers.
func (p *planner) tryWildcard(out []*Node, conj *conjunction, x *Index) []*Node {
	for _, u := range p.wildcardUses(conj, x) {
		out = append(out, p.finishIndex(p.indexScan(u), conj, u))
	}
	return out
}

func (p *planner) wildcardUses(conj *conjunction, x *Index) (out []*use) {
	seen := map[string]bool{}
	for _, f := range x.Fields {
		if f.Kind == Wildcard && hasIndexComponent(f.Path) {
			return nil // there are no keys for arrays in which the number may be an index
		}
	}
	for i := range conj.preds {
		path := conj.preds[i].path
		if seen[path] || !x.Covers(path) || isPlainField(x, path) {
			continue
		}
		seen[path] = true
		at := x.at(path)
		numbered := at.Multikey && hasIndexComponent(path)
		if !p.collationFits(x, conj) || (numbered || !x.CoversBelow(path)) && conj.wantsBelow(path) {
			continue
		}
		u := conj.assign(at, path)
		if !u.servedAt(conj, path) || x.Fields[0].Kind != Wildcard && u.bounds[0].Intervals.Full() || numbered && !u.throughArrays(path) {
			continue
		}
		out = append(out, u)
	}
	if len(seen) == 0 && len(x.Fields) > 1 && x.Fields[0].Kind != Wildcard && p.collationFits(x, conj) {
		if u := conj.assign(x.at(""), ""); !u.bounds[0].Intervals.Full() {
			out = append(out, u)
		}
	}
	return out
}

func (c *conjunction) wantsBelow(path string) bool {
	for i := range c.preds {
		if c.preds[i].path == path && wantsBelow(c.preds[i].test) {
			return true
		}
	}
	return false
}

func isPlainField(x *Index, path string) bool {
	for _, f := range x.Fields {
		if f.Kind != Wildcard && f.Path == path {
			return true
		}
	}
	return false
}

// servedAt reports whether the wildcard's own field has a predicate that bounds it.
func (u *use) servedAt(c *conjunction, path string) bool {
	for i := range u.x.Fields {
		if u.x.Fields[i].Kind != Wildcard {
			continue
		}
		t := target{x: u.x, i: i, multi: u.x.fieldMultikey(i)}
		for k := range c.preds {
			if c.preds[k].path == path {
				if _, _, ok := t.boundsOf(c.preds[k].test); ok {
					return true
				}
			}
		}
	}
	return false
}

// hasIndexComponent reports whether a component of the path may be an array index, which wildcard keys do not have.
func hasIndexComponent(path string) bool {
	for _, part := range strings.Split(path, ".") {
		if part != "" && strings.Trim(part, "0123456789") == "" {
			return true
		}
	}
	return false
}

// collationFits reports whether comparisons of the filter mean the same in the index. If collations differ, only
// predicates without strings may use it.
func (p *planner) collationFits(x *Index, conj *conjunction) bool {
	if sameCollation(p.q.CollationDoc, x.CollationDoc) {
		return true
	}
	for i := range conj.preds {
		n := conj.preds[i].test
		if n.Kind == match.Not {
			n = n.Children[0]
		}
		if hasStrings(n) {
			return false
		}
	}
	return true
}

func hasStrings(n *match.Node) bool {
	if len(n.Regexes) > 0 {
		return true
	}
	for _, v := range append([]value.Value{n.Value}, n.Values...) {
		switch v.T {
		case value.String, value.Symbol, value.Document, value.Array:
			return true
		}
	}
	for _, c := range n.Children {
		if hasStrings(c) {
			return true
		}
	}
	return false
}

// indexScan returns the scan of a use, without the stages above it.
func (p *planner) indexScan(u *use) *Node {
	return &Node{Stage: IndexScan, Index: u.x, Bounds: u.bounds, Direction: 1, Dedupe: u.x.Multikey || u.x.Kind == Wildcard}
}
