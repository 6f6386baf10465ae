package geo

import (
	"github.com/shoaldb/shoal/query/value"
)

// Query is the operand of $geoWithin or $geoIntersects.
type Query struct {
	Intersects bool
	shape      region
}

// region is the shape that a query's operand describes.
type region interface {
	contains(g *Geometry) bool
	meets(g *Geometry) bool
}

// ParseQuery reads the operand of the operator named: $geoWithin, $within or $geoIntersects. It may take long
// if shapes have many edges; pace checks whether it has to stop.
func ParseQuery(name string, v value.Value, pace *value.Pace) (*Query, error) {
	if v.T != value.Document {
		return nil, bad("geometry must be an object")
	}
	q := &Query{Intersects: name == "$geoIntersects"}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			break
		}
		if string(k) == "$uniqueDocs" {
			continue // accepted without effect, since documents are never returned twice
		}
		if q.shape != nil {
			return nil, bad("can't parse extra field: %s", value.ShowElement(string(k), e))
		}
		var err error
		if q.shape, err = parseShape(string(k), e, pace); err != nil {
			return nil, err
		}
	}
	if q.shape == nil {
		return nil, bad("geo query doesn't have any geometry")
	}
	return q, q.check(name, v)
}

// check refuses operands that can contain nothing, or that are in the plane where only the sphere is allowed.
func (q *Query) check(name string, v value.Value) error {
	switch s := q.shape.(type) {
	case *Geometry:
		if !q.Intersects && len(s.polygons) == 0 {
			return bad("%s not supported with provided geometry: %s", name, value.Show(v))
		}
	case box, circle, ring:
		if q.Intersects {
			return bad("$geoIntersect not supported with provided geometry: %s", value.Show(v))
		}
	}
	return nil
}

func parseShape(name string, v value.Value, pace *value.Pace) (region, error) {
	switch name {
	case "$box":
		return parseBox(v)
	case "$center":
		return parseCircle(v)
	case "$centerSphere":
		return parseCap(v)
	case "$polygon":
		return parseRing(v)
	case "$geometry":
		return parseGeometry(v, pace)
	}
	return nil, bad("unknown geo specifier: %s", value.ShowElement(name, v))
}

func parseGeometry(v value.Value, pace *value.Pace) (region, error) {
	if !nested(v) {
		return nil, bad("$geometry must be an object, instead got type %s", v.T.Name())
	}
	if !legacy(v) {
		g, err := parseGeoJSON(v, true, pace)
		if err != nil {
			return nil, err
		}
		g.pace = nil
		return g, nil
	}
	g, err := parseLegacy(v, false)
	if err != nil {
		return nil, err
	}
	if !g.Sphere {
		return nil, bad("Longitude/latitude is out of bounds, lng: %s lat: %s",
			value.Show(value.NewDouble(g.Points[0].X)), value.Show(value.NewDouble(g.Points[0].Y)))
	}
	return g, nil
}

// Matches reports whether a stored value satisfies the query; what is not a geometry does not. The error is
// that of an operation that has to stop.
func (q *Query) Matches(v value.Value, pace *value.Pace) (bool, error) {
	if !nested(v) {
		return false, nil
	}
	g, err := parseStored(v, pace)
	if err != nil {
		if pace != nil && pace.Work != nil {
			return false, pace.Work.Check()
		}
		return false, nil
	}
	var ok bool
	if q.Intersects {
		ok = g.Sphere && q.shape.meets(g)
	} else {
		ok = q.shape.contains(g)
	}
	return ok && g.err == nil, g.err
}
