package geo

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzGeo: no geometry and no query on one may do worse than fail.
func FuzzGeo(f *testing.F) {
	names := []string{"type", "coordinates", "geometries", "crs", "properties", "name", "$geometry", "$box", "$center", "$centerSphere", "$polygon", "$maxDistance", "$minDistance", "$near", "$nearSphere"}
	f.Fuzz(func(t *testing.T, in []byte) {
		g := valuetest.NewGenerator(in, names)
		shape := g.Value()
		if len(in) > 0 && in[0]%2 == 0 {
			kind := []string{"Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon", "GeometryCollection"}[int(in[0])/2%7]
			shape = value.NewDocument(value.Doc(value.F("type", value.NewString(kind)), value.F("coordinates", g.Array())))
		}
		_, _ = ParseStored(shape)
		_, _ = ParsePoint(shape)
		for _, op := range []string{"$geoWithin", "$geoIntersects", "$within"} {
			for _, arg := range []value.Value{shape, value.NewDocument(value.Doc(value.F("$geometry", shape)))} {
				q, err := ParseQuery(op, arg, nil)
				if err != nil {
					continue
				}
				_, _ = q.Matches(shape, nil)
				for _, d := range valuetest.Subjects() {
					_, _ = q.Matches(value.Lookup(d, "c"), nil)
				}
			}
		}
		if n, err := ParseNear(value.Doc(value.F("$near", shape))); err == nil {
			_ = n
		}
	})
}
