package plan

// intersections returns the plans that read two indexes and keep the records that both have. If each scan has a
// single key, its records are in the order of their RecordIds and the two are merged; any other pair has to
// remember the records of the first, which is disabled unless a server parameter enables it. The whole filter is
// above.
func (p *planner) intersections() (out []*Node) {
	k, uses := p.q.knobs(), p.uses
	if !k.Intersect || p.hint != nil || len(uses) < 2 {
		return nil
	}
	for i, a := range uses {
		for _, b := range uses[i+1:] {
			stage, ok := intersects(a, b, k.HashIntersect)
			if !ok {
				continue
			}
			if len(out) >= k.Intersections {
				p.reached.And = true
				return out
			}
			f := over(Fetch, &Node{Stage: stage, Inputs: []*Node{p.indexScan(a), p.indexScan(b)}})
			f.Filter = p.q.Filter
			out = append(out, p.finishSorted(f, false, false))
		}
	}
	return out
}

// intersects returns how two scans may be intersected, if that narrows both.
func intersects(a, b *use, hash bool) (Stage, bool) {
	switch {
	case a.empty || b.empty || a.x.Kind == Other || b.x.Kind == Other || a.by&^b.by == 0 || b.by&^a.by == 0:
		return 0, false
	case a.single() && b.single():
		return AndSorted, true
	}
	return AndHash, hash
}

// single reports whether the bounds are a single key.
func (u *use) single() bool {
	for i := range u.bounds {
		if l := u.bounds[i].Intervals; len(l) != 1 || !l[0].Point() {
			return false
		}
	}
	return true
}

// Intersects reports whether a plan intersects the records of several indexes.
func (n *Node) Intersects() bool { return n.Has(AndSorted) || n.Has(AndHash) }
