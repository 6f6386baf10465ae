package match

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Bits is the bit mask of $bitsAllSet and the related operators.
type Bits struct {
	Positions []uint32 // ascending, without duplicates
	mask      uint64   // positions below 64
}

func bitsOp(k Kind) operator {
	return func(p *parser, path, name string, v value.Value, _ []byte) (*Node, error) {
		b, err := parseBits(path, name, v)
		if err != nil {
			return nil, err
		}
		n := p.leaf(k, path)
		n.Bits = b
		return n, nil
	}
}

func parseBits(path, name string, v value.Value) (*Bits, error) {
	b := &Bits{}
	switch {
	case v.T == value.Array:
		if err := b.positions(v.Doc()); err != nil {
			return nil, err
		}
	case v.T.Numeric():
		if err := b.number(name, v); err != nil {
			return nil, err
		}
	case v.T == value.Binary:
		for i, c := range v.Bytes() {
			for bit := 0; bit < 8; bit++ {
				if c&(1<<bit) != 0 {
					b.Positions = append(b.Positions, uint32(i*8+bit))
				}
			}
		}
	default:
		return nil, badValue("%s takes an Array, a number, or a BinData but received: %s", path, value.ShowElement(name, v))
	}
	slices.Sort(b.Positions)
	b.Positions = slices.Compact(b.Positions)
	for _, pos := range b.Positions {
		if pos < 64 {
			b.mask |= 1 << pos
		} else {
			b.mask |= 1 << 63
		}
	}
	return b, nil
}

func (b *Bits) positions(arr []byte) error {
	for it := value.Walk(arr); ; {
		k, e, ok := it.Next()
		if !ok {
			return nil
		}
		if !e.T.Numeric() {
			return badValue("Failed to parse bit position. Expected a number in: %s", value.ShowElement(string(k), e))
		}
		i, exact := e.AsInt64()
		switch {
		case !exact:
			return badValue("Failed to parse bit position. Expected an integer: %s", value.ShowElement(string(k), e))
		case i < 0:
			return badValue("Failed to parse bit position. Expected a non-negative number in: %s", value.ShowElement(string(k), e))
		case i > math.MaxInt32:
			return badValue("Failed to parse bit position. Cannot represent as a 32-bit integer: %s", value.ShowElement(string(k), e))
		}
		b.Positions = append(b.Positions, uint32(i))
	}
}

// number reads a mask. The errors name the operator, not the path.
func (b *Bits) number(name string, v value.Value) error {
	shown := value.ShowElement(name, v)
	mask, exact := v.AsInt64()
	f := v.AsFloat64()
	switch {
	case exact && mask >= 0:
	case exact:
		return mongoerr.Newf(mongoerr.FailedToParse, "Expected a non-negative number in: %s", shown)
	case v.T == value.Double && f != f:
		return mongoerr.Newf(mongoerr.FailedToParse, "Expected an integer, but found NaN in: %s", shown)
	case v.T == value.Decimal128 || f < math.MinInt64 || f >= math.MaxInt64:
		return mongoerr.Newf(mongoerr.FailedToParse, "Cannot represent as a 64-bit integer: %s", shown)
	default:
		return mongoerr.Newf(mongoerr.FailedToParse, "Expected an integer: %s", shown)
	}
	for i := uint32(0); i < 64; i++ {
		if mask&(1<<i) != 0 {
			b.Positions = append(b.Positions, i)
		}
	}
	return nil
}

// test runs a Bits predicate on a number or binary value.
func (b *Bits) test(k Kind, v value.Value) bool {
	if v.T == value.Binary {
		data := v.Bytes()
		if v.Subtype() == 2 { // the old subtype has its length before the bytes, and the bits are read from there
			data = append(binary.LittleEndian.AppendUint32(nil, uint32(len(data))), data...)
		}
		return b.testBinary(k, data)
	}
	if !v.T.Numeric() {
		return false
	}
	i, exact := v.AsInt64()
	if !exact {
		return false
	}
	return b.testWord(k, uint64(i)) // positions above 63 read the sign: b.mask folds them there
}

func (b *Bits) testBinary(k Kind, data []byte) bool {
	if len(data) >= 8 && len(b.Positions) > 0 && b.Positions[len(b.Positions)-1] < 64 {
		return b.testWord(k, binary.LittleEndian.Uint64(data))
	}
	any, all := false, true
	for _, pos := range b.Positions {
		at := int(pos / 8)
		if at < len(data) && data[at]&(1<<(pos%8)) != 0 {
			any = true
		} else {
			all = false
		}
	}
	switch k {
	case BitsAllSet:
		return all
	case BitsAllClear:
		return !any
	case BitsAnySet:
		return any
	}
	return !all
}

func (b *Bits) testWord(k Kind, w uint64) bool {
	set := w & b.mask
	switch k {
	case BitsAllSet:
		return set == b.mask
	case BitsAllClear:
		return set == 0
	case BitsAnySet:
		return set != 0
	}
	return set != b.mask
}
