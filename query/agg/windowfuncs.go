package agg

import (
	"maps"
	"slices"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

type windowParser func(s *windowStage, o *Options, name string, arg value.Value, b *bounds) (windowFunc, error)

// windowOnly are the functions that exist only in $setWindowFields.
var windowOnly map[string]windowParser

func init() {
	windowOnly = map[string]windowParser{
		"$rank": parseRank, "$denseRank": parseRank, "$documentNumber": parseRank,
		"$shift":      parseShift,
		"$derivative": parseSlope, "$integral": parseSlope,
		"$covariancePop": parseCovariance, "$covarianceSamp": parseCovariance,
		"$expMovingAvg": parseExpMovingAvg,
		"$locf":         parseFillFunc, "$linearFill": parseFillFunc,
		"$minMaxScaler": parseScaler,
	}
}

// WindowFunctions lists the functions of $setWindowFields: accumulators, and its own.
func WindowFunctions() []string {
	return append(slices.Sorted(maps.Keys(windowOnly)), accum.Names()...)
}

// windowFn adapts a function.
type windowFn func(p *partition) ([]value.Value, error)

func (fn windowFn) compute(p *partition) ([]value.Value, error) { return fn(p) }

func parseRank(s *windowStage, _ *Options, name string, arg value.Value, b *bounds) (windowFunc, error) {
	switch {
	case b.given:
		return nil, mongoerr.Newf(5371601, "Rank style window functions take no other arguments")
	case arg.T != value.Document || value.Count(arg.Doc()) != 0:
		return nil, mongoerr.Newf(5371603, "%s must be specified with '{}' as the value", name)
	case s.sort == nil || len(s.sort.Parts) != 1:
		return nil, mongoerr.Newf(5371602, "%s must be specified with a top level sortBy expression with exactly one element", name)
	}
	return windowFn(func(p *partition) ([]value.Value, error) {
		out := make([]value.Value, p.docs.len())
		rank, dense := 0, 0
		for i := range out {
			if i == 0 || s.sort.Compare(p.keys[i-1], p.keys[i]) != 0 {
				rank, dense = i+1, dense+1
			}
			n := i + 1
			switch name {
			case "$rank":
				n = rank
			case "$denseRank":
				n = dense
			}
			out[i] = value.NewInt32(int32(n))
		}
		return out, nil
	}), nil
}

// named reads the document of a function's arguments.
func named(name string, arg value.Value, fields ...string) (map[string]value.Value, error) {
	if arg.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "Argument to %s must be an object", name)
	}
	out := map[string]value.Value{}
	for k, v := range value.Elements(arg.Doc()) {
		known := false
		for _, want := range fields {
			known = known || k == want
		}
		if !known {
			return nil, mongoerr.Newf(mongoerr.FailedToParse, "%s got unexpected argument: %s", name, k)
		}
		out[k] = v
	}
	return out, nil
}

func parseShift(s *windowStage, o *Options, name string, arg value.Value, b *bounds) (windowFunc, error) {
	a, err := named(name, arg, "output", "by", "default")
	if err != nil {
		return nil, err
	}
	by, ok := a["by"].AsInt64()
	switch {
	case b.given:
		return nil, mongoerr.New(mongoerr.FailedToParse, "$shift does not accept a 'window' field")
	case s.sort == nil:
		return nil, mongoerr.New(mongoerr.FailedToParse, "'$shift' requires a sortBy")
	case a["output"].T == value.Missing:
		return nil, mongoerr.New(mongoerr.FailedToParse, "$shift requires an 'output' expression.")
	case !ok:
		return nil, mongoerr.New(mongoerr.FailedToParse, "'$shift:by' field must be an integer")
	}
	e, err := expr.Compile(a["output"], o.scope())
	if err != nil {
		return nil, err
	}
	fallback := value.NewNull()
	if d := a["default"]; d.T != value.Missing {
		c, err := expr.Compile(d, o.scope())
		if err != nil {
			return nil, err
		}
		if fallback, ok = c.Constant(); !ok {
			return nil, mongoerr.New(mongoerr.FailedToParse, "'$shift:default' expression must yield a constant value.")
		}
	}
	return windowFn(func(p *partition) ([]value.Value, error) {
		in, err := p.values(e)
		if err != nil {
			return nil, err
		}
		out := make([]value.Value, len(in))
		for i := range in {
			out[i] = fallback
			if j := int64(i) + by; j >= 0 && j < int64(len(in)) {
				if out[i] = in[j]; in[j].T == value.Missing {
					out[i] = value.NewNull()
				}
			}
		}
		return out, nil
	}), nil
}

