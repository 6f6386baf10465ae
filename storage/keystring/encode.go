package keystring

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/shoaldb/shoal/query/value"
)

// The tag that starts each field. There are gaps so that kinds can be added without rebuilding indexes.
const (
	tagEnd       = 0x00 // closes documents and arrays
	tagMinKey    = 0x0A
	tagUndefined = 0x0F
	tagNull      = 0x14
	tagNaN       = 0x1E
	tagNegInf    = 0x1F
	tagNegLarge  = 0x20
	tagNegInt8   = 0x21 // eight bytes; tagNegInt8+7 has one
	tagNegSmall  = 0x29
	tagZero      = 0x2A
	tagPosSmall  = 0x2B
	tagPosInt1   = 0x2C // one byte; tagPosInt1+7 has eight
	tagPosLarge  = 0x34
	tagPosInf    = 0x35
	tagString    = 0x3C
	tagDocument  = 0x46
	tagArray     = 0x50
	tagBinary    = 0x5A
	tagObjectID  = 0x64
	tagFalse     = 0x6E
	tagTrue      = 0x6F
	tagDate      = 0x78
	tagTimestamp = 0x82
	tagRegex     = 0x8C
	tagDBPointer = 0x96
	tagCode      = 0xA0
	tagCodeScope = 0xAA
	tagMaxKey    = 0xF0
)

// Type bits, one byte per number, string or undefined.
const (
	bitsInt32     = 0
	bitsDouble    = 1
	bitsInt64     = 2
	bitsDecimal   = 3 // sixteen bytes follow
	bitsNegZero   = 4
	bitsNaN       = 5 // eight bytes follow: a NaN that is not canonicalNaN
	bitsString    = 0
	bitsSymbol    = 1
	bitsUndefined = 0
	bitsMissing   = 1
)

// canonicalNaN is the NaN that clients send.
const canonicalNaN = 0x7FF8000000000000

// MaxFields is the largest number of fields that an Ordering can describe.
const MaxFields = 64

// Ordering holds the directions of a key's fields: bit i set means that field i is descending.
type Ordering uint64

// Descending reports whether field i is descending.
func (o Ordering) Descending(i int) bool { return o>>uint(i)&1 != 0 }

// Append adds the encoding of one field to key and its type bits to tb. c, if not nil, replaces strings by their
// collation keys. Neither append allocates while the slices have room.
func Append(key, tb []byte, v value.Value, desc bool, c value.Collator) (k, t []byte) {
	start := len(key)
	key, tb = appendValue(key, tb, v, c)
	if desc {
		invert(key[start:])
	}
	return key, tb
}

// AppendKey appends the encoding of one field without type bits, as for bounds.
func AppendKey(key []byte, v value.Value, desc bool, c value.Collator) []byte {
	var room [64]byte
	key, _ = Append(key, room[:0], v, desc, c)
	return key
}

// AppendLong is AppendKey of an ascending 64-bit integer. The key may stay on the caller's stack, where AppendKey's may not.
func AppendLong(key []byte, i int64) []byte { return appendInt(key, i) }

// TrimTypeBits removes trailing zeros, which a reader assumes. It is applied once, when the key is complete.
func TrimTypeBits(tb []byte) []byte {
	for len(tb) > 0 && tb[len(tb)-1] == 0 {
		tb = tb[:len(tb)-1]
	}
	return tb
}

// AtOrBefore and After turn an encoded prefix into an end of a half-open byte range: keys that start with the
// prefix are at or after AtOrBefore(prefix) and before After(prefix). AtOrBefore is the prefix itself.
func AtOrBefore(prefix []byte) []byte { return prefix }

// After returns the first position after every key that starts with the prefix.
func After(prefix []byte) []byte { return append(prefix, 0xFF) }

func invert(b []byte) {
	for len(b) >= 8 {
		binary.NativeEndian.PutUint64(b, ^binary.NativeEndian.Uint64(b))
		b = b[8:]
	}
	for i := range b {
		b[i] = ^b[i]
	}
}

