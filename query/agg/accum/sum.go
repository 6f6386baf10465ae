package accum

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
)

// Total adds numbers of all types without losing precision that the widest of them has: integers exactly, doubles
// with a running compensation, decimals separately.
type Total struct {
	ints    int64
	s, c    float64 // doubles: sum and compensation
	plain   float64 // doubles without compensation: correct if there were infinities or NaN
	dec     *decimal.D
	widest  value.Type // Missing before the first number
	doubles bool
}

// Add adds a number; other values are skipped. It reports whether v was one.
func (t *Total) Add(v value.Value) bool {
	switch v.T {
	case value.Int32:
		t.addInt(v.Int64())
		if t.widest == value.Missing {
			t.widest = value.Int32
		}
	case value.Int64:
		t.addInt(v.Int64())
		if t.widest == value.Missing || t.widest == value.Int32 {
			t.widest = value.Int64
		}
	case value.Double:
		t.addDouble(v.Double())
		if t.widest != value.Decimal128 {
			t.widest = value.Double
		}
	case value.Decimal128:
		t.addDecimal(decimal.Of(v))
	default:
		return false
	}
	return true
}

func (t *Total) addInt(i int64) {
	n := t.ints + i
	if (n > t.ints) != (i > 0) && i != 0 {
		t.spill(t.ints)
		n = i
	}
	t.ints = n
}

// spill moves an integer into the doubles in two parts that each fit exactly.
func (t *Total) spill(i int64) {
	hi := i >> 32 << 32
	t.addDouble(float64(hi))
	t.addDouble(float64(i - hi))
}

func (t *Total) addDouble(x float64) {
	t.doubles = true
	t.plain += x
	s := t.s + x // two-sum
	b := s - t.s
	t.c += (t.s - (s - b)) + (x - b)
	t.s = s
}

func (t *Total) addDecimal(d *decimal.D) {
	if t.dec == nil {
		t.dec = d
	} else {
		t.dec = decimal.Add(t.dec, d)
	}
	t.widest = value.Decimal128
}

// Float returns the sum of all but the decimals.
func (t *Total) Float() float64 {
	if !t.doubles {
		return float64(t.ints)
	}
	u := *t
	if u.ints != 0 {
		u.spill(u.ints)
		u.ints = 0
	}
	if f := u.s + u.c; !math.IsNaN(f) && !math.IsInf(f, 0) {
		return f
	}
	return u.plain
}

// Decimal returns the whole sum, including the decimals.
func (t *Total) Decimal() *decimal.D {
	d := decimal.Int(t.ints)
	if t.dec != nil {
		d = decimal.Add(d, t.dec)
	}
	if t.doubles {
		f := decimal.FromDoubleExact(t.s)
		if math.IsNaN(t.s+t.c) || math.IsInf(t.s+t.c, 0) {
			f = decimal.FromDoubleExact(t.plain)
		} else if t.c != 0 {
			f = decimal.Add(f, decimal.FromDoubleExact(t.c))
		}
		d = decimal.Add(d, f)
	}
	return d
}

// Value returns the sum in the narrowest type that holds it and is no narrower than the widest number added.
func (t *Total) Value() value.Value {
	switch t.widest {
	case value.Missing:
		return value.NewInt32(0)
	case value.Decimal128:
		return decimal.Value(t.Decimal())
	case value.Double:
		return value.NewDouble(t.Float())
	}
	i, ok := t.whole()
	switch {
	case !ok:
		return value.NewDouble(t.Float())
	case t.widest == value.Int32 && i >= math.MinInt32 && i <= math.MaxInt32:
		return value.NewInt32(int32(i))
	}
	return value.NewInt64(i)
}

func (t *Total) whole() (int64, bool) {
	if !t.doubles {
		return t.ints, true
	}
	sum := big.NewInt(t.ints)
	for _, f := range []float64{t.s, t.c} {
		i, _ := big.NewFloat(f).Int(nil)
		sum.Add(sum, i)
	}
	return sum.Int64(), sum.IsInt64()
}

// Partial returns the state of the sum, for Merge.
func (t *Total) Partial(n int64) value.Value {
	dec := value.Value{}
	if t.dec != nil {
		dec = decimal.Value(t.dec)
	}
	return value.NewDocument(value.Doc(
		value.F("t", value.NewInt32(int32(t.widest))), value.F("i", value.NewInt64(t.ints)), value.F("s", value.NewDouble(t.s)),
		value.F("c", value.NewDouble(t.c)), value.F("p", value.NewDouble(t.plain)), value.F("f", value.NewBool(t.doubles)),
		value.F("n", value.NewInt64(n)), value.F("d", dec)))
}

