package js

import (
	_ "embed"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/dlclark/regexp2/v2"
	"github.com/dop251/goja"
	"github.com/dop251/goja/parser"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Limit is the maximum duration of one call.
const Limit = 60 * time.Second

// patternLimit is the maximum time for which a script's pattern may backtrack; after it the pattern
// matches nothing, since there is no other way to stop it.
const patternLimit = 2 * time.Second

func init() { regexp2.DefaultMatchTimeout = patternLimit }

// maxCallDepth limits recursion.
const maxCallDepth = 2000

// Func is a compiled function.
type Func struct {
	prog *goja.Program
	src  string
	big  bool // uses BigInt
}

// Source returns the text the function was compiled from.
func (f *Func) Source() string { return f.src }

var functionStart = regexp.MustCompile(`^\s*(async\s+)?(function\b|\([^()]*\)\s*=>|[A-Za-z_$][\w$]*\s*=>)`)

// Compile reads a function's source. If it is not a function it is used as the body of one, and if it is an expression
// as its result.
func Compile(src string) (*Func, error) {
	if tooDeep(src) {
		return nil, errNested
	}
	text := strings.TrimRight(strings.TrimSpace(src), ";")
	var candidates []string
	if functionStart.MatchString(text) {
		candidates = []string{text}
	} else {
		candidates = []string{"function(){ return " + text + "\n}", "function(){ " + text + "\n}"}
		if strings.Contains(text, "return") {
			candidates[0], candidates[1] = candidates[1], candidates[0]
		}
	}
	var first error
	for _, c := range candidates {
		f, err := compile("(" + c + ")")
		if err == nil {
			f.src = src
			return f, nil
		}
		if errors.Is(err, errBigInt) {
			return nil, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, mongoerr.Newf(mongoerr.JSInterpreterFailure, "%s", first)
}

func compile(src string) (*Func, error) {
	p, err := parse(src)
	if err != nil {
		return nil, err
	}
	f := &Func{big: usesBigInt(src, p)}
	if f.big {
		f.prog, err = compileBounded(p)
	} else {
		f.prog, err = goja.CompileAST(p, false)
	}
	return f, err
}

var (
	//go:embed prelude.js
	preludeSource string
	prelude       = goja.MustCompile("prelude", preludeSource, false)
	//go:embed bigint.js
	bigintSource  string
	bigintPrelude = goja.MustCompile("bigint", bigintSource, false)
)

// Runtime runs functions for one operation.
type Runtime struct {
	vm      *goja.Runtime
	fns     map[*Func]goja.Callable
	held    *goja.Symbol // the property with the BSON value that an object was made from
	proto   map[value.Type]*goja.Object
	check   func() error // nil: no call has to stop before its time limit
	globals map[string]global
	big     bool     // functions that use BigInt are run here
	withBig *Runtime // runs the functions that use BigInt; nil: none has been called
	run     *running // the current call, or the abandoned one
}

// global is a definition by Set or SetValue: a function, or a value.
type global struct {
	fn func(args []value.Value) (value.Value, error)
	v  value.Value
}

// Watch makes calls end when check returns an error.
func (r *Runtime) Watch(check func() error) { r.check = check }

// New starts a runtime.
func New() *Runtime { return newRuntime(false) }

func newRuntime(big bool) *Runtime {
	r := &Runtime{vm: goja.New(), fns: map[*Func]goja.Callable{}, held: goja.NewSymbol("bson"), proto: map[value.Type]*goja.Object{}, globals: map[string]global{}, big: big}
	r.vm.SetMaxCallStackSize(maxCallDepth)
	r.vm.SetParserOptions(parser.WithDisableSourceMaps)
	r.installBuiltins()
	if big {
		r.installBigInt()
	} else {
		r.removeBigInt()
	}
	return r
}

// of returns the runtime whose virtual machine runs f.
func (r *Runtime) of(f *Func) *Runtime {
	if f.big == r.big {
		return r
	}
	if r.withBig == nil {
		r.withBig = newRuntime(true)
		for name, g := range r.globals {
			r.withBig.define(name, g)
		}
	}
	r.withBig.check = r.check
	return r.withBig
}

// Set defines a global that JavaScript may call; fn's arguments and result are BSON values.
func (r *Runtime) Set(name string, fn func(args []value.Value) (value.Value, error)) {
	r.set(name, global{fn: fn})
}

// SetValue defines a global value (a mapReduce scope's variable).
func (r *Runtime) SetValue(name string, v value.Value) { r.set(name, global{v: v}) }

func (r *Runtime) set(name string, g global) {
	if r.run != nil && r.run.abandoned() {
		return // the virtual machine is still in use
	}
	r.globals[name] = g
	r.define(name, g)
	if r.withBig != nil {
		r.withBig.define(name, g)
	}
}

func (r *Runtime) define(name string, g global) {
	if g.fn == nil {
		_ = r.vm.Set(name, r.toJS(g.v))
		return
	}
	_ = r.vm.Set(name, func(c goja.FunctionCall) goja.Value {
		if r.run != nil && r.run.abandoned() {
			panic(r.vm.NewGoError(errAbandoned)) // an exception of JavaScript: the operation that it would reach has ended
		}
		args := make([]value.Value, len(c.Arguments))
		for i, a := range c.Arguments {
			v, err := r.fromJS(a)
			if err != nil {
				panic(r.vm.NewGoError(err)) // an exception of JavaScript, which Call catches
			}
			args[i] = v
		}
		out, err := g.fn(args)
		if err != nil {
			panic(r.vm.NewGoError(err))
		}
		return r.toJS(out)
	})
}

// Call runs a function.
func (r *Runtime) Call(f *Func, this value.Value, args ...value.Value) (value.Value, error) {
	r = r.of(f)
	return r.supervised(func() (value.Value, error) {
		fn, err := r.function(f)
		if err != nil {
			return value.Value{}, err
		}
		in := make([]goja.Value, len(args))
		for i, a := range args {
			in[i] = r.toJS(a)
		}
		out, err := fn(r.toJS(this), in...)
		if err != nil {
			return value.Value{}, scriptError(err)
		}
		return r.fromJS(out)
	})
}

// Fold runs f(state, args...) for each args in turn; the result is the next state. this is undefined.
func (r *Runtime) Fold(f *Func, state value.Value, batch [][]value.Value) (value.Value, error) {
	r = r.of(f)
	return r.supervised(func() (value.Value, error) {
		fn, err := r.function(f)
		if err != nil {
			return value.Value{}, err
		}
		now := r.toJS(state)
		var in []goja.Value
		for _, args := range batch {
			in = append(in[:0], now)
			for _, a := range args {
				in = append(in, r.toJS(a))
			}
			if now, err = fn(goja.Undefined(), in...); err != nil {
				return value.Value{}, scriptError(err)
			}
		}
		return r.fromJS(now)
	})
}

func (r *Runtime) function(f *Func) (goja.Callable, error) {
	if fn := r.fns[f]; fn != nil {
		return fn, nil
	}
	v, err := r.vm.RunProgram(f.prog)
	if err != nil {
		return nil, scriptError(err)
	}
	fn, ok := goja.AssertFunction(v)
	if !ok {
		return nil, mongoerr.Newf(mongoerr.JSInterpreterFailure, "%s is not a function", f.src)
	}
	r.fns[f] = fn
	return fn, nil
}

func scriptError(err error) error {
	var stopped *goja.InterruptedError
	if errors.As(err, &stopped) {
		if why, ok := stopped.Value().(error); ok {
			return why
		}
		return mongoerr.Newf(mongoerr.Interrupted, "%s", stopped.Value())
	}
	var deep *goja.StackOverflowError
	if errors.As(err, &deep) {
		return mongoerr.New(mongoerr.JSInterpreterFailure, "InternalError: too much recursion")
	}
	var thrown *goja.Exception
	if errors.As(err, &thrown) {
		var own *mongoerr.Error
		if errors.As(thrown.Unwrap(), &own) {
			return own
		}
		return mongoerr.Newf(mongoerr.JSInterpreterFailure, "%s", thrown.Value())
	}
	return mongoerr.Newf(mongoerr.JSInterpreterFailure, "%s", err)
}
