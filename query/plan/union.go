package plan

import (
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// union plans an $or, the whole filter or one conjunct of it, as a union of index scans: each branch must have one. nil
// where some branch has none.
func (p *planner) union() *Node {
	if p.q.Filter == nil {
		return nil
	}
	var best *Node
	for i, n := range p.parts {
		if n.Kind != match.Or {
			continue
		}
		if u := p.unionOf(n, i); u != nil && (best == nil || cost(u) < cost(best)) {
			best = u
		}
	}
	return best
}

func (p *planner) unionOf(or *match.Node, at int) *Node {
	var beside []*match.Node
	for i, n := range p.parts {
		if i != at {
			beside = append(beside, n)
		}
	}
	out := &Node{Stage: Or}
	for _, b := range or.Children {
		in := p.branch(b, beside)
		if in == nil {
			return nil
		}
		out.Inputs = append(out.Inputs, in)
	}
	out = p.mergeSorted(out)
	f := over(Fetch, out)
	if len(beside) > 0 {
		f.Filter = p.q.Filter.Sub(beside...) // each branch checks its own part of the $or
		return f
	}
	return over(SubPlan, f)
}

// branch is the best index scan for one branch of an $or, with a fetch above it only if something is left to check. What
// stands beside the $or narrows the bounds, too.
func (p *planner) branch(b *match.Node, beside []*match.Node) *Node {
	own := conjuncts(b)
	parts := append(append(make([]*match.Node, 0, len(own)+len(beside)), own...), beside...)
	conj := newConjunction(p.q.Filter, parts)
	var best *Node
	bestCost := 0.0
	for _, x := range p.c.Indexes {
		if !p.usable(x) || x.Kind == Other && !conj.geoServes(x) || !p.partialFits(x, parts) || !p.collationFits(x, conj) {
			continue
		}
		for _, u := range p.branchUses(conj, x) {
			n := p.branchScan(conj, u, len(own))
			if c := cost(n); best == nil || c < bestCost {
				best, bestCost = n, c
			}
		}
	}
	if best == nil && b.Kind == match.Or {
		return p.nestedUnion(b, beside)
	}
	return best
}

func (p *planner) branchUses(conj *conjunction, x *Index) []*use {
	if x.Kind == Wildcard {
		return p.wildcardUses(conj, x)
	}
	if u := conj.assign(x, ""); !u.bounds[0].Intervals.Full() {
		return []*use{u}
	}
	return nil
}

// nestedUnion plans an $or that is a branch of another, as an $and in between may leave it.
func (p *planner) nestedUnion(or *match.Node, beside []*match.Node) *Node {
	out := &Node{Stage: Or}
	for _, b := range or.Children {
		in := p.branch(b, beside)
		if in == nil {
			return nil
		}
		out.Inputs = append(out.Inputs, in)
	}
	return out
}

// branchScan leaves what stands beside the $or to the fetch above the union.
func (p *planner) branchScan(conj *conjunction, u *use, own int) *Node {
	scan := p.indexScan(u)
	mine := uint64(1)<<uint(min(own, 63)) - 1
	scan.Filter = conj.keyFilter(u.onKey & mine)
	others := ^mine
	left := conj.residual(u.done | u.onKey&mine | others)
	if own > 63 {
		left = p.q.Filter.Sub(conj.parts[:own]...)
	}
	if left == nil {
		return scan
	}
	f := over(Fetch, scan)
	f.Filter = left
	return f
}

// mergeSorted turns a union into a merge where every branch gives the sort's order.
func (p *planner) mergeSorted(or *Node) *Node {
	if len(p.q.Sort) == 0 {
		return or
	}
	merge := &Node{Stage: SortMerge, SortPattern: p.q.SortPattern, SortFields: p.q.Sort}
	for _, in := range or.Inputs {
		scan := in
		if in.Stage == Fetch {
			scan = in.input()
		}
		if scan.Stage != IndexScan {
			return or
		}
		sorted := p.sortedBy(scan)
		if sorted == nil {
			return or
		}
		if in.Stage == Fetch {
			f := *in
			f.Inputs = []*Node{sorted}
			sorted = &f
		}
		if sorted.Stage == SortMerge {
			merge.Inputs = append(merge.Inputs, sorted.Inputs...)
			continue
		}
		merge.Inputs = append(merge.Inputs, sorted)
	}
	return merge
}

// minMax scans the hinted index between two keys.
func (p *planner) minMax() (*Result, error) {
	q := p.q
	if p.hint == nil {
		return nil, mongoerr.New(51173, "When using min()/max() a hint of which index to use must be provided")
	}
	if p.hint.Kind != BTree {
		return nil, mongoerr.New(51174, "min and max may not be used with an index of this kind")
	}
	if !sameCollation(q.CollationDoc, p.hint.CollationDoc) {
		for _, d := range [][]byte{q.Min, q.Max} {
			for _, v := range value.Elements(d) {
				if v.T == value.String {
					return nil, mongoerr.New(51174, "The index's collation differs from that of the query, whose min or max holds strings")
				}
			}
		}
	}
	for _, d := range [][]byte{q.Min, q.Max} {
		if d != nil && !sameFields(d, p.hint) {
			return nil, mongoerr.New(51174, "The index chosen is not compatible with min/max")
		}
	}
	if q.Min != nil && q.Max != nil && compareKeys(q.Min, q.Max, p.hint) >= 0 {
		return nil, mongoerr.New(51175, "The value provided for min must be less than the value provided for max")
	}
	scan := &Node{Stage: IndexScan, Index: p.hint, Start: q.Min, End: q.Max, Direction: 1, Dedupe: p.hint.Multikey}
	for _, f := range p.hint.Fields {
		scan.Bounds = append(scan.Bounds, FieldBounds{Path: f.Path, Desc: f.Desc, Intervals: everything()})
	}
	sorted := len(q.Sort) > 0 && sameCollation(q.CollationDoc, p.hint.CollationDoc) && provides(scan, q.Sort, nil) != 0
	if sorted {
		scan.Direction = provides(scan, q.Sort, nil)
	}
	if q.Filter == nil && !q.ShardFilter && (sorted || len(q.Sort) == 0) && p.canCover(p.hint) && !q.Count {
		return p.only(p.finishSorted(scan, sorted, true)), nil
	}
	f := over(Fetch, scan)
	if q.Filter != nil {
		f.Filter = q.Filter
	}
	return p.only(p.finishSorted(f, sorted, false)), nil
}

func sameFields(d []byte, x *Index) bool {
	i := 0
	for k := range value.Elements(d) {
		if i == len(x.Fields) || x.Fields[i].Path != k {
			return false
		}
		i++
	}
	return i == len(x.Fields)
}

// compareKeys orders two keys as the index does.
func compareKeys(a, b []byte, x *Index) int {
	av, bv := value.Values(a), value.Values(b)
	for i, f := range x.Fields {
		if c := value.CompareCollated(av[i], bv[i], x.Collator); c != 0 {
			if f.Desc {
				return -c
			}
			return c
		}
	}
	return 0
}
