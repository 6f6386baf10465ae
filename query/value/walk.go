package value

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math/bits"
)

// Iter walks the elements of a document or array in order.
type Iter struct{ rest []byte }

// Walk starts at the first element of a raw document.
func Walk(doc []byte) Iter {
	if len(doc) < 5 {
		return Iter{}
	}
	return Iter{rest: doc[4:]}
}

// Next returns the next element; ok is false at the end. The key borrows from the document.
func (it *Iter) Next() (key []byte, v Value, ok bool) {
	r := it.rest
	if len(r) < 2 || r[0] == 0 {
		return nil, Value{}, false
	}
	end := keyEnd(r, 1)
	if end < 0 {
		it.rest = nil
		return nil, Value{}, false
	}
	v, n := decode(Type(r[0]), r[end+1:])
	if n < 0 {
		it.rest = nil
		return nil, Value{}, false
	}
	it.rest = r[end+1+n:]
	return r[1:end], v, true
}

// keyEnd returns the index of the NUL that ends the key starting at i, or -1. Keys are short: eight bytes are
// looked at at once.
func keyEnd(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		if z := (w - 0x0101010101010101) &^ w & 0x8080808080808080; z != 0 {
			return i + bits.TrailingZeros64(z)>>3
		}
	}
	for ; i < len(b); i++ {
		if b[i] == 0 {
			return i
		}
	}
	return -1
}

// Cursor walks elements without decoding their values until they are needed.
type Cursor struct {
	doc           []byte
	key, val, end int // where the current element's key and payload start, and where it ends
}

// Scan starts a Cursor before the first element of a raw document.
func Scan(doc []byte) Cursor {
	if len(doc) < 5 {
		return Cursor{}
	}
	return Cursor{doc: doc, end: 4}
}

// Next moves to the next element; it returns false at the end.
func (c *Cursor) Next() bool {
	d := c.doc
	at := c.end
	if at+1 >= len(d) || d[at] == 0 {
		return false
	}
	end := keyEnd(d, at+1)
	if end < 0 {
		return false
	}
	n := payloadLen(Type(d[at]), d[end+1:])
	if n < 0 {
		return false
	}
	c.key, c.val, c.end = at+1, end+1, end+1+n
	return true
}

// Key returns the current element's key.
func (c *Cursor) Key() []byte { return c.doc[c.key : c.val-1] }

// Type returns the current element's type.
func (c *Cursor) Type() Type { return Type(c.doc[c.key-1]) }

// Value decodes the current element's value.
func (c *Cursor) Value() Value {
	v, _ := decode(Type(c.doc[c.key-1]), c.doc[c.val:c.end])
	return v
}

// Raw returns the whole current element: type byte, key and payload.
func (c *Cursor) Raw() []byte { return c.doc[c.key-1 : c.end] }

// NextRaw is Next that also returns the whole element (type byte, key and payload) as it is in the document.
func (it *Iter) NextRaw() (raw, key []byte, v Value, ok bool) {
	before := it.rest
	key, v, ok = it.Next()
	if !ok {
		return nil, nil, v, false
	}
	return before[:len(before)-len(it.rest)], key, v, true
}

// Elements ranges over a document's elements.
func Elements(doc []byte) iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for it := Walk(doc); ; {
			k, v, ok := it.Next()
			if !ok || !yield(string(k), v) {
				return
			}
		}
	}
}

// Values collects the values of an array (or document) in order.
func Values(arr []byte) []Value {
	var out []Value
	for it := Walk(arr); ; {
		_, v, ok := it.Next()
		if !ok {
			return out
		}
		out = append(out, v)
	}
}

// Documents collects the documents of an array, which borrow from it. Elements of other types count as empty documents.
func Documents(arr []byte) [][]byte {
	var out [][]byte
	for it := Walk(arr); ; {
		_, v, ok := it.Next()
		if !ok {
			return out
		}
		d := v.Doc()
		if out == nil {
			out = make([][]byte, 0, len(arr)/(len(d)+3)+1) // as many as there are if they are alike
		}
		out = append(out, d)
	}
}

