package expr

import (
	"math"
	"strings"

	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		transcendental("$exp", preciseExp, decimal.Exp, nil),
		transcendental("$sqrt", math.Sqrt, decimal.Sqrt, func(v value.Value, f float64) error {
			if f < 0 {
				return mongoerr.New(28714, "$sqrt's argument must be greater than or equal to 0")
			}
			return nil
		}),
		transcendental("$ln", preciseLn, decimal.Ln, positive(28766, "$ln")),
		transcendental("$log10", log10, decimal.Log10, positive(28761, "$log10")),
		sigmoidOp,
		binary("$log", logBase),
		binary("$pow", pow),

		transcendental("$sin", preciseSin, decimal.Sin, finite("$sin")),
		transcendental("$cos", preciseCos, decimal.Cos, finite("$cos")),
		transcendental("$tan", preciseTan, decimal.Tan, finite("$tan")),
		transcendental("$asin", preciseAsin, decimal.Asin, within("$asin", -1, 1)),
		transcendental("$acos", preciseAcos, decimal.Acos, within("$acos", -1, 1)),
		transcendental("$atan", preciseAtan, decimal.Atan, nil),
		transcendental("$sinh", preciseSinh, decimal.Sinh, nil),
		transcendental("$cosh", preciseCosh, decimal.Cosh, nil),
		transcendental("$tanh", preciseTanh, decimal.Tanh, nil),
		transcendental("$asinh", math.Asinh, decimal.Asinh, nil),
		transcendental("$acosh", math.Acosh, decimal.Acosh, within("$acosh", 1, math.Inf(1))),
		transcendental("$atanh", math.Atanh, decimal.Atanh, within("$atanh", -1, 1)),
		transcendental("$degreesToRadians", func(x float64) float64 { return x * (math.Pi / 180) }, decimal.ToRadians, nil),
		transcendental("$radiansToDegrees", func(x float64) float64 { return x * (180 / math.Pi) }, decimal.ToDegrees, nil),
		binary("$atan2", atan2),
	)
}

// transcendental makes a row for a function of one number that returns a double, or a decimal for a decimal.
func transcendental(name string, double func(float64) float64, dec func(*decimal.D) *decimal.D,
	check func(v value.Value, f float64) error) *operator {
	return unary(name, func(f *Frame, v value.Value) (value.Value, error) {
		if !v.T.Numeric() {
			if v.IsNullish() {
				return null, nil
			}
			return v, notNumeric(name, v)
		}
		x := v.AsFloat64()
		if check != nil {
			if err := check(v, x); err != nil {
				return v, err
			}
		}
		if v.T == value.Decimal128 && !(v.IsNaN() && strings.HasPrefix(name, "$l")) { // logarithms of NaN are doubles
			return decimal.Value(dec(decimal.Of(v))), nil
		}
		return value.NewDouble(double(x)), nil
	})
}

// sigmoidOp is $sigmoid; its operand is not unwrapped even if it is an array, and its errors are those of $multiply.
var sigmoidOp = &operator{name: "$sigmoid",
	parse: func(op *operator, v value.Value, s *Scope) (node, error) {
		n, err := parseValue(v, s)
		return &call{op: op, args: []node{n}}, err
	},
	eval: func(f *Frame, c *call) (value.Value, error) {
		v, err := c.args[0].eval(f)
		switch {
		case err != nil:
			return v, err
		case v.IsNullish():
			return null, nil
		case v.T == value.Decimal128:
			return decimal.Value(decimal.Sigmoid(decimal.Of(v))), nil
		case v.T.Numeric():
			return value.NewDouble(Sigmoid(v.AsFloat64())), nil
		}
		return v, mongoerr.Newf(mongoerr.TypeMismatch, "$multiply only supports numeric types, not %s", v.T.Name())
	},
}

// Sigmoid is 1/(1+e^-x).
func Sigmoid(x float64) float64 { return 1 / (1 + preciseExp(-x)) }

// ln returns the natural logarithm; the runtime's loses subnormal numbers on some machines.
func ln(x float64) float64 {
	if x > 0 && x < 0x1p-1022 {
		return math.Log(x*0x1p52) - 52*math.Ln2
	}
	return math.Log(x)
}

// log10 splits off the power of two and adds its logarithm in two parts, so that powers of ten are exact.
func log10(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 1) {
		return math.Log10(x)
	}
	const (
		hi = 3.01029995663611771306e-01 // log10(2), its upper bits
		lo = 3.69423907715893078616e-13
	)
	frac, exp := math.Frexp(x) // frac in [½, 1)
	if exp > 0 {
		frac, exp = frac*2, exp-1
	}
	return float64(exp)*lo + math.Log10E*math.Log(frac) + float64(exp)*hi
}

// sign returns the sign of a number, also of a decimal too small to be a double; NaN has none.
func sign(v value.Value) int { return value.Compare(v, value.NewInt32(0)) }

