package cluster

import (
	"math"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ParamKind is the type a server parameter stores.
type ParamKind uint8

const (
	ParamBool ParamKind = iota
	ParamInt
	ParamLong
	ParamDouble
	ParamString
	ParamDocument // objects and arrays: checked by the row's own Check
)

// ParamSet says when a parameter can be set.
type ParamSet uint8

const (
	SetStartup ParamSet = 1 << iota
	SetRuntime
	SetBoth = SetStartup | SetRuntime
)

// ParamSpec is one row of the table of server parameters.
type ParamSpec struct {
	Name     string
	Kind     ParamKind
	Set      ParamSet
	Default  value.Value
	Min, Max float64 // for numbers, if Max > Min
	TestOnly bool
	Members  bool   // routers do not have it
	Does     string // its line in docs/configuration.md: what it does, or why it has no effect
	// Convert replaces the conversion to the parameter's kind and the check of its range; nil for most.
	Convert func(s *ParamSpec, v value.Value) (value.Value, error)
	// Check refuses or rewrites a value after the checks of type and range; nil accepts all.
	Check func(old, v value.Value) (value.Value, error)
}

// Params is a node's server parameters. Reading one costs an atomic load.
type Params struct {
	mu     sync.Mutex // serialises setting
	byName map[string]*Param
}

// Param is one parameter's current value.
type Param struct {
	Spec  *ParamSpec
	cur   atomic.Pointer[value.Value]
	num   atomic.Int64 // the value as integer (0 and 1 for bools), for hot readers
	hooks []func(value.Value)
}

// NewParams makes the registry from the table of all parameters.
func NewParams() *Params {
	p := &Params{byName: make(map[string]*Param, 256)}
	for _, rows := range [][]ParamSpec{activeParams, acceptedParams} {
		for i := range rows {
			q := &Param{Spec: &rows[i]}
			q.store(rows[i].Default)
			p.byName[rows[i].Name] = q
		}
	}
	p.linkVerbosity()
	p.linkNames("metadataRefreshInTransactionMaxWaitMS", "metadataRefreshInTransactionMaxWaitBehindCritSecMS")
	return p
}

// linkNames keeps two names of one parameter the same, whichever is set.
func (p *Params) linkNames(name, former string) {
	a, b := p.Get(name), p.Get(former)
	follow := func(to *Param) func(value.Value) {
		return func(v value.Value) {
			if to.Int() != value.SafeInt64(v) {
				to.store(v)
			}
		}
	}
	a.hooks, b.hooks = append(a.hooks, follow(b)), append(b.hooks, follow(a))
}

// linkVerbosity keeps logLevel and the verbosity of logComponentVerbosity's root the same, whichever is set.
func (p *Params) linkVerbosity() {
	level, tree := p.Get("logLevel"), p.Get("logComponentVerbosity")
	root := func() value.Value { return value.Lookup(tree.Value().Doc(), "verbosity") }
	level.hooks = append(level.hooks, func(v value.Value) {
		if value.SafeInt64(root()) != value.SafeInt64(v) {
			tree.store(value.NewDocument(mergeVerbosity(tree.Value().Doc(), value.Doc(value.F("verbosity", v)))))
		}
	})
	tree.hooks = append(tree.hooks, func(value.Value) {
		if v := root(); value.SafeInt64(v) != level.Int() {
			level.store(value.NewInt32(int32(value.SafeInt64(v))))
		}
	})
}

func (p *Param) store(v value.Value) {
	v = v.Clone()
	n := int64(0)
	switch v.T {
	case value.Boolean:
		if v.Bool() {
			n = 1
		}
	default:
		n = clampToInt64(v)
	}
	p.num.Store(n)
	p.cur.Store(&v)
	for _, h := range p.hooks {
		h(v)
	}
}

// Value, Int and Bool read the current value.
func (p *Param) Value() value.Value { return *p.cur.Load() }
func (p *Param) Int() int64         { return p.num.Load() }
func (p *Param) Bool() bool         { return p.num.Load() != 0 }

// Get finds a parameter. A name that is not in the table is a programming error; use Lookup for names from a client.
func (p *Params) Get(name string) *Param {
	q := p.byName[name]
	if q == nil {
		panic("no server parameter " + name)
	}
	return q
}

// Lookup finds a parameter by the name that a client sent.
func (p *Params) Lookup(name string) (*Param, bool) {
	q, ok := p.byName[name]
	return q, ok
}

// Int and Bool read a parameter by name.
func (p *Params) Int(name string) int64 { return p.Get(name).Int() }
func (p *Params) Bool(name string) bool { return p.Get(name).Bool() }

// Str returns a parameter of type string.
func (p *Params) Str(name string) string { return p.Get(name).Value().Str() }

// Checked adds the check f, which may refuse or rewrite values, to those of type and range, for checks that this package cannot
// make. Call it before any value is set.
func (p *Params) Checked(name string, f func(old, v value.Value) (value.Value, error)) {
	q := p.Get(name)
	spec := *q.Spec
	spec.Check = f
	q.Spec = &spec
}

// OnChange calls f now and with every later value. Register hooks before serving.
func (p *Params) OnChange(name string, f func(value.Value)) {
	q := p.Get(name)
	p.mu.Lock()
	q.hooks = append(q.hooks, f)
	p.mu.Unlock()
	f(q.Value())
}

// Names lists all parameters, sorted.
func (p *Params) Names() []string {
	out := make([]string, 0, len(p.byName))
	for n := range p.byName {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// TestCommands is enableTestCommands.
func (p *Params) TestCommands() bool { return p.Bool("enableTestCommands") }

// SetStartup sets a parameter from text (--set-parameter name=value).
func (p *Params) SetStartup(name, text string) error {
	q, ok := p.byName[name]
	if !ok {
		return mongoerr.Newf(mongoerr.BadValue, "Unknown --setParameter '%s'", name)
	}
	if q.Spec.Set&SetStartup == 0 {
		return mongoerr.Newf(mongoerr.BadValue, "Cannot use --setParameter to set '%s' at startup", name)
	}
	v, err := parseParamText(q.Spec, text)
	if err != nil {
		return err
	}
	return p.set(q, v)
}

func parseParamText(s *ParamSpec, text string) (value.Value, error) {
	bad := mongoerr.Newf(mongoerr.BadValue, "Invalid value for setParameter '%s': %s", s.Name, text)
	switch s.Kind {
	case ParamBool:
		switch text {
		case "1", "true":
			return value.NewBool(true), nil
		case "0", "false":
			return value.NewBool(false), nil
		}
		return value.Value{}, bad
	case ParamInt, ParamLong:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return value.Value{}, bad
		}
		return value.NewInt64(n), nil
	case ParamDouble:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return value.Value{}, bad
		}
		return value.NewDouble(f), nil
	case ParamDocument:
		return parseDocumentText(s, text)
	}
	return value.NewString(text), nil
}

// parseDocumentText reads an object or array as JSON; an array of strings also as a list with commas.
func parseDocumentText(s *ParamSpec, text string) (value.Value, error) {
	if s.Default.T == value.Array && !strings.HasPrefix(text, "[") {
		var list []value.Value
		for _, part := range strings.Split(text, ",") {
			list = append(list, value.NewString(strings.TrimSpace(part)))
		}
		return value.NewArray(value.ArrayOf(list...)), nil
	}
	var doc bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(`{"v": `+text+`}`), false, &doc); err != nil {
		return value.Value{}, mongoerr.Newf(mongoerr.BadValue, "Invalid value for parameter %s: %v", s.Name, err)
	}
	v := value.Lookup(doc, "v")
	if v.T != s.Default.T {
		return v, mongoerr.Newf(mongoerr.BadValue, "Invalid value for parameter %s: expected %s, found %s", s.Name, s.Default.T.Name(), v.T.Name())
	}
	return v, nil
}

