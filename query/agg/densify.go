package agg

import (
	"slices"
	"strings"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$densify", rules{traits: Plain | Slow}, one(parseDensify))
	register("$fill", rules{traits: Plain | Slow}, parseFill)
}

// densifyStage is $densify: it adds documents so that a field has every step between two bounds.
type densifyStage struct {
	arg        value.Value
	field      []string
	partitions [][]string
	step       value.Value
	unit       string
	bounds     string // "full", "partition", or "" if lo and hi are given
	lo, hi     value.Value
}

func parseDensify(o *Options, v value.Value) (*densifyStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(5733201, "The $densify stage specification must be an object, found %s", v.T.Name())
	}
	s := &densifyStage{arg: v}
	var rng value.Value
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "field":
			if e.T != value.String {
				return nil, wrongType("$densify.field", e.T.Name(), "string")
			}
			var err error
			if s.field, err = fieldPath(e.Str()); err != nil {
				return nil, err
			}
		case "partitionByFields":
			if e.T != value.Array {
				return nil, wrongType("$densify.partitionByFields", e.T.Name(), "array")
			}
			for _, p := range value.Values(e.Doc()) {
				if p.T != value.String {
					return nil, wrongType("$densify.partitionByFields.0", p.T.Name(), "string")
				}
				path, err := fieldPath(p.Str())
				if err != nil {
					return nil, err
				}
				s.partitions = append(s.partitions, path)
			}
		case "range":
			if rng = e; e.T != value.Document {
				return nil, wrongType("$densify.range", e.T.Name(), "object")
			}
		default:
			return nil, unknownField("$densify." + k)
		}
	}
	switch {
	case s.field == nil:
		return nil, missingField("$densify.field")
	case rng.T == value.Missing:
		return nil, missingField("$densify.range")
	}
	for _, p := range s.partitions {
		if n := min(len(p), len(s.field)); slices.Equal(p[:n], s.field[:n]) {
			return nil, mongoerr.Newf(8993000, "BSON field '$densify.partitionByFields' contains '%s', which shares a prefix with the field to densify, '%s'",
				strings.Join(p, "."), strings.Join(s.field, "."))
		}
	}
	return s, s.parseRange(rng)
}

func (s *densifyStage) parseRange(rng value.Value) error {
	var bounds value.Value
	for k, e := range value.Elements(rng.Doc()) {
		switch k {
		case "step":
			s.step = e
		case "bounds":
			bounds = e
		case "unit":
			if e.T != value.String || !validUnit(e.Str()) {
				return mongoerr.Newf(mongoerr.FailedToParse, "unknown time unit value: %s", expr.Show(e))
			}
			s.unit = e.Str()
		default:
			return unknownField("$densify.range." + k)
		}
	}
	switch {
	case s.step.T == value.Missing:
		return missingField("$densify.range.step")
	case bounds.T == value.Missing:
		return missingField("$densify.range.bounds")
	case !s.step.T.Numeric() || !(s.step.AsFloat64() > 0):
		return mongoerr.New(5733401, "The step parameter in a range statement must be a strictly positive numeric value")
	}
	if _, whole := s.step.AsInt64(); s.unit != "" && !whole {
		return mongoerr.New(6586400, "The step parameter in a range statement must be a whole number when densifying a date range")
	}
	switch bounds.T {
	case value.String:
		if s.bounds = bounds.Str(); s.bounds != "full" && s.bounds != "partition" {
			return mongoerr.New(5946802, "Bounds string must either be 'full' or 'partition'")
		}
		if s.bounds == "partition" && s.partitions == nil {
			return mongoerr.New(5733408, "One may not specify the bounds as 'partition' without specifying a non-empty array of partitionByFields. You may have meant to specify 'full' bounds.")
		}
		return nil
	case value.Array:
		two := value.Values(bounds.Doc())
		if len(two) != 2 {
			return mongoerr.New(5733403, "A bounding array in a range statement must have exactly two elements")
		}
		return s.parseEdges(two[0], two[1])
	}
	return mongoerr.New(5733409, "The bounds in a range statement must be the string 'full' or 'partition' or an ascending array of two numbers or two dates")
}

