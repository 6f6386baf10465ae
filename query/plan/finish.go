package plan

import "github.com/shoaldb/shoal/query/value"

// finishIndex adds the stages for what a query has besides its filter to an index scan.
func (p *planner) finishIndex(scan *Node, conj *conjunction, u *use) *Node {
	if u.empty {
		// No document can match: the scan ends at once. The shape is kept, as explain shows it.
		u.onKey = 0
	}
	left := conj.residual(u.done | u.onKey)
	if p.q.Count && left == nil && u.onKey == 0 {
		if n := p.countScan(scan); n != nil {
			return n
		}
	}
	scan.Filter = conj.keyFilter(u.onKey)
	sorted := p.sortedBy(scan)
	root := scan
	if sorted != nil {
		root = sorted
	}
	if root.Stage == IndexScan && p.filtersKeys(root.Index) {
		root = over(ShardingFilter, root) // orphans are dropped before they are fetched
	}
	// A key alone suffices for a result, but not for the stages in between that read documents.
	between := p.q.ShardFilter && root.Stage != ShardingFilter || len(p.q.Sort) > 0 && sorted == nil
	if left == nil && !between && p.canCover(scan) {
		if p.q.Distinct != "" && sorted == nil {
			if n := p.distinctScan(scan); n != nil {
				return n
			}
		}
		return p.finishSorted(root, sorted != nil, true)
	}
	if left != nil && root.Stage == SortMerge { // filter before the merge
		for i, in := range root.Inputs {
			root.Inputs[i] = over(Fetch, in)
			root.Inputs[i].Filter = left
		}
		return p.finishSorted(root, true, false)
	}
	f := over(Fetch, root)
	f.Filter = left
	return p.finishSorted(f, sorted != nil, false)
}

// finish adds the stages for what a query has besides its filter to any source of whole documents.
func (p *planner) finish(root *Node) *Node {
	return p.finishSorted(root, false, false)
}

func (p *planner) finishSorted(root *Node, sorted, coveredKey bool) *Node {
	q := p.q
	if q.ShardFilter && !filtered(root) {
		root = over(ShardingFilter, root)
	}
	if q.Count {
		return over(Count, p.skipLimit(root))
	}
	if len(q.Sort) > 0 && !sorted {
		s := over(Sort, root)
		s.SortPattern, s.SortFields = q.SortPattern, q.Sort
		if q.Limit > 0 {
			s.Limit = q.Limit + q.Skip
		}
		root = s
	}
	if q.Skip > 0 {
		s := over(Skip, root)
		s.Skip = q.Skip
		root = s
	}
	switch {
	case coveredKey:
		root = p.covered(root)
	case q.Projection != nil:
		root = p.project(root)
	}
	if q.Limit > 0 && (len(q.Sort) == 0 || sorted) {
		l := over(Limit, root)
		l.Limit = q.Limit
		root = l
	}
	return root
}

// filtersKeys reports whether an index's keys tell which shard a document belongs to: they have all of the shard
// key, as the documents have it.
func (p *planner) filtersKeys(x *Index) bool {
	return p.q.ShardFilter && x.Kind == BTree && x.Collator == nil && x.holds(p.q.ShardKey)
}

// filtered reports whether orphans have been dropped below a plan's root.
func filtered(n *Node) bool {
	for n.Stage != ShardingFilter && len(n.Inputs) == 1 {
		n = n.Inputs[0]
	}
	return n.Stage == ShardingFilter
}

func (p *planner) skipLimit(root *Node) *Node {
	if p.q.Skip > 0 {
		s := over(Skip, root)
		s.Skip = p.q.Skip
		root = s
	}
	if p.q.Limit > 0 {
		l := over(Limit, root)
		l.Limit = p.q.Limit
		root = l
	}
	return root
}

func (p *planner) project(root *Node) *Node {
	n := over(ProjectionDefault, root)
	if p.q.Projection.Simple {
		n.Stage = ProjectionSimple
	}
	n.Projection = p.q.Projection
	return n
}

// canCover reports whether results can be built from the keys of a scan. The keys of a wildcard index can if they are those of one path.
func (p *planner) canCover(scan *Node) bool {
	return p.keysHold(scan.Index) && (scan.Index.Kind != Wildcard || scan.onePath())
}

// onePath reports whether a scan of a wildcard index has the keys of one path alone.
func (n *Node) onePath() bool {
	for i := range n.Bounds {
		if n.Bounds[i].Path == "$_path" {
			l := n.Bounds[i].Intervals
			return len(l) == 1 && l[0].Point()
		}
	}
	return false
}

