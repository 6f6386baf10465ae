package plan

import (
	"github.com/shoaldb/shoal/query/geo"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// nearPart returns the conjunct that orders documents by distance, nil if there is none.
func (p *planner) nearPart() *match.Node {
	for _, n := range p.parts {
		if n.Kind == match.GeoNear {
			return n
		}
	}
	return nil
}

// near plans for $near: the geospatial index on its path yields the documents with locations there, which are then sorted
// by distance. Without such an index the query is refused.
func (p *planner) near(n *match.Node) (*Result, error) {
	x, at := p.nearIndex(n)
	if x == nil {
		return nil, p.planError(mongoerr.NoQueryExecutionPlans, "unable to find index for $geoNear query")
	}
	scan := &Node{Stage: IndexScan, Index: x, Direction: 1, Dedupe: x.Multikey}
	for i, f := range x.Fields {
		b := FieldBounds{Path: f.Path, Desc: f.Desc, Intervals: everything()}
		if i == at && i == 0 && geoType(x, i) == "2dsphere" {
			b.Intervals = cellBounds(n.Near)
		}
		scan.Bounds = append(scan.Bounds, b)
	}
	fetch := over(Fetch, scan)
	fetch.Filter = p.q.Filter
	root := over(GeoNear2DSphere, fetch)
	if geoType(x, at) == "2d" {
		root.Stage = GeoNear2D
	}
	root.Index, root.Near = x, n
	return p.only(p.finishSorted(root, len(p.q.Sort) == 0, false)), nil
}

// nearIndex finds the index for an origin: GeoJSON requires a 2dsphere index, a coordinate pair a 2d index, except that
// $nearSphere accepts either.
func (p *planner) nearIndex(n *match.Node) (*Index, int) {
	for _, x := range p.c.Indexes {
		if x.Hidden || p.hint != nil && x != p.hint || p.q.Allowed != nil && !p.q.Allowed(x) || !p.partialFits(x, p.parts) {
			continue
		}
		for i, f := range x.Fields {
			if f.Path != n.Path || f.Kind != Other {
				continue
			}
			switch geoType(x, i) {
			case "2dsphere":
				if n.Near.Sphere {
					return x, i
				}
			case "2d":
				if n.Near.Center.Legacy {
					return x, i
				}
			}
		}
	}
	return nil, 0
}

// geoType returns the type of field i in a key pattern.
func geoType(x *Index, i int) string {
	v := value.Lookup(x.KeyPattern, x.Fields[i].Path)
	if v.T != value.String {
		return ""
	}
	return v.Str()
}

// geospatial reports whether an index is on locations. With a hint, any query may run on the documents that have some.
func geospatial(x *Index) bool {
	for i := range x.Fields {
		if t := geoType(x, i); t == "2d" || t == "2dsphere" {
			return true
		}
	}
	return false
}

// cellBounds returns the keys of the cells within a bounded distance; everything if the distance is large.
func cellBounds(n *geo.Near) Intervals {
	ranges := n.Cells()
	if ranges == nil {
		return everything()
	}
	return cellIntervals(ranges)
}

func cellIntervals(ranges [][2]int64) (out Intervals) {
	for _, r := range ranges {
		out = append(out, Interval{value.NewInt64(r[0]), value.NewInt64(r[1]), true, true})
	}
	return out
}

// geoServes reports whether a geospatial index has bounds for a condition on locations: other conditions cannot use it,
// because documents without locations are not in it.
func (c *conjunction) geoServes(x *Index) bool {
	for i := range x.Fields {
		t := target{x: x, i: i}
		if x.Fields[i].Kind != Other {
			continue
		}
		for k := range c.preds {
			if p := &c.preds[k]; p.path == x.Fields[i].Path && p.elem == nil && p.test.Kind == match.Geo {
				if _, _, ok := t.geo(p.test); ok {
					return true
				}
			}
		}
	}
	return false
}
