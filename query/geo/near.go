package geo

import (
	"math"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Near is the operand of $near, $nearSphere or $geoNear: an origin and bounds of the distance from it.
type Near struct {
	Center   *Geometry
	Sphere   bool    // distances are measured on the sphere
	Radians  bool    // bounds and distances are angles instead of metres
	Min, Max float64 // in the units of the plane, metres, or radians
}

// ParseNear reads all operators on a path with $near: ops is their document.
func ParseNear(ops []byte) (*Near, error) {
	n, spherical, err := parseOldNear(ops)
	if err == nil && n.Center == nil {
		n, spherical, err = parseNewNear(ops)
	}
	if err != nil {
		return nil, err
	}
	n.Sphere = spherical || !n.Center.Legacy
	n.Radians = n.Sphere && n.Center.Legacy
	if n.Sphere && !n.Center.Sphere {
		return nil, mongoerr.New(mongoerr.BadValue, "Legacy point is out of bounds for spherical query")
	}
	return n, nil
}

// parseOldNear reads {$near: point, $minDistance: …, $maxDistance: …}; Center is nil if the operand is of the new
// form.
func parseOldNear(ops []byte) (*Near, bool, error) {
	n := &Near{Max: math.MaxFloat64}
	spherical := false
	for it := value.Walk(ops); ; {
		k, v, ok := it.Next()
		if !ok {
			return n, spherical, nil
		}
		switch name := string(k); name {
		case "$near", "$geoNear", "$nearSphere":
			if !nested(v) {
				continue
			}
			if g, err := ParsePoint(v); err == nil {
				n.Center = g
			} else if !n.pointWithBound(v) {
				continue
			}
			if !(n.Max >= 0) {
				return nil, false, mongoerr.New(18522, "max distance must be non-negative")
			}
			spherical = name == "$nearSphere"
		case "$minDistance":
			if err := bound(&n.Min, v, 16893, 16894, name); err != nil {
				return nil, false, err
			}
		case "$maxDistance":
			if err := bound(&n.Max, v, 16895, 16896, name); err != nil {
				return nil, false, err
			}
		case "$uniqueDocs":
		default:
			return nil, false, mongoerr.Newf(34413, "invalid argument in geo near query: %s", name)
		}
	}
}

func bound(to *float64, v value.Value, notNumber, negative mongoerr.Code, name string) error {
	if !v.T.Numeric() {
		return mongoerr.Newf(notNumber, "%s must be a number", name)
	}
	if *to = v.AsFloat64(); !(*to >= 0) {
		return mongoerr.Newf(negative, "%s must be non-negative", name)
	}
	return nil
}

// pointWithBound reads a pair followed by the maximum distance.
func (near *Near) pointWithBound(v value.Value) bool {
	p, err := parsePair(v, true)
	if err != nil {
		return false
	}
	i := 0
	for _, e := range value.Elements(v.Doc()) {
		if i == 2 {
			if !e.T.Numeric() {
				return false
			}
			near.Max = e.AsFloat64()
		}
		i++
	}
	if i != 3 {
		return false
	}
	g := &Geometry{Legacy: true, one: true, Raw: v, Points: []Point{p}}
	if g.Sphere = onSphere(p); g.Sphere {
		g.addPlace()
	}
	near.Center = g
	return true
}

func (g *Geometry) addPlace() { g.places = append(g.places, place(g.Points[0])) }

// parseNewNear reads {$near: {$geometry: …, $minDistance: …, $maxDistance: …}}.
func parseNewNear(ops []byte) (*Near, bool, error) {
	it := value.Walk(ops)
	k, v, ok := it.Next()
	if !ok {
		return nil, false, bad("empty geo near query object")
	}
	if extra, e, more := it.Next(); more {
		return nil, false, bad("geo near accepts just one argument when querying for a GeoJSON point. Extra field found: %s",
			value.ShowElement(string(extra), e))
	}
	if !nested(v) {
		return nil, false, bad("geo near query argument is not an object: %s", value.ShowElement(string(k), v))
	}
	n := &Near{Max: math.MaxFloat64}
	for it := value.Walk(v.Doc()); ; {
		f, e, ok := it.Next()
		if !ok {
			break
		}
		var err error
		switch name := string(f); name {
		case "$geometry":
			err = n.readCenter(e)
		case "$minDistance":
			err = bound(&n.Min, e, mongoerr.BadValue, mongoerr.BadValue, name)
		case "$maxDistance":
			err = bound(&n.Max, e, mongoerr.BadValue, mongoerr.BadValue, name)
		default:
			err = bad("invalid argument in geo near query: %s", name)
		}
		if err != nil {
			return nil, false, err
		}
		if math.IsInf(n.Min, 0) || math.IsInf(n.Max, 0) {
			return nil, false, bad("%s must be finite", f)
		}
	}
	if n.Center == nil {
		return nil, false, bad("$geometry is required for geo near query")
	}
	return n, string(k) == "$nearSphere", nil
}

func (near *Near) readCenter(v value.Value) error {
	if !nested(v) {
		return nil // treated as absent
	}
	g, err := ParsePoint(v)
	if err != nil {
		return bad("invalid point in geo near query $geometry argument: %s  %s", value.Show(v), mongoerr.From(err).Message)
	}
	if g.Legacy {
		return bad("$near requires geojson point, given %s", value.Show(v))
	}
	near.Center = g
	return nil
}

// Distance returns the nearest geometry in a stored value, and its distance. A value is one geometry, or an array
// of them.
func (near *Near) Distance(v value.Value) (d float64, at *Geometry, ok bool) {
	if !nested(v) {
		return 0, nil, false
	}
	if g, err := ParseStored(v); err == nil {
		d, ok = near.to(g)
		return d, g, ok
	}
	if v.T != value.Array {
		return 0, nil, false
	}
	for _, e := range value.Values(v.Doc()) {
		g, err := ParseStored(e)
		if !nested(e) || err != nil {
			continue
		}
		if next, far := near.to(g); far && (!ok || next < d) {
			d, at, ok = next, g, true
		}
	}
	return d, at, ok
}

// to returns the distance to one geometry; shapes of the plane are points.
func (near *Near) to(g *Geometry) (float64, bool) {
	if !near.Sphere {
		if !g.one {
			return 0, false
		}
		return planeDistance(near.Center.Points[0], g.Points[0]), true
	}
	if !g.Sphere {
		return 0, false
	}
	a := angleTo(g, near.Center.places[0])
	if near.Radians {
		return a, true
	}
	return a * EarthRadius, true
}

// InBounds reports whether a distance is within the query's bounds.
func (near *Near) InBounds(d float64) bool { return d >= near.Min && d <= near.Max }
