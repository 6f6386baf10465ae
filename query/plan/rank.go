package plan

import (
	"slices"

	"github.com/shoaldb/shoal/query/value"
)

// rank puts the cheapest plan first. Without statistics, it guesses selectivities by the shape of the bounds.
func rank(plans []*Node, q *Query) {
	if len(plans) < 2 {
		return
	}
	costs := make(map[*Node]float64, len(plans))
	for _, n := range plans {
		costs[n] = cost(n)
		if q.Limit > 0 && !n.Has(Sort) && len(q.Sort) > 0 {
			costs[n] /= 20 // the first results come at once
		}
		if n.Intersects() {
			costs[n] += assumed // a trial may show that it is better after all
		}
	}
	slices.SortStableFunc(plans, func(a, b *Node) int {
		switch ca, cb := costs[a], costs[b]; {
		case ca < cb:
			return -1
		case ca > cb:
			return 1
		}
		return 0
	})
}

// BoundPrefix counts the fields at the beginning of the plan's indexes that have bounds.
func (n *Node) BoundPrefix() (fields int) {
	n.Leaves(func(l *Node) {
		for i := range l.Bounds {
			if l.Bounds[i].Intervals.Full() {
				return
			}
			fields++
		}
	})
	return fields
}

// assumed is the collection size for which costs are estimated.
const assumed = 10000.0

// cost returns the work of a plan in arbitrary units: one for a key, more for a document.
func cost(n *Node) float64 { c, _ := estimate(n); return c }

// estimate returns cost and number of results.
func estimate(n *Node) (c, rows float64) {
	for i, in := range n.Inputs {
		ci, ri := estimate(in)
		c += ci
		if both := n.Stage == AndSorted || n.Stage == AndHash; both && i > 0 {
			rows = min(rows, ri) / 2
		} else {
			rows += ri
		}
	}
	switch n.Stage {
	case CollScan, ClusteredScan:
		return assumed * 2, assumed
	case ExpressID, ExpressIndex:
		return 1, 1
	case IndexScan, CountScan, DistinctScan:
		rows = assumed * keyShare(n)
		c = 2 + rows
		if n.Filter != nil {
			rows /= 2
		}
		return c, rows
	case Fetch:
		c += rows * 2
		if n.Filter != nil {
			c += rows * 0.2
			rows /= 2
		}
	case Sort:
		c += rows * 2
	}
	return c, rows
}

// keyShare estimates the part of an index that bounds select.
func keyShare(n *Node) float64 {
	share, prefix := 1.0, true
	points := 0
	for i := range n.Bounds {
		l := n.Bounds[i].Intervals
		s := listShare(l)
		if !prefix && s < 1 {
			s = (1 + s) / 2 // after a range, bounds save reading documents but not all keys
		}
		share *= s
		prefix = prefix && l.Points()
		if prefix && len(l) == 1 {
			points++
		}
	}
	if n.Index != nil && n.Index.Unique && points == len(n.Index.Fields) {
		return 1 / assumed
	}
	return max(share, 1/assumed)
}

func listShare(l Intervals) float64 {
	sum := 0.0
	for i := range l {
		switch v := &l[i]; {
		case v.Point():
			sum += 0.01
		case v.Full():
			sum++
		case openEnd(v.Lo) || openEnd(v.Hi):
			sum += 0.3
		default:
			sum += 0.1
		}
	}
	return min(sum, 1)
}

// openEnd reports whether an end is that of all values of a kind.
func openEnd(v value.Value) bool {
	switch v.T {
	case value.MinKey, value.MaxKey:
		return true
	case value.Double:
		return v.IsNaN() || value.Equal(v, negInf) || value.Equal(v, posInf)
	case value.Document, value.Array:
		return len(v.Doc()) == 5
	case value.String:
		return len(v.Bytes()) == 0
	}
	return false
}
