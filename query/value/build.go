package value

import (
	"encoding/binary"
	"strconv"
)

// Append adds an element to a document being built; a Missing value adds nothing.
func Append(dst []byte, key string, v Value) []byte {
	if v.T == Missing {
		return dst
	}
	dst = append(dst, byte(v.T))
	dst = append(append(dst, key...), 0)
	return AppendPayload(dst, v)
}

// AppendKeyBytes is Append for a key held as bytes.
func AppendKeyBytes(dst []byte, key []byte, v Value) []byte {
	if v.T == Missing {
		return dst
	}
	dst = append(dst, byte(v.T))
	dst = append(append(dst, key...), 0)
	return AppendPayload(dst, v)
}

// AppendPayload adds only a value's payload, without type and key.
func AppendPayload(dst []byte, v Value) []byte {
	switch v.T {
	case Double, DateTime, Timestamp, Int64:
		return binary.LittleEndian.AppendUint64(dst, v.n)
	case Int32:
		return binary.LittleEndian.AppendUint32(dst, uint32(v.n))
	case Boolean:
		return append(dst, byte(v.n))
	case String, JavaScript, Symbol:
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(v.b)+1))
		return append(append(dst, v.b...), 0)
	case Binary:
		n := len(v.b)
		if byte(v.n) == 2 {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(n+4))
			dst = append(dst, 2)
			dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
			return append(dst, v.b...)
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
		dst = append(dst, byte(v.n))
		return append(dst, v.b...)
	}
	return append(dst, v.b...)
}

// Begin starts a document at the end of dst; End with the same mark closes it.
func Begin(dst []byte) (out []byte, mark int) {
	return append(dst, 0, 0, 0, 0), len(dst)
}

// End writes the terminator and the length word of the document begun at mark.
func End(dst []byte, mark int) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[mark:], uint32(len(dst)-mark))
	return dst
}

// BeginKey starts a document or array element (t is Document or Array) inside another.
func BeginKey(dst []byte, t Type, key string) (out []byte, mark int) {
	dst = append(dst, byte(t))
	dst = append(append(dst, key...), 0)
	return Begin(dst)
}

// ArrayOf builds an array document from values; Missing ones become null, as in the aggregation language.
func ArrayOf(vs ...Value) []byte {
	dst, mark := Begin(nil)
	for i, v := range vs {
		if v.T == Missing {
			v = NewNull()
		}
		dst = AppendIndex(dst, i, v)
	}
	return End(dst, mark)
}

// AppendIndex is Append with an array index as key.
func AppendIndex(dst []byte, i int, v Value) []byte {
	dst = append(dst, byte(v.T))
	dst = strconv.AppendInt(dst, int64(i), 10)
	return AppendPayload(append(dst, 0), v)
}

// BeginIndex is BeginKey for the element of an array.
func BeginIndex(dst []byte, t Type, i int) (out []byte, mark int) {
	dst = append(dst, byte(t))
	dst = strconv.AppendInt(dst, int64(i), 10)
	return Begin(append(dst, 0))
}

// Field is a named value, for building small documents.
type Field struct {
	Key string
	Val Value
}

// F makes a Field.
func F(key string, v Value) Field { return Field{Key: key, Val: v} }

// Doc builds a document from fields, omitting the Missing ones.
func Doc(fields ...Field) []byte {
	dst, mark := Begin(nil)
	for _, f := range fields {
		dst = Append(dst, f.Key, f.Val)
	}
	return End(dst, mark)
}
