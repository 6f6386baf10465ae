package match

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/shoaldb/shoal/query/value"
)

// context is the state of one Match.
type context struct {
	m      *Matcher
	detail *Detail // nil if not wanted
	err    error
	pace   value.Pace
}

// prepare computes what evaluation needs for a tree.
func (n *Node) prepare(coll value.Collator) {
	for _, c := range n.Children {
		c.prepare(coll)
	}
	if n.Kind == In {
		_ = n.prepareIn(coll, &value.Pace{}) // which never stops
	}
	if n.Kind == And {
		n.group()
	}
}

// group sorts the children of an And by the field they read.
func (n *Node) group() {
	n.onePass = new(onePass)
	for _, c := range n.Children {
		p := pred{n: c}
		if c.Kind == Not && c.Children[0].Leaf() {
			p = pred{n: c.Children[0], negated: true}
		}
		if !p.n.Leaf() || len(p.n.parts) == 0 || len(n.fields) == maxFields {
			n.rest = append(n.rest, c)
			continue
		}
		n.addPred(p)
	}
	slices.SortStableFunc(n.rest, func(a, b *Node) int { // what is derived from expressions costs less than they do
		return cmp.Compare(boolRank(!derives(a)), boolRank(!derives(b)))
	})
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// maxFields is the maximum number of top-level fields that one pass over a document looks for.
const maxFields = 64

func (n *Node) addPred(p pred) {
	key := p.n.parts[0].key
	for _, f := range n.fields {
		if f.key.String() == key.String() {
			f.preds = append(f.preds, p)
			return
		}
	}
	n.fields = append(n.fields, &field{key: key, preds: []pred{p}})
}

// Has reports whether a node of kind k is in the tree.
func (n *Node) Has(k Kind) bool {
	if n.Kind == k {
		return true
	}
	for _, c := range n.Children {
		if c.Has(k) {
			return true
		}
	}
	return false
}

// document evaluates a node against a whole document.
func (c *context) document(n *Node, doc []byte) bool {
	switch n.Kind {
	case And:
		return c.and(n, doc)
	case Or:
		return c.any(n, doc)
	case Nor:
		return !c.any(n, doc)
	case Not:
		d := c.detail
		c.detail = nil
		ok := c.document(n.Children[0], doc)
		c.detail = d
		return !ok
	case Expr:
		return c.expression(n, doc)
	case ExprEq, ExprGt, ExprGte, ExprLt, ExprLte:
		return c.exprComparison(n, doc)
	case Schema:
		ok, err := n.Schema.Match(doc, c.pace.Work)
		if err != nil {
			c.fail(err)
		}
		return ok
	case AlwaysTrue:
		return true
	case SampleRate:
		return c.sample(n)
	case GeoNear:
		_, _, ok := n.Distance(doc)
		return ok
	case Where:
		return c.where(n, doc)
	case Text:
		_, ok := n.Text.Score(doc)
		return ok
	case AlwaysFalse:
		return false
	}
	return c.path(n, n.parts[0].key.Lookup(doc), 1)
}

// any tries the branches of an $or: the one that is true does not determine array positions.
func (c *context) any(n *Node, doc []byte) bool {
	d := c.detail
	c.detail = nil
	ok := false
	for _, ch := range n.Children {
		if c.document(ch, doc) {
			ok = true
			break
		}
	}
	c.detail = d
	return ok
}

// derives reports whether a node is a derived comparison, or has some below.
func derives(n *Node) bool {
	return n.Kind >= ExprEq && n.Kind <= ExprLte || (n.Kind == And || n.Kind == Or) && slices.ContainsFunc(n.Children, derives)
}

// and walks the document once for the predicates that read fields of it, then tries the rest.
func (c *context) and(n *Node, doc []byte) bool {
	if len(n.fields) == 1 {
		f := n.fields[0]
		if !c.preds(f, f.key.Lookup(doc)) {
			return false
		}
	} else if len(n.fields) > 0 && !c.fields(n.fields, doc) {
		return false
	}
	for _, ch := range n.rest {
		if !c.document(ch, doc) {
			return false
		}
	}
	return c.err == nil
}

func (c *context) fields(fields []*field, doc []byte) bool {
	var seen uint64
	left := len(fields)
	for cur := value.Scan(doc); left > 0 && cur.Next(); {
		key := cur.Key()
		for i, f := range fields {
			if f.key.String() != string(key) {
				continue
			}
			if seen&(1<<i) == 0 {
				seen |= 1 << i
				left--
				if !c.preds(f, cur.Value()) {
					return false
				}
			}
			break
		}
	}
	if left == 0 {
		return true
	}
	for i, f := range fields {
		if seen&(1<<i) == 0 && !c.preds(f, value.Value{}) {
			return false
		}
	}
	return true
}

// preds runs all predicates of one top-level field, whose value is v.
func (c *context) preds(f *field, v value.Value) bool {
	for i := range f.preds {
		p := &f.preds[i]
		if p.negated {
			d := c.detail
			c.detail = nil
			ok := c.path(p.n, v, 1)
			c.detail = d
			if ok {
				return false
			}
		} else if !c.path(p.n, v, 1) {
			return false
		}
	}
	return true
}

// value evaluates a node against one value, from which paths start.
func (c *context) value(n *Node, v value.Value) bool {
	switch n.Kind {
	case And:
		for _, ch := range n.Children {
			if !c.value(ch, v) {
				return false
			}
		}
		return true
	case Or, Nor:
		for _, ch := range n.Children {
			if c.value(ch, v) {
				return n.Kind == Or
			}
		}
		return n.Kind == Nor
	case Not:
		return !c.value(n.Children[0], v)
	}
	if !n.Leaf() {
		return c.document(n, v.Doc())
	}
	if len(n.parts) == 0 {
		return c.test(n, v)
	}
	return c.path(n, v, 0)
}

// path follows a leaf's path from v, the value after the first i components, and tests what it leads to: through
// arrays, any of the values.
func (c *context) path(n *Node, v value.Value, i int) bool {
	for ; i < len(n.parts); i++ {
		switch v.T {
		case value.Document:
			v = n.parts[i].key.Lookup(v.Doc())
		case value.Array:
			return c.through(n, v.Doc(), i)
		default:
			return c.test(n, value.Value{})
		}
	}
	if v.T == value.Array && n.expands() {
		if c.elements(n, v.Doc()) {
			return true
		}
	}
	return c.test(n, v)
}

// expands reports whether a predicate holds for an array if it holds for one of its elements.
func (n *Node) expands() bool {
	switch n.Kind {
	case Size, ElemMatchObject, ElemMatchValue, Exists:
		return false
	}
	return true
}

func (c *context) elements(n *Node, arr []byte) bool {
	it := value.Walk(arr)
	for idx := 0; ; idx++ {
		_, e, ok := it.Next()
		if !ok {
			return false
		}
		if c.test(n, e) {
			c.found(idx)
			return true
		}
	}
}

// through continues below an array in the middle of a path: into each element that is a document and, if the next
// component is a number, into the element at that index.
func (c *context) through(n *Node, arr []byte, i int) bool {
	it := value.Walk(arr)
	for idx := 0; ; idx++ {
		_, e, ok := it.Next()
		if !ok {
			return false
		}
		if e.T == value.Document && c.path(n, e, i) {
			c.found(idx)
			return true
		}
		if n.parts[i].num == idx && c.atIndex(n, e, i+1) {
			return true // the path names this element: it is not the one that the operator $ refers to
		}
	}
}

// atIndex continues at an element that the path names by its index: here an array is not expanded at the path's end,
// and an array inside it is read as a document whose fields are its indexes.
func (c *context) atIndex(n *Node, e value.Value, i int) bool {
	switch {
	case i == len(n.parts):
		return c.test(n, e)
	case e.T == value.Document:
		return c.path(n, e, i)
	case e.T == value.Array:
		return c.path(n, n.parts[i].key.Lookup(e.Doc()), i+1)
	}
	return false
}

// found records the position of an array element that matched; outer arrays are recorded last.
func (c *context) found(idx int) {
	if c.detail != nil {
		c.detail.ArrayIndex = idx
	}
}

// test runs a leaf's predicate on one value.
func (c *context) test(n *Node, v value.Value) bool {
	switch n.Kind {
	case Eq, Lt, Lte, Gt, Gte:
		return c.compare(n, v)
	case In:
		return c.in(n, v)
	case RegexMatch:
		return c.regex(n, v)
	case Exists:
		return v.T != value.Missing
	case Geo:
		pace := c.pace // a copy, so that the context is not allocated on the heap
		ok, err := n.Geo.Matches(v, &pace)
		if err != nil {
			c.fail(err)
		}
		return ok
	case TypeIs:
		return n.Types.Has(v.T)
	case Mod:
		i, ok := v.Truncate()
		return ok && n.Num != 0 && modulo(i, n.Num) == n.Rem
	case Size:
		return v.T == value.Array && int64(value.Count(v.Doc())) == n.Num
	case ElemMatchObject:
		return v.T == value.Array && c.elemMatchObject(n, v.Doc())
	case ElemMatchValue:
		return v.T == value.Array && c.elemMatchValue(n, v.Doc())
	case BitsAllSet, BitsAllClear, BitsAnySet, BitsAnyClear:
		return n.Bits.test(n.Kind, v)
	}
	return false
}

func modulo(a, b int64) int64 {
	if b == -1 {
		return 0 // the least long divided by -1 overflows
	}
	return a % b
}

// compare runs a comparison: only values of the same kind are comparable, except null with missing, and MinKey
// and MaxKey with anything.
func (c *context) compare(n *Node, v value.Value) bool {
	w := n.Value
	if v.T == w.T && (v.T == value.Int32 || v.T == value.Int64 || v.T == value.DateTime) {
		return ordered(n.Kind, cmp.Compare(v.Int64(), w.Int64()))
	}
	if !value.SameKind(v.T, w.T) || v.T == value.Missing || v.T == value.Undefined {
		return compareKinds(n.Kind, v.T, w.T)
	}
	if v.T.Numeric() && (v.IsNaN() || w.IsNaN()) {
		return n.Kind != Lt && n.Kind != Gt && v.IsNaN() && w.IsNaN()
	}
	if n.Kind == Eq && c.m.coll == nil {
		return value.Equal(v, w)
	}
	return ordered(n.Kind, value.CompareCollated(v, w, c.m.coll))
}

// ordered returns the result of a comparison for an ordering.
func ordered(k Kind, r int) bool {
	switch k {
	case Eq:
		return r == 0
	case Lt:
		return r < 0
	case Lte:
		return r <= 0
	case Gt:
		return r > 0
	}
	return r >= 0
}

func compareKinds(k Kind, v, operand value.Type) bool {
	switch operand {
	case value.Null:
		return v == value.Missing && (k == Eq || k == Lte || k == Gte)
	case value.MinKey:
		return k == Gt || k == Gte
	case value.MaxKey:
		return k == Lt || k == Lte
	}
	return false
}

func (c *context) in(n *Node, v value.Value) bool {
	if v.T == value.Missing {
		return n.hasNil
	}
	if len(n.Values) > 0 && v.T != value.Undefined {
		if len(n.Values) <= 4 && c.m.coll == nil {
			for _, w := range n.Values {
				if value.Equal(v, w) {
					return true
				}
			}
		} else if c.search(n.Values, v) {
			return true
		}
	}
	for _, r := range n.Regexes {
		if c.runRegex(n, r, v) {
			return true
		}
	}
	return false
}

func (c *context) search(sorted []value.Value, v value.Value) bool {
	lo, hi := 0, len(sorted)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		switch r := value.CompareCollated(sorted[mid], v, c.m.coll); {
		case r == 0:
			return true
		case r < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return false
}

func (c *context) elemMatchObject(n *Node, arr []byte) bool {
	d := c.detail
	c.detail = nil
	defer func() { c.detail = d }()
	it := value.Walk(arr)
	for idx := 0; ; idx++ {
		_, e, ok := it.Next()
		if !ok {
			return false
		}
		if (e.T == value.Document || e.T == value.Array) && c.document(n.Children[0], e.Doc()) {
			c.detail = d
			c.found(idx)
			return true
		}
	}
}

func (c *context) elemMatchValue(n *Node, arr []byte) bool {
	it := value.Walk(arr)
	for idx := 0; ; idx++ {
		_, e, ok := it.Next()
		if !ok {
			return false
		}
		all := true
		for _, ch := range n.Children {
			if !c.value(ch, e) {
				all = false
				break
			}
		}
		if all {
			c.found(idx)
			return true
		}
	}
}

func (c *context) expression(n *Node, doc []byte) bool {
	f := c.m.frame
	f.SetRoot(doc)
	v, err := n.Expr.Eval(f)
	if err != nil {
		c.fail(err)
		return false
	}
	return v.Truthy()
}

// where runs a script, for which the document is both this and obj.
func (c *context) where(n *Node, doc []byte) bool {
	d := value.NewDocument(doc)
	script := c.m.frame.Script()
	script.SetValue("obj", d)
	v, err := script.Call(n.Script, d)
	if err != nil {
		c.fail(err)
		return false
	}
	return v.Truthy()
}

func (c *context) sample(n *Node) bool {
	if c.m.rand != nil {
		return c.m.rand() < n.Rate
	}
	return rand.Float64() < n.Rate
}

func (c *context) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}
