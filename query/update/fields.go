package update

import (
	"math"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// operator acts at the end of a path: it receives the old value (Missing if there is none) and returns the new
// one (Missing to remove the field). The result may borrow from old, from the operator or from r.work.
type operator interface {
	apply(r *run, old value.Value) (value.Value, error)
}

type setOp struct{ v value.Value }

func parseSet(_ *compiler, _ string, v value.Value) (operator, error) {
	return &setOp{v.Clone()}, nil
}

func (o *setOp) apply(*run, value.Value) (value.Value, error) { return o.v, nil }

type unsetOp struct{}

func parseUnset(*compiler, string, value.Value) (operator, error) { return unsetOp{}, nil }

func (unsetOp) apply(*run, value.Value) (value.Value, error) { return value.Value{}, nil }

// arithmetic is $inc and $mul.
type arithmetic struct {
	name string
	by   value.Value
	mul  bool
}

func parseInc(_ *compiler, path string, v value.Value) (operator, error) {
	if !v.T.Numeric() {
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "Cannot increment with non-numeric argument: {%s: %s}", path, value.Show(v))
	}
	return &arithmetic{name: "$inc", by: v.Clone()}, nil
}

func parseMul(_ *compiler, path string, v value.Value) (operator, error) {
	if !v.T.Numeric() {
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "Cannot multiply with non-numeric argument: {%s: %s}", path, value.Show(v))
	}
	return &arithmetic{name: "$mul", by: v.Clone(), mul: true}, nil
}

func (o *arithmetic) apply(r *run, old value.Value) (value.Value, error) {
	if old.T == value.Missing {
		if o.mul {
			return zeroLike(o.by), nil
		}
		return o.by, nil
	}
	if !old.T.Numeric() {
		return old, mongoerr.Newf(mongoerr.TypeMismatch,
			"Cannot apply %s to a value of non-numeric type. %s has the field '%s' of non-numeric type %s",
			o.name, r.docID(), r.path[len(r.path)-1], old.T.Name())
	}
	now, ok := compute(old, o.by, o.mul)
	if !ok {
		return old, mongoerr.Newf(mongoerr.BadValue, "Failed to apply %s operations to current value (%s) for document %s",
			o.name, showNumber(old), r.docID())
	}
	if now.T == old.T && value.Compare(now, old) == 0 {
		return old, nil // no change: a negative zero or trailing zeros are kept
	}
	return now, nil
}

func showNumber(v value.Value) string {
	switch v.T {
	case value.Int32:
		return "(NumberInt)" + value.Show(v)
	case value.Int64:
		return "(NumberLong)" + value.Show(v)
	}
	return value.Show(v)
}

func zeroLike(v value.Value) value.Value {
	switch v.T {
	case value.Int64:
		return value.NewInt64(0)
	case value.Double:
		return value.NewDouble(0)
	case value.Decimal128:
		z, _ := value.ParseDecimal128("0")
		return z
	}
	return value.NewInt32(0)
}

// compute adds or multiplies; ok is false if a long overflows.
func compute(a, b value.Value, mul bool) (value.Value, bool) {
	switch {
	case a.T == value.Decimal128 || b.T == value.Decimal128:
		if mul {
			return decimal.Value(decimal.Mul(decimal.Of(a), decimal.Of(b))), true
		}
		return decimal.Value(decimal.Add(decimal.Of(a), decimal.Of(b))), true
	case a.T == value.Double || b.T == value.Double:
		if mul {
			return value.NewDouble(a.AsFloat64() * b.AsFloat64()), true
		}
		return value.NewDouble(a.AsFloat64() + b.AsFloat64()), true
	}
	x, y := a.Int64(), b.Int64()
	var n int64
	var ok bool
	if mul {
		n, ok = mulInt64(x, y)
	} else {
		n = x + y
		ok = (n > x) == (y > 0)
	}
	if !ok {
		return a, false
	}
	if a.T == value.Int32 && b.T == value.Int32 && n >= math.MinInt32 && n <= math.MaxInt32 {
		return value.NewInt32(int32(n)), true
	}
	return value.NewInt64(n), true
}

