package match

import (
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/jsonschema"
	"github.com/shoaldb/shoal/query/text"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxDepth limits the nesting of a filter's operators.
const maxDepth = 100

// parser turns a filter's text into a tree.
type parser struct {
	o     Options
	depth int
	elem  int  // the number of enclosing $elemMatch: some operators are allowed only at the top level
	bare  bool // the operators being read have no path
}

func badValue(format string, args ...any) error {
	return mongoerr.Newf(mongoerr.BadValue, format, args...)
}

// document parses a filter document: the And of its elements.
func (p *parser) document(doc []byte) (*Node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, badValue("exceeded maximum query tree depth of %d at %s", maxDepth, "filter")
	}
	outer := p.bare
	p.bare = false
	defer func() { p.depth--; p.bare = outer }()
	if n, err := p.single(doc); n != nil || err != nil {
		return n, err
	}
	and := &Node{Kind: And}
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return and, nil
		}
		key := pathName(k)
		if strings.HasPrefix(key, "$") && !value.IsDBRefField(key) {
			n, err := p.topLevel(key, v)
			if err != nil {
				return nil, err
			}
			if n != nil {
				and.Children = append(and.Children, n)
			}
			continue
		}
		if err := p.field(and, key, v); err != nil {
			return nil, err
		}
	}
}

// single parses a document of one element {path: value}, the most common filter, without an And around it. It returns nil for others.
func (p *parser) single(doc []byte) (*Node, error) {
	it := value.Walk(doc)
	k, v, ok := it.Next()
	if !ok || len(k) > 0 && k[0] == '$' || isOperatorDoc(v) {
		return nil, nil
	}
	if _, _, more := it.Next(); more {
		return nil, nil
	}
	n, err := p.equality(pathName(k), v)
	if err == nil {
		n.written = v
	}
	return n, err
}

// pathName returns a field's name as a string; the most common one costs no allocation.
func pathName(k []byte) string {
	if string(k) == "_id" {
		return "_id"
	}
	return string(k)
}

// field parses {path: value}: operators, a regular expression, or an equality.
func (p *parser) field(and *Node, path string, v value.Value) error {
	if isOperatorDoc(v) {
		return p.operators(and, path, v.Doc())
	}
	n, err := p.equality(path, v)
	if err != nil {
		return err
	}
	n.written = v
	and.Children = append(and.Children, n)
	return nil
}

func (p *parser) equality(path string, v value.Value) (*Node, error) {
	if v.T == value.Regex {
		return p.regexLiteral(path, v)
	}
	return p.comparison(Eq, path, v)
}

// isOperatorDoc distinguishes {a: {$gt: 1}} from {a: {b: 1}}: the first field decides. A DBRef is a value.
func isOperatorDoc(v value.Value) bool { return v.T == value.Document && value.IsCondition(v.Doc()) }

// topLevel parses the operators that are used in place of a field name.
func (p *parser) topLevel(key string, v value.Value) (*Node, error) {
	switch key {
	case "$and":
		return p.logical(And, key, v)
	case "$or":
		return p.logical(Or, key, v)
	case "$nor":
		return p.logical(Nor, key, v)
	case "$comment":
		return nil, nil
	case "$expr":
		return p.expression(v)
	case "$where":
		return p.where(v)
	case "$text":
		return p.text(v)
	case "$jsonSchema":
		return p.schema(v)
	case "$alwaysTrue":
		return p.always(AlwaysTrue, key, v)
	case "$alwaysFalse":
		return p.always(AlwaysFalse, key, v)
	case "$sampleRate":
		return p.sampleRate(v)
	}
	return nil, badValue("unknown top level operator: %s. If you have a field name that starts with a '$' symbol, consider using $getField or $setField.", key)
}

func (p *parser) logical(k Kind, name string, v value.Value) (*Node, error) {
	if v.T != value.Array {
		return nil, badValue("%s must be an array", name)
	}
	n := &Node{Kind: k}
	for it := value.Walk(v.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			break
		}
		if e.T != value.Document {
			return nil, badValue("$or/$and/$nor entries need to be full objects")
		}
		c, err := p.document(e.Doc())
		if err != nil {
			return nil, err
		}
		n.Children = append(n.Children, c)
	}
	if len(n.Children) == 0 {
		return nil, badValue("$and/$or/$nor must be a nonempty array")
	}
	return n, nil
}

func (p *parser) expression(v value.Value) (*Node, error) {
	if p.elem > 0 {
		return nil, badValue("$expr can only be applied to the top-level document")
	}
	if err := p.o.refuse(DenyExpr, "$expr"); err != nil {
		return nil, err
	}
	scope := p.o.Expr
	if scope == nil {
		scope = expr.NewScope(&expr.Env{Collator: p.o.Collator, NoConstants: true})
		p.o.Expr = scope
	}
	e, err := expr.Compile(v, scope)
	if err != nil {
		return nil, err
	}
	if p.o.Collator != nil {
		e.PlainMembership()
	}
	return &Node{Kind: Expr, Expr: e, spelling: spelling{"$expr", v}}, nil
}

func (p *parser) where(v value.Value) (*Node, error) {
	if p.elem > 0 {
		return nil, badValue("$where can only be applied to the top-level document")
	}
	if err := p.o.refuse(DenyWhere, "$where"); err != nil {
		return nil, err
	}
	src := ""
	switch v.T {
	case value.String, value.JavaScript:
		src = v.Str()
	case value.CodeWithScope:
		return nil, mongoerr.New(4649201, "$where no longer supports deprecated BSON type CodeWScope")
	default:
		return nil, badValue("$where got bad type")
	}
	if p.o.Expr == nil { // its frame keeps the script's runtime
		p.o.Expr = expr.NewScope(&expr.Env{Collator: p.o.Collator})
	}
	fn, err := p.o.Expr.Env().CompileScript(src)
	if err != nil {
		return nil, err
	}
	return &Node{Kind: Where, Value: v, Script: fn}, nil
}

func (p *parser) text(v value.Value) (*Node, error) {
	if p.elem > 0 {
		return nil, badValue("$text can only be applied to the top-level document")
	}
	if err := p.o.refuse(DenyText, "$text"); err != nil {
		return nil, err
	}
	q, err := text.ParseQuery(v)
	if err != nil {
		return nil, err
	}
	return &Node{Kind: Text, Text: q, Value: v}, nil
}

func (p *parser) schema(v value.Value) (*Node, error) {
	if err := p.o.refuse(DenySchema, "$jsonSchema"); err != nil {
		return nil, err
	}
	if v.T != value.Document {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "$jsonSchema must be an object")
	}
	s, err := jsonschema.Compile(v.Doc())
	if err != nil {
		return nil, err
	}
	return &Node{Kind: Schema, Schema: s}, nil
}

func (p *parser) always(k Kind, name string, v value.Value) (*Node, error) {
	if !v.T.Numeric() {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "%s must be an integer value", name)
	}
	if i, ok := v.AsInt64(); !ok || i != 1 {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "%s must be an integer value of 1", name)
	}
	return &Node{Kind: k}, nil
}

func (p *parser) sampleRate(v value.Value) (*Node, error) {
	if p.elem > 0 {
		return nil, badValue("$sampleRate can only be applied to the top-level document")
	}
	if !v.T.Numeric() {
		return nil, badValue("argument to $sampleRate must be a numeric type")
	}
	rate := v.AsFloat64()
	if !(rate >= 0 && rate <= 1) {
		return nil, badValue("numeric argument to $sampleRate must be in [0, 1]")
	}
	return &Node{Kind: SampleRate, Rate: rate}, nil
}
