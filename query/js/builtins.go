package js

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/dop251/goja"

	"github.com/shoaldb/shoal/query/value"
)

// class is a BSON type that JavaScript sees as an object of its own.
type class struct {
	name string
	t    value.Type
	make func(r *Runtime, args []goja.Value) (value.Value, bool)
	text func(v value.Value) string
	num  bool // usable in arithmetic
}

var classes = []class{
	{"NumberLong", value.Int64, makeLong, func(v value.Value) string { return `NumberLong("` + strconv.FormatInt(v.Int64(), 10) + `")` }, true},
	{"NumberInt", value.Int32, makeInt, func(v value.Value) string { return "NumberInt(" + strconv.FormatInt(v.Int64(), 10) + ")" }, true},
	{"NumberDecimal", value.Decimal128, makeDecimal, func(v value.Value) string { return `NumberDecimal("` + v.DecimalString() + `")` }, true},
	{"ObjectId", value.ObjectID, makeObjectID, func(v value.Value) string { return `ObjectId("` + hex.EncodeToString(v.Bytes()) + `")` }, false},
	{"Timestamp", value.Timestamp, makeTimestamp, func(v value.Value) string {
		t, i := v.Timestamp()
		return "Timestamp(" + strconv.FormatUint(uint64(t), 10) + ", " + strconv.FormatUint(uint64(i), 10) + ")"
	}, false},
	{"BinData", value.Binary, makeBinary, binaryText, false},
	{"MinKey", value.MinKey, func(*Runtime, []goja.Value) (value.Value, bool) { return value.NewMinKey(), true },
		func(value.Value) string { return `{ "$minKey" : 1 }` }, false},
	{"MaxKey", value.MaxKey, func(*Runtime, []goja.Value) (value.Value, bool) { return value.NewMaxKey(), true },
		func(value.Value) string { return `{ "$maxKey" : 1 }` }, false},
}

// installBuiltins defines the classes and runs prelude.js.
func (r *Runtime) installBuiltins() {
	for _, c := range classes {
		ctor := r.vm.ToValue(func(call goja.ConstructorCall) *goja.Object {
			v, ok := c.make(r, call.Arguments)
			if !ok {
				panic(r.vm.NewTypeError("invalid argument of %s", c.name)) // an exception of JavaScript
			}
			return r.wrap(v).(*goja.Object)
		}).(*goja.Object)
		proto := ctor.Get("prototype").(*goja.Object)
		r.proto[c.t] = proto
		method := func(name string, fn func(v value.Value) any) {
			_ = proto.DefineDataProperty(name, r.vm.ToValue(func(call goja.FunctionCall) goja.Value {
				o, ok := call.This.(*goja.Object)
				if !ok {
					return goja.Undefined()
				}
				v, _ := r.remembered(o)
				return r.vm.ToValue(fn(v))
			}), goja.FLAG_TRUE, goja.FLAG_TRUE, goja.FLAG_FALSE)
		}
		text := c.text
		method("toString", func(v value.Value) any { return text(v) })
		method("toJSON", func(v value.Value) any { return text(v) })
		method("tojson", func(v value.Value) any { return text(v) })
		if c.num {
			method("valueOf", func(v value.Value) any { return v.AsFloat64() })
			method("toNumber", func(v value.Value) any { return v.AsFloat64() })
		}
		if c.t == value.ObjectID {
			method("valueOf", func(v value.Value) any { return hex.EncodeToString(v.Bytes()) })
			method("getTimestamp", func(v value.Value) any {
				id := v.ObjectID()
				return r.construct("Date", r.vm.ToValue(1000*float64(binary.BigEndian.Uint32(id[:4]))))
			})
		}
		if c.t == value.Binary {
			for name, fn := range binaryMethods {
				method(name, fn)
			}
		}
		_ = r.vm.Set(c.name, ctor)
	}
	_ = r.vm.Set("ObjectID", r.vm.Get("ObjectId"))
	_ = r.vm.Set("sleep", func(c goja.FunctionCall) goja.Value {
		if err := r.sleep(c.Argument(0).ToInteger()); err != nil {
			panic(r.vm.NewGoError(err)) // an exception of JavaScript, which Call catches
		}
		return goja.Undefined()
	})
	r.installFunctions()
	_ = r.vm.Set("shallowSource", r.shallowSource)
	_ = r.vm.Set("bigSource", func(c goja.FunctionCall) goja.Value {
		src := c.Argument(0).String()
		if r.big || !maybeLiteral.MatchString(src) {
			return r.vm.ToValue(false)
		}
		p, err := parse(src)
		return r.vm.ToValue(err == nil && hasLiteral(p)) // the compiler reports errors
	})
	_ = r.vm.Set("jsonDepth", func(c goja.FunctionCall) goja.Value { return r.vm.ToValue(jsonDepth(c.Argument(0).String())) })
	if _, err := r.vm.RunProgram(prelude); err != nil {
		panic(err) // a constant of this package
	}
}

