package value

import (
	"bytes"
	"math"
)

// Collator orders strings by a collation; nil means binary order.
type Collator interface {
	Compare(a, b []byte) int
	// Key appends a sort key: keys compare bytewise as the strings collate.
	Key(dst, s []byte) []byte
}

// kinds is the order of types against each other (manual: "Comparison/Sort Order").
var kinds = func() (k [256]int8) {
	for i := range k {
		k[i] = 126
	}
	k[MinKey] = -1
	k[Missing], k[Undefined] = 0, 0
	k[Null] = 5
	k[Int32], k[Double], k[Int64], k[Decimal128] = 10, 10, 10, 10
	k[String], k[Symbol] = 15, 15
	k[Document], k[Array], k[Binary], k[ObjectID], k[Boolean] = 20, 25, 30, 35, 40
	k[DateTime], k[Timestamp], k[Regex], k[DBPointer] = 45, 47, 50, 55
	k[JavaScript], k[CodeWithScope], k[MaxKey] = 60, 65, 127
	return k
}()

func canonical(t Type) int { return int(kinds[t]) }

// SameKind reports whether two types are compared by value with each other (all numbers are, strings and symbols are).
func SameKind(a, b Type) bool { return canonical(a) == canonical(b) }

// Compare orders two values: by kind, then by value. Numbers of all types compare by exact numeric value; NaN is below
// all numbers and equal to itself.
func Compare(a, b Value) int { return CompareCollated(a, b, nil) }

// Equal is Compare == 0.
func Equal(a, b Value) bool {
	if a.T == b.T {
		switch a.T {
		case Int32, Int64, Boolean, DateTime, Timestamp:
			return a.n == b.n
		case String, ObjectID:
			return bytes.Equal(a.b, b.b)
		}
	}
	return CompareCollated(a, b, nil) == 0
}

// CompareCollated is Compare with strings (at any depth, but not field names) ordered by c.
func CompareCollated(a, b Value, c Collator) int {
	if a.T != b.T {
		if ka, kb := canonical(a.T), canonical(b.T); ka != kb {
			if ka < kb {
				return -1
			}
			return 1
		}
	}
	switch a.T {
	case Int32, Int64, Double, Decimal128:
		return compareNumbers(a, b)
	case String, Symbol:
		if c != nil {
			return c.Compare(a.b, b.b)
		}
		return bytes.Compare(a.b, b.b)
	case Document:
		return CompareDocs(a.b, b.b, c)
	case Array:
		return compareArrays(a.b, b.b, c)
	case Binary:
		if la, lb := a.BinarySize(), b.BinarySize(); la != lb {
			return cmp(la, lb)
		}
		if a.n != b.n {
			return cmp(a.n, b.n)
		}
		return bytes.Compare(a.b, b.b)
	case ObjectID, JavaScript:
		return bytes.Compare(a.b, b.b)
	case Boolean, Timestamp:
		return cmp(a.n, b.n)
	case DateTime:
		return cmp(int64(a.n), int64(b.n))
	case Regex:
		return bytes.Compare(a.b, b.b) // pattern, then options: the NUL between them sorts first
	case DBPointer:
		if len(a.b) != len(b.b) {
			return cmp(len(a.b), len(b.b))
		}
		return bytes.Compare(a.b, b.b)
	case CodeWithScope:
		ca, sa := a.CodeWithScope()
		cb, sb := b.CodeWithScope()
		if ca != cb {
			return cmp(ca, cb)
		}
		return CompareDocs(sa, sb, c)
	}
	return 0 // Missing, Null, Undefined, MinKey, MaxKey
}

// CompareDocs orders two documents element by element: kind of value, then field name, then value; a prefix is less.
func CompareDocs(a, b []byte, c Collator) int {
	ia, ib := Walk(a), Walk(b)
	for {
		ka, va, oka := ia.Next()
		kb, vb, okb := ib.Next()
		if !oka || !okb {
			return cmpBool(oka, okb)
		}
		if ca, cb := canonical(va.T), canonical(vb.T); ca != cb {
			return cmp(ca, cb)
		}
		if r := bytes.Compare(ka, kb); r != 0 {
			return r
		}
		if r := CompareCollated(va, vb, c); r != 0 {
			return r
		}
	}
}

func compareArrays(a, b []byte, c Collator) int {
	ia, ib := Walk(a), Walk(b)
	for {
		_, va, oka := ia.Next()
		_, vb, okb := ib.Next()
		if !oka || !okb {
			return cmpBool(oka, okb)
		}
		if r := CompareCollated(va, vb, c); r != 0 {
			return r
		}
	}
}

func cmp[T int | int64 | uint64 | string | float64](a, b T) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

func cmpBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func compareNumbers(a, b Value) int {
	if a.T == Decimal128 || b.T == Decimal128 {
		return compareDecimals(a, b)
	}
	if a.T != Double && b.T != Double {
		return cmp(int64(a.n), int64(b.n))
	}
	if a.T == Double && b.T == Double {
		return compareDoubles(a.Double(), b.Double())
	}
	if a.T == Double {
		return -compareIntDouble(int64(b.n), a.Double())
	}
	return compareIntDouble(int64(a.n), b.Double())
}

func compareDoubles(a, b float64) int {
	if a != a || b != b {
		return cmpBool(a == a, b == b)
	}
	return cmp(a, b)
}

// compareIntDouble is exact: a long above 2^53 and the double nearest to it are different numbers.
func compareIntDouble(i int64, f float64) int {
	switch {
	case f != f:
		return 1
	case f >= 9223372036854775808.0:
		return -1
	case f < -9223372036854775808.0:
		return 1
	}
	t := math.Trunc(f)
	if r := cmp(i, int64(t)); r != 0 {
		return r
	}
	return cmp(0, f-t)
}

// Collated replaces the strings in v, at any depth, by their collation keys.
func Collated(v Value, c Collator) Value {
	switch v.T {
	case String, Symbol:
		return NewStringBytes(c.Key(nil, v.Bytes()))
	case Document, Array:
		dst, mark := Begin(nil)
		for it := Walk(v.Doc()); ; {
			k, e, ok := it.Next()
			if !ok {
				break
			}
			dst = AppendKeyBytes(dst, k, Collated(e, c))
		}
		dst = End(dst, mark)
		if v.T == Array {
			return NewArray(dst)
		}
		return NewDocument(dst)
	}
	return v
}
