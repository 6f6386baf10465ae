package targeting

import (
	"math"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/hashkey"
	"github.com/shoaldb/shoal/query/value"
)

// Span is an interval of one shard key field's values.
type Span struct {
	Lo, Hi         value.Value
	loIncl, hiIncl bool
}

// Point reports whether the span is a single value.
func (s Span) Point() bool { return s.loIncl && s.hiIncl && value.Compare(s.Lo, s.Hi) == 0 }

func (s Span) empty() bool {
	c := value.Compare(s.Lo, s.Hi)
	return c > 0 || c == 0 && !(s.loIncl && s.hiIncl)
}

// everything is the whole range of a field.
var everything = []Span{{Lo: value.NewMinKey(), Hi: value.NewMaxKey(), loIncl: true, hiIncl: true}}

func isEverything(s []Span) bool {
	return len(s) == 1 && s[0].Lo.T == value.MinKey && s[0].Hi.T == value.MaxKey
}

// maxTargetPoints limits the combinations of a compound key's $in lists that are looked up one by one.
const maxTargetPoints = 4096

// Ranges returns the ranges of the shard key that may hold a filter's matches. collated is set for a collation other than simple,
// for which strings do not determine the shard.
func Ranges(key *cluster.ShardKeyPattern, filter []byte, collated bool) []cluster.KeyRange {
	fields := make([][]Span, len(key.Parts))
	bounded := false
	for i := range key.Parts {
		fields[i] = spans(filter, key.Parts[i].Path, collated, true)
		if i == 0 && !isEverything(fields[0]) {
			bounded = true
		}
	}
	if branches := value.Lookup(filter, "$or"); !bounded && branches.T == value.Array {
		var out []cluster.KeyRange
		for _, b := range value.Values(branches.Doc()) {
			out = append(out, Ranges(key, b.Doc(), collated)...)
		}
		return out
	}
	return keyRanges(key, fields)
}

// Unbounded reports whether a filter is only predicates on fields other than the shard key's, so that its matches may have any shard key: Ranges
// would return the whole range. It returns false for operators at the top, without looking into them.
func Unbounded(key *cluster.ShardKeyPattern, filter []byte) bool {
	for it := value.Walk(filter); ; {
		k, _, ok := it.Next()
		if !ok {
			return true
		}
		if len(k) > 0 && k[0] == '$' {
			return false
		}
		for i := range key.Parts {
			if path := key.Parts[i].Path; strings.HasPrefix(path, string(k)) && (len(path) == len(k) || path[len(k)] == '.') {
				return false
			}
		}
	}
}

// ExactKey returns the full shard key if a filter pins every field to one value.
func ExactKey(key *cluster.ShardKeyPattern, filter []byte, collated bool) ([]value.Value, bool) {
	if v, ok := PointOf(key, filter, collated); ok {
		return []value.Value{v}, true
	}
	out := make([]value.Value, 0, len(key.Parts))
	for i := range key.Parts {
		s := Spans(filter, key.Parts[i].Path, collated)
		if len(s) != 1 || !s[0].Point() {
			return nil, false
		}
		v := s[0].Lo
		if key.Parts[i].Hashed {
			v = value.NewInt64(hashkey.Hash(v))
		}
		out = append(out, v)
	}
	return out, true
}

// PointOf is ExactKey for the most common query of all, an equality on a shard key of one field and nothing else; ok is false for every other
// filter.
func PointOf(key *cluster.ShardKeyPattern, filter []byte, collated bool) (v value.Value, ok bool) {
	if len(key.Parts) != 1 {
		return v, false
	}
	it := value.Walk(filter)
	k, v, ok := it.Next()
	if !ok || string(k) != key.Parts[0].Path {
		return v, false
	}
	if _, _, more := it.Next(); more {
		return v, false
	}
	switch v.T {
	case value.Undefined, value.Regex, value.Array:
		return v, false
	case value.String, value.Symbol:
		if collated {
			return v, false
		}
	case value.Document:
		if collated || value.IsCondition(v.Doc()) {
			return v, false
		}
	}
	if key.Parts[0].Hashed {
		v = value.NewInt64(hashkey.Hash(v))
	}
	return v, true
}

