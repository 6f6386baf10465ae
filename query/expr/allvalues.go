package expr

import (
	"github.com/shoaldb/shoal/query/distinct"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// $_internalFindAllValuesAtPath returns the distinct values at a path of the root document as an array, with arrays
// unwound as in the distinct command. It implements distinct on a view. The path is a constant, without a dollar sign.

func parseAllValues(op *operator, arg value.Value, s *Scope) (node, error) {
	if arg.T != value.String {
		return nil, mongoerr.Newf(9567000, "%s requires a path as a constant string, found: %s", op.name, arg.T.Name())
	}
	path, err := parseString("$$ROOT."+arg.Str(), s)
	if err != nil {
		return nil, err
	}
	return &call{op: op, args: []node{path}}, nil
}

func evalAllValues(f *Frame, c *call) (value.Value, error) {
	all := distinct.New(c.args[0].(*fieldPath).dotted(), nil)
	if err := all.AddDocument(f.Root()); err != nil {
		return value.Value{}, err
	}
	return value.NewArray(all.Sorted()), nil
}

func showAllValues(c *call) value.Value {
	return value.NewDocument(value.Doc(value.F(c.op.name, value.NewString(c.args[0].(*fieldPath).dotted()))))
}
