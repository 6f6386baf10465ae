package expr

import (
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// node is one step of a compiled expression.
type node interface {
	eval(f *Frame) (value.Value, error)
	// visit calls fn for the node and all below it.
	visit(fn func(node))
	serialize() value.Value
}

// constant is a literal, or an expression folded to one.
type constant struct {
	v     value.Value
	shown string // how it was written, if that is a system variable
}

func (c *constant) eval(*Frame) (value.Value, error) { return c.v, nil }
func (c *constant) visit(fn func(node))              { fn(c) }
func (c *constant) serialize() value.Value {
	if c.shown != "" {
		return value.NewString(c.shown)
	}
	return value.NewDocument(value.Doc(value.F("$const", c.v)))
}

// clockNode is $$NOW or $$CLUSTER_TIME if they differ from evaluation to evaluation.
type clockNode struct {
	name string
	path []string // the path after the variable, which leads nowhere
}

func (c *clockNode) eval(f *Frame) (value.Value, error) {
	now, cluster := f.env.Clock()
	switch {
	case len(c.path) > 0:
		return value.Value{}, nil
	case c.name == "NOW":
		return value.NewDateTime(now), nil
	case cluster == 0 && now != 0:
		return value.Value{}, errNoClusterTime
	}
	return value.NewTimestampU64(cluster), nil
}

func (c *clockNode) visit(fn func(node))    { fn(c) }
func (c *clockNode) serialize() value.Value { return value.NewString("$$" + c.name) }

// What a path starts from.
const (
	baseRoot = iota
	baseVar
)

// fieldPath is "$a.b", "$$ROOT.a", "$$var" or "$$var.a": a walk from the root document or a variable.
type fieldPath struct {
	base  int
	id    int // of the variable
	name  string
	parts []string
}

func (p *fieldPath) dotted() string      { return strings.Join(p.parts, ".") }
func (p *fieldPath) visit(fn func(node)) { fn(p) }

func (p *fieldPath) serialize() value.Value {
	switch {
	case p.base == baseRoot && len(p.parts) == 0:
		return value.NewString("$$ROOT")
	case p.base == baseRoot:
		return value.NewString("$" + p.dotted())
	case len(p.parts) == 0:
		return value.NewString("$$" + p.name)
	}
	return value.NewString("$$" + p.name + "." + p.dotted())
}

func (p *fieldPath) eval(f *Frame) (value.Value, error) {
	if p.base == baseRoot {
		switch len(p.parts) {
		case 0:
			return f.root, nil
		case 1:
			return value.Lookup(f.root.Doc(), p.parts[0]), nil
		}
		return f.walkPath(f.root.Doc(), p.parts), nil
	}
	v := f.Var(p.id)
	if len(p.parts) == 0 {
		return v, nil
	}
	return f.fetch(v, p.parts), nil
}

// fetch reads a path from a value: through documents, and through each element of arrays.
func (f *Frame) fetch(v value.Value, parts []string) value.Value {
	switch v.T {
	case value.Document:
		return f.walkPath(v.Doc(), parts)
	case value.Array:
		return f.fetchArray(v, parts)
	}
	return value.Value{}
}

func (f *Frame) walkPath(doc []byte, parts []string) value.Value {
	for {
		v := value.Lookup(doc, parts[0])
		parts = parts[1:]
		if len(parts) == 0 {
			return v
		}
		switch v.T {
		case value.Document:
			doc = v.Doc()
		case value.Array:
			return f.fetchArray(v, parts)
		default:
			return value.Value{}
		}
	}
}

// fetchArray collects a path's values from the elements that have it; elements that are not documents are skipped.
func (f *Frame) fetchArray(arr value.Value, parts []string) value.Value {
	b := f.beginArray()
	for it := value.Walk(arr.Doc()); ; {
		_, e, ok := it.Next()
		if !ok {
			return b.finish()
		}
		if e.T != value.Document {
			continue
		}
		if v := f.walkPath(e.Doc(), parts); v.T != value.Missing {
			b.add(v)
		}
	}
}

// object is a document literal with computed fields.
type object struct {
	keys []string
	vals []node
}

func (o *object) visit(fn func(node)) {
	fn(o)
	for _, n := range o.vals {
		n.visit(fn)
	}
}

func (o *object) serialize() value.Value {
	dst, mark := value.Begin(nil)
	for i, k := range o.keys {
		dst = value.Append(dst, k, o.vals[i].serialize())
	}
	return value.NewDocument(value.End(dst, mark))
}

func (o *object) eval(f *Frame) (value.Value, error) {
	b := f.beginDoc()
	for i, n := range o.vals {
		v, err := n.eval(f)
		if err != nil {
			return b.abandon(err)
		}
		b.set(o.keys[i], v)
	}
	return b.finish(), nil
}

// array is an array literal with computed elements.
type array struct{ elems []node }

func (a *array) visit(fn func(node)) {
	fn(a)
	for _, n := range a.elems {
		n.visit(fn)
	}
}

func (a *array) serialize() value.Value {
	vs := make([]value.Value, len(a.elems))
	for i, n := range a.elems {
		vs[i] = n.serialize()
	}
	return value.NewArray(value.ArrayOf(vs...))
}

func (a *array) eval(f *Frame) (value.Value, error) {
	b := f.beginArray()
	for _, n := range a.elems {
		v, err := n.eval(f)
		if err != nil {
			return b.abandon(err)
		}
		b.add(v)
	}
	return b.finish(), nil
}

// call is an operator applied to operands.
type call struct {
	op   *operator
	args []node // positional, or in the order of op.fields with nil for omitted ones
	// state has the operator's results of compile time (a compiled pattern, a variable's id).
	state any
}

func (c *call) eval(f *Frame) (value.Value, error) { return c.op.eval(f, c) }

func (c *call) visit(fn func(node)) {
	fn(c)
	for _, n := range c.args {
		if n != nil {
			n.visit(fn)
		}
	}
}

func (c *call) serialize() value.Value {
	if c.op.show != nil {
		return c.op.show(c)
	}
	if c.op.fields == nil {
		arr := (&array{elems: c.args}).serialize()
		return value.NewDocument(value.Doc(value.F(c.op.name, arr)))
	}
	dst, mark := value.Begin(nil)
	for i, fd := range c.op.fields {
		if c.args[i] != nil {
			dst = value.Append(dst, fd.name, c.args[i].serialize())
		}
	}
	return value.NewDocument(value.Doc(value.F(c.op.name, value.NewDocument(value.End(dst, mark)))))
}

// arg evaluates an operand; an omitted one is Missing.
func (c *call) arg(f *Frame, i int) (value.Value, error) {
	if c.args[i] == nil {
		return value.Value{}, nil
	}
	return c.args[i].eval(f)
}

// builder makes a document or array in the frame. Builders nest: the inner one has to finish before the outer one continues.
type builder struct {
	f     *Frame
	mark  int
	n     int
	array bool
}

// added is called after each element of a long list: it checks whether evaluation has to stop, or builds too much.
func (b *builder) added(op string) error { return b.f.step(op, 0) }

func (f *Frame) beginDoc() builder {
	b := builder{f: f}
	f.scratch, b.mark = value.Begin(f.scratch)
	return b
}

func (f *Frame) beginArray() builder {
	b := f.beginDoc()
	b.array = true
	return b
}

// set adds a field; Missing adds nothing.
func (b *builder) set(key string, v value.Value) {
	b.f.scratch = value.Append(b.f.scratch, key, v)
}

func (b *builder) setBytes(key []byte, v value.Value) {
	b.f.scratch = value.AppendKeyBytes(b.f.scratch, key, v)
}

// add appends an element; Missing becomes null.
func (b *builder) add(v value.Value) {
	if v.T == value.Missing {
		v = value.NewNull()
	}
	b.f.scratch = value.AppendIndex(b.f.scratch, b.n, v)
	b.n++
}

// finish closes what was built and moves it to the arena.
func (b *builder) finish() value.Value {
	f := b.f
	f.scratch = value.End(f.scratch, b.mark)
	out := f.keep(f.scratch[b.mark:])
	f.scratch = f.scratch[:b.mark]
	if b.array {
		return value.NewArray(out)
	}
	return value.NewDocument(out)
}

// abandon discards what was built.
func (b *builder) abandon(err error) (value.Value, error) {
	b.f.scratch = b.f.scratch[:b.mark]
	return value.Value{}, err
}

// alloc returns n bytes of the arena. A full chunk is not reused: values borrow from it.
func (f *Frame) alloc(n int) []byte {
	f.charge(n)
	if cap(f.arena)-len(f.arena) < n {
		size := max(2*cap(f.arena), 512)
		if size > 1<<20 {
			size = 1 << 20
		}
		f.arena = make([]byte, 0, max(size, n))
	}
	at := len(f.arena)
	f.arena = f.arena[:at+n]
	return f.arena[at : at+n : at+n]
}

// keep copies bytes to the arena.
func (f *Frame) keep(p []byte) []byte {
	out := f.alloc(len(p))
	copy(out, p)
	return out
}

// str makes a string value in the arena.
func (f *Frame) str(s string) value.Value {
	out := f.alloc(len(s))
	copy(out, s)
	return value.NewStringBytes(out)
}
