package geo

import (
	"math"

	"github.com/golang/geo/s2"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func bad(format string, args ...any) error { return mongoerr.Newf(mongoerr.BadValue, format, args...) }

// nested reports whether a value is a document or an array, as every written geometry is.
func nested(v value.Value) bool { return v.T == value.Document || v.T == value.Array }

// legacy distinguishes a coordinate pair ([x, y] or {lng: x, lat: y}) from GeoJSON.
func legacy(v value.Value) bool {
	if v.T == value.Array {
		return true
	}
	it := value.Walk(v.Doc())
	_, first, ok := it.Next()
	return ok && first.T.Numeric()
}

// ParseStored reads a geometry of a document.
func ParseStored(v value.Value) (*Geometry, error) { return parseStored(v, nil) }

func parseStored(v value.Value, pace *value.Pace) (*Geometry, error) {
	if !nested(v) {
		return nil, bad("geo element must be an array or object: %s", value.Show(v))
	}
	if !legacy(v) {
		return parseGeoJSON(v, true, pace)
	}
	return parseLegacy(v, true)
}

func parseLegacy(v value.Value, more bool) (*Geometry, error) {
	p, err := parsePair(v, more)
	if err != nil {
		return nil, err
	}
	g := &Geometry{Legacy: true, one: true, Raw: v, Points: []Point{p}}
	if g.Sphere = onSphere(p); g.Sphere {
		g.places = []s2.Point{place(p)}
	}
	return g, nil
}

// ParsePoint reads a position in a query: a coordinate pair or a GeoJSON point.
func ParsePoint(v value.Value) (*Geometry, error) {
	if !nested(v) {
		return nil, bad("Point must be an array or object, instead got type %s", v.T.Name())
	}
	if legacy(v) {
		return parseLegacy(v, false)
	}
	t := value.Lookup(v.Doc(), "type") // may be omitted where only a point is allowed
	if t.T != value.Missing && (t.T != value.String || t.Str() != "Point") {
		return nil, bad("invalid point in geo near query $geometry argument: %s", value.Show(v))
	}
	if _, err := parseSystem(v.Doc(), false); err != nil {
		return nil, err
	}
	g := &Geometry{Sphere: true, one: true, Raw: v}
	return g, g.readPoint(value.Lookup(v.Doc(), "coordinates"))
}

// parsePair reads two numbers; more allows values after them.
func parsePair(v value.Value, more bool) (Point, error) {
	var p Point
	if !nested(v) {
		return p, bad("Point must be an array or object, instead got type %s", v.T.Name())
	}
	it := value.Walk(v.Doc())
	for _, to := range []*float64{&p.X, &p.Y} {
		_, e, ok := it.Next()
		if !ok || !e.T.Numeric() {
			return p, bad("Point must only contain numeric elements, instead got type %s", e.T.Name())
		}
		*to = e.AsFloat64()
	}
	if _, _, ok := it.Next(); ok && !more {
		return p, bad("Point must only contain two numeric elements")
	}
	if math.IsNaN(p.X) || math.IsNaN(p.Y) || math.IsInf(p.X, 0) || math.IsInf(p.Y, 0) {
		return p, bad("Point coordinates must be finite numbers")
	}
	return p, nil
}

// system is the coordinate reference system a GeoJSON object names.
type system int

const (
	sphere system = iota
	strictSphere
)

func parseSystem(doc []byte, strict bool) (system, error) {
	v := value.Lookup(doc, "crs")
	if v.T == value.Missing {
		return sphere, nil
	}
	if v.T != value.Document {
		return sphere, bad("GeoJSON CRS must be an object")
	}
	if t := value.Lookup(v.Doc(), "type"); t.T != value.String || t.Str() != "name" {
		return sphere, bad("GeoJSON CRS must have field \"type\": \"name\"")
	}
	props := value.Lookup(v.Doc(), "properties")
	if props.T != value.Document {
		return sphere, bad("CRS must have field \"properties\" which is an object, instead got type %s", props.T.Name())
	}
	name := value.Lookup(props.Doc(), "name")
	if name.T != value.String {
		return sphere, bad("In CRS, \"properties.name\" must be a string, instead got type %s", name.T.Name())
	}
	switch name.Str() {
	case "urn:ogc:def:crs:OGC:1.3:CRS84", "EPSG:4326":
		return sphere, nil
	case "urn:x-mongodb:crs:strictwinding:EPSG:4326":
		if !strict {
			return sphere, bad("Strict winding order is only supported by polygon")
		}
		return strictSphere, nil
	}
	return sphere, bad("Unknown CRS name: %s", name.Str())
}

// parseGeoJSON reads any type of GeoJSON object; strict allows a polygon whose winding determines which side is inside.
func parseGeoJSON(v value.Value, strict bool, pace *value.Pace) (*Geometry, error) {
	g := &Geometry{Sphere: true, Raw: v, pace: pace}
	if err := g.parse(v.Doc(), strict, false); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *Geometry) parse(doc []byte, strict, inCollection bool) error {
	t := value.Lookup(doc, "type")
	if t.T != value.String {
		return bad("unknown GeoJSON type: %s", value.ShowDoc(doc))
	}
	kind := t.Str()
	crs, err := parseSystem(doc, strict && kind == "Polygon")
	if err != nil {
		return err
	}
	if kind == "GeometryCollection" {
		if inCollection {
			return bad("GeometryCollections cannot be nested: %s", value.ShowDoc(doc))
		}
		return g.parseCollection(doc, strict)
	}
	c := value.Lookup(doc, "coordinates")
	switch kind {
	case "Point":
		g.one = !inCollection
		return g.readPoint(c)
	case "LineString":
		return g.readLine(c)
	case "Polygon":
		return g.readPolygon(c, crs)
	case "MultiPoint":
		return g.each(c, kind, g.readPoint)
	case "MultiLineString":
		return g.each(c, kind, g.readLine)
	case "MultiPolygon":
		return g.each(c, kind, func(e value.Value) error { return g.readPolygon(e, sphere) })
	}
	return bad("unknown GeoJSON type: %s", value.ShowDoc(doc))
}

func (g *Geometry) parseCollection(doc []byte, strict bool) error {
	list := value.Lookup(doc, "geometries")
	if list.T != value.Array {
		return bad("GeometryCollection geometries must be an array, instead got type %s", list.T.Name())
	}
	members := value.Values(list.Doc())
	if len(members) == 0 {
		return bad("GeometryCollection geometries must have at least 1 element")
	}
	for i, e := range members {
		if e.T != value.Document {
			return bad("Element %d of \"geometries\" must be an object, instead got type %s:", i, e.T.Name())
		}
		if err := g.parse(e.Doc(), strict, true); err != nil {
			return err
		}
	}
	return nil
}

func (g *Geometry) each(c value.Value, kind string, read func(value.Value) error) error {
	if c.T != value.Array {
		return bad("%s coordinates must be an array, instead got type %s", kind, c.T.Name())
	}
	parts := value.Values(c.Doc())
	if len(parts) == 0 {
		return bad("%s coordinates must have at least 1 element", kind)
	}
	for _, e := range parts {
		if err := read(e); err != nil {
			return err
		}
	}
	return nil
}

func readPosition(v value.Value) (Point, error) {
	if !nested(v) {
		return Point{}, bad("GeoJSON coordinates must be an array, instead got type %s", v.T.Name())
	}
	p, err := parsePair(v, true)
	if err == nil && !onSphere(p) {
		err = bad("Longitude/latitude is out of bounds, lng: %s lat: %s", value.Show(value.NewDouble(p.X)), value.Show(value.NewDouble(p.Y)))
	}
	return p, err
}

func (g *Geometry) readPoint(v value.Value) error {
	p, err := readPosition(v)
	if err == nil {
		g.addPoint(p)
	}
	return err
}

// readPositions reads a list of positions, dropping those equal to the one before.
func (g *Geometry) readPositions(v value.Value) (kept []s2.Point, err error) {
	if v.T != value.Array {
		return nil, bad("GeoJSON coordinates must be an array of coordinates, instead got type %s", v.T.Name())
	}
	for it := value.Walk(v.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return kept, nil
		}
		p, err := readPosition(e)
		if err != nil {
			return nil, err
		}
		if g.stop(1) {
			return nil, g.err
		}
		if at := place(p); len(kept) == 0 || kept[len(kept)-1] != at {
			kept = append(kept, at)
		}
	}
}

func (g *Geometry) readLine(v value.Value) error {
	pts, err := g.readPositions(v)
	if err != nil {
		return err
	}
	if len(pts) < 2 {
		return bad("GeoJSON LineString must have at least 2 vertices: %s", value.Show(v))
	}
	l := s2.Polyline(pts)
	for i := 1; i < len(pts); i++ {
		if pts[i].Vector.Add(pts[i-1].Vector).Norm() < 1e-15 {
			return bad("GeoJSON LineString is not valid: adjacent vertices are antipodal %s", value.Show(v))
		}
	}
	g.lines = append(g.lines, line{&l, withTree(&l)})
	return nil
}
