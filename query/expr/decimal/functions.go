package decimal

import (
	"github.com/cockroachdb/apd/v3"
)

// wide is the precision of functions before the result is rounded to the format's.
var wide = apd.Context{Precision: 60, MaxExponent: 100000, MinExponent: -100000, Rounding: apd.RoundHalfEven}

var (
	one  = apd.New(1, 0)
	two  = apd.New(2, 0)
	half = apd.New(5, -1)
	pi   = mustParse("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
)

func mustParse(s string) *D {
	d, _, err := apd.NewFromString(s)
	if err != nil {
		panic(err) // a constant of this file
	}
	return d
}

// w is a number computed with wide precision; its methods chain.
type w struct{ d *D }

func of(d *D) w { return w{d} }
func (x w) do(op func(d, x, y *D) (apd.Condition, error), y *D) w {
	d := new(D)
	_, _ = op(d, x.d, y)
	return w{d}
}
func (x w) add(y *D) w { return x.do(wide.Add, y) }
func (x w) sub(y *D) w { return x.do(wide.Sub, y) }
func (x w) mul(y *D) w { return x.do(wide.Mul, y) }
func (x w) quo(y *D) w { return x.do(wide.Quo, y) }
func (x w) neg() w {
	return w{&D{Form: x.d.Form, Negative: !x.d.Negative, Exponent: x.d.Exponent, Coeff: x.d.Coeff}}
}
func (x w) exp() w  { d := new(D); _, _ = wide.Exp(d, x.d); return w{d} }
func (x w) ln() w   { d := new(D); _, _ = wide.Ln(d, x.d); return w{d} }
func (x w) sqrt() w { d := new(D); _, _ = wide.Sqrt(d, x.d); return w{d} }

// round returns the format's number: 34 digits.
func (x w) round() *D {
	if isNaN(x.d) {
		return NaN()
	}
	d := new(D)
	_, _ = ctx.Round(d, x.d)
	return d
}

// full pads a result to 34 digits, for functions whose result counts as inexact even if it is exact.
func full(d *D) *D {
	if d.Form != apd.Finite || d.IsZero() {
		return d
	}
	n := int32(digits - d.NumDigits())
	if n <= 0 || d.Exponent-n < minExp {
		return d
	}
	d.Coeff.Mul(&d.Coeff, tenTo(int64(n)))
	d.Exponent -= n
	return d
}

func infinity(neg bool) *D { return &D{Form: apd.Infinite, Negative: neg} }

// Exp is e^x.
func Exp(x *D) *D {
	switch {
	case isNaN(x):
		return NaN()
	case x.Form == apd.Infinite && x.Negative:
		return apd.New(0, 0)
	case x.Form == apd.Infinite:
		return infinity(false)
	case x.IsZero() || x.NumDigits()+int64(x.Exponent) < -digits-1:
		return apd.New(1, 0)
	case x.Cmp(apd.New(15000, 0)) > 0:
		return infinity(false)
	case x.Cmp(apd.New(-15000, 0)) < 0:
		return apd.New(0, minExp)
	}
	return full(of(x).exp().round())
}

// Ln returns the natural logarithm.
func Ln(x *D) *D {
	switch {
	case isNaN(x) || x.Negative && !x.IsZero():
		return NaN()
	case x.IsZero():
		return infinity(true)
	case x.Form == apd.Infinite:
		return infinity(false)
	case x.Cmp(one) == 0:
		return apd.New(0, 0)
	}
	return full(of(x).ln().round())
}

// Log10 returns the logarithm to base ten; exact for powers of ten.
func Log10(x *D) *D {
	if isNaN(x) || x.Form != apd.Finite || x.IsZero() || x.Negative {
		return Ln(x)
	}
	r, _ := new(D).Reduce(x)
	if r.Coeff.Cmp(apd.NewBigInt(1)) == 0 {
		return apd.New(int64(r.Exponent), 0)
	}
	d := new(D)
	_, _ = wide.Log10(d, x)
	r = w{d}.round()
	if whole, _ := integral(r); whole {
		return Quantize(r, 0, HalfEven)
	}
	return full(r)
}

// largest is the limit of Pow: just below the format's own, since the function is computed with logarithms.
var largest = mustParse("9.99999999999999999999999999999999E6144")

// Pow is x^y.
func Pow(x, y *D) *D {
	switch {
	case y.IsZero():
		return apd.New(1, 0)
	case isNaN(x) || isNaN(y):
		return NaN()
	case x.Cmp(one) == 0:
		return apd.New(1, 0)
	}
	whole, odd := integral(y)
	neg := x.Negative && odd
	a := Abs(x)
	switch {
	case y.Form == apd.Infinite:
		if c := a.Cmp(one); c == 0 {
			return apd.New(1, 0)
		} else if (c > 0) == !y.Negative {
			return infinity(false)
		}
		return apd.New(0, minExp)
	case a.IsZero() || a.Form == apd.Infinite:
		if (a.Form == apd.Infinite) == !y.Negative {
			return infinity(neg)
		}
		return apd.New(0, minExp)
	case x.Negative && !whole:
		return NaN()
	}
	e := of(a).ln().mul(y)
	if e.d.Cmp(apd.New(15000, 0)) > 0 {
		return infinity(neg)
	}
	if e.d.Cmp(apd.New(-15000, 0)) < 0 {
		return apd.New(0, minExp)
	}
	d := full(e.exp().round())
	if d.Cmp(largest) > 0 {
		return infinity(neg)
	}
	d.Negative = neg
	return d
}

// integral reports whether a number is an integer, and odd.
func integral(y *D) (whole, odd bool) {
	if y.Form != apd.Finite {
		return false, false
	}
	r, _ := new(D).Reduce(y)
	if r.Exponent < 0 {
		return false, false
	}
	return true, r.Exponent == 0 && r.Coeff.Bit(0) == 1
}

// Sigmoid is 1/(1+e^-x).
func Sigmoid(x *D) *D {
	return Quo(one, Add(one, Exp(Neg(x))))
}

// ToRadians converts degrees.
func ToRadians(x *D) *D {
	if x.Form != apd.Finite {
		return settle(new(D).Set(x))
	}
	return of(x).mul(pi).quo(apd.New(180, 0)).round()
}

// ToDegrees converts radians.
func ToDegrees(x *D) *D {
	if x.Form != apd.Finite {
		return settle(new(D).Set(x))
	}
	return of(x).mul(apd.New(180, 0)).quo(pi).round()
}
