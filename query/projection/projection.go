package projection

import (
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// Meta is a document's metadata, which {$meta: …} reads. Absent values are Missing.
type Meta struct {
	TextScore, RecordID, SortKey, IndexKey, GeoNearDistance, GeoNearPoint value.Value
	SearchScore, SearchHighlights, VectorSearchScore, RandVal             value.Value
	Score, ScoreDetails                                                   value.Value
}

// Meta returns one kind of metadata; it implements expr.Metadata.
func (m *Meta) Meta(kind string) value.Value {
	if m == nil {
		return value.Value{}
	}
	switch kind {
	case "textScore":
		return m.TextScore
	case "recordId":
		return m.RecordID
	case "sortKey":
		return m.SortKey
	case "indexKey":
		return m.IndexKey
	case "geoNearDistance":
		return m.GeoNearDistance
	case "geoNearPoint":
		return m.GeoNearPoint
	case "searchScore":
		return m.SearchScore
	case "searchHighlights":
		return m.SearchHighlights
	case "vectorSearchScore":
		return m.VectorSearchScore
	case "randVal":
		return m.RandVal
	case "score":
		return m.Score
	case "scoreDetails":
		return m.ScoreDetails
	}
	return value.Value{}
}

// Options are the other inputs that a projection depends on.
type Options struct {
	Collator value.Collator
	Expr     *expr.Scope    // variables and environment of expressions; nil: none but the system's
	Filter   *match.Matcher // the query, for the positional operator of find
}

// Projection is a compiled projection.
type Projection struct {
	root       *node
	inclusion  bool
	spec       []byte
	scope      *expr.Scope
	frame      *expr.Frame    // if there are expressions
	filter     *match.Matcher // if there is a positional operator
	positional []string       // path of the positional operator
	metas      []string
	scratch    []byte
}

// Stage names the field-shaping aggregation stages.
type Stage uint8

// Stages.
const (
	Project Stage = iota
	AddFields
	Set
	Unset
)

var stageNames = [...]string{Project: "$project", AddFields: "$addFields", Set: "$set", Unset: "$unset"}

// String returns the stage's name with its dollar sign.
func (s Stage) String() string { return stageNames[s] }

// Inclusion reports whether only named fields are kept.
func (p *Projection) Inclusion() bool { return p.inclusion }

// Stateless reports whether the Projection may be used by many goroutines at once.
func (p *Projection) Stateless() bool { return p.frame == nil && p.positional == nil }

// Simple reports whether the projection only includes or excludes top-level fields, without computing any.
func (p *Projection) Simple() bool {
	for _, c := range p.root.children {
		if c.kind != include && c.kind != exclude {
			return false
		}
	}
	return p.positional == nil
}

// Positional reports whether the projection uses the positional operator.
func (p *Projection) Positional() bool { return p.positional != nil }

// Frame returns the frame in which variables of the projection's expressions are set; nil if it has none.
func (p *Projection) Frame() *expr.Frame { return p.frame }

// Metas lists the kinds of metadata the projection reads.
func (p *Projection) Metas() []string { return p.metas }

// Fork returns a Projection for another goroutine. Variables must be set again.
func (p *Projection) Fork() *Projection {
	c := *p
	c.scratch = nil
	if p.frame != nil {
		c.frame = expr.NewFrame(p.scope)
	}
	if p.filter != nil {
		c.filter = p.filter.Fork()
	}
	return &c
}

// Deps lists the paths of the document on which the projection's result depends; whole is true if it needs every
// field. An index that covers the projection must have all these paths.
func (p *Projection) Deps() (paths []string, whole bool) {
	if !p.inclusion || p.positional != nil {
		return nil, true
	}
	seen := map[string]bool{}
	whole = p.root.deps("", seen, &paths)
	return paths, whole
}

func (n *node) deps(prefix string, seen map[string]bool, out *[]string) (whole bool) {
	add := func(path string) {
		if !seen[path] {
			seen[path] = true
			*out = append(*out, path)
		}
	}
	for _, c := range n.children {
		path := prefix + c.name
		switch c.kind {
		case include, slice, elemMatch:
			add(path)
		case computed:
			d := c.expr.Deps()
			whole = whole || d.Whole
			for _, dep := range d.Paths {
				add(dep)
			}
		case nested:
			if c.computes { // the effect of a computed child depends on whether there is a document, an array or nothing
				add(path)
			}
			if c.deps(path+".", seen, out) {
				whole = true
			}
		}
	}
	return whole
}

// Spec returns the projection as the user wrote it.
func (p *Projection) Spec() []byte { return p.spec }

// Serialize returns the projection in full, in the form of stages in explain.
func (p *Projection) Serialize() []byte {
	out, mark := value.Begin(nil)
	return value.End(p.root.serialize(out), mark)
}

func (n *node) serialize(dst []byte) []byte {
	for _, c := range n.children {
		switch c.kind {
		case include:
			dst = value.Append(dst, c.name, value.NewBool(true))
		case exclude:
			dst = value.Append(dst, c.name, value.NewBool(false))
		case computed:
			dst = value.Append(dst, c.name, c.expr.Serialize())
		case slice, elemMatch:
			dst = value.Append(dst, c.name, c.spec)
		case nested:
			var mark int
			dst, mark = value.BeginKey(dst, value.Document, c.name)
			dst = value.End(c.serialize(dst), mark)
		}
	}
	return dst
}