func mulInt64(x, y int64) (int64, bool) {
	if x == 0 || y == 0 {
		return 0, true
	}
	n := x * y
	if n/y != x || x == -1 && y == math.MinInt64 || y == -1 && x == math.MinInt64 {
		return 0, false
	}
	return n, true
}

// compareOp is $min (sign -1) and $max (sign 1).
type compareOp struct {
	v    value.Value
	sign int
	coll value.Collator
}

func parseMin(c *compiler, _ string, v value.Value) (operator, error) {
	return &compareOp{v.Clone(), -1, c.collator}, nil
}

func parseMax(c *compiler, _ string, v value.Value) (operator, error) {
	return &compareOp{v.Clone(), 1, c.collator}, nil
}

func (o *compareOp) apply(_ *run, old value.Value) (value.Value, error) {
	if old.T == value.Missing || value.CompareCollated(o.v, old, o.coll)*o.sign > 0 {
		return o.v, nil
	}
	return old, nil
}

type currentDate struct{ timestamp bool }

func parseCurrentDate(_ *compiler, _ string, v value.Value) (operator, error) {
	switch v.T {
	case value.Boolean:
		return &currentDate{}, nil
	case value.Document:
	default:
		return nil, mongoerr.Newf(mongoerr.BadValue, "%s is not valid type for $currentDate. Please use a boolean ('true') or "+
			"a $type expression ({$type: 'timestamp/date'}).", v.T.Name())
	}
	out, found := &currentDate{}, false
	for it := value.Walk(v.Doc()); ; {
		k, t, ok := it.Next()
		if !ok {
			break
		}
		if string(k) != "$type" {
			return nil, mongoerr.Newf(mongoerr.BadValue, "Unrecognized $currentDate option: %s", k)
		}
		if found = t.T == value.String && (t.Str() == "date" || t.Str() == "timestamp"); !found {
			break
		}
		out.timestamp = t.Str() == "timestamp"
	}
	if !found {
		return nil, mongoerr.New(mongoerr.BadValue, "The '$type' string field is required to be 'date' or 'timestamp': "+
			"{$currentDate: {field : {$type: 'date'}}}")
	}
	return out, nil
}

func (o *currentDate) apply(r *run, _ value.Value) (value.Value, error) {
	if o.timestamp {
		return value.NewTimestampU64(r.ctx.ClusterTime), nil
	}
	return value.NewDateTime(r.ctx.NowMS), nil
}

// bitOp is $bit: its operations in their order.
type bitOp struct{ steps []bitStep }

type bitStep struct {
	name string
	arg  value.Value
}

func parseBit(_ *compiler, _ string, v value.Value) (operator, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.BadValue, "The $bit modifier is not compatible with a %s. You must pass in an "+
			"embedded document: {$bit: {field: {and/or/xor: #}}", v.T.Name())
	}
	o := &bitOp{}
	for it := value.Walk(v.Doc()); ; {
		k, arg, ok := it.Next()
		if !ok {
			break
		}
		name := string(k)
		if name != "and" && name != "or" && name != "xor" {
			return nil, mongoerr.Newf(mongoerr.BadValue, "The $bit modifier only supports 'and', 'or', and 'xor', not '%s' "+
				"which is an unknown operator: {%s: %s}", name, name, value.Show(arg))
		}
		if arg.T != value.Int32 && arg.T != value.Int64 {
			return nil, mongoerr.Newf(mongoerr.BadValue, "The $bit modifier field must be an Integer(32/64 bit); a '%s' is "+
				"not supported here: {%s: %s}", arg.T.Name(), name, value.Show(arg))
		}
		o.steps = append(o.steps, bitStep{name, arg})
	}
	if len(o.steps) == 0 {
		return nil, mongoerr.New(mongoerr.BadValue,
			"You must pass in at least one bitwise operation. The format is: {$bit: {field: {and/or/xor: #}}")
	}
	return o, nil
}

