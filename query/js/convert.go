package js

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/dop251/goja"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxDepth is the maximum nesting of an object converted to BSON; cycles end there.
const maxDepth = 150

// maxResult limits the size of what is converted: a script's array may be a billion elements long without having any.
const maxResult = 128 << 20

var errLargeResult = mongoerr.Newf(mongoerr.BSONObjectTooLarge, "the result of a JavaScript function is larger than %d bytes", maxResult)

// holder is the BSON value that an object was made from.
type holder struct{ v value.Value }

// toJS turns a BSON value into JavaScript's.
func (r *Runtime) toJS(v value.Value) goja.Value {
	switch v.T {
	case value.Missing, value.Undefined:
		return goja.Undefined()
	case value.Null:
		return goja.Null()
	case value.Boolean:
		return r.vm.ToValue(v.Bool())
	case value.Int32:
		return r.vm.ToValue(v.Int64())
	case value.Double:
		return r.vm.ToValue(v.Double())
	case value.String, value.Symbol:
		return r.vm.ToValue(v.Str())
	case value.DateTime:
		return r.construct("Date", r.vm.ToValue(float64(v.DateTime())))
	case value.Regex:
		pattern, options := v.Regex()
		if re, err := r.vm.New(r.vm.Get("RegExp"), r.vm.ToValue(pattern), r.vm.ToValue(jsFlags(options))); err == nil {
			return r.remember(re, v)
		}
		return r.wrap(v)
	case value.Document:
		return r.object(v)
	case value.Array:
		var items []any
		for _, e := range value.Values(v.Doc()) {
			items = append(items, r.toJS(e))
		}
		return r.vm.NewArray(items...)
	}
	return r.wrap(v)
}

func (r *Runtime) construct(class string, args ...goja.Value) goja.Value {
	o, err := r.vm.New(r.vm.Get(class), args...)
	if err != nil {
		return goja.Undefined()
	}
	return o
}

func (r *Runtime) object(v value.Value) goja.Value {
	o := r.vm.NewObject()
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return r.remember(o, v)
		}
		_ = o.Set(string(k), r.toJS(e))
	}
}

// remember ties the BSON value to an object.
func (r *Runtime) remember(o *goja.Object, v value.Value) *goja.Object {
	_ = o.DefineDataPropertySymbol(r.held, r.vm.ToValue(&holder{v}), goja.FLAG_FALSE, goja.FLAG_FALSE, goja.FLAG_FALSE)
	return o
}

func (r *Runtime) remembered(o *goja.Object) (value.Value, bool) {
	p := o.GetSymbol(r.held)
	if p == nil {
		return value.Value{}, false
	}
	h, ok := p.Export().(*holder)
	if !ok {
		return value.Value{}, false
	}
	return h.v, true
}

// wrap makes an object for a type JavaScript lacks.
func (r *Runtime) wrap(v value.Value) goja.Value {
	o := r.vm.NewObject()
	if p := r.proto[v.T]; p != nil {
		_ = o.SetPrototype(p)
	}
	if v.T == value.Timestamp {
		t, i := v.Timestamp()
		_ = o.Set("t", int64(t))
		_ = o.Set("i", int64(i))
	}
	return r.remember(o, v)
}

func jsFlags(options string) string {
	var b strings.Builder
	for _, c := range options {
		if c == 'i' || c == 'm' || c == 's' {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// fromJS turns JavaScript's value into BSON.
func (r *Runtime) fromJS(v goja.Value) (value.Value, error) { return r.from(v, value.Value{}, 0) }

// from is fromJS; was is the previous BSON value in v's place, which determines the type of integers.
func (r *Runtime) from(v goja.Value, was value.Value, depth int) (value.Value, error) {
	switch {
	case v == nil || goja.IsUndefined(v):
		return value.NewUndefined(), nil
	case goja.IsNull(v):
		return value.NewNull(), nil
	}
	o, ok := v.(*goja.Object)
	if !ok {
		switch x := v.Export().(type) {
		case bool:
			return value.NewBool(x), nil
		case string:
			return value.NewString(x), nil
		case *big.Int:
			return value.Value{}, mongoerr.New(mongoerr.JSInterpreterFailure, "a BigInt cannot be converted to BSON")
		}
		f := v.ToFloat()
		if was.T == value.Int32 && f == math.Trunc(f) && math.Abs(f) < 1<<31 {
			return value.NewInt32(int32(f)), nil
		}
		return value.NewDouble(f), nil
	}
	return r.fromObject(o, depth)
}

func (r *Runtime) fromObject(o *goja.Object, depth int) (value.Value, error) {
	if depth > maxDepth {
		return value.Value{}, mongoerr.Newf(17279, "Exceeded depth limit of %d when converting js object to BSON. Do you have a cycle?", maxDepth)
	}
	held, isHeld := r.remembered(o)
	if isHeld && held.T != value.Document {
		return held.Clone(), nil
	}
	switch o.ClassName() {
	case "Date":
		return value.NewDateTime(int64(o.ToFloat())), nil
	case "Number":
		return value.NewDouble(o.ToFloat()), nil
	case "String":
		return value.NewString(o.String()), nil
	case "Boolean":
		return value.NewBool(o.ToBoolean()), nil
	case "RegExp":
		return value.NewRegex(o.Get("source").String(), strings.ReplaceAll(o.Get("flags").String(), "g", "")), nil
	case "Function":
		return value.NewJavaScript([]byte(o.String())), nil
	case "Array":
		return r.fromArray(o, depth)
	}
	dst, mark := value.Begin(nil)
	for _, k := range o.Keys() {
		var was value.Value
		if isHeld {
			was = value.Lookup(held.Doc(), k)
		}
		v, err := r.from(o.Get(k), was, depth+1)
		if err != nil {
			return v, err
		}
		if dst = value.Append(dst, k, v); len(dst) > maxResult {
			return value.Value{}, errLargeResult
		}
	}
	return value.NewDocument(value.End(dst, mark)), nil
}

func (r *Runtime) fromArray(o *goja.Object, depth int) (value.Value, error) {
	n := int(o.Get("length").ToInteger())
	dst, mark := value.Begin(nil)
	for i := range n {
		v, err := r.from(o.Get(strconv.Itoa(i)), value.Value{}, depth+1)
		if err != nil {
			return v, err
		}
		if dst = value.AppendIndex(dst, i, v); len(dst) > maxResult {
			return value.Value{}, errLargeResult
		}
	}
	return value.NewArray(value.End(dst, mark)), nil
}