func (s *densifyStage) parseEdges(lo, hi value.Value) error {
	dates := lo.T == value.DateTime && hi.T == value.DateTime
	switch {
	case !dates && !(lo.T.Numeric() && hi.T.Numeric()):
		return mongoerr.New(5733402, "A bounding array must contain either both dates or both numeric types")
	case value.Compare(lo, hi) > 0:
		return mongoerr.New(5733402, "A bounding array must be an ascending array of either two dates or two numbers")
	case dates && s.unit == "":
		return mongoerr.New(5733501, "A bounding array of dates must specify a unit")
	case !dates && s.unit != "":
		return mongoerr.New(5733402, "Numeric bounds may not have unit parameter")
	}
	s.lo, s.hi = lo, hi
	return nil
}

func (s *densifyStage) Name() string      { return "$densify" }
func (s *densifyStage) Spec() value.Value { return s.arg }

// steps returns a bound moved by one step, by two, and so on.
func (s *densifyStage) steps(lo value.Value) func() value.Value {
	if s.unit != "" {
		step, _ := s.step.AsInt64()
		n := int64(0)
		return func() value.Value {
			n++
			return value.NewDateTime(addUnit(lo.DateTime(), s.unit, n*step))
		}
	}
	var t accum.Total
	t.Add(lo)
	return func() value.Value {
		t.Add(s.step) // accumulated like on the real server, so that rounding is the same
		return t.Value()
	}
}

// parseFill turns $fill into $setWindowFields (method) and $addFields (value).
func parseFill(o *Options, v value.Value) ([]Stage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "the $fill stage specification must be an object, found %s", v.T.Name())
	}
	var by, sortBy, output value.Value
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "partitionBy":
			if by = e; e.T != value.String && e.T != value.Document {
				return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '$fill.partitionBy' is the wrong type '%s', expected types '[string, object]'", e.T.Name())
			}
		case "partitionByFields":
			var fs []value.Field
			for _, p := range value.Values(e.Doc()) {
				if p.T != value.String {
					return nil, wrongType("$fill.partitionByFields.0", p.T.Name(), "string")
				}
				if strings.HasPrefix(p.Str(), "$") {
					return nil, mongoerr.Newf(mongoerr.FailedToParse, "partitionByFields can't start with $: %s", p.Str())
				}
				fs = append(fs, f(strings.ReplaceAll(p.Str(), ".", "_"), str("$"+p.Str())))
			}
			by = doc(fs...)
		case "sortBy":
			if sortBy = e; e.T != value.Document {
				return nil, wrongType("$fill.sortBy", e.T.Name(), "object")
			}
		case "output":
			if output = e; e.T != value.Document {
				return nil, wrongType("$fill.output", e.T.Name(), "object")
			}
		default:
			return nil, unknownField("$fill." + k)
		}
	}
	switch {
	case output.T == value.Missing:
		return nil, missingField("$fill.output")
	case value.Count(output.Doc()) == 0:
		return nil, mongoerr.New(6050203, "output field should not be empty")
	case value.Lookup(v.Doc(), "partitionBy").T != value.Missing && value.Lookup(v.Doc(), "partitionByFields").T != value.Missing:
		return nil, mongoerr.New(6050204, "Maximum one of 'partitionBy' and 'partitionByFields can be specified in '$fill'")
	}
	return fillStages(o, by, sortBy, output)
}

func fillStages(o *Options, by, sortBy, output value.Value) ([]Stage, error) {
	var windows, constants []value.Field
	for k, e := range value.Elements(output.Doc()) {
		if e.T != value.Document || value.Count(e.Doc()) != 1 {
			return nil, mongoerr.New(6050202, "Output fields must be objects with exactly one of 'value' and 'method'")
		}
		val, method := value.Lookup(e.Doc(), "value"), value.Lookup(e.Doc(), "method")
		switch {
		case val.T != value.Missing:
			constants = append(constants, f(k, doc(f("$ifNull", array(str("$"+k), val)))))
		case method.T == value.String && method.Str() == "locf":
			windows = append(windows, f(k, doc(f("$locf", str("$"+k)))))
		case method.T == value.String && method.Str() == "linear":
			windows = append(windows, f(k, doc(f("$linearFill", str("$"+k)))))
		default:
			return nil, mongoerr.New(6050202, "Method must be either locf or linear")
		}
	}
	var out []Stage
	if windows != nil {
		fs := []value.Field{f("partitionBy", by), f("sortBy", sortBy), f("output", doc(windows...))}
		st, err := parseSetWindowFields(o, doc(fs...))
		if err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	if constants != nil {
		st, err := registry["$addFields"].parse(o, doc(constants...))
		if err != nil {
			return nil, err
		}
		out = append(out, st...)
	}
	return out, nil
}
