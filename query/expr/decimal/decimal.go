package decimal

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"github.com/shoaldb/shoal/query/value"
)

const (
	digits  = 34
	minExp  = -6176
	maxExp  = 6111
	expBias = 6176
)

var ctx = apd.Context{Precision: digits, MaxExponent: 6144, MinExponent: -6143, Rounding: apd.RoundHalfEven}

// cut drops digits; fit adjusts exponents.
var cut = apd.Context{Precision: digits, MaxExponent: apd.MaxExponent, MinExponent: apd.MinExponent, Rounding: apd.RoundDown}

// D is a decimal number.
type D = apd.Decimal

// Of converts any number. Doubles are converted with 15 significant digits, as the server does for mixed types.
func Of(v value.Value) *D {
	switch v.T {
	case value.Int32, value.Int64:
		return apd.New(v.Int64(), 0)
	case value.Double:
		return FromDouble(v.Double())
	case value.Decimal128:
		return decode(v)
	}
	return apd.New(0, 0)
}

func decode(v value.Value) *D {
	h, l := v.Decimal128()
	d := new(D)
	d.Negative = h>>63 == 1
	switch {
	case h>>58&0x1F == 0x1F:
		d.Form = apd.NaN
		return d
	case h>>58&0x1F == 0x1E:
		d.Form = apd.Infinite
		return d
	case h>>61&3 == 3: // the other encoding: its coefficients are out of range and mean zero
		d.Exponent = int32(h>>47&0x3FFF) - expBias
		return d
	}
	d.Exponent = int32(h>>49&0x3FFF) - expBias
	hi := h & (1<<49 - 1)
	if hi == 0 {
		d.Coeff.SetUint64(l)
		return d
	}
	c := new(apd.BigInt).SetUint64(hi)
	c.Lsh(c, 64)
	d.Coeff.Or(c, new(apd.BigInt).SetUint64(l))
	if d.NumDigits() > digits {
		d.Coeff.SetInt64(0)
	}
	return d
}

