package agg

import (
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// parseScaler reads $minMaxScaler: an expression, or {input, min, max}.
func parseScaler(s *windowStage, o *Options, name string, arg value.Value, b *bounds) (windowFunc, error) {
	input, lo, hi := arg, 0.0, 1.0
	if arg.T == value.Document && value.Lookup(arg.Doc(), "input").T != value.Missing {
		a, err := named(name, arg, "input", "min", "max")
		if err != nil {
			return nil, err
		}
		input = a["input"]
		if lo, err = scalerBound(o, "min", a["min"], lo); err != nil {
			return nil, err
		}
		if hi, err = scalerBound(o, "max", a["max"], hi); err != nil {
			return nil, err
		}
	} else if arg.T == value.Document && !isExpression(arg) {
		return nil, mongoerr.New(mongoerr.FailedToParse, "$minMaxScaler requires an 'input' expression")
	}
	if lo >= hi {
		return nil, mongoerr.New(mongoerr.FailedToParse, "$minMaxScaler requires 'min' to be less than 'max'")
	}
	e, err := expr.Compile(input, o.scope())
	if err != nil {
		return nil, err
	}
	return windowFn(func(p *partition) ([]value.Value, error) {
		in, err := p.values(e)
		if err != nil {
			return nil, err
		}
		for _, v := range in {
			if !v.T.Numeric() {
				return nil, mongoerr.Newf(mongoerr.TypeMismatch, "$minMaxScaler only supports numeric input, not %s", v.T.Name())
			}
		}
		least, most := slider{sign: 1}, slider{sign: -1}
		out := make([]value.Value, len(in))
		for i, v := range in {
			from, to, err := b.window(p, i)
			if err != nil {
				return nil, err
			}
			if from >= to {
				out[i] = value.NewDouble(lo)
				continue
			}
			out[i] = value.NewDouble(scaleTo(v.AsFloat64(), least.over(in, from, to), most.over(in, from, to), lo, hi))
		}
		return out, nil
	}), b.check(s)
}

// scalerBound reads a constant end of the range.
func scalerBound(o *Options, name string, v value.Value, otherwise float64) (float64, error) {
	if v.T == value.Missing {
		return otherwise, nil
	}
	e, err := expr.Compile(v, o.scope())
	if err != nil {
		return 0, err
	}
	c, ok := e.Constant()
	if !ok || !c.T.Numeric() {
		return 0, mongoerr.Newf(mongoerr.FailedToParse, "$minMaxScaler's '%s' must be a constant number", name)
	}
	return c.AsFloat64(), nil
}

// slider finds the least (or, with sign -1, the greatest) number of a window whose ends only move forward.
type slider struct {
	sign float64
	at   []int // positions of the numbers that are, or may become, the least, in order
	read int   // the numbers before this position were examined
}

func (s *slider) over(in []value.Value, from, to int) float64 {
	for ; s.read < to; s.read++ {
		x := s.sign * in[s.read].AsFloat64()
		for len(s.at) > 0 && s.sign*in[s.at[len(s.at)-1]].AsFloat64() >= x {
			s.at = s.at[:len(s.at)-1]
		}
		s.at = append(s.at, s.read)
	}
	for len(s.at) > 1 && s.at[0] < from {
		s.at = s.at[1:]
	}
	return in[s.at[0]].AsFloat64()
}

// scaleTo maps the range from least to most to that from lo to hi; if all numbers are equal, the result is lo.
func scaleTo(x, least, most, lo, hi float64) float64 {
	if most <= least {
		return lo
	}
	return lo + (x-least)/(most-least)*(hi-lo)
}
