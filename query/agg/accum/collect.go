package accum

import (
	"container/heap"
	"math"
	"slices"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/sortkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// entryCost is the memory of a kept value in addition to its bytes.
const entryCost = 48

func size(v value.Value) int { return entryCost + len(v.Bytes()) }

func orNull(v value.Value) value.Value {
	if v.T == value.Missing {
		return value.NewNull()
	}
	return v
}

// extreme is $min (sign -1) and $max (sign 1).
type extreme struct {
	v    value.Value
	sign int
	coll value.Collator
}

func (s *extreme) Add(v value.Value, _ *expr.Frame) (int, error) {
	if v.IsNullish() || s.v.T != value.Missing && value.CompareCollated(v, s.v, s.coll)*s.sign <= 0 {
		return 0, nil
	}
	grew := len(v.Bytes()) - len(s.v.Bytes())
	s.v = v.Clone()
	return grew, nil
}
func (s *extreme) Merge(p value.Value) (int, error) { return s.Add(p, nil) }
func (s *extreme) Partial() (value.Value, error)    { return orNull(s.v), nil }
func (s *extreme) Result() (value.Value, error)     { return orNull(s.v), nil }

type first struct {
	v   value.Value
	set bool
}

func (s *first) Add(v value.Value, _ *expr.Frame) (int, error) {
	if s.set {
		return 0, nil
	}
	s.set, s.v = true, v.Clone()
	return len(v.Bytes()), nil
}
func (s *first) Merge(p value.Value) (int, error) { return s.Add(p, nil) }
func (s *first) Partial() (value.Value, error)    { return orNull(s.v), nil }
func (s *first) Result() (value.Value, error)     { return orNull(s.v), nil }

type last struct{ v value.Value }

func (s *last) Add(v value.Value, _ *expr.Frame) (int, error) {
	grew := len(v.Bytes()) - len(s.v.Bytes())
	s.v = v.Clone()
	return grew, nil
}
func (s *last) Merge(p value.Value) (int, error) { return s.Add(p, nil) }
func (s *last) Partial() (value.Value, error)    { return orNull(s.v), nil }
func (s *last) Result() (value.Value, error)     { return orNull(s.v), nil }

// push is $push, and with spread $concatArrays.
type push struct {
	name   string
	spread bool
	limit  int64  // the maximum size of body; 0 for maxPushed
	body   []byte // the array's elements, encoded
	n      int
}

func (s *push) append(v value.Value) int {
	before := len(s.body)
	s.body = value.AppendIndex(s.body, s.n, v)
	s.n++
	return len(s.body) - before
}

func (s *push) Add(v value.Value, _ *expr.Frame) (int, error) {
	if v.T == value.Missing {
		return 0, nil
	}
	if !s.spread {
		return s.append(v), s.fits()
	}
	if v.T != value.Array {
		return 0, notArray(s.name, v)
	}
	return s.Merge(v)
}

// maxPushed limits the size of one list if no parameter does (internalQueryMaxPushBytes, internalQueryMaxAddToSetBytes).
const maxPushed = 100 << 20

func (s *push) fits() error {
	limit := s.limit
	if limit == 0 {
		limit = maxPushed
	}
	if int64(len(s.body)) > limit {
		return mongoerr.Newf(mongoerr.ExceededMemoryLimit, "%s used too much memory and cannot spill to disk. Used: %d bytes. Memory limit: %d bytes",
			s.name, len(s.body), limit)
	}
	return nil
}

func notArray(name string, v value.Value) error {
	return mongoerr.Newf(mongoerr.TypeMismatch, "%s requires array inputs, but input %s is of type %s", name, expr.Show(v), v.T.Name())
}

func (s *push) Merge(p value.Value) (int, error) {
	grew := 0
	for it := value.Walk(p.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return grew, s.fits()
		}
		grew += s.append(e)
	}
}
func (s *push) Partial() (value.Value, error) { return s.Result() }
func (s *push) Result() (value.Value, error) {
	dst, mark := value.Begin(make([]byte, 0, len(s.body)+5))
	return value.NewArray(value.End(append(dst, s.body...), mark)), nil
}

// set is $addToSet, and with spread $setUnion.
type set struct {
	spread bool
	coll   value.Collator
	seen   map[string]struct{}
	key    []byte
	list   push
}

func (s *set) append(v value.Value) int {
	s.key = value.AppendGroupKey(s.key[:0], v, s.coll)
	if _, ok := s.seen[string(s.key)]; ok {
		return 0
	}
	if s.seen == nil {
		s.seen = map[string]struct{}{}
	}
	s.seen[string(s.key)] = struct{}{}
	return len(s.key) + entryCost + s.list.append(v)
}