// keyRanges combines the fields' spans: points multiply, the first field that is not a point ends the prefix.
func keyRanges(key *cluster.ShardKeyPattern, fields [][]Span) []cluster.KeyRange {
	prefixes := [][]value.Value{nil}
	for i, spans := range fields {
		if len(spans) == 0 {
			return nil
		}
		pts := key.Parts[i].Hashed
		allPoints := len(prefixes)*len(spans) <= maxTargetPoints
		for _, s := range spans {
			allPoints = allPoints && s.Point()
		}
		if allPoints {
			next := make([][]value.Value, 0, len(prefixes)*len(spans))
			for _, p := range prefixes {
				for _, s := range spans {
					v := s.Lo
					if pts {
						v = value.NewInt64(hashkey.Hash(v))
					}
					next = append(next, append(append(make([]value.Value, 0, len(fields)), p...), v))
				}
			}
			prefixes = next
			continue
		}
		if pts {
			spans = everything // the order of hashes is unrelated to the order of values
		}
		return rangesFrom(prefixes, spans, len(fields))
	}
	out := make([]cluster.KeyRange, len(prefixes))
	for i, p := range prefixes {
		out[i] = cluster.KeyRange{Low: p, High: p, HighIncl: true}
	}
	return out
}

func rangesFrom(prefixes [][]value.Value, spans []Span, n int) []cluster.KeyRange {
	var out []cluster.KeyRange
	for _, p := range prefixes {
		for _, s := range spans {
			lo := append(append(make([]value.Value, 0, n), p...), s.Lo)
			hi := append(append(make([]value.Value, 0, n), p...), s.Hi)
			loFill, hiFill := value.NewMinKey(), value.NewMinKey()
			if !s.loIncl {
				loFill = value.NewMaxKey()
			}
			incl := s.hiIncl
			if incl {
				hiFill = value.NewMaxKey()
			}
			for len(lo) < n {
				lo, hi = append(lo, loFill), append(hi, hiFill)
			}
			out = append(out, cluster.KeyRange{Low: lo, High: hi, HighIncl: incl})
		}
	}
	return out
}

// Spans returns the values that a field may have in documents that match filter, by its conditions on fields alone. An $expr does not count: unlike an
// equality, it adds no field to the document that an upsert inserts.
func Spans(filter []byte, path string, collated bool) []Span {
	return spans(filter, path, collated, false)
}

// spans is Spans; with exprs, the filter's $expr counts, too.
func spans(filter []byte, path string, collated, exprs bool) []Span {
	out := everything
	for it := value.Walk(filter); ; {
		k, v, ok := it.Next()
		if !ok {
			return out
		}
		switch {
		case string(k) == path:
			out = intersect(out, predicateSpans(v, collated))
		case string(k) == "$and" && v.T == value.Array:
			for _, c := range value.Values(v.Doc()) {
				out = intersect(out, spans(c.Doc(), path, collated, exprs))
			}
		case exprs && string(k) == "$expr":
			out = intersect(out, exprSpans(v, path, collated))
		case len(path) > len(k) && path[len(k)] == '.' && strings.HasPrefix(path, string(k)):
			if v.T == value.Document && !value.IsCondition(v.Doc()) {
				out = intersect(out, equalitySpan(lookupPath(v.Doc(), path[len(k)+1:]), collated))
			}
		}
	}
}

func lookupPath(doc []byte, path string) value.Value {
	head, rest, dotted := strings.Cut(path, ".")
	v := value.Lookup(doc, head)
	if !dotted {
		return v
	}
	if v.T != value.Document {
		return value.Value{}
	}
	return lookupPath(v.Doc(), rest)
}

func equalitySpan(v value.Value, collated bool) []Span {
	switch v.T {
	case value.Missing, value.Undefined:
		v = value.NewNull()
	case value.Regex, value.Array:
		return everything
	case value.String, value.Symbol, value.Document:
		if collated {
			return everything
		}
	}
	return []Span{{Lo: v, Hi: v, loIncl: true, hiIncl: true}}
}

