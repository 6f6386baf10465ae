package match

import (
	"github.com/shoaldb/shoal/query/geo"
	"github.com/shoaldb/shoal/query/value"
)

func parseGeo(p *parser, path, name string, v value.Value, all []byte) (*Node, error) {
	for k, e := range value.Elements(all) {
		if k != name { // these operators must be the only ones on their path
			return nil, badValue("can't parse extra field: %s", value.ShowElement(k, e))
		}
	}
	q, err := geo.ParseQuery(name, v, p.pace())
	if err != nil {
		return nil, err
	}
	n := p.leaf(Geo, path)
	n.Geo = q
	if name == "$within" {
		name = "$geoWithin"
	}
	n.Value = value.NewDocument(value.Doc(value.F(name, v)))
	return n, nil
}

// pace returns the check whether the operation that the filter is for has to stop.
func (p *parser) pace() *value.Pace {
	if p.o.Expr == nil {
		return &value.Pace{}
	}
	return &value.Pace{Work: p.o.Expr.Env().Work}
}

// isNear reports whether an operator orders documents by distance. Such operators parse the whole document of operators on their path.
func isNear(name string) bool { return name == "$near" || name == "$nearSphere" || name == "$geoNear" }

// parseNear reads {path: {$near: …, $minDistance: …, $maxDistance: …}}.
func (p *parser) parseNear(path string, ops []byte) (*Node, error) {
	if err := p.o.refuse(DenyNear, "$near"); err != nil {
		return nil, err
	}
	near, err := geo.ParseNear(ops)
	if err != nil {
		return nil, err
	}
	n := p.leaf(GeoNear, path)
	n.Near, n.Value = near, value.NewDocument(ops)
	return n, nil
}

// misplacedNear returns the error for an operator that must come first among those of its path.
func misplacedNear(p *parser, _, name string, v value.Value, all []byte) (*Node, error) {
	if err := p.o.refuse(DenyNear, name); err != nil {
		return nil, err
	}
	return nil, badValue("near must be first in: %s", value.ShowDoc(all))
}

// skipBound handles a distance bound without $near.
func skipBound(_ *parser, _, name string, _ value.Value, all []byte) (*Node, error) {
	return nil, badValue("unknown operator: %s", name)
}

// checkNear refuses $near below the top level of a filter, or more than once.
func checkNear(root *Node) error {
	if root.Kind == GeoNear {
		return nil
	}
	count, text := 0, false
	for _, c := range root.Children {
		switch {
		case c.Kind == GeoNear && root.Kind == And:
			count++
		case c.Kind == Text:
			text = true
		case c.Has(GeoNear):
			return badValue("geo $near must be top-level expr")
		}
	}
	switch {
	case count > 1:
		return badValue("Too many geoNear expressions")
	case count == 1 && text:
		return badValue("text and geoNear not allowed in same query")
	}
	return nil
}

// Distance returns a document's distance from the origin of a GeoNear, and its nearest geometry; ok is false
// if it is out of bounds or has no geometry at the path.
func (n *Node) Distance(doc []byte) (d float64, at *geo.Geometry, ok bool) {
	for _, v := range reached(nil, value.NewDocument(doc), n.parts) {
		if next, g, far := n.Near.Distance(v); far && (!ok || next < d) {
			d, at, ok = next, g, true
		}
	}
	return d, at, ok && n.Near.InBounds(d)
}

// GeoNear returns the predicate that orders documents by distance, nil if there is none.
func (m *Matcher) GeoNear() *Node {
	if m.root.Kind == GeoNear {
		return m.root
	}
	for _, c := range m.root.Children {
		if c.Kind == GeoNear && m.root.Kind == And {
			return c
		}
	}
	return nil
}
