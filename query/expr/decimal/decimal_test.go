package decimal

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

func num(t *testing.T, s string) *D {
	t.Helper()
	v, err := value.ParseDecimal128(s)
	if err != nil {
		t.Fatal(err)
	}
	return Of(v)
}

func TestOperations(t *testing.T) {
	for _, c := range []struct {
		name string
		op   func(x, y *D) *D
		x, y string
		want string
	}{
		{"add keeps the smaller exponent", Add, "1.10", "2.2", "3.30"},
		{"add overflows", Add, "9.999999999999999999999999999999999E6144", "9E6144", "Infinity"},
		{"infinities cancel to NaN", Sub, "Infinity", "Infinity", "NaN"},
		{"exact quotients have the preferred exponent", Quo, "10", "4", "2.5"},
		{"inexact quotients fill the digits", Quo, "1", "3", "0.3333333333333333333333333333333333"},
		{"remainders have the sign of the dividend", Rem, "-7.5", "2", "-1.5"},
		{"remainders of far apart numbers", Rem, "1E40", "7", "4"},
		{"remainder by zero", Rem, "1", "0", "NaN"},
		{"power", Pow, "2", "0.5", "1.414213562373095048801688724209698"},
		{"power of a negative number", Pow, "-2", "0.5", "NaN"},
		{"angle in the second quadrant", Atan2, "1", "-1", "2.356194490192344928846982537459627"},
	} {
		if got := Value(c.op(num(t, c.x), num(t, c.y))).DecimalString(); got != c.want {
			t.Errorf("%s: %s, %s: %s, want %s", c.name, c.x, c.y, got, c.want)
		}
	}
}

func TestFunctions(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   func(x *D) *D
		x    string
		want string
	}{
		{"sqrt", Sqrt, "4.00", "2.0"},
		{"exp", Exp, "1", "2.718281828459045235360287471352662"},
		{"exp underflows", Exp, "-20000", "0E-6176"},
		{"ln", Ln, "10", "2.302585092994045684017991454684364"},
		{"log10 of a power", Log10, "1E-20", "-20"},
		{"sin", Sin, "1", "0.8414709848078965066525023216302990"},
		{"cos of many turns", Cos, "1000000", "0.9367521275331447869385325350749188"},
		{"tan", Tan, "-0.5", "-0.5463024898437905132551794657802854"},
		{"asin", Asin, "0.5", "0.5235987755982988730771072305465838"},
		{"acos", Acos, "-0.5", "2.094395102393195492308428922186335"},
		{"atan", Atan, "1", "0.7853981633974483096156608458198757"},
		{"sinh", Sinh, "1", "1.175201193643801456882381850595601"},
		{"asinh", Asinh, "-1", "-0.8813735870195430252326093249797923"},
		{"atanh", Atanh, "0.5", "0.5493061443340548456976226184612629"},
		{"acosh", Acosh, "2", "1.316957896924816708625046347307968"},
	} {
		if got := Value(c.fn(num(t, c.x))).DecimalString(); got != c.want {
			t.Errorf("%s(%s) = %s, want %s", c.name, c.x, got, c.want)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for _, s := range []string{"0", "-0", "0E-6176", "1E-6176", "1E+6111", "1.000000000000000000000000000000000E+6144", "9.999999999999999999999999999999999E+6144",
		"123456789012345678901234567890.1234", "-1.10", "NaN", "-Infinity"} {
		v, err := value.ParseDecimal128(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := Value(Of(v)); got.DecimalString() != v.DecimalString() {
			t.Errorf("%s came back as %s", s, got.DecimalString())
		}
	}
	if got := Value(FromDouble(1.1)).DecimalString(); got != "1.10000000000000" {
		t.Errorf("1.1 is %s", got)
	}
}

func TestQuantize(t *testing.T) {
	for _, c := range []struct {
		x, want string
		exp     int32
		mode    int
	}{
		{"2.5", "2", 0, 0}, {"3.5", "4", 0, 0}, {"-2.5", "-3", 0, 1}, {"-2.9", "-2", 0, 2}, {"1E-6176", "1", 0, 3}, {"-0.1", "-1", 0, 4},
		{"1.1", "1.100", -3, 0}, {"1E40", "NaN", 0, 0}, {"250", "2E+2", 2, 0},
	} {
		modes := []string{"even", "up", "down", "ceil", "floor"}
		r := HalfEven
		switch c.mode {
		case 1:
			r = HalfUp
		case 2:
			r = Down
		case 3:
			r = RoundCeil
		case 4:
			r = Floor
		}
		if got := Value(Quantize(num(t, c.x), c.exp, r)).DecimalString(); got != c.want {
			t.Errorf("%s to 10^%d, %s: %s, want %s", c.x, c.exp, modes[c.mode], got, c.want)
		}
	}
}
