package indexkey

import (
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/geo"
	"github.com/shoaldb/shoal/query/value"
)

// geoFields are the geospatial fields of a key: the key holds cells instead, of which one shape may have several.
type geoFields struct {
	at    []int // indexes of the fields
	plane *geo.Plane
}

func newGeoFields(spec *Spec) *geoFields {
	g := &geoFields{}
	for i, f := range spec.Fields {
		switch f.Kind {
		case Geo2D:
			p := Plane(spec)
			g.plane = &p
			g.at = append(g.at, i)
		case Sphere:
			g.at = append(g.at, i)
		}
	}
	if g.at == nil {
		return nil
	}
	return g
}

// Plane returns the region of a 2d index.
func Plane(spec *Spec) geo.Plane {
	p := geo.Plane{Min: -180, Max: 180, Bits: 26}
	if v := value.Lookup(spec.Raw, "min"); v.T.Numeric() {
		p.Min = v.AsFloat64()
	}
	if v := value.Lookup(spec.Raw, "max"); v.T.Numeric() {
		p.Max = v.AsFloat64()
	}
	if v := value.Lookup(spec.Raw, "bits"); v.T.Numeric() {
		p.Bits = max(1, min(32, int(v.AsFloat64())))
	}
	return p
}

func (g *geoFields) has(i int) bool {
	if g == nil {
		return false
	}
	for _, at := range g.at {
		if at == i {
			return true
		}
	}
	return false
}

// read finds the cells of a document's shapes. A document without any has no keys.
func (g *geoFields) read(gen *Generator, doc []byte, s *KeySet) (found bool, err error) {
	s.cells = s.cells[:0]
	for _, i := range g.at {
		var cells []int64
		for _, v := range along(nil, value.NewDocument(doc), gen.fields[i].parts) {
			var some []int64
			if g.plane != nil {
				some, err = g.plane.Keys(v, doc)
			} else {
				some, err = geo.SphereKeys(v, doc)
			}
			if err != nil {
				return false, err
			}
			cells = append(cells, some...)
		}
		found = found || len(cells) > 0
		s.cells = append(s.cells, cells)
	}
	return found, nil
}

// along collects the values at the end of a path, through arrays of documents.
func along(out []value.Value, v value.Value, parts []string) []value.Value {
	if len(parts) == 0 {
		if v.T != value.Missing {
			out = append(out, v)
		}
		return out
	}
	switch v.T {
	case value.Document:
		return along(out, value.Lookup(v.Doc(), parts[0]), parts[1:])
	case value.Array:
		for i, e := range value.Values(v.Doc()) {
			if e.T == value.Document {
				out = along(out, e, parts)
			}
			if isIndex(parts[0]) && parts[0] == strconv.Itoa(i) {
				out = along(out, e, parts[1:])
			}
		}
	}
	return out
}

// emit makes a key for each combination of cells.
func (g *geoFields) emit(gen *Generator, s *KeySet, at, n int) error {
	if n == len(g.at) {
		s.placing = true
		err := gen.emit(s, at)
		s.placing = false
		return err
	}
	i := g.at[n]
	c := &s.stack[at+i]
	if len(s.cells[n]) == 0 {
		c.v, c.done = value.NewNull(), true
		return g.emit(gen, s, at, n+1)
	}
	if len(s.cells[n]) > 1 {
		s.Multikey[i] |= 1 << min(uint(strings.Count(gen.fields[i].path, ".")), 63)
	}
	for _, cell := range s.cells[n] {
		s.stack[at+i] = cursor{v: value.NewInt64(cell), done: true}
		if err := g.emit(gen, s, at, n+1); err != nil {
			return err
		}
	}
	return nil
}
