package geo

import (
	"github.com/golang/geo/s2"
	"github.com/shoaldb/shoal/query/value"
)

// EarthRadius is the radius, in metres, of the sphere on which distances are measured.
const EarthRadius = 6378100.0

// Point is a position as it was written, in degrees or in the units of the plane.
type Point struct{ X, Y float64 }

// Geometry is a parsed shape: points, lines and polygons of any number, which is all that the types of GeoJSON are made of.
type Geometry struct {
	Points []Point // as written
	// Sphere is false for a legacy pair whose coordinates are not a longitude and a latitude: it has no location on the sphere.
	Sphere bool
	Legacy bool // written as a coordinate pair instead of GeoJSON
	Raw    value.Value

	places   []s2.Point // Points on the sphere
	lines    []line
	polygons []polygon
	strict   bool // a polygon's winding determines which side is inside
	one      bool // a single point, which a shape of the plane can contain

	pace *value.Pace // checks whether parsing or a query has to stop
	err  error       // the error if it has to
}

// line and polygon are shapes on the sphere with their edges.
type line struct {
	*s2.Polyline
	rim edged
}

type polygon struct {
	*s2.Polygon
	rim edged
}

// stop counts steps, and reports whether the work has to stop.
func (g *Geometry) stop(steps int) bool {
	if g.err == nil && g.pace != nil {
		g.err = g.pace.Steps(steps)
	}
	return g.err != nil
}

// IsPoint reports whether the geometry is one position.
func (g *Geometry) IsPoint() bool { return g.one }

// onSphere reports whether a pair is a longitude and a latitude.
func onSphere(p Point) bool { return p.X >= -180 && p.X <= 180 && p.Y >= -90 && p.Y <= 90 }

func place(p Point) s2.Point { return s2.PointFromLatLng(s2.LatLngFromDegrees(p.Y, p.X)) }

func (g *Geometry) addPoint(p Point) {
	g.Points = append(g.Points, p)
	g.places = append(g.places, place(p))
}
