package indexscan

import (
	"bytes"

	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/keystring"
)

// Verdict is the result of Check.
type Verdict uint8

// The verdicts.
const (
	Inside Verdict = iota // the key is in the bounds
	Skip                  // it is outside: seek Bounds.Next
	Done                  // neither it nor any later key is in the bounds
)

// span is one interval of one field as bytes: lo <= field < hi.
type span struct{ lo, hi []byte }

type field struct {
	spans []span // in byte order
	desc  bool
	full  bool
}

// Bounds are compiled bounds of one scan. They keep a seek key and belong to one goroutine.
type Bounds struct {
	back   bool
	single bool // a single range of keys: lo <= key < hi
	lo, hi []byte
	fields []field
	next   []byte
	empty  bool
}

// Compile translates the bounds of an IXSCAN, COUNT_SCAN or DISTINCT_SCAN.
func Compile(n *plan.Node) *Bounds {
	b := &Bounds{back: n.Direction < 0}
	if n.Start != nil || n.End != nil {
		b.between(n)
		return b
	}
	for i := range n.Bounds {
		f := compileField(&n.Bounds[i])
		b.empty = b.empty || len(f.spans) == 0
		b.fields = append(b.fields, f)
	}
	if !b.empty {
		b.simplify()
	}
	return b
}

func compileField(fb *plan.FieldBounds) field {
	f := field{desc: fb.Desc, full: fb.Intervals.Full()}
	for i := range fb.Intervals {
		v := &fb.Intervals[i]
		if fb.Desc {
			v = &fb.Intervals[len(fb.Intervals)-1-i]
			v = &plan.Interval{Lo: v.Hi, Hi: v.Lo, LoInc: v.HiInc, HiInc: v.LoInc}
		}
		s := span{lo: keystring.AppendKey(nil, v.Lo, fb.Desc, nil)}
		if v.HiInc && v.LoInc && v.Point() {
			s.hi = keystring.After(bytes.Clone(s.lo))
			f.spans = append(f.spans, s)
			continue
		}
		s.hi = keystring.AppendKey(nil, v.Hi, fb.Desc, nil)
		if !v.LoInc {
			s.lo = keystring.After(s.lo)
		}
		if v.HiInc {
			s.hi = keystring.After(s.hi)
		}
		f.spans = append(f.spans, s)
	}
	return f
}

// point reports whether the field is bound to one value.
func (f *field) point() bool {
	return len(f.spans) == 1 && len(f.spans[0].hi) == len(f.spans[0].lo)+1 && bytes.HasPrefix(f.spans[0].hi, f.spans[0].lo)
}

// simplify recognises bounds that are a single range of keys: single values, one interval, everything.
func (b *Bounds) simplify() {
	i := 0
	var prefix []byte
	for ; i < len(b.fields) && b.fields[i].point(); i++ {
		prefix = append(prefix, b.fields[i].spans[0].lo...)
	}
	b.lo, b.hi = prefix, keystring.After(bytes.Clone(prefix))
	if i < len(b.fields) {
		if len(b.fields[i].spans) != 1 {
			return
		}
		s := b.fields[i].spans[0]
		b.lo, b.hi = join(prefix, s.lo), join(prefix, s.hi)
		if b.fields[i].full {
			b.lo, b.hi = prefix, keystring.After(bytes.Clone(prefix))
		}
	}
	for i++; i < len(b.fields); i++ {
		if !b.fields[i].full {
			return
		}
	}
	b.single = true
}

func join(a, b []byte) []byte { return append(append(make([]byte, 0, len(a)+len(b)), a...), b...) }

// between compiles min and max: from min (inclusive) to max (exclusive).
func (b *Bounds) between(n *plan.Node) {
	b.single = true
	b.hi = []byte{0xFF}
	if n.Start != nil {
		b.lo = encode(n.Start, n.Index)
	}
	if n.End != nil {
		b.hi = encode(n.End, n.Index)
	}
}

func encode(doc []byte, x *plan.Index) (key []byte) {
	i := 0
	for _, v := range value.Elements(doc) {
		if x.Collator != nil {
			v = value.Collated(v, x.Collator)
		}
		key = keystring.AppendKey(key, v, x.Fields[i].Desc, nil)
		i++
	}
	return key
}

