package js

import (
	_ "embed"
	"errors"
	"regexp"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/dlclark/regexp2/v2"
	"github.com/dop251/goja"

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
		prog, err := goja.Compile("", "("+c+")", false)
		if err == nil {
			return &Func{prog: prog, src: src}, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, mongoerr.Newf(mongoerr.JSInterpreterFailure, "%s", first)
}

//go:embed prelude.js
var preludeSource string

var prelude = goja.MustCompile("prelude", preludeSource, false)

// Runtime runs functions for one operation.
type Runtime struct {
	vm    *goja.Runtime
	fns   map[*Func]goja.Callable
	held  *goja.Symbol // the property with the BSON value that an object was made from
	proto map[value.Type]*goja.Object
	check func() error // nil: no call has to stop before its time limit
}

// Watch makes calls end when check returns an error.
func (r *Runtime) Watch(check func() error) { r.check = check }

// A call that takes longer than watchEvery is checked at that interval. It ends when the process's heap has grown by
// maxGrowth in the meantime: the memory of a script cannot be measured separately.
const (
	watchEvery = 50 * time.Millisecond
	maxGrowth  = 1 << 30
)

func heapSize() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// watch interrupts a call that takes too long; stop ends the watch.
func (r *Runtime) watch() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	begin := time.Now()
	var before uint64
	t := time.AfterFunc(watchEvery, func() {
		defer close(done)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			if r.check != nil {
				if err := r.check(); err != nil {
					r.vm.Interrupt(err)
					return
				}
			}
			now := heapSize()
			if before == 0 {
				before = now
			}
			switch {
			case time.Since(begin) > Limit:
				r.vm.Interrupt("time limit of JavaScript functions exceeded")
				return
			case now > before+maxGrowth:
				r.vm.Interrupt(mongoerr.New(mongoerr.ExceededMemoryLimit, "JavaScript execution failed: out of memory"))
				return
			}
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	})
	return func() {
		if !t.Stop() {
			close(quit)
			<-done
		}
		r.vm.ClearInterrupt()
	}
}

// New starts a runtime.
func New() *Runtime {
	r := &Runtime{vm: goja.New(), fns: map[*Func]goja.Callable{}, held: goja.NewSymbol("bson"), proto: map[value.Type]*goja.Object{}}
	r.vm.SetMaxCallStackSize(maxCallDepth)
	r.installBuiltins()
	return r
}

// Set defines a global that JavaScript may call; fn's arguments and result are BSON values.
func (r *Runtime) Set(name string, fn func(args []value.Value) (value.Value, error)) {
	_ = r.vm.Set(name, func(c goja.FunctionCall) goja.Value {
		args := make([]value.Value, len(c.Arguments))
		for i, a := range c.Arguments {
			v, err := r.fromJS(a)
			if err != nil {
				panic(r.vm.NewGoError(err)) // an exception of JavaScript, which Call catches
			}
			args[i] = v
		}
		out, err := fn(args)
		if err != nil {
			panic(r.vm.NewGoError(err))
		}
		return r.toJS(out)
	})
}

// SetValue defines a global value (a mapReduce scope's variable).
func (r *Runtime) SetValue(name string, v value.Value) { _ = r.vm.Set(name, r.toJS(v)) }

// Call runs a function.
func (r *Runtime) Call(f *Func, this value.Value, args ...value.Value) (value.Value, error) {
	fn, err := r.function(f)
	if err != nil {
		return value.Value{}, err
	}
	in := make([]goja.Value, len(args))
	for i, a := range args {
		in[i] = r.toJS(a)
	}
	stop := r.watch()
	out, err := fn(r.toJS(this), in...)
	stop()
	if err != nil {
		return value.Value{}, scriptError(err)
	}
	return r.fromJS(out)
}

// Fold runs f(state, args...) for each args in turn; the result is the next state. this is undefined.
func (r *Runtime) Fold(f *Func, state value.Value, batch [][]value.Value) (value.Value, error) {
	fn, err := r.function(f)
	if err != nil {
		return value.Value{}, err
	}
	now := r.toJS(state)
	var in []goja.Value
	stop := r.watch()
	for _, args := range batch {
		in = append(in[:0], now)
		for _, a := range args {
			in = append(in, r.toJS(a))
		}
		if now, err = fn(goja.Undefined(), in...); err != nil {
			break
		}
	}
	stop()
	if err != nil {
		return value.Value{}, scriptError(err)
	}
	return r.fromJS(now)
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
