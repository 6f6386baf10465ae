package value

import (
	"math"
	"math/big"
)

// LookupDoc returns a field's document; nil if the field is not a document.
func LookupDoc(doc []byte, field string) []byte {
	if v := Lookup(doc, field); v.T == Document {
		return v.Doc()
	}
	return nil
}

// WithField returns a copy of doc with one more field.
func WithField(doc []byte, name string, v Value) []byte {
	out := append([]byte(nil), doc[:len(doc)-1]...)
	return End(Append(out, name, v), 0)
}

// SafeInt64 converts a number to an integer as the server's interface definitions do: doubles are truncated,
// decimals rounded to even, NaN is 0, and a number out of range becomes the nearest end of the range.
func SafeInt64(v Value) int64 {
	if i, ok := v.AsInt64(); ok {
		return i
	}
	f := v.AsFloat64()
	if v.T == Decimal128 {
		if i, ok := roundDecimal(v); ok {
			return i
		}
	}
	switch {
	case math.IsNaN(f):
		return 0
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return int64(f)
}

// roundDecimal rounds a decimal to even, exactly; ok is false if it is not a number or out of range.
func roundDecimal(v Value) (i int64, ok bool) {
	coef, exp, class := v.NumberParts()
	if class != 0 || exp >= 0 {
		return 0, false
	}
	if exp < -80 {
		return 0, true // far below a half, whatever the coefficient
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-exp)), nil)
	q, r := new(big.Int).QuoRem(coef, unit, new(big.Int))
	switch r.Abs(r).Lsh(r, 1).Cmp(unit) {
	case 1:
		q.Add(q, big.NewInt(int64(coef.Sign())))
	case 0:
		if q.Bit(0) == 1 {
			q.Add(q, big.NewInt(int64(coef.Sign())))
		}
	}
	return q.Int64(), q.IsInt64()
}
