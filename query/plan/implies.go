package plan

import (
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// implies reports whether every document that satisfies the conjunction of lhs satisfies rhs; false if that is
// unknown.
func implies(lhs []*match.Node, rhs *match.Node, c value.Collator) bool {
	switch rhs.Kind {
	case match.AlwaysTrue:
		return true
	case match.And:
		for _, r := range rhs.Children {
			if !implies(lhs, r, c) {
				return false
			}
		}
		return true
	case match.Or:
		for _, r := range rhs.Children {
			if implies(lhs, r, c) {
				return true
			}
		}
	}
	for _, l := range lhs {
		switch l.Kind {
		case match.Or:
			all := true
			for _, b := range l.Children {
				all = all && implies(conjuncts(b), rhs, c)
			}
			if all && len(l.Children) > 0 {
				return true
			}
		case match.And:
			if implies(l.Children, rhs, c) {
				return true
			}
		default:
			if leafImplies(l, rhs, c) {
				return true
			}
		}
	}
	return false
}

func leafImplies(l, r *match.Node, c value.Collator) bool {
	if l.Kind == match.Not && l.Children[0].Path == r.Path && r.Kind == match.Exists {
		return l.Children[0].Kind == match.Eq && l.Children[0].Value.T == value.Null
	}
	if l.Path != r.Path || !l.Leaf() {
		return false
	}
	switch r.Kind {
	case match.Exists:
		return impliesExists(l)
	case match.Eq, match.Lt, match.Lte, match.Gt, match.Gte, match.In:
		switch l.Kind {
		case match.Eq:
			return satisfies(l.Value, r, c)
		case match.In:
			for _, v := range l.Values {
				if !satisfies(v, r, c) {
					return false
				}
			}
			return len(l.Regexes) == 0 && len(l.Values) > 0
		case match.Lt, match.Lte, match.Gt, match.Gte:
			return rangeImplies(l, r, c)
		}
	case match.TypeIs:
		return typeImplies(l, r)
	case match.RegexMatch:
		return l.Kind == match.RegexMatch && l.Regexes[0].Pattern == r.Regexes[0].Pattern && l.Regexes[0].Options == r.Regexes[0].Options
	}
	return false
}

func impliesExists(l *match.Node) bool {
	switch l.Kind {
	case match.Eq, match.Lt, match.Lte, match.Gt, match.Gte, match.In:
		for _, v := range operands(l) {
			switch v.T {
			case value.Null, value.Undefined, value.MinKey, value.MaxKey:
				return false
			}
		}
		return true
	case match.TypeIs:
		return !l.Types.Has(value.Null)
	case match.Exists, match.RegexMatch, match.Mod, match.Size, match.ElemMatchObject, match.ElemMatchValue:
		return true
	}
	return false
}

// satisfies tests one value against a comparison.
func satisfies(v value.Value, r *match.Node, c value.Collator) bool {
	if v.T == value.Array || v.T == value.Document && r.Kind != match.Eq {
		return false
	}
	if r.Kind == match.In {
		for _, o := range r.Values {
			if value.CompareCollated(v, o, c) == 0 {
				return true
			}
		}
		return false
	}
	if !value.SameKind(v.T, r.Value.T) {
		return false
	}
	if v.IsNaN() || r.Value.IsNaN() {
		return v.IsNaN() && r.Value.IsNaN() && r.Kind != match.Lt && r.Kind != match.Gt
	}
	d := value.CompareCollated(v, r.Value, c)
	switch r.Kind {
	case match.Eq:
		return d == 0
	case match.Lt:
		return d < 0
	case match.Lte:
		return d <= 0
	case match.Gt:
		return d > 0
	}
	return d >= 0
}

// rangeImplies compares two open ranges in one direction.
func rangeImplies(l, r *match.Node, c value.Collator) bool {
	if !value.SameKind(l.Value.T, r.Value.T) || l.Value.IsNaN() || r.Value.IsNaN() || l.Value.T == value.Null {
		return l.Kind == r.Kind && value.Equal(l.Value, r.Value)
	}
	d := value.CompareCollated(l.Value, r.Value, c)
	up := l.Kind == match.Gt || l.Kind == match.Gte
	switch r.Kind {
	case match.Gt:
		return up && (d > 0 || d == 0 && l.Kind == match.Gt)
	case match.Gte:
		return up && d >= 0
	case match.Lt:
		return !up && (d < 0 || d == 0 && l.Kind == match.Lt)
	case match.Lte:
		return !up && d <= 0
	}
	return false
}

func typeImplies(l, r *match.Node) bool {
	switch l.Kind {
	case match.TypeIs:
		for _, t := range append([]value.Type{value.Array}, allTypes...) {
			if l.Types.Has(t) && !r.Types.Has(t) {
				return false
			}
		}
		return true
	case match.Eq:
		// Equal numbers and strings may be of other types, so the set must have all types of the kind.
		for _, t := range allTypes {
			if value.SameKind(t, l.Value.T) && !r.Types.Has(t) {
				return false
			}
		}
		return l.Value.T != value.Array && l.Value.T != value.Null
	case match.Lt, match.Lte, match.Gt, match.Gte:
		return typeImplies(&match.Node{Kind: match.Eq, Value: l.Value}, r) && l.Value.T != value.MinKey && l.Value.T != value.MaxKey
	}
	return false
}
