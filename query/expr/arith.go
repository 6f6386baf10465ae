package expr

import (
	"math"
	"math/bits"

	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		nary("$add", 0, -1, evalAdd),
		nary("$multiply", 0, -1, evalMultiply),
		binary("$subtract", subtract),
		binary("$divide", divide),
		binary("$mod", mod),
		unary("$abs", abs),
		unary("$ceil", ceilFloor("$ceil", math.Ceil, decimal.RoundCeil)),
		unary("$floor", ceilFloor("$floor", math.Floor, decimal.Floor)),
	)
}

var null = value.NewNull()

// fitInt returns an integer as int if both operands were ints and it fits, else as long.
func fitInt(i int64, small bool) value.Value {
	if small && i == int64(int32(i)) {
		return value.NewInt32(int32(i))
	}
	return value.NewInt64(i)
}

// evalAdd sums numbers, or numbers and one date. A null ends it, whatever follows.
func evalAdd(f *Frame, c *call) (value.Value, error) {
	var s sum
	var first value.Value
	for i, n := range c.args {
		v, err := n.eval(f)
		if err != nil {
			return v, err
		}
		if v.IsNullish() {
			return null, nil
		}
		if i == 1 && len(c.args) == 2 {
			if v, ok := addPair(first, v); ok {
				return v, nil
			}
		}
		first = v
		if err := s.take(v); err != nil {
			return v, err
		}
	}
	return s.result()
}

// take is add for $add, which accepts only numbers and dates.
func (s *sum) take(v value.Value) error {
	switch {
	case v.T.Numeric():
		s.add(v)
	case v.T != value.DateTime:
		return mongoerr.Newf(mongoerr.TypeMismatch, "$add only supports numeric or date types, not %s", v.T.Name())
	case s.isDate:
		return mongoerr.New(16612, "only one date allowed in an $add expression")
	default:
		s.isDate, s.date = true, v.DateTime()
	}
	return nil
}

// addPair adds two numbers in the simple cases: ints and longs that do not overflow, doubles and ints.
func addPair(a, b value.Value) (v value.Value, ok bool) {
	aInt, bInt := a.T == value.Int32 || a.T == value.Int64, b.T == value.Int32 || b.T == value.Int64
	switch {
	case aInt && bInt:
		i, ok := addInt64(a.Int64(), b.Int64())
		return fitInt(i, a.T == value.Int32 && b.T == value.Int32), ok
	case a.T == value.Double && b.T == value.Double:
		return value.NewDouble(a.Double() + b.Double()), true
	case a.T == value.Double && b.T == value.Int32:
		return value.NewDouble(a.Double() + float64(b.Int32())), true
	case a.T == value.Int32 && b.T == value.Double:
		return value.NewDouble(float64(a.Int32()) + b.Double()), true
	}
	return v, false
}

// sum adds numbers of all types: integers in 128 bits, doubles with a second double for the rounding errors,
// decimals as decimals. The result has the widest type seen.
type sum struct {
	seen   value.Type // widest so far: Int32, Int64, Double, Decimal128; 0 is none
	hi, lo uint64     // whole numbers, two's complement
	f, err float64    // doubles
	dec    *decimal.D
	exact  bool // doubles are converted to decimals with all their digits, and the sum starts at a decimal zero ($sum, $avg)
	isDate bool
	date   int64
}

func (s *sum) add(v value.Value) {
	switch v.T {
	case value.Int32, value.Int64:
		if s.seen == 0 || s.seen == value.Int32 {
			s.seen = v.T
		}
		i := v.Int64()
		var carry uint64
		s.lo, carry = bits.Add64(s.lo, uint64(i), 0)
		s.hi, _ = bits.Add64(s.hi, uint64(i>>63), carry)
	case value.Double:
		s.addDouble(v.Double())
		if s.seen != value.Decimal128 {
			s.seen = value.Double
		}
	case value.Decimal128:
		if s.seen = value.Decimal128; s.dec == nil {
			s.dec = decimal.Of(v)
			return
		}
		s.dec = decimal.Add(s.dec, decimal.Of(v))
	}
}

func (s *sum) addDouble(f float64) {
	t := s.f + f
	if math.IsInf(t, 0) || math.IsNaN(t) {
		s.f, s.err = t, 0
		return
	}
	if math.Abs(s.f) >= math.Abs(f) {
		s.err += (s.f - t) + f
	} else {
		s.err += (f - t) + s.f
	}
	s.f = t
}

// whole returns the sum of the integers; ok is false if it exceeds a long.
func (s *sum) whole() (i int64, ok bool) {
	i = int64(s.lo)
	return i, uint64(i>>63) == s.hi
}

func (s *sum) wholeFloat() float64 {
	i, ok := s.whole()
	if ok {
		return float64(i)
	}
	return float64(int64(s.hi))*0x1p64 + float64(s.lo)
}

