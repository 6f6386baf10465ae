package cluster

import (
	"math"

	"github.com/shoaldb/shoal/query/value"
)

// clampToInt64 truncates towards zero, converts NaN to 0, and clamps values that are out of range.
func clampToInt64(v value.Value) int64 {
	if i, ok := v.AsInt64(); ok {
		return i
	}
	f := v.AsFloat64()
	switch {
	case f != f:
		return 0
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return int64(f)
}
