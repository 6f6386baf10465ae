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
		if !d.hasEdges(l) {
			return false
		}
	}
	for _, p := range g.polygons {
		if !d.hasEdges(p) || !d.full() && p.ContainsPoint(d.far) {
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

// edgeDistance is the angle between a point and the nearest edge of a shape.
func edgeDistance(s s2.Shape, p s2.Point) float64 {
	best := math.Pi
	for i := range s.NumEdges() {
		e := s.Edge(i)
		best = min(best, float64(s2.DistanceFromSegment(p, e.V0, e.V1)))
	}
	return best
}

// angle is the angle between two points. Where they are far apart it goes by the cotangent: near a right angle the
// arctangent of the standard library is off in the last place.
func angle(a, b s2.Point) float64 {
	sin, cos := a.Cross(b.Vector).Norm(), a.Dot(b.Vector)
	if math.Abs(cos) < sin {
		const low = 6.123233995736766e-17 // what a float of π/2 lacks
		return math.Pi/2 + (low - math.Atan(cos/sin))
	}
	return math.Atan2(sin, cos)
}

// angleTo is the angle between a point and the nearest part of a geometry on the sphere.
func angleTo(g *Geometry, p s2.Point) float64 {
	best := math.Pi
	for _, q := range g.places {
		best = min(best, angle(q, p))
	}
	for _, l := range g.lines {
		best = min(best, edgeDistance(l, p))
	}
	for _, poly := range g.polygons {
		if poly.ContainsPoint(p) {
			return 0
		}
		best = min(best, edgeDistance(poly, p))
	}
	return best
}

// contains reports whether the polygons of a query hold every part of a stored geometry. Each part must lie in one polygon.
func (q *Geometry) contains(g *Geometry) bool {
	if !g.Sphere {
		return false
	}
	for _, p := range g.places {
		if !q.anyPolygon(func(poly *s2.Polygon) bool { return covers(poly, p) }) {
			return false
		}
	}
	for _, l := range g.lines {
		if !q.anyPolygon(func(poly *s2.Polygon) bool { return containsLine(poly, l) }) {
			return false
		}
	}
	for _, inner := range g.polygons {
		if !q.anyPolygon(func(poly *s2.Polygon) bool { return containsPolygon(poly, inner) }) {
			return false
		}
	}
	return true
}

func (q *Geometry) anyPolygon(test func(*s2.Polygon) bool) bool {
	for _, p := range q.polygons {
		if test(p) {
			return true
		}
	}
	return false
}

// touch is the angle below which a point counts as lying on an edge: about a centimetre, the size of the smallest cell.
const touch = s1.Angle(1.5e-9)

// covers reports whether a point is inside a polygon or on its boundary.
func covers(poly *s2.Polygon, p s2.Point) bool {
	return poly.ContainsPoint(p) || s1.Angle(edgeDistance(poly, p)) <= touch
}

// containsLine reports whether no part of a line is outside: its vertices are inside, no edge crosses the boundary, and
// between two points where an edge touches the boundary it stays inside.
func containsLine(poly *s2.Polygon, l *s2.Polyline) bool {
	for i := range l.NumEdges() {
		e := l.Edge(i)
		if !covers(poly, e.V0) || !covers(poly, e.V1) || !staysInside(poly, e) {
			return false
		}
	}
	return true
}

func staysInside(poly *s2.Polygon, e s2.Edge) bool {
	crosser := s2.NewEdgeCrosser(e.V0, e.V1)
	length := e.V0.Distance(e.V1)
	if length == 0 {
		return true
	}
	for i := range poly.NumEdges() {
		b := poly.Edge(i)
		if crosser.CrossingSign(b.V0, b.V1) == s2.Cross && !touching(e, b) {
			return false
		}
		if s2.DistanceFromSegment(b.V0, e.V0, e.V1) <= touch {
			at := float64(e.V0.Distance(b.V0) / length)
			if !covers(poly, s2.Interpolate(at/2, e.V0, e.V1)) || !covers(poly, s2.Interpolate((1+at)/2, e.V0, e.V1)) {
				return false
			}
		}
	}
	return covers(poly, s2.Interpolate(0.5, e.V0, e.V1))
}

// touching reports whether two crossing edges do so at the end of one of them.
func touching(a, b s2.Edge) bool {
	return s2.DistanceFromSegment(a.V0, b.V0, b.V1) <= touch || s2.DistanceFromSegment(a.V1, b.V0, b.V1) <= touch ||
		s2.DistanceFromSegment(b.V0, a.V0, a.V1) <= touch || s2.DistanceFromSegment(b.V1, a.V0, a.V1) <= touch
}

// containsPolygon reports whether the inner polygon lies in the outer one: its boundary does, and no hole of the outer
// one opens inside it.
func containsPolygon(outer, inner *s2.Polygon) bool {
	if outer.Contains(inner) {
		return true
	}
	for i := range inner.NumEdges() {
		e := inner.Edge(i)
		if !covers(outer, e.V0) || !staysInside(outer, e) {
			return false
		}
	}
	for i := range outer.NumEdges() {
		if v := outer.Edge(i).V0; inner.ContainsPoint(v) && s1.Angle(edgeDistance(inner, v)) > touch {
			return false
		}
	}
	return true
}

// meets reports whether any part of a query's geometry shares a point with any part of a stored one.
func (q *Geometry) meets(g *Geometry) bool {
	for _, p := range g.places {
		if q.meetsPoint(p) {
			return true
		}
	}
	for _, l := range g.lines {
		if q.meetsLine(l) {
			return true
		}
	}
	for _, p := range g.polygons {
		if q.meetsPolygon(p) {
			return true
		}
	}
	return false
}

func (q *Geometry) meetsPoint(p s2.Point) bool {
	for _, o := range q.places {
		if o.Distance(p) <= touch {
			return true
		}
	}
	for _, l := range q.lines {
		if s1.Angle(edgeDistance(l, p)) <= touch {
			return true
		}
	}
	return q.anyPolygon(func(poly *s2.Polygon) bool { return covers(poly, p) })
}

func (q *Geometry) meetsLine(l *s2.Polyline) bool {
	for _, p := range q.places {
		if s1.Angle(edgeDistance(l, p)) <= touch {
			return true
		}
	}
	for _, o := range q.lines {
		if edgesMeet(o, l) {
			return true
		}
	}
	return q.anyPolygon(func(poly *s2.Polygon) bool { return covers(poly, (*l)[0]) || edgesMeet(poly, l) })
}

func (q *Geometry) meetsPolygon(p *s2.Polygon) bool {
	for _, o := range q.places {
		if covers(p, o) {
			return true
		}
	}
	for _, l := range q.lines {
		if covers(p, (*l)[0]) || edgesMeet(p, l) {
			return true
		}
	}
	// Polygons that share no more than their boundaries do not meet.
	return q.anyPolygon(func(poly *s2.Polygon) bool { return poly.Intersects(p) })
}

// edgesMeet reports whether edges of two shapes cross or touch.
func edgesMeet(a, b s2.Shape) bool {
	for i := range a.NumEdges() {
		e := a.Edge(i)
		crosser := s2.NewEdgeCrosser(e.V0, e.V1)
		for j := range b.NumEdges() {
			f := b.Edge(j)
			if crosser.CrossingSign(f.V0, f.V1) != s2.DoNotCross || touching(e, f) {
				return true
			}
		}
	}
	return false
}