func (s *set) Add(v value.Value, _ *expr.Frame) (int, error) {
	if v.T == value.Missing {
		return 0, nil
	}
	if !s.spread {
		return s.append(v), s.list.fits()
	}
	if v.T != value.Array {
		return 0, notArray(s.list.name, v)
	}
	return s.Merge(v)
}

func (s *set) Merge(p value.Value) (int, error) {
	grew := 0
	for it := value.Walk(p.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return grew, s.list.fits()
		}
		grew += s.append(e)
	}
}

func (s *set) Partial() (value.Value, error) { return s.list.Partial() }
func (s *set) Result() (value.Value, error)  { return s.list.Result() }

// mergeObjects keeps fields in the order of their first occurrence.
type mergeObjects struct {
	index map[string]int
	names []string
	vals  []value.Value
}

func (s *mergeObjects) Add(v value.Value, _ *expr.Frame) (int, error) {
	if v.IsNullish() {
		return 0, nil
	}
	if v.T != value.Document {
		return 0, mongoerr.Newf(5911200, "$mergeObjects only supports objects, but input %s is of type %s", expr.Show(v), v.T.Name())
	}
	if s.index == nil {
		s.index = map[string]int{}
	}
	grew := 0
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return grew, nil
		}
		i, have := s.index[string(k)]
		if !have {
			i = len(s.names)
			s.index[string(k)] = i
			s.names, s.vals = append(s.names, string(k)), append(s.vals, value.Value{})
			grew += len(k) + entryCost
		}
		grew += len(e.Bytes()) - len(s.vals[i].Bytes())
		s.vals[i] = e.Clone()
	}
}
func (s *mergeObjects) Merge(p value.Value) (int, error) { return s.Add(p, nil) }
func (s *mergeObjects) Partial() (value.Value, error)    { return s.Result() }
func (s *mergeObjects) Result() (value.Value, error) {
	dst, mark := value.Begin(nil)
	for i, n := range s.names {
		dst = value.Append(dst, n, s.vals[i])
	}
	return value.NewDocument(value.End(dst, mark)), nil
}

// edgeN is $firstN and $lastN.
type edgeN struct {
	n    int64
	last bool
	vals []value.Value
}

func (s *edgeN) Add(v value.Value, _ *expr.Frame) (int, error) {
	if int64(len(s.vals)) < s.n {
		s.vals = append(s.vals, orNull(v.Clone()))
		return size(v), nil
	}
	if !s.last {
		return 0, nil
	}
	grew := len(v.Bytes()) - len(s.vals[0].Bytes())
	copy(s.vals, s.vals[1:])
	s.vals[len(s.vals)-1] = orNull(v.Clone())
	return grew, nil
}
func (s *edgeN) Merge(p value.Value) (grew int, err error) { return mergeAll(s, p) }
func (s *edgeN) Partial() (value.Value, error)             { return value.NewArray(value.ArrayOf(s.vals...)), nil }
func (s *edgeN) Result() (value.Value, error)              { return s.Partial() }

func mergeAll(s State, p value.Value) (grew int, err error) {
	for _, v := range value.Values(p.Doc()) {
		g, err := s.Add(v, nil)
		if err != nil {
			return grew, err
		}
		grew += g
	}
	return grew, nil
}

// extremeN is $minN (sign 1) and $maxN (sign -1): a sorted list of at most n.
type extremeN struct {
	n    int64
	sign int
	coll value.Collator
	vals []value.Value
}

func (s *extremeN) Add(v value.Value, _ *expr.Frame) (int, error) {
	if v.IsNullish() {
		return 0, nil
	}
	at, _ := slices.BinarySearchFunc(s.vals, v, func(have, want value.Value) int {
		if value.CompareCollated(have, want, s.coll)*s.sign <= 0 {
			return -1
		}
		return 1
	})
	if int64(at) >= s.n {
		return 0, nil
	}
	s.vals = slices.Insert(s.vals, at, v.Clone())
	grew := size(v)
	if int64(len(s.vals)) > s.n {
		grew -= size(s.vals[s.n])
		s.vals = s.vals[:s.n]
	}
	return grew, nil
}
func (s *extremeN) Merge(p value.Value) (int, error) { return mergeAll(s, p) }
func (s *extremeN) Partial() (value.Value, error) {
	return value.NewArray(value.ArrayOf(s.vals...)), nil
}
func (s *extremeN) Result() (value.Value, error) { return s.Partial() }

// topN is the $top family: a heap of at most n, with the one to be dropped first on top.
type topN struct {
	n              int64
	single, bottom bool
	sort           *sortkey.Pattern
	heap           topHeap
	key            []value.Value
	seq            int64
}

type topItem struct {
	key []value.Value
	out value.Value
	seq int64
}