// parseSlope reads $derivative and $integral: {input, unit}.
func parseSlope(s *windowStage, o *Options, name string, arg value.Value, b *bounds) (windowFunc, error) {
	a, err := named(name, arg, "input", "unit")
	if err != nil {
		return nil, err
	}
	var unit int64
	if u := a["unit"]; !u.IsNullish() {
		if u.T != value.String {
			return nil, mongoerr.Newf(mongoerr.FailedToParse, "'%s.unit' must be a string", name)
		}
		var ok bool
		if unit, ok = unitMillis[u.Str()]; !ok {
			return nil, mongoerr.Newf(5490710, "unit must be 'week' or smaller")
		}
	}
	switch {
	case a["input"].T == value.Missing:
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "%s requires an 'input' expression", name)
	case s.sort == nil || len(s.sort.Parts) != 1:
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "%s requires a sortBy", name)
	case name == "$derivative" && !b.given:
		return nil, mongoerr.New(mongoerr.FailedToParse, "$derivative requires explicit window bounds")
	}
	if err := b.check(s); err != nil {
		return nil, err
	}
	e, err := expr.Compile(a["input"], o.scope())
	if err != nil {
		return nil, err
	}
	return &slope{name: name, e: e, unit: unit, b: b}, nil
}

type slope struct {
	name string
	e    *expr.Expr
	unit int64
	b    *bounds
}

// point returns the sort value and the input at one document, as doubles. Dates remain milliseconds here: as a
// number of hours or weeks since 1970 they would lose the digits that matter for differences between neighbours.
func (w *slope) point(p *partition, in []value.Value, i int) (x, y float64, err error) {
	key := p.keys[i][0]
	switch {
	case w.unit > 0 && key.T != value.DateTime:
		return 0, 0, mongoerr.Newf(5624900, "%s with 'unit' expects the sortBy field to be a Date", w.name)
	case w.unit > 0:
		x = float64(key.DateTime())
	case key.T == value.DateTime:
		return 0, 0, mongoerr.Newf(5624901, "%s where the sortBy is a Date requires a 'unit'", w.name)
	case !key.T.Numeric():
		return 0, 0, mongoerr.Newf(5624902, "%s where the sortBy is not a number", w.name)
	default:
		x = key.AsFloat64()
	}
	return x, in[i].AsFloat64(), nil
}

func (w *slope) compute(p *partition) ([]value.Value, error) {
	return w.b.each(p, w.e, func(in []value.Value, lo, hi int) (value.Value, error) {
		if w.name == "$derivative" {
			return w.derivative(p, in, lo, hi)
		}
		return w.integral(p, in, lo, hi)
	})
}

func (w *slope) derivative(p *partition, in []value.Value, lo, hi int) (value.Value, error) {
	if hi-lo < 2 || !in[lo].T.Numeric() || !in[hi-1].T.Numeric() {
		return value.NewNull(), nil
	}
	x0, y0, err := w.point(p, in, lo)
	if err != nil {
		return value.Value{}, err
	}
	x1, y1, err := w.point(p, in, hi-1)
	if err != nil || x1 == x0 {
		return value.NewNull(), err
	}
	return w.number(in[lo:hi], (y1-y0)/(x1-x0)*w.scale()), nil
}

func (w *slope) integral(p *partition, in []value.Value, lo, hi int) (value.Value, error) {
	if hi <= lo {
		return value.NewNull(), nil
	}
	if hi-lo == 1 {
		if !in[lo].T.Numeric() {
			return value.NewNull(), nil
		}
		return w.number(in[lo:hi], 0), nil
	}
	sum := 0.0
	for i := lo + 1; i < hi; i++ {
		if !in[i-1].T.Numeric() || !in[i].T.Numeric() {
			return value.NewNull(), nil
		}
		x0, y0, err := w.point(p, in, i-1)
		if err != nil {
			return value.Value{}, err
		}
		x1, y1, err := w.point(p, in, i)
		if err != nil {
			return value.Value{}, err
		}
		sum += (y0 + y1) * (x1 - x0) / 2
	}
	return w.number(in[lo:hi], sum/w.scale()), nil
}

// scale returns how many of the points' units make one of the requested unit.
func (w *slope) scale() float64 { return float64(max(w.unit, 1)) }

// number returns a decimal if one of the inputs is one.
func (w *slope) number(in []value.Value, f float64) value.Value {
	for _, v := range in {
		if v.T == value.Decimal128 {
			return decimal.Value(decimal.FromDouble(f))
		}
	}
	return value.NewDouble(f)
}