// Merge adds another sum's Partial.
func (t *Total) Merge(p value.Value) (n int64) {
	if p.T != value.Document {
		return 0
	}
	d := p.Doc()
	typ := value.Type(value.Lookup(d, "t").Int32())
	if i := value.Lookup(d, "i").Int64(); i != 0 {
		t.addInt(i)
	}
	if value.Lookup(d, "f").Bool() {
		plain := t.plain + value.Lookup(d, "p").Double()
		t.addDouble(value.Lookup(d, "s").Double())
		t.addDouble(value.Lookup(d, "c").Double())
		t.plain = plain
	}
	if dec := value.Lookup(d, "d"); dec.T == value.Decimal128 {
		t.addDecimal(decimal.Of(dec))
	}
	if rank(typ) > rank(t.widest) {
		t.widest = typ
	}
	return value.Lookup(d, "n").Int64()
}

func rank(t value.Type) int {
	switch t {
	case value.Int32:
		return 1
	case value.Int64:
		return 2
	case value.Double:
		return 3
	case value.Decimal128:
		return 4
	}
	return 0
}

// Sum is the state of $sum, $count and $avg.
type Sum struct {
	t    Total
	n    int64 // how many numbers
	mean bool  // $avg
}

// Sums reports whether the states of the accumulator are of type *Sum.
func (s *Spec) Sums() bool { return s.Name == "$sum" || s.Name == "$avg" || s.Name == "$count" }

// AddElement is Add for a value in a document: t is its type, p starts with its payload.
func (s *Sum) AddElement(t value.Type, p []byte) {
	switch {
	case t == value.Int32 && len(p) >= 4:
		s.t.addInt(int64(int32(binary.LittleEndian.Uint32(p))))
		if s.t.widest == value.Missing {
			s.t.widest = value.Int32
		}
		s.n++
	case t == value.Double && len(p) >= 8:
		s.t.addDouble(math.Float64frombits(binary.LittleEndian.Uint64(p)))
		if s.t.widest != value.Decimal128 {
			s.t.widest = value.Double
		}
		s.n++
	default:
		if v, ok := value.FromElement(t, p); ok && s.t.Add(v) {
			s.n++
		}
	}
}

func (s *Sum) Add(v value.Value, _ *expr.Frame) (int, error) {
	if s.t.Add(v) {
		s.n++
	}
	return 0, nil
}
func (s *Sum) Merge(p value.Value) (int, error) { s.n += s.t.Merge(p); return 0, nil }

func (s *Sum) Partial() (value.Value, error) {
	if !s.mean {
		return s.t.Partial(0), nil
	}
	return s.t.Partial(s.n), nil
}

func (s *Sum) Result() (value.Value, error) {
	switch {
	case !s.mean:
		return s.t.Value(), nil
	case s.n == 0:
		return value.NewNull(), nil
	case s.t.widest == value.Decimal128:
		return decimal.Value(decimal.Quo(s.t.Decimal(), decimal.Int(s.n))), nil
	}
	return value.NewDouble(s.t.Float() / float64(s.n)), nil
}

// stdDev is Welford's method.
type stdDev struct {
	n        int64
	mean, m2 float64
	sample   int64
}

func (s *stdDev) Add(v value.Value, _ *expr.Frame) (int, error) {
	if !v.T.Numeric() {
		return 0, nil
	}
	x := v.AsFloat64()
	s.n++
	d := x - s.mean
	if d != 0 {
		s.mean += d / float64(s.n)
		s.m2 += d * (x - s.mean)
	}
	return 0, nil
}

func (s *stdDev) Merge(p value.Value) (int, error) {
	if p.T != value.Document {
		return 0, nil
	}
	n := value.Lookup(p.Doc(), "n").Int64()
	if n == 0 {
		return 0, nil
	}
	mean, m2 := value.Lookup(p.Doc(), "mean").Double(), value.Lookup(p.Doc(), "m2").Double()
	d, all := mean-s.mean, float64(s.n+n)
	if d != 0 {
		s.m2 += d * d * float64(s.n) * float64(n) / all
		s.mean = (float64(s.n)*s.mean + float64(n)*mean) / all
	}
	s.m2 += m2
	s.n += n
	return 0, nil
}

func (s *stdDev) Partial() (value.Value, error) {
	return value.NewDocument(value.Doc(value.F("n", value.NewInt64(s.n)), value.F("mean", value.NewDouble(s.mean)),
		value.F("m2", value.NewDouble(s.m2)))), nil
}

func (s *stdDev) Result() (value.Value, error) {
	if s.n-s.sample <= 0 {
		return value.NewNull(), nil
	}
	return value.NewDouble(math.Sqrt(s.m2 / float64(s.n-s.sample))), nil
}
