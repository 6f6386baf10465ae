package keystring

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/shoaldb/shoal/query/value"
)

// decimalTail is the length of the exact decimal that follows where a binary approximation does not suffice.
const decimalTail = 2 + 15

var (
	bigTen  = big.NewInt(10)
	big2e63 = new(big.Int).Lsh(big.NewInt(1), 63)
)

// appendDecimal writes a decimal as the largest binary number not above its magnitude, in the form doubles have,
// followed by the exact decimal if they differ. Decimals that equal a long or a double thus get the same bytes.
func appendDecimal(dst []byte, v value.Value) []byte {
	if i, ok := v.AsInt64(); ok {
		return appendInt(dst, i)
	}
	coef, exp, class := v.NumberParts()
	switch class {
	case 2:
		return append(dst, tagNaN)
	case 1, -1:
		return appendInfinity(dst, class < 0)
	}
	neg := coef.Sign() < 0
	coef = new(big.Int).Abs(coef)
	if coef.Sign() == 0 {
		return append(dst, tagZero)
	}
	digits := len(coef.Text(10))
	if adj := digits + exp; adj >= 1 && adj <= 19 && exp < 0 {
		scale := pow10(-exp)
		ip, rest := new(big.Int).QuoRem(coef, scale, new(big.Int))
		if ip.Cmp(big2e63) < 0 {
			frac, rem := rest.Lsh(rest, 63).QuoRem(rest, scale, new(big.Int))
			dst = appendMagnitude(dst, ip.Uint64()<<1|1, neg)
			if rem.Sign() == 0 {
				return appendFraction(dst, frac.Uint64()<<1, neg)
			}
			return appendTail(appendFraction(dst, frac.Uint64()<<1|1, neg), coef, digits, exp, neg)
		}
	}
	f, exact := doubleBelow(v, digits+exp)
	if exact {
		return appendFloatBits(dst, math.Float64bits(f)<<1, neg)
	}
	return appendTail(appendFloatBits(dst, math.Float64bits(f)<<1|1, neg), coef, digits, exp, neg)
}

// doubleBelow returns the largest double not above |v|; adj is the decimal position of the first digit.
func doubleBelow(v value.Value, adj int) (f float64, exact bool) {
	if adj < -330 {
		return 0, false
	}
	f = v.AsFloat64()
	neg := f < 0
	f = math.Abs(f)
	if math.IsInf(f, 0) {
		return math.MaxFloat64, false
	}
	signed := f
	if neg {
		signed = -f
	}
	r := value.Compare(value.NewDouble(signed), v)
	if neg {
		r = -r
	}
	if r > 0 {
		f = math.Nextafter(f, 0)
	}
	return f, r == 0
}

func appendTail(dst []byte, coef *big.Int, digits, exp int, neg bool) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint16(dst, uint16(digits+exp+0x4000))
	if digits < 34 {
		coef = new(big.Int).Mul(coef, pow10(34-digits))
	}
	var room [15]byte
	dst = append(dst, coef.FillBytes(room[:])...)
	if neg {
		invert(dst[start:])
	}
	return dst
}

func pow10(n int) *big.Int {
	return new(big.Int).Exp(bigTen, big.NewInt(int64(n)), nil)
}
