package agg

import (
	"bytes"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
)

// inlineVariables replaces user variables in the $expr of a filter by their values, so that the filter can be sent to
// nodes that do not know the variables, and planned with indexes.
func inlineVariables(filter []byte, sc *expr.Scope) []byte {
	if !bytes.Contains(filter, []byte("$$")) {
		return filter
	}
	in := inliner{sc: sc}
	return in.filter(filter)
}

// inliner rewrites expressions; hidden are the names that an enclosing operator binds.
type inliner struct {
	sc     *expr.Scope
	hidden []string
}

func (in *inliner) filter(doc []byte) []byte {
	dst, mark := value.Begin(nil)
	for k, v := range value.Elements(doc) {
		switch {
		case k == "$expr":
			v = in.expression(v)
		case (k == "$and" || k == "$or" || k == "$nor") && v.T == value.Array:
			elems := value.Values(v.Doc())
			for i, e := range elems {
				if e.T == value.Document {
					elems[i] = value.NewDocument(in.filter(e.Doc()))
				}
			}
			v = array(elems...)
		}
		dst = value.Append(dst, k, v)
	}
	return value.End(dst, mark)
}

func (in *inliner) expression(v value.Value) value.Value {
	switch v.T {
	case value.String:
		return in.variable(v)
	case value.Array:
		elems := value.Values(v.Doc())
		for i, e := range elems {
			elems[i] = in.expression(e)
		}
		return array(elems...)
	case value.Document:
		if value.Lookup(v.Doc(), "$literal").T != value.Missing || value.Lookup(v.Doc(), "$const").T != value.Missing {
			return v
		}
		before := len(in.hidden)
		in.hide(v.Doc())
		dst, mark := value.Begin(nil)
		for k, e := range value.Elements(v.Doc()) {
			dst = value.Append(dst, k, in.expression(e))
		}
		in.hidden = in.hidden[:before]
		return value.NewDocument(value.End(dst, mark))
	}
	return v
}

// hide records the names that $let, $map, $filter and $reduce bind.
func (in *inliner) hide(doc []byte) {
	it := value.Walk(doc)
	k, v, _ := it.Next()
	if v.T != value.Document {
		return
	}
	switch string(k) {
	case "$let":
		for name := range value.Elements(value.Lookup(v.Doc(), "vars").Doc()) {
			in.hidden = append(in.hidden, name)
		}
	case "$map", "$filter":
		name := "this"
		if as := value.Lookup(v.Doc(), "as"); as.T == value.String {
			name = as.Str()
		}
		in.hidden = append(in.hidden, name)
	case "$reduce":
		in.hidden = append(in.hidden, "this", "value")
	}
}

func (in *inliner) variable(v value.Value) value.Value {
	s := v.Str()
	if !strings.HasPrefix(s, "$$") || len(s) < 3 || s[2] >= 'A' && s[2] <= 'Z' {
		return v
	}
	name, _, _ := strings.Cut(s[2:], ".")
	for _, h := range in.hidden {
		if h == name {
			return v
		}
	}
	e, err := expr.Compile(v, in.sc)
	if err != nil {
		return v
	}
	c, ok := e.Constant()
	if !ok {
		return v
	}
	if c.T == value.Missing {
		return str("$$REMOVE")
	}
	return doc(f("$literal", c))
}
