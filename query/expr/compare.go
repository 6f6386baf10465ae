package expr

import (
	"github.com/shoaldb/shoal/query/value"
)

func init() {
	register(
		comparison("$eq", func(c int) bool { return c == 0 }),
		comparison("$ne", func(c int) bool { return c != 0 }),
		comparison("$gt", func(c int) bool { return c > 0 }),
		comparison("$gte", func(c int) bool { return c >= 0 }),
		comparison("$lt", func(c int) bool { return c < 0 }),
		comparison("$lte", func(c int) bool { return c <= 0 }),
		binary("$cmp", func(f *Frame, a, b value.Value) (value.Value, error) {
			return value.NewInt32(int32(f.compare(a, b))), nil
		}),
	)
}

// comparison makes a row for a comparison operator: all types are comparable, in the canonical order.
func comparison(name string, is func(int) bool) *operator {
	return binary(name, func(f *Frame, a, b value.Value) (value.Value, error) {
		return value.NewBool(is(f.compare(a, b))), nil
	})
}

// compare orders two values under the operation's collation. Expressions, unlike filters and sorts, distinguish a
// missing field from one that is undefined or null.
func (f *Frame) compare(a, b value.Value) int {
	if a.T == b.T {
		return value.CompareCollated(a, b, f.env.Collator)
	}
	if a.T == value.Missing || b.T == value.Missing {
		return compareMissing(a, b)
	}
	return value.CompareCollated(a, b, f.env.Collator)
}

func (f *Frame) equal(a, b value.Value) bool { return f.compare(a, b) == 0 }

// compareMissing orders a missing value: above MinKey, below everything else.
func compareMissing(a, b value.Value) int {
	if a.T == value.Missing {
		if b.T == value.MinKey {
			return 1
		}
		return -1
	}
	return -compareMissing(b, a)
}

// mirrored has the comparisons that bound a value, each with the one that says the same of exchanged operands.
var mirrored = map[string]string{"$eq": "$eq", "$gt": "$lt", "$gte": "$lte", "$lt": "$gt", "$lte": "$gte"}

// Mirrored returns the comparison that says the same of exchanged operands; ok is false for an operator that does not bound a value.
func Mirrored(op string) (other string, ok bool) {
	other, ok = mirrored[op]
	return other, ok
}
