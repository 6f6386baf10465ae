package expr

import "github.com/shoaldb/shoal/query/value"

func init() {
	register(
		unary("$type", func(f *Frame, v value.Value) (value.Value, error) { return f.str(v.T.Name()), nil }),
		unary("$isNumber", func(f *Frame, v value.Value) (value.Value, error) { return value.NewBool(v.T.Numeric()), nil }),
		unary("$isArray", func(f *Frame, v value.Value) (value.Value, error) {
			return value.NewBool(v.T == value.Array), nil
		}),
	)
}