type topHeap struct {
	items  []topItem
	sort   *sortkey.Pattern
	bottom bool
}

// order returns the order of the results; ties keep the order of arrival.
func (h *topHeap) order(a, b *topItem) int {
	if c := h.sort.Compare(a.key, b.key); c != 0 {
		return c
	}
	if a.seq < b.seq {
		return -1
	}
	return 1
}
func (h *topHeap) Len() int { return len(h.items) }
func (h *topHeap) Less(i, j int) bool {
	c := h.order(&h.items[i], &h.items[j])
	return (c > 0) != h.bottom
}
func (h *topHeap) Swap(i, j int) { h.items[i], h.items[j] = h.items[j], h.items[i] }
func (h *topHeap) Push(x any)    { h.items = append(h.items, x.(topItem)) }
func (h *topHeap) Pop() any {
	x := h.items[len(h.items)-1]
	h.items = h.items[:len(h.items)-1]
	return x
}

func (s *topN) Add(v value.Value, f *expr.Frame) (int, error) {
	var err error
	if s.key, err = s.sort.Key(s.key[:0], f.Root(), nil); err != nil {
		return 0, err
	}
	return s.add(s.key, v), nil
}

func (s *topN) add(key []value.Value, v value.Value) int {
	s.seq++
	s.heap.sort, s.heap.bottom = s.sort, s.bottom
	item := topItem{key: key, out: v, seq: s.seq}
	full := int64(len(s.heap.items)) >= s.n
	if full {
		// Of equal ones the first are kept, also for $bottom.
		if c := s.sort.Compare(item.key, s.heap.items[0].key); c == 0 || (c > 0) != s.bottom {
			return 0
		}
	}
	item.key, item.out = make([]value.Value, len(key)), orNull(v).Clone()
	grew := size(v)
	for i, k := range key {
		item.key[i] = k.Clone()
		grew += size(k)
	}
	if full {
		s.heap.items[0] = item
		heap.Fix(&s.heap, 0)
		return 0
	}
	heap.Push(&s.heap, item)
	return grew
}

func (s *topN) sorted() []topItem {
	items := slices.Clone(s.heap.items)
	s.heap.sort = s.sort
	slices.SortFunc(items, func(a, b topItem) int { return s.heap.order(&a, &b) })
	return items
}

func (s *topN) Merge(p value.Value) (int, error) {
	grew := 0
	for _, e := range value.Values(p.Doc()) {
		grew += s.add(value.Values(value.Lookup(e.Doc(), "k").Doc()), value.Lookup(e.Doc(), "o"))
	}
	return grew, nil
}

func (s *topN) Partial() (value.Value, error) {
	var out []value.Value
	for _, it := range s.sorted() {
		out = append(out, value.NewDocument(value.Doc(value.F("k", value.NewArray(value.ArrayOf(it.key...))), value.F("o", it.out))))
	}
	return value.NewArray(value.ArrayOf(out...)), nil
}

func (s *topN) Result() (value.Value, error) {
	items := s.sorted()
	if s.single {
		if len(items) == 0 {
			return value.NewNull(), nil
		}
		return items[0].out, nil
	}
	vals := make([]value.Value, len(items))
	for i := range items {
		vals[i] = items[i].out
	}
	return value.NewArray(value.ArrayOf(vals...)), nil
}

// percentile keeps all numbers and computes the result by rank, to which the real server's sketch converges.
type percentile struct {
	p      []float64
	single bool
	vals   []float64
}

func (s *percentile) Add(v value.Value, _ *expr.Frame) (int, error) {
	if !v.T.Numeric() {
		return 0, nil
	}
	f := v.AsFloat64()
	if math.IsNaN(f) {
		return 0, nil
	}
	s.vals = append(s.vals, f)
	return 8, nil
}
func (s *percentile) Merge(p value.Value) (int, error) { return mergeAll(s, p) }
func (s *percentile) Partial() (value.Value, error) {
	vs := make([]value.Value, len(s.vals))
	for i, f := range s.vals {
		vs[i] = value.NewDouble(f)
	}
	return value.NewArray(value.ArrayOf(vs...)), nil
}

func (s *percentile) Result() (value.Value, error) {
	slices.Sort(s.vals)
	out := make([]value.Value, len(s.p))
	for i, p := range s.p {
		if len(s.vals) == 0 {
			out[i] = value.NewNull()
			continue
		}
		rank := int(math.Ceil(p*float64(len(s.vals)))) - 1
		out[i] = value.NewDouble(s.vals[min(max(rank, 0), len(s.vals)-1)])
	}
	if s.single {
		return out[0], nil
	}
	return value.NewArray(value.ArrayOf(out...)), nil
}
