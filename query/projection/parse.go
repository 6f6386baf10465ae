package projection

import (
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxPathDepth limits the number of components of a path.
const maxPathDepth = 200

// mode says whether a projection includes or excludes; it is unknown until a field determines it.
type mode uint8

const (
	unknown mode = iota
	including
	excluding
)

// parser reads find projections and $project.
type parser struct {
	o          *Options
	find       bool // the operators of find are allowed
	root       *node
	mode       mode
	id         mode // the spec's mode of the whole _id
	positional []string
	elemMatch  bool
	metas      []string
}

// Compile parses a find projection.
func Compile(spec []byte, o *Options) (*Projection, error) { return compile(spec, o, true) }

func compile(spec []byte, o *Options, find bool) (*Projection, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Expr == nil {
		opts.Expr = expr.NewScope(&expr.Env{Collator: opts.Collator})
	}
	spec = append([]byte(nil), spec...)
	p := &parser{o: &opts, find: find, root: &node{}}
	if value.Count(spec) == 0 && !find {
		return nil, mongoerr.New(51272, "projection specification must have at least one field")
	}
	for it := value.Walk(spec); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		if err := p.element(string(k), v, nil); err != nil {
			return nil, err
		}
	}
	return p.finish(spec)
}

// finish determines the mode and what happens to _id.
func (p *parser) finish(spec []byte) (*Projection, error) {
	m := p.mode
	if m == unknown {
		m = excluding
		if p.id == including || p.elemMatch {
			m = including
		}
	}
	if _, id := p.root.find([]byte("_id")); id != nil && id.kind == include && m == excluding || id != nil && id.kind == exclude && m == including {
		p.removeID()
	} else if id == nil && m == including && p.id == unknown {
		p.root.children = append([]*node{{kind: include, name: "_id"}}, p.root.children...)
	}
	out := newProjection(p.root, m == including, p.o)
	out.spec, out.positional, out.metas = spec, p.positional, p.metas
	if p.positional != nil {
		if f := p.o.Filter; f != nil {
			if f.Root().Has(match.Expr) {
				return nil, mongoerr.New(mongoerr.QueryFeatureNotAllowed, "$expr is not allowed in this context")
			}
			out.filter = f.Fork()
		}
	}
	return out, nil
}

func (p *parser) removeID() {
	i, _ := p.root.find([]byte("_id"))
	p.root.children = append(p.root.children[:i:i], p.root.children[i+1:]...)
}

func newProjection(root *node, inclusion bool, o *Options) *Projection {
	root.settle(inclusion)
	p := &Projection{root: root, inclusion: inclusion, scope: o.Expr}
	if root.computes {
		p.frame = expr.NewFrame(o.Expr)
	}
	return p
}

// splitPath checks a field path and splits it.
func splitPath(path string) ([]string, error) {
	switch {
	case path == "":
		return nil, mongoerr.New(40352, "FieldPath cannot be constructed with empty string")
	case strings.HasSuffix(path, "."):
		return nil, mongoerr.New(40353, "FieldPath must not end with a '.'.")
	}
	parts := strings.Split(path, ".")
	if len(parts) > maxPathDepth {
		return nil, mongoerr.New(mongoerr.Overflow, "FieldPath is too long")
	}
	for _, name := range parts {
		switch {
		case name == "":
			return nil, mongoerr.New(15998, "FieldPath field names may not be empty strings.")
		case name[0] == '$' && name != "$id" && name != "$ref" && name != "$db":
			return nil, mongoerr.New(16410, "FieldPath field names may not start with '$'. Consider using $getField or $setField.")
		case strings.IndexByte(name, 0) >= 0:
			return nil, mongoerr.New(16411, "FieldPath field names may not contain '\\0'.")
		}
	}
	return parts, nil
}

// element reads {name: v} below the path prefix.
func (p *parser) element(name string, v value.Value, prefix []string) error {
	name, positional, err := p.cutPositional(name)
	if err != nil {
		return err
	}
	rel, err := splitPath(name)
	if err != nil {
		return err
	}
	parts := append(append([]string(nil), prefix...), rel...)
	if len(parts) > maxPathDepth {
		return mongoerr.New(mongoerr.Overflow, "FieldPath is too long")
	}
	if positional {
		return p.positionalElement(parts, v)
	}
	switch {
	case v.T == value.Document:
		return p.object(parts, v)
	case v.T == value.Boolean || v.T.Numeric():
		return p.flag(parts, v.Truthy())
	}
	return p.literal(parts, v)
}

// cutPositional removes ".$" from the end of a name.
func (p *parser) cutPositional(name string) (string, bool, error) {
	if strings.HasSuffix(name, ".$") && !p.find {
		return "", false, mongoerr.New(31324, "Cannot use positional projection in aggregation projection")
	}
	if strings.Contains(name, ".$.") {
		return "", false, mongoerr.New(31394, "As of 4.4, it's illegal to specify positional operator in the middle of a path.Positional projection may only be used at the end, for example: a.b.$. If the query previously used a form like a.b.$.d, remove the parts following the '$' and the results will be equivalent.")
	}
	if !strings.HasSuffix(name, ".$") {
		return name, false, nil
	}
	return strings.TrimSuffix(name, ".$"), true, nil
}