func positive(code mongoerr.Code, name string) func(value.Value, float64) error {
	return func(v value.Value, f float64) error {
		if v.IsNaN() || sign(v) > 0 {
			return nil
		}
		shown := Show(v)
		if v.T != value.Decimal128 {
			shown = ShowDouble(f)
		}
		return mongoerr.Newf(code, "%s's argument must be a positive number, but is %s", name, shown)
	}
}

func finite(name string) func(value.Value, float64) error {
	return func(v value.Value, f float64) error {
		if math.IsInf(f, 0) {
			return mongoerr.Newf(50989, "cannot apply %s to %s, value must be in (-inf,inf)", name, Show(v))
		}
		return nil
	}
}

func within(name string, lo, hi float64) func(value.Value, float64) error {
	return func(v value.Value, f float64) error {
		if v.IsNaN() || value.Compare(v, value.NewDouble(lo)) >= 0 && value.Compare(v, value.NewDouble(hi)) <= 0 {
			return nil
		}
		return mongoerr.Newf(50989, "cannot apply %s to %s, value must be in [%v,%v]", name, Show(v), lo, hi)
	}
}

func atan2(f *Frame, y, x value.Value) (value.Value, error) {
	if y.IsNullish() || x.IsNullish() {
		return null, nil
	}
	if !y.T.Numeric() || !x.T.Numeric() {
		return y, mongoerr.Newf(51044, "$atan2 only supports numeric types, not %s and %s", y.T.Name(), x.T.Name())
	}
	if y.T == value.Decimal128 || x.T == value.Decimal128 {
		return decimal.Value(decimal.Atan2(decimal.Of(y), decimal.Of(x))), nil
	}
	return value.NewDouble(math.Atan2(y.AsFloat64(), x.AsFloat64())), nil
}

func logBase(f *Frame, v, base value.Value) (value.Value, error) {
	if v.IsNullish() || base.IsNullish() {
		return null, nil
	}
	switch {
	case !v.T.Numeric():
		return v, mongoerr.Newf(28756, "$log's argument must be numeric, not %s", v.T.Name())
	case !base.T.Numeric():
		return v, mongoerr.Newf(28757, "$log's base must be numeric, not %s", base.T.Name())
	case !v.IsNaN() && sign(v) <= 0:
		return v, mongoerr.Newf(28758, "$log's argument must be a positive number, but is %s", Show(v))
	case !base.IsNaN() && (sign(base) <= 0 || value.Compare(base, value.NewInt32(1)) == 0):
		return v, mongoerr.Newf(28759, "$log's base must be a positive number not equal to 1, but is %s", Show(base))
	}
	if (v.T == value.Decimal128 || base.T == value.Decimal128) && !v.IsNaN() && !base.IsNaN() {
		return decimal.Value(decimal.Quo(decimal.Ln(decimal.Of(v)), decimal.Ln(decimal.Of(base)))), nil
	}
	return value.NewDouble(preciseLn(v.AsFloat64()) / preciseLn(base.AsFloat64())), nil
}

func pow(f *Frame, base, exp value.Value) (value.Value, error) {
	if base.IsNullish() || exp.IsNullish() {
		return null, nil
	}
	switch {
	case !base.T.Numeric():
		return base, mongoerr.Newf(28762, "$pow's base must be numeric, not %s", base.T.Name())
	case !exp.T.Numeric():
		return base, mongoerr.Newf(28763, "$pow's exponent must be numeric, not %s", exp.T.Name())
	case sign(base) == 0 && !exp.IsNaN() && sign(exp) < 0:
		return base, mongoerr.New(28764, "$pow cannot take a base of 0 and a negative exponent")
	}
	switch {
	case base.T == value.Decimal128 || exp.T == value.Decimal128:
		return decimal.Value(decimal.Pow(decimal.Of(base), decimal.Of(exp))), nil
	case base.T == value.Double || exp.T == value.Double:
		return value.NewDouble(math.Pow(base.AsFloat64(), exp.AsFloat64())), nil
	}
	small := base.T == value.Int32 && exp.T == value.Int32
	if i, ok := powInt(base.Int64(), exp.Int64()); ok {
		return fitInt(i, small), nil
	}
	return value.NewDouble(math.Pow(base.AsFloat64(), exp.AsFloat64())), nil
}

// powInt multiplies exactly; ok is false if the result does not fit in a long.
func powInt(base, exp int64) (r int64, ok bool) {
	switch {
	case base == 1, exp == 0:
		return 1, true
	case base == -1:
		return 1 - 2*(exp&1), true
	case exp < 0:
		return 0, false
	case base == 0:
		return 0, true
	}
	r = 1
	for ; exp > 0; exp-- {
		if r, ok = mulInt64(r, base); !ok {
			return 0, false
		}
	}
	return r, true
}
