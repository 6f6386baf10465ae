package expr

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		shortCircuit("$and", false),
		shortCircuit("$or", true),
		unary("$not", func(f *Frame, v value.Value) (value.Value, error) { return value.NewBool(!v.Truthy()), nil }),
		condOp,
		&operator{name: "$ifNull", min: 2, max: -1, eval: evalIfNull, parse: parseIfNull},
		switchOp,
	)
}

// shortCircuit makes a row for $and and $or: the first operand whose truth value is stop decides.
func shortCircuit(name string, stop bool) *operator {
	op := nary(name, 0, -1, func(f *Frame, c *call) (value.Value, error) {
		for _, n := range c.args {
			v, err := n.eval(f)
			if err != nil {
				return v, err
			}
			if v.Truthy() == stop {
				return value.NewBool(stop), nil
			}
		}
		return value.NewBool(!stop), nil
	})
	op.optimize = func(c *call, s *Scope) (node, error) {
		if err := s.optimizeAll(c.args); err != nil {
			return nil, err
		}
		for _, n := range c.args { // a deciding constant decides at any position
			if k, ok := n.(*constant); ok && k.v.Truthy() == stop {
				return &constant{v: value.NewBool(stop)}, nil
			}
		}
		return s.fold(c, c.args)
	}
	return op
}

// condOp is $cond: three operands in order, or named.
var condOp = &operator{name: "$cond", min: 3, max: 3, parse: parseCond, eval: evalCond}

func evalCond(f *Frame, c *call) (value.Value, error) {
	v, err := c.args[0].eval(f)
	if err != nil {
		return v, err
	}
	if v.Truthy() {
		return c.args[1].eval(f)
	}
	return c.args[2].eval(f)
}

func parseCond(op *operator, arg value.Value, s *Scope) (node, error) {
	if arg.T != value.Document {
		return parsePositional(op, arg, s)
	}
	c := &call{op: op, args: make([]node, 3)}
	for key, v := range value.Elements(arg.Doc()) {
		i := 0
		switch key {
		case "if":
		case "then":
			i = 1
		case "else":
			i = 2
		default:
			return nil, mongoerr.Newf(17083, "Unrecognized parameter to $cond: %s", key)
		}
		n, err := parseValue(v, s)
		if err != nil {
			return nil, err
		}
		c.args[i] = n
	}
	for i, name := range []string{"if", "then", "else"} {
		if c.args[i] == nil {
			return nil, mongoerr.Newf(mongoerr.Code(17080+i), "Missing '%s' parameter to $cond", name)
		}
	}
	return c, nil
}

func parseIfNull(op *operator, arg value.Value, s *Scope) (node, error) {
	n := 1
	if arg.T == value.Array {
		n = value.Count(arg.Doc())
	}
	if n < 2 {
		return nil, mongoerr.Newf(1257300, "$ifNull needs at least two arguments, had: %d", n)
	}
	return parsePositional(op, arg, s)
}

func evalIfNull(f *Frame, c *call) (v value.Value, err error) {
	for _, n := range c.args {
		if v, err = n.eval(f); err != nil || !v.IsNullish() {
			return v, err
		}
	}
	return v, nil
}

// switchOp is $switch: args are case, then, case, then, …, and last the default or nil.
var switchOp = &operator{name: "$switch", parse: parseSwitch, eval: evalSwitch, show: showSwitch,
	optimize: optimizeSwitch}

func parseSwitch(op *operator, arg value.Value, s *Scope) (node, error) {
	if arg.T != value.Document {
		return nil, mongoerr.Newf(40060, "$switch requires an object as an argument, found: %s", arg.T.Name())
	}
	c := &call{op: op}
	var deflt node
	for key, v := range value.Elements(arg.Doc()) {
		switch key {
		case "branches":
			if v.T != value.Array {
				return nil, mongoerr.Newf(40061, "$switch expected an array for 'branches', found: %s", v.T.Name())
			}
			for _, b := range value.Values(v.Doc()) {
				when, then, err := parseBranch(b, s)
				if err != nil {
					return nil, err
				}
				c.args = append(c.args, when, then)
			}
		case "default":
			n, err := parseValue(v, s)
			if err != nil {
				return nil, err
			}
			deflt = n
		default:
			return nil, mongoerr.Newf(40067, "$switch found an unknown argument: %s", key)
		}
	}
	if len(c.args) == 0 {
		return nil, mongoerr.New(40068, "$switch requires at least one branch.")
	}
	c.args = append(c.args, deflt)
	return c, nil
}

func parseBranch(b value.Value, s *Scope) (when, then node, err error) {
	if b.T != value.Document {
		return nil, nil, mongoerr.Newf(40062, "$switch expected each branch to be an object, found: %s", b.T.Name())
	}
	for key, v := range value.Elements(b.Doc()) {
		switch key {
		case "case":
			when, err = parseValue(v, s)
		case "then":
			then, err = parseValue(v, s)
		default:
			err = mongoerr.Newf(40063, "$switch found an unknown argument to a branch: %s", key)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	switch {
	case when == nil:
		return nil, nil, mongoerr.New(40064, "$switch requires each branch have a 'case' expression")
	case then == nil:
		return nil, nil, mongoerr.New(40065, "$switch requires each branch have a 'then' expression.")
	}
	return when, then, nil
}

func evalSwitch(f *Frame, c *call) (value.Value, error) {
	last := len(c.args) - 1
	for i := 0; i < last; i += 2 {
		v, err := c.args[i].eval(f)
		if err != nil {
			return v, err
		}
		if v.Truthy() {
			return c.args[i+1].eval(f)
		}
	}
	if c.args[last] == nil {
		return value.Value{}, mongoerr.New(40066, "$switch could not find a matching branch for an input, and no default was specified.")
	}
	return c.args[last].eval(f)
}

// optimizeSwitch drops branches that can never be taken, before their expressions are optimized.
func optimizeSwitch(c *call, s *Scope) (_ node, err error) {
	last := len(c.args) - 1
	deflt := c.args[last]
	if deflt != nil {
		if deflt, err = s.optimize(deflt); err != nil {
			return nil, err
		}
	}
	var kept []node
	for i := 0; i < last; i += 2 {
		when, err := s.optimize(c.args[i])
		if err != nil {
			return nil, err
		}
		k, known := when.(*constant)
		if known && !k.v.Truthy() {
			continue
		}
		then, err := s.optimize(c.args[i+1])
		if err != nil {
			return nil, err
		}
		if known {
			deflt = then
			break
		}
		kept = append(kept, when, then)
	}
	if len(kept) == 0 && deflt != nil {
		return deflt, nil
	}
	c.args = append(kept, deflt)
	if len(kept) == 0 {
		return s.failed(c, mongoerr.New(40069, "Cannot execute a switch statement where all the cases evaluate to false without a default"))
	}
	return c, nil
}

func showSwitch(c *call) value.Value {
	last := len(c.args) - 1
	var branches []value.Value
	for i := 0; i < last; i += 2 {
		branches = append(branches, value.NewDocument(value.Doc(
			value.F("case", c.args[i].serialize()), value.F("then", c.args[i+1].serialize()))))
	}
	fields := []value.Field{value.F("branches", value.NewArray(value.ArrayOf(branches...)))}
	if c.args[last] != nil {
		fields = append(fields, value.F("default", c.args[last].serialize()))
	}
	return value.NewDocument(value.Doc(value.F("$switch", value.NewDocument(value.Doc(fields...)))))
}
