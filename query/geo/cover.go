package geo

import (
	"math"
	"slices"

	"github.com/golang/geo/s1"
	"github.com/golang/geo/s2"
)

// Cells returns the ranges of keys, in order and disjoint, under which a 2dsphere index has everything within the
// maximum distance of the origin: the cells that cover that disc, and the larger cells around them, which large
// shapes use. It is nil if the disc is not small enough for bounds to be useful, or in the plane.
func (near *Near) Cells() [][2]int64 {
	if !near.Sphere || !near.Center.Sphere {
		return nil
	}
	angle := near.Max
	if !near.Radians {
		angle /= EarthRadius
	}
	if angle >= math.Pi/4 {
		return nil
	}
	return around(s2.CapFromCenterAngle(near.Center.places[0], s1.Angle(angle*(1+1e-9)+1e-9)))
}

// around returns the ranges of keys of everything that intersects one of the regions: the cells that cover
// it, and the larger cells around them, which large shapes use.
func around(regions ...s2.Region) [][2]int64 {
	coverer := &s2.RegionCoverer{MaxLevel: s2.MaxLevel, LevelMod: 1, MaxCells: maxCells}
	var out [][2]int64
	for _, r := range regions {
		for _, c := range coverer.Covering(r) {
			out = append(out, [2]int64{int64(c.RangeMin()), int64(c.RangeMax())})
			for level := c.Level() - 1; level >= 0; level-- {
				up := int64(c.Parent(level))
				out = append(out, [2]int64{up, up})
			}
		}
	}
	return join(out)
}

// SphereCells returns the ranges of keys under which a 2dsphere index has everything that may satisfy the query;
// nil if the query is in the plane, or covers too much of the sphere.
func (q *Query) SphereCells() [][2]int64 {
	switch s := q.shape.(type) {
	case *disc:
		if s.angle < math.Pi/2 {
			return around(s2.CapFromCenterAngle(s.center, s1.Angle(s.angle*(1+1e-9)+1e-9)))
		}
	case *Geometry:
		if s.strict || !s.Sphere {
			return nil
		}
		var regions []s2.Region
		for _, p := range s.places {
			regions = append(regions, s2.CapFromCenterAngle(p, 1e-9))
		}
		for _, l := range s.lines {
			regions = append(regions, l.CapBound())
		}
		for _, p := range s.polygons {
			regions = append(regions, p.Polygon)
		}
		return around(regions...)
	}
	return nil
}

// PlaneCells returns the ranges of keys under which a 2d index has everything that may satisfy the query; nil
// if the query is on the sphere.
func (q *Query) PlaneCells(p Plane) [][2]int64 {
	var low, high Point
	switch s := q.shape.(type) {
	case box:
		low, high = s.min, s.max
	case circle:
		low, high = Point{s.center.X - s.radius, s.center.Y - s.radius}, Point{s.center.X + s.radius, s.center.Y + s.radius}
	case ring:
		low, high = s[0], s[0]
		for _, at := range s {
			low, high = Point{min(low.X, at.X), min(low.Y, at.Y)}, Point{max(high.X, at.X), max(high.Y, at.Y)}
		}
	default:
		return nil
	}
	if p.Bits > 31 {
		return nil // keys of so many bits do not sort as integers
	}
	slack := (p.Max - p.Min) * 1e-9
	inside := func(f float64) uint64 { return p.scale(min(max(f, p.Min), p.Max)) }
	return p.cover(inside(low.X-slack), inside(low.Y-slack), inside(high.X+slack), inside(high.Y+slack))
}

// tile is a cell of the plane at some level: its corner in units of that level's cells, and its key's first bits.
type tile struct{ x, y, key uint64 }

// cover divides the plane until the cells that intersect a rectangle are known well enough.
func (p Plane) cover(x0, y0, x1, y1 uint64) [][2]int64 {
	cells := []tile{{}}
	level := 0
	for ; level < p.Bits; level++ {
		shift := p.Bits - level - 1
		var next []tile
		for _, c := range cells {
			for i := range uint64(4) {
				s := tile{c.x<<1 | i>>1, c.y<<1 | i&1, c.key<<2 | i}
				if s.x<<shift <= x1 && (s.x+1)<<shift > x0 && s.y<<shift <= y1 && (s.y+1)<<shift > y0 {
					next = append(next, s)
				}
			}
		}
		if len(next) > maxCells {
			break
		}
		cells = next
	}
	rest := 2 * (p.Bits - level)
	var out [][2]int64
	for _, c := range cells {
		out = append(out, [2]int64{int64(c.key << rest), int64((c.key+1)<<rest - 1)})
	}
	return join(out)
}

// join sorts ranges and drops those that others contain.
func join(ranges [][2]int64) [][2]int64 {
	slices.SortFunc(ranges, func(a, b [2]int64) int { return slices.Compare(a[:], b[:]) })
	out := ranges[:0]
	for _, r := range ranges {
		if n := len(out); n > 0 && r[0] <= out[n-1][1] {
			out[n-1][1] = max(out[n-1][1], r[1])
			continue
		}
		out = append(out, r)
	}
	return out
}
