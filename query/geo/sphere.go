package geo

import (
	"math"

	"github.com/golang/geo/s1"
	"github.com/golang/geo/s2"
	"github.com/shoaldb/shoal/query/value"
)

// disc is a $centerSphere: everything within an angle of a point.
type disc struct {
	center, far s2.Point // far is the opposite point
	angle       float64
}

func parseCap(v value.Value) (region, error) {
	c, err := parseCircleParts("$centerSphere", v)
	if err != nil {
		return nil, err
	}
	if !onSphere(c.center) {
		return nil, bad("Legacy point is out of bounds for spherical query")
	}
	at := place(c.center)
	return &disc{center: at, far: s2.Point{Vector: at.Mul(-1)}, angle: c.radius}, nil
}

func (d *disc) full() bool { return d.angle >= math.Pi }

func (d *disc) has(p s2.Point) bool {
	return d.full() || within(angle(d.center, p), d.angle)
}

func (d *disc) contains(g *Geometry) bool {
	if !g.Sphere {
		return false
	}
	for _, p := range g.places {
		if !d.has(p) {
			return false
		}
	}
	for _, l := range g.lines {
		if !d.hasEdges(l.Polyline) {
			return false
		}
	}
	for _, p := range g.polygons {
		if !d.hasEdges(p.Polygon) || !d.full() && p.ContainsPoint(d.far) {
			return false
		}
	}
	return true
}

// hasEdges reports whether all edges are inside: none comes nearer to the opposite point than the rim.
func (d *disc) hasEdges(s s2.Shape) bool {
	return d.full() || math.Pi-edgeDistance(s, d.far) <= d.angle
}

func (d *disc) meets(g *Geometry) bool {
	if d.full() {
		return true
	}
	return angleTo(g, d.center) <= d.angle
}

// edgeDistance returns the angle between a point and the nearest edge of a shape.
func edgeDistance(s s2.Shape, p s2.Point) float64 {
	best := math.Pi
	for i := range s.NumEdges() {
		e := s.Edge(i)
		best = min(best, float64(s2.DistanceFromSegment(p, e.V0, e.V1)))
	}
	return best
}

// angle returns the angle between two points. If they are far apart it uses the cotangent: near a right angle
// the arctangent of the standard library is inexact in the last place.
func angle(a, b s2.Point) float64 {
	sin, cos := a.Cross(b.Vector).Norm(), a.Dot(b.Vector)
	if math.Abs(cos) < sin {
		const low = 6.123233995736766e-17 // the difference between π/2 and its float
		return math.Pi/2 + (low - math.Atan(cos/sin))
	}
	return math.Atan2(sin, cos)
}

// angleTo returns the angle between a point and the nearest part of a geometry on the sphere.
func angleTo(g *Geometry, p s2.Point) float64 {
	best := math.Pi
	for _, q := range g.places {
		best = min(best, angle(q, p))
	}
	for _, l := range g.lines {
		best = min(best, edgeDistance(l.Polyline, p))
	}
	for _, poly := range g.polygons {
		if poly.ContainsPoint(p) {
			return 0
		}
		best = min(best, edgeDistance(poly.Polygon, p))
	}
	return best
}

// contains reports whether the polygons of a query contain every part of a stored geometry. Each part must be in one polygon.
func (q *Geometry) contains(g *Geometry) bool {
	if !g.Sphere {
		return false
	}
	for _, p := range g.places {
		if !q.anyPolygon(g, func(poly polygon) bool { return poly.covers(p) }) {
			return false
		}
	}
	for _, l := range g.lines {
		if !q.anyPolygon(g, func(poly polygon) bool { return poly.containsLine(g, l) }) {
			return false
		}
	}
	for _, inner := range g.polygons {
		if !q.anyPolygon(g, func(poly polygon) bool { return poly.containsPolygon(g, inner) }) {
			return false
		}
	}
	return true
}

// anyPolygon reports whether a polygon of a query passes a test of g.
func (q *Geometry) anyPolygon(g *Geometry, test func(polygon) bool) bool {
	for _, p := range q.polygons {
		if g.stop(1) {
			return false
		}
		if test(p) {
			return true
		}
	}
	return false
}

// touch is the angle below which a point counts as being on an edge: about a centimetre, the size of the smallest cell.
const touch = s1.Angle(1.5e-9)

// covers reports whether a point is inside a polygon or on its boundary.
func (poly polygon) covers(p s2.Point) bool { return poly.ContainsPoint(p) || poly.rim.touches(p) }

// containsLine reports whether no part of a line of g is outside: its vertices are inside, no edge crosses the boundary, and
// between two points where an edge touches the boundary it is inside.
func (poly polygon) containsLine(g *Geometry, l line) bool {
	for i := range l.NumEdges() {
		e := l.Edge(i)
		if g.stop(1) || !poly.covers(e.V0) || !poly.covers(e.V1) || !poly.keeps(g, e) {
			return false
		}
	}
	return true
}

