package expr

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxPathDepth limits the number of fields in a path (documents cannot be nested deeper).
const maxPathDepth = 200

// parseValue reads any operand: a path or variable, an operator, a literal with computed parts, or a constant.
func parseValue(v value.Value, s *Scope) (node, error) {
	switch v.T {
	case value.String:
		if b := v.Bytes(); len(b) > 0 && b[0] == '$' {
			return parseString(string(b), s)
		}
		if len(v.Bytes()) >= maxString {
			return nil, errStringTooLong
		}
	case value.Document:
		return parseObject(v, s)
	case value.Array:
		return parseArray(v, s)
	}
	return &constant{v: v.Clone()}, nil
}

// parseString reads "$path" and "$$variable.path".
func parseString(str string, s *Scope) (node, error) {
	if strings.HasPrefix(str, "$$") {
		return parseVariable(str[2:], s)
	}
	parts, err := SplitPath(str[1:])
	if err != nil {
		return nil, err
	}
	return pathFrom("CURRENT", parts, s)
}

func parseVariable(ref string, s *Scope) (node, error) {
	name, rest, dotted := strings.Cut(ref, ".")
	if err := checkVariableRead(name); err != nil {
		return nil, err
	}
	var parts []string
	if dotted {
		var err error
		if rest == "" {
			return nil, mongoerr.New(40353, "FieldPath must not end with a '.'.")
		}
		if parts, err = SplitPath(rest); err != nil {
			return nil, err
		}
	}
	return pathFrom(name, parts, s)
}

// pathFrom resolves a variable and starts a path there.
func pathFrom(name string, parts []string, s *Scope) (node, error) {
	if len(parts) > maxPathDepth {
		return nil, mongoerr.New(mongoerr.Overflow, "FieldPath is too long")
	}
	if def := s.find(name); def != nil {
		if def.known != nil {
			return constantPath(def.known, parts), nil
		}
		return &fieldPath{base: baseVar, id: def.id, name: name, parts: parts}, nil
	}
	switch name {
	case "ROOT", "CURRENT":
		return &fieldPath{base: baseRoot, name: name, parts: parts}, nil
	}
	if s.env.Clock != nil && (name == "NOW" || name == "CLUSTER_TIME") {
		return &clockNode{name: name, path: parts}, nil
	}
	k, err := systemVariable(name, s)
	if err != nil {
		return nil, err
	}
	return constantPath(k, parts), nil
}

func constantPath(k *constant, parts []string) node {
	if len(parts) == 0 {
		return k
	}
	return &constant{v: (&Frame{}).fetch(k.v, parts), shown: k.shown + "." + strings.Join(parts, ".")}
}

var errNoClusterTime = mongoerr.New(10071200, "system variable $$CLUSTER_TIME is not available in standalone mode")

// systemVariable returns the value of a variable that the server defines.
func systemVariable(name string, s *Scope) (*constant, error) {
	k := &constant{shown: "$$" + name}
	switch name {
	case "NOW", "CLUSTER_TIME", "USER_ROLES":
		if s.env.NoConstants {
			return nil, mongoerr.Newf(51144, "Builtin variable '$$%s' is not available", name)
		}
	}
	switch name {
	case "REMOVE":
	case "NOW":
		k.v = value.NewDateTime(s.env.NowMS)
	case "CLUSTER_TIME":
		if s.env.ClusterTime == 0 && s.env.NowMS != 0 {
			return nil, errNoClusterTime
		}
		k.v = value.NewTimestampU64(s.env.ClusterTime)
	case "USER_ROLES":
		if k.v = s.env.UserRoles; k.v.T == value.Missing {
			k.v = value.NewArray(value.ArrayOf())
		}
	case "SEARCH_META":
	default:
		return nil, mongoerr.Newf(17276, "Use of undefined variable: %s", name)
	}
	return k, nil
}

// SplitPath checks a field path and splits it at its dots.
func SplitPath(path string) ([]string, error) {
	if path == "" {
		return nil, mongoerr.New(16872, "'$' by itself is not a valid FieldPath")
	}
	if strings.HasSuffix(path, ".") {
		return nil, mongoerr.New(40353, "FieldPath must not end with a '.'.")
	}
	parts := strings.Split(path, ".")
	for _, p := range parts {
		if err := checkFieldName(p); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

func checkFieldName(name string) error {
	switch {
	case name == "":
		return mongoerr.New(15998, "FieldPath field names may not be empty strings.")
	case name[0] == '$' && name != "$id" && name != "$ref" && name != "$db":
		return mongoerr.New(16410, "FieldPath field names may not start with '$'. Consider using $getField or $setField.")
	case strings.IndexByte(name, 0) >= 0:
		return mongoerr.New(16411, "FieldPath field names may not contain '\\0'.")
	}
	return nil
}

// CheckVariableName checks the name of a user variable.
func CheckVariableName(name string) error {
	if name == "" {
		return mongoerr.New(mongoerr.FailedToParse, "empty variable names are not allowed")
	}
	if name == "CURRENT" {
		return nil
	}
	if c := name[0]; !(c >= 'a' && c <= 'z' || c >= 0x80) {
		return mongoerr.Newf(mongoerr.FailedToParse, "'%s' starts with an invalid character for a user variable name", name)
	}
	return checkVariableTail(name)
}

func checkVariableRead(name string) error {
	if name == "" {
		return mongoerr.New(mongoerr.FailedToParse, "empty variable names are not allowed")
	}
	if c := name[0]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80) {
		return mongoerr.Newf(mongoerr.FailedToParse, "'%s' starts with an invalid character for a user variable name", name)
	}
	return checkVariableTail(name)
}

func checkVariableTail(name string) error {
	for i := 1; i < len(name); i++ {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80) {
			return mongoerr.Newf(mongoerr.FailedToParse, "'%s' contains an invalid character for a variable name: '%c'", name, c)
		}
	}
	return nil
}

