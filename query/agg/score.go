package agg

import (
	"context"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$score", rules{traits: Plain | Selects}, one(parseScore))
}

// normalization is a way to map scores to the range from 0 to 1.
type normalization string

const (
	notNormalized normalization = "none"
	sigmoid       normalization = "sigmoid"
	minMaxScaler  normalization = "minMaxScaler"
)

func parseNormalization(field string, v value.Value) (normalization, error) {
	if v.T != value.String {
		return "", wrongType(field, v.T.Name(), "string")
	}
	switch n := normalization(v.Str()); n {
	case notNormalized, sigmoid, minMaxScaler:
		return n, nil
	}
	return "", badEnum(v.Str(), field)
}

func badEnum(got, field string) error {
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '%s' is not a valid value.", got, field)
}

// apply normalizes one of the scores between least and most.
func (n normalization) apply(score, least, most float64) float64 {
	switch n {
	case sigmoid:
		return expr.Sigmoid(score)
	case minMaxScaler:
		return scaleTo(score, least, most, 0, 1)
	}
	return score
}

// scoreStage is $score: it sets the metadata score of documents, and scoreDetails if requested.
type scoreStage struct {
	arg           value.Value
	e             *expr.Expr
	source        value.Value
	normalization normalization
	weight        float64
	details       bool
}

func parseScore(o *Options, v value.Value) (*scoreStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "The $score stage specification must be an object, found %s", v.T.Name())
	}
	s := &scoreStage{arg: v, normalization: notNormalized, weight: 1}
	for k, e := range value.Elements(v.Doc()) {
		if err := s.option(k, e); err != nil {
			return nil, err
		}
	}
	if s.source.T == value.Missing {
		return nil, missingField("$score.score")
	}
	var err error
	s.e, err = expr.Compile(s.source, o.scope())
	return s, err
}

func (s *scoreStage) option(k string, e value.Value) (err error) {
	switch k {
	case "score":
		s.source = e
	case "scoreDetails":
		if e.T != value.Boolean && !e.IsNullish() {
			return wrongType("$score.scoreDetails", e.T.Name(), "bool")
		}
		s.details = e.Truthy()
	case "normalization":
		if !e.IsNullish() {
			s.normalization, err = parseNormalization("$score.normalization", e)
		}
	case "weight":
		if e.IsNullish() {
			return nil
		}
		if !e.T.Numeric() {
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '$score.weight' is the wrong type '%s', expected types '[int, decimal, double, long]'", e.T.Name())
		}
		switch s.weight = e.AsFloat64(); {
		case !(s.weight >= 0):
			return mongoerr.Newf(mongoerr.BadValue, "BSON field 'weight' value must be >= 0, actual value '%s'", expr.Show(e))
		case s.weight > 1:
			return mongoerr.Newf(mongoerr.BadValue, "BSON field 'weight' value must be <= 1, actual value '%s'", expr.Show(e))
		}
	default:
		return unknownField("$score." + k)
	}
	return err
}

// halves leaves a normalization that depends on all scores to the merger.
func (s *scoreStage) halves() halves {
	if s.normalization != minMaxScaler {
		return halves{streams: true}
	}
	return halves{merge: []Stage{s}}
}

func (s *scoreStage) Name() string      { return "$score" }
func (s *scoreStage) Spec() value.Value { return s.arg }

func (s *scoreStage) open(x *exec, src Source) (Source, error) {
	one := &scoreSource{Source: src, s: s, frame: x.frame()}
	if s.normalization != minMaxScaler {
		return one, nil
	}
	return &scaleSource{in: one, x: x}, nil
}

// scoreSource scores documents one by one.
type scoreSource struct {
	Source
	s     *scoreStage
	frame *expr.Frame
}

func (c *scoreSource) Next(ctx context.Context) (Doc, bool, error) {
	d, raw, ok, err := c.next(ctx)
	if err == nil && ok {
		d = c.s.scored(d, raw, c.s.normalization.apply(raw, 0, 0))
	}
	return d, ok, err
}

// next returns a document and the value of the expression.
func (c *scoreSource) next(ctx context.Context) (d Doc, raw float64, ok bool, err error) {
	if d, ok, err = c.Source.Next(ctx); err != nil || !ok {
		return d, 0, ok, err
	}
	setRoot(c.frame, d)
	v, err := c.s.e.Eval(c.frame)
	if err == nil {
		raw, err = scoreOf("$score", v)
	}
	return d, raw, true, err
}

// scoreOf reads a computed score.
func scoreOf(stage string, v value.Value) (float64, error) {
	if !v.T.Numeric() {
		return 0, mongoerr.Newf(mongoerr.TypeMismatch, "the score that %s computes must be a number, but is %s", stage, v.T.Name())
	}
	return v.AsFloat64(), nil
}

// scored returns the document with its new metadata.
func (s *scoreStage) scored(d Doc, raw, normalized float64) Doc {
	m := Meta{}
	if d.Meta != nil {
		m = *d.Meta
	}
	m.Score, m.ScoreDetails = value.NewDouble(s.weight*normalized), value.Value{}
	if s.details {
		m.ScoreDetails = doc(f("value", m.Score),
			f("description", str("the score calculated from multiplying a weight in the range [0,1] with either a normalized or nonnormalized value:")),
			f("rawScore", value.NewDouble(raw)), f("normalization", str(string(s.normalization))), f("weight", value.NewDouble(s.weight)),
			f("expression", quoted(s.source)), f("details", array()))
	}
	return Doc{Raw: d.Raw, Meta: &m}
}

// scaleSource scales scores between the least and the greatest of all scores.
type scaleSource struct {
	in          *scoreSource
	x           *exec
	docs        *docList
	raw         []float64
	least, most float64
	at          int
}

func (c *scaleSource) Next(ctx context.Context) (Doc, bool, error) {
	if c.docs == nil {
		if err := c.fill(ctx); err != nil {
			return Doc{}, false, err
		}
	}
	if c.at >= len(c.raw) {
		return Doc{}, false, nil
	}
	d, err := c.docs.get(c.at)
	if err != nil {
		return Doc{}, false, err
	}
	raw := c.raw[c.at]
	c.at++
	return c.in.s.scored(d, raw, minMaxScaler.apply(raw, c.least, c.most)), true, nil
}

func (c *scaleSource) fill(ctx context.Context) error {
	c.docs = newDocList(c.x, "$score", &SpillStats{})
	for {
		d, raw, ok, err := c.in.next(ctx)
		if err != nil || !ok {
			return err
		}
		if err := c.docs.add(d.clone()); err != nil {
			return err
		}
		if len(c.raw) == 0 || raw < c.least {
			c.least = raw
		}
		if len(c.raw) == 0 || raw > c.most {
			c.most = raw
		}
		c.raw = append(c.raw, raw)
	}
}

func (c *scaleSource) Close() {
	c.in.Close()
	if c.docs != nil {
		c.docs.close()
	}
}