func (p *parser) positionalElement(parts []string, v value.Value) error {
	switch {
	case v.T == value.Document:
		return mongoerr.New(31271, "positional projection cannot be used with an expression or sub object")
	case v.T != value.Boolean && !v.T.Numeric():
		return mongoerr.New(31308, "positional projection cannot be used with a literal")
	case p.positional != nil:
		return mongoerr.New(31276, "Cannot specify more than one positional projection per query.")
	case p.elemMatch:
		return mongoerr.New(31256, "Cannot specify positional operator and $elemMatch.")
	case !v.Truthy():
		return mongoerr.New(31395, "positional projection cannot be used with exclusion")
	}
	if p.mode == excluding {
		return mongoerr.Newf(31253, "Cannot do inclusion on field %s in exclusion projection", strings.Join(parts, "."))
	}
	p.mode = including
	p.positional = parts
	return p.root.add(parts, &node{kind: include})
}

// flag reads {path: 1} and {path: 0}.
func (p *parser) flag(parts []string, in bool) error {
	want, k := excluding, exclude
	if in {
		want, k = including, include
	}
	if len(parts) == 1 && parts[0] == "_id" {
		p.id = want
		return p.root.add(parts, &node{kind: k})
	}
	switch {
	case in && p.mode == excluding:
		return mongoerr.Newf(31253, "Cannot do inclusion on field %s in exclusion projection", strings.Join(parts, "."))
	case !in && p.mode == including:
		return mongoerr.Newf(31254, "Cannot do exclusion on field %s in inclusion projection", strings.Join(parts, "."))
	}
	p.mode = want
	return p.root.add(parts, &node{kind: k})
}

// literal reads {path: "$other"}, {path: "text"} and every other value that is neither a flag nor a document.
func (p *parser) literal(parts []string, v value.Value) error {
	if p.mode == excluding {
		return mongoerr.Newf(31310, "Cannot use an expression %s in an exclusion projection", value.ShowElement(strings.Join(parts, "."), v))
	}
	p.mode = including
	return p.compute(parts, v)
}

func (p *parser) compute(parts []string, v value.Value) error {
	e, err := expr.Compile(v, p.o.Expr)
	if err != nil {
		return err
	}
	p.metas = append(p.metas, e.Deps().Meta...)
	return p.root.add(parts, &node{kind: computed, expr: e})
}

// object reads {path: {…}}: an operator, or a projection of the fields below.
func (p *parser) object(parts []string, v value.Value) error {
	it := value.Walk(v.Doc())
	k, arg, ok := it.Next()
	if !ok {
		return mongoerr.New(51270, "An empty sub-projection is not a valid value. Found empty object at path")
	}
	op := string(k)
	if _, _, more := it.Next(); !more && strings.HasPrefix(op, "$") {
		return p.operator(parts, op, arg, v)
	}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return nil
		}
		if err := p.element(string(k), e, parts); err != nil {
			return err
		}
	}
}

func (p *parser) operator(parts []string, op string, arg, v value.Value) error {
	if p.find && op == "$slice" && p.positionalAt(parts) {
		return p.compute(parts, v) // the path is in use: only the expression with this name is tried
	}
	if p.find && op == "$slice" {
		if n := sliceOf(arg); n != nil {
			n.spec = v
			return p.root.add(parts, n)
		}
	}
	if p.find && op == "$elemMatch" {
		return p.projectElemMatch(parts, arg, v)
	}
	if op == "$meta" && (p.find || p.mode == excluding) {
		return p.compute(parts, v)
	}
	if !expr.IsOperator(op) && op != "$elemMatch" {
		return mongoerr.Newf(31325, "Unknown expression %s", op)
	}
	if p.mode == excluding {
		return mongoerr.New(31252, "Cannot use expression other than $meta in exclusion projection")
	}
	p.mode = including
	return p.compute(parts, v)
}

func (p *parser) positionalAt(parts []string) bool {
	return p.positional != nil && strings.Join(p.positional, ".") == strings.Join(parts, ".")
}

// sliceOf reads the argument of find's $slice; nil if it can only be the expression with that name.
func sliceOf(arg value.Value) *node {
	if arg.T.Numeric() {
		return &node{kind: slice, limit: clampInt(arg)}
	}
	if arg.T != value.Array {
		return nil
	}
	vs := value.Values(arg.Doc())
	if len(vs) != 2 || !vs[0].T.Numeric() || !vs[1].T.Numeric() {
		return nil
	}
	n := &node{kind: slice, skip: clampInt(vs[0]), limit: clampInt(vs[1]), hasSkip: true}
	if n.limit <= 0 {
		return nil
	}
	return n
}

// clampInt converts a number to a 32-bit integer, as the server does for these arguments.
func clampInt(v value.Value) int64 {
	i, ok := v.Truncate()
	if !ok {
		f := v.AsFloat64()
		switch {
		case f > 0:
			i = 1<<31 - 1
		case f < 0:
			i = -1 << 31
		}
	}
	return max(-1<<31, min(i, 1<<31-1))
}

func (p *parser) projectElemMatch(parts []string, arg, v value.Value) error {
	switch {
	case arg.T != value.Document:
		return mongoerr.Newf(31274, "elemMatch: Invalid argument, object required, but got %s", arg.T.Name())
	case p.positional != nil:
		return mongoerr.New(31255, "Cannot specify positional operator and $elemMatch.")
	case len(parts) > 1:
		return mongoerr.New(31275, "Cannot use $elemMatch projection on a nested field.")
	}
	cond := value.Doc(value.F(parts[0], v))
	m, err := match.Compile(cond, &match.Options{Collator: p.o.Collator, Expr: p.o.Expr, Deny: match.DenyNear | match.DenyText | match.DenySchema})
	if err != nil {
		return err
	}
	p.elemMatch = true
	return p.root.add(parts, &node{kind: elemMatch, match: m, spec: v})
}
