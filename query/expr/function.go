package expr

import (
	"github.com/shoaldb/shoal/query/js"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(&operator{name: "$function", parse: parseFunction, eval: evalFunction, show: showFunction, volatile: true},
		&operator{name: "$_internalJsEmit", parse: parseEmit, eval: evalEmit, volatile: true,
			show: func(c *call) value.Value { return c.state.(*emitter).spec }})
}

// emitter is $_internalJsEmit: {this: <expression>, eval: <function>}, a list of {k, v}: what the map function of a
// mapReduce command emits for a document.
type emitter struct {
	fn   *js.Func
	spec value.Value
}

// maxEmitted limits the bytes that are emitted for one document (internalQueryMaxJsEmitBytes).
const maxEmitted = 100 << 20

// CompileScript compiles a function in JavaScript, unless the node does not run scripts.
func (e *Env) CompileScript(src string) (*js.Func, error) {
	if e.NoScripts {
		return nil, mongoerr.New(mongoerr.BadValue, "server-side JavaScript execution is disabled")
	}
	return js.Compile(src)
}

func parseEmit(op *operator, arg value.Value, s *Scope) (node, error) {
	if !s.env.MapReduce {
		return nil, mongoerr.Newf(mongoerr.InvalidPipelineOperator, "Unrecognized expression '%s'", op.name)
	}
	this, err := parseValue(value.Lookup(arg.Doc(), "this"), s)
	if err != nil {
		return nil, err
	}
	fn, err := s.env.CompileScript(value.Lookup(arg.Doc(), "eval").Str())
	if err != nil {
		return nil, err
	}
	spec := value.NewDocument(value.Doc(value.F(op.name, arg)))
	return &call{op: op, args: []node{this}, state: &emitter{fn, spec}}, nil
}

func evalEmit(f *Frame, c *call) (value.Value, error) {
	this, err := c.args[0].eval(f)
	if err != nil {
		return this, err
	}
	if this.T != value.Document {
		return this, mongoerr.Newf(31225, "'this' must be an object, but found %s", this.T.Name())
	}
	dst, mark := value.Begin(nil)
	n := 0
	f.Script().Set("emit", func(args []value.Value) (value.Value, error) {
		if len(args) != 2 {
			return value.Value{}, mongoerr.New(31220, "emit takes 2 args")
		}
		if args[0].T == value.Undefined {
			args[0] = value.NewNull()
		}
		dst = value.AppendIndex(dst, n, value.NewDocument(value.Doc(value.F("k", args[0]), value.F("v", args[1]))))
		if n++; len(dst) > maxEmitted {
			return value.Value{}, mongoerr.Newf(31292, "Size of emitted values exceeds the set size limit of %d bytes", maxEmitted)
		}
		return value.NewUndefined(), nil
	})
	if _, err := f.Script().Call(c.state.(*emitter).fn, this); err != nil {
		return this, err
	}
	return value.NewArray(value.End(dst, mark)), nil
}

// parseFunction reads $function: args are the operands, state the compiled body.
func parseFunction(op *operator, arg value.Value, s *Scope) (node, error) {
	if s.Env().Validator {
		return nil, mongoerr.New(4660800, "$function cannot be used inside a validator.")
	}
	if arg.T != value.Document {
		return nil, mongoerr.New(31260, "$function requires an object as an argument, found: "+arg.T.Name())
	}
	var body, args, lang value.Value
	for key, v := range value.Elements(arg.Doc()) {
		switch key {
		case "body":
			body = v
		case "args":
			args = v
		case "lang":
			lang = v
		default:
			return nil, mongoerr.Newf(mongoerr.FailedToParse, "$function found an unknown argument: %s", key)
		}
	}
	switch {
	case body.T == value.Missing:
		return nil, mongoerr.New(31261, "The body function must be specified.")
	case body.T != value.String && body.T != value.JavaScript:
		return nil, mongoerr.New(31262, "The body function must evaluate to type string or code")
	case args.T == value.Missing:
		return nil, mongoerr.New(31263, "The args field must be specified.")
	case lang.T == value.Missing:
		return nil, mongoerr.New(31418, "The lang field must be specified.")
	case lang.T != value.String || lang.Str() != "js":
		return nil, mongoerr.New(31419, "Currently the only supported language specifier is 'js'.")
	}
	n, err := parseValue(args, s)
	if err != nil {
		return nil, err
	}
	fn, err := s.env.CompileScript(body.Str())
	if err != nil {
		return nil, err
	}
	return &call{op: op, args: []node{n}, state: fn}, nil
}

func evalFunction(f *Frame, c *call) (value.Value, error) {
	args, err := c.args[0].eval(f)
	if err != nil {
		return args, err
	}
	if args.T != value.Array {
		return args, mongoerr.New(31266, "The args field must be of type array")
	}
	return f.Script().Call(c.state.(*js.Func), value.Value{}, value.Values(args.Doc())...)
}

func showFunction(c *call) value.Value {
	return value.NewDocument(value.Doc(value.F("$function", value.NewDocument(value.Doc(
		value.F("body", value.NewString(c.state.(*js.Func).Source())), value.F("args", c.args[0].serialize()), value.F("lang", value.NewString("js")))))))
}

// Script returns the frame's JavaScript runtime, started when it is first asked for.
func (f *Frame) Script() *js.Runtime {
	if f.script == nil {
		f.script = js.New()
		if f.env.Work != nil {
			f.script.Watch(f.env.Work.Check)
		}
		for k, v := range value.Elements(f.env.JSScope) {
			f.script.SetValue(k, v)
		}
	}
	return f.script
}
