package agg

import (
	"context"
	"strings"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$scoreFusion", rules{hybrid: true, noView: true, traits: Selects}, one(parseScoreFusion))
}

// scoreFusionStage is $scoreFusion: several scored selections of one collection, fused by their scores.
type scoreFusionStage struct {
	fusion
	normalization normalization
	method        value.Value
	source        value.Value // the custom expression as written; Missing for the average
	e             *expr.Expr
	vars          []int // its variables: the scores by pipeline
}

func parseScoreFusion(o *Options, v value.Value) (*scoreFusionStage, error) {
	s := &scoreFusionStage{}
	s.name = "$scoreFusion"
	s.rules = fusionRules{
		empty: 9402503, changes: 9402502, rejected: 9402500,
		rejectedText: "must begin with a scored stage or contain a $score",
		fits: func(k string, first bool, arg value.Value) bool {
			return k == "$score" || first && (k == "$search" || k == "$vectorSearch" || k == "$match" && value.Lookup(arg.Doc(), "$text").T != value.Missing)
		},
		normalizes: true, checkCombination: s.combinationField, finishCombination: func(weighted bool) error { return s.combine(o, weighted) },
	}
	if v.T == value.Document {
		if err := s.readNormalization(value.Lookup(v.Doc(), "input")); err != nil {
			return nil, err
		}
	}
	return s, s.parse(o, v)
}

func (s *scoreFusionStage) readNormalization(input value.Value) (err error) {
	if input.T != value.Document {
		return nil // errors in it are reported by parse
	}
	n := value.Lookup(input.Doc(), "normalization")
	if n.IsNullish() {
		return missingField("$scoreFusion.input.normalization")
	}
	s.normalization, err = parseNormalization("$scoreFusion.input.normalization", n)
	return err
}

// combinationField reads a field of combination other than the weights.
func (s *scoreFusionStage) combinationField(k string, e value.Value) error {
	switch k {
	case "method":
		if e.IsNullish() {
			return nil
		}
		if e.T != value.String {
			return wrongType("$scoreFusion.combination.method", e.T.Name(), "string")
		}
		if s.method = e; e.Str() != "avg" && e.Str() != "expression" {
			return badEnum(e.Str(), "$scoreFusion.combination.method")
		}
		return nil
	case "expression":
		s.source = e
		return nil
	}
	return unknownField("$scoreFusion.combination." + k)
}

// combine checks the fields of combination against each other and compiles the expression, whose variables are the
// pipelines' names.
func (s *scoreFusionStage) combine(o *Options, weighted bool) (err error) {
	custom := s.method.T == value.String && s.method.Str() == "expression"
	switch {
	case custom && s.source.T == value.Missing:
		return mongoerr.New(10017302, "$scoreFusion: combination.method 'expression' needs a combination.expression")
	case !custom && s.source.T != value.Missing:
		return mongoerr.New(10017300, "$scoreFusion: combination.expression may be given only where combination.method is 'expression'")
	case custom && weighted:
		return mongoerr.New(10017301, "$scoreFusion: combination.weights and combination.expression exclude each other")
	case !custom:
		return nil
	}
	scope := o.scope().Nested()
	for _, name := range s.names {
		if err := checkVariable(name); err != nil {
			return err
		}
		s.vars = append(s.vars, scope.Define(name))
	}
	s.e, err = expr.Compile(s.source, scope)
	return err
}

func (s *scoreFusionStage) open(x *exec, src Source) (Source, error) {
	return &lazySource{src: src, fill: func(ctx context.Context) ([]Doc, error) { return s.fuse(ctx, x) }}, nil
}

func (s *scoreFusionStage) fuse(ctx context.Context, x *exec) ([]Doc, error) {
	pool := s.newPool(x)
	for i := range s.inputs {
		if err := s.score(ctx, x, i, pool); err != nil {
			return nil, err
		}
	}
	frame := x.frame()
	for _, f := range pool.all {
		if err := s.fuseOne(frame, f); err != nil {
			return nil, err
		}
	}
	if !s.details {
		return pool.documents(nil), nil
	}
	return pool.documents(s.explain), nil
}

// score runs one pipeline and records the scores, normalized and weighted.
func (s *scoreFusionStage) score(ctx context.Context, x *exec, i int, pool *pool) error {
	var scores []*part
	err := s.each(ctx, x, i, func(d Doc) error {
		p, err := pool.add(d, i)
		if err != nil {
			return err
		}
		p.rank = int32(len(scores) + 1)
		if score := d.Meta.Meta("score"); score.T.Numeric() {
			p.raw = score.AsFloat64()
		}
		if s.details {
			p.details = d.Meta.Meta("scoreDetails").Clone()
		}
		scores = append(scores, p)
		return nil
	})
	if err != nil {
		return err
	}
	least, most := 0.0, 0.0
	for n, p := range scores {
		if n == 0 || p.raw < least {
			least = p.raw
		}
		if n == 0 || p.raw > most {
			most = p.raw
		}
	}
	for _, p := range scores {
		p.score = s.weights[i] * s.normalization.apply(p.raw, least, most)
	}
	return nil
}

// fuseOne computes a document's score: the average of those of all pipelines, 0 for one that does not return the
// document, or the value of the expression.
func (s *scoreFusionStage) fuseOne(frame *expr.Frame, a *fused) error {
	if s.e == nil {
		for _, p := range a.parts {
			a.score += p.score
		}
		a.score /= float64(len(a.parts))
		return nil
	}
	frame.SetRoot(a.raw)
	for i, id := range s.vars {
		frame.SetVar(id, value.NewDouble(a.parts[i].score))
	}
	v, err := s.e.Eval(frame)
	if err != nil {
		return err
	}
	a.score, err = scoreOf("$scoreFusion", v)
	return err
}

// explain returns the scoreDetails metadata of a document.
func (s *scoreFusionStage) explain(a *fused) value.Value {
	var details []value.Value
	for i, p := range a.parts {
		fs := []value.Field{f("inputPipelineName", str(s.names[i])), f("inputPipelineRawScore", value.NewDouble(p.raw)),
			f("weight", value.NewDouble(s.weights[i])), f("value", value.NewDouble(p.score))}
		if p.rank > 0 {
			fs = append(fs, p.inherited()...)
		}
		details = append(details, doc(fs...))
	}
	combination := doc(f("method", str("average")))
	if s.e != nil {
		combination = doc(f("method", str("custom expression")), f("expression", quoted(s.source)))
	}
	return doc(f("value", value.NewDouble(a.score)),
		f("description", str("the value calculated by combining the scores (either normalized or raw) across input pipelines from which this document is output from:")),
		f("normalization", str(string(s.normalization))), f("combination", combination), f("details", array(details...)))
}

// quoted returns an expression as scoreDetails show it.
func quoted(v value.Value) value.Value {
	return str(strings.ReplaceAll(value.Show(doc(f("string", v))), `"`, `'`))
}
