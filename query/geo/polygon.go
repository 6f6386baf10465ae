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
		l, err := g.readRing(r, crs)
		if err != nil {
			return err
		}
		loops[i] = l
	}
	if len(loops) > 1 {
		if err := g.checkHoles(loops, v); err != nil {
			return err
		}
	}
	p := s2.PolygonFromLoops(loops)
	g.polygons = append(g.polygons, polygon{p, withTree(p)})
	return nil
}

// readRing reads one closed ring. Unless the winding is strict, the smaller side is the inside.
func (g *Geometry) readRing(v value.Value, crs system) (*s2.Loop, error) {
	pts, err := g.readPositions(v)
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
	if err := g.checkRing(pts, v); err != nil {
		return nil, err
	}
	l := s2.LoopFromPoints(pts)
	if crs != strictSphere {
		l.Normalize()
	}
	return l, nil
}

// checkRing refuses a ring that intersects itself.
func (g *Geometry) checkRing(pts []s2.Point, v value.Value) error {
	seen := make(map[s2.Point]int, len(pts))
	for i, p := range pts {
		if j, dup := seen[p]; dup {
			return bad("Loop is not valid: %s Duplicate vertices: %d and %d", value.Show(v), j, i)
		}
		seen[p] = i
	}
	n := len(pts)
	rim := withTree(s2.LaxLoopFromPoints(pts))
	for i, p := range pts {
		e := s2.Edge{V0: p, V1: pts[(i+1)%n]}
		crosser := s2.NewEdgeCrosser(e.V0, e.V1)
		first := n // the first edge after it that crosses it
		rim.near(e, func(j int, o s2.Edge) bool {
			if j > i+1 && (j+1)%n != i && j < first && crosser.CrossingSign(o.V0, o.V1) == s2.Cross {
				first = j
			}
			return g.stop(1)
		})
		if g.err != nil {
			return g.err
		}
		if first < n {
			return bad("Loop is not valid: %s Edges %d and %d cross.", value.Show(v), i, first)
		}
	}
	return nil
}

// checkHoles refuses inner rings that are not within the outer one or that cross another.
func (g *Geometry) checkHoles(loops []*s2.Loop, v value.Value) error {
	var edges []s2.Edge
	var of []int // the ring of each edge
	for i, l := range loops {
		for j := range l.NumEdges() {
			edges, of = append(edges, l.Edge(j)), append(of, i)
		}
	}
	tree := newEdgeTree(edges)
	for i, l := range loops[1:] {
		i++
		first := g.firstCrossed(tree, of, l, i)
		if g.err != nil {
			return g.err
		}
		if first > 0 && !loops[0].Contains(l) {
			return bad("Secondary loops not contained by first exterior loop - secondary loops must be holes: %s first loop: %s",
				value.Show(v), value.Show(value.Values(v.Doc())[0]))
		}
		if first < i {
			return bad("Polygon isn't valid: loops %d and %d cross: %s", first, i, value.Show(v))
		}
	}
	return nil
}

// firstCrossed returns the first ring before the i-th that crosses it or shares an edge with it; i for none.
func (g *Geometry) firstCrossed(tree *edgeTree, of []int, l *s2.Loop, i int) int {
	first := i
	for k := range l.NumEdges() {
		e := l.Edge(k)
		crosser := s2.NewEdgeCrosser(e.V0, e.V1)
		tree.near(e, func(j int, o s2.Edge) bool {
			if of[j] < first && (crosser.CrossingSign(o.V0, o.V1) == s2.Cross || e == o || e.V0 == o.V1 && e.V1 == o.V0) {
				first = of[j]
			}
			return g.stop(1)
		})
		if g.err != nil {
			break
		}
	}
	return first
}
