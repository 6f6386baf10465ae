package plan

import (
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/text"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// text plans for $text: the keys of the query's terms in the collection's text index lead to the documents that may match.
func (p *planner) text(t *text.Query) (*Result, error) {
	x := p.c.TextIndex()
	switch {
	case x == nil && p.c.hasHiddenText():
		return nil, p.planError(mongoerr.NoQueryExecutionPlans, "need exactly one text index for $text query")
	case x == nil:
		return nil, mongoerr.New(mongoerr.IndexNotFound, "text index required for $text query")
	case p.natural != 0 && len(p.q.SortPattern) > 5:
		return nil, p.planError(mongoerr.BadValue, "text expression not allowed with $natural sort order")
	case p.hint != nil || p.natural != 0:
		return nil, p.planError(mongoerr.BadValue, "text and hint not allowed in same query")
	case !p.topLevelText():
		return nil, p.planError(mongoerr.NoQueryExecutionPlans, "Failed to produce a solution for TEXT under OR - other non-TEXT clauses under OR have to be indexed as well.")
	}
	scan := &Node{Stage: IndexScan, Index: x, Direction: 1, Dedupe: true}
	for i, f := range x.Fields {
		b := FieldBounds{Path: f.Path, Desc: f.Desc, Intervals: everything()}
		if i == 0 && f.Kind == Other {
			b.Intervals = Intervals{}
			for _, term := range t.Terms() {
				b.Intervals = append(b.Intervals, point(value.NewString(term)))
			}
		}
		scan.Bounds = append(scan.Bounds, b)
	}
	if len(t.Terms()) == 0 {
		scan = &Node{Stage: EOF}
	}
	fetch := over(Fetch, scan)
	fetch.Filter = p.q.Filter
	root := over(TextMatch, fetch)
	root.Index = x
	return p.only(p.finish(root)), nil
}

// topLevelText reports whether the $text is not below an $or.
func (p *planner) topLevelText() bool {
	for _, n := range p.parts {
		if n.Kind == match.Text {
			return true
		}
	}
	return false
}

// hasHiddenText reports whether the collection's text index is hidden.
func (c *Collection) hasHiddenText() bool {
	for _, x := range c.Indexes {
		for i, f := range x.Fields {
			if x.Hidden && f.Kind == Other && geoType(x, i) == "text" {
				return true
			}
		}
	}
	return false
}

// TextIndex returns the collection's text index, of which there is at most one.
func (c *Collection) TextIndex() *Index {
	for _, x := range c.Indexes {
		if x.Hidden {
			continue
		}
		for i, f := range x.Fields {
			if f.Kind == Other && geoType(x, i) == "text" {
				return x
			}
		}
	}
	return nil
}
