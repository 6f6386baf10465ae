package expr

import (
	"sort"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// operator is a row of the registry: how an operator reads its operands and what it computes.
type operator struct {
	name string
	// Positional operands: how many. max -1 is any number.
	min, max int
	// Named operands, if the operator takes a document of them.
	fields []field
	words  wording
	// parse replaces both if the operator has a syntax of its own.
	parse func(op *operator, v value.Value, s *Scope) (node, error)
	// prepare is called once the operands are optimized (to compile a constant pattern).
	prepare func(c *call, s *Scope) error
	eval    func(f *Frame, c *call) (value.Value, error)
	// optimize replaces the folding of operands, for operators that do not evaluate them all.
	optimize func(c *call, s *Scope) (node, error)
	show     func(c *call) value.Value
	// volatile operators return a different value at each call, or read more than their operands; they are never folded.
	volatile bool
	// unfolded operators are not folded even if all operands are constants.
	unfolded bool
}

// wording has an operator's error texts for its document of named operands.
type wording struct {
	object, unknown             mongoerr.Code // codes: no document given; a field it does not know
	onObject, onUnknown, onMiss string        // formats; "" for the usual ones
}

// field is a named operand.
type field struct {
	name     string
	required mongoerr.Code // code of the error if it is omitted; 0: optional
}

var operators = map[string]*operator{}

func register(ops ...*operator) {
	for _, op := range ops {
		operators[op.name] = op
	}
}

// rename makes an old name another name of a registered operator: errors and explain show the operator's own.
func rename(old, name string) { operators[old] = operators[name] }

// Operators lists the names of all operators, sorted.
func Operators() []string {
	out := make([]string, 0, len(operators))
	for name := range operators {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}

// IsOperator reports whether name (with its dollar sign) is an expression operator.
func IsOperator(name string) bool { return operators[name] != nil }

// unary makes a row for an operator of one operand.
func unary(name string, fn func(f *Frame, v value.Value) (value.Value, error)) *operator {
	return &operator{name: name, min: 1, max: 1, eval: func(f *Frame, c *call) (value.Value, error) {
		v, err := c.args[0].eval(f)
		if err != nil {
			return v, err
		}
		return fn(f, v)
	}}
}

// binary makes a row for an operator of two operands.
func binary(name string, fn func(f *Frame, a, b value.Value) (value.Value, error)) *operator {
	return &operator{name: name, min: 2, max: 2, eval: func(f *Frame, c *call) (value.Value, error) {
		a, err := c.args[0].eval(f)
		if err != nil {
			return a, err
		}
		b, err := c.args[1].eval(f)
		if err != nil {
			return b, err
		}
		return fn(f, a, b)
	}}
}

// nary makes a row for an operator that evaluates its operands itself.
func nary(name string, min, max int, fn func(f *Frame, c *call) (value.Value, error)) *operator {
	return &operator{name: name, min: min, max: max, eval: fn}
}

// commutative makes an operator evaluate its constants last, so that a null among the others is found first.
func commutative(op *operator) *operator {
	op.optimize = func(c *call, s *Scope) (node, error) {
		if err := s.optimizeAll(c.args); err != nil {
			return nil, err
		}
		sort.SliceStable(c.args, func(i, j int) bool {
			_, a := c.args[i].(*constant)
			_, b := c.args[j].(*constant)
			return !a && b
		})
		return s.fold(c, c.args)
	}
	return op
}

// Operands returns the names of an operator's named operands; nil if it has none, or is unknown.
func Operands(name string) []string {
	op := operators[name]
	if op == nil {
		return nil
	}
	out := make([]string, len(op.fields))
	for i, f := range op.fields {
		out[i] = f.name
	}
	return out
}
