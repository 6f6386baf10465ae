package expr

import (
	"math"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		&operator{name: "$map", parse: parseLambda, eval: evalMap, show: showLambda,
			fields: []field{{"input", 16880}, {"as", 0}, {"in", 16882}}, words: wording{object: 16878, unknown: 16879}},
		&operator{name: "$filter", parse: parseLambda, eval: evalFilter, show: showLambda,
			fields: []field{{"input", 28648}, {"as", 0}, {"cond", 28650}, {"limit", 0}}, words: wording{object: 28646, unknown: 28647}},
		&operator{name: "$reduce", parse: parseReduce, eval: evalReduce,
			fields: []field{{"input", 40077}, {"initialValue", 40078}, {"in", 40079}},
			words: wording{object: 40075, unknown: 40076, onObject: "$reduce requires an object as an argument, found: %[2]s",
				onUnknown: "$reduce found an unknown argument: %[2]s", onMiss: "$reduce requires '%[2]s' to be specified"}},
	)
}

// lambda is the variable that an operator binds to each element.
type lambda struct {
	as    string
	named bool // the name was given
	id    int
}

// parseLambda reads $map and $filter: args are input, body and (for $filter) limit.
func parseLambda(op *operator, arg value.Value, s *Scope) (node, error) {
	vals, err := op.readFields(arg)
	if err != nil {
		return nil, err
	}
	c := &call{op: op, args: make([]node, len(vals)-1)}
	if c.args[0], err = parseValue(vals[0], s); err != nil {
		return nil, err
	}
	st := &lambda{as: "this"}
	if as := vals[1]; as.T != value.Missing {
		if as.T != value.String {
			return nil, mongoerr.Newf(mongoerr.FailedToParse, "%s's 'as' must be a string", op.name)
		}
		st.as, st.named = as.Str(), true
		if err := CheckVariableName(st.as); err != nil {
			return nil, err
		}
	}
	inner := s.Nested()
	st.id = inner.Define(st.as)
	c.state = st
	if c.args[1], err = parseValue(vals[2], inner); err != nil {
		return nil, err
	}
	if len(vals) > 3 && vals[3].T != value.Missing {
		if c.args[2], err = parseValue(vals[3], s); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func showLambda(c *call) value.Value {
	st := c.state.(*lambda)
	fields := []value.Field{value.F("input", c.args[0].serialize()), value.F("as", value.NewString(st.as)),
		value.F(c.op.fields[2].name, c.args[1].serialize())}
	if len(c.args) > 2 && c.args[2] != nil {
		fields = append(fields, value.F("limit", c.args[2].serialize()))
	}
	return value.NewDocument(value.Doc(value.F(c.op.name, value.NewDocument(value.Doc(fields...)))))
}

func evalMap(f *Frame, c *call) (value.Value, error) {
	input, err := c.args[0].eval(f)
	if err != nil {
		return input, err
	}
	if input.IsNullish() {
		return null, nil
	}
	if input.T != value.Array {
		return input, mongoerr.Newf(16883, "input to $map must be an array not %s", input.T.Name())
	}
	id := c.state.(*lambda).id
	b := f.beginArray()
	for it := value.Walk(input.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return b.finish(), nil
		}
		f.SetVar(id, e)
		v, err := c.args[1].eval(f)
		if err == nil {
			err = f.step(c.op.name, 0)
		}
		if err != nil {
			return b.abandon(err)
		}
		b.add(v)
	}
}

func evalFilter(f *Frame, c *call) (value.Value, error) {
	input, err := c.args[0].eval(f)
	if err != nil {
		return input, err
	}
	if input.IsNullish() {
		return null, nil
	}
	if input.T != value.Array {
		return input, mongoerr.Newf(28651, "input to $filter must be an array not %s", input.T.Name())
	}
	left := math.MaxInt
	if c.args[2] != nil {
		if left, err = f.filterLimit(c.args[2]); err != nil {
			return input, err
		}
	}
	id := c.state.(*lambda).id
	b := f.beginArray()
	for it := value.Walk(input.Doc()); left > 0; {
		_, e, ok := it.Next()
		if !ok {
			break
		}
		f.SetVar(id, e)
		v, err := c.args[1].eval(f)
		if err == nil {
			err = f.step(c.op.name, 0)
		}
		if err != nil {
			return b.abandon(err)
		}
		if v.Truthy() {
			b.add(e)
			left--
		}
	}
	return b.finish(), nil
}

func (f *Frame) filterLimit(n node) (int, error) {
	v, err := n.eval(f)
	if err != nil || v.IsNullish() {
		return math.MaxInt, err
	}
	i, ok := toInt32(v)
	if !ok {
		return 0, mongoerr.Newf(327391, "$filter: limit must be represented as a 32-bit integral value: %s", Show(v))
	}
	if i < 1 {
		return 0, mongoerr.Newf(327392, "$filter: limit must be greater than 0: %s", Show(v))
	}
	return i, nil
}

// reduceState is $reduce's two variables.
type reduceState struct{ this, value int }

func parseReduce(op *operator, arg value.Value, s *Scope) (node, error) {
	vals, err := op.readFields(arg)
	if err != nil {
		return nil, err
	}
	c := &call{op: op, args: make([]node, 3)}
	inner := s.Nested()
	c.state = &reduceState{this: inner.Define("this"), value: inner.Define("value")}
	for i, v := range vals {
		sc := s
		if i == 2 {
			sc = inner
		}
		if c.args[i], err = parseValue(v, sc); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func evalReduce(f *Frame, c *call) (value.Value, error) {
	input, err := c.args[0].eval(f)
	if err != nil {
		return input, err
	}
	if input.IsNullish() {
		return null, nil
	}
	if input.T != value.Array {
		return input, mongoerr.Newf(40080, "$reduce requires that 'input' be an array, found: %s", Show(input))
	}
	acc, err := c.args[1].eval(f)
	if err != nil {
		return acc, err
	}
	st := c.state.(*reduceState)
	for it := value.Walk(input.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return acc, nil
		}
		f.SetVar(st.this, e)
		f.SetVar(st.value, acc)
		if acc, err = c.args[2].eval(f); err != nil {
			return acc, err
		}
		if err = f.step(c.op.name, len(acc.Bytes())); err != nil {
			return acc, err
		}
	}
}