// Value rounds d to the format and encodes it.
func Value(d *D) value.Value {
	switch d.Form {
	case apd.NaN, apd.NaNSignaling:
		return value.NewDecimal128(sign(d)|0x1F<<58, 0)
	case apd.Infinite:
		return value.NewDecimal128(sign(d)|0x1E<<58, 0)
	}
	d = fit(d)
	if d.Form == apd.Infinite {
		return value.NewDecimal128(sign(d)|0x1E<<58, 0)
	}
	c := d.Coeff.MathBigInt()
	lo := new(big.Int).And(c, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
	hi := new(big.Int).Rsh(c, 64).Uint64()
	return value.NewDecimal128(sign(d)|uint64(d.Exponent+expBias)<<49|hi, lo)
}

func sign(d *D) uint64 {
	if d.Negative {
		return 1 << 63
	}
	return 0
}

// fit brings a finite number into the format's range of digits and exponents.
func fit(d *D) *D {
	if d.Exponent >= minExp && d.Exponent <= maxExp && d.NumDigits() <= digits {
		return d
	}
	out := new(D)
	if d.IsZero() {
		out.Set(d)
		out.Exponent = min(max(out.Exponent, minExp), maxExp)
		return out
	}
	ctx.Round(out, d)
	if out.Form != apd.Finite || out.Exponent <= maxExp {
		return out
	}
	shift := out.Exponent - maxExp // a large exponent moves into trailing zeros
	out.Coeff.Mul(&out.Coeff, tenTo(int64(shift)))
	out.Exponent = maxExp
	return out
}

// FromDouble converts a double with 15 significant digits.
func FromDouble(f float64) *D { return fromDouble(f, 14) }

// FromDoubleExact converts a double with 34 significant digits.
func FromDoubleExact(f float64) *D {
	if f == math.Trunc(f) && math.Abs(f) < 1<<62 {
		d := apd.New(int64(f), 0)
		d.Negative = math.Signbit(f)
		d.Coeff.Abs(&d.Coeff)
		return d
	}
	d := fromDouble(f, digits-1)
	if d.Form == apd.Finite {
		d.Reduce(d)
	}
	return d
}

func fromDouble(f float64, places int) *D {
	d := new(D)
	switch {
	case math.IsNaN(f):
		d.Form = apd.NaN
		return d
	case math.IsInf(f, 0):
		d.Form, d.Negative = apd.Infinite, f < 0
		return d
	case f == 0:
		d.Negative = math.Signbit(f)
		return d
	}
	if _, _, err := d.SetString(strconv.FormatFloat(f, 'e', places, 64)); err != nil {
		d.Form = apd.NaN
	}
	return d
}

// NaN is not a number.
func NaN() *D { return &D{Form: apd.NaN} }

// Int converts an integer.
func Int(i int64) *D { return apd.New(i, 0) }

// Float returns the nearest double.
func Float(d *D) float64 {
	switch {
	case d.Form == apd.Infinite && d.Negative:
		return math.Inf(-1)
	case d.Form == apd.Infinite:
		return math.Inf(1)
	case d.Form != apd.Finite:
		return math.NaN()
	}
	f, _ := strconv.ParseFloat(d.String(), 64)
	return f
}

func do2(op func(d, x, y *D) (apd.Condition, error), x, y *D) *D {
	switch { // the first NaN is the result, with its sign
	case isNaN(x):
		return x
	case isNaN(y):
		return y
	}
	d := new(D)
	_, _ = op(d, x, y) // without traps the only errors are those that leave NaN behind
	return settle(d)
}

func do1(op func(d, x *D) (apd.Condition, error), x *D) *D {
	if isNaN(x) {
		return NaN()
	}
	d := new(D)
	_, _ = op(d, x)
	return settle(d)
}

func settle(d *D) *D {
	if isNaN(d) {
		return NaN()
	}
	return d
}

func isNaN(d *D) bool { return d.Form == apd.NaN || d.Form == apd.NaNSignaling }

// IsNaN reports whether d is NaN.
func IsNaN(d *D) bool { return isNaN(d) }

// IsInf reports whether d is an infinity of either sign.
func IsInf(d *D) bool { return d.Form == apd.Infinite }

// Add is x + y.
func Add(x, y *D) *D { return do2(ctx.Add, x, y) }

// Sub is x - y.
func Sub(x, y *D) *D { return do2(ctx.Sub, x, y) }

// Mul is x × y.
func Mul(x, y *D) *D { return do2(ctx.Mul, x, y) }

// Quo is x ÷ y.
func Quo(x, y *D) *D {
	d := do2(ctx.Quo, x, y)
	if d.Form != apd.Finite || x.Form != apd.Finite || y.Form != apd.Finite || d.IsZero() {
		return d
	}
	// An exact quotient gets the preferred exponent: trailing zeros beyond it are removed.
	ideal := x.Exponent - y.Exponent
	if d.Exponent >= ideal {
		return d
	}
	if p := do2(ctx.Mul, d, y); p.Cmp(x) != 0 {
		return d
	}
	ten, r, q := apd.NewBigInt(10), new(apd.BigInt), new(apd.BigInt)
	for d.Exponent < ideal {
		if q.QuoRem(&d.Coeff, ten, r); r.Sign() != 0 {
			break
		}
		d.Coeff.Set(q)
		d.Exponent++
	}
	return d
}

// Rem returns the remainder of truncated division, with the sign of x.
func Rem(x, y *D) *D {
	if x.Form != apd.Finite || isNaN(y) || y.IsZero() {
		return NaN()
	}
	if y.Form == apd.Infinite {
		return new(D).Set(x)
	}
	// The quotient may have more digits than the format allows: use integers with a common exponent instead.
	e := min(x.Exponent, y.Exponent)
	if x.NumDigits()+int64(x.Exponent) < y.NumDigits()+int64(y.Exponent) {
		return new(D).Set(x)
	}
	a, b := scaled(x, e), scaled(y, e)
	d := &D{Exponent: e, Negative: x.Negative}
	d.Coeff.Rem(a, b)
	return d
}

func scaled(d *D, e int32) *apd.BigInt {
	return new(apd.BigInt).Mul(&d.Coeff, tenTo(int64(d.Exponent-e)))
}

// Abs is |x|.
func Abs(x *D) *D {
	d := new(D).Set(x)
	d.Negative = false
	return settle(d)
}

// Neg is -x.
func Neg(x *D) *D {
	d := new(D).Set(x)
	d.Negative = !d.Negative
	return settle(d)
}

// Rounding of Quantize.
const (
	HalfEven  = apd.RoundHalfEven
	HalfUp    = apd.RoundHalfUp // ties away from zero
	Down      = apd.RoundDown   // toward zero
	RoundCeil = apd.RoundCeiling
	Floor     = apd.RoundFloor
)

// Quantize rounds x to a multiple of 10^exp with that exponent; NaN if that requires more digits than the format has.
func Quantize(x *D, exp int32, r apd.Rounder) *D {
	if x.Form != apd.Finite {
		return NaN()
	}
	d := &D{Negative: x.Negative, Exponent: exp}
	diff := int64(exp) - int64(x.Exponent)
	switch {
	case x.IsZero():
		return d
	case diff <= 0:
		if x.NumDigits()-diff > digits {
			return NaN()
		}
		d.Coeff.Mul(&x.Coeff, tenTo(-diff))
	case diff > x.NumDigits()+1:
		roundUp(d, x.Negative, -1, r)
	default:
		unit, rem := tenTo(diff), new(apd.BigInt)
		d.Coeff.QuoRem(&x.Coeff, unit, rem)
		if rem.Sign() != 0 {
			roundUp(d, x.Negative, rem.Lsh(rem, 1).Cmp(unit), r)
		}
	}
	if d.NumDigits() > digits {
		return NaN()
	}
	return d
}

// roundUp adds one to the coefficient if the dropped digits (which were not all zero, and compare to one half as
// half says) require it.
func roundUp(d *D, neg bool, half int, r apd.Rounder) {
	up := false
	switch r {
	case HalfEven:
		up = half > 0 || half == 0 && d.Coeff.Bit(0) == 1
	case HalfUp:
		up = half >= 0
	case RoundCeil:
		up = !neg
	case Floor:
		up = neg
	}
	if up {
		d.Coeff.Add(&d.Coeff, apd.NewBigInt(1))
	}
}

func tenTo(n int64) *apd.BigInt { return new(apd.BigInt).Exp(apd.NewBigInt(10), apd.NewBigInt(n), nil) }

// Int64 converts with rounding; ok is false if it does not fit.
func Int64(x *D, r apd.Rounder) (i int64, ok bool) {
	q := Quantize(x, 0, r)
	if q.Form != apd.Finite {
		return 0, false
	}
	b := q.Coeff.MathBigInt()
	if q.Negative {
		b = new(big.Int).Neg(b)
	}
	return b.Int64(), b.IsInt64()
}

// Sqrt returns the square root.
func Sqrt(x *D) *D {
	d := do1(ctx.Sqrt, x)
	if d.Form != apd.Finite || d.IsZero() || x.Form != apd.Finite {
		return d
	}
	// An exact root gets the preferred exponent floor(e/2).
	ideal := int32(math.Floor(float64(x.Exponent) / 2))
	if p := do2(ctx.Mul, d, d); p.Cmp(x) != 0 {
		return d
	}
	for d.Exponent > ideal && d.NumDigits() < digits {
		d.Coeff.Mul(&d.Coeff, apd.NewBigInt(10))
		d.Exponent--
	}
	ten, r, q := apd.NewBigInt(10), new(apd.BigInt), new(apd.BigInt)
	for d.Exponent < ideal {
		if q.QuoRem(&d.Coeff, ten, r); r.Sign() != 0 {
			break
		}
		d.Coeff.Set(q)
		d.Exponent++
	}
	return d
}

// Parse reads a whole string as a decimal; a number that is too large is not a decimal. Digits beyond those of the format are
// dropped: unlike results of operations, parsed numbers are rounded toward zero.
func Parse(s string) (*D, bool) {
	body := s
	if body != "" && (body[0] == '+' || body[0] == '-') {
		body = body[1:]
	}
	if body == "" || !(body[0] >= '0' && body[0] <= '9' || body[0] == '.' || isSpecial(body)) {
		return nil, false
	}
	d, cond, err := apd.NewFromString(s)
	if err != nil || cond.Any() {
		return nil, false
	}
	if d.Form != apd.Finite {
		return d, true
	}
	if d.NumDigits() > digits {
		cut.Round(d, d)
	}
	out := fit(d)
	return out, out.Form == apd.Finite && out.IsZero() == d.IsZero()
}

func isSpecial(s string) bool {
	switch strings.ToLower(s) {
	case "nan", "inf", "infinity":
		return true
	}
	return false
}
