package projection

import (
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CompileStage parses the argument of $project, $addFields, $set or $unset.
func CompileStage(stage Stage, spec value.Value, o *Options) (*Projection, error) {
	var p *Projection
	var err error
	switch stage {
	case Unset:
		var doc []byte
		if doc, err = unsetSpec(spec); err == nil {
			p, err = compile(doc, o, false)
		}
	case Project:
		if spec.T != value.Document {
			return nil, mongoerr.New(15969, "$project specification must be an object")
		}
		p, err = compile(spec.Doc(), o, false)
	default:
		if spec.T != value.Document {
			return nil, mongoerr.Newf(40272, "%s specification stage must be an object, got %s", stage, spec.T.Name())
		}
		p, err = compileAddFields(spec.Doc(), o)
	}
	if err != nil {
		if expr.WhileFolding(err) {
			return nil, err
		}
		return nil, mongoerr.From(err).Prefix("Invalid " + stage.String() + " :: caused by :: ")
	}
	return p, nil
}

// unsetSpec turns $unset's argument into an exclusion.
func unsetSpec(v value.Value) ([]byte, error) {
	paths := []value.Value{v}
	switch v.T {
	case value.String:
	case value.Array:
		if paths = value.Values(v.Doc()); len(paths) == 0 {
			return nil, mongoerr.New(31119, "$unset specification must be a string or an array with at least one field")
		}
	default:
		return nil, mongoerr.New(31002, "$unset specification must be a string or an array")
	}
	out, mark := value.Begin(nil)
	for _, path := range paths {
		if path.T != value.String {
			return nil, mongoerr.New(31120, "$unset specification must be a string or an array containing only string values")
		}
	}
	for _, path := range paths {
		if strings.IndexByte(path.Str(), 0) >= 0 {
			return nil, mongoerr.New(9527900, "field names must not contain embedded null bytes")
		}
		out = value.Append(out, path.Str(), value.NewBool(false))
	}
	return value.End(out, mark), nil
}

// addParser reads $addFields, whose documents set fields one by one and whose values are all expressions.
type addParser struct {
	o     *Options
	root  *node
	metas []string
	spec  []byte
	paths map[string]bool // those set so far
}

func compileAddFields(spec []byte, o *Options) (*Projection, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Expr == nil {
		opts.Expr = expr.NewScope(&expr.Env{Collator: opts.Collator})
	}
	spec = append([]byte(nil), spec...)
	a := &addParser{o: &opts, root: &node{}, spec: spec, paths: map[string]bool{}}
	for it := value.Walk(spec); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		parts, err := splitPath(string(k))
		if err != nil {
			return nil, err
		}
		if err := a.set(parts, v); err != nil {
			return nil, err
		}
	}
	p := newProjection(a.root, false, &opts)
	p.spec, p.metas = spec, a.metas
	return p, nil
}

func (a *addParser) set(parts []string, v value.Value) error {
	if v.T != value.Document || value.Count(v.Doc()) == 0 {
		return a.compute(parts, v)
	}
	it := value.Walk(v.Doc())
	if k, _, _ := it.Next(); len(k) > 0 && k[0] == '$' {
		if n := value.Count(v.Doc()); n > 1 {
			return mongoerr.Newf(40181, "an expression specification must contain exactly one field, the name of the expression. Found %d fields in %s, while parsing object %s", n, value.Show(v), value.ShowDoc(a.spec))
		}
		return a.compute(parts, v)
	}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return nil
		}
		name := string(k)
		switch {
		case strings.HasPrefix(name, "$"):
			return mongoerr.Newf(40182, "cannot use '%s' in a sub-object that sets fields: expressions stand alone, in %s", name, value.Show(v))
		case strings.Contains(name, "."):
			return mongoerr.Newf(40183, "cannot use dotted field name '%s' in a sub object: %s", name, value.Show(v))
		}
		if _, err := splitPath(name); err != nil {
			return err
		}
		if err := a.set(append(append([]string(nil), parts...), name), e); err != nil {
			return err
		}
	}
}

func (a *addParser) compute(parts []string, v value.Value) error {
	path := strings.Join(parts, ".")
	for other := range a.paths {
		if other == path || strings.HasPrefix(other, path+".") || strings.HasPrefix(path, other+".") {
			return mongoerr.Newf(40176, "specification contains two conflicting paths. Cannot specify both '%s' and '%s': %s", path, other, value.ShowDoc(a.spec))
		}
	}
	a.paths[path] = true
	e, err := expr.Compile(v, a.o.Expr)
	if err != nil {
		return err
	}
	a.metas = append(a.metas, e.Deps().Meta...)
	return a.root.add(parts, &node{kind: computed, expr: e})
}
