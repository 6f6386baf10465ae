package changestream

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Tokens are in the KeyString format that drivers' users store and that tools take apart, which is not the one of this
// project's indexes. A field is a tag and its payload; documents and arrays end with a zero byte. Fractions have a
// different form after the same tags: a token is only compared with tokens that were made here.
const (
	keyEnd       = 0x04 // after the last field
	keyMinKey    = 0x0A
	keyUndefined = 0x0F
	keyNull      = 0x14
	keyNaN       = 0x1E
	keyNegLarge  = 0x1F
	keyNegInt1   = 0x27 // keyNegInt1-7 has eight bytes
	keyNegSmall  = 0x28
	keyZero      = 0x29
	keyPosSmall  = 0x2A
	keyPosInt1   = 0x2B // keyPosInt1+7 has eight bytes
	keyPosLarge  = 0x33
	keyString    = 0x3C
	keyObject    = 0x46
	keyArray     = 0x50
	keyBinary    = 0x5A
	keyObjectID  = 0x64
	keyFalse     = 0x6E
	keyTrue      = 0x6F
	keyDate      = 0x78
	keyTimestamp = 0x82
	keyRegex     = 0x8C
	keyDBPointer = 0x96
	keyCode      = 0xA0
	keyCodeScope = 0xAA
	keyMaxKey    = 0xF0
)

// typeBits distinguish numbers and strings that sort alike, packed from the lowest bit of each byte.
type typeBits struct {
	b    []byte
	n    int
	used bool // a bit is set
}

func (t *typeBits) add(bit bool) {
	if t.n%8 == 0 {
		t.b = append(t.b, 0)
	}
	if bit {
		t.b[t.n/8] |= 1 << (t.n % 8)
		t.used = true
	}
	t.n++
}

func (t *typeBits) number(kind value.Type) {
	t.add(kind == value.Int64 || kind == value.Decimal128)
	t.add(kind == value.Double || kind == value.Decimal128)
}

// stored returns the form in a token: one byte below 128 as it is, more bytes after their number; nil if all are zero.
func (t *typeBits) stored() []byte {
	switch {
	case !t.used:
		return nil
	case len(t.b) == 1 && t.b[0] < 0x80:
		return t.b
	case len(t.b) < 0x80:
		return append([]byte{0x80 | byte(len(t.b))}, t.b...)
	}
	return append(binary.LittleEndian.AppendUint32([]byte{0x80}, uint32(len(t.b))), t.b...)
}

func appendKey(dst []byte, t *typeBits, v value.Value) []byte {
	switch v.T {
	case value.Int32, value.Int64:
		t.number(v.T)
		return appendKeyInt(dst, v.Int64())
	case value.Double, value.Decimal128:
		t.number(v.T)
		return appendKeyDouble(dst, v.AsFloat64())
	case value.String, value.Symbol:
		t.add(v.T == value.Symbol)
		return appendKeyText(append(dst, keyString), v.Bytes())
	case value.ObjectID:
		return append(append(dst, keyObjectID), v.Bytes()...)
	case value.Boolean:
		if v.Bool() {
			return append(dst, keyTrue)
		}
		return append(dst, keyFalse)
	case value.DateTime:
		return binary.BigEndian.AppendUint64(append(dst, keyDate), uint64(v.DateTime())^1<<63)
	case value.Timestamp:
		return binary.BigEndian.AppendUint64(append(dst, keyTimestamp), v.TimestampU64())
	case value.Null:
		return append(dst, keyNull)
	case value.Undefined, value.Missing:
		return append(dst, keyUndefined)
	case value.Document:
		return appendKeyDocument(append(dst, keyObject), t, v.Doc())
	case value.Array:
		dst = append(dst, keyArray)
		for _, e := range value.Values(v.Doc()) {
			dst = appendKey(dst, t, e)
		}
		return append(dst, 0)
	}
	return appendKeyOther(dst, t, v)
}

