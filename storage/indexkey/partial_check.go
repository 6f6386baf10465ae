package indexkey

import (
	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkPartial accepts in a partialFilterExpression only what the planner can reason about.
func checkPartial(s *Spec, raw []byte) error {
	if s.PartialFilter == nil {
		return nil
	}
	if value.Lookup(raw, "sparse").Truthy() {
		return cannot(`cannot mix "partialFilterExpression" and "sparse" options`)
	}
	if err := checkTopLevel(s.PartialFilter); err != nil {
		return err
	}
	m, err := match.Compile(s.PartialFilter, &match.Options{})
	if err != nil {
		return err
	}
	return checkPartialNode(m.Root())
}

// checkTopLevel rejects operators before the filter is parsed.
func checkTopLevel(filter []byte) error {
	for k, v := range value.Elements(filter) {
		switch k {
		case "$expr":
			return mongoerr.New(mongoerr.QueryFeatureNotAllowed, "$expr is not supported in the current context")
		case "$where", "$text":
			return mongoerr.Newf(mongoerr.BadValue, "%s is not allowed in this context", k)
		case "$and", "$or", "$nor":
			if v.T != value.Array {
				continue
			}
			for _, e := range value.Values(v.Doc()) {
				if e.T == value.Document {
					if err := checkTopLevel(e.Doc()); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func checkPartialNode(n *match.Node) error {
	if n == nil {
		return nil
	}
	switch n.Kind {
	case match.And, match.Or:
		for _, c := range n.Children {
			if err := checkPartialNode(c); err != nil {
				return err
			}
		}
		return nil
	case match.Eq, match.Lt, match.Lte, match.Gt, match.Gte, match.Exists, match.TypeIs, match.Geo, match.AlwaysTrue:
		return nil
	case match.In:
		if len(n.Regexes) == 0 {
			return nil
		}
	}
	what := n.Path
	if what == "" {
		what = bsontext.Value(n.Value)
	}
	return cannot("Expression not supported in partial index: %s", what)
}
