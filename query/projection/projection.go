package projection

import (
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Meta is what is known of a document besides its fields: what {$meta: …} reads. Absent values are Missing.
type Meta struct {
	TextScore, RecordID, SortKey, IndexKey, GeoNearDistance, GeoNearPoint, SearchScore, RandVal value.Value
}

// Options are what a find projection depends on besides its text.
type Options struct {
	Collator value.Collator
	Expr     *expr.Scope
	Filter   *match.Matcher // the query, for the positional operator
}

// Projection is a compiled projection.
type Projection struct {
	inclusion bool
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

// Compile parses a find projection.
func Compile(spec []byte, o *Options) (*Projection, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "projections are not implemented yet")
}

// CompileStage parses the argument of $project, $addFields, $set or $unset.
func CompileStage(stage Stage, spec value.Value, o *Options) (*Projection, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "projections are not implemented yet")
}

// Apply appends the projected form of doc to dst. meta may be nil.
func (p *Projection) Apply(dst, doc []byte, meta *Meta) ([]byte, error) {
	return append(dst, doc...), nil
}

// Inclusion reports whether only named fields are kept.
func (p *Projection) Inclusion() bool { return p.inclusion }

// Deps lists the paths the projection reads; whole is true where it needs the entire document.
func (p *Projection) Deps() (paths []string, whole bool) { return nil, true }

// Serialize gives the projection as explain prints it.
func (p *Projection) Serialize() []byte { return value.Doc() }
