package value

import (
	"encoding/binary"
	"math"
	"math/big"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ParseDecimal128 reads a decimal from text, as the driver does.
func ParseDecimal128(s string) (Value, error) {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		return Value{}, err
	}
	h, l := d.GetBytes()
	return NewDecimal128(h, l), nil
}

// DecimalString prints a decimal in the specification's form.
func (v Value) DecimalString() string {
	h, l := v.Decimal128()
	return bson.NewDecimal128(h, l).String()
}

// decimalParts splits a finite decimal into coefficient and exponent; class is 0 finite, ±1 infinite, 2 NaN.
func (v Value) decimalParts() (coef *big.Int, exp int, class int) {
	h, l := v.Decimal128()
	d := bson.NewDecimal128(h, l)
	switch {
	case h>>58&0x1F == 0x1F:
		return nil, 0, 2
	case d.IsInf() != 0:
		return nil, 0, d.IsInf()
	}
	c, e, err := d.BigInt()
	if err != nil {
		return new(big.Int), 0, 0
	}
	return c, e, 0
}

func (v Value) decimalIsZero() bool {
	c, _, class := v.decimalParts()
	return class == 0 && c.Sign() == 0
}

func (v Value) decimalInt64() (int64, bool) {
	c, e, class := v.decimalParts()
	if class != 0 {
		return 0, false
	}
	if c.Sign() == 0 {
		return 0, true
	}
	switch {
	case e > 19:
		return 0, false
	case e >= 0:
		c.Mul(c, pow10(e))
	case e < -34:
		return 0, false // a coefficient has at most 34 digits, so there are digits after the point
	default:
		q, r := new(big.Int).QuoRem(c, pow10(-e), new(big.Int))
		if r.Sign() != 0 {
			return 0, false
		}
		c = q
	}
	if !c.IsInt64() {
		return 0, false
	}
	return c.Int64(), true
}

func (v Value) decimalTruncate() (int64, bool) {
	c, e, class := v.decimalParts()
	switch {
	case class != 0 || e > 19 && c.Sign() != 0:
		return 0, false
	case c.Sign() == 0 || e < -34:
		return 0, true
	case e >= 0:
		c.Mul(c, pow10(e))
	default:
		c.Quo(c, pow10(-e))
	}
	return c.Int64(), c.IsInt64()
}

func (v Value) decimalFloat64() float64 {
	f, err := strconv.ParseFloat(v.DecimalString(), 64)
	if err != nil && math.IsInf(f, 0) {
		return f
	}
	return f
}

func pow10(n int) *big.Int {
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
}

// NumberParts returns any finite number as coefficient × 10^exp exactly (a double is a finite decimal too). class:
// 0 finite, -1 and 1 the infinities, 2 NaN.
func (v Value) NumberParts() (coef *big.Int, exp int, class int) {
	switch v.T {
	case Int32, Int64:
		return big.NewInt(int64(v.n)), 0, 0
	case Decimal128:
		return v.decimalParts()
	case Double:
		f := v.Double()
		switch {
		case f != f:
			return nil, 0, 2
		case math.IsInf(f, 1):
			return nil, 0, 1
		case math.IsInf(f, -1):
			return nil, 0, -1
		}
		return doubleParts(f)
	}
	return new(big.Int), 0, 0
}

// doubleParts writes m·2^e as an integer times a power of ten: 2^-k = 5^k · 10^-k.
func doubleParts(f float64) (*big.Int, int, int) {
	frac, e := math.Frexp(f)
	m := big.NewInt(int64(frac * (1 << 53)))
	e -= 53
	if e >= 0 {
		return m.Lsh(m, uint(e)), 0, 0
	}
	for m.Sign() != 0 && m.Bit(0) == 0 && e < 0 {
		m.Rsh(m, 1)
		e++
	}
	if m.Sign() == 0 || e == 0 {
		return m, 0, 0
	}
	return m.Mul(m, new(big.Int).Exp(big.NewInt(5), big.NewInt(int64(-e)), nil)), e, 0
}

