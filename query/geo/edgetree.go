package geo

import (
	"math"
	"slices"

	"github.com/golang/geo/s2"
)

// edgeTree finds the edges of a shape that are near a point: boxes in space, each around a few edges or boxes that are near
// each other.
type edgeTree struct {
	edges  []s2.Edge
	order  []int32  // edges in spatial order
	own    []cube   // the edges' cubes, in that order
	levels [][]cube // levels[0] are boxes around fan edges each
}

// fan is the number of edges or boxes in a cube.
const fan = 8

// treeFrom is the number of edges from which a shape gets a tree.
const treeFrom = 64

// cube is a part of space.
type cube struct{ low, high [3]float64 }

// around extends a cube to contain another.
func (b *cube) around(o cube) {
	for i := range 3 {
		b.low[i], b.high[i] = min(b.low[i], o.low[i]), max(b.high[i], o.high[i])
	}
}

func (b *cube) meets(o *cube) bool {
	for i := range 3 {
		if b.low[i] > o.high[i] || b.high[i] < o.low[i] {
			return false
		}
	}
	return true
}

// edgeCube returns a cube that contains an edge, including its curvature, and what touches it.
func edgeCube(e s2.Edge) cube {
	half := e.V0.Sub(e.V1.Vector).Norm() / 2
	slack := 1 - math.Sqrt(max(0, 1-half*half)) + 2*float64(touch)
	var b cube
	for i, p := range [3][2]float64{{e.V0.X, e.V1.X}, {e.V0.Y, e.V1.Y}, {e.V0.Z, e.V1.Z}} {
		b.low[i], b.high[i] = min(p[0], p[1])-slack, max(p[0], p[1])+slack
	}
	return b
}

func newEdgeTree(edges []s2.Edge) *edgeTree {
	t := &edgeTree{edges: edges, order: make([]int32, len(edges))}
	cells := make([]s2.CellID, len(edges))
	for i, e := range edges {
		t.order[i] = int32(i)
		cells[i] = s2.CellFromPoint(s2.Point{Vector: e.V0.Add(e.V1.Vector)}).ID()
	}
	slices.SortFunc(t.order, func(a, b int32) int {
		if cells[a] != cells[b] {
			return one(cells[a] > cells[b])
		}
		return int(a - b)
	})
	boxes := make([]cube, len(edges))
	t.own = boxes
	for i, at := range t.order {
		boxes[i] = edgeCube(edges[at])
	}
	for len(boxes) > 1 || len(t.levels) == 0 {
		var up []cube
		for i := 0; i < len(boxes); i += fan {
			b := boxes[i]
			for _, o := range boxes[i:min(i+fan, len(boxes))] {
				b.around(o)
			}
			up = append(up, b)
		}
		t.levels = append(t.levels, up)
		boxes = up
	}
	return t
}

// one returns 1 for true and -1 for false.
func one(is bool) int {
	if is {
		return 1
	}
	return -1
}

// near calls f with each edge that may meet another, or come as near as touch, until f stops it. It reports whether f did.
func (t *edgeTree) near(e s2.Edge, f func(i int, e s2.Edge) (stop bool)) bool {
	if len(t.edges) == 0 {
		return false
	}
	q := edgeCube(e)
	return t.visit(&q, len(t.levels)-1, 0, f)
}

func (t *edgeTree) visit(q *cube, level, at int, f func(int, s2.Edge) bool) bool {
	if !t.levels[level][at].meets(q) {
		return false
	}
	if level == 0 {
		for k := at * fan; k < min((at+1)*fan, len(t.order)); k++ {
			if i := t.order[k]; t.own[k].meets(q) && f(int(i), t.edges[i]) {
				return true
			}
		}
		return false
	}
	for i := at * fan; i < min((at+1)*fan, len(t.levels[level-1])); i++ {
		if t.visit(q, level-1, i, f) {
			return true
		}
	}
	return false
}

// edged is a shape whose edges can be searched by location.
type edged struct {
	s2.Shape
	tree *edgeTree // nil if there are few
}

func withTree(s s2.Shape) edged {
	e := edged{Shape: s}
	if n := s.NumEdges(); n >= treeFrom {
		edges := make([]s2.Edge, n)
		for i := range edges {
			edges[i] = s.Edge(i)
		}
		e.tree = newEdgeTree(edges)
	}
	return e
}

// near is edgeTree.near; without a tree it tries all edges.
func (e edged) near(to s2.Edge, f func(i int, e s2.Edge) (stop bool)) bool {
	if e.tree != nil {
		return e.tree.near(to, f)
	}
	for i := range e.NumEdges() {
		if f(i, e.Edge(i)) {
			return true
		}
	}
	return false
}

// touches reports whether a point lies on an edge.
func (e edged) touches(p s2.Point) bool {
	return e.near(s2.Edge{V0: p, V1: p}, func(_ int, o s2.Edge) bool { return s2.DistanceFromSegment(p, o.V0, o.V1) <= touch })
}
