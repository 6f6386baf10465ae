package expr

import (
	"math"
	"slices"

	"github.com/shoaldb/shoal/query/expr/decimal"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register(
		overValues("$sum", evalSum),
		overValues("$avg", evalAvg),
		overValues("$min", extreme(-1)),
		overValues("$max", extreme(1)),
		overValues("$stdDevPop", stdDev(0)),
		overValues("$stdDevSamp", stdDev(1)),
		nOf("$firstN", 5787801, func(f *Frame, vs []value.Value, n int) ([]value.Value, error) {
			return vs[:min(n, len(vs))], nil
		}),
		nOf("$lastN", 5787801, func(f *Frame, vs []value.Value, n int) ([]value.Value, error) {
			return vs[max(0, len(vs)-n):], nil
		}),
		nOf("$minN", 5787900, extremes(false)),
		nOf("$maxN", 5787900, extremes(true)),
		&operator{name: "$percentile", fields: []field{{"input", missingField}, {"p", missingField}, {"method", missingField}},
			words: idlWords(7436200), parse: parsePercentile, eval: evalPercentile},
		&operator{name: "$median", fields: []field{{"input", missingField}, {"method", missingField}},
			words: idlWords(7436201), parse: parsePercentile, eval: evalPercentile},
	)
}

// missingField and the wording are those of commands' generated parsers, which some operators share.
const missingField = 40414

func idlWords(object mongoerr.Code) wording {
	return wording{object: object, unknown: 40415, onObject: notAnObject,
		onUnknown: "BSON field '%[1]s.%[2]s' is an unknown field.", onMiss: "BSON field '%[1]s.%[2]s' is missing but a required field"}
}

// notAnObject is a wording whose third argument is the value found instead of an object.
const notAnObject = "specification must be an object; found %[1]s: %[3]s"

// overValues makes a row for an accumulator used as an expression: over its operands, or over the elements of its only
// operand if that is an array.
func overValues(name string, fn func(f *Frame, each func(func(value.Value))) value.Value) *operator {
	return nary(name, 0, -1, func(f *Frame, c *call) (value.Value, error) {
		if len(c.args) == 1 {
			v, err := c.args[0].eval(f)
			if err != nil {
				return v, err
			}
			if v.T != value.Array {
				return fn(f, func(use func(value.Value)) { use(v) }), nil
			}
			out := fn(f, func(use func(value.Value)) {
				for it := value.Walk(v.Doc()); err == nil; err = f.Check() {
					_, e, ok := it.Next()
					if !ok {
						return
					}
					use(e)
				}
			})
			return out, err
		}
		vs := make([]value.Value, len(c.args))
		for i, n := range c.args {
			v, err := n.eval(f)
			if err != nil {
				return v, err
			}
			vs[i] = v
		}
		return fn(f, func(use func(value.Value)) {
			for _, v := range vs {
				use(v)
			}
		}), nil
	})
}

func evalSum(f *Frame, each func(func(value.Value))) value.Value {
	s := sum{exact: true}
	each(func(v value.Value) { s.add(v) })
	v, _ := s.result() // only dates overflow, and add takes none
	return v
}

func evalAvg(f *Frame, each func(func(value.Value))) value.Value {
	s := sum{exact: true}
	n := int64(0)
	each(func(v value.Value) {
		if !v.T.Numeric() {
			return
		}
		n++
		if v.T != value.Decimal128 { // integers are averaged as doubles, too
			v = value.NewDouble(v.AsFloat64())
		}
		s.add(v)
	})
	switch {
	case n == 0:
		return null
	case s.seen == value.Decimal128:
		return decimal.Value(decimal.Quo(s.decimals(), decimal.Int(n)))
	}
	return value.NewDouble(s.doubles() / float64(n))
}

// extreme keeps the smallest (sign -1) or largest value; null and missing do not count.
func extreme(sign int) func(*Frame, func(func(value.Value))) value.Value {
	return func(f *Frame, each func(func(value.Value))) value.Value {
		best := null
		each(func(v value.Value) {
			if !v.IsNullish() && (best.T == value.Null || f.compare(v, best)*sign > 0) {
				best = v
			}
		})
		return best
	}
}

// stdDev is Welford's running variance; ddof 1 is the sample's.
func stdDev(ddof int) func(*Frame, func(func(value.Value))) value.Value {
	return func(f *Frame, each func(func(value.Value))) value.Value {
		n, mean, m2 := 0, 0.0, 0.0
		each(func(v value.Value) {
			if v.T.Numeric() {
				x := v.AsFloat64()
				n++
				d := x - mean
				mean += d / float64(n)
				m2 += d * (x - mean)
			}
		})
		if n <= ddof {
			return null
		}
		return value.NewDouble(math.Sqrt(m2 / float64(n-ddof)))
	}
}