func compareDecimals(a, b Value) int {
	ca, ea, xa := a.NumberParts()
	cb, eb, xb := b.NumberParts()
	if xa != 0 || xb != 0 {
		return cmp(classRank(xa), classRank(xb))
	}
	if sa, sb := ca.Sign(), cb.Sign(); sa != sb || sa == 0 {
		return cmp(sa, sb)
	}
	// Same sign: compare magnitudes by number of digits first, so that 1E6000 against 1 builds no huge number.
	da, db := digits(ca)+ea, digits(cb)+eb
	if da != db {
		return cmp(da, db) * ca.Sign()
	}
	if ea > eb {
		ca = new(big.Int).Mul(ca, pow10(ea-eb))
	} else if eb > ea {
		cb = new(big.Int).Mul(cb, pow10(eb-ea))
	}
	return ca.Cmp(cb)
}

func classRank(class int) int {
	switch class {
	case 2:
		return -2
	case -1, 1:
		return class
	}
	return 0
}

func digits(c *big.Int) int {
	n := len(c.Text(10))
	if c.Sign() < 0 {
		n--
	}
	return n
}

// AppendGroupKey appends bytes that are equal exactly if Compare considers two values equal; $group, $addToSet and
// distinct hash by them. Their order has no meaning.
func AppendGroupKey(dst []byte, v Value, c Collator) []byte {
	dst = append(dst, byte(canonical(v.T)+1))
	switch v.T {
	case Int32, Int64, Double, Decimal128:
		return appendNumberKey(dst, v)
	case String, Symbol:
		b := v.b
		if c != nil {
			b = c.Key(nil, b)
		}
		dst = binary.AppendUvarint(dst, uint64(len(b)))
		return append(dst, b...)
	case Document:
		for it := Walk(v.b); ; {
			k, e, ok := it.Next()
			if !ok {
				return append(dst, 0xFF)
			}
			dst = append(append(append(dst, 1), k...), 0)
			dst = AppendGroupKey(dst, e, c)
		}
	case Array:
		for it := Walk(v.b); ; {
			_, e, ok := it.Next()
			if !ok {
				return append(dst, 0xFF)
			}
			dst = AppendGroupKey(append(dst, 1), e, c)
		}
	case Boolean, DateTime, Timestamp:
		return binary.BigEndian.AppendUint64(dst, v.n)
	case Binary:
		dst = append(dst, byte(v.n))
		dst = binary.AppendUvarint(dst, uint64(len(v.b)))
		return append(dst, v.b...)
	case ObjectID:
		return append(dst, v.b...)
	case CodeWithScope:
		code, scope := v.CodeWithScope()
		dst = binary.AppendUvarint(dst, uint64(len(code)))
		dst = append(dst, code...)
		return AppendGroupKey(dst, NewDocument(scope), c)
	case Regex, DBPointer, JavaScript:
		dst = binary.AppendUvarint(dst, uint64(len(v.b)))
		return append(dst, v.b...)
	}
	return dst
}

func appendNumberKey(dst []byte, v Value) []byte {
	if i, ok := v.AsInt64(); ok {
		return binary.BigEndian.AppendUint64(append(dst, 'i'), uint64(i))
	}
	if v.T == Double {
		f := v.Double()
		if f != f {
			return append(dst, 'n')
		}
		return binary.BigEndian.AppendUint64(append(dst, 'd'), math.Float64bits(f))
	}
	c, e, class := v.decimalParts()
	switch class {
	case 2:
		return append(dst, 'n')
	case 1, -1:
		return binary.BigEndian.AppendUint64(append(dst, 'd'), math.Float64bits(math.Inf(class)))
	}
	f := v.decimalFloat64()
	if !math.IsInf(f, 0) && compareDecimals(v, NewDouble(f)) == 0 {
		return binary.BigEndian.AppendUint64(append(dst, 'd'), math.Float64bits(f))
	}
	q, r := new(big.Int), new(big.Int) // strip trailing zeros: 1.10 and 1.1 are one number
	for ten := big.NewInt(10); ; {
		if q.QuoRem(c, ten, r); r.Sign() != 0 {
			break
		}
		c.Set(q)
		e++
	}
	return append(append(append(dst, 'x'), c.Text(36)...), 'e', byte(e>>8), byte(e))
}
