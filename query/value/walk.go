package value

import (
	"bytes"
	"encoding/binary"
	"iter"
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

// Next gives the next element; ok is false at the end. The key borrows from the document.
func (it *Iter) Next() (key []byte, v Value, ok bool) {
	r := it.rest
	if len(r) < 2 || r[0] == 0 {
		return nil, Value{}, false
	}
	end := bytes.IndexByte(r[1:], 0)
	if end < 0 {
		it.rest = nil
		return nil, Value{}, false
	}
	v, n := decode(Type(r[0]), r[end+2:])
	if n < 0 {
		it.rest = nil
		return nil, Value{}, false
	}
	it.rest = r[end+2+n:]
	return r[1 : end+1], v, true
}

// NextRaw is Next, also giving the whole element (type byte, key and payload) as it stands in the document.
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

// Count is the number of elements of a document or array.
func Count(doc []byte) (n int) {
	for it := Walk(doc); ; n++ {
		if _, _, ok := it.Next(); !ok {
			return n
		}
	}
}

// Lookup finds a field by name at the top level; Missing where it is not there.
func Lookup(doc []byte, name string) Value {
	r := doc
	if len(r) < 5 {
		return Value{}
	}
	for r = r[4:]; len(r) >= 2 && r[0] != 0; {
		end := bytes.IndexByte(r[1:], 0)
		if end < 0 {
			return Value{}
		}
		payload := r[end+2:]
		if string(r[1:end+1]) == name {
			v, n := decode(Type(r[0]), payload)
			if n < 0 {
				return Value{}
			}
			return v
		}
		n := payloadLen(Type(r[0]), payload)
		if n < 0 {
			return Value{}
		}
		r = payload[n:]
	}
	return Value{}
}

// FromElement decodes one payload of type t; ok is false where it is cut short or t is no BSON type.
func FromElement(t Type, payload []byte) (v Value, ok bool) {
	v, n := decode(t, payload)
	return v, n >= 0
}

// payloadLen is the length of a value's payload at the start of p, or -1 where it does not fit.
func payloadLen(t Type, p []byte) int {
	n := -1
	switch t {
	case Double, DateTime, Timestamp, Int64:
		n = 8
	case Int32:
		n = 4
	case Boolean:
		n = 1
	case Null, Undefined, MinKey, MaxKey:
		n = 0
	case ObjectID:
		n = 12
	case Decimal128:
		n = 16
	case String, JavaScript, Symbol:
		if len(p) >= 5 {
			n = int(int32(binary.LittleEndian.Uint32(p)))
			if n < 1 {
				return -1
			}
			n += 4
		}
	case Document, Array:
		if len(p) >= 5 {
			if n = int(int32(binary.LittleEndian.Uint32(p))); n < 5 {
				return -1
			}
		}
	case CodeWithScope:
		if len(p) >= 14 {
			if n = int(int32(binary.LittleEndian.Uint32(p))); n < 14 {
				return -1
			}
		}
	case Binary:
		if len(p) >= 5 {
			if n = int(int32(binary.LittleEndian.Uint32(p))); n < 0 {
				return -1
			}
			n += 5
		}
	case DBPointer:
		if len(p) >= 5 {
			if n = int(int32(binary.LittleEndian.Uint32(p))); n < 1 {
				return -1
			}
			n += 16
		}
	case Regex:
		a := bytes.IndexByte(p, 0)
		if a < 0 {
			return -1
		}
		b := bytes.IndexByte(p[a+1:], 0)
		if b < 0 {
			return -1
		}
		n = a + b + 2
	}
	if n < 0 || n > len(p) {
		return -1
	}
	return n
}

func decode(t Type, p []byte) (Value, int) {
	switch t { // the common fixed-size types first: they need no second look at the length
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
