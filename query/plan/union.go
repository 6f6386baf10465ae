package plan

import (
	"slices"

	"github.com/shoaldb/shoal/query/match"
)

// unions returns the plans that read each $or among the filter's conjuncts as a union of index scans.
func (p *planner) unions() (out []*Node) {
	if p.q.Filter == nil {
		return nil
	}
	for i, n := range p.parts {
		if n.Kind == match.Or {
			out = append(out, p.unionsOf(n, without(p.parts, i))...)
		}
	}
	return out
}

func without(parts []*match.Node, at int) []*match.Node {
	return append(slices.Clone(parts[:at]), parts[at+1:]...)
}

// unionsOf returns the unions for one $or: each branch must have an index, and if some have several, all
// combinations are tried, up to a limit.
func (p *planner) unionsOf(or *match.Node, beside []*match.Node) (out []*Node) {
	choices := make([][]*Node, len(or.Children))
	for i, b := range or.Children {
		if choices[i] = p.branches(b, beside); choices[i] == nil {
			return nil
		}
	}
	var left *match.Matcher
	if len(beside) > 0 {
		left = p.q.Filter.Sub(beside...) // each branch checks its own part of the $or
	}
	at := make([]int, len(choices))
	for {
		if len(out) >= max(p.q.knobs().Unions, 1) {
			p.reached.Or = true
			return out
		}
		in := make([]*Node, len(choices))
		for i := range in {
			in[i] = choices[i][at[i]].clone()
		}
		out = append(out, p.finishUnion(joinScans(in, or.Children), left))
		i := 0
		for ; i < len(at); i++ { // the first branch changes most often
			if at[i]++; at[i] < len(choices[i]) {
				break
			}
			at[i] = 0
		}
		if i == len(at) {
			return out
		}
	}
}

// clone copies the stages of a branch, so that a plan can reverse its scans without affecting others.
func (n *Node) clone() *Node {
	c := *n
	c.Inputs = nil
	for _, in := range n.Inputs {
		c.Inputs = append(c.Inputs, in.clone())
	}
	return &c
}

// branches returns the index scans that one branch of an $or may use, the cheapest first, each with a fetch above
// it only if something remains to be checked. The conjuncts beside the $or narrow the bounds, too.
func (p *planner) branches(b *match.Node, beside []*match.Node) (out []*Node) {
	own := conjuncts(b)
	parts := append(append(make([]*match.Node, 0, len(own)+len(beside)), own...), beside...)
	conj := newConjunction(p.q.Filter, parts)
	for _, x := range p.c.Indexes {
		if !p.usable(x) || x.Kind == Other && !conj.geoServes(x) || !p.partialFits(x, parts) || !p.collationFits(x, conj) {
			continue
		}
		for _, u := range p.branchUses(conj, x) {
			out = append(out, p.branchScan(conj, u, len(own)))
		}
	}
	if len(out) == 0 {
		return p.nestedUnion(own, beside)
	}
	slices.SortStableFunc(out, func(a, b *Node) int {
		switch ca, cb := cost(a), cost(b); {
		case ca < cb:
			return -1
		case ca > cb:
			return 1
		}
		return 0
	})
	return out
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

// nestedUnion plans a branch of an $or by an $or among its own conjuncts.
func (p *planner) nestedUnion(own, beside []*match.Node) []*Node {
	for i, or := range own {
		if or.Kind != match.Or {
			continue
		}
		rest := without(own, i)
		outer := append(slices.Clone(rest), beside...)
		union := &Node{Stage: Or}
		for _, b := range or.Children {
			in := p.branches(b, outer)
			if in == nil {
				union = nil
				break
			}
			union.Inputs = append(union.Inputs, in[0])
		}
		switch {
		case union == nil:
		case len(rest) > 0:
			f := over(Fetch, union)
			f.Filter = p.q.Filter.Sub(rest...)
			return []*Node{f}
		default:
			return []*Node{union}
		}
	}
	return nil
}

// branchScan leaves the conjuncts beside the $or to the fetch above the union.
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

// joinScans merges the scans of single predicates that need only the first field of the same index into one.
func joinScans(in []*Node, of []*match.Node) []*Node {
	first := map[*Index]*Node{}
	out := in[:0]
	for i, n := range in {
		if !of[i].Leaf() || !n.onFirstField() {
			out = append(out, n)
			continue
		}
		if one := first[n.Index]; one != nil {
			b := slices.Clone(one.Bounds)
			b[0].Intervals = union(append(slices.Clone(b[0].Intervals), n.Bounds[0].Intervals...))
			one.Bounds = b
			continue
		}
		first[n.Index] = n
		out = append(out, n)
	}
	return out
}

// onFirstField reports whether a scan's bounds decide everything, and all of them are on the first field.
func (n *Node) onFirstField() bool {
	if n.Stage != IndexScan || n.Filter != nil || n.Index.Kind != BTree || n.Start != nil || n.End != nil {
		return false
	}
	for i := range n.Bounds[1:] {
		if !n.Bounds[i+1].Intervals.Full() {
			return false
		}
	}
	return true
}

// finishUnion adds the query's other stages to the branches of an $or; left are the conjuncts beside the $or. Branches
// that all are in the order of the sort are merged. Documents are fetched above the union, if at all, except by branches
// that have to check their own.
func (p *planner) finishUnion(in []*Node, left *match.Matcher) *Node {
	root := in[0]
	if len(in) > 1 {
		root = &Node{Stage: Or, Inputs: in}
	}
	sorted := false
	if len(p.q.Sort) > 0 {
		if merge := p.mergeSorted(in); merge != nil {
			root, sorted = merge, true
		}
	}
	between := p.q.ShardFilter || len(p.q.Sort) > 0 && !sorted
	if left == nil && !between && p.q.Distinct == "" && p.coverable(in) {
		return p.finishSorted(root, sorted, true)
	}
	if left != nil || !fetched(in) {
		root = over(Fetch, root)
		root.Filter = left
	}
	return p.finishSorted(root, sorted, false)
}

func fetched(in []*Node) bool {
	for _, n := range in {
		if n.Stage != Fetch {
			return false
		}
	}
	return true
}

// coverable reports whether the keys of all inputs have what results need.
func (p *planner) coverable(in []*Node) bool {
	for _, n := range in {
		if n.Stage != IndexScan || !p.canCover(n) {
			return false
		}
	}
	return true
}

// mergeSorted merges inputs in the order of the sort; nil if one of them does not provide it.
func (p *planner) mergeSorted(in []*Node) *Node {
	merge := &Node{Stage: SortMerge, SortPattern: p.q.SortPattern, SortFields: p.q.Sort}
	for _, n := range in {
		scan := n
		if n.Stage == Fetch {
			scan = n.input()
		}
		if scan.Stage != IndexScan {
			return nil
		}
		sorted := p.sortedBy(scan)
		if sorted == nil {
			return nil
		}
		parts := []*Node{sorted}
		if sorted.Stage == SortMerge {
			parts = sorted.Inputs
		}
		for _, part := range parts {
			if n.Stage == Fetch {
				f := *n
				f.Inputs = []*Node{part}
				part = &f
			}
			merge.Inputs = append(merge.Inputs, part)
		}
	}
	if len(merge.Inputs) == 1 {
		return merge.Inputs[0]
	}
	return merge
}