func appendValue(dst, tb []byte, v value.Value, c value.Collator) ([]byte, []byte) {
	switch v.T {
	case value.Int32:
		return appendInt(dst, v.Int64()), append(tb, bitsInt32)
	case value.Int64:
		return appendInt(dst, v.Int64()), append(tb, bitsInt64)
	case value.ObjectID:
		return append(append(dst, tagObjectID), v.Bytes()...), tb
	case value.String, value.Symbol:
		b, bit := v.Bytes(), byte(bitsString)
		if v.T == value.Symbol {
			bit = bitsSymbol
		}
		if c != nil {
			b = c.Key(nil, b)
		}
		return appendText(append(dst, tagString), b), append(tb, bit)
	case value.Double:
		return appendDouble(dst, tb, v.Double())
	case value.Decimal128:
		tb = append(append(tb, bitsDecimal), v.Bytes()...)
		return appendDecimal(dst, v), tb
	case value.DateTime:
		return binary.BigEndian.AppendUint64(append(dst, tagDate), uint64(v.DateTime())^1<<63), tb
	case value.Timestamp:
		return binary.BigEndian.AppendUint64(append(dst, tagTimestamp), v.TimestampU64()), tb
	case value.Boolean:
		if v.Bool() {
			return append(dst, tagTrue), tb
		}
		return append(dst, tagFalse), tb
	case value.Null:
		return append(dst, tagNull), tb
	case value.Undefined:
		return append(dst, tagUndefined), append(tb, bitsUndefined)
	case value.Missing:
		return append(dst, tagUndefined), append(tb, bitsMissing)
	}
	return appendOther(dst, tb, v, c)
}

// appendOther encodes the types that are rare in keys.
func appendOther(dst, tb []byte, v value.Value, c value.Collator) ([]byte, []byte) {
	switch v.T {
	case value.Document:
		return appendDocument(append(dst, tagDocument), tb, v.Doc(), c)
	case value.Array:
		dst = append(dst, tagArray)
		for it := value.Walk(v.Doc()); ; {
			_, e, ok := it.Next()
			if !ok {
				return append(dst, tagEnd), tb
			}
			dst, tb = appendValue(dst, tb, e, c)
		}
	case value.Binary:
		dst = appendLength(append(dst, tagBinary), v.BinarySize())
		dst = append(dst, v.Subtype())
		for range v.BinarySize() - len(v.Bytes()) {
			dst = append(dst, 0) // where subtype 2 has its inner length: the key is as long as its length says
		}
		return append(dst, v.Bytes()...), tb
	case value.Regex:
		return appendText(append(dst, tagRegex), v.Bytes()), tb
	case value.DBPointer:
		b := v.Bytes()
		return append(appendLength(append(dst, tagDBPointer), len(b)), b...), tb
	case value.JavaScript:
		return appendText(append(dst, tagCode), v.Bytes()), tb
	case value.CodeWithScope:
		code, scope := v.CodeWithScope()
		dst = appendText(append(dst, tagCodeScope), []byte(code))
		return appendDocument(dst, tb, scope, c)
	case value.MinKey:
		return append(dst, tagMinKey), tb
	}
	return append(dst, tagMaxKey), tb
}

// appendDocument puts the kind of each value before its name: documents compare in that order.
func appendDocument(dst, tb []byte, doc []byte, c value.Collator) ([]byte, []byte) {
	for it := value.Walk(doc); ; {
		k, e, ok := it.Next()
		if !ok {
			return append(dst, tagEnd), tb
		}
		dst = appendText(append(dst, kindTag(e.T)), k)
		dst, tb = appendValue(dst, tb, e, c)
	}
}

// kindTag returns one tag for all types that compare with each other.
func kindTag(t value.Type) byte {
	switch t {
	case value.Int32, value.Int64, value.Double, value.Decimal128:
		return tagZero
	case value.String, value.Symbol:
		return tagString
	case value.Boolean:
		return tagFalse
	case value.Undefined, value.Missing:
		return tagUndefined
	case value.Null:
		return tagNull
	case value.Document:
		return tagDocument
	case value.Array:
		return tagArray
	case value.Binary:
		return tagBinary
	case value.ObjectID:
		return tagObjectID
	case value.DateTime:
		return tagDate
	case value.Timestamp:
		return tagTimestamp
	case value.Regex:
		return tagRegex
	case value.DBPointer:
		return tagDBPointer
	case value.JavaScript:
		return tagCode
	case value.CodeWithScope:
		return tagCodeScope
	case value.MinKey:
		return tagMinKey
	}
	return tagMaxKey
}

