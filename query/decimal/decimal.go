// Package decimal computes with Decimal128 values: 34 digits, half-even rounding, the exponent range of the format.
//
// From reads any number of the value model; the operations answer Values again.
package decimal

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
)

const signBit = 1 << 63

var ctx = apd.Context{
	Precision:   34,
	MaxExponent: 6144,
	MinExponent: -6143,
	Rounding:    apd.RoundHalfEven,
	Traps:       0,
}

// From converts any number to a decimal. Doubles become decimals of 15 significant digits, as the server does where a
// double meets a decimal.
func From(v value.Value) *apd.Decimal {
	switch v.T {
	case value.Int32, value.Int64:
		return apd.New(v.Int64(), 0)
	case value.Double:
		return fromDouble(v.Double())
	}
	h, _ := v.Decimal128()
	c, e, class := v.NumberParts()
	d := new(apd.Decimal)
	switch class {
	case 2:
		d.Form = apd.NaN
		return d
	case 1, -1:
		d.Form = apd.Infinite
		d.Negative = class < 0
		return d
	}
	d.Negative = h&signBit != 0
	d.Exponent = int32(e)
	d.Coeff.SetMathBigInt(new(big.Int).Abs(c))
	return d
}

func fromDouble(f float64) *apd.Decimal {
	d := new(apd.Decimal)
	switch {
	case math.IsNaN(f):
		d.Form = apd.NaN
		return d
	case math.IsInf(f, 0):
		d.Form = apd.Infinite
		d.Negative = f < 0
		return d
	case f == 0:
		d.Negative = math.Signbit(f)
		return d
	}
	mantissa, exp, _ := strings.Cut(strconv.FormatFloat(f, 'e', 14, 64), "e")
	e, _ := strconv.Atoi(exp)
	digits := strings.Replace(strings.TrimPrefix(mantissa, "-"), ".", "", 1)
	c, _ := strconv.ParseInt(digits, 10, 64)
	d.Coeff.SetInt64(c)
	d.Exponent = int32(e - 14)
	d.Negative = f < 0
	return d
}

// Exact converts a number without rounding doubles to 15 digits: the nearest decimal of 34.
func Exact(v value.Value) *apd.Decimal {
	if v.T != value.Double {
		return From(v)
	}
	c, e, class := v.NumberParts()
	if class != 0 || c.Sign() == 0 {
		return fromDouble(v.Double())
	}
	d := new(apd.Decimal)
	d.Negative = c.Sign() < 0
	d.Coeff.SetMathBigInt(new(big.Int).Abs(c))
	d.Exponent = int32(e)
	_, _ = ctx.Round(d, d)
	return d
}

// Value converts a decimal back, rounding it to the format.
func Value(d *apd.Decimal) value.Value {
	switch d.Form {
	case apd.NaN, apd.NaNSignaling:
		return special("NaN")
	case apd.Infinite:
		if d.Negative {
			return special("-Infinity")
		}
		return special("Infinity")
	}
	r := new(apd.Decimal)
	if _, err := ctx.Round(r, d); err != nil || r.Form != apd.Finite {
		return Value(r)
	}
	exp, coef := int(r.Exponent), r.Coeff.MathBigInt()
	coef, exp = fit(coef, exp)
	if coef.Sign() != 0 && exp > 6111 {
		if r.Negative {
			return special("-Infinity")
		}
		return special("Infinity")
	}
	b, ok := bson.ParseDecimal128FromBigInt(coef, exp)
	if !ok {
		return special("NaN")
	}
	h, l := b.GetBytes()
	if r.Negative {
		h |= signBit
	}
	return value.NewDecimal128(h, l)
}

// fit moves a coefficient and exponent into the range of the format, rounding half to even below it.
func fit(coef *big.Int, exp int) (*big.Int, int) {
	ten := big.NewInt(10)
	if coef.Sign() == 0 {
		return coef, min(max(exp, -6176), 6111)
	}
	for exp > 6111 && len(coef.Text(10)) < 34 {
		coef.Mul(coef, ten)
		exp--
	}
	if exp < -6176 {
		drop := -6176 - exp
		if drop > 40 {
			return new(big.Int), -6176
		}
		div := new(big.Int).Exp(ten, big.NewInt(int64(drop)), nil)
		q, r := new(big.Int).QuoRem(coef, div, new(big.Int))
		switch c := r.Lsh(r, 1).Cmp(div); {
		case c > 0, c == 0 && q.Bit(0) == 1:
			q.Add(q, big.NewInt(1))
		}
		return q, -6176
	}
	return coef, exp
}

func special(s string) value.Value {
	v, _ := value.ParseDecimal128(s)
	return v
}

// op runs one operation of the context; what the traps would stop (overflow, invalid) is in the result's form.
func op(fn func(d, x, y *apd.Decimal) (apd.Condition, error), x, y *apd.Decimal) *apd.Decimal {
	d := new(apd.Decimal)
	_, _ = fn(d, x, y)
	return d
}

// Sum and its like compute on decimals.
func Sum(x, y *apd.Decimal) *apd.Decimal { return op(ctx.Add, x, y) }

// Sub is x − y.
func Sub(x, y *apd.Decimal) *apd.Decimal { return op(ctx.Sub, x, y) }

// Mul is x · y.
func Mul(x, y *apd.Decimal) *apd.Decimal { return op(ctx.Mul, x, y) }

// Quo is x / y.
func Quo(x, y *apd.Decimal) *apd.Decimal { return op(ctx.Quo, x, y) }

// Sqrt is the square root of x.
func Sqrt(x *apd.Decimal) *apd.Decimal {
	d := new(apd.Decimal)
	_, _ = ctx.Sqrt(d, x)
	return d
}

// AddValues adds two numbers of which one is a decimal.
func AddValues(a, b value.Value) value.Value { return Value(Sum(From(a), From(b))) }

// MulValues multiplies two numbers of which one is a decimal.
func MulValues(a, b value.Value) value.Value { return Value(Mul(From(a), From(b))) }