// Start returns where the scan seeks first; ok is false if nothing can be inside.
func (b *Bounds) Start() (seek []byte, ok bool) {
	if b.empty {
		return nil, false
	}
	if b.single {
		if b.back {
			return b.hi, bytes.Compare(b.lo, b.hi) < 0
		}
		return b.lo, bytes.Compare(b.lo, b.hi) < 0
	}
	b.next = b.next[:0]
	b.appendFirst(0)
	return b.next, true
}

// Range returns the single range of keys of the bounds, if they are one.
func (b *Bounds) Range() (lo, hi []byte, ok bool) { return b.lo, b.hi, b.single && !b.empty }

// appendFirst appends to next where the fields from i on begin: in a forward scan, the first key they allow; in a
// backward one, the position after the last.
func (b *Bounds) appendFirst(i int) {
	for ; i < len(b.fields); i++ {
		f := &b.fields[i]
		if !b.back {
			s := f.spans[0].lo
			b.next = append(b.next, s...)
			if !fieldEnds(s, f.desc) {
				return // after a value: no key has exactly these bytes
			}
			continue
		}
		s := f.spans[len(f.spans)-1].hi
		if n := len(s) - 1; s[n] == 0xFF && fieldEnds(s[:n], f.desc) {
			b.next = append(b.next, s[:n]...) // the last value itself is inside: continue with the next field
			if i == len(b.fields)-1 {
				b.next = append(b.next, 0xFF)
			}
			continue
		}
		b.next = append(b.next, s...)
		return
	}
}

// fieldEnds reports whether s is one whole field.
func fieldEnds(s []byte, desc bool) bool { return keystring.FieldLen(s, desc) == len(s) }

// Check compares a key, without its RecordId, with the bounds.
func (b *Bounds) Check(key []byte) Verdict {
	if b.single {
		if b.back {
			if bytes.Compare(key, b.lo) < 0 {
				return Done
			}
			return Inside
		}
		if bytes.Compare(key, b.hi) >= 0 {
			return Done
		}
		return Inside
	}
	if b.back {
		return b.checkBack(key)
	}
	pos := 0
	for i := range b.fields {
		f := &b.fields[i]
		n := keystring.FieldLen(key[pos:], f.desc)
		if n < 0 {
			return Done
		}
		part := key[pos : pos+n]
		at := f.find(part)
		if at == len(f.spans) { // after all intervals of this field: on to the next value of the preceding field
			if pos == 0 {
				return Done
			}
			b.next = append(append(b.next[:0], key[:pos]...), 0xFF)
			return Skip
		}
		if bytes.Compare(part, f.spans[at].lo) < 0 {
			b.next = append(append(b.next[:0], key[:pos]...), f.spans[at].lo...)
			if lo := f.spans[at].lo; fieldEnds(lo, f.desc) {
				b.appendFirst(i + 1)
			}
			return Skip
		}
		pos += n
	}
	return Inside
}

// find returns the first interval that does not end before part.
func (f *field) find(part []byte) int {
	lo, hi := 0, len(f.spans)
	for lo < hi {
		mid := (lo + hi) / 2
		if bytes.Compare(part, f.spans[mid].hi) >= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func (b *Bounds) checkBack(key []byte) Verdict {
	pos := 0
	for i := range b.fields {
		f := &b.fields[i]
		n := keystring.FieldLen(key[pos:], f.desc)
		if n < 0 {
			return Done
		}
		part := key[pos : pos+n]
		at := f.findBack(part)
		if at < 0 { // before all intervals of this field: back to the previous value of the preceding field
			if pos == 0 {
				return Done
			}
			b.next = append(b.next[:0], key[:pos]...)
			return Skip
		}
		if hi := f.spans[at].hi; bytes.Compare(part, hi) >= 0 {
			b.next = append(append(b.next[:0], key[:pos]...), hi...)
			return Skip
		}
		pos += n
	}
	return Inside
}

// findBack returns the last interval that does not begin after part, or -1.
func (f *field) findBack(part []byte) int {
	lo, hi := 0, len(f.spans)
	for lo < hi {
		mid := (lo + hi) / 2
		if bytes.Compare(f.spans[mid].lo, part) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// Next returns where to seek after Skip.
func (b *Bounds) Next() []byte { return b.next }

// SkipValue returns where the first key with another value of the first field may be, which is how a DISTINCT_SCAN
// advances.
func (b *Bounds) SkipValue(key []byte) []byte {
	n := keystring.FieldLen(key, b.fields[0].desc)
	if n < 0 {
		n = len(key)
	}
	b.next = append(b.next[:0], key[:n]...)
	if !b.back {
		b.next = append(b.next, 0xFF)
	}
	return b.next
}
