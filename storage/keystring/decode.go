package keystring

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/shoaldb/shoal/query/value"
)

// Decoder decodes the fields of a key. The values that it returns borrow from it and are valid until the next
// Reset.
type Decoder struct {
	key, tb []byte
	ord     Ordering
	field   int
	inv     byte   // 0xFF while the current field is descending
	arena   []byte // payloads that cannot be borrowed from the key
	depth   int
	bad     bool
}

// maxDepth exceeds the nesting of any stored document; deeper nesting can only be corruption and is not followed.
const maxDepth = 256

// Reset starts decoding a key (a RecordId may follow it) with its type bits.
func (d *Decoder) Reset(key, tb []byte, ord Ordering) {
	d.key, d.tb, d.ord, d.field, d.depth, d.bad = key, tb, ord, 0, 0, false
	d.arena = d.arena[:0]
}

// Next returns the next field; ok is false if the bytes are not a valid field.
func (d *Decoder) Next() (v value.Value, ok bool) {
	d.inv = 0
	if d.ord.Descending(d.field) {
		d.inv = 0xFF
	}
	d.field++
	v = d.value(d.byte())
	return v, !d.bad
}

// Rest returns what has not been read: after the last field, the RecordId.
func (d *Decoder) Rest() []byte { return d.key }

// Decode decodes n fields and returns copies of them.
func Decode(key, tb []byte, ord Ordering, n int) ([]value.Value, bool) {
	var d Decoder
	d.Reset(key, tb, ord)
	out := make([]value.Value, 0, n)
	for range n {
		v, ok := d.Next()
		if !ok {
			return nil, false
		}
		out = append(out, v.Clone())
	}
	return out, true
}

func (d *Decoder) byte() byte {
	if len(d.key) == 0 {
		d.bad = true
		return 0
	}
	c := d.key[0] ^ d.inv
	d.key = d.key[1:]
	return c
}

// take returns the next n bytes, with inversion undone.
func (d *Decoder) take(n int) []byte {
	if n < 0 || n > len(d.key) {
		d.bad = true
		return nil
	}
	b := d.key[:n:n]
	d.key = d.key[n:]
	if d.inv == 0 {
		return b
	}
	start := len(d.arena)
	d.arena = append(d.arena, b...)
	b = d.arena[start:len(d.arena):len(d.arena)]
	invert(b)
	return b
}

func (d *Decoder) uint64() uint64 {
	if len(d.key) < 8 {
		d.bad = true
		return 0
	}
	u := binary.BigEndian.Uint64(d.key)
	d.key = d.key[8:]
	if d.inv != 0 {
		u = ^u
	}
	return u
}

func (d *Decoder) text() []byte {
	end := bytes.IndexByte(d.key, d.inv)
	if end < 0 {
		d.bad = true
		return nil
	}
	b := d.key[:end:end]
	d.key = d.key[end+1:]
	esc := 1 ^ d.inv
	if d.inv == 0 && bytes.IndexByte(b, esc) < 0 {
		return b
	}
	start := len(d.arena)
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c == esc {
			if i++; i == len(b) {
				d.bad = true
				return nil
			}
			d.arena = append(d.arena, (b[i]^d.inv)-1)
			continue
		}
		d.arena = append(d.arena, c^d.inv)
	}
	return d.arena[start:len(d.arena):len(d.arena)]
}

func (d *Decoder) length() int {
	if n := d.byte(); n < 0xFF {
		return int(n)
	}
	b := d.take(4)
	if d.bad {
		return 0
	}
	return int(binary.BigEndian.Uint32(b))
}

func (d *Decoder) typeBits() byte {
	if len(d.tb) == 0 {
		return 0
	}
	b := d.tb[0]
	d.tb = d.tb[1:]
	return b
}

func (d *Decoder) value(tag byte) value.Value {
	if tag >= tagNaN && tag <= tagPosInf {
		return d.number(tag)
	}
	if tag == tagDocument || tag == tagArray || tag == tagCodeScope {
		return d.nested(tag)
	}
	switch tag {
	case tagMinKey:
		return value.NewMinKey()
	case tagUndefined:
		if d.typeBits() == bitsMissing {
			return value.Value{}
		}
		return value.NewUndefined()
	case tagNull:
		return value.NewNull()
	case tagString:
		if d.typeBits() == bitsSymbol {
			return value.NewSymbol(d.text())
		}
		return value.NewStringBytes(d.text())
	case tagBinary:
		n := d.length()
		sub := d.byte()
		b := d.take(n)
		if sub == 2 && len(b) >= 4 {
			b = b[4:] // zeros in place of its inner length
		}
		return value.NewBinary(sub, b)
	case tagObjectID:
		return d.fixed(value.ObjectID, 12)
	case tagFalse, tagTrue:
		return value.NewBool(tag == tagTrue)
	case tagDate:
		return value.NewDateTime(int64(d.uint64() ^ 1<<63))
	case tagTimestamp:
		return value.NewTimestampU64(d.uint64())
	case tagRegex:
		return d.payload(value.Regex, d.text())
	case tagDBPointer:
		return d.payload(value.DBPointer, d.take(d.length()))
	case tagCode:
		return value.NewJavaScript(d.text())
	case tagMaxKey:
		return value.NewMaxKey()
	}
	d.bad = true
	return value.Value{}
}

