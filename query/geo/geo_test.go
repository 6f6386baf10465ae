package geo

import (
	"math"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

func num(f float64) value.Value          { return value.NewDouble(f) }
func list(vs ...value.Value) value.Value { return value.NewArray(value.ArrayOf(vs...)) }
func pair(x, y float64) value.Value      { return list(num(x), num(y)) }
func doc(fs ...value.Field) value.Value  { return value.NewDocument(value.Doc(fs...)) }
func path(xy ...float64) (l value.Value) {
	var vs []value.Value
	for i := 0; i < len(xy); i += 2 {
		vs = append(vs, pair(xy[i], xy[i+1]))
	}
	return list(vs...)
}
func shape(kind string, c value.Value) value.Value {
	return doc(value.F("type", value.NewString(kind)), value.F("coordinates", c))
}
func square(side float64) value.Value {
	return path(-side, -side, side, -side, side, side, -side, side, -side, -side)
}

var winding = value.F("crs", doc(value.F("type", value.NewString("name")),
	value.F("properties", doc(value.F("name", value.NewString("urn:x-mongodb:crs:strictwinding:EPSG:4326"))))))

func TestQueries(t *testing.T) {
	poly := doc(value.F("$geometry", shape("Polygon", list(square(10)))))
	holed := doc(value.F("$geometry", shape("Polygon", list(square(10), square(2)))))
	clockwise := doc(value.F("$geometry", doc(value.F("type", value.NewString("Polygon")),
		value.F("coordinates", list(path(-10, -10, -10, 10, 10, 10, 10, -10, -10, -10))), winding)))
	box := doc(value.F("$box", list(pair(10, 10), pair(-10, -10))))
	disc := doc(value.F("$centerSphere", list(pair(0, 0), num(0.1))))
	for _, c := range []struct {
		name, op string
		query, v value.Value
		want     bool
	}{
		{"pair in polygon", "$geoWithin", poly, pair(5, 5), true},
		{"vertex belongs", "$geoWithin", poly, shape("Point", pair(10, 10)), true},
		{"outside", "$geoWithin", poly, shape("Point", pair(11, 0)), false},
		{"hole", "$geoWithin", holed, pair(0, 0), false},
		{"beside the hole", "$geoWithin", holed, pair(5, 0), true},
		{"line over the hole", "$geoWithin", holed, shape("LineString", path(-5, 0, 5, 0)), false},
		{"polygon round the hole", "$geoWithin", holed, shape("Polygon", list(square(4))), false},
		{"complement", "$geoWithin", clockwise, pair(50, 50), true},
		{"not in the complement", "$geoWithin", clockwise, pair(0, 0), false},
		{"line leaves", "$geoWithin", poly, shape("LineString", path(0, 0, 20, 20)), false},
		{"swapped corners", "$geoWithin", box, pair(10, -10), true},
		{"box holds points only", "$geoWithin", box, shape("LineString", path(0, 0, 1, 1)), false},
		{"cap holds a line", "$geoWithin", disc, shape("LineString", path(0, 0, 1, 1)), true},
		{"cap does not hold a polygon", "$geoWithin", disc, shape("Polygon", list(square(40))), false},
		{"line crosses", "$geoIntersects", poly, shape("LineString", path(-50, 0, 50, 1)), true},
		{"squares nested", "$geoIntersects", poly, shape("Polygon", list(square(1))), true},
		{"a shared edge is no area", "$geoIntersects", poly, shape("Polygon", list(path(10, -10, 20, -10, 20, 10, 10, 10, 10, -10))), false},
		{"not a place on the sphere", "$geoIntersects", poly, pair(200, 0), false},
		{"text", "$geoWithin", poly, value.NewString("x"), false},
	} {
		q, err := ParseQuery(c.op, c.query, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got, _ := q.Matches(c.v, nil); got != c.want {
			t.Errorf("%s: matches = %v", c.name, got)
		}
	}
}

func TestRefusals(t *testing.T) {
	geometry := func(v value.Value) value.Value { return doc(value.F("$geometry", v)) }
	for name, q := range map[string]value.Value{
		"open ring":      geometry(shape("Polygon", list(path(0, 0, 1, 0, 1, 1, 0, 1)))),
		"bow tie":        geometry(shape("Polygon", list(path(0, 0, 2, 2, 2, 0, 0, 2, 0, 0)))),
		"hole outside":   geometry(shape("Polygon", list(square(1), path(20, 20, 30, 20, 30, 30, 20, 20)))),
		"line holds":     geometry(shape("LineString", path(0, 0, 1, 1))),
		"unknown type":   geometry(shape("Circle", pair(0, 0))),
		"nothing":        doc(),
		"negative":       doc(value.F("$center", list(pair(0, 0), num(-1)))),
		"not a number":   doc(value.F("$centerSphere", list(pair(0, math.NaN()), num(1)))),
		"two points":     doc(value.F("$polygon", path(0, 0, 1, 1))),
		"unknown":        doc(value.F("$circle", pair(0, 0))),
		"not a document": pair(0, 0),
	} {
		if _, err := ParseQuery("$geoWithin", q, nil); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestNear(t *testing.T) {
	geojson := value.Doc(value.F("$near", doc(value.F("$geometry", shape("Point", pair(0, 0))), value.F("$maxDistance", num(200000)))))
	flat := value.Doc(value.F("$near", pair(0, 0)), value.F("$maxDistance", num(5)))
	radians := value.Doc(value.F("$nearSphere", pair(0, 0)))
	degree := math.Pi / 180
	for _, c := range []struct {
		name   string
		ops    []byte
		v      value.Value
		want   float64
		within bool
	}{
		{"metres", geojson, shape("Point", pair(1, 0)), degree * EarthRadius, true},
		{"too far", geojson, shape("Point", pair(2, 0)), 2 * degree * EarthRadius, false},
		{"nearest of several", geojson, list(shape("Point", pair(2, 0)), shape("Point", pair(0, 1))), degree * EarthRadius, true},
		{"line", geojson, shape("LineString", path(1, -1, 1, 1)), degree * EarthRadius, true},
		{"plane", flat, pair(3, 4), 5, true},
		{"radians", radians, pair(0, 90), math.Pi / 2, true},
	} {
		n, err := ParseNear(c.ops)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		d, _, ok := n.Distance(c.v)
		if !ok || math.Abs(d-c.want) > 1e-6*c.want || n.InBounds(d) != c.within {
			t.Errorf("%s: distance %v (%v), in bounds %v", c.name, d, ok, n.InBounds(d))
		}
	}
}
