package accum

import (
	"maps"
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/sortkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// State is one accumulator of one group.
type State interface {
	// Add adds one document's value of Spec.Arg; f is positioned at that document.
	Add(v value.Value, f *expr.Frame) (grew int, err error)
	// Merge adds another state's Partial.
	Merge(partial value.Value) (grew int, err error)
	Partial() (value.Value, error)
	Result() (value.Value, error)
}

// Spec is a parsed accumulator.
type Spec struct {
	Name string
	Arg  *expr.Expr // evaluated for each document; nil if documents are only counted

	n      *expr.Expr // the n of accumulators that have one
	sort   *sortkey.Pattern
	p      []float64
	coll   value.Collator
	kind   *kind
	script *script
	raw    value.Value // the argument as written

	maxList, maxSet int64 // bytes that one list of $push, and one set of $addToSet, may hold; 0 for the default
}

func newSpec(name string, k *kind, arg value.Value, env *expr.Env) *Spec {
	return &Spec{Name: name, kind: k, coll: env.Collator, raw: arg.Clone(), maxList: env.MaxPushBytes, maxSet: env.MaxAddToSetBytes}
}

// kind is a row of the table of accumulators.
type kind struct {
	parse func(s *Spec, arg value.Value, sc *expr.Scope) error
	make  func(s *Spec, n int64) State
	open  func(s *Spec, f *expr.Frame) (State, error) // instead of make, for states that run scripts in the frame
}

var kinds map[string]*kind

// scripted are the accumulators that JavaScript computes.
var scripted = map[string]*kind{
	"$accumulator":       {parse: parseAccumulator, open: newCustom},
	"$_internalJsReduce": {parse: parseReduce, open: newReduced},
}

func init() {
	kinds = map[string]*kind{
		"$sum":          {parse: unary, make: func(*Spec, int64) State { return &Sum{} }},
		"$avg":          {parse: unary, make: func(*Spec, int64) State { return &Sum{mean: true} }},
		"$count":        {parse: parseCount, make: func(*Spec, int64) State { return &Sum{} }},
		"$min":          {parse: unary, make: func(s *Spec, _ int64) State { return &extreme{sign: -1, coll: s.coll} }},
		"$max":          {parse: unary, make: func(s *Spec, _ int64) State { return &extreme{sign: 1, coll: s.coll} }},
		"$first":        {parse: unary, make: func(*Spec, int64) State { return &first{} }},
		"$last":         {parse: unary, make: func(*Spec, int64) State { return &last{} }},
		"$push":         {parse: unary, make: func(s *Spec, _ int64) State { return &push{name: "$push", limit: s.maxList} }},
		"$concatArrays": {parse: unary, make: func(s *Spec, _ int64) State { return &push{name: "$concatArrays", spread: true, limit: s.maxList} }},
		"$addToSet": {parse: unary, make: func(s *Spec, _ int64) State {
			return &set{list: push{name: "$addToSet", limit: s.maxSet}, coll: s.coll}
		}},
		"$setUnion": {parse: unary, make: func(s *Spec, _ int64) State {
			return &set{list: push{name: "$setUnion", limit: s.maxSet}, coll: s.coll, spread: true}
		}},
		"$mergeObjects": {parse: unary, make: func(*Spec, int64) State { return &mergeObjects{} }},
		"$stdDevPop":    {parse: unary, make: func(*Spec, int64) State { return &stdDev{} }},
		"$stdDevSamp":   {parse: unary, make: func(*Spec, int64) State { return &stdDev{sample: 1} }},
		"$firstN":       {parse: parseInputN, make: func(_ *Spec, n int64) State { return &edgeN{n: n} }},
		"$lastN":        {parse: parseInputN, make: func(_ *Spec, n int64) State { return &edgeN{n: n, last: true} }},
		"$minN":         {parse: parseInputN, make: func(s *Spec, n int64) State { return &extremeN{n: n, sign: 1, coll: s.coll} }},
		"$maxN":         {parse: parseInputN, make: func(s *Spec, n int64) State { return &extremeN{n: n, sign: -1, coll: s.coll} }},
		"$top":          {parse: parseTop, make: func(s *Spec, _ int64) State { return &topN{n: 1, single: true, sort: s.sort} }},
		"$bottom":       {parse: parseTop, make: func(s *Spec, _ int64) State { return &topN{n: 1, single: true, bottom: true, sort: s.sort} }},
		"$topN":         {parse: parseTop, make: func(s *Spec, n int64) State { return &topN{n: n, sort: s.sort} }},
		"$bottomN":      {parse: parseTop, make: func(s *Spec, n int64) State { return &topN{n: n, bottom: true, sort: s.sort} }},
		"$percentile":   {parse: parsePercentile, make: func(s *Spec, _ int64) State { return &percentile{p: s.p} }},
		"$median":       {parse: parsePercentile, make: func(s *Spec, _ int64) State { return &percentile{p: s.p, single: true} }},
	}
	for name, k := range scripted {
		kinds[name] = k
	}
}

// Known reports whether name is an accumulator.
func Known(name string) bool { return kinds[name] != nil }

// Names lists all accumulators.
func Names() []string { return slices.Sorted(maps.Keys(kinds)) }

// Parse compiles the accumulator name: arg.
func Parse(name string, arg value.Value, sc *expr.Scope) (*Spec, error) {
	k := kinds[name]
	if k == nil {
		return nil, mongoerr.Newf(15952, "unknown group operator '%s'", name)
	}
	s := newSpec(name, k, arg, sc.Env())
	if err := k.parse(s, arg, sc); err != nil {
		return nil, err
	}
	return s, nil
}

// ParseWindow is Parse for a window function, whose argument may be an array expression.
func ParseWindow(name string, arg value.Value, sc *expr.Scope) (*Spec, error) {
	if k := kinds[name]; k != nil && arg.T == value.Array && name != "$count" {
		e, err := expr.Compile(arg, sc)
		if err != nil {
			return nil, err
		}
		s := newSpec(name, k, arg, sc.Env())
		s.Arg = e
		return s, nil
	}
	return Parse(name, arg, sc)
}

// New starts a state. f is positioned at the group's key, to which n may refer.
func (s *Spec) New(f *expr.Frame) (State, error) {
	switch {
	case s.kind.open != nil:
		return s.kind.open(s, f)
	case s.n == nil:
		return s.kind.make(s, 0), nil
	}
	v, err := s.n.Eval(f)
	if err != nil {
		return nil, err
	}
	n, ok := v.AsInt64()
	if !v.T.Numeric() {
		return nil, mongoerr.Newf(7548606, "Cannot apply %s to a value of type %s: 'n' must be of type integral", s.Name, v.T.Name())
	}
	if !ok {
		return nil, mongoerr.Newf(7548606, "Value for 'n' must be of integral type, but found %s", expr.Show(v))
	}
	if n <= 0 {
		return nil, mongoerr.Newf(7548606, "'n' must be greater than 0, found %d", n)
	}
	return s.kind.make(s, n), nil
}

// Serialize returns the accumulator as explain shows it.
func (s *Spec) Serialize() value.Value {
	switch {
	case s.Name == "$count":
		return value.NewDocument(value.Doc(value.F("$sum", value.NewDocument(value.Doc(value.F("$const", value.NewInt32(1)))))))
	case s.kind.make != nil && s.n == nil && s.sort == nil && s.p == nil:
		return value.NewDocument(value.Doc(value.F(s.Name, s.Arg.Serialize())))
	}
	return value.NewDocument(value.Doc(value.F(s.Name, s.raw)))
}

// Exprs returns the expressions that read documents, for dependency analysis.
func (s *Spec) Exprs() []*expr.Expr {
	if s.Arg == nil {
		return nil
	}
	return []*expr.Expr{s.Arg}
}

// Sort returns the sort specification of the $top family, nil for others.
func (s *Spec) Sort() *sortkey.Pattern { return s.sort }

func unary(s *Spec, arg value.Value, sc *expr.Scope) (err error) {
	if arg.T == value.Array {
		return mongoerr.Newf(40237, "The %s accumulator is a unary operator", s.Name)
	}
	s.Arg, err = expr.Compile(arg, sc)
	return err
}

func parseCount(s *Spec, arg value.Value, sc *expr.Scope) (err error) {
	if arg.T != value.Document || value.Count(arg.Doc()) != 0 {
		return mongoerr.New(mongoerr.TypeMismatch, "$count takes no arguments, i.e. $count:{}")
	}
	s.Arg = expr.ConstantExpr(value.NewInt32(1))
	return nil
}

func needObject(s *Spec, arg value.Value, code mongoerr.Code) error {
	if arg.T != value.Document {
		return mongoerr.Newf(code, "specification must be an object; found %s: %s", s.Name, value.Show(arg))
	}
	return nil
}

// parseInputN reads {input, n}.
func parseInputN(s *Spec, arg value.Value, sc *expr.Scope) (err error) {
	code := mongoerr.Code(5787900)
	if s.Name == "$firstN" || s.Name == "$lastN" {
		code = 5787801
	}
	if err := needObject(s, arg, code); err != nil {
		return err
	}
	for k, v := range value.Elements(arg.Doc()) {
		switch k {
		case "input":
			s.Arg, err = expr.Compile(v, sc)
		case "n":
			s.n, err = expr.Compile(v, sc)
		default:
			err = mongoerr.Newf(5787901, "Unknown argument for 'n' operator: %s", k)
		}
		if err != nil {
			return err
		}
	}
	if s.n == nil {
		return mongoerr.New(5787906, "Missing value for 'n'")
	}
	if s.Arg == nil {
		return mongoerr.New(5787907, "Missing value for 'input'")
	}
	return s.checkN()
}

// checkN refuses a constant n that is invalid for every group.
func (s *Spec) checkN() error {
	if _, ok := s.n.Constant(); !ok {
		return nil
	}
	_, err := s.New(nil)
	return err
}

// parseTop reads {sortBy, output} and n for the N forms.
func parseTop(s *Spec, arg value.Value, sc *expr.Scope) (err error) {
	if err := needObject(s, arg, 5788001); err != nil {
		return err
	}
	many := strings.HasSuffix(s.Name, "N")
	for k, v := range value.Elements(arg.Doc()) {
		switch {
		case k == "n" && many:
			s.n, err = expr.Compile(v, sc)
		case k == "output":
			s.Arg, err = expr.Compile(v, sc)
		case k == "sortBy":
			if v.T != value.Document {
				return mongoerr.Newf(5788604, "expected 'sortBy' to already be an object in the arguments to %s", s.Name)
			}
			s.sort, err = sortkey.Parse(v.Doc(), sc.Env().Collator)
		default:
			err = mongoerr.Newf(5788002, "Unknown argument to %s '%s'", s.Name, k)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case many && s.n == nil:
		return mongoerr.New(5788003, "Missing value for 'n'")
	case s.Arg == nil:
		return mongoerr.New(5788004, "Missing value for 'output'")
	case s.sort == nil:
		return mongoerr.New(5788005, "Missing value for 'sortBy'")
	case many:
		return s.checkN()
	}
	return nil
}

// parsePercentile reads {input, p, method}; $median has no p.
func parsePercentile(s *Spec, arg value.Value, sc *expr.Scope) error {
	code := mongoerr.Code(7429703)
	if s.Name == "$median" {
		code = 7436100
	}
	if err := needObject(s, arg, code); err != nil {
		return err
	}
	var p, method value.Value
	for k, v := range value.Elements(arg.Doc()) {
		switch {
		case k == "input":
			e, err := expr.Compile(v, sc)
			if err != nil {
				return err
			}
			s.Arg = e
		case k == "p" && s.Name == "$percentile":
			p = v
		case k == "method":
			method = v
		default:
			return mongoerr.Newf(40415, "BSON field '%s.%s' is an unknown field.", s.Name, k)
		}
	}
	for _, need := range []struct {
		name string
		ok   bool
	}{{"input", s.Arg != nil}, {"p", s.Name == "$median" || p.T != value.Missing}, {"method", method.T != value.Missing}} {
		if !need.ok {
			return mongoerr.Newf(40414, "BSON field '%s.%s' is missing but a required field", s.Name, need.name)
		}
	}
	if method.T != value.String {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.method' is the wrong type '%s', expected type 'string'",
			s.Name, method.T.Name())
	}
	s.p = []float64{0.5}
	if s.Name == "$percentile" {
		if err := s.parseP(p, sc); err != nil {
			return err
		}
	}
	return expr.CheckPercentileMethod(method.Str())
}

func (s *Spec) parseP(p value.Value, sc *expr.Scope) error {
	e, err := expr.Compile(p, sc)
	if err != nil {
		return err
	}
	v, ok := e.Constant()
	if !ok {
		return mongoerr.New(7750300, "The $percentile 'p' field must be an array of constant values, but found a non-constant")
	}
	s.p, err = expr.CheckPercentiles(v)
	return err
}
