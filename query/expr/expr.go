package expr

import (
	"math/rand/v2"
	"sort"
	"time"

	"github.com/shoaldb/shoal/query/js"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Env is the environment of all expressions of one operation.
type Env struct {
	NowMS       int64  // $$NOW
	ClusterTime uint64 // $$CLUSTER_TIME; 0 if there is none (a standalone server)
	// Clock returns $$NOW and $$CLUSTER_TIME at each evaluation, for expressions that are compiled once and used by
	// many operations (a collection's validator). Without it, NowMS 0 means that the expression is only checked (a
	// view's).
	Clock       func() (nowMS int64, clusterTime uint64)
	Collator    value.Collator // nil: binary comparison
	Rand        func() float64 // $rand and $sampleRate, in [0,1); nil: the runtime's generator
	WallMS      func() int64   // $currentDate, in milliseconds; nil: the system's clock
	UserRoles   value.Value    // $$USER_ROLES: array of {_id, role, db}; Missing: an empty array
	NoScripts   bool           // the node does not run scripts (parameter javascriptEnabled)
	NoConstants bool           // the command has no $$NOW, $$CLUSTER_TIME and $$USER_ROLES (count, distinct, …)
	Work        value.Work     // checked periodically by what may take long; nil: it never has to stop
	Validator   bool           // the expression is in a collection's validator, which runs no scripts
	MapReduce   bool           // the command is mapReduce: its own operators are allowed
	JSScope     []byte         // globals of scripts (mapReduce's scope), nil for none
	// The maximum size of one list of $push, and of one set of $addToSet, in bytes; 0 for 100 MB.
	MaxPushBytes, MaxAddToSetBytes int64
	FoldContext                    string // prefix of errors raised while folding constants; "" for the pipeline's own
}

// maxEvalBytes limits the values being built for one document.
const maxEvalBytes = 100 << 20

// Check returns an error if the operation has to stop; it is cheap enough to be called for each document.
func (f *Frame) Check() error { return f.pace.Check() }

// charge counts bytes that an operator walks or builds at once.
func (f *Frame) charge(bytes int) { f.pace.Charge(bytes >> 8) }

// step is called for each element that an operator visits: it returns an error if the evaluation has to stop or grows too large.
func (f *Frame) step(op string, size int) error {
	if err := f.Check(); err != nil {
		return err
	}
	if size += len(f.scratch); size > maxEvalBytes {
		return mongoerr.Newf(mongoerr.ExceededMemoryLimit, "%s would use too much memory (%d bytes) and cannot spill to disk. Memory limit: %d bytes", op, size, maxEvalBytes)
	}
	return nil
}

// SetConstants sets the values that a router sends to its shards in runtimeConstants.
func (e *Env) SetConstants(runtimeConstants []byte) {
	for k, v := range value.Elements(runtimeConstants) {
		switch k {
		case "localNow":
			e.NowMS = v.DateTime()
		case "clusterTime":
			e.ClusterTime = v.TimestampU64()
		case "jsScope":
			e.JSScope = v.Doc()
		case "isMapReduce":
			e.MapReduce = v.Truthy()
		}
	}
}

// Constants returns the values for SetConstants.
func (e *Env) Constants() value.Value {
	fs := []value.Field{value.F("localNow", value.NewDateTime(e.NowMS)), value.F("clusterTime", value.NewTimestampU64(e.ClusterTime))}
	if e.MapReduce {
		fs = append(fs, value.F("isMapReduce", value.NewBool(true)))
	}
	if e.JSScope != nil {
		fs = append(fs, value.F("jsScope", value.NewDocument(e.JSScope)))
	}
	return value.NewDocument(value.Doc(fs...))
}

const pipelineFoldContext = "Failed to optimize pipeline"

func (e *Env) wallMS() int64 {
	if e.WallMS != nil {
		return e.WallMS()
	}
	return time.Now().UnixMilli()
}

func (e *Env) rand() float64 {
	if e.Rand != nil {
		return e.Rand()
	}
	return rand.Float64()
}

// Scope resolves the names of variables during compilation. Scopes made from one NewScope share their frame.
type Scope struct {
	env    *Env
	parent *Scope
	slots  *int // how many variables the frame has
	own    int  // what slots points to in the outermost scope
	name   string
	id     int
	known  *constant // not nil: the variable's value is already known
	late   bool      // errors while folding are raised during evaluation instead
}

// NewScope starts a scope with the system variables.
func NewScope(env *Env) *Scope {
	if env == nil {
		env = &Env{}
	}
	s := &Scope{env: env, id: -1}
	s.slots = &s.own
	return s
}

// Env returns the environment the scope was made with.
func (s *Scope) Env() *Env { return s.env }

// Define adds a variable to the scope, hiding an earlier one of that name; Frame.SetVar gives it values.
func (s *Scope) Define(name string) (id int) {
	id = *s.slots
	*s.slots++
	outer := *s
	s.parent, s.name, s.id, s.known = &outer, name, id, nil
	return id
}

// DefineConst adds a variable whose value is known before anything is compiled (a command's `let`).
func (s *Scope) DefineConst(name string, v value.Value) {
	outer := *s
	s.parent, s.name, s.id, s.known = &outer, name, -1, &constant{v: v.Clone(), shown: "$$" + name}
}

// Nested returns a scope that sees s's variables; what is defined in it is not seen in s.
func (s *Scope) Nested() *Scope {
	c := *s
	return &c
}

// Unfailing returns a scope in which folding raises no errors: an expression of constants that fails does so when
// it is evaluated, as those of an update do, which may find no document.
func (s *Scope) Unfailing() *Scope {
	c := s.Nested()
	c.late = true
	return c
}

// find looks up a variable, innermost first.
func (s *Scope) find(name string) *Scope {
	for ; s != nil; s = s.parent {
		if s.name == name && (s.id >= 0 || s.known != nil) {
			return s
		}
	}
	return nil
}

// Metadata provides the values that $meta reads for the document being evaluated; Missing if there is
// none of that kind.
type Metadata interface {
	Meta(kind string) value.Value
}

// Frame holds what evaluation needs: the document, the variables' values and memory for results.
type Frame struct {
	env     *Env
	root    value.Value
	vars    []value.Value
	meta    Metadata
	arena   []byte // results live here until the next SetRoot
	scratch []byte // a stack of documents being built
	key     []byte // a key being computed
	script  *js.Runtime
	pace    value.Pace
}

// NewFrame makes a frame for expressions compiled in s (or scopes nested in it).
func NewFrame(s *Scope) *Frame {
	return &Frame{env: s.env, vars: make([]value.Value, *s.slots), pace: value.Pace{Work: s.env.Work}}
}

// SetRoot sets the document to evaluate against and invalidates values computed before.
func (f *Frame) SetRoot(doc []byte) {
	f.root = value.NewDocument(doc)
	f.arena = f.arena[:0]
}

// Root returns the document being evaluated.
func (f *Frame) Root() []byte { return f.root.Doc() }

// SetMeta sets the document's metadata.
func (f *Frame) SetMeta(m Metadata) { f.meta = m }

// SetVar sets a variable; the value is borrowed.
func (f *Frame) SetVar(id int, v value.Value) {
	for id >= len(f.vars) {
		f.vars = append(f.vars, value.Value{})
	}
	f.vars[id] = v
}

// Var returns a variable's value.
func (f *Frame) Var(id int) value.Value {
	if id < 0 || id >= len(f.vars) {
		return value.Value{}
	}
	return f.vars[id]
}

// Expr is a compiled expression.
type Expr struct{ n node }

// Compile parses an expression and folds its constant parts.
func Compile(v value.Value, s *Scope) (*Expr, error) {
	n, err := parseValue(v, s)
	if err != nil {
		return nil, err
	}
	if n, err = s.optimize(n); err != nil {
		return nil, err
	}
	return &Expr{n}, nil
}

// CompilePath is Compile for a field path given without the dollar sign.
func CompilePath(path string, s *Scope) (*Expr, error) {
	n, err := parseString("$"+path, s)
	if err != nil {
		return nil, err
	}
	return &Expr{n}, nil
}

// ConstantExpr returns an expression whose value is always v.
func ConstantExpr(v value.Value) *Expr { return &Expr{&constant{v: v.Clone()}} }

// Eval computes the expression for the frame's document. The value borrows: see the package's invariants.
func (e *Expr) Eval(f *Frame) (value.Value, error) { return e.n.eval(f) }

// Constant returns the value of an expression that does not depend on any document.
func (e *Expr) Constant() (value.Value, bool) {
	if c, ok := e.n.(*constant); ok {
		return c.v, true
	}
	return value.Value{}, false
}

// System reports whether the expression is just one of the server's variables, such as $$NOW.
func (e *Expr) System() bool {
	c, ok := e.n.(*constant)
	return ok && c.shown != ""
}

// FieldPath returns the path of an expression that only reads a field of the root document ("a.b", without dollar
// sign).
func (e *Expr) FieldPath() (string, bool) {
	if p, ok := e.n.(*fieldPath); ok && p.base == baseRoot && len(p.parts) > 0 {
		return p.dotted(), true
	}
	return "", false
}

// Call returns the operator and the operands of an expression that is one operator with operands in order; the name is empty for others.
func (e *Expr) Call() (operator string, operands []*Expr) {
	c, ok := e.n.(*call)
	if !ok {
		return "", nil
	}
	for _, n := range c.args {
		if n == nil {
			return "", nil
		}
		operands = append(operands, &Expr{n})
	}
	return c.op.name, operands
}

// Serialize returns the expression in the form of explain.
func (e *Expr) Serialize() value.Value { return e.n.serialize() }

// Uses reports whether one of the operators named in ops is anywhere in the expression.
func (e *Expr) Uses(ops map[string]bool) (used bool) {
	e.n.visit(func(n node) {
		switch n := n.(type) {
		case *call:
			used = used || ops[n.op.name]
		case *metaNode:
			used = used || ops["$meta"]
		}
	})
	return used
}

// Deps lists what an expression reads.
type Deps struct {
	Paths []string // dotted paths of the root document, sorted, without duplicates
	Whole bool     // it reads the whole root document
	Vars  []int    // ids of variables defined by the caller or by itself
	Meta  []string // kinds of metadata
	Rand  bool     // its value differs from call to call
}

// Deps collects what the expression reads.
func (e *Expr) Deps() Deps {
	var d Deps
	seen := map[string]bool{}
	vars := map[int]bool{}
	e.n.visit(func(n node) {
		switch n := n.(type) {
		case *fieldPath:
			switch {
			case n.base == baseVar:
				vars[n.id] = true
			case len(n.parts) == 0:
				d.Whole = true
			default:
				seen[n.dotted()] = true
			}
		case *metaNode:
			d.Meta = append(d.Meta, n.kind)
		case *call:
			d.Rand = d.Rand || n.op.volatile
		}
	})
	for p := range seen {
		d.Paths = append(d.Paths, p)
	}
	sort.Strings(d.Paths)
	for id := range vars {
		d.Vars = append(d.Vars, id)
	}
	sort.Ints(d.Vars)
	return d
}
