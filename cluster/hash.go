package cluster

import (
	"crypto/md5"
	"encoding/binary"
	"math"

	"github.com/shoaldb/shoal/query/value"
)

// HashValue is the value a hashed shard key stores: the hash of a hashed index, so that chunk bounds and index agree.
// Numbers hash as 64-bit integers, so 3, 3.0 and 3.7 are one.
func HashValue(v value.Value) int64 {
	var buf [64]byte
	in := appendHashInput(binary.LittleEndian.AppendUint32(buf[:0], 0), nil, v)
	sum := md5.Sum(in)
	return int64(binary.LittleEndian.Uint64(sum[:8]))
}

func appendHashInput(dst, name []byte, v value.Value) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(hashKind(v.T)))
	if name != nil {
		dst = append(append(dst, name...), 0)
	}
	switch v.T {
	case value.Int32, value.Int64, value.Double, value.Decimal128:
		return binary.LittleEndian.AppendUint64(dst, uint64(clampToInt64(v)))
	case value.Document, value.Array:
		for it := value.Walk(v.Doc()); ; {
			k, e, ok := it.Next()
			if !ok {
				return binary.LittleEndian.AppendUint32(dst, 0)
			}
			dst = appendHashInput(dst, k, e)
		}
	}
	return value.AppendPayload(dst, v)
}

// clampToInt64 truncates towards zero, NaN to 0, and holds what is out of range at the ends.
func clampToInt64(v value.Value) int64 {
	if i, ok := v.AsInt64(); ok {
		return i
	}
	f := v.AsFloat64()
	switch {
	case f != f:
		return 0
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return int64(f)
}

// hashKind is the type's place in the order of types, which the hash starts with.
func hashKind(t value.Type) int32 {
	switch t {
	case value.MinKey:
		return -1
	case value.MaxKey:
		return 127
	case value.Undefined:
		return 0
	case value.Missing, value.Null:
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
	}
	return 65
}
