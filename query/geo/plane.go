package geo

import (
	"math"

	"github.com/shoaldb/shoal/query/value"
)

// box is a $box: its sides belong to it.
type box struct{ min, max Point }

func parseBox(v value.Value) (region, error) {
	if !nested(v) {
		return nil, bad("Box coordinates must be an array or object, instead got type %s", v.T.Name())
	}
	var corners [2]Point
	it := value.Walk(v.Doc())
	for i := range corners {
		_, e, _ := it.Next()
		p, err := parsePair(e, false)
		if err != nil {
			return nil, err
		}
		corners[i] = p
	}
	a, b := corners[0], corners[1]
	return box{min: Point{min(a.X, b.X), min(a.Y, b.Y)}, max: Point{max(a.X, b.X), max(a.Y, b.Y)}}, nil
}

func (s box) contains(g *Geometry) bool {
	if !g.one {
		return false
	}
	p := g.Points[0]
	return p.X >= s.min.X && p.X <= s.max.X && p.Y >= s.min.Y && p.Y <= s.max.Y
}

func (box) meets(*Geometry) bool { return false }

// circle is a $center.
type circle struct {
	center Point
	radius float64
}

// parseCircleParts reads [centre, radius], which $center and $centerSphere share.
func parseCircleParts(name string, v value.Value) (c circle, err error) {
	if !nested(v) {
		return c, bad("%s must be an array or object, instead got type %s", name, v.T.Name())
	}
	parts := value.Values(v.Doc())
	if len(parts) == 0 {
		return c, bad("%s must not be empty", name)
	}
	if c.center, err = parsePair(parts[0], false); err != nil {
		return c, err
	}
	if len(parts) < 2 || !parts[1].T.Numeric() {
		return c, bad("radius must be a non-negative number")
	}
	c.radius = parts[1].AsFloat64()
	if !(c.radius >= 0) {
		return c, bad("radius must be a non-negative number")
	}
	if len(parts) > 2 {
		return c, bad("Only 2 fields allowed for circular region, but more were provided")
	}
	return c, nil
}

func parseCircle(v value.Value) (region, error) {
	c, err := parseCircleParts("$center", v)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (s circle) contains(g *Geometry) bool {
	if !g.one {
		return false
	}
	return within(planeDistance(s.center, g.Points[0]), s.radius)
}

func (circle) meets(*Geometry) bool { return false }

func planeDistance(a, b Point) float64 { return math.Hypot(a.X-b.X, a.Y-b.Y) }

// within compares a distance with a bound, with a tolerance for rounding.
func within(d, bound float64) bool {
	return d <= bound || d-bound <= max(d, bound)*8*0x1p-52
}

// ring is a $polygon.
type ring []Point

func parseRing(v value.Value) (region, error) {
	if !nested(v) {
		return nil, bad("$polygon must be an array or object, instead got type %s", v.T.Name())
	}
	var r ring
	for _, e := range value.Values(v.Doc()) {
		p, err := parsePair(e, false)
		if err != nil {
			return nil, err
		}
		r = append(r, p)
	}
	if len(r) < 3 {
		return nil, bad("Polygon must have at least 3 points")
	}
	return r, nil
}

// contains counts the edges that a ray to the right crosses.
func (r ring) contains(g *Geometry) bool {
	if !g.one {
		return false
	}
	p := g.Points[0]
	inside := false
	a := r[len(r)-1]
	for _, b := range r {
		if a == p || b == p {
			return true
		}
		low, high := min(a.Y, b.Y), max(a.Y, b.Y)
		left, right := min(a.X, b.X), max(a.X, b.X)
		switch {
		case low == high:
			if p.Y == low && p.X >= left && p.X <= right {
				return true
			}
		case left == right:
			if p.X == left && p.Y >= low && p.Y <= high {
				return true
			}
			if p.Y > low && p.Y <= high && p.X <= left {
				inside = !inside
			}
		case p.Y > low && p.Y <= high && p.X <= right:
			if p.X <= (p.Y-a.Y)*(b.X-a.X)/(b.Y-a.Y)+a.X {
				inside = !inside
			}
		}
		a = b
	}
	return inside
}

func (ring) meets(*Geometry) bool { return false }
