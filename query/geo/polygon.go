package geo

import (
	"github.com/golang/geo/s2"
	"github.com/shoaldb/shoal/query/value"
)

// readPolygon reads an outer ring and the rings of its holes.
func (g *Geometry) readPolygon(v value.Value, crs system) error {
	if v.T != value.Array {
		return bad("Polygon coordinates must be an array, instead got type %s", v.T.Name())
	}
	rings := value.Values(v.Doc())
	if len(rings) == 0 {
		return bad("Polygon has no loops.")
	}
	g.strict = g.strict || crs == strictSphere
	if crs == strictSphere && len(rings) > 1 {
		return bad("Only one simple loop is allowed in a big polygon, instead provided %d", len(rings))
	}
	loops := make([]*s2.Loop, len(rings))
	for i, r := range rings {
		l, err := readRing(r, crs)
		if err != nil {
			return err
		}
		loops[i] = l
	}
	for i, l := range loops {
		if err := checkHole(loops[:i], l, v); err != nil {
			return err
		}
	}
	g.polygons = append(g.polygons, s2.PolygonFromLoops(loops))
	return nil
}

// readRing reads one closed ring. Unless the winding is strict, the smaller side is the inside.
func readRing(v value.Value, crs system) (*s2.Loop, error) {
	pts, err := readPositions(v)
	if err != nil {
		return nil, err
	}
	if len(pts) == 0 {
		return nil, bad("Loop has no vertices: %s", value.Show(v))
	}
	if pts[0] != pts[len(pts)-1] {
		return nil, bad("Loop is not closed, first vertex does not equal last vertex: %s", value.Show(v))
	}
	pts = pts[:len(pts)-1]
	if len(pts) < 3 {
		return nil, bad("Loop must have at least 3 different vertices, %d unique vertices were provided: %s", len(pts), value.Show(v))
	}
	if err := checkRing(pts, v); err != nil {
		return nil, err
	}
	l := s2.LoopFromPoints(pts)
	if crs != strictSphere {
		l.Normalize()
	}
	return l, nil
}

// checkRing refuses a ring that meets itself.
func checkRing(pts []s2.Point, v value.Value) error {
	seen := make(map[s2.Point]int, len(pts))
	for i, p := range pts {
		if j, dup := seen[p]; dup {
			return bad("Loop is not valid: %s Duplicate vertices: %d and %d", value.Show(v), j, i)
		}
		seen[p] = i
	}
	n := len(pts)
	for i := range n {
		a, b := pts[i], pts[(i+1)%n]
		crosser := s2.NewEdgeCrosser(a, b)
		for j := i + 2; j < n; j++ {
			if (j+1)%n == i {
				continue
			}
			if crosser.CrossingSign(pts[j], pts[(j+1)%n]) == s2.Cross {
				return bad("Loop is not valid: %s Edges %d and %d cross.", value.Show(v), i, j)
			}
		}
	}
	return nil
}

// checkHole refuses an inner ring that leaves the outer one or crosses another.
func checkHole(before []*s2.Loop, l *s2.Loop, v value.Value) error {
	for i, o := range before {
		if loopsCross(o, l) {
			return bad("Polygon isn't valid: loops %d and %d cross: %s", i, len(before), value.Show(v))
		}
		if i == 0 && !o.Contains(l) {
			return bad("Secondary loops not contained by first exterior loop - secondary loops must be holes: %s first loop: %s",
				value.Show(v), value.Show(value.Values(v.Doc())[0]))
		}
	}
	return nil
}

// loopsCross reports whether two rings cross or share an edge.
func loopsCross(a, b *s2.Loop) bool {
	for i := range a.NumVertices() {
		crosser := s2.NewEdgeCrosser(a.Vertex(i), a.Vertex(i+1))
		for j := range b.NumVertices() {
			c, d := b.Vertex(j), b.Vertex(j+1)
			if crosser.CrossingSign(c, d) == s2.Cross {
				return true
			}
			if a.Vertex(i) == c && a.Vertex(i+1) == d || a.Vertex(i) == d && a.Vertex(i+1) == c {
				return true
			}
		}
	}
	return false
}
