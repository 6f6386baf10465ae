package expr

import (
	"slices"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		binary("$arrayElemAt", arrayElemAt),
		unary("$first", firstOrLast("$first", 0)),
		unary("$last", firstOrLast("$last", -1)),
		nary("$concatArrays", 0, -1, evalConcatArrays),
		binary("$in", in),
		nary("$indexOfArray", 2, 4, evalIndexOfArray),
		nary("$range", 2, 3, evalRange),
		unary("$reverseArray", reverseArray),
		unary("$size", size),
		nary("$slice", 2, 3, evalSlice),
	)
}

// element returns the i-th element; a negative i counts from the end. Missing if there is none.
func element(arr []byte, i int) value.Value {
	if i < 0 {
		if i += value.Count(arr); i < 0 {
			return value.Value{}
		}
	}
	it := value.Walk(arr)
	for {
		_, v, ok := it.Next()
		if !ok || i == 0 {
			return v
		}
		i--
	}
}

// toInt32 converts an integral number.
func toInt32(v value.Value) (int, bool) {
	i, ok := v.AsInt64()
	return int(i), ok && i == int64(int32(i))
}

func arrayElemAt(f *Frame, arr, at value.Value) (value.Value, error) {
	if arr.IsNullish() || at.IsNullish() {
		return null, nil
	}
	if arr.T != value.Array {
		return arr, mongoerr.Newf(28689, "$arrayElemAt's first argument must be an array, but is %s", arr.T.Name())
	}
	if !at.T.Numeric() {
		return arr, mongoerr.Newf(28690, "$arrayElemAt's second argument must be a numeric value, but is %s", at.T.Name())
	}
	i, ok := toInt32(at)
	if !ok {
		return arr, mongoerr.Newf(28691, "$arrayElemAt's second argument must be representable as a 32-bit integer: %s", Show(at))
	}
	f.charge(len(arr.Doc()))
	return element(arr.Doc(), i), nil
}

func firstOrLast(name string, i int) func(*Frame, value.Value) (value.Value, error) {
	return func(f *Frame, v value.Value) (value.Value, error) {
		if v.IsNullish() {
			return null, nil
		}
		if v.T != value.Array {
			return v, mongoerr.Newf(28689, "%s's argument must be an array, but is %s", name, v.T.Name())
		}
		f.charge(len(v.Doc()))
		return element(v.Doc(), i), nil
	}
}

func evalConcatArrays(f *Frame, c *call) (value.Value, error) {
	b := f.beginArray()
	for _, n := range c.args {
		v, err := n.eval(f)
		if err != nil {
			return b.abandon(err)
		}
		if v.IsNullish() {
			b.abandon(nil)
			return null, nil
		}
		if v.T != value.Array {
			return b.abandon(mongoerr.Newf(28664, "$concatArrays only supports arrays, not %s", v.T.Name()))
		}
		if err := b.addAll("$concatArrays", v.Doc()); err != nil {
			return b.abandon(err)
		}
	}
	return b.finish(), nil
}

// addAll appends the elements of an array.
func (b *builder) addAll(op string, arr []byte) error {
	for it := value.Walk(arr); ; {
		_, e, ok := it.Next()
		if !ok {
			return nil
		}
		b.add(e)
		if err := b.added(op); err != nil {
			return err
		}
	}
}

func in(f *Frame, v, arr value.Value) (value.Value, error) {
	return isMember(f, v, arr, f.env.Collator)
}

// plainIn is $in without the collation: see PlainMembership.
var plainIn = binary("$in", func(f *Frame, v, arr value.Value) (value.Value, error) { return isMember(f, v, arr, nil) })

func isMember(f *Frame, v, arr value.Value, coll value.Collator) (value.Value, error) {
	if arr.T != value.Array {
		return v, mongoerr.Newf(40081, "$in requires an array as a second argument, found: %s", arr.T.Name())
	}
	for it := value.Walk(arr.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return value.NewBool(false), nil
		}
		if v.T != value.Missing && value.CompareCollated(v, e, coll) == 0 { // an array has no missing elements
			return value.NewBool(true), nil
		}
		if err := f.Check(); err != nil {
			return v, err
		}
	}
}