func parseExpMovingAvg(s *windowStage, o *Options, name string, arg value.Value, b *bounds) (windowFunc, error) {
	a, err := named(name, arg, "input", "N", "alpha")
	if err != nil {
		return nil, err
	}
	n, hasN := a["N"]
	al, hasAlpha := a["alpha"]
	switch {
	case a["input"].T == value.Missing:
		return nil, mongoerr.New(mongoerr.FailedToParse, "$expMovingAvg requires an 'input' expression")
	case hasN == hasAlpha:
		return nil, mongoerr.New(mongoerr.FailedToParse, "$expMovingAvg sub object must have exactly two fields: An 'input' field, and either an 'N' field or an 'alpha' field")
	case s.sort == nil:
		return nil, mongoerr.New(mongoerr.FailedToParse, "$expMovingAvg requires an explicit 'sortBy'")
	case b.given:
		return nil, mongoerr.New(mongoerr.FailedToParse, "$expMovingAvg does not accept a 'window' field")
	}
	alpha := al.AsFloat64()
	if hasN {
		i, ok := n.AsInt64()
		if !ok || i <= 0 {
			return nil, mongoerr.Newf(mongoerr.FailedToParse, "'N' field must be a positive integer, but found %s", expr.Show(n))
		}
		alpha = 2 / (float64(i) + 1)
	} else if !al.T.Numeric() || !(alpha > 0 && alpha < 1) {
		return nil, mongoerr.New(mongoerr.FailedToParse, "'alpha' must be between 0 and 1 (exclusive)")
	}
	e, err := expr.Compile(a["input"], o.scope())
	if err != nil {
		return nil, err
	}
	return windowFn(func(p *partition) ([]value.Value, error) {
		in, err := p.values(e)
		if err != nil {
			return nil, err
		}
		out := make([]value.Value, len(in))
		avg, started, dec := 0.0, false, false
		for i, v := range in {
			if v.T.Numeric() {
				dec = dec || v.T == value.Decimal128
				if !started {
					avg, started = v.AsFloat64(), true
				} else {
					avg = alpha*v.AsFloat64() + (1-alpha)*avg
				}
			}
			switch {
			case !started:
				out[i] = value.NewNull()
			case dec:
				out[i] = decimal.Value(decimal.FromDouble(avg))
			default:
				out[i] = value.NewDouble(avg)
			}
		}
		return out, nil
	}), nil
}

// parseFillFunc reads $locf and $linearFill.
func parseFillFunc(s *windowStage, o *Options, name string, arg value.Value, b *bounds) (windowFunc, error) {
	if b.given {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "'window' field is not allowed in %s", name)
	}
	if name == "$linearFill" && (s.sort == nil || len(s.sort.Parts) != 1) {
		return nil, mongoerr.New(605001, "$linearFill must be specified with a top level sortBy expression with exactly one element")
	}
	e, err := expr.Compile(arg, o.scope())
	if err != nil {
		return nil, err
	}
	return windowFn(func(p *partition) ([]value.Value, error) {
		in, err := p.values(e)
		if err != nil {
			return nil, err
		}
		if name == "$linearFill" {
			return linearFill(p, in)
		}
		last := value.NewNull()
		for i, v := range in {
			if v.IsNullish() {
				in[i] = last
			} else {
				last = v
			}
		}
		return in, nil
	}), nil
}

func linearFill(p *partition, in []value.Value) ([]value.Value, error) {
	at := func(i int) (float64, error) {
		k := p.keys[i][0]
		switch {
		case k.T == value.DateTime:
			return float64(k.DateTime()), nil
		case k.T.Numeric():
			return k.AsFloat64(), nil
		}
		return 0, mongoerr.New(mongoerr.TypeMismatch, "The sortBy field of $linearFill must be a number or a date")
	}
	left := -1
	for i, v := range in {
		if _, err := at(i); err != nil {
			return nil, err
		}
		if !v.IsNullish() && !v.T.Numeric() {
			return nil, mongoerr.New(mongoerr.TypeMismatch, "Value to be filled must be numeric or nullish")
		}
		if i > 0 && p.stage.sort.Compare(p.keys[i-1], p.keys[i]) == 0 {
			return nil, mongoerr.New(6050106, "There can be no repeated values in the sort field")
		}
		if v.IsNullish() {
			in[i] = value.NewNull()
			continue
		}
		for j := left + 1; left >= 0 && j < i; j++ {
			x0, _ := at(left)
			x1, _ := at(i)
			x, _ := at(j)
			y0, y1 := in[left].AsFloat64(), v.AsFloat64()
			in[j] = value.NewDouble(y0 + (y1-y0)*(x-x0)/(x1-x0))
			if in[left].T == value.Decimal128 || v.T == value.Decimal128 {
				in[j] = decimal.Value(decimal.FromDouble(in[j].Double()))
			}
		}
		left = i
	}
	return in, nil
}