// keysHold reports whether keys of an index have all that results need.
func (p *planner) keysHold(x *Index) bool {
	q := p.q
	if x.Collator != nil || x.Kind == Hashed || x.Kind == Other {
		return false
	}
	needs := []string(nil)
	switch {
	case q.Distinct != "":
		needs = []string{q.Distinct}
	case q.Count:
		return true
	case q.Projection == nil || q.Projection.Whole || !q.Projection.Inclusion:
		return false
	default:
		needs = q.Projection.Paths
	}
	if !x.holds(needs) && !q.needsNothing() {
		return false
	}
	for _, s := range q.Sort {
		if s.Meta || !x.holds([]string{s.Path}) {
			return false
		}
	}
	return true
}

// needsNothing reports whether no field of the results is used, as where a pipeline counts them.
func (q *Query) needsNothing() bool {
	return q.Distinct == "" && q.Projection != nil && q.Projection.Simple && q.Projection.Inclusion && !q.Projection.Whole && len(q.Projection.Paths) == 0
}

// holds reports whether the values of all paths can be read from the index's keys.
func (x *Index) holds(paths []string) bool {
	for _, path := range paths {
		found := false
		for i, f := range x.Fields {
			found = found || f.Path == path && !x.fieldMultikey(i)
		}
		if !found {
			return false
		}
	}
	return len(paths) > 0
}

// sortedBy returns a scan whose keys are in the order of the sort, reversed or split if necessary; nil if the
// index cannot provide it.
func (p *planner) sortedBy(scan *Node) *Node {
	sort := p.q.Sort
	if len(sort) == 0 || scan.Index == nil || scan.Index.Kind == Wildcard && !p.wildSort(scan) || !sameCollation(p.q.CollationDoc, scan.Index.CollationDoc) {
		return nil
	}
	if dir := provides(scan, sort, nil); dir != 0 {
		scan.Direction = dir
		return scan
	}
	return p.explode(scan)
}

// wildSort reports whether a wildcard scan of one path provides a sort on that path: the bounds must not omit a
// document that has the path.
func (p *planner) wildSort(scan *Node) bool {
	return !scan.Index.Multikey && scan.Bounds[0].Path == "$_path" && scan.Bounds[0].Intervals.Points() && len(scan.Bounds[0].Intervals) == 1
}

// provides compares a scan's order with a sort: 1 if it provides it, -1 if it does backwards, 0 if not. Fields in pinned,
// and those bound to a single value, may be omitted on both sides.
func provides(scan *Node, sort []SortField, pinned map[int]bool) int {
	fixed := func(i int) bool {
		b := &scan.Bounds[i]
		return pinned[i] || len(b.Intervals) == 1 && b.Intervals[0].Point()
	}
	dir := 0
	i := 0
	for _, s := range sort {
		if s.Meta {
			return 0
		}
		if at := fieldAt(scan, s.Path); at >= 0 && fixed(at) && !scan.multikeyAt(at) {
			continue
		}
		for i < len(scan.Bounds) && scan.Bounds[i].Path != s.Path && fixed(i) {
			i++
		}
		if i == len(scan.Bounds) || scan.Bounds[i].Path != s.Path || scan.kindAt(i) == Hashed || scan.kindAt(i) == Other {
			return 0
		}
		b := &scan.Bounds[i]
		if scan.multikeyAt(i) && !multikeySort(scan, i) {
			return 0
		}
		d := 1
		if b.Desc != s.Desc {
			d = -1
		}
		if dir != 0 && d != dir {
			return 0
		}
		dir = d
		i++
	}
	if dir == 0 {
		return 1
	}
	return dir
}

func fieldAt(scan *Node, path string) int {
	for i := range scan.Bounds {
		if scan.Bounds[i].Path == path {
			return i
		}
	}
	return -1
}

// kindAt returns the kind of the key's i-th field.
func (n *Node) kindAt(i int) Kind { return n.Index.fieldAt(i).Kind }

// fieldAt returns the field of the key pattern for the key's i-th: a wildcard has two in the key, the path and the value.
func (x *Index) fieldAt(i int) *Field { return &x.Fields[x.patternAt(i)] }

func (x *Index) patternAt(i int) int {
	for n := range min(i, len(x.Fields)) {
		if x.Fields[n].Kind == Wildcard {
			return i - 1
		}
	}
	return i
}

// multikeyAt reports whether the key's i-th field has arrays.
func (n *Node) multikeyAt(i int) bool {
	return n.Index.fieldMultikey(n.Index.patternAt(i))
}

