package update

import (
	"slices"
	"strconv"

	"github.com/shoaldb/shoal/query/value"
)

// What operators changed is recorded while they are applied, because two documents do not tell it: $set of an array and
// $push to it may have the same result, and are described as the whole array and as its new elements. Values are not
// copied: a change refers to the bytes of the new document.
//
// The rules (manual, "update Event"; behaviour that was measured on a server of the 8.2 line):
//
//   - an operator's new value is recorded as a whole, at its path, even if it is an array that became shorter;
//   - elements that $push and $addToSet add to the end of an array that has some are recorded one by one;
//   - of paths that did not exist, the first component that did not is recorded, with all that is below it; of an array
//     that grew, the elements that were set, not the nulls between them;
//   - array filters ($[], $[id]) that changed several elements replace the array. If several matched and one of them changed, they
//     replace that element; of this no public source tells.

type changeKind uint8

const (
	deleted  changeKind = iota
	updated             // an existing field or any element of an array
	inserted            // a new field of a document
	within              // changes below a field or element follow, up to next
	appended            // elements at the end of the array that is the level's
)

// change is a field or element that an update changed. The changes of a level follow each other, each with those below it.
type change struct {
	kind     changeKind
	array    bool   // within: an array, not a document
	index    int32  // of an element, the first one of several
	from, to int32  // bytes of the new document: an element, or the run of elements that were appended
	next     int32  // within: index of the first change that is not below this one
	name     string // of a field
}

// record keeps the changes of one application of an update.
type record struct {
	changes []change
	level   int     // index of the innermost open level, -1 for the document itself
	grown   int     // set by operators that only append to a non-empty array: its former length
	order   []int32 // memory for siblings

	firstChanges [2]change // memory for the changes of most updates
	firstOrder   [2]int32
}

func (r *record) reset() {
	if r.changes == nil {
		r.changes, r.order = r.firstChanges[:0], r.firstOrder[:0]
	}
	r.changes, r.level = r.changes[:0], -1
}

// enter begins the changes below a field or element; leave ends them.
func (r *record) enter(name string, index int, array bool) (outer int) {
	outer, r.level = r.level, len(r.changes)
	r.changes = append(r.changes, change{kind: within, array: array, name: name, index: int32(index)})
	return outer
}

// leave forgets the level if nothing changed. from and to are the bytes of the whole field or element.
func (r *record) leave(outer, from, to int) {
	at := r.level
	r.level = outer
	switch c := &r.changes[at]; {
	case c.kind == updated:
		c.from, c.to = int32(from), int32(to)
	case len(r.changes) == at+1:
		r.changes = r.changes[:at]
	default:
		c.next = int32(len(r.changes))
	}
}

// replaceLevel records the innermost open level as one value instead of the changes within it.
func (r *record) replaceLevel() {
	r.changes = r.changes[:r.level+1]
	r.changes[r.level].kind = updated
}

// replaceChanges records one change instead of all those within the innermost open level.
func (r *record) replaceChanges(c change) {
	r.changes = append(r.changes[:r.level+1], c)
}

// add records a change of the innermost open level.
func (r *record) add(kind changeKind, name string, index, from, to int) {
	r.changes = append(r.changes, change{kind: kind, name: name, index: int32(index), from: int32(from), to: int32(to)})
}

// entry returns the changes of the new document doc as the `o` of an oplog entry.
func (r *record) entry(doc []byte) []byte {
	size := 40
	for i := range r.changes {
		c := &r.changes[i]
		size += int(c.to-c.from) + len(c.name) + 24
	}
	dst, mark := value.Begin(make([]byte, 0, size))
	dst = value.Append(dst, "$v", value.NewInt32(2))
	dst, inner := value.BeginKey(dst, value.Document, "diff")
	dst = r.fields(dst, doc, 0, int32(len(r.changes)))
	return value.End(value.End(dst, inner), mark)
}

// siblings adds to r.order the changes of one level, without those below them.
func (r *record) siblings(i, end int32) []int32 {
	mark := len(r.order)
	for i < end {
		r.order = append(r.order, i)
		if c := &r.changes[i]; c.kind == within {
			i = c.next
		} else {
			i++
		}
	}
	return r.order[mark:]
}

// fields appends the delta of a document. Fields come in the order in which operators process them, which is not
// the document's.
func (r *record) fields(dst, doc []byte, i, end int32) []byte {
	mark := len(r.order)
	level := r.siblings(i, end)
	if len(level) > 1 {
		slices.SortStableFunc(level, func(a, b int32) int { return compareNames(r.changes[a].name, r.changes[b].name) })
	}
	for kind, group := range [...]string{deleted: "d", updated: "u", inserted: "i"} {
		dst = r.group(dst, doc, level, changeKind(kind), group)
	}
	for _, k := range level {
		if c := &r.changes[k]; c.kind == within {
			dst = append(append(append(dst, byte(value.Document), 's'), c.name...), 0)
			dst = r.below(dst, doc, k)
		}
	}
	r.order = r.order[:mark]
	return dst
}

func (r *record) group(dst, doc []byte, level []int32, kind changeKind, name string) []byte {
	mark := -1
	for _, k := range level {
		c := &r.changes[k]
		if c.kind != kind {
			continue
		}
		if mark < 0 {
			dst, mark = value.BeginKey(dst, value.Document, name)
		}
		if kind == deleted {
			dst = value.Append(dst, c.name, value.NewBool(false))
		} else {
			dst = append(dst, doc[c.from:c.to]...)
		}
	}
	if mark < 0 {
		return dst
	}
	return value.End(dst, mark)
}

// below appends the delta of what change k is within.
func (r *record) below(dst, doc []byte, k int32) []byte {
	c := r.changes[k]
	dst, mark := value.Begin(dst)
	if c.array {
		return value.End(r.elements(dst, doc, k+1, c.next), mark)
	}
	return value.End(r.fields(dst, doc, k+1, c.next), mark)
}

// elements appends the delta of an array.
func (r *record) elements(dst, doc []byte, i, end int32) []byte {
	dst = value.Append(dst, "a", value.NewBool(true))
	for i < end {
		switch c := &r.changes[i]; c.kind {
		case within:
			dst = append(appendIndex(append(dst, byte(value.Document)), 's', c.index), 0)
			dst = r.below(dst, doc, i)
			i = c.next
		default: // updated or appended
			dst = appendElements(dst, doc, c)
			i++
		}
	}
	return dst
}

func appendIndex(dst []byte, prefix byte, index int32) []byte {
	return strconv.AppendInt(append(dst, prefix), int64(index), 10)
}

// appendElements appends the elements that a change covers.
func appendElements(dst, doc []byte, c *change) []byte {
	i := c.index
	for it := value.Walk(doc[c.from-4 : c.to]); ; i++ { // the walk begins behind what it takes for a length word
		raw, key, _, ok := it.NextRaw()
		if !ok {
			return dst
		}
		dst = append(appendIndex(append(dst, raw[0]), 'u', i), 0)
		dst = append(dst, raw[len(key)+2:]...)
	}
}