// SetRuntime sets the parameters of a setParameter command, all or none, and returns the first one's old value.
func (p *Params) SetRuntime(fields []value.Field) (was value.Value, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	type change struct {
		q *Param
		v value.Value
	}
	var changes []change
	for _, f := range fields {
		q, ok := p.byName[f.Key]
		if !ok {
			return was, mongoerr.Newf(mongoerr.InvalidOptions, "attempted to set unrecognized parameter [%s], use help:true to see options ", f.Key)
		}
		if q.Spec.Set&SetRuntime == 0 {
			return was, mongoerr.Newf(mongoerr.IllegalOperation, "not allowed to change [%s] at runtime", f.Key)
		}
		v, err := q.Spec.coerce(q.Value(), f.Val)
		if err != nil {
			return was, err
		}
		changes = append(changes, change{q, v})
	}
	if len(changes) == 0 {
		return was, mongoerr.New(mongoerr.InvalidOptions, "no option found to set, use help:true to see options ")
	}
	was = changes[0].q.Value()
	for _, c := range changes {
		c.q.store(c.v)
	}
	return was, nil
}

func (p *Params) set(q *Param, v value.Value) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, err := q.Spec.coerce(q.Value(), v)
	if err != nil {
		return err
	}
	q.store(v)
	return nil
}

