package plan

import (
	"strings"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// pred is a predicate for which an index field may have bounds.
type pred struct {
	test  *match.Node // the node from which bounds are made
	path  string      // full path of test
	outer int         // index of the conjunct that it belongs to
	elem  *match.Node // the enclosing $elemMatch, nil for none
	depth int         // components of elem's path
	whole bool        // test is the whole conjunct
}

// conjunction is a filter split into conjuncts, all of which must hold.
type conjunction struct {
	m     *match.Matcher
	parts []*match.Node
	preds []pred
	room  [2]pred
}

// newConjunction splits the conjuncts, which may come from a root And, or from a branch of an $or and the
// conjuncts beside the $or.
func newConjunction(m *match.Matcher, parts []*match.Node) *conjunction {
	c := &conjunction{m: m, parts: parts}
	c.preds = c.room[:0]
	for i, p := range parts {
		c.add(p, p, "", i, nil, 0)
	}
	return c
}

func conjuncts(n *match.Node) []*match.Node {
	if n.Kind == match.And {
		return n.Children
	}
	return []*match.Node{n}
}

func (c *conjunction) add(top, n *match.Node, prefix string, outer int, elem *match.Node, depth int) {
	switch n.Kind {
	case match.And:
		for _, child := range n.Children {
			c.add(top, child, prefix, outer, elem, depth)
		}
		return
	case match.ElemMatchObject:
		path := prefix + n.Path
		c.add(top, n.Children[0], path+".", outer, n, components(path))
		return
	case match.Or, match.Nor, match.Expr, match.Where, match.Text, match.GeoNear, match.Schema, match.AlwaysTrue, match.AlwaysFalse,
		match.SampleRate:
		return
	}
	path := n.Path
	if n.Kind == match.Not {
		if !n.Children[0].Leaf() || n.Children[0].Kind == match.ElemMatchObject {
			return
		}
		path = n.Children[0].Path
	}
	if (elem != nil || n.Kind == match.ElemMatchValue) && hasIndexComponent(prefix+path) {
		return // $elemMatch traverses arrays at such paths, keys do not
	}
	c.preds = append(c.preds, pred{test: n, path: prefix + path, outer: outer, elem: elem, depth: depth, whole: top == n})
}

// use is the best use of an index for a conjunction.
type use struct {
	x      *Index
	bounds []FieldBounds
	done   uint64 // conjuncts that the bounds decide exactly
	onKey  uint64 // conjuncts to be checked on the key
	bound  int    // fields with bounds
	served int    // number of predicates with bounds
	empty  bool   // nothing can match
	by     uint64 // the predicates with bounds
}

// assign gives each field of the index its bounds. wild is the path that a wildcard field represents.
func (c *conjunction) assign(x *Index, wild string) *use {
	u := &use{x: x, bounds: make([]FieldBounds, 0, len(x.Fields)+1)}
	for i := range x.Fields {
		f := &x.Fields[i]
		path := f.Path
		if f.Kind == Wildcard {
			path = wild
		}
		l := c.assignField(u, i, path)
		if f.Kind == Wildcard {
			if wild == "" {
				l = everything()
			}
			u.bounds = append(u.bounds, c.wildPath(wild, l.Full()))
		}
		u.empty = u.empty || len(l) == 0
		if !l.Full() {
			u.bound++
		}
		u.bounds = append(u.bounds, FieldBounds{Path: path, Desc: f.Desc, Intervals: l})
	}
	return u
}

// wildPath returns the bounds of the path part of a wildcard key: the path, and with below also the paths below it.
func (c *conjunction) wildPath(path string, below bool) FieldBounds {
	l := Intervals{point(value.NewMinKey()), {noStr, noDoc, true, false}}
	if path != "" {
		l = Intervals{point(value.NewString(path))}
		for i := range c.preds {
			if p := &c.preds[i]; below && p.path == path && wantsBelow(p.test) {
				l = append(l, Interval{value.NewString(path + "."), value.NewString(path + "/"), true, false})
			}
		}
	}
	return FieldBounds{Path: "$_path", Intervals: union(l)}
}

func (c *conjunction) assignField(u *use, i int, path string) Intervals {
	t := target{x: u.x, i: i, multi: u.x.fieldMultikey(i)}
	if t.multi {
		return c.assignMultikey(u, &t, path)
	}
	var l Intervals
	bounded := false
	for k := range c.preds {
		p := &c.preds[k]
		if p.path != path || !u.x.serves(p, c) {
			continue
		}
		one, tight, ok := t.boundsOf(p.test)
		if !ok {
			continue
		}
		if bounded {
			one = intersect(l, one)
		}
		l, bounded = one, true
		u.served++
		u.by |= 1 << uint(min(k, 63))
		u.settle(p, tight, false)
	}
	if !bounded {
		return everything()
	}
	return l
}

// throughArrays makes the use of a path with numbers correct for collections with arrays: a number may be the name of a
// field or an index in an array, which wildcard keys do not have, so each path is tried with and without it. ok is false if
// two numbers follow each other, because the second may be an index in a nested array, whose key is that array as a whole;
// if there are too many combinations; or if the index does not have all of these paths.
func (u *use) throughArrays(path string) (ok bool) {
	paths := []string{""}
	before := false
	for _, part := range strings.Split(path, ".") {
		n := len(paths)
		number := part != "" && strings.Trim(part, "0123456789") == ""
		if number && before {
			return false
		}
		before = number && paths[0] != ""
		for i := range n {
			if before {
				paths = append(paths, paths[i])
			}
			paths[i] = strings.TrimPrefix(paths[i]+"."+part, ".")
		}
		if len(paths) > 8 {
			return false
		}
	}
	for i := range u.bounds {
		if u.bounds[i].Path != "$_path" {
			continue
		}
		var l Intervals
		for _, p := range paths {
			if !u.x.Covers(p) {
				return false
			}
			l = append(l, point(value.NewString(p)))
		}
		u.bounds[i].Intervals = union(l)
	}
	u.done, u.onKey = 0, 0
	return true
}

// settle records what remains to be checked of a predicate.
func (u *use) settle(p *pred, tight tightness, multi bool) {
	if !p.whole || p.outer > 63 || tight == fetch || tight == covered && multi {
		return
	}
	if tight == exact {
		u.done |= 1 << uint(p.outer)
	} else {
		u.onKey |= 1 << uint(p.outer)
	}
}

// assignMultikey uses the bounds of one predicate, or of all in one $elemMatch: different predicates may be
// satisfied by different elements.
func (c *conjunction) assignMultikey(u *use, t *target, path string) Intervals {
	var best Intervals
	var bestPred *pred
	bestAt := 0
	bestTight := fetch
	for k := range c.preds {
		p := &c.preds[k]
		if p.path != path || !u.x.serves(p, c) || !c.mayCompound(u, t, p) {
			continue
		}
		one, tight, ok := t.boundsOf(p.test)
		if !ok {
			continue
		}
		if p.elem != nil && p.depth >= t.x.lastMultikey(t.i) {
			for j := range c.preds {
				if q := &c.preds[j]; j != k && q.elem == p.elem && q.path == path {
					if two, _, ok := t.boundsOf(q.test); ok {
						one = intersect(one, two)
					}
				}
			}
		}
		if best == nil || narrower(one, best) {
			best, bestPred, bestTight, bestAt = one, p, tight, k
		}
	}
	if bestPred == nil {
		return everything()
	}
	u.served++
	u.by |= 1 << uint(min(bestAt, 63))
	u.settle(bestPred, bestTight, true)
	return best
}

// mayCompound reports whether p's bounds may be combined with those of earlier fields: if they traverse the same
// array, they hold for the same element only if one $elemMatch on that array has them all.
func (c *conjunction) mayCompound(u *use, t *target, p *pred) bool {
	for i := range t.i {
		shared := sharedArray(t.x, i, t.i)
		if shared == 0 || len(u.bounds) <= i || u.bounds[i].Intervals.Full() {
			continue
		}
		if p.elem == nil || p.depth < shared {
			return false
		}
		same := false
		for k := range c.preds {
			q := &c.preds[k]
			same = same || q.path == t.x.Fields[i].Path && q.elem == p.elem
		}
		if !same {
			return false
		}
	}
	return true
}

// sharedArray returns one more than the position of the last component that two fields' paths share and that has arrays;
// 0 for none.
func sharedArray(x *Index, i, j int) int {
	a, b := strings.Split(x.Fields[i].Path, "."), strings.Split(x.Fields[j].Path, ".")
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if x.MultikeyPaths == nil {
		return n
	}
	shared := 0
	for k := range n {
		if x.MultikeyPaths[i]>>uint(k)&1 != 0 || x.MultikeyPaths[j]>>uint(k)&1 != 0 {
			shared = k + 1
		}
	}
	return shared
}

// narrower prefers points to ranges, and few to many.
func narrower(a, b Intervals) bool {
	if pa, pb := a.Points(), b.Points(); pa != pb {
		return pa
	}
	if fa, fb := a.Full(), b.Full(); fa != fb {
		return fb
	}
	return len(a) < len(b)
}

// serves reports whether x may have bounds for p at all.
func (x *Index) serves(p *pred, c *conjunction) bool {
	if x.Multikey && p.elem != nil && p.test.Kind == match.Not {
		return false
	}
	return true
}

// residual returns what remains to be checked on the document, nil for nothing.
func (c *conjunction) residual(done uint64) *match.Matcher {
	var left []*match.Node
	for i, p := range c.parts {
		if i > 63 || done>>uint(i)&1 == 0 {
			left = append(left, p)
		}
	}
	switch len(left) {
	case 0:
		return nil
	case len(conjuncts(c.m.Root())):
		if left[0] == conjuncts(c.m.Root())[0] && len(left) == len(c.parts) && sameNodes(left, conjuncts(c.m.Root())) {
			return c.m
		}
	}
	return c.m.Sub(left...)
}

func sameNodes(a, b []*match.Node) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// keyFilter returns the conjuncts of a mask as a filter on the key.
func (c *conjunction) keyFilter(mask uint64) *match.Matcher {
	var parts []*match.Node
	for i, p := range c.parts {
		if i < 64 && mask>>uint(i)&1 != 0 {
			parts = append(parts, p)
		}
	}
	if parts == nil {
		return nil
	}
	return c.m.Sub(parts...)
}
