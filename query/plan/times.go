package plan

import (
	"math"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// TimeRange is the part of the oplog that a scan reads: the RecordIds of its ends, inclusive. An entry's RecordId is
// its ts. Missing ends are open.
type TimeRange struct{ Min, Max value.Value }

// Times returns the part of the oplog that has all matches of a filter.
func Times(filter *match.Matcher) TimeRange {
	if filter == nil || filter.Trivial() {
		return TimeRange{}
	}
	return timesOf(conjuncts(filter.Root()))
}

func timesOf(parts []*match.Node) (r TimeRange) {
	l := boundsOn("ts", parts)
	if len(l) == 0 {
		return r
	}
	// Types other than timestamp are left to the filter, which matches no entry.
	if lo := l[0].Lo; lo.T == value.Timestamp && lo.TimestampU64() > 0 {
		r.Min = value.NewInt64(int64(lo.TimestampU64()))
	}
	if hi := l[len(l)-1].Hi; hi.T == value.Timestamp && hi.TimestampU64() < math.MaxUint64 {
		r.Max = value.NewInt64(int64(hi.TimestampU64()))
	}
	return r
}

func (r TimeRange) explain(dst []byte) []byte {
	if !r.Min.IsMissing() {
		dst = value.Append(dst, "minRecord", r.Min)
	}
	if !r.Max.IsMissing() {
		dst = value.Append(dst, "maxRecord", r.Max)
	}
	return dst
}