func (o *bitOp) apply(r *run, old value.Value) (value.Value, error) {
	switch old.T {
	case value.Missing:
		old = value.NewInt32(0)
	case value.Int32, value.Int64:
	default:
		return old, mongoerr.Newf(mongoerr.BadValue,
			"Cannot apply $bit to a value of non-integral type._id: %s has the field %s of non-integer type %s",
			value.Show(value.Lookup(r.ctx.Doc, "_id")), r.path[len(r.path)-1], old.T.Name())
	}
	n, long := old.Int64(), old.T == value.Int64
	for _, s := range o.steps {
		long = long || s.arg.T == value.Int64
		switch s.name {
		case "and":
			n &= s.arg.Int64()
		case "or":
			n |= s.arg.Int64()
		default:
			n ^= s.arg.Int64()
		}
	}
	if long {
		return value.NewInt64(n), nil
	}
	return value.NewInt32(int32(n)), nil
}

// renameSource removes a field, which renameTarget sets elsewhere.
type renameSource struct{ path string }

func (o *renameSource) apply(*run, value.Value) (value.Value, error) { return value.Value{}, nil }

// find reads the field from the original document; in is the array that the path leads into, if any.
func (o *renameSource) find(doc []byte) (v value.Value, in string) {
	walked := ""
	for rest := o.path; ; {
		var head string
		head, rest = cutDot(rest)
		v = value.Lookup(doc, head)
		walked = joinPath(walked, head)
		if rest == "" {
			return v, ""
		}
		switch v.T {
		case value.Document:
			doc = v.Doc()
		case value.Array:
			if absent(v, rest) {
				return value.Value{}, ""
			}
			return value.Value{}, walked
		default:
			return value.Value{}, ""
		}
	}
}

// absent reports whether a path of positions and names leads to nothing in v: such a field is not renamed,
// wherever it is.
func absent(v value.Value, path string) bool {
	for path != "" {
		var head string
		head, path = cutDot(path)
		switch v.T {
		case value.Array:
			if _, err := strconv.ParseUint(head, 10, 32); err != nil {
				return false // no position: the path itself is wrong
			}
			v = value.Lookup(v.Doc(), head)
		case value.Document:
			v = value.Lookup(v.Doc(), head)
		default:
			return true
		}
	}
	return v.IsMissing()
}

func (o *renameSource) present(r *run) bool {
	v, _ := o.find(r.ctx.Doc)
	return v.T != value.Missing
}

func (o *renameSource) inArray(r *run) error {
	_, at := o.find(r.ctx.Doc)
	return mongoerr.Newf(mongoerr.BadValue, "The source field cannot be an array element, '%s' in doc with _id: %s has an array "+
		"field called '%s'", o.path, value.Show(value.Lookup(r.ctx.Doc, "_id")), at[strings.LastIndexByte(at, '.')+1:])
}

type renameTarget struct {
	source *renameSource
	path   string
}

func (o *renameTarget) apply(r *run, old value.Value) (value.Value, error) {
	v, in := o.source.find(r.ctx.Doc)
	if in != "" {
		return old, o.source.inArray(r)
	}
	if v.T == value.Missing {
		return old, nil
	}
	if at := o.arrayAbove(r.ctx.Doc); at != "" {
		return old, targetInArray(r, at)
	}
	return v, nil
}

// arrayAbove returns the array that the target's path leads into, if any.
func (o *renameTarget) arrayAbove(doc []byte) string {
	_, in := (&renameSource{path: o.path}).find(doc)
	return in
}

func targetInArray(r *run, at string) error {
	return mongoerr.Newf(mongoerr.BadValue, "The destination field cannot be an array element, '%s' in doc with _id: %s has an "+
		"array field called '%s'", r.dotted(), value.Show(value.Lookup(r.ctx.Doc, "_id")), at[strings.LastIndexByte(at, '.')+1:])
}
