package shape

import (
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
)

// expression keeps operators, paths and variables, and drops constants. An array of only constants is a constant.
func expression(w *writer, dst, key []byte, v value.Value) []byte {
	switch v.T {
	case value.String:
		if s := v.Bytes(); len(s) > 0 && s[0] == '$' {
			return appendString(dst, key, w.reference(string(s)))
		}
	case value.Document:
		if operatorDoc(v) {
			return call(w, dst, key, v)
		}
		return names(expression)(w, dst, key, v)
	case value.Array:
		if !constant(v) {
			return list(expression)(w, dst, key, v)
		}
	}
	return literal(w, dst, key, v)
}

// constant reports whether a value has no path, variable or operator.
func constant(v value.Value) bool {
	switch v.T {
	case value.String:
		s := v.Bytes()
		return len(s) == 0 || s[0] != '$'
	case value.Document, value.Array:
		for it := value.Walk(v.Doc()); ; {
			k, e, ok := it.Next()
			if !ok {
				return true
			}
			if v.T == value.Document && len(k) > 0 && k[0] == '$' || !constant(e) {
				return false
			}
		}
	}
	return true
}

// systemVariables are not named by the client; this and value are the default names of $map and $reduce.
var systemVariables = map[string]bool{"ROOT": true, "CURRENT": true, "NOW": true, "CLUSTER_TIME": true, "USER_ROLES": true,
	"REMOVE": true, "SEARCH_META": true, "DESCEND": true, "PRUNE": true, "KEEP": true, "this": true, "value": true, "NEW": true}

// reference renames a "$path" or "$$variable.path".
func (w *writer) reference(s string) string {
	if w.name == nil {
		return s
	}
	variable, ok := strings.CutPrefix(s, "$$")
	if !ok {
		return "$" + w.renamed(s[1:])
	}
	name, rest, dotted := strings.Cut(variable, ".")
	if !systemVariables[name] {
		name = w.name(name)
	}
	if dotted {
		name += "." + w.renamed(rest)
	}
	return "$$" + name
}

// call is {$operator: operands}.
func call(w *writer, dst, key []byte, v value.Value) []byte {
	dst, mark := begin(dst, value.Document, key)
	for it := value.Walk(v.Doc()); ; {
		k, arg, ok := it.Next()
		if !ok {
			return value.End(dst, mark)
		}
		dst = operands(w, dst, k, arg)
	}
}

func operands(w *writer, dst, key []byte, arg value.Value) []byte {
	if f := operators[string(key)]; f != nil {
		return f(w, dst, key, arg)
	}
	if arg.T == value.Array {
		return list(expression)(w, dst, key, arg)
	}
	return expression(w, dst, key, arg)
}

// operators are the operators whose operands are not a plain list of expressions.
var operators map[string]form

func init() { // initialised here because operands are expressions again
	operators = map[string]form{
		"$literal": literal, "$const": literal, "$meta": keep, "$rand": keep,
		"$let":            namedOperands(fields{"vars": names(expression), "in": expression}),
		"$map":            namedOperands(fields{"as": path, "": expression}),
		"$filter":         namedOperands(fields{"as": path, "": expression}),
		"$reduce":         namedOperands(fields{"": expression}),
		"$cond":           namedOperands(fields{"": expression}),
		"$switch":         namedOperands(fields{"branches": list(document(fields{"": expression})), "default": expression}),
		"$zip":            namedOperands(fields{"inputs": list(expression), "defaults": expression}),
		"$getField":       either(eitherCall(document(fields{"field": fieldName, "input": expression})), fieldName),
		"$setField":       document(fields{"field": fieldName, "": expression}),
		"$unsetField":     document(fields{"field": fieldName, "": expression}),
		"$sortArray":      document(fields{"sortBy": sortOrder, "": expression}),
		"$function":       document(fields{"args": expression, "lang": keep}),
		"$accumulator":    document(fields{"initArgs": expression, "accumulateArgs": expression, "lang": keep}),
		"$median":         document(fields{"method": keep, "": expression}),
		"$percentile":     document(fields{"method": keep, "": expression}),
		"$shift":          document(fields{"output": expression, "default": expression}),
		"$expMovingAvg":   document(fields{"input": expression}),
		"$derivative":     document(fields{"input": expression, "unit": keep}),
		"$integral":       document(fields{"input": expression, "unit": keep}),
		"$minMaxScaler":   document(fields{"input": expression}),
		"$documentNumber": keep, "$rank": keep, "$denseRank": keep,
	}
	for _, name := range []string{"$top", "$topN", "$bottom", "$bottomN"} {
		operators[name] = namedOperands(fields{"sortBy": sortOrder, "": expression})
	}
	for _, name := range expr.Operators() {
		if operators[name] == nil && len(expr.Operands(name)) > 0 {
			operators[name] = namedOperands(fields{"": expression})
		}
	}
}

// namedOperands is the form of a document of named operands or, for operators that accept either, of plain ones.
func namedOperands(fs fields) form {
	return func(w *writer, dst, key []byte, v value.Value) []byte {
		switch {
		case v.T == value.Document && !operatorDoc(v):
			return document(fs)(w, dst, key, v)
		case v.T == value.Array:
			return list(expression)(w, dst, key, v)
		}
		return expression(w, dst, key, v)
	}
}

// eitherCall treats a document that begins with an operator as an expression.
func eitherCall(f form) form {
	return func(w *writer, dst, key []byte, v value.Value) []byte {
		if operatorDoc(v) {
			return expression(w, dst, key, v)
		}
		return f(w, dst, key, v)
	}
}

// fieldName is the form of an operand that names a field: a constant there is a name.
func fieldName(w *writer, dst, key []byte, v value.Value) []byte {
	switch {
	case v.T == value.String && constant(v):
		return whole(w, dst, key, v)
	case v.T == value.Document && string(firstKey(v.Doc())) == "$literal" && !w.shaped:
		return whole(w, dst, key, value.Lookup(v.Doc(), "$literal"))
	}
	return expression(w, dst, key, v)
}

// projection is the form of a find's projection.
func projection(w *writer, dst, key []byte, v value.Value) []byte {
	return either(names(projected), literal)(w, dst, key, v)
}

func projected(w *writer, dst, key []byte, v value.Value) []byte {
	switch {
	case v.T.Numeric() || v.T == value.Boolean:
		return flag(w, dst, key, v)
	case v.T != value.Document:
		return expression(w, dst, key, v)
	case !operatorDoc(v):
		return projection(w, dst, key, v)
	}
	arg := firstElement(v)
	switch op := firstKey(v.Doc()); string(op) {
	case "$elemMatch":
		return document(fields{"$elemMatch": filter})(w, dst, key, v)
	case "$slice":
		if arg.T != value.Array || constant(arg) {
			return document(nil)(w, dst, key, v)
		}
	}
	return expression(w, dst, key, v)
}
