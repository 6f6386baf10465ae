package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/projection"
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
	tailable     bool
	diskUse      bool
	fields       []string              // aggregation: the top-level fields that are read; nil for all
	shapeSuffix  string                // what explain adds to the plan's shape
	filtered     bool                  // an index filter restricts the plans
	owned        func(doc []byte) bool // not nil: the shard filter, false for orphans
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
	return checkSort(q.sort)
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

// checkSort validates a sort specification.
func checkSort(sort []byte) error {
	n := 0
	for it := value.Walk(sort); ; n++ {
		k, v, ok := it.Next()
		if !ok {
			if n > 32 {
				return mongoerr.New(13103, "too many compound keys")
			}
			return nil
		}
		if err := checkSortField(string(k), v); err != nil {
			return err
		}
	}
}

func checkSortField(k string, v value.Value) error {
	if k == "$natural" {
		if i, ok := v.AsInt64(); !ok || i != 1 && i != -1 {
			return mongoerr.New(mongoerr.BadValue, "$natural sort must be 1 or -1")
		}
		return nil
	}
	if v.T == value.Document {
		m := value.Lookup(v.Doc(), "$meta")
		if m.IsMissing() {
			return mongoerr.Newf(17312, "$meta is the only expression supported by $sort right now")
		}
		return nil
	}
	if !v.T.Numeric() {
		return mongoerr.Newf(15974, "Illegal key in $sort specification: %s: %s", k, value.Show(v))
	}
	if i, ok := v.AsInt64(); !ok || (i != 1 && i != -1) {
		return mongoerr.New(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)")
	}
	return checkFieldPath(k)
}

func checkFieldPath(p string) error {
	if p == "" {
		return mongoerr.New(40352, "FieldPath cannot be constructed with empty string")
	}
	if p[0] == '$' {
		return mongoerr.Newf(16410, "FieldPath field names may not start with '$'. Consider using $getField or $setField.")
	}
	if p[len(p)-1] == '.' {
		return mongoerr.New(40353, "FieldPath must not end with a '.'.")
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
