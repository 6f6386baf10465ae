package jsonschema

import (
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shoaldb/shoal/query/value"
)

// equalUnordered compares values without regard to the order of fields in documents.
func equalUnordered(a, b value.Value) bool {
	if a.T == value.Document && b.T == value.Document {
		if value.Count(a.Doc()) != value.Count(b.Doc()) {
			return false
		}
		for it := value.Walk(a.Doc()); ; {
			k, v, ok := it.Next()
			if !ok {
				return true
			}
			w := value.Lookup(b.Doc(), string(k))
			if w.T == value.Missing || !equalUnordered(v, w) {
				return false
			}
		}
	}
	if a.T == value.Array && b.T == value.Array {
		ia, ib := value.Walk(a.Doc()), value.Walk(b.Doc())
		for {
			_, v, oka := ia.Next()
			_, w, okb := ib.Next()
			if !oka || !okb {
				return oka == okb
			}
			if !equalUnordered(v, w) {
				return false
			}
		}
	}
	return value.Equal(a, b)
}

// distinct reports whether no two elements of an array are equal.
func distinct(w *watch, arr []byte) bool {
	seen := map[string]bool{}
	var key []byte
	for it := value.Walk(arr); ; {
		_, v, ok := it.Next()
		if !ok {
			return true
		}
		if w.err == nil {
			w.err = w.Check()
		}
		key = value.AppendGroupKey(key[:0], sorted(v), nil)
		if w.err != nil || seen[string(key)] {
			return false
		}
		seen[string(key)] = true
	}
}

// sorted returns a value with the fields of its documents in order, so that equal values are identical.
func sorted(v value.Value) value.Value {
	if v.T != value.Document && v.T != value.Array {
		return v
	}
	var fields []value.Field
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			break
		}
		fields = append(fields, value.F(string(k), sorted(e)))
	}
	if v.T == value.Array {
		return value.NewArray(value.Doc(fields...))
	}
	slices.SortStableFunc(fields, func(a, b value.Field) int { return strings.Compare(a.Key, b.Key) })
	return value.NewDocument(value.Doc(fields...))
}

func codePoints(s []byte) int64 { return int64(utf8.RuneCount(s)) }

// decimalParts returns a number as coefficient × 10^exp; doubles count with the fifteen digits that are
// exact. ok is false for NaN and the infinities.
func decimalParts(v value.Value) (*big.Int, int, bool) {
	if v.T != value.Double {
		c, e, class := v.NumberParts()
		return c, e, class == 0
	}
	if v.IsNaN() || v.IsInfinite() {
		return nil, 0, false
	}
	mant, exp, _ := strings.Cut(strconv.FormatFloat(v.Double(), 'e', 14, 64), "e")
	e, _ := strconv.Atoi(exp)
	whole, frac, _ := strings.Cut(mant, ".")
	c, ok := new(big.Int).SetString(whole+frac, 10)
	return c, e - len(frac), ok
}

func pow10(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }
