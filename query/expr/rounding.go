package expr

import (
	"math"
	"math/big"

	"github.com/cockroachdb/apd/v3"

	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		nary("$round", 1, 2, evalRound("$round", decimal.HalfEven)),
		nary("$trunc", 1, 2, evalRound("$trunc", decimal.Down)),
	)
}

func ceilFloor(name string, double func(float64) float64, r apd.Rounder) func(*Frame, value.Value) (value.Value, error) {
	return func(f *Frame, v value.Value) (value.Value, error) {
		switch v.T {
		case value.Int32, value.Int64:
			return v, nil
		case value.Double:
			return value.NewDouble(double(v.Double())), nil
		case value.Decimal128:
			return decimal.Value(decimal.Quantize(decimal.Of(v), 0, r)), nil
		}
		if v.IsNullish() {
			return null, nil
		}
		return v, notNumeric(name, v)
	}
}

// evalRound is $round and $trunc: to a number of places after the decimal point, or before it if that is negative.
func evalRound(name string, r apd.Rounder) func(*Frame, *call) (value.Value, error) {
	return func(f *Frame, c *call) (value.Value, error) {
		v, err := c.args[0].eval(f)
		if err != nil {
			return v, err
		}
		place := int64(0)
		if len(c.args) == 2 {
			p, err := c.args[1].eval(f)
			if err != nil {
				return p, err
			}
			if v.IsNullish() || p.IsNullish() {
				return null, nil
			}
			if !v.T.Numeric() {
				return v, mongoerr.Newf(51081, "%s only supports numeric types, not %s", name, v.T.Name())
			}
			if place, err = roundingPlace(name, p); err != nil {
				return p, err
			}
		}
		switch {
		case v.IsNullish():
			return null, nil
		case !v.T.Numeric():
			return v, mongoerr.Newf(51081, "%s only supports numeric types, not %s", name, v.T.Name())
		}
		return roundTo(name, v, int(place), r)
	}
}

func roundingPlace(name string, p value.Value) (int64, error) {
	if !p.T.Numeric() {
		return 0, mongoerr.Newf(16004, "can't convert from BSON type %s to long", p.T.Name())
	}
	if f := p.Double(); p.T == value.Double && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return 0, mongoerr.New(31109, "Can't coerce out of range value "+Show(p)+" to long")
	}
	place, ok := p.AsInt64()
	if !ok {
		return 0, mongoerr.Newf(51082, "precision argument to  %s must be a integral value", name)
	}
	if place < -20 || place > 100 {
		return 0, mongoerr.Newf(51083, "cannot apply %s with precision value %d value must be in [-20, 100]", name, place)
	}
	return place, nil
}

func roundTo(name string, v value.Value, place int, r apd.Rounder) (value.Value, error) {
	switch v.T {
	case value.Decimal128:
		d := decimal.Of(v)
		if decimal.IsInf(d) {
			return v, nil
		}
		if q := decimal.Quantize(d, int32(-place), r); !decimal.IsNaN(q) {
			return decimal.Value(q), nil
		}
		return v, nil // there are no digits to round, and no room for zeros
	case value.Double:
		return value.NewDouble(roundDouble(v.Double(), place, r)), nil
	}
	if place >= 0 {
		return v, nil
	}
	i, ok := roundInt(v.Int64(), -place, r == decimal.HalfEven)
	if !ok {
		return v, mongoerr.Newf(51080, "invalid conversion from Decimal128 result in %s resulting from arguments: [%s, %d]",
			name, Show(v), place)
	}
	return fitInt(i, v.T == value.Int32), nil
}

// roundDouble converts to a decimal unless it rounds at the decimal point itself, because the decimal digits that
// the double prints are what counts.
func roundDouble(x float64, place int, r apd.Rounder) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	if place == 0 {
		if r == decimal.HalfEven {
			return math.RoundToEven(x)
		}
		return math.Trunc(x)
	}
	d := decimal.FromDoubleExact(x)
	if d.Exponent >= int32(-place) {
		return x
	}
	return decimal.Float(decimal.Quantize(d, int32(-place), r))
}

// roundInt rounds to a multiple of 10^n.
func roundInt(i int64, n int, halfEven bool) (int64, bool) {
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
	q, rem := new(big.Int).QuoRem(big.NewInt(i), unit, new(big.Int))
	if halfEven {
		twice := rem.Lsh(rem.Abs(rem), 1)
		if c := twice.Cmp(unit); c > 0 || c == 0 && q.Bit(0) == 1 {
			one := big.NewInt(1)
			if i < 0 {
				one.Neg(one)
			}
			q.Add(q, one)
		}
	}
	q.Mul(q, unit)
	return q.Int64(), q.IsInt64()
}
