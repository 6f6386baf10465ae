package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/sortkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// query is what any reading operation asks of a collection, compiled.
type query struct {
	ns      string
	coll    *catalog.Collection // nil: there is no such collection, the answer is empty
	snap    *storage.Snapshot
	lang    *lang
	filter  []byte
	matcher *match.Matcher // nil: everything
	sort    []byte
	proj    *projection.Projection
	rawProj []byte
	hint    value.Value
	min     []byte
	max     []byte
	skip    int64
	limit   int64 // 0: none

	count        bool   // only the number of results is wanted
	distinct     string // only the values of this path are wanted
	returnKey    bool
	showRecordID bool
	mergeKey     bool // documents show what they were sorted by, for a router
	tailable     bool
	diskUse      bool
	fields       []string              // aggregation: the top-level fields that are read; nil for all
	shapeSuffix  string                // what explain adds to the plan's shape
	filtered     bool                  // an index filter restricts the plans
	owned        func(doc []byte) bool // not nil: the shard filter, false for orphans
	keys         planKeys              // once it is planned
}

// compileFilter compiles a filter in an operation's language; nil stands for everything.
func compileFilter(filter []byte, l *lang, spec *collation.Spec) (*match.Matcher, error) {
	if len(filter) <= 5 {
		return nil, nil
	}
	o := &match.Options{Collator: spec.Collator()}
	if l != nil {
		o.Expr = l.scope
	}
	return match.Compile(filter, o)
}

// collationOf is the collation an operation runs under: its own, else the collection's.
func (n *Node) collationOf(arg value.Value, c *catalog.Collection) (*collation.Spec, error) {
	if arg.T == value.Document && len(arg.Doc()) > 5 {
		return collation.Parse(arg.Doc())
	}
	if c != nil && c.Collation != nil {
		m := n.meta(c)
		return m.collation, nil
	}
	return nil, nil
}

// compile fills in the compiled parts of a query. Filter errors come before projection errors, as in the real server.
func (q *query) compile(proj []byte) (err error) {
	if err := checkHint(q.hint); err != nil {
		return err
	}
	if q.matcher, err = compileFilter(q.filter, q.lang, q.lang.coll); err != nil {
		return err
	}
	if len(proj) > 5 {
		q.rawProj = proj
		q.proj, err = projection.Compile(proj, &projection.Options{Collator: q.lang.coll.Collator(), Filter: q.matcher, Expr: q.lang.scope})
		if err != nil {
			return err
		}
	}
	return checkSort(q.sort, q.matcher)
}

// checkHint validates a hint: an index name or key pattern, or {$natural: ±1}.
func checkHint(h value.Value) error {
	switch h.T {
	case value.Missing, value.String:
		return nil
	case value.Document:
	default:
		return mongoerr.New(mongoerr.FailedToParse, "Hint must be a string or an object")
	}
	n := value.Lookup(h.Doc(), "$natural")
	if n.IsMissing() {
		return nil
	}
	if i, ok := n.AsInt64(); !ok || i != 1 && i != -1 || value.Count(h.Doc()) != 1 {
		return mongoerr.New(mongoerr.BadValue, "$natural hint must be 1 or -1, and stand alone")
	}
	return nil
}

// checkSort validates a sort specification. Metadata to sort by has to come from the filter.
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

// nonNegative reads an integer argument of find and its like, which refuse negative numbers with BadValue.
func nonNegative(op *command.Op, name string) (int64, error) {
	i := op.Req.Int(name, 0)
	if i < 0 {
		return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be >= 0, actual value '%d'", name, i)
	}
	return i, nil
}