func appendKeyOther(dst []byte, t *typeBits, v value.Value) []byte {
	switch v.T {
	case value.Binary:
		b := v.Bytes()
		if dst = append(dst, keyBinary); len(b) < 0xFF {
			dst = append(dst, byte(len(b)))
		} else {
			dst = binary.BigEndian.AppendUint32(append(dst, 0xFF), uint32(len(b)))
		}
		return append(append(dst, v.Subtype()), b...)
	case value.Regex:
		pattern, options := v.Regex()
		return appendKeyText(appendKeyText(append(dst, keyRegex), []byte(pattern)), []byte(options))
	case value.DBPointer:
		ns, id := v.DBPointer()
		dst = binary.BigEndian.AppendUint32(append(dst, keyDBPointer), uint32(len(ns)))
		return append(append(dst, ns...), id[:]...)
	case value.JavaScript:
		return appendKeyText(append(dst, keyCode), v.Bytes())
	case value.CodeWithScope:
		code, scope := v.CodeWithScope()
		return appendKeyDocument(appendKeyText(append(dst, keyCodeScope), []byte(code)), t, scope)
	case value.MinKey:
		return append(dst, keyMinKey)
	}
	return append(dst, keyMaxKey)
}

func appendKeyDocument(dst []byte, t *typeBits, doc []byte) []byte {
	for it := value.Walk(doc); ; {
		k, e, ok := it.Next()
		if !ok {
			return append(dst, 0)
		}
		dst = append(append(append(dst, kinds[e.T]), k...), 0)
		dst = appendKey(dst, t, e)
	}
}

// kinds are the tags by which documents compare their fields before the names. Numbers share one, and so do booleans.
//
// Rejected: the first byte of the field's own key. Making it doubles the work at each level of nesting: a view whose pipeline was
// twenty documents deep took the reader of the oplog minutes.
var kinds = [256]byte{
	value.Int32: keyNaN, value.Int64: keyNaN, value.Double: keyNaN, value.Decimal128: keyNaN, value.Boolean: keyFalse,
	value.String: keyString, value.Symbol: keyString, value.Document: keyObject, value.Array: keyArray, value.Binary: keyBinary,
	value.ObjectID: keyObjectID, value.DateTime: keyDate, value.Timestamp: keyTimestamp, value.Regex: keyRegex, value.DBPointer: keyDBPointer,
	value.JavaScript: keyCode, value.CodeWithScope: keyCodeScope, value.Null: keyNull, value.Undefined: keyUndefined, value.Missing: keyUndefined,
	value.MinKey: keyMinKey, value.MaxKey: keyMaxKey,
}

// appendKeyText writes a zero byte of the text as 00 FF, and ends it with 00.
func appendKeyText(dst, s []byte) []byte {
	for _, c := range s {
		if dst = append(dst, c); c == 0 {
			dst = append(dst, 0xFF)
		}
	}
	return append(dst, 0)
}

func appendKeyInt(dst []byte, i int64) []byte {
	switch {
	case i == 0:
		return append(dst, keyZero)
	case i == math.MinInt64:
		return appendKeyDouble(dst, float64(i))
	case i < 0:
		return appendMagnitude(dst, uint64(-i)<<1, true)
	}
	return appendMagnitude(dst, uint64(i)<<1, false)
}

// appendMagnitude writes a number whose lowest bit reports whether a fraction follows.
func appendMagnitude(dst []byte, u uint64, negative bool) []byte {
	n := (bits.Len64(u) + 7) / 8
	tag, flip := byte(keyPosInt1+n-1), byte(0)
	if negative {
		tag, flip = byte(keyNegInt1-(n-1)), 0xFF
	}
	dst = append(dst, tag)
	for i := n - 1; i >= 0; i-- {
		dst = append(dst, byte(u>>(8*i))^flip)
	}
	return dst
}

func appendKeyDouble(dst []byte, f float64) []byte {
	whole, frac := math.Modf(math.Abs(f))
	switch {
	case f != f:
		return append(dst, keyNaN)
	case f == 0:
		return append(dst, keyZero)
	case math.Abs(f) >= 1<<63:
		return appendFloatBits(dst, keyPosLarge, keyNegLarge, f)
	case whole == 0:
		return appendFloatBits(dst, keyPosSmall, keyNegSmall, f)
	case frac == 0:
		return appendMagnitude(dst, uint64(whole)<<1, f < 0)
	}
	dst = appendMagnitude(dst, uint64(whole)<<1|1, f < 0)
	rest := uint64(frac * (1 << 63))
	if f < 0 {
		rest = ^rest
	}
	return binary.BigEndian.AppendUint64(dst, rest)
}