func (s *sum) result() (value.Value, error) {
	if s.isDate {
		return s.dateResult()
	}
	switch s.seen {
	case value.Double:
		return value.NewDouble(s.doubles()), nil
	case value.Decimal128:
		return decimal.Value(s.decimals()), nil
	}
	i, ok := s.whole()
	if !ok {
		return value.NewDouble(s.wholeFloat()), nil
	}
	return fitInt(i, s.seen != value.Int64), nil
}

// doubles adds the integers to the doubles.
func (s *sum) doubles() float64 {
	if i, ok := s.whole(); ok && i != 0 {
		t := *s
		hi := float64(i)
		t.addDouble(hi)
		t.addDouble(float64(i - int64(clampFloat(hi))))
		return t.f + t.err
	} else if !ok {
		t := *s
		t.addDouble(s.wholeFloat())
		return t.f + t.err
	}
	if s.err == 0 {
		return s.f // keeps the sign of zero
	}
	return s.f + s.err
}

// clampFloat keeps a double that was rounded up from the largest long inside the range of longs.
func clampFloat(f float64) float64 {
	if f >= 0x1p63 {
		return math.Nextafter(0x1p63, 0)
	}
	return f
}

func (s *sum) decimals() *decimal.D {
	d := s.dec
	if i, ok := s.whole(); !ok {
		d = decimal.Add(d, decimal.FromDoubleExact(s.wholeFloat()))
	} else if i != 0 || s.exact {
		d = decimal.Add(d, decimal.Int(i))
	}
	of := decimal.FromDouble
	if s.exact {
		of = decimal.FromDoubleExact
	}
	if s.f != 0 {
		d = decimal.Add(d, of(s.f))
	}
	if s.err != 0 {
		d = decimal.Add(d, of(s.err))
	}
	return d
}

func (s *sum) dateResult() (value.Value, error) {
	overflow := mongoerr.New(mongoerr.Overflow, "date overflow in $add")
	ms, ok := int64(0), true
	switch s.seen {
	case value.Double:
		ms, ok = roundToInt64(s.doubles())
	case value.Decimal128:
		ms, ok = decimal.Int64(s.decimals(), decimal.HalfEven)
	default:
		ms, ok = s.whole()
	}
	if !ok {
		return value.Value{}, overflow
	}
	t, ok := addInt64(s.date, ms)
	if !ok {
		return value.Value{}, overflow
	}
	return value.NewDateTime(t), nil
}

// roundToInt64 rounds half away from zero.
func roundToInt64(f float64) (int64, bool) {
	r := math.Round(f)
	if !(r >= -0x1p63 && r < 0x1p63) {
		return 0, false
	}
	return int64(r), true
}

func addInt64(a, b int64) (int64, bool) {
	c := a + b
	return c, (c > a) == (b > 0)
}

func subInt64(a, b int64) (int64, bool) {
	c := a - b
	return c, (c < a) == (b > 0)
}

func mulInt64(a, b int64) (int64, bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	c := a * b
	if c/b != a || (a == -1 && b == math.MinInt64) || (b == -1 && a == math.MinInt64) {
		return 0, false
	}
	return c, true
}

func evalMultiply(f *Frame, c *call) (value.Value, error) {
	acc := value.NewInt32(1)
	for i, n := range c.args {
		v, err := n.eval(f)
		if err != nil {
			return v, err
		}
		switch {
		case v.IsNullish():
			return null, nil
		case !v.T.Numeric():
			return v, mongoerr.Newf(mongoerr.TypeMismatch, "$multiply only supports numeric types, not %s", v.T.Name())
		case i == 0:
			acc = v
		default:
			acc = multiply(acc, v)
		}
	}
	return acc, nil
}

// multiply returns the product of two numbers in the wider of their types.
func multiply(a, b value.Value) value.Value {
	switch {
	case a.T == value.Decimal128 || b.T == value.Decimal128:
		return decimal.Value(decimal.Mul(decimal.Of(a), decimal.Of(b)))
	case a.T == value.Double || b.T == value.Double:
		return value.NewDouble(a.AsFloat64() * b.AsFloat64())
	}
	if p, ok := mulInt64(a.Int64(), b.Int64()); ok {
		return fitInt(p, a.T == value.Int32 && b.T == value.Int32)
	}
	return value.NewDouble(float64(a.Int64()) * float64(b.Int64()))
}

func subtract(f *Frame, a, b value.Value) (value.Value, error) {
	if a.IsNullish() || b.IsNullish() {
		return null, nil
	}
	if a.T == value.DateTime {
		return subtractFromDate(a, b)
	}
	if !a.T.Numeric() || !b.T.Numeric() {
		return a, mongoerr.Newf(mongoerr.TypeMismatch, "can't $subtract %s from %s", b.T.Name(), a.T.Name())
	}
	switch {
	case a.T == value.Decimal128 || b.T == value.Decimal128:
		return decimal.Value(decimal.Sub(decimal.Of(a), decimal.Of(b))), nil
	case a.T == value.Double || b.T == value.Double:
		return value.NewDouble(a.AsFloat64() - b.AsFloat64()), nil
	}
	if d, ok := subInt64(a.Int64(), b.Int64()); ok {
		return fitInt(d, a.T == value.Int32 && b.T == value.Int32), nil
	}
	return value.NewDouble(float64(a.Int64()) - float64(b.Int64())), nil
}

