package exec

import (
	"slices"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/sortkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Query is a compiled read of a collection.
type Query struct {
	NS        string
	Coll      *catalog.Collection // nil: the collection does not exist, and the result is empty
	Snap      *storage.Snapshot
	Collation *collation.Spec
	Scope     *expr.Scope // the variables that filter and projection may use
	Filter    []byte
	Matcher   *match.Matcher // nil: everything
	Sort      []byte
	proj      *projection.Projection
	rawProj   []byte
	Hint      value.Value
	Min       []byte
	Max       []byte
	Skip      int64
	Limit     int64 // 0: none

	Count        bool   // only the number of results is wanted
	Distinct     string // only the values of this path are wanted
	ReturnKey    bool
	ShowRecordID bool
	MergeKey     bool // documents carry their sort values, for a router
	Tailable     bool
	AllowDiskUse bool
	Fields       []string  // aggregation: the top-level fields that are read; nil for all
	ShapeSuffix  string    // added to the plan's shape by explain
	filtered     bool      // an index filter restricts the plans
	Owned        Ownership // the shard filter, which returns false for orphans; nil for none
	Placement    Placement // source of Owned, nil for a query that did not come from a router
	keys         planKeys  // set once the query is planned
}

// Ownership reports whether a document belongs to this shard and is not an orphan. It fails if the owner of the
// document at the time of the read is no longer known.
type Ownership func(doc []byte) (bool, error)

// Has applies the filter; a nil filter passes everything.
func (o Ownership) Has(doc []byte) (bool, error) {
	if o == nil {
		return true, nil
	}
	return o(doc)
}

// Placement is the source of a query's ownership filter, as of the time when the query began, like its snapshot.
type Placement interface {
	// Unmoved reports whether a query may continue in a snapshot taken just now. It may not once its collection
	// has been sharded or a range of it has moved: what belonged to this shard when the query began may be
	// deleted in the newer snapshot.
	Unmoved(op *command.Op, c *catalog.Collection) bool
	// ShardKey returns the paths that the ownership filter reads; nil if the collection was not sharded.
	ShardKey() []string
}

// shardKey returns the paths that the ownership filter reads; nil if it needs whole documents.
func (q *Query) shardKey() []string {
	if q.Owned == nil || q.Placement == nil {
		return nil
	}
	return q.Placement.ShardKey()
}

// CompileFilter compiles a filter in an operation's language; nil matches everything. scope is nil if the filter
// has no expressions.
func CompileFilter(filter []byte, scope *expr.Scope, spec *collation.Spec) (*match.Matcher, error) {
	if len(filter) <= 5 {
		return nil, nil
	}
	return match.Compile(filter, &match.Options{Collator: spec.Collator(), Expr: scope, Derive: true})
}

// Compile fills in the compiled parts of a query. Filter errors take precedence over projection errors, as on the real server.
func (q *Query) Compile(proj []byte) (err error) {
	if err := command.CheckHint(q.Hint); err != nil {
		return err
	}
	if q.Matcher, err = CompileFilter(q.Filter, q.Scope, q.Collation); err != nil {
		return err
	}
	if len(proj) > 5 {
		q.rawProj = proj
		q.proj, err = projection.Compile(proj, &projection.Options{Collator: q.Collation.Collator(), Filter: q.Matcher, Expr: q.Scope})
		if err != nil {
			return err
		}
		if slices.Contains(q.proj.Metas(), "textScore") && (q.Matcher == nil || !q.Matcher.Root().Has(match.Text)) {
			return mongoerr.New(40218, "query requires text score metadata, but it is not available")
		}
	}
	return checkSort(q.Sort, q.Matcher)
}

// checkSort validates a sort specification. Metadata to sort by must come from the filter.
func checkSort(sort []byte, filter *match.Matcher) error {
	if len(sort) <= 5 {
		return nil
	}
	if n := value.Lookup(sort, "$natural"); !n.IsMissing() {
		if i, ok := n.AsInt64(); !ok || i != 1 && i != -1 || value.Count(sort) != 1 {
			return mongoerr.New(mongoerr.BadValue, "$natural sort must be 1 or -1, and cannot be combined with other fields")
		}
		return nil
	}
	p, err := sortkey.Parse(sort, nil)
	if err != nil {
		return err
	}
	for _, part := range p.Parts {
		switch part.Meta {
		case "", "randVal":
		case "textScore":
			if filter == nil || !filter.Root().Has(match.Text) {
				return mongoerr.New(40218, "query requires text score metadata, but it is not available")
			}
		default:
			return mongoerr.Newf(40218, "query requires %s metadata, but it is not available", part.Meta)
		}
	}
	return nil
}