// coerce turns a client's value into the parameter's type and checks its range.
func (s *ParamSpec) coerce(old, v value.Value) (value.Value, error) {
	var err error
	switch {
	case s.Convert != nil:
		if v, err = s.Convert(s, v); err != nil {
			return v, err
		}
	case s.Kind == ParamBool:
		v = value.NewBool(v.Truthy())
	case s.Kind == ParamInt, s.Kind == ParamLong, s.Kind == ParamDouble:
		if v, err = s.coerceNumber(v); err != nil {
			return v, err
		}
	case s.Kind == ParamString:
		if v.T != value.String {
			return v, mongoerr.Newf(mongoerr.TypeMismatch, "Failed to set parameter %s: expected a string, found %s", s.Name, v.T.Name())
		}
	}
	if s.Check != nil {
		return s.Check(old, v)
	}
	return v, nil
}

func (s *ParamSpec) coerceNumber(v value.Value) (value.Value, error) {
	if v.T == value.Boolean {
		v = value.NewInt32(int32(v.Int64()))
	}
	if !v.T.Numeric() {
		return v, mongoerr.Newf(mongoerr.BadValue, "Invalid value for parameter %s: expected a number, found %s", s.Name, v.T.Name())
	}
	f := v.AsFloat64()
	if f != f || s.Kind == ParamInt && (f > math.MaxInt32 || f < math.MinInt32) {
		return v, mongoerr.Newf(mongoerr.BadValue, "Invalid value for parameter %s: %v is out of range", s.Name, f)
	}
	if s.Max > s.Min {
		if f < s.Min {
			return v, mongoerr.Newf(mongoerr.BadValue, "Invalid value for parameter %s: %v is not greater than or equal to %v", s.Name, f, s.Min)
		}
		if f > s.Max {
			return v, mongoerr.Newf(mongoerr.BadValue, "Invalid value for parameter %s: %v is not less than or equal to %v", s.Name, f, s.Max)
		}
	}
	switch s.Kind {
	case ParamInt:
		return value.NewInt32(int32(clampToInt64(v))), nil
	case ParamLong:
		return value.NewInt64(clampToInt64(v)), nil
	}
	return value.NewDouble(f), nil
}

// verbosity converts a value of logLevel: the fraction is dropped, and what is higher than the highest level means that level. What is refused is quoted
// (8.2.11 as measured for SecantusDB).
func verbosity(s *ParamSpec, v value.Value) (value.Value, error) {
	f := math.Trunc(v.AsFloat64())
	if v.T == value.Boolean {
		f = 0
		if v.Bool() {
			f = 1
		}
	} else if !v.T.Numeric() || f != f || f < s.Min || f > math.MaxInt32 {
		return v, mongoerr.Newf(mongoerr.BadValue, "Invalid value for %s: %s", s.Name, value.ShowElement(s.Name, v))
	}
	return value.NewInt32(int32(min(f, s.Max))), nil
}

// Allowed reports whether getParameter's setAt filter admits a parameter.
func (s *ParamSpec) Allowed(setAt string) bool {
	switch setAt {
	case "startup":
		return s.Set&SetStartup != 0
	case "runtime":
		return s.Set&SetRuntime != 0
	}
	return true
}

// Store sets a parameter from within the server, whatever its row allows clients.
func (p *Params) Store(name string, v value.Value) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Get(name).store(v)
}

// ParamTables lists the parameters that the server acts on, and those that are accepted for compatibility: stored and returned.
func ParamTables() (active, accepted []ParamSpec) { return activeParams, acceptedParams }