// nOf makes a row for $firstN and its family over an array.
func nOf(name string, object mongoerr.Code, pick func(*Frame, []value.Value, int) ([]value.Value, error)) *operator {
	return &operator{name: name, fields: []field{{"input", 5787907}, {"n", 5787906}},
		words: wording{object: object, unknown: 5787901, onObject: notAnObject,
			onUnknown: "Unknown argument for 'n' operator: %[2]s", onMiss: "Missing value for '%[2]s'"},
		eval: func(f *Frame, c *call) (value.Value, error) {
			input, err := c.args[0].eval(f)
			if err != nil {
				return input, err
			}
			nv, err := c.args[1].eval(f)
			if err != nil {
				return nv, err
			}
			n, err := CheckN(nv)
			if err != nil {
				return nv, err
			}
			if input.T != value.Array {
				return input, mongoerr.New(5788200, "Input must be an array")
			}
			picked, err := pick(f, value.Values(input.Doc()), int(min(n, math.MaxInt32)))
			if err != nil {
				return input, err
			}
			return f.arrayOf(picked)
		}}
}

// CheckN reads the n of $firstN and its family.
func CheckN(v value.Value) (int64, error) {
	if !v.T.Numeric() {
		return 0, mongoerr.Newf(5787902, "Value for 'n' must be of integral type, but found %s", Show(v))
	}
	n, ok := v.AsInt64()
	if !ok {
		return 0, mongoerr.Newf(5787903, "Value for 'n' must be of integral type, but found %s", Show(v))
	}
	if n <= 0 {
		return 0, mongoerr.Newf(5787908, "'n' must be greater than 0, found %d", n)
	}
	return n, nil
}

func extremes(desc bool) func(*Frame, []value.Value, int) ([]value.Value, error) {
	return func(f *Frame, vs []value.Value, n int) ([]value.Value, error) {
		kept := vs[:0]
		for _, v := range vs {
			if !v.IsNullish() {
				kept = append(kept, v)
			}
		}
		err := value.SortStable(kept, &f.pace, func(a, b value.Value) int {
			if desc {
				a, b = b, a
			}
			return f.compare(a, b)
		})
		return kept[:min(n, len(kept))], err
	}
}

// parsePercentile reads $percentile and $median.
func parsePercentile(op *operator, arg value.Value, s *Scope) (node, error) {
	n, err := parseNamed(op, arg, s)
	if err != nil {
		return nil, err
	}
	c := n.(*call)
	vals, _ := op.readFields(arg)
	method := vals[len(vals)-1]
	if method.T != value.String {
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.method' is the wrong type '%s', expected type 'string'", op.name, method.T.Name())
	}
	if c.state = []float64{0.5}; op.name == "$percentile" {
		if c.args[1], err = s.optimize(c.args[1]); err != nil {
			return nil, err
		}
		k, ok := c.args[1].(*constant)
		if !ok {
			return nil, mongoerr.New(7750300, "The $percentile 'p' field must be an array of constant values, but found a non-constant")
		}
		if c.state, err = CheckPercentiles(k.v); err != nil {
			return nil, err
		}
	}
	return c, CheckPercentileMethod(method.Str())
}

// CheckPercentileMethod refuses every method but the only one.
func CheckPercentileMethod(method string) error {
	if method != "approximate" {
		return mongoerr.New(mongoerr.BadValue, "Currently only 'approximate' can be used as a percentile 'method'.")
	}
	return nil
}

// CheckPercentiles reads the p of $percentile.
func CheckPercentiles(v value.Value) ([]float64, error) {
	if v.T != value.Array || value.Count(v.Doc()) == 0 {
		return nil, mongoerr.Newf(7750301, "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: %s", Show(v))
	}
	var ps []float64
	for _, e := range value.Values(v.Doc()) {
		if !e.T.Numeric() {
			return nil, mongoerr.Newf(7750302, "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: %s", Show(e))
		}
		p := e.AsFloat64()
		if !(p >= 0 && p <= 1) {
			return nil, mongoerr.Newf(7750303, "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: %s", Show(e))
		}
		ps = append(ps, p)
	}
	return ps, nil
}

func evalPercentile(f *Frame, c *call) (value.Value, error) {
	v, err := c.args[0].eval(f)
	if err != nil {
		return v, err
	}
	var xs []float64
	add := func(v value.Value) {
		if v.T.Numeric() && !v.IsNaN() {
			xs = append(xs, v.AsFloat64())
		}
	}
	if v.T == value.Array {
		for _, e := range value.Values(v.Doc()) {
			add(e)
		}
	} else {
		add(v)
	}
	slices.Sort(xs)
	out := make([]value.Value, 0, 4)
	for _, p := range c.state.([]float64) {
		if len(xs) == 0 {
			out = append(out, null)
			continue
		}
		out = append(out, value.NewDouble(xs[min(max(int(math.Ceil(p*float64(len(xs))))-1, 0), len(xs)-1)]))
	}
	if c.op.name == "$median" {
		return out[0], nil
	}
	return f.arrayOf(out)
}