// Count returns the number of elements of a document or array.
func Count(doc []byte) (n int) {
	for it := Walk(doc); ; n++ {
		if _, _, ok := it.Next(); !ok {
			return n
		}
	}
}

// Lookup finds a top-level field by name; Missing if it is absent.
func Lookup(doc []byte, name string) Value {
	if len(doc) < 5 {
		return Value{}
	}
	return lookupFrom(doc, 4, name)
}

// lookupFrom is Lookup among the elements from at on.
func lookupFrom(doc []byte, at int, name string) Value {
	for at+1 < len(doc) && doc[at] != 0 {
		end := keyEnd(doc, at+1)
		if end < 0 {
			return Value{}
		}
		payload := doc[end+1:]
		if string(doc[at+1:end]) == name {
			v, n := decode(Type(doc[at]), payload)
			if n < 0 {
				return Value{}
			}
			return v
		}
		n := payloadLen(Type(doc[at]), payload)
		if n < 0 {
			return Value{}
		}
		at = end + 1 + n
	}
	return Value{}
}

// FromElement decodes one payload of type t; ok is false if it is truncated or t is not a BSON type.
func FromElement(t Type, payload []byte) (v Value, ok bool) {
	v, n := decode(t, payload)
	return v, n >= 0
}

// fixed has the payload's length plus one for types of fixed length; 0 for the others.
var fixed = [256]uint8{
	Double: 9, DateTime: 9, Timestamp: 9, Int64: 9, Int32: 5, Boolean: 2, Null: 1, Undefined: 1, MinKey: 1, MaxKey: 1,
	ObjectID: 13, Decimal128: 17,
}

// payloadLen returns the length of a value's payload at the start of p, or -1 if it does not fit.
func payloadLen(t Type, p []byte) int {
	n := int(fixed[t]) - 1
	if n < 0 {
		n = variableLen(t, p)
	}
	if n > len(p) {
		return -1
	}
	return n
}

// variableLen returns the length of a payload without a fixed one, -1 if it is invalid.
func variableLen(t Type, p []byte) int {
	if t == Regex {
		return regexLen(p)
	}
	if len(p) < 5 {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(p)))
	switch t {
	case String, JavaScript, Symbol:
		if n >= 1 {
			return n + 4
		}
	case Document, Array:
		if n >= 5 {
			return n
		}
	case Binary:
		if n >= 0 {
			return n + 5
		}
	case CodeWithScope:
		if n >= 14 {
			return n
		}
	case DBPointer:
		if n >= 1 {
			return n + 16
		}
	}
	return -1
}

func regexLen(p []byte) int {
	a := bytes.IndexByte(p, 0)
	if a < 0 {
		return -1
	}
	b := bytes.IndexByte(p[a+1:], 0)
	if b < 0 {
		return -1
	}
	return a + b + 2
}

func decode(t Type, p []byte) (Value, int) {
	switch t { // the common fixed-size types first: their length needs no further check
	case Int32:
		if len(p) >= 4 {
			return Value{T: t, n: uint64(int64(int32(binary.LittleEndian.Uint32(p))))}, 4
		}
		return Value{}, -1
	case Double, DateTime, Timestamp, Int64:
		if len(p) >= 8 {
			return Value{T: t, n: binary.LittleEndian.Uint64(p)}, 8
		}
		return Value{}, -1
	}
	n := payloadLen(t, p)
	if n < 0 {
		return Value{}, -1
	}
	switch t {
	case Boolean:
		return Value{T: t, n: uint64(p[0])}, n
	case String, JavaScript, Symbol:
		return Value{T: t, b: p[4 : n-1 : n-1]}, n
	case Binary:
		sub, b := p[4], p[5:n:n]
		if sub == 2 && len(b) >= 4 {
			b = b[4:]
		}
		return Value{T: t, n: uint64(sub), b: b}, n
	case Null, Undefined, MinKey, MaxKey:
		return Value{T: t}, n
	}
	return Value{T: t, b: p[:n:n]}, n
}

// IsIndex reports whether a name can be an array index: digits without leading zeros.
func IsIndex(s string) bool {
	if s == "" || len(s) > 1 && s[0] == '0' || len(s) > 10 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