func subtractFromDate(a, b value.Value) (value.Value, error) {
	var ms int64
	ok := true
	switch b.T {
	case value.DateTime:
		d, ok := subInt64(a.DateTime(), b.DateTime())
		if !ok {
			return a, mongoerr.New(mongoerr.Overflow, "date overflow in $subtract")
		}
		return value.NewInt64(d), nil
	case value.Int32, value.Int64:
		ms = b.Int64()
	case value.Double:
		ms, ok = roundToInt64(b.Double())
	case value.Decimal128:
		ms, ok = decimal.Int64(decimal.Of(b), decimal.HalfEven)
	default:
		return a, mongoerr.Newf(mongoerr.TypeMismatch, "can't $subtract %s from %s", b.T.Name(), a.T.Name())
	}
	d, fits := subInt64(a.DateTime(), ms)
	if !ok || !fits {
		return a, mongoerr.New(mongoerr.Overflow, "date overflow in $subtract")
	}
	return value.NewDateTime(d), nil
}

func divide(f *Frame, a, b value.Value) (value.Value, error) {
	if a.T.Numeric() && b.T.Numeric() {
		if a.T == value.Decimal128 || b.T == value.Decimal128 {
			d := decimal.Of(b)
			if d.IsZero() {
				return a, mongoerr.New(mongoerr.BadValue, "can't $divide by zero")
			}
			return decimal.Value(decimal.Quo(decimal.Of(a), d)), nil
		}
		d := b.AsFloat64()
		if d == 0 {
			return a, mongoerr.New(mongoerr.BadValue, "can't $divide by zero")
		}
		return value.NewDouble(a.AsFloat64() / d), nil
	}
	if a.IsNullish() || b.IsNullish() {
		return null, nil
	}
	return a, mongoerr.Newf(mongoerr.TypeMismatch, "$divide only supports numeric types, not %s and %s", a.T.Name(), b.T.Name())
}

func mod(f *Frame, a, b value.Value) (value.Value, error) {
	if !a.T.Numeric() || !b.T.Numeric() {
		if a.IsNullish() || b.IsNullish() {
			return null, nil
		}
		return a, mongoerr.Newf(16611, "$mod only supports numeric types, not %s and %s", a.T.Name(), b.T.Name())
	}
	zero := mongoerr.New(16610, "can't $mod by zero")
	switch {
	case a.T == value.Decimal128 || b.T == value.Decimal128:
		d := decimal.Of(b)
		if d.IsZero() {
			return a, mongoerr.New(5733415, "can't $mod by zero")
		}
		return decimal.Value(decimal.Rem(decimal.Of(a), d)), nil
	case a.T == value.Double || b.T == value.Double:
		d := b.AsFloat64()
		if d == 0 {
			return a, zero
		}
		return value.NewDouble(math.Mod(a.AsFloat64(), d)), nil
	}
	x, y := a.Int64(), b.Int64()
	if y == 0 {
		return a, zero
	}
	var r int64
	if y != -1 {
		r = x % y
	}
	return fitInt(r, a.T == value.Int32 && b.T == value.Int32), nil
}

// notNumeric returns the error of operators that take one number.
func notNumeric(name string, v value.Value) error {
	return mongoerr.Newf(28765, "%s only supports numeric types, not %s", name, v.T.Name())
}

func abs(f *Frame, v value.Value) (value.Value, error) {
	switch v.T {
	case value.Int32:
		return fitInt(max(v.Int64(), -v.Int64()), true), nil
	case value.Int64:
		if v.Int64() == math.MinInt64 {
			return v, mongoerr.New(28680, "can't take $abs of long long min")
		}
		return value.NewInt64(max(v.Int64(), -v.Int64())), nil
	case value.Double:
		return value.NewDouble(math.Abs(v.Double())), nil
	case value.Decimal128:
		return decimal.Value(decimal.Abs(decimal.Of(v))), nil
	}
	if v.IsNullish() {
		return null, nil
	}
	return v, notNumeric("$abs", v)
}

// coerceInt64 converts a number for operators that accept any: doubles are truncated and must fit, decimals are
// rounded, and those that do not fit become the smallest long.
func coerceInt64(v value.Value) (int64, error) {
	switch v.T {
	case value.Double:
		f := v.Double()
		if !(f >= -0x1p63 && f < 0x1p63) {
			return 0, mongoerr.Newf(31109, "Can't coerce out of range value %s to long", ShowDouble(f))
		}
		return int64(f), nil
	case value.Decimal128:
		if i, ok := decimal.Int64(decimal.Of(v), decimal.HalfEven); ok {
			return i, nil
		}
		return math.MinInt64, nil
	}
	return v.Int64(), nil
}