// keeps reports whether an edge between two points inside remains inside.
func (poly polygon) keeps(g *Geometry, e s2.Edge) bool {
	crosser := s2.NewEdgeCrosser(e.V0, e.V1)
	length := e.V0.Distance(e.V1)
	if length == 0 {
		return true
	}
	leaves := poly.rim.near(e, func(_ int, b s2.Edge) bool {
		if g.stop(1) || crosser.CrossingSign(b.V0, b.V1) == s2.Cross && !touching(e, b) {
			return true
		}
		if s2.DistanceFromSegment(b.V0, e.V0, e.V1) <= touch {
			at := float64(e.V0.Distance(b.V0) / length)
			return !poly.covers(s2.Interpolate(at/2, e.V0, e.V1)) || !poly.covers(s2.Interpolate((1+at)/2, e.V0, e.V1))
		}
		return false
	})
	return !leaves && poly.covers(s2.Interpolate(0.5, e.V0, e.V1))
}

// touching reports whether two crossing edges do so at the end of one of them.
func touching(a, b s2.Edge) bool {
	return s2.DistanceFromSegment(a.V0, b.V0, b.V1) <= touch || s2.DistanceFromSegment(a.V1, b.V0, b.V1) <= touch ||
		s2.DistanceFromSegment(b.V0, a.V0, a.V1) <= touch || s2.DistanceFromSegment(b.V1, a.V0, a.V1) <= touch
}

// manyPairs is the number of pairs of rings from which the library's comparison of two polygons, which cannot be interrupted, is not used.
const manyPairs = 10_000

func (poly polygon) simple(o polygon) bool { return poly.NumLoops()*o.NumLoops() <= manyPairs }

// containsPolygon reports whether a polygon of g is in the outer one: its boundary is, and no hole of the outer one is
// inside it.
func (poly polygon) containsPolygon(g *Geometry, inner polygon) bool {
	if poly.simple(inner) && poly.Contains(inner.Polygon) {
		return true
	}
	for i := range inner.NumEdges() {
		e := inner.Edge(i)
		if g.stop(1) || !poly.covers(e.V0) || !poly.keeps(g, e) {
			return false
		}
	}
	for i := range poly.NumEdges() {
		if v := poly.Edge(i).V0; g.stop(1) || inner.ContainsPoint(v) && !inner.rim.touches(v) {
			return false
		}
	}
	return true
}

// meets reports whether any part of a query's geometry shares a point with any part of a stored one.
func (q *Geometry) meets(g *Geometry) bool {
	for _, p := range g.places {
		if q.meetsPoint(g, p) {
			return true
		}
	}
	for _, l := range g.lines {
		if q.meetsLine(g, l) {
			return true
		}
	}
	for _, p := range g.polygons {
		if q.meetsPolygon(g, p) {
			return true
		}
	}
	return false
}

func (q *Geometry) meetsPoint(g *Geometry, p s2.Point) bool {
	for _, o := range q.places {
		if g.stop(1) || o.Distance(p) <= touch {
			return true
		}
	}
	for _, l := range q.lines {
		if g.stop(1) || l.rim.touches(p) {
			return true
		}
	}
	return q.anyPolygon(g, func(poly polygon) bool { return poly.covers(p) })
}

func (q *Geometry) meetsLine(g *Geometry, l line) bool {
	for _, p := range q.places {
		if g.stop(1) || l.rim.touches(p) {
			return true
		}
	}
	for _, o := range q.lines {
		if edgesMeet(g, o.rim, l.rim) {
			return true
		}
	}
	return q.anyPolygon(g, func(poly polygon) bool { return poly.covers((*l.Polyline)[0]) || edgesMeet(g, poly.rim, l.rim) })
}

func (q *Geometry) meetsPolygon(g *Geometry, p polygon) bool {
	for _, o := range q.places {
		if g.stop(1) || p.covers(o) {
			return true
		}
	}
	for _, l := range q.lines {
		if p.covers((*l.Polyline)[0]) || edgesMeet(g, p.rim, l.rim) {
			return true
		}
	}
	// Polygons that share only their boundaries do not intersect.
	return q.anyPolygon(g, func(poly polygon) bool {
		if poly.simple(p) {
			return poly.Intersects(p.Polygon)
		}
		return poly.overlaps(g, p)
	})
}

// overlaps reports whether two polygons of many rings share more than their boundaries: edges cross, or a corner of one is
// inside the other.
func (poly polygon) overlaps(g *Geometry, o polygon) bool {
	inside := func(in, of polygon) bool {
		for i := range of.NumEdges() {
			if v := of.Edge(i).V0; g.stop(1) || in.ContainsPoint(v) && !in.rim.touches(v) {
				return true
			}
		}
		return false
	}
	for i := range o.NumEdges() {
		e := o.Edge(i)
		crosser := s2.NewEdgeCrosser(e.V0, e.V1)
		if poly.rim.near(e, func(_ int, f s2.Edge) bool {
			return g.stop(1) || crosser.CrossingSign(f.V0, f.V1) == s2.Cross && !touching(e, f)
		}) {
			return true
		}
	}
	return inside(poly, o) || inside(o, poly)
}

// edgesMeet reports whether edges of two shapes cross or touch.
func edgesMeet(g *Geometry, a, b edged) bool {
	if a.NumEdges() < b.NumEdges() {
		a, b = b, a
	}
	for i := range b.NumEdges() {
		e := b.Edge(i)
		crosser := s2.NewEdgeCrosser(e.V0, e.V1)
		if a.near(e, func(_ int, f s2.Edge) bool {
			return g.stop(1) || crosser.CrossingSign(f.V0, f.V1) != s2.DoNotCross || touching(e, f)
		}) {
			return true
		}
	}
	return false
}