// multikeySort reports whether a scan provides a sort on a field with arrays: a document sorts by its least (greatest)
// element, which is the first of its keys only if no bounds exclude some of them.
func multikeySort(scan *Node, i int) bool {
	if !scan.Bounds[i].Intervals.Full() || scan.Index.MultikeyPaths == nil {
		return false
	}
	for k := range scan.Index.Fields {
		if k != i && sharedArray(scan.Index, k, i) > 0 && !scan.Bounds[k].Intervals.Full() {
			return false
		}
	}
	return true
}

// explode splits a scan over several single values of its first fields into one for each, so that they can be merged in
// the order of the following fields.
func (p *planner) explode(scan *Node) *Node {
	n, total := 0, 1
	pinned := map[int]bool{}
	most := p.q.knobs().Explode
	for n < len(scan.Bounds) && scan.Bounds[n].Intervals.Points() && !scan.multikeyAt(n) {
		if total*len(scan.Bounds[n].Intervals) > most {
			p.reached.Explode = true
			break
		}
		total *= len(scan.Bounds[n].Intervals)
		pinned[n] = true
		n++
	}
	if total < 2 || scan.Index.Multikey && scan.Index.MultikeyPaths == nil {
		return nil
	}
	for i := range pinned {
		for _, s := range p.q.Sort {
			if s.Path == scan.Bounds[i].Path && len(scan.Bounds[i].Intervals) > 1 {
				delete(pinned, i)
			}
		}
	}
	if len(pinned) < n {
		return nil
	}
	dir := provides(scan, p.q.Sort, pinned)
	if dir == 0 {
		return nil
	}
	merge := &Node{Stage: SortMerge, SortPattern: p.q.SortPattern, SortFields: p.q.Sort}
	for k := range total {
		one := *scan
		one.Direction = dir
		one.Bounds = append([]FieldBounds(nil), scan.Bounds...)
		rest := k
		for i := n - 1; i >= 0; i-- {
			l := scan.Bounds[i].Intervals
			one.Bounds[i].Intervals = l[rest%len(l) : rest%len(l)+1]
			rest /= len(l)
		}
		merge.Inputs = append(merge.Inputs, &one)
	}
	return merge
}

// countScan counts keys if the bounds are one range of keys and a document has only one key.
func (p *planner) countScan(scan *Node) *Node {
	if scan.Index.Multikey || p.q.ShardFilter || scan.Index.Kind != BTree || !singleRange(scan.Bounds) {
		return nil
	}
	n := *scan
	n.Stage = CountScan
	return over(Count, p.skipLimit(&n))
}

// singleRange reports whether bounds are one contiguous range of keys: single values, then one interval, then everything.
func singleRange(b []FieldBounds) bool {
	i := 0
	for i < len(b) && len(b[i].Intervals) == 1 && b[i].Intervals[0].Point() {
		i++
	}
	if i < len(b) && len(b[i].Intervals) != 1 {
		return false
	}
	for i++; i < len(b); i++ {
		if !b[i].Intervals.Full() {
			return false
		}
	}
	return true
}

// distinctScan skips from value to value of an index's first field.
func (p *planner) distinctScan(scan *Node) *Node {
	if scan.Filter != nil || scan.Index.Kind == Wildcard || scan.Index.Multikey || scan.Index.Fields[0].Path != p.q.Distinct || p.q.ShardFilter {
		return nil
	}
	n := *scan
	n.Stage = DistinctScan
	return p.covered(&n)
}

// covered builds results from keys; a distinct without a projection needs only its path.
func (p *planner) covered(root *Node) *Node {
	c := over(ProjectionCovered, root)
	c.Projection = p.q.Projection
	if c.Projection == nil {
		c.Projection = &Projection{Raw: value.Doc(value.F(p.q.Distinct, value.NewInt32(1)), value.F("_id", value.NewInt32(0))),
			Paths: []string{p.q.Distinct}, Simple: true, Inclusion: true}
	}
	return c
}

// distinctScans looks for an index that begins with the field, if there is no filter by which to choose one.
func (p *planner) distinctScans(out []*Node) []*Node {
	conj := newConjunction(p.q.Filter, nil)
	for _, x := range p.c.Indexes {
		if p.usable(x) && x.Partial == nil && x.Kind == BTree && !x.Sparse && x.Fields[0].Path == p.q.Distinct && p.keysHold(x) {
			if n := p.distinctScan(p.indexScan(conj.assign(x, ""))); n != nil {
				return append(out, n)
			}
		}
	}
	return out
}

// Has reports whether a plan has a stage of a kind.
func (n *Node) Has(s Stage) bool {
	if n.Stage == s {
		return true
	}
	for _, in := range n.Inputs {
		if in.Has(s) {
			return true
		}
	}
	return false
}