func (d *Decoder) nested(tag byte) value.Value {
	if d.depth++; d.depth > maxDepth {
		d.bad = true
		return value.Value{}
	}
	defer func() { d.depth-- }()
	switch tag {
	case tagDocument:
		return value.NewDocument(d.document())
	case tagArray:
		return value.NewArray(d.array())
	}
	code := string(d.text())
	return value.NewCodeWithScope(code, d.document())
}

func (d *Decoder) fixed(t value.Type, n int) value.Value { return d.payload(t, d.take(n)) }

func (d *Decoder) payload(t value.Type, b []byte) value.Value {
	if d.bad {
		return value.Value{}
	}
	v, ok := value.FromElement(t, b)
	if !ok {
		d.bad = true
	}
	return v
}

func (d *Decoder) document() []byte {
	dst, mark := value.Begin(nil)
	for {
		if d.byte() == tagEnd || d.bad { // the kind of the following value; its own tag is more specific
			return value.End(dst, mark)
		}
		name := append([]byte(nil), d.text()...)
		dst = value.AppendKeyBytes(dst, name, d.value(d.byte()))
	}
}

func (d *Decoder) array() []byte {
	dst, mark := value.Begin(nil)
	for i := 0; ; i++ {
		tag := d.byte()
		if tag == tagEnd || d.bad {
			return value.End(dst, mark)
		}
		v := d.value(tag)
		if v.T == value.Missing {
			v = value.NewUndefined()
		}
		dst = value.AppendIndex(dst, i, v)
	}
}

var zeros [16]byte

func (d *Decoder) number(tag byte) value.Value {
	kind := d.typeBits()
	if kind == bitsDecimal {
		d.skipNumber(tag)
		start := len(d.arena)
		d.arena = append(d.arena, zeros[:]...) // trailing zeros may have been trimmed
		raw := d.arena[start:len(d.arena):len(d.arena)]
		d.tb = d.tb[copy(raw, d.tb):]
		v, _ := value.FromElement(value.Decimal128, raw)
		return v
	}
	switch tag {
	case tagZero:
		if kind == bitsNegZero {
			return value.NewDouble(math.Copysign(0, -1))
		}
		return integer(kind, 0)
	case tagNaN:
		return d.nan(kind)
	case tagNegInf, tagPosInf:
		return value.NewDouble(math.Inf(int(tag) - tagZero))
	case tagNegLarge, tagNegSmall, tagPosSmall, tagPosLarge:
		return d.floatBits(tag, kind)
	}
	neg := tag < tagZero
	u := d.magnitude(tag)
	if u&1 == 0 {
		i := int64(u >> 1)
		if neg {
			i = -i
		}
		return integer(kind, i)
	}
	frac := d.uint64()
	if neg {
		frac = ^frac
	}
	f := float64(u>>1) + float64(frac>>1)/(1<<63)
	if neg {
		f = -f
	}
	return value.NewDouble(f)
}

func (d *Decoder) nan(kind byte) value.Value {
	if kind != bitsNaN {
		return value.NewDouble(math.Float64frombits(canonicalNaN))
	}
	var raw [8]byte
	d.tb = d.tb[copy(raw[:], d.tb):]
	return value.NewDouble(math.Float64frombits(binary.BigEndian.Uint64(raw[:])))
}

func (d *Decoder) floatBits(tag, kind byte) value.Value {
	u := d.uint64()
	if tag < tagZero {
		u = ^u
	}
	f := math.Float64frombits(u >> 1)
	if tag < tagZero {
		f = -f
	}
	if kind == bitsInt64 {
		return value.NewInt64(math.MinInt64) // the only long that is encoded as a double
	}
	return value.NewDouble(f)
}

// magnitude reads the integer part and its "more" bit.
func (d *Decoder) magnitude(tag byte) (u uint64) {
	n := int(tag) - tagPosInt1 + 1
	flip := d.inv
	if tag < tagZero {
		n = tagNegInt8 + 8 - int(tag)
		flip = ^flip
	}
	if len(d.key) < n {
		d.bad = true
		return 0
	}
	for _, c := range d.key[:n] {
		u = u<<8 | uint64(c^flip)
	}
	d.key = d.key[n:]
	return u
}

func integer(kind byte, i int64) value.Value {
	switch kind {
	case bitsDouble:
		return value.NewDouble(float64(i))
	case bitsInt64:
		return value.NewInt64(i)
	}
	return value.NewInt32(int32(i))
}

// skipNumber skips a number's payload, including a following decimal.
func (d *Decoder) skipNumber(tag byte) {
	n, _ := numberLen(tag, d.inv, d.key)
	d.take(n)
}

func numberLen(tag, inv byte, p []byte) (n int, ok bool) {
	flip := inv
	if tag < tagZero {
		flip = ^flip
	}
	more := func(n int) bool { return n > 0 && n <= len(p) && (p[n-1]^flip)&1 != 0 }
	switch tag {
	case tagZero, tagNaN, tagNegInf, tagPosInf:
		return 0, true
	case tagNegLarge, tagNegSmall, tagPosSmall, tagPosLarge:
		n = 8
	default:
		n = int(tag) - tagPosInt1 + 1
		if tag < tagZero {
			n = tagNegInt8 + 8 - int(tag)
		}
		if !more(n) {
			return n, n <= len(p)
		}
		n += 8
	}
	if more(n) {
		n += decimalTail
	}
	return n, n <= len(p)
}
