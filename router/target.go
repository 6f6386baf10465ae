package router

import (
	"math"
	"sort"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/hashkey"
	"github.com/shoaldb/shoal/query/value"
)

// span is an interval of one shard key field's values.
type span struct {
	lo, hi         value.Value
	loIncl, hiIncl bool
}

func (s span) point() bool { return s.loIncl && s.hiIncl && value.Compare(s.lo, s.hi) == 0 }

func (s span) empty() bool {
	c := value.Compare(s.lo, s.hi)
	return c > 0 || c == 0 && !(s.loIncl && s.hiIncl)
}

// everything is the whole range of a field.
var everything = []span{{lo: value.NewMinKey(), hi: value.NewMaxKey(), loIncl: true, hiIncl: true}}

func isEverything(s []span) bool {
	return len(s) == 1 && s[0].lo.T == value.MinKey && s[0].hi.T == value.MaxKey
}

// maxTargetPoints limits the combinations of a compound key's $in lists that are looked up one by one.
const maxTargetPoints = 4096

// target returns the shards that may hold a filter's matches. collated is set for a collation other than simple,
// for which strings do not determine the shard. A filter that can match nothing still goes to one shard, which
// then checks it.
func target(info *cluster.CollectionInfo, filter []byte, collated bool) ([]string, error) {
	if !info.Sharded() {
		return []string{info.Home()}, nil
	}
	set := make(map[string]struct{}, 4)
	if err := targetInto(info.Map, filter, collated, set); err != nil {
		return nil, err
	}
	if len(set) == 0 {
		return info.Map.Shards()[:1], nil
	}
	out := make([]string, 0, len(set))
	for s := range set {
		if err := current(info, s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	sort.Strings(out)
	return out, nil
}

func targetInto(m *cluster.ChunkMap, filter []byte, collated bool, set map[string]struct{}) error {
	parts := m.Key.Parts
	fields := make([][]span, len(parts))
	bounded := false
	for i := range parts {
		fields[i] = fieldSpans(filter, parts[i].Path, collated)
		if i == 0 && !isEverything(fields[0]) {
			bounded = true
		}
	}
	if !bounded {
		if branches := value.Lookup(filter, "$or"); branches.T == value.Array {
			for _, b := range value.Values(branches.Doc()) {
				if err := targetInto(m, b.Doc(), collated, set); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, r := range keyRanges(m.Key, fields) {
		if err := m.ShardsFor(r, set); err != nil {
			return err
		}
	}
	return nil
}

// exactKey returns the full shard key if a filter pins every field to one value.
func exactKey(key *cluster.ShardKeyPattern, filter []byte, collated bool) ([]value.Value, bool) {
	out := make([]value.Value, 0, len(key.Parts))
	for i := range key.Parts {
		s := fieldSpans(filter, key.Parts[i].Path, collated)
		if len(s) != 1 || !s[0].point() {
			return nil, false
		}
		v := s[0].lo
		if key.Parts[i].Hashed {
			v = value.NewInt64(hashkey.Hash(v))
		}
		out = append(out, v)
	}
	return out, true
}

// keyRanges combines the fields' spans: points multiply, the first field that is not a point ends the prefix.
func keyRanges(key *cluster.ShardKeyPattern, fields [][]span) []cluster.KeyRange {
	prefixes := [][]value.Value{nil}
	for i, spans := range fields {
		if len(spans) == 0 {
			return nil
		}
		pts := key.Parts[i].Hashed
		allPoints := len(prefixes)*len(spans) <= maxTargetPoints
		for _, s := range spans {
			allPoints = allPoints && s.point()
		}
		if allPoints {
			next := make([][]value.Value, 0, len(prefixes)*len(spans))
			for _, p := range prefixes {
				for _, s := range spans {
					v := s.lo
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

func rangesFrom(prefixes [][]value.Value, spans []span, n int) []cluster.KeyRange {
	var out []cluster.KeyRange
	for _, p := range prefixes {
		for _, s := range spans {
			lo := append(append(make([]value.Value, 0, n), p...), s.lo)
			hi := append(append(make([]value.Value, 0, n), p...), s.hi)
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

// fieldSpans returns the values that a field may have in documents that match filter.
func fieldSpans(filter []byte, path string, collated bool) []span {
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
				out = intersect(out, fieldSpans(c.Doc(), path, collated))
			}
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

func equalitySpan(v value.Value, collated bool) []span {
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
	return []span{{lo: v, hi: v, loIncl: true, hiIncl: true}}
}

// predicateSpans returns the spans of a predicate, the right side of field: … in a filter.
func predicateSpans(v value.Value, collated bool) []span {
	if v.T != value.Document || !value.IsCondition(v.Doc()) {
		return equalitySpan(v, collated)
	}
	out := everything
	for it := value.Walk(v.Doc()); ; {
		op, x, ok := it.Next()
		if !ok {
			return out
		}
		if collated && (x.T == value.String || x.T == value.Document) {
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

func inSpans(arr value.Value, collated bool) []span {
	var out []span
	for _, v := range value.Values(arr.Doc()) {
		s := equalitySpan(v, collated)
		if isEverything(s) {
			return everything
		}
		out = append(out, s...)
	}
	sort.Slice(out, func(i, j int) bool { return value.Compare(out[i].lo, out[j].lo) < 0 })
	return out
}

func lowerSpan(x value.Value, incl bool) []span {
	_, hi, ok := typeBounds(x)
	if !ok {
		return everything
	}
	return []span{{lo: x, hi: hi, loIncl: incl, hiIncl: true}}
}

func upperSpan(x value.Value, incl bool) []span {
	lo, _, ok := typeBounds(x)
	if !ok {
		return everything
	}
	return []span{{lo: lo, hi: x, loIncl: true, hiIncl: incl}}
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

// intersect combines two sorted lists of spans.
func intersect(a, b []span) []span {
	if isEverything(a) {
		return b
	}
	if isEverything(b) {
		return a
	}
	var out []span
	for _, x := range a {
		for _, y := range b {
			s := x
			if c := value.Compare(y.lo, s.lo); c > 0 || c == 0 && !y.loIncl {
				s.lo, s.loIncl = y.lo, y.loIncl
			}
			if c := value.Compare(y.hi, s.hi); c < 0 || c == 0 && !y.hiIncl {
				s.hi, s.hiIncl = y.hi, y.hiIncl
			}
			if !s.empty() {
				out = append(out, s)
			}
		}
	}
	return out
}

// collatedBy reports whether a command with the given collation (nil for none) compares strings with one other
// than simple.
func collatedBy(info *cluster.CollectionInfo, given []byte) bool {
	if given == nil && info.Entry != nil {
		given = value.Lookup(info.Entry, "defaultCollation").Doc()
	}
	return given != nil && value.Count(given) > 0 && value.Lookup(given, "locale").Str() != "simple"
}
