package agg

import (
	"math"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
)

// parseCovariance reads $covariancePop and $covarianceSamp; anything but a pair of numbers is skipped.
func parseCovariance(s *windowStage, o *Options, name string, arg value.Value, b *bounds) (windowFunc, error) {
	e, err := expr.Compile(arg, o.scope())
	if err != nil {
		return nil, err
	}
	return &covariance{e: e, b: b, sample: name == "$covarianceSamp"}, b.check(s)
}

type covariance struct {
	e      *expr.Expr
	b      *bounds
	sample bool
}

func (w *covariance) compute(p *partition) ([]value.Value, error) {
	in, err := p.values(w.e)
	if err != nil {
		return nil, err
	}
	out := make([]value.Value, len(in))
	var st covState
	from, to := 0, 0
	for i := range in {
		lo, hi, err := w.b.window(p, i)
		if err != nil {
			return nil, err
		}
		if lo >= to { // nothing in common with the previous window
			st, from, to = covState{}, lo, lo
		}
		for ; to < hi; to++ {
			st.change(in[to], true)
		}
		for ; from < lo; from++ {
			st.change(in[from], false)
		}
		out[i] = st.result(w.sample)
	}
	return out, nil
}

// covState is a running covariance to which documents are added and from which they are removed. c is the sum of the
// products of deviations. The effect of overflow depends on which mean is taken before a change and which after it, so
// both are as on the real server. All arithmetic is in decimals as soon as one number is a decimal.
type covState struct {
	n          int64
	sumX, sumY accum.Total
	c          value.Value
	nonfinite  accum.Total
	odd        int // how many pairs have an infinity or NaN
}

func (s *covState) change(v value.Value, add bool) {
	if v.T != value.Array {
		return
	}
	pair := value.Values(v.Doc())
	if len(pair) != 2 || !pair[0].T.Numeric() || !pair[1].T.Numeric() {
		return
	}
	x, y := pair[0], pair[1]
	if !finite(x) || !finite(y) {
		s.changeOdd(x, y, add)
		return
	}
	if add {
		before := mean(&s.sumX, s.n)
		s.n++
		s.sumX.Add(x)
		s.sumY.Add(y)
		s.c = plus(s.c, times(minus(x, before), minus(y, mean(&s.sumY, s.n))))
		return
	}
	after := mean(&s.sumY, s.n)
	s.n--
	if s.n == 0 {
		*s = covState{nonfinite: s.nonfinite, odd: s.odd}
		return
	}
	s.sumX.Add(negate(x))
	s.sumY.Add(negate(y))
	s.c = minus(s.c, times(minus(x, mean(&s.sumX, s.n)), minus(y, after)))
}

func (s *covState) changeOdd(x, y value.Value, add bool) {
	if add {
		s.odd++
		s.nonfinite.Add(plus(x, y))
		return
	}
	if s.odd--; s.odd == 0 {
		s.nonfinite = accum.Total{}
	}
}

func (s *covState) result(sample bool) value.Value {
	switch {
	case s.n == 0, sample && s.n == 1:
		return value.NewNull()
	case s.n == 1:
		return value.NewDouble(0)
	case s.odd > 0:
		return s.nonfinite.Value()
	case sample:
		return over(s.c, s.n-1)
	}
	return over(s.c, s.n)
}

func finite(v value.Value) bool {
	f := v.AsFloat64()
	if v.T == value.Decimal128 {
		d := decimal.Of(v)
		return !decimal.IsNaN(d) && !decimal.IsInf(d)
	}
	return !math.IsNaN(f) && !math.IsInf(f, 0)
}

func mean(t *accum.Total, n int64) value.Value {
	if n == 0 {
		return value.NewDouble(0)
	}
	return over(t.Value(), n)
}

// over divides by a count, as a double.
func over(v value.Value, n int64) value.Value {
	if v.T == value.Decimal128 {
		return decimal.Value(decimal.Quo(decimal.Of(v), decimal.FromDouble(float64(n))))
	}
	return value.NewDouble(v.AsFloat64() / float64(n))
}

func plus(a, b value.Value) value.Value {
	if a.T == value.Decimal128 || b.T == value.Decimal128 {
		return decimal.Value(decimal.Add(decimal.Of(a), decimal.Of(b)))
	}
	return value.NewDouble(a.AsFloat64() + b.AsFloat64())
}

func minus(a, b value.Value) value.Value { return plus(a, negate(b)) }

func times(a, b value.Value) value.Value {
	if a.T == value.Decimal128 || b.T == value.Decimal128 {
		return decimal.Value(decimal.Mul(decimal.Of(a), decimal.Of(b)))
	}
	return value.NewDouble(a.AsFloat64() * b.AsFloat64())
}

func negate(v value.Value) value.Value {
	switch v.T {
	case value.Decimal128:
		return decimal.Value(decimal.Sub(decimal.Int(0), decimal.Of(v)))
	case value.Int32, value.Int64:
		if v.Int64() != math.MinInt64 {
			return value.NewInt64(-v.Int64())
		}
	}
	return value.NewDouble(-v.AsFloat64())
}

// slidingDev is a standard deviation over windows that lose documents: it is null if a number is not finite.
type slidingDev struct {
	e      *expr.Expr
	b      *bounds
	sample bool
}

func (w *slidingDev) compute(p *partition) ([]value.Value, error) {
	return w.b.each(p, w.e, func(in []value.Value, lo, hi int) (value.Value, error) { return w.over(in[lo:hi]), nil })
}

func (w *slidingDev) over(in []value.Value) value.Value {
	var n, mean, m2 float64
	for _, v := range in {
		if !v.T.Numeric() {
			continue
		}
		if !finite(v) {
			return value.NewNull()
		}
		x := v.AsFloat64()
		n++
		d := x - mean
		mean += d / n
		m2 += d * (x - mean)
	}
	switch {
	case n == 0, w.sample && n == 1:
		return value.NewNull()
	case n == 1:
		return value.NewInt32(0)
	case w.sample:
		n--
	}
	return value.NewDouble(math.Sqrt(m2 / n))
}
