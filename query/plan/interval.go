package plan

import (
	"math"
	"slices"

	"github.com/shoaldb/shoal/query/value"
)

// Interval is a range of values in an index field, in ascending order.
type Interval struct {
	Lo, Hi       value.Value
	LoInc, HiInc bool
}

// Point reports whether the interval is a single value.
func (i *Interval) Point() bool {
	return i.LoInc && i.HiInc && value.Equal(i.Lo, i.Hi)
}

// Full reports whether the interval contains every value.
func (i *Interval) Full() bool {
	return i.Lo.T == value.MinKey && i.Hi.T == value.MaxKey && i.LoInc && i.HiInc
}

func (i *Interval) empty() bool {
	c := value.Compare(i.Lo, i.Hi)
	return c > 0 || c == 0 && !(i.LoInc && i.HiInc)
}

// Intervals is an ordered list of disjoint intervals.
type Intervals []Interval

func point(v value.Value) Interval { return Interval{v, v, true, true} }

func everything() Intervals {
	return Intervals{{value.NewMinKey(), value.NewMaxKey(), true, true}}
}

// Full reports whether the list contains every value.
func (l Intervals) Full() bool { return len(l) == 1 && l[0].Full() }

// Points reports whether the list has only single values.
func (l Intervals) Points() bool {
	for i := range l {
		if !l[i].Point() {
			return false
		}
	}
	return len(l) > 0
}

// Contains reports whether v is in the list.
func (l Intervals) Contains(v value.Value) bool {
	for i := range l {
		lo, hi := value.Compare(l[i].Lo, v), value.Compare(v, l[i].Hi)
		if (lo < 0 || lo == 0 && l[i].LoInc) && (hi < 0 || hi == 0 && l[i].HiInc) {
			return true
		}
	}
	return false
}

// compareLo orders lower ends: an inclusive one comes first.
func compareLo(a, b *Interval) int {
	if c := value.Compare(a.Lo, b.Lo); c != 0 {
		return c
	}
	return boolOrder(!a.LoInc, !b.LoInc)
}

// compareHi orders upper ends: an inclusive one comes last.
func compareHi(a, b *Interval) int {
	if c := value.Compare(a.Hi, b.Hi); c != 0 {
		return c
	}
	return boolOrder(a.HiInc, b.HiInc)
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// union merges any intervals into an ordered, disjoint list. It reuses l.
func union(l Intervals) Intervals {
	if len(l) < 2 {
		return l
	}
	slices.SortFunc(l, func(a, b Interval) int {
		if c := compareLo(&a, &b); c != 0 {
			return c
		}
		return compareHi(&a, &b)
	})
	out := l[:1]
	for _, n := range l[1:] {
		last := &out[len(out)-1]
		c := value.Compare(last.Hi, n.Lo)
		if c > 0 || c == 0 && (last.HiInc || n.LoInc) {
			if compareHi(&n, last) > 0 {
				last.Hi, last.HiInc = n.Hi, n.HiInc
			}
			continue
		}
		out = append(out, n)
	}
	return out
}

func intersect(a, b Intervals) Intervals {
	if a.Full() {
		return b
	}
	if b.Full() {
		return a
	}
	var out Intervals
	for i, j := 0, 0; i < len(a) && j < len(b); {
		n := a[i]
		if compareLo(&b[j], &n) > 0 {
			n.Lo, n.LoInc = b[j].Lo, b[j].LoInc
		}
		if compareHi(&b[j], &n) < 0 {
			n.Hi, n.HiInc = b[j].Hi, b[j].HiInc
		}
		if !n.empty() {
			out = append(out, n)
		}
		if compareHi(&a[i], &b[j]) < 0 {
			i++
		} else {
			j++
		}
	}
	return out
}

func complement(l Intervals) Intervals {
	var out Intervals
	rest := everything()[0]
	for i := range l {
		n := rest
		n.Hi, n.HiInc = l[i].Lo, !l[i].LoInc
		if !n.empty() {
			out = append(out, n)
		}
		rest.Lo, rest.LoInc = l[i].Hi, !l[i].HiInc
	}
	if !rest.empty() {
		out = append(out, rest)
	}
	return out
}

var (
	negInf  = value.NewDouble(math.Inf(-1))
	posInf  = value.NewDouble(math.Inf(1))
	nan     = value.NewDouble(math.NaN())
	minOID  = value.NewObjectID([12]byte{})
	maxOID  = value.NewObjectID([12]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255})
	noDoc   = value.NewDocument(value.Doc())
	noArr   = value.NewArray(value.ArrayOf())
	noStr   = value.NewString("")
	noBin   = value.NewBinary(0, nil)
	noRegex = value.NewRegex("", "")
)

// bracket returns the range of all values that are comparable with values of type t.
func bracket(t value.Type) (Interval, bool) {
	switch t {
	case value.Int32, value.Int64, value.Double, value.Decimal128:
		return Interval{nan, posInf, true, true}, true
	case value.String, value.Symbol:
		return Interval{noStr, noDoc, true, false}, true
	case value.Document:
		return Interval{noDoc, noArr, true, false}, true
	case value.Array:
		return Interval{noArr, noBin, true, false}, true
	case value.Binary:
		return Interval{noBin, minOID, true, false}, true
	case value.ObjectID:
		return Interval{minOID, maxOID, true, true}, true
	case value.Boolean:
		return Interval{value.NewBool(false), value.NewBool(true), true, true}, true
	case value.DateTime:
		return Interval{value.NewDateTime(math.MinInt64), value.NewDateTime(math.MaxInt64), true, true}, true
	case value.Timestamp:
		return Interval{value.NewTimestampU64(0), value.NewTimestampU64(math.MaxUint64), true, true}, true
	case value.Regex:
		return Interval{noRegex, value.NewDBPointer("", [12]byte{}), true, false}, true
	case value.DBPointer:
		return Interval{value.NewDBPointer("", [12]byte{}), value.NewJavaScript(nil), true, false}, true
	case value.JavaScript:
		return Interval{value.NewJavaScript(nil), value.NewCodeWithScope("", value.Doc()), true, false}, true
	case value.CodeWithScope:
		return Interval{value.NewCodeWithScope("", value.Doc()), value.NewMaxKey(), true, false}, true
	case value.Null, value.Undefined, value.MinKey, value.MaxKey:
		v := value.Value{T: t}
		return point(v), true
	}
	return Interval{}, false
}
