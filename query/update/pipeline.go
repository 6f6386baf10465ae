package update

import (
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// pipelineStage is a stage of an update pipeline: one of the two is set.
type pipelineStage struct {
	fields *projection.Projection
	root   *expr.Expr
}

var pipelineStages = map[string]projection.Stage{
	"$addFields": projection.AddFields,
	"$set":       projection.Set,
	"$project":   projection.Project,
	"$unset":     projection.Unset,
}

func compilePipeline(u value.Value, opts Options) (*Update, error) {
	if opts.HasFilters {
		return nil, mongoerr.New(mongoerr.FailedToParse, "arrayFilters may not be specified for pipeline-syle updates")
	}
	scope := opts.Scope
	if scope == nil {
		scope = expr.NewScope(&expr.Env{Collator: opts.Collator})
	}
	scope = scope.Unfailing()
	out := &Update{form: pipeline, scope: scope}
	for _, s := range value.Values(u.Clone().Doc()) {
		if s.T != value.Document {
			return nil, mongoerr.New(mongoerr.TypeMismatch, "Each element of the 'pipeline' array must be an object")
		}
		if value.Count(s.Doc()) != 1 {
			return nil, mongoerr.New(40323, "A pipeline stage specification object must contain exactly one field.")
		}
		it := value.Walk(s.Doc())
		k, arg, _ := it.Next()
		stage, err := compileStage(string(k), arg, scope)
		if err != nil {
			return nil, err
		}
		out.stages = append(out.stages, stage)
	}
	return out, nil
}

func compileStage(name string, arg value.Value, scope *expr.Scope) (pipelineStage, error) {
	if kind, ok := pipelineStages[name]; ok {
		p, err := projection.CompileStage(kind, arg, &projection.Options{Collator: scope.Env().Collator, Expr: scope})
		return pipelineStage{fields: p}, err
	}
	switch name {
	case "$fill":
		fields, err := fillValues(arg)
		if err != nil {
			return pipelineStage{}, err
		}
		return compileStage("$addFields", fields, scope)
	case "$replaceWith":
	case "$replaceRoot":
		if arg.T != value.Document {
			return pipelineStage{}, mongoerr.Newf(40229, "expected an object as specification for $replaceRoot stage, got %s", arg.T.Name())
		}
		spec := arg
		arg = value.Value{}
		for k, v := range value.Elements(spec.Doc()) {
			if k != "newRoot" {
				return pipelineStage{}, mongoerr.UnknownField("$replaceRoot." + k)
			}
			arg = v
		}
		if arg.T == value.Missing {
			return pipelineStage{}, mongoerr.MissingField("$replaceRoot.newRoot")
		}
	default:
		return pipelineStage{}, mongoerr.Newf(mongoerr.InvalidOptions, "%s is not allowed to be used within an update", name)
	}
	e, err := expr.Compile(arg, scope)
	return pipelineStage{root: e}, err
}

// fillValues turns a $fill of constants into the equivalent $addFields; a $fill by method needs other documents.
func fillValues(arg value.Value) (value.Value, error) {
	var fs []value.Field
	for k, v := range value.Elements(value.Lookup(arg.Doc(), "output").Doc()) {
		by := value.Lookup(v.Doc(), "value")
		if by.T == value.Missing {
			return arg, mongoerr.New(mongoerr.InvalidOptions, "$_internalSetWindowFields is not allowed to be used within an update")
		}
		fs = append(fs, value.F(k, value.NewDocument(value.Doc(value.F("$ifNull", value.NewArray(value.ArrayOf(value.NewString("$"+k), by)))))))
	}
	return value.NewDocument(value.Doc(fs...)), nil
}

// runPipeline applies the stages one after another to the document.
func (u *Update) runPipeline(ctx *Context) ([]byte, error) {
	f := ctx.Frame
	if f == nil {
		f = expr.NewFrame(u.scope)
	}
	doc := ctx.Doc
	for i, s := range u.stages {
		var err error
		if s.fields != nil {
			doc, err = ctx.projection(u, i).Apply(nil, doc, nil)
		} else {
			doc, err = replaceRoot(s.root, f, doc)
		}
		if err != nil {
			return nil, err
		}
	}
	was, now := value.Lookup(ctx.Doc, "_id"), value.Lookup(doc, "_id")
	if was.T == value.Missing {
		return doc, nil
	}
	if now.T == value.Missing { // $replaceWith and $project may omit it: it is kept
		dst, mark := value.Begin(make([]byte, 0, len(doc)+24))
		dst = value.Append(dst, "_id", was)
		return value.End(append(dst, doc[4:len(doc)-1]...), mark), nil
	}
	if value.Compare(was, now) != 0 {
		return nil, alteredID(now)
	}
	return doc, nil
}

// projection returns the projection of a stage, with an evaluation frame of its own if it needs one.
func (ctx *Context) projection(u *Update, i int) *projection.Projection {
	if u.stages[i].fields.Stateless() {
		return u.stages[i].fields
	}
	if ctx.forkOf != u {
		ctx.forkOf, ctx.forks = u, make([]*projection.Projection, len(u.stages))
	}
	if ctx.forks[i] == nil {
		ctx.forks[i] = u.stages[i].fields.Fork()
	}
	return ctx.forks[i]
}

func replaceRoot(e *expr.Expr, f *expr.Frame, doc []byte) ([]byte, error) {
	f.SetRoot(doc)
	v, err := e.Eval(f)
	if err != nil {
		return nil, err
	}
	if v.T != value.Document {
		return nil, mongoerr.Newf(40228, "'replacement document' must evaluate to an object, but resulting value was: %s. Type of "+
			"resulting value: '%s'. Input document: %s", expr.Show(v), v.T.Name(), expr.Show(value.NewDocument(doc)))
	}
	return append([]byte(nil), v.Doc()...), nil
}