// predicateSpans returns the spans of a predicate, the right side of field: … in a filter.
func predicateSpans(v value.Value, collated bool) []Span {
	if v.T != value.Document || !value.IsCondition(v.Doc()) {
		return equalitySpan(v, collated)
	}
	out := everything
	for it := value.Walk(v.Doc()); ; {
		op, x, ok := it.Next()
		if !ok {
			return out
		}
		if collated && (x.T == value.String || x.T == value.Symbol || x.T == value.Document) {
			continue
		}
		switch string(op) {
		case "$eq":
			out = intersect(out, equalitySpan(x, collated))
		case "$in":
			if x.T == value.Array {
				out = intersect(out, inSpans(x, collated))
			}
		case "$gt", "$gte":
			out = intersect(out, lowerSpan(x, string(op) == "$gte"))
		case "$lt", "$lte":
			out = intersect(out, upperSpan(x, string(op) == "$lte"))
		}
	}
}

func inSpans(arr value.Value, collated bool) []Span {
	var out []Span
	for _, v := range value.Values(arr.Doc()) {
		s := equalitySpan(v, collated)
		if isEverything(s) {
			return everything
		}
		out = append(out, s...)
	}
	slices.SortFunc(out, func(a, b Span) int { return value.Compare(a.Lo, b.Lo) })
	return slices.CompactFunc(out, func(a, b Span) bool { return value.Compare(a.Lo, b.Lo) == 0 })
}

func lowerSpan(x value.Value, incl bool) []Span {
	_, hi, ok := typeBounds(x)
	if !ok {
		return everything
	}
	return []Span{{Lo: x, Hi: hi, loIncl: incl, hiIncl: true}}
}

func upperSpan(x value.Value, incl bool) []Span {
	lo, _, ok := typeBounds(x)
	if !ok {
		return everything
	}
	return []Span{{Lo: lo, Hi: x, loIncl: true, hiIncl: incl}}
}

var (
	emptyString = value.NewString("")
	emptyDoc    = value.NewDocument(value.Doc())
	emptyArray  = value.NewArray(value.ArrayOf())
	minOID      = value.NewObjectID([12]byte{})
	maxOID      = value.NewObjectID([12]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255})
)

// typeBounds returns the ends of a comparison's type: {$gt: 5} matches numbers only. Ends may reach into the next
// type by one value, which costs nothing; types without simple ends are not bounded.
func typeBounds(v value.Value) (lo, hi value.Value, ok bool) {
	switch v.T {
	case value.Int32, value.Int64, value.Double, value.Decimal128:
		if v.IsNaN() {
			return lo, hi, false
		}
		return value.NewDouble(math.NaN()), value.NewDouble(math.Inf(1)), true
	case value.String, value.Symbol:
		return emptyString, emptyDoc, true
	case value.Document:
		return emptyDoc, emptyArray, true
	case value.ObjectID:
		return minOID, maxOID, true
	case value.Boolean:
		return value.NewBool(false), value.NewBool(true), true
	case value.DateTime:
		return value.NewDateTime(math.MinInt64), value.NewDateTime(math.MaxInt64), true
	case value.Timestamp:
		return value.NewTimestampU64(0), value.NewTimestampU64(math.MaxUint64), true
	}
	return lo, hi, false
}

// intersect combines two lists of spans. Both are sorted and without overlaps, as the result is: lists of $in may have a million values,
// so each list is read once.
func intersect(a, b []Span) []Span {
	if isEverything(a) {
		return b
	}
	if isEverything(b) {
		return a
	}
	var out []Span
	for len(a) > 0 && len(b) > 0 {
		s, y := a[0], b[0]
		if c := value.Compare(y.Lo, s.Lo); c > 0 || c == 0 && !y.loIncl {
			s.Lo, s.loIncl = y.Lo, y.loIncl
		}
		ends := value.Compare(a[0].Hi, y.Hi) // which of the two ends first
		if ends > 0 || ends == 0 && !y.hiIncl {
			s.Hi, s.hiIncl = y.Hi, y.hiIncl
		}
		if !s.empty() {
			out = append(out, s)
		}
		if ends < 0 || ends == 0 && !a[0].hiIncl {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}
