package geo

import (
	"math"
	"slices"

	"github.com/golang/geo/s2"
	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxCells limits the number of cells that cover one geometry in an index.
const maxCells = 20

// SphereKeys returns the cells under which a 2dsphere index has a value of a document: those that cover its
// geometry. A value without a geometry has none.
func SphereKeys(v value.Value, doc []byte) ([]int64, error) {
	if v.IsNullish() || v.T == value.Array && value.Count(v.Doc()) == 0 {
		return nil, nil
	}
	fail := func(why string) error {
		return mongoerr.Newf(16755, "Can't extract geo keys: %s  %s", bsontext.Doc(doc), why)
	}
	if !nested(v) {
		return nil, fail("geo element must be an array or object: " + bsontext.Value(v))
	}
	g, err := ParseStored(v)
	if err != nil {
		return nil, fail(mongoerr.From(err).Message)
	}
	return g.cells(fail)
}

func tidy(keys []int64) []int64 {
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (g *Geometry) cells(fail func(string) error) (out []int64, err error) {
	if !g.Sphere {
		return nil, fail("longitude/latitude is out of bounds, lng: " + bsontext.Double(g.Points[0].X) + " lat: " + bsontext.Double(g.Points[0].Y))
	}
	if g.strict {
		return nil, fail("can't index geometry with strict winding order")
	}
	for _, p := range g.places {
		out = append(out, int64(s2.CellFromPoint(p).ID()))
	}
	coverer := &s2.RegionCoverer{MaxLevel: s2.MaxLevel, LevelMod: 1, MaxCells: maxCells}
	cover := func(r s2.Region) {
		for _, c := range coverer.Covering(r) {
			out = append(out, int64(c))
		}
	}
	for _, l := range g.lines {
		cover(l.Polyline)
	}
	for _, p := range g.polygons {
		cover(p.Polygon)
	}
	return tidy(out), nil
}

// Plane is the region of a 2d index: its bounds, and the number of bits of a coordinate.
type Plane struct {
	Min, Max float64
	Bits     int
}

// Keys returns the cells under which a 2d index has a value: that of its pair, or of the pairs in an array.
// doc is the document that has the value, for error messages.
func (p Plane) Keys(v value.Value, doc []byte) ([]int64, error) {
	if v.IsNullish() || !nested(v) {
		if v.IsNullish() {
			return nil, nil
		}
		return nil, mongoerr.Newf(13026, "geo values must be 'legacy coordinate pairs' for 2d indexes: %s", bsontext.Value(v))
	}
	if value.Count(v.Doc()) == 0 {
		return nil, nil
	}
	var out []int64
	pairs := []value.Value{v}
	if it := value.Walk(v.Doc()); v.T == value.Array {
		if _, first, _ := it.Next(); nested(first) {
			pairs = value.Values(v.Doc())
		}
	}
	for _, e := range pairs {
		at, err := parsePair(e, true)
		if err != nil {
			return nil, mongoerr.Newf(13026, "geo values must be 'legacy coordinate pairs' for 2d indexes: %s", bsontext.Value(e))
		}
		if !p.Holds(at) {
			return nil, mongoerr.Newf(13027, "point not in interval of [ %v, %v ] :: caused by :: %s", p.Min, p.Max, bsontext.Doc(doc))
		}
		out = append(out, p.cell(at))
	}
	return tidy(out), nil
}

// Holds reports whether a point is in the region.
func (p Plane) Holds(at Point) bool {
	return at.X >= p.Min && at.X <= p.Max && at.Y >= p.Min && at.Y <= p.Max
}

// cell interleaves the bits of the two coordinates, so that neighbours mostly have adjacent keys.
func (p Plane) cell(at Point) int64 {
	var key uint64
	x, y := p.scale(at.X), p.scale(at.Y)
	for i := p.Bits - 1; i >= 0; i-- {
		key = key<<2 | (x>>i&1)<<1 | y>>i&1
	}
	return int64(key)
}

func (p Plane) scale(f float64) uint64 {
	cells := math.Exp2(float64(p.Bits))
	return uint64(min(math.Floor((f-p.Min)/(p.Max-p.Min)*cells), cells-1))
}
