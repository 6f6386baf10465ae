package accum

import (
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/js"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// script has the functions of $accumulator and $_internalJsReduce.
type script struct {
	init, accumulate, merge, finalize *js.Func // init … finalize of $accumulator
	initArgs                          *expr.Expr
	reduce                            *js.Func // of $_internalJsReduce
}

// parseAccumulator reads $accumulator.
func parseAccumulator(s *Spec, arg value.Value, sc *expr.Scope) (err error) {
	if arg.T != value.Document {
		return mongoerr.Newf(4544703, "$accumulator expects an object as an argument; found: %s", arg.T.Name())
	}
	var lang value.Value
	s.script = &script{}
	for k, v := range value.Elements(arg.Doc()) {
		switch k {
		case "init":
			s.script.init, err = parseScript(k, v, sc)
		case "accumulate":
			s.script.accumulate, err = parseScript(k, v, sc)
		case "merge":
			s.script.merge, err = parseScript(k, v, sc)
		case "finalize":
			s.script.finalize, err = parseScript(k, v, sc)
		case "initArgs":
			s.script.initArgs, err = expr.Compile(v, sc)
		case "accumulateArgs":
			s.Arg, err = expr.Compile(v, sc)
		case "lang":
			lang = v
		default:
			err = mongoerr.Newf(4544706, "$accumulator got an unexpected field: %s", k)
		}
		if err != nil {
			return err
		}
	}
	return s.checkAccumulator(lang)
}

func (s *Spec) checkAccumulator(lang value.Value) error {
	for _, need := range []struct {
		ok   bool
		code mongoerr.Code
		name string
	}{{s.script.init != nil, 4544707, "init"}, {s.script.accumulate != nil, 4544708, "accumulate"},
		{s.script.merge != nil, 4544709, "merge"}, {lang.T != value.Missing, 4544710, "lang"}} {
		if !need.ok {
			return mongoerr.Newf(need.code, "$accumulator missing required argument '%s'", need.name)
		}
	}
	if lang.T != value.String || lang.Str() != "js" {
		return mongoerr.New(4544705, "$accumulator only supports lang: 'js'")
	}
	if s.Arg == nil {
		s.Arg = expr.ConstantExpr(value.NewArray(value.ArrayOf()))
	}
	return nil
}

// parseScript reads a function: a constant of type string or code.
func parseScript(name string, v value.Value, sc *expr.Scope) (*js.Func, error) {
	e, err := expr.Compile(v, sc)
	if err != nil {
		return nil, err
	}
	c, ok := e.Constant()
	if !ok {
		return nil, mongoerr.Newf(4544701, "$accumulator '%s' must be a constant", name)
	}
	if c.T != value.String && c.T != value.JavaScript {
		return nil, mongoerr.Newf(4544702, "$accumulator '%s' must be a String or Code", name)
	}
	return sc.Env().CompileScript(c.Str())
}

// pendingArgs limits what is collected for a script's next run: running it once for many documents avoids converting the
// state to JavaScript and back for each.
const (
	pendingArgs  = 1024
	pendingBytes = 1 << 20
)

// custom is the state of $accumulator.
type custom struct {
	s       *script
	frame   *expr.Frame
	state   value.Value
	pending [][]value.Value
	bytes   int
}

func newCustom(s *Spec, f *expr.Frame) (State, error) {
	var args []value.Value
	if s.script.initArgs != nil {
		v, err := s.script.initArgs.Eval(f)
		if err != nil {
			return nil, err
		}
		if v.T != value.Array {
			return nil, mongoerr.New(4544711, "$accumulator initArgs must evaluate to an array")
		}
		args = value.Values(v.Doc())
	}
	state, err := f.Script().Call(s.script.init, value.Value{}, args...)
	return &custom{s: s.script, frame: f, state: state}, err
}

func (s *custom) Add(v value.Value, _ *expr.Frame) (int, error) {
	if v.T != value.Array {
		return 0, mongoerr.New(4544712, "$accumulator accumulateArgs must evaluate to an array")
	}
	s.pending = append(s.pending, value.Values(v.Clone().Doc()))
	s.bytes += len(v.Bytes())
	if len(s.pending) < pendingArgs && s.bytes < pendingBytes {
		return len(v.Bytes()), nil
	}
	return s.run()
}

// run applies the pending documents to the state.
func (s *custom) run() (grew int, err error) {
	if len(s.pending) == 0 {
		return 0, nil
	}
	before := len(s.state.Bytes()) + s.bytes
	s.state, err = s.frame.Script().Fold(s.s.accumulate, s.state, s.pending)
	s.pending, s.bytes = s.pending[:0], 0
	return len(s.state.Bytes()) - before, err
}

func (s *custom) Merge(p value.Value) (int, error) {
	grew, err := s.run()
	if err != nil {
		return grew, err
	}
	before := len(s.state.Bytes())
	s.state, err = s.frame.Script().Call(s.s.merge, value.Value{}, s.state, p)
	return grew + len(s.state.Bytes()) - before, err
}

func (s *custom) Partial() (value.Value, error) {
	_, err := s.run()
	return s.state, err
}

func (s *custom) Result() (value.Value, error) {
	v, err := s.Partial()
	if err != nil || s.s.finalize == nil {
		return v, err
	}
	return s.frame.Script().Call(s.s.finalize, value.Value{}, v)
}

// parseReduce reads $_internalJsReduce: {data: {k, v}, eval: <function>}, which mapReduce uses.
func parseReduce(s *Spec, arg value.Value, sc *expr.Scope) (err error) {
	if !sc.Env().MapReduce {
		return mongoerr.Newf(15952, "unknown group operator '%s'", s.Name)
	}
	if arg.T != value.Document {
		return mongoerr.Newf(31326, "%s requires an object as an argument, found: %s", s.Name, arg.T.Name())
	}
	s.script = &script{}
	for k, v := range value.Elements(arg.Doc()) {
		switch k {
		case "data":
			s.Arg, err = expr.Compile(v, sc)
		case "eval":
			s.script.reduce, err = parseScript(k, v, sc)
		default:
			err = mongoerr.Newf(31243, "%s found an unknown argument: %s", s.Name, k)
		}
		if err != nil {
			return err
		}
	}
	if s.Arg == nil || s.script.reduce == nil {
		return mongoerr.Newf(31349, "%s requires 'data' and 'eval' arguments, recieved input: %s", s.Name, expr.Show(arg))
	}
	return nil
}

// reduced is the state of $_internalJsReduce: the values of one key that are not reduced yet. A single value is its own
// result.
type reduced struct {
	fn    *js.Func
	frame *expr.Frame
	key   value.Value
	vals  []value.Value
	bytes int
}

// maxReduced limits the bytes of values that are collected before they are reduced to one.
const maxReduced = 8 << 20

func newReduced(s *Spec, f *expr.Frame) (State, error) {
	return &reduced{fn: s.script.reduce, frame: f}, nil
}

func (s *reduced) Add(v value.Value, _ *expr.Frame) (int, error) {
	if v.T != value.Document {
		return 0, mongoerr.Newf(31242, "$_internalJsReduce requires the 'data' argument to be an object, but found %s", v.T.Name())
	}
	k, val := value.Lookup(v.Doc(), "k"), value.Lookup(v.Doc(), "v")
	if s.key.T == value.Missing {
		s.key = k.Clone()
	}
	s.vals = append(s.vals, val.Clone())
	grew := size(val)
	if s.bytes += grew; s.bytes <= maxReduced || len(s.vals) < 2 {
		return grew, nil
	}
	before := s.bytes
	err := s.reduce()
	return grew + s.bytes - before, err
}

func (s *reduced) reduce() error {
	if len(s.vals) < 2 {
		return nil
	}
	v, err := s.frame.Script().Call(s.fn, value.Value{}, s.key, value.NewArray(value.ArrayOf(s.vals...)))
	s.vals, s.bytes = append(s.vals[:0], v), size(v)
	return err
}

func (s *reduced) Merge(p value.Value) (int, error) { return s.Add(p, nil) }

func (s *reduced) Partial() (value.Value, error) {
	v, err := s.Result()
	return value.NewDocument(value.Doc(value.F("k", orNull(s.key)), value.F("v", v))), err
}

func (s *reduced) Result() (value.Value, error) {
	if len(s.vals) == 0 {
		return value.NewNull(), nil
	}
	err := s.reduce()
	return s.vals[0], err
}
