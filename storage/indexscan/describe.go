package indexscan

import (
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/indexkey"
)

// Describe returns the planner's view of an index. The caller sets what changes during an index's life (multikey,
// hidden); the result may be kept as long as the specification.
func Describe(s *indexkey.Spec) (*plan.Index, error) {
	x := &plan.Index{Name: s.Name, KeyPattern: s.KeyPattern, IsID: s.IsID, Unique: s.Unique || s.IsID, Sparse: s.Sparse, Hidden: s.Hidden,
		CollationDoc: s.Collation, Kind: kindOf(s.Kind), Version: 2, MultikeyPaths: []uint64{}}
	if v, ok := value.Lookup(s.Raw, "v").AsInt64(); ok {
		x.Version = int(v)
	}
	for _, f := range s.Fields {
		x.Fields = append(x.Fields, plan.Field{Path: f.Path, Desc: f.Desc, Kind: kindOf(f.Kind)})
	}
	x.MultikeyPaths = make([]uint64, len(s.Fields))
	if s.Collation != nil {
		c, err := collation.Parse(s.Collation)
		if err != nil {
			return nil, err
		}
		x.Collator = c.Collator()
	}
	if s.PartialFilter != nil {
		m, err := match.Compile(s.PartialFilter, &match.Options{Collator: x.Collator})
		if err != nil {
			return nil, err
		}
		x.Partial = m
	}
	x.Plane = indexkey.Plane(s)
	if s.Kind == indexkey.Wildcard {
		scope := indexkey.WildcardScope(s)
		x.Covers, x.CoversBelow = scope.Covers, scope.CoversBelow
	}
	return x, nil
}

func kindOf(k indexkey.Kind) plan.Kind {
	switch k {
	case indexkey.BTree:
		return plan.BTree
	case indexkey.Hashed:
		return plan.Hashed
	case indexkey.Wildcard:
		return plan.Wildcard
	}
	return plan.Other
}