// appendText escapes the two lowest bytes so that the terminator occurs nowhere else.
func appendText(dst, s []byte) []byte {
	from := 0
	for i, ch := range s {
		if ch <= 1 {
			dst = append(append(dst, s[from:i]...), 1, ch+1)
			from = i + 1
		}
	}
	return append(append(dst, s[from:]...), 0)
}

// appendLength encodes lengths in order: one byte up to 254, five above.
func appendLength(dst []byte, n int) []byte {
	if n < 0xFF {
		return append(dst, byte(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, 0xFF), uint32(n))
}

func appendInt(dst []byte, i int64) []byte {
	switch {
	case i > 0:
		return appendMagnitude(dst, uint64(i)<<1, false)
	case i == 0:
		return append(dst, tagZero)
	case i == math.MinInt64:
		return appendFloatBits(dst, math.Float64bits(-float64(i))<<1, true)
	}
	return appendMagnitude(dst, uint64(-i)<<1, true)
}

// appendMagnitude writes the integer part with its "more" bit in as few bytes as hold it.
func appendMagnitude(dst []byte, u uint64, neg bool) []byte {
	n := (bits.Len64(u) + 7) / 8
	tag := byte(tagPosInt1 + n - 1)
	if neg {
		tag, u = byte(tagNegInt8+8-n), ^u
	}
	dst = append(dst, tag)
	u <<= uint(8-n) * 8
	for ; n > 0; n-- {
		dst = append(dst, byte(u>>56))
		u <<= 8
	}
	return dst
}

// appendFloatBits encodes a magnitude below 1 or from 2^63 on; u is the double's bits and the "more" bit.
func appendFloatBits(dst []byte, u uint64, neg bool) []byte {
	large := u>>1 >= math.Float64bits(1)
	tag := byte(tagPosSmall)
	switch {
	case large && neg:
		tag = tagNegLarge
	case large:
		tag = tagPosLarge
	case neg:
		tag = tagNegSmall
	}
	if neg {
		u = ^u
	}
	return binary.BigEndian.AppendUint64(append(dst, tag), u)
}

func appendDouble(dst, tb []byte, f float64) ([]byte, []byte) {
	neg := f < 0
	a := math.Abs(f)
	switch {
	case f == 0:
		if math.Signbit(f) {
			return append(dst, tagZero), append(tb, bitsNegZero)
		}
		return append(dst, tagZero), append(tb, bitsDouble)
	case f != f:
		if u := math.Float64bits(f); u != canonicalNaN {
			return append(dst, tagNaN), binary.BigEndian.AppendUint64(append(tb, bitsNaN), u)
		}
		return append(dst, tagNaN), append(tb, bitsDouble)
	case a > math.MaxFloat64:
		return appendInfinity(dst, neg), append(tb, bitsDouble)
	case a < 1 || a >= 1<<63:
		return appendFloatBits(dst, math.Float64bits(a)<<1, neg), append(tb, bitsDouble)
	}
	ip := uint64(a)
	if frac := a - float64(ip); frac != 0 {
		// At least one bit of the 53 is in the integer part, so the fraction has 52 at most and is exact here.
		return appendFraction(appendMagnitude(dst, ip<<1|1, neg), uint64(frac*(1<<63))<<1, neg), append(tb, bitsDouble)
	}
	return appendMagnitude(dst, ip<<1, neg), append(tb, bitsDouble)
}

func appendInfinity(dst []byte, neg bool) []byte {
	if neg {
		return append(dst, tagNegInf)
	}
	return append(dst, tagPosInf)
}

func appendFraction(dst []byte, u uint64, neg bool) []byte {
	if neg {
		u = ^u
	}
	return binary.BigEndian.AppendUint64(dst, u)
}
