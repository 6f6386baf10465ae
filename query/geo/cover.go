package geo

import (
	"math"
	"slices"

	"github.com/golang/geo/s1"
	"github.com/golang/geo/s2"
)

// Cells are the ranges of keys, in order and apart, under which an index on the sphere files everything within the greatest
// distance of the origin: the cells that cover that disc, and those around them, which large shapes are filed under. It is
// nil where the disc has no bound worth having, or on the plane.
func (n *Near) Cells() [][2]int64 {
	if !n.Sphere || !n.Center.Sphere {
		return nil
	}
	angle := n.Max
	if !n.Radians {
		angle /= EarthRadius
	}
	if angle >= math.Pi/4 {
		return nil
	}
	disc := s2.CapFromCenterAngle(n.Center.places[0], s1.Angle(angle*(1+1e-9)+1e-9))
	coverer := &s2.RegionCoverer{MaxLevel: s2.MaxLevel, LevelMod: 1, MaxCells: maxCells}
	var out [][2]int64
	for _, c := range coverer.Covering(disc) {
		out = append(out, [2]int64{int64(c.RangeMin()), int64(c.RangeMax())})
		for level := c.Level() - 1; level >= 0; level-- {
			up := int64(c.Parent(level))
			out = append(out, [2]int64{up, up})
		}
	}
	return join(out)
}

// join puts ranges in order and drops those that others hold.
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