func appendFloatBits(dst []byte, positive, negative byte, f float64) []byte {
	u := math.Float64bits(math.Abs(f))
	if f < 0 {
		return binary.BigEndian.AppendUint64(append(dst, negative), ^u)
	}
	return binary.BigEndian.AppendUint64(append(dst, positive), u)
}

// keyReader reads the fields of a key; short means that it ended within a field.
type keyReader struct {
	key   []byte
	at    int
	short bool
	wrong byte // the invalid tag
}

func (r *keyReader) take(n int) []byte {
	if n < 0 || n > len(r.key)-r.at {
		r.short, r.at = true, len(r.key)
		return make([]byte, min(max(n, 0), 8))
	}
	r.at += n
	return r.key[r.at-n : r.at]
}

func (r *keyReader) peek() byte {
	if r.at < len(r.key) {
		return r.key[r.at]
	}
	return 0
}

func (r *keyReader) text() {
	for !r.short {
		if r.take(1)[0] == 0 {
			if r.peek() != 0xFF {
				return
			}
			r.at++
		}
	}
}

// maxKeyDepth limits the nesting of documents in a token.
const maxKeyDepth = 200

// skip skips one field.
func (r *keyReader) skip(depth int) {
	if depth > maxKeyDepth {
		r.short = true
	}
	if r.short {
		return
	}
	tag := r.take(1)[0]
	switch {
	case tag > keyNegLarge && tag <= keyNegInt1:
		if b := r.take(keyNegInt1 - int(tag) + 1); b[len(b)-1]&1 == 0 {
			r.take(8)
		}
		return
	case tag >= keyPosInt1 && tag < keyPosLarge:
		if b := r.take(int(tag) - keyPosInt1 + 1); b[len(b)-1]&1 == 1 {
			r.take(8)
		}
		return
	}
	switch tag {
	case keyMinKey, keyUndefined, keyNull, keyNaN, keyZero, keyFalse, keyTrue, keyMaxKey:
	case keyNegLarge, keyNegSmall, keyPosSmall, keyPosLarge, keyDate, keyTimestamp:
		r.take(8)
	case keyString, keyCode:
		r.text()
	case keyRegex:
		r.text()
		r.text()
	case keyObjectID:
		r.take(12)
	case keyBinary:
		n := int(r.take(1)[0])
		if n == 0xFF {
			n = int(binary.BigEndian.Uint32(r.take(4)))
		}
		r.take(n + 1)
	case keyDBPointer:
		r.take(int(binary.BigEndian.Uint32(r.take(4))) + 12)
	case keyObject, keyArray, keyCodeScope:
		r.nested(tag, depth)
	default:
		r.wrong, r.short = tag, true
	}
}

func (r *keyReader) nested(tag byte, depth int) {
	if tag == keyCodeScope {
		r.text()
	}
	for !r.short && r.peek() != 0 {
		if tag != keyArray {
			r.take(1)
			r.text()
		}
		r.skip(depth + 1)
	}
	r.take(1)
}

// integer reads a small number that is not negative.
func (r *keyReader) integer() int {
	switch tag := r.peek(); {
	case tag == keyZero:
		r.at++
		return 0
	case tag >= keyPosInt1 && tag < keyPosInt1+4:
		r.at++
		u := 0
		for _, b := range r.take(int(tag) - keyPosInt1 + 1) {
			u = u<<8 | int(b)
		}
		return u >> 1
	}
	r.skip(0)
	return -1
}

func (r *keyReader) err() error {
	switch {
	case r.wrong != 0:
		return mongoerr.Newf(50811, "Unknown type code %d in the key of a resume token", r.wrong)
	case r.short:
		return mongoerr.New(mongoerr.Overflow, "resume token ended within a field")
	}
	return nil
}
