package expr

import "math"

// The Go runtime's functions on doubles are within one unit of the last place; those of a C library, which the real
// server uses, are almost always the nearest double. So each is computed here with twice the digits and rounded once.
// (The area functions are the exception: both compute them in the same way.)

// pair is a number of about 106 bits: the sum of a double and a smaller one.
type pair struct{ hi, lo float64 }

func sum2(a, b float64) pair {
	s := a + b
	t := s - a
	return pair{s, (a - (s - t)) + (b - t)}
}

func product(a, b float64) pair {
	p := a * b
	return pair{p, math.FMA(a, b, -p)}
}

func (a pair) add(b pair) pair {
	s := sum2(a.hi, b.hi)
	return sum2(s.hi, s.lo+a.lo+b.lo)
}

func (a pair) neg() pair           { return pair{-a.hi, -a.lo} }
func (a pair) sub(b pair) pair     { return a.add(b.neg()) }
func (a pair) plus(f float64) pair { return a.add(pair{f, 0}) }

func (a pair) mul(b pair) pair {
	p := product(a.hi, b.hi)
	return sum2(p.hi, p.lo+a.hi*b.lo+a.lo*b.hi)
}

func (a pair) scale(f float64) pair {
	p := product(a.hi, f)
	return sum2(p.hi, p.lo+a.lo*f)
}

func (a pair) div(b pair) pair {
	q := a.hi / b.hi
	r := a.sub(b.scale(q))
	return sum2(q, r.hi/b.hi)
}

func (a pair) float() float64 { return a.hi + a.lo }

// halfPi is π/2 in three parts, ln2 the logarithm of 2 in two.
var (
	halfPi = [3]float64{1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33}
	ln2    = pair{0.6931471805599453, 2.3190468138462996e-17}
)

// maxReduced limits the arguments that two products reduce exactly enough.
const maxReduced = 1 << 20

// sinCos is for |x| ≤ maxReduced; the sine and cosine of the remainder are by their series.
func sinCos(x pair) (sin, cos pair) {
	k := math.Round(x.hi / halfPi[0])
	r := x.sub(product(k, halfPi[0])).sub(product(k, halfPi[1])).plus(-k * halfPi[2])
	sq := r.mul(r)
	sin, cos = r, pair{1, 0}
	ts, tc := r, pair{1, 0}
	for n := 1.0; n < 14; n++ {
		tc = tc.mul(sq).div(pair{-(2*n - 1) * (2 * n), 0})
		ts = ts.mul(sq).div(pair{-(2 * n) * (2*n + 1), 0})
		cos, sin = cos.add(tc), sin.add(ts)
	}
	switch int64(k) & 3 {
	case 1:
		return cos, sin.neg()
	case 2:
		return sin.neg(), cos.neg()
	case 3:
		return cos.neg(), sin
	}
	return sin, cos
}

// expPair is e^x for |x| ≤ 700.
func expPair(x pair) pair {
	k := math.Round(x.hi / ln2.hi)
	r := x.sub(ln2.scale(k)).scale(1.0 / 64)
	out, t := pair{1, 0}, pair{1, 0}
	for n := 1.0; n < 12; n++ {
		t = t.mul(r).div(pair{n, 0})
		out = out.add(t)
	}
	for range 6 {
		out = out.mul(out)
	}
	return pair{math.Ldexp(out.hi, int(k)), math.Ldexp(out.lo, int(k))}
}

// logPair is one step of Newton's method from the double's logarithm.
func logPair(x pair) pair {
	y := math.Log(x.hi)
	e := expPair(pair{-y, 0})
	return sum2(y, x.mul(e).plus(-1).float())
}

// small reports whether a function equals its argument to the last place, or the runtime's own result is exact enough.
func small(x float64) bool { return math.Abs(x) < 1e-5 || math.IsNaN(x) }

func preciseSin(x float64) float64 {
	if small(x) || math.Abs(x) > maxReduced {
		return math.Sin(x)
	}
	s, _ := sinCos(pair{x, 0})
	return s.float()
}

func preciseCos(x float64) float64 {
	if small(x) || math.Abs(x) > maxReduced {
		return math.Cos(x)
	}
	_, c := sinCos(pair{x, 0})
	return c.float()
}

func preciseTan(x float64) float64 {
	if small(x) || math.Abs(x) > maxReduced {
		return math.Tan(x)
	}
	s, c := sinCos(pair{x, 0})
	return s.div(c).float()
}

func preciseAsin(x float64) float64 {
	y := math.Asin(x)
	if small(x) || math.Abs(x) >= 1 {
		return y
	}
	return arc(y, x).float()
}

// arc improves an arc sine by one step of Newton's method: y − (sin y − x) / cos y.
func arc(y, x float64) pair {
	s, c := sinCos(pair{y, 0})
	return sum2(y, -s.plus(-x).float()/c.hi)
}

func preciseAcos(x float64) float64 {
	y := math.Acos(x)
	if math.IsNaN(x) || math.Abs(x) >= 1 {
		return y
	}
	s, c := sinCos(pair{y, 0})
	return sum2(y, c.plus(-x).float()/s.hi).float()
}

func preciseAtan(x float64) float64 {
	y := math.Atan(x)
	if small(x) || math.Abs(x) > 1e15 {
		return y
	}
	s, c := sinCos(pair{y, 0})
	return sum2(y, -s.sub(c.scale(x)).float()*c.hi).float()
}

func preciseExp(x float64) float64 {
	if math.IsNaN(x) || math.Abs(x) > 700 || math.Abs(x) < 1e-10 {
		return math.Exp(x)
	}
	return expPair(pair{x, 0}).float()
}

func preciseLn(x float64) float64 {
	if !(x > 1e-300 && x < 1e300) || x == 1 {
		return ln(x)
	}
	return logPair(pair{x, 0}).float()
}

func preciseSinh(x float64) float64 {
	if math.Abs(x) < 0.3 || math.IsNaN(x) || math.Abs(x) > 700 {
		return math.Sinh(x)
	}
	e := expPair(pair{x, 0})
	return e.sub(pair{1, 0}.div(e)).scale(0.5).float()
}

func preciseCosh(x float64) float64 {
	if math.IsNaN(x) || math.Abs(x) > 700 {
		return math.Cosh(x)
	}
	e := expPair(pair{x, 0})
	return e.add(pair{1, 0}.div(e)).scale(0.5).float()
}

func preciseTanh(x float64) float64 {
	if math.Abs(x) < 0.3 || math.IsNaN(x) || math.Abs(x) > 20 {
		return math.Tanh(x)
	}
	e := expPair(pair{2 * x, 0})
	return e.plus(-1).div(e.plus(1)).float()
}
