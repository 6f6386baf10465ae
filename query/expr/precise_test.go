package expr

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
)

// TestPrecise compares the functions of doubles with those of decimals, which have twice the digits: the nearest double is
// the answer.
func TestPrecise(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 7))
	between := func(lo, hi float64) func() float64 {
		return func() float64 { return lo + (hi-lo)*r.Float64() }
	}
	for _, c := range []struct {
		name   string
		double func(float64) float64
		dec    func(*decimal.D) *decimal.D
		arg    func() float64
	}{
		{"sin", preciseSin, decimal.Sin, between(-50, 50)}, {"cos", preciseCos, decimal.Cos, between(-50, 50)}, {"tan", preciseTan, decimal.Tan, between(-50, 50)},
		{"asin", preciseAsin, decimal.Asin, between(-1, 1)}, {"acos", preciseAcos, decimal.Acos, between(-1, 1)}, {"atan", preciseAtan, decimal.Atan, between(-20, 20)},
		{"exp", preciseExp, decimal.Exp, between(-30, 30)}, {"ln", preciseLn, decimal.Ln, between(0.001, 500)},
		{"sinh", preciseSinh, decimal.Sinh, between(0.31, 20)}, {"cosh", preciseCosh, decimal.Cosh, between(-20, 20)}, {"tanh", preciseTanh, decimal.Tanh, between(0.31, 15)},
	} {
		wrong := 0
		for range 300 {
			x := c.arg()
			exact, _ := value.ParseDecimal128(new(big.Float).SetFloat64(x).Text('g', 34))
			want := decimal.Value(c.dec(decimal.Of(exact))).AsFloat64()
			got := c.double(x)
			if math.Abs(got-want) > 1.5*math.Abs(math.Nextafter(want, math.Inf(1))-want) {
				t.Fatalf("%s(%v): %v, want %v", c.name, x, got, want)
			}
			if got != want {
				wrong++
			}
		}
		if wrong > 6 { // the argument as a decimal is cut at 34 digits
			t.Errorf("%s: %d of 300 are not the nearest double", c.name, wrong)
		}
	}
}