func (r *Runtime) shallowSource(c goja.FunctionCall) goja.Value {
	return r.vm.ToValue(!tooDeep(c.Argument(0).String()))
}

// removeBigInt leaves nothing by which a function that does not use BigInt could get one: see bigint.go.
func (r *Runtime) removeBigInt() {
	for _, name := range []string{"BigInt", "BigInt64Array", "BigUint64Array"} {
		_ = r.vm.GlobalObject().Delete(name)
	}
	proto := r.vm.Get("DataView").(*goja.Object).Get("prototype").(*goja.Object)
	for _, name := range []string{"getBigInt64", "getBigUint64", "setBigInt64", "setBigUint64"} {
		_ = proto.Delete(name)
	}
}

// sleep waits, in steps after which it checks whether the operation has to stop.
func (r *Runtime) sleep(ms int64) error {
	const step = 20 * time.Millisecond
	left := time.Duration(min(max(ms, 0), Limit.Milliseconds())) * time.Millisecond
	for ; left > 0; left -= step {
		if r.check != nil {
			if err := r.check(); err != nil {
				return err
			}
		}
		time.Sleep(min(step, left))
	}
	return nil
}

func makeLong(_ *Runtime, args []goja.Value) (value.Value, bool) {
	if len(args) == 0 {
		return value.NewInt64(0), true
	}
	if s, ok := args[0].Export().(string); ok {
		i, err := strconv.ParseInt(s, 10, 64)
		return value.NewInt64(i), err == nil
	}
	return value.NewInt64(args[0].ToInteger()), true
}

func makeInt(_ *Runtime, args []goja.Value) (value.Value, bool) {
	if len(args) == 0 {
		return value.NewInt32(0), true
	}
	return value.NewInt32(int32(args[0].ToInteger())), true
}

func makeDecimal(_ *Runtime, args []goja.Value) (value.Value, bool) {
	text := "0"
	if len(args) > 0 {
		text = args[0].String()
	}
	v, err := value.ParseDecimal128(text)
	return v, err == nil
}

func makeObjectID(_ *Runtime, args []goja.Value) (value.Value, bool) {
	var id [12]byte
	if len(args) == 0 {
		return value.NewObjectID(value.GenerateObjectID()), true
	}
	text := []byte(args[0].String())
	if len(text) != 24 {
		return value.Value{}, false
	}
	_, err := hex.Decode(id[:], text)
	return value.NewObjectID(id), err == nil
}

func makeTimestamp(_ *Runtime, args []goja.Value) (value.Value, bool) {
	var t, i int64
	if len(args) == 2 {
		t, i = args[0].ToInteger(), args[1].ToInteger()
	}
	return value.NewTimestamp(uint32(t), uint32(i)), t >= 0 && i >= 0
}

func makeBinary(_ *Runtime, args []goja.Value) (value.Value, bool) {
	if len(args) != 2 {
		return value.Value{}, false
	}
	b, err := base64.StdEncoding.DecodeString(args[1].String())
	return value.NewBinary(byte(args[0].ToInteger()), b), err == nil
}
