package expr

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		&operator{name: "$let", parse: parseLet, eval: evalLet, show: showLet},
		&operator{name: "$literal", parse: parseLiteral},
		&operator{name: "$const", parse: parseLiteral},
	)
}

func parseLiteral(_ *operator, v value.Value, _ *Scope) (node, error) {
	if v.T == value.String && len(v.Bytes()) >= maxString {
		return nil, errStringTooLong
	}
	return &constant{v: v.Clone()}, nil
}

// letState has the variables that $let binds.
type letState struct {
	names []string
	ids   []int
}

func parseLet(op *operator, arg value.Value, s *Scope) (node, error) {
	if arg.T != value.Document {
		return nil, mongoerr.New(16874, "$let only supports an object as its argument")
	}
	var vars, in value.Value
	for key, v := range value.Elements(arg.Doc()) {
		switch key {
		case "vars":
			vars = v
		case "in":
			in = v
		default:
			return nil, mongoerr.Newf(16875, "Unrecognized parameter to $let: %s", key)
		}
	}
	switch {
	case vars.T == value.Missing:
		return nil, mongoerr.New(16876, "Missing 'vars' parameter to $let")
	case in.T == value.Missing:
		return nil, mongoerr.New(16877, "Missing 'in' parameter to $let")
	case vars.T != value.Document && vars.T != value.Array:
		return nil, mongoerr.Newf(10065, "invalid parameter: expected an object (vars)")
	}
	st := &letState{}
	c := &call{op: op, state: st}
	inner := s.Nested()
	for name, v := range value.Elements(vars.Doc()) {
		if err := CheckVariableName(name); err != nil {
			return nil, err
		}
		n, err := parseValue(v, s)
		if err != nil {
			return nil, err
		}
		st.names = append(st.names, name)
		st.ids = append(st.ids, inner.Define(name))
		c.args = append(c.args, n)
	}
	body, err := parseValue(in, inner)
	if err != nil {
		return nil, err
	}
	c.args = append(c.args, body)
	return c, nil
}

func evalLet(f *Frame, c *call) (value.Value, error) {
	st := c.state.(*letState)
	for i, id := range st.ids {
		v, err := c.args[i].eval(f)
		if err != nil {
			return v, err
		}
		f.SetVar(id, v)
	}
	return c.args[len(st.ids)].eval(f)
}

func showLet(c *call) value.Value {
	st := c.state.(*letState)
	dst, mark := value.Begin(nil)
	for i, name := range st.names {
		dst = value.Append(dst, name, c.args[i].serialize())
	}
	vars := value.NewDocument(value.End(dst, mark))
	return value.NewDocument(value.Doc(value.F("$let", value.NewDocument(value.Doc(
		value.F("vars", vars), value.F("in", c.args[len(st.ids)].serialize()))))))
}

// DefineLet adds the variables of a command's let. Their expressions see each other, but no document, and none of the
// server's constants.
func (s *Scope) DefineLet(let []byte) error {
	for k, v := range value.Elements(let) {
		if err := checkLetName(k); err != nil {
			return err
		}
		s.env.NoConstants = true
		e, err := Compile(v, s)
		s.env.NoConstants = false
		if err != nil {
			return err
		}
		if d := e.Deps(); d.Whole || len(d.Paths) > 0 {
			return mongoerr.New(4890500, "Command let Expression tried to access a field, but this is not allowed because Command let expressions run before the query examines any documents.")
		}
		c, err := e.Eval(NewFrame(s))
		if err != nil {
			return err
		}
		s.DefineConst(k, c)
	}
	return nil
}

// checkLetName checks the name of a command's let variable.
func checkLetName(name string) error {
	switch name {
	case "NOW", "CLUSTER_TIME", "USER_ROLES", "JS_SCOPE", "IS_MR":
		return mongoerr.Newf(4738901, "Attempt to set internal constant: %s", name)
	}
	return CheckVariableName(name)
}