// PlainMembership makes each {$in: [<field>, <array of constants>]} that the filter {$expr: e} requires compare its strings
// byte by byte, whatever the collation. The server derives from such an operand a filter {<field>: {$in: […]}} that an
// index can serve, and the derived filter has no collation; since it only adds to what is required, the plain comparison decides.
func (e *Expr) PlainMembership() {
	var walk func(n node)
	walk = func(n node) {
		c, ok := n.(*call)
		if !ok {
			return
		}
		switch c.op.name {
		case "$and", "$or":
			for _, arg := range c.args {
				walk(arg)
			}
		case "$in":
			if p, ok := c.args[0].(*fieldPath); ok && p.base == baseRoot && len(p.parts) > 0 && constants(c.args[1]) {
				c.op = plainIn
			}
		}
	}
	walk(e.n)
}

// constants reports whether n is an array of constants.
func constants(n node) bool {
	switch n := n.(type) {
	case *constant:
		return n.v.T == value.Array
	case *array:
		return !slices.ContainsFunc(n.elems, func(e node) bool { _, ok := e.(*constant); return !ok })
	}
	return false
}

func evalIndexOfArray(f *Frame, c *call) (value.Value, error) {
	arr, err := c.args[0].eval(f)
	if err != nil {
		return arr, err
	}
	if arr.IsNullish() {
		return null, nil
	}
	if arr.T != value.Array {
		return arr, mongoerr.Newf(40090, "$indexOfArray requires an array as a first argument, found: %s", arr.T.Name())
	}
	want, err := c.args[1].eval(f)
	if err != nil {
		return want, err
	}
	start, end := int64(0), int64(value.Count(arr.Doc()))
	if len(c.args) > 2 {
		if start, err = f.arrayBound(c.args[2], "starting"); err != nil {
			return arr, err
		}
	}
	if len(c.args) > 3 {
		e, err := f.arrayBound(c.args[3], "ending")
		if err != nil {
			return arr, err
		}
		end = min(end, e)
	}
	it := value.Walk(arr.Doc())
	for i := int64(0); i < end; i++ {
		_, e, _ := it.Next()
		if i >= start && f.equal(e, want) {
			return fitInt(i, true), nil
		}
		if err := f.Check(); err != nil {
			return arr, err
		}
	}
	return value.NewInt32(-1), nil
}

func (f *Frame) arrayBound(n node, which string) (int64, error) {
	v, err := n.eval(f)
	if err != nil {
		return 0, err
	}
	i, ok := toInt32(v)
	if !ok {
		return 0, mongoerr.Newf(9711600, "$indexOfArray requires an integral %s index, found a value of type: %s, with value: %s",
			which, v.T.Name(), Show(v))
	}
	if i < 0 {
		return 0, mongoerr.Newf(9711601, "$indexOfArray requires a nonnegative %s index, found: %s", which, Show(v))
	}
	return int64(i), nil
}

// maxRangeBytes limits the size of the array that $range builds.
const maxRangeBytes = 100 << 20

func evalRange(f *Frame, c *call) (value.Value, error) {
	start, err := f.rangeArg(c.args[0], "starting value", 34443, 34444)
	if err != nil {
		return value.Value{}, err
	}
	end, err := f.rangeArg(c.args[1], "ending value", 34445, 34446)
	if err != nil {
		return value.Value{}, err
	}
	step := int64(1)
	if len(c.args) > 2 {
		if step, err = f.rangeArg(c.args[2], "step value", 34447, 34448); err != nil {
			return value.Value{}, err
		}
		if step == 0 {
			return value.Value{}, mongoerr.New(34449, "$range requires a non-zero step value")
		}
	}
	if n := (end - start) / step * 16; n > maxRangeBytes {
		return value.Value{}, mongoerr.Newf(146, "$range would use too much memory (%d bytes) and cannot spill to disk. Memory limit: %d bytes",
			n, maxRangeBytes)
	}
	b := f.beginArray()
	for i := start; step > 0 && i < end || step < 0 && i > end; i += step {
		b.add(value.NewInt32(int32(i)))
		if err := f.step("$range", 0); err != nil {
			return b.abandon(err)
		}
	}
	return b.finish(), nil
}

