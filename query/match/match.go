package match

import (
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Options are the other inputs that a filter's meaning depends on.
type Options struct {
	Collator value.Collator // nil: strings compare as bytes
	Expr     *expr.Scope    // variables and environment of $expr; nil: none but the system's
	Rand     func() float64 // $sampleRate, in [0, 1); nil: the runtime's generator
	Deny     Feature        // operators that this use of a filter does not allow
	Derive   bool           // add the comparisons that $expr requires, which an index can serve: for queries that are planned
}

// Feature is a set of operators that some uses of filters do not allow.
type Feature uint8

// Features.
const (
	DenyExpr Feature = 1 << iota
	DenySchema
	DenyText
	DenyNear
	DenyWhere
)

// refuse returns the error for a denied operator, nil if it is allowed.
func (o *Options) refuse(f Feature, name string) error {
	if o.Deny&f == 0 {
		return nil
	}
	if f == DenyNear {
		return mongoerr.New(5626500, "$geoNear, $near, and $nearSphere are not allowed in this context")
	}
	return mongoerr.Newf(mongoerr.QueryFeatureNotAllowed, "%s is not allowed in this context", name)
}

// Matcher is a compiled filter.
type Matcher struct {
	root  *Node
	coll  value.Collator
	rand  func() float64
	scope *expr.Scope
	work  value.Work  // checked periodically by what may take long
	frame *expr.Frame // for $expr
}

// Detail describes where in a document a filter matched.
type Detail struct {
	// ArrayIndex is the index of the array element that made a predicate on an array true, to which the
	// positional operator $ refers. -1 if no array was traversed.
	ArrayIndex int
}

// Compile parses and optimises a filter. Errors carry the server's codes and texts.
func Compile(filter []byte, o *Options) (*Matcher, error) {
	return compile(filter, o, (*parser).document)
}

// CompileOperators compiles the operators on one path ({$gte: 6, $lt: 9}) for MatchValue.
func CompileOperators(ops []byte, o *Options) (*Matcher, error) {
	return compile(ops, o, func(p *parser, doc []byte) (*Node, error) {
		and := &Node{Kind: And}
		return and, p.bareOperators(and, doc)
	})
}

func compile(filter []byte, o *Options, parse func(*parser, []byte) (*Node, error)) (*Matcher, error) {
	p := &parser{}
	if o != nil {
		p.o = *o
	}
	tree, err := parse(p, append([]byte(nil), filter...))
	if err != nil {
		return nil, err
	}
	if p.o.Derive {
		tree = deriveComparisons(tree)
	}
	tree = optimise(tree)
	if err := checkNear(tree); err != nil {
		return nil, err
	}
	if err := checkText(tree); err != nil {
		return nil, err
	}
	return link(tree, &p.o), nil
}

// link makes a Matcher from an optimised tree.
func link(root *Node, o *Options) *Matcher {
	m := &Matcher{root: root, coll: o.Collator, rand: o.Rand, scope: o.Expr}
	if o.Expr != nil {
		m.work = o.Expr.Env().Work
	}
	root.prepare(o.Collator)
	if root.Has(Expr) || root.Has(Where) {
		m.frame = expr.NewFrame(m.scope)
	}
	return m
}

// Stateless reports whether the Matcher may be used by many goroutines at once.
func (m *Matcher) Stateless() bool { return m.frame == nil }

// Frame returns the evaluation frame of $expr, where values of variables are set; nil if the filter has none.
func (m *Matcher) Frame() *expr.Frame { return m.frame }

// Fork returns a Matcher for another goroutine: it shares the tree, not the frame. Variables must be set again.
func (m *Matcher) Fork() *Matcher {
	c := *m
	if m.frame != nil {
		c.frame = expr.NewFrame(m.scope)
	}
	return &c
}

// Root returns the optimised tree: an And without children matches everything.
func (m *Matcher) Root() *Node { return m.root }

// Trivial reports whether the filter matches every document.
func (m *Matcher) Trivial() bool {
	return m.root.Kind == And && len(m.root.Children) == 0 || m.root.Kind == AlwaysTrue
}

// Match reports whether doc satisfies the filter.
func (m *Matcher) Match(doc []byte) (bool, error) {
	c := context{m: m, pace: value.Pace{Work: m.work}}
	ok := c.document(m.root, doc)
	return ok && c.err == nil, c.err
}

// MatchDetail is Match that also fills in d.
func (m *Matcher) MatchDetail(doc []byte, d *Detail) (bool, error) {
	d.ArrayIndex = -1
	c := context{m: m, detail: d, pace: value.Pace{Work: m.work}}
	ok := c.document(m.root, doc)
	return ok && c.err == nil, c.err
}

// MatchValue runs a filter on one value instead of a document: paths start at the value itself, and predicates without a
// path (CompileOperators) test it.
func (m *Matcher) MatchValue(v value.Value) (bool, error) {
	c := context{m: m, pace: value.Pace{Work: m.work}}
	ok := c.value(m.root, v)
	return ok && c.err == nil, c.err
}