// parseObject reads an operator or a document literal.
func parseObject(v value.Value, s *Scope) (node, error) {
	it := value.Walk(v.Doc())
	key, arg, ok := it.Next()
	if ok && len(key) > 0 && key[0] == '$' {
		if _, _, more := it.Next(); more {
			return nil, mongoerr.Newf(15983, "An object representing an expression must have exactly one field: %s", value.Show(v))
		}
		return parseOperator(string(key), arg, s)
	}
	o := &object{}
	seen := map[string]bool{}
	for ; ok; key, arg, ok = it.Next() {
		name := string(key)
		if seen[name] {
			return nil, mongoerr.Newf(16406, "duplicate field name specified in object literal: %s", value.Show(v))
		}
		seen[name] = true
		if strings.IndexByte(name, '.') >= 0 {
			return nil, mongoerr.New(16412, "FieldPath field names may not contain '.'. Consider using $getField or $setField.")
		}
		if err := checkFieldName(name); err != nil {
			return nil, err
		}
		n, err := parseValue(arg, s)
		if err != nil {
			return nil, err
		}
		o.keys, o.vals = append(o.keys, name), append(o.vals, n)
	}
	return o, nil
}

func parseArray(v value.Value, s *Scope) (node, error) {
	a := &array{}
	for it := value.Walk(v.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return a, nil
		}
		n, err := parseValue(e, s)
		if err != nil {
			return nil, err
		}
		a.elems = append(a.elems, n)
	}
}

func parseOperator(name string, arg value.Value, s *Scope) (node, error) {
	op := operators[name]
	if op == nil {
		return nil, mongoerr.Newf(168, "Unrecognized expression '%s'", name)
	}
	switch {
	case op.parse != nil:
		return op.parse(op, arg, s)
	case op.fields != nil:
		return parseNamed(op, arg, s)
	}
	return parsePositional(op, arg, s)
}

// parsePositional reads operands given as an array, or one given by itself.
func parsePositional(op *operator, arg value.Value, s *Scope) (node, error) {
	c := &call{op: op}
	if arg.T != value.Array {
		n, err := parseValue(arg, s)
		if err != nil {
			return nil, err
		}
		c.args = []node{n}
	} else {
		for it := value.Walk(arg.Doc()); ; {
			_, e, ok := it.Next()
			if !ok {
				break
			}
			n, err := parseValue(e, s)
			if err != nil {
				return nil, err
			}
			c.args = append(c.args, n)
		}
	}
	if err := op.checkCount(len(c.args)); err != nil {
		return nil, err
	}
	return c, nil
}

func (op *operator) checkCount(n int) error {
	switch {
	case n >= op.min && (op.max < 0 || n <= op.max):
		return nil
	case op.min == op.max:
		return mongoerr.Newf(16020, "Expression %s takes exactly %d arguments. %d were passed in.", op.name, op.min, n)
	case op.max < 0:
		return mongoerr.Newf(28667, "Expression %s takes at least %d arguments. %d were passed in.", op.name, op.min, n)
	}
	return mongoerr.Newf(28667, "Expression %s takes at least %d arguments, and at most %d, but %d were passed in.",
		op.name, op.min, op.max, n)
}

// parseNamed reads operands given as a document.
func parseNamed(op *operator, arg value.Value, s *Scope) (node, error) {
	vals, err := op.readFields(arg)
	if err != nil {
		return nil, err
	}
	c := &call{op: op, args: make([]node, len(op.fields))}
	for i, v := range vals {
		if v.T == value.Missing {
			continue
		}
		if c.args[i], err = parseValue(v, s); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// readFields sorts a document of named operands into the order of op.fields; omitted ones are Missing.
func (op *operator) readFields(arg value.Value) ([]value.Value, error) {
	w := op.words
	if arg.T != value.Document {
		if w.object == 0 {
			w.object = mongoerr.FailedToParse
		}
		if w.onObject == "" {
			w.onObject = "%[1]s only supports an object as its argument"
		}
		return nil, mongoerr.Newf(w.object, w.onObject+"%.0[1]s%.0[2]s%.0[3]s", op.name, arg.T.Name(), value.Show(arg))
	}
	vals := make([]value.Value, len(op.fields))
	for it := value.Walk(arg.Doc()); ; {
		key, v, ok := it.Next()
		if !ok {
			break
		}
		i := op.fieldIndex(key)
		if i < 0 {
			if w.unknown == 0 {
				w.unknown = mongoerr.FailedToParse
			}
			if w.onUnknown == "" {
				w.onUnknown = "Unrecognized parameter to %[1]s: %[2]s"
			}
			return nil, mongoerr.Newf(w.unknown, w.onUnknown+"%.0[1]s%.0[2]s", op.name, string(key))
		}
		vals[i] = v
	}
	for i, fd := range op.fields {
		if fd.required != 0 && vals[i].T == value.Missing {
			if w.onMiss == "" {
				w.onMiss = "Missing '%[2]s' parameter to %[1]s"
			}
			return nil, mongoerr.Newf(fd.required, w.onMiss+"%.0[1]s%.0[2]s%.0[3]s", op.name, fd.name, value.ShowDoc(arg.Doc()))
		}
	}
	return vals, nil
}

func (op *operator) fieldIndex(key []byte) int {
	for i := range op.fields {
		if op.fields[i].name == string(key) {
			return i
		}
	}
	return -1
}