func (f *Frame) rangeArg(n node, what string, typeCode, intCode mongoerr.Code) (int64, error) {
	v, err := n.eval(f)
	if err != nil {
		return 0, err
	}
	if !v.T.Numeric() {
		return 0, mongoerr.Newf(typeCode, "$range requires a numeric %s, found value of type: %s", what, v.T.Name())
	}
	i, ok := toInt32(v)
	if !ok {
		return 0, mongoerr.Newf(intCode, "$range requires a %s that can be represented as a 32-bit integer, found value: %s", what, Show(v))
	}
	return int64(i), nil
}

func reverseArray(f *Frame, v value.Value) (value.Value, error) {
	if v.IsNullish() {
		return null, nil
	}
	if v.T != value.Array {
		return v, mongoerr.Newf(34435, "The argument to $reverseArray must be an array, but was of type: %s", v.T.Name())
	}
	es := value.Values(v.Doc())
	b := f.beginArray()
	for i := len(es) - 1; i >= 0; i-- {
		b.add(es[i])
		if err := b.added("$reverseArray"); err != nil {
			return b.abandon(err)
		}
	}
	return b.finish(), nil
}

func size(f *Frame, v value.Value) (value.Value, error) {
	if v.T != value.Array {
		return v, mongoerr.Newf(17124, "The argument to $size must be an array, but was of type: %s", v.T.Name())
	}
	f.charge(len(v.Doc()))
	return value.NewInt32(int32(value.Count(v.Doc()))), nil
}

func evalSlice(f *Frame, c *call) (value.Value, error) {
	arr, err := c.args[0].eval(f)
	if err != nil {
		return arr, err
	}
	at, err := c.args[1].eval(f)
	if err != nil {
		return at, err
	}
	if arr.IsNullish() || at.IsNullish() {
		return null, nil
	}
	if arr.T != value.Array {
		return arr, mongoerr.Newf(28724, "First argument to $slice must be an array, but is of type: %s", arr.T.Name())
	}
	pos, err := sliceArg("Second", at, 28725, 28726)
	if err != nil {
		return at, err
	}
	n := value.Count(arr.Doc())
	start, end := 0, n
	if len(c.args) == 2 {
		if pos < 0 {
			start = max(0, n+pos)
		} else {
			end = min(n, pos)
		}
		return f.sliceOf(arr.Doc(), start, end)
	}
	count, err := c.args[2].eval(f)
	if err != nil {
		return count, err
	}
	if count.IsNullish() {
		return null, nil
	}
	m, err := sliceArg("Third", count, 28727, 28728)
	if err != nil {
		return count, err
	}
	if m <= 0 {
		return count, mongoerr.Newf(28729, "Third argument to $slice must be positive: %s", Show(count))
	}
	if start = pos; pos < 0 {
		start = max(0, n+pos)
	}
	return f.sliceOf(arr.Doc(), start, min(n, start+m))
}

func sliceArg(which string, v value.Value, typeCode, intCode mongoerr.Code) (int, error) {
	if !v.T.Numeric() {
		return 0, mongoerr.Newf(typeCode, "%s argument to $slice must be numeric, but is of type: %s", which, v.T.Name())
	}
	i, ok := toInt32(v)
	if !ok {
		return 0, mongoerr.Newf(intCode, "%s argument to $slice can't be represented as a 32-bit integer: %s", which, Show(v))
	}
	return i, nil
}

func (f *Frame) sliceOf(arr []byte, start, end int) (value.Value, error) {
	b := f.beginArray()
	it := value.Walk(arr)
	for i := 0; i < end; i++ {
		_, e, ok := it.Next()
		if !ok {
			break
		}
		if i >= start {
			b.add(e)
		}
		if err := b.added("$slice"); err != nil {
			return b.abandon(err)
		}
	}
	return b.finish(), nil
}
