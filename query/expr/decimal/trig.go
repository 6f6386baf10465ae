package decimal

import (
	"github.com/cockroachdb/apd/v3"
)

// reduce brings an angle into [-π, π].
func reduce(x *D) w {
	turn := of(pi).mul(two)
	n := new(D)
	q := of(x).quo(turn.d)
	c := wide
	_, _ = c.Quantize(n, q.d, 0)
	return of(x).sub(of(n).mul(turn.d).d)
}

// series sums term, term·f(1), term·f(1)·f(2), … until nothing changes.
func series(first w, next func(term w, n int64) w) w {
	sum, term := first, first
	for n := int64(1); n < 400; n++ {
		term = next(term, n)
		s := sum.add(term.d)
		if s.d.Cmp(sum.d) == 0 {
			break
		}
		sum = s
	}
	return sum
}

func sin(x w) w {
	sq := x.mul(x.d).neg()
	return series(x, func(t w, n int64) w { return t.mul(sq.d).quo(apd.New(2*n*(2*n+1), 0)) })
}

func cos(x w) w {
	sq := x.mul(x.d).neg()
	return series(of(one), func(t w, n int64) w { return t.mul(sq.d).quo(apd.New((2*n-1)*2*n, 0)) })
}

// atan halves its argument until the series converges quickly: atan x = 2 atan(x / (1 + √(1+x²))).
func atan(x w) w {
	scale := apd.New(1, 0)
	for range 6 {
		x = x.quo(x.mul(x.d).add(one).sqrt().add(one).d)
		scale = of(scale).mul(two).d
	}
	sq := x.mul(x.d).neg()
	p := x
	return series(x, func(_ w, n int64) w {
		p = p.mul(sq.d)
		return p.quo(apd.New(2*n+1, 0))
	}).mul(scale)
}

func unlessNaN(x *D, f func() *D) *D {
	if isNaN(x) {
		return NaN()
	}
	return f()
}

// Sin returns the sine of an angle in radians.
func Sin(x *D) *D {
	if x.Form != apd.Finite {
		return NaN()
	}
	if x.IsZero() {
		return new(D).Set(x)
	}
	return full(sin(reduce(x)).round())
}

// Cos returns the cosine.
func Cos(x *D) *D {
	if x.Form != apd.Finite {
		return NaN()
	}
	if x.IsZero() {
		return apd.New(1, 0)
	}
	return full(cos(reduce(x)).round())
}

// Tan returns the tangent.
func Tan(x *D) *D {
	if x.Form != apd.Finite {
		return NaN()
	}
	if x.IsZero() {
		return new(D).Set(x)
	}
	r := reduce(x)
	return full(sin(r).quo(cos(r).d).round())
}

// Atan returns the arc tangent.
func Atan(x *D) *D {
	switch {
	case isNaN(x):
		return NaN()
	case x.Form == apd.Infinite:
		d := of(pi).mul(half).round()
		d.Negative = x.Negative
		return d
	case x.IsZero():
		return new(D).Set(x)
	}
	return full(atan(of(x)).round())
}

// Asin returns the arc sine of a number in [-1, 1].
func Asin(x *D) *D {
	return unlessNaN(x, func() *D {
		switch {
		case x.IsZero():
			return new(D).Set(x)
		case Abs(x).Cmp(one) == 0:
			d := of(pi).mul(half).round()
			d.Negative = x.Negative
			return d
		}
		return full(asin(x).round())
	})
}

func asin(x *D) w {
	return atan(of(x).quo(of(one).sub(of(x).mul(x).d).sqrt().d))
}

// Acos returns the arc cosine of a number in [-1, 1].
func Acos(x *D) *D {
	return unlessNaN(x, func() *D {
		if x.Cmp(one) == 0 {
			return apd.New(0, 0)
		}
		if Neg(x).Cmp(one) == 0 {
			return of(pi).round()
		}
		return full(of(pi).mul(half).sub(asin(x).d).round())
	})
}

// Atan2 returns the angle of the point (x, y).
func Atan2(y, x *D) *D {
	if isNaN(x) || isNaN(y) {
		return NaN()
	}
	quarter := of(pi).mul(half)
	signed := func(a w) *D {
		d := full(a.round())
		d.Negative = y.Negative
		return d
	}
	switch {
	case x.Form == apd.Infinite && y.Form == apd.Infinite && x.Negative:
		return signed(quarter.mul(apd.New(15, -1)))
	case x.Form == apd.Infinite && y.Form == apd.Infinite:
		return signed(quarter.mul(half))
	case y.IsZero() && !x.Negative || x.Form == apd.Infinite && !x.Negative:
		return &D{Negative: y.Negative}
	case y.IsZero() || x.Form == apd.Infinite:
		return signed(of(pi))
	case x.IsZero() || y.Form == apd.Infinite:
		return signed(quarter)
	}
	a := atan(of(Abs(y)).quo(Abs(x)))
	if x.Negative {
		a = of(pi).sub(a.d)
	}
	return signed(a)
}

// Sinh returns the hyperbolic sine.
func Sinh(x *D) *D {
	if x.Form != apd.Finite || x.IsZero() {
		return settle(new(D).Set(x))
	}
	if a := Abs(x); a.Cmp(apd.New(15000, 0)) > 0 {
		return infinity(x.Negative)
	}
	e := of(x).exp()
	return full(e.sub(of(one).quo(e.d).d).mul(half).round())
}

// Cosh returns the hyperbolic cosine.
func Cosh(x *D) *D {
	switch {
	case isNaN(x):
		return NaN()
	case x.Form == apd.Infinite || Abs(x).Cmp(apd.New(15000, 0)) > 0:
		return infinity(false)
	case x.IsZero():
		return apd.New(1, 0)
	}
	e := of(x).exp()
	return full(e.add(of(one).quo(e.d).d).mul(half).round())
}

// Tanh returns the hyperbolic tangent.
func Tanh(x *D) *D {
	switch {
	case isNaN(x):
		return NaN()
	case x.IsZero():
		return new(D).Set(x)
	case x.Form == apd.Infinite || Abs(x).Cmp(apd.New(100, 0)) > 0:
		return &D{Negative: x.Negative, Coeff: *apd.NewBigInt(1)}
	}
	e := of(x).mul(two).exp()
	return full(e.sub(one).quo(e.add(one).d).round())
}

// Asinh returns the inverse hyperbolic sine.
func Asinh(x *D) *D {
	if x.Form != apd.Finite || x.IsZero() {
		return settle(new(D).Set(x))
	}
	a := of(Abs(x))
	d := full(a.add(a.mul(a.d).add(one).sqrt().d).ln().round())
	d.Negative = x.Negative
	return d
}

// Acosh returns the inverse hyperbolic cosine of a number ≥ 1.
func Acosh(x *D) *D {
	switch {
	case x.Form != apd.Finite:
		return settle(new(D).Set(x))
	case x.Cmp(one) == 0:
		return apd.New(0, 0)
	}
	a := of(x)
	return full(a.add(a.mul(x).sub(one).sqrt().d).ln().round())
}

// Atanh returns the inverse hyperbolic tangent of a number in [-1, 1].
func Atanh(x *D) *D {
	switch {
	case isNaN(x):
		return NaN()
	case x.IsZero():
		return new(D).Set(x)
	case Abs(x).Cmp(one) == 0:
		return infinity(x.Negative)
	}
	return full(of(one).add(x).quo(of(one).sub(x).d).ln().mul(half).round())
}
