package hashkey

import (
	"crypto/md5"
	"encoding/binary"
	"math"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// Hash returns the hashed form of v. A Missing value is hashed as null.
func Hash(v value.Value) int64 {
	if v.T == value.Missing {
		v = value.NewNull()
	}
	switch v.T {
	case value.Document, value.Array, value.CodeWithScope:
		return first(md5.Sum(appendElement(make([]byte, 4, 128), "", false, v)))
	}
	var room [128]byte // stays on the stack, which it would not if it were passed to the recursive appendElement
	return first(md5.Sum(appendScalar(binary.LittleEndian.AppendUint32(room[:4], uint32(kind(v.T))), v)))
}

func first(sum [md5.Size]byte) int64 { return int64(binary.LittleEndian.Uint64(sum[:])) }

func appendElement(b []byte, name string, named bool, v value.Value) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(kind(v.T)))
	if named {
		b = append(append(b, name...), 0)
	}
	switch v.T {
	case value.Document, value.Array:
		return appendElements(b, v.Doc())
	case value.CodeWithScope:
		code, scope := v.CodeWithScope()
		b = append(append(b, code...), 0)
		return appendElements(b, scope)
	}
	return appendScalar(b, v)
}

// appendScalar appends the payload of a value that contains no others.
func appendScalar(b []byte, v value.Value) []byte {
	switch v.T {
	case value.Int32, value.Int64, value.Double, value.Decimal128:
		return binary.LittleEndian.AppendUint64(b, uint64(toLong(v)))
	}
	return value.AppendPayload(b, v)
}

func appendElements(b, doc []byte) []byte {
	for k, e := range value.Elements(doc) {
		b = appendElement(b, k, true, e)
	}
	return append(b, 0, 0, 0, 0)
}

// toLong truncates a number; NaN is 0, and a number out of range becomes the nearest long.
func toLong(v value.Value) int64 {
	if i, ok := v.AsInt64(); ok {
		return i
	}
	if v.IsNaN() {
		return 0
	}
	if v.T == value.Decimal128 {
		whole, _, _ := strings.Cut(v.DecimalString(), ".")
		if d, err := value.ParseDecimal128(whole); err == nil && !strings.ContainsAny(v.DecimalString(), "Ee") {
			if i, ok := d.AsInt64(); ok {
				return i
			}
		}
	}
	f := math.Trunc(v.AsFloat64())
	switch {
	case f >= 1<<63:
		return math.MaxInt64
	case f < -(1 << 63):
		return math.MinInt64
	}
	return int64(f)
}

// kind returns the hash's number for a kind of comparable values.
func kind(t value.Type) int32 {
	switch t {
	case value.MinKey:
		return -1
	case value.Undefined, value.Missing:
		return 0
	case value.Null:
		return 5
	case value.Int32, value.Int64, value.Double, value.Decimal128:
		return 10
	case value.String, value.Symbol:
		return 15
	case value.Document:
		return 20
	case value.Array:
		return 25
	case value.Binary:
		return 30
	case value.ObjectID:
		return 35
	case value.Boolean:
		return 40
	case value.DateTime:
		return 45
	case value.Timestamp:
		return 47
	case value.Regex:
		return 50
	case value.DBPointer:
		return 55
	case value.JavaScript:
		return 60
	case value.CodeWithScope:
		return 65
	}
	return 127
}
