package agg

import (
	"context"
	"math"
	"slices"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fusion is the common part of $rankFusion and $scoreFusion: several selections of one collection, each run as a pipeline
// of its own with its own indexes, whose documents are combined by their ranks or scores.
type fusion struct {
	name    string
	arg     value.Value
	rules   fusionRules
	names   []string
	inputs  []subPipeline
	parsed  []*Pipeline // the same, parsed: this determines what they sort by
	weights []float64
	details bool
	view    []value.Value // the stages of the view that the fusion runs on
}

// fusionRules has the rules that differ between the two stages for their input pipelines.
type fusionRules struct {
	empty, changes    mongoerr.Code // error codes: an empty pipeline; a stage that changes documents
	rejected          mongoerr.Code // error code: a pipeline that does not rank, or score
	fits              func(name string, first bool, arg value.Value) bool
	rejectedText      string
	normalizes        bool // whether input.normalization and combination.method are known
	checkCombination  func(k string, e value.Value) error
	finishCombination func(weighted bool) error
}

// parse reads the stage's argument.
func (s *fusion) parse(o *Options, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(mongoerr.FailedToParse, "%s must take a nested object but found: %s", s.name, v.T.Name())
	}
	s.arg = v
	var input, combination value.Value
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "input", "combination":
			if e.IsNullish() {
				continue
			}
			if e.T != value.Document {
				return wrongType(s.name+"."+k, e.T.Name(), "object")
			}
			if k == "input" {
				input = e
			} else {
				combination = e
			}
		case "scoreDetails":
			if e.T != value.Boolean && !e.IsNullish() {
				return wrongType(s.name+".scoreDetails", e.T.Name(), "bool")
			}
			s.details = e.Truthy()
		default:
			return unknownField(s.name + "." + k)
		}
	}
	if input.T == value.Missing {
		return missingField(s.name + ".input")
	}
	if err := s.parseInput(o, input); err != nil {
		return err
	}
	return s.parseCombination(combination)
}

func (s *fusion) parseInput(o *Options, input value.Value) error {
	pipelines, err := s.pipelinesOf(input)
	if err != nil {
		return err
	}
	for k, e := range value.Elements(pipelines.Doc()) {
		if e.T != value.Array {
			return wrongType(s.name+".input.pipelines."+k, e.T.Name(), "array")
		}
		for _, st := range value.Values(e.Doc()) {
			if st.T != value.Document {
				return mongoerr.New(mongoerr.TypeMismatch, "Each element of the 'pipeline' array must be an object")
			}
		}
	}
	for k, e := range value.Elements(pipelines.Doc()) {
		if err := checkOutputName(k); err != nil {
			return err
		}
		specs := value.Values(e.Doc())
		if err := s.checkSelects(o, k, specs); err != nil {
			return err
		}
		sub := subPipeline{ns: o.NS, stages: specs, opts: o.sub(o.within, o.NS)}
		p, err := parseStages(specs, sub.opts)
		if err != nil {
			return err
		}
		if err := s.checkFits(o, k, specs); err != nil {
			return err
		}
		s.names, s.inputs, s.parsed = append(s.names, k), append(s.inputs, sub), append(s.parsed, p)
	}
	if len(s.inputs) == 0 {
		return mongoerr.Newf(mongoerr.BadValue, "%s input must have at least one pipeline", s.name)
	}
	return nil
}

// pipelinesOf reads the fields of input.
func (s *fusion) pipelinesOf(input value.Value) (pipelines value.Value, err error) {
	for k, e := range value.Elements(input.Doc()) {
		switch {
		case k == "normalization" && s.rules.normalizes:
			continue // read by the stage itself
		case k != "pipelines":
			return pipelines, unknownField(s.name + ".input." + k)
		}
		if pipelines = e; !e.IsNullish() && e.T != value.Document {
			return pipelines, wrongType(s.name+".input.pipelines", e.T.Name(), "object")
		}
	}
	if pipelines.IsNullish() {
		return pipelines, missingField(s.name + ".input.pipelines")
	}
	return pipelines, nil
}

// checkSelects checks that an input pipeline leaves its documents as they are.
func (s *fusion) checkSelects(o *Options, name string, specs []value.Value) error {
	if len(specs) == 0 {
		return mongoerr.Newf(s.rules.empty, "%s input pipeline '%s' cannot be empty", s.name, name)
	}
	for i, st := range specs {
		k, arg, err := splitStage(st, o)
		if err != nil {
			return err
		}
		switch {
		case registry[k] == nil:
			return mongoerr.Newf(40324, "Unrecognized pipeline stage name: '%s'", k)
		case i == 0 && (k == "$rankFusion" || k == "$scoreFusion"):
			return mongoerr.Newf(10473002, "%s input pipeline '%s' must not be a nested %s", s.name, name, k)
		case k == "$rankFusion" || k == "$scoreFusion":
			return mongoerr.Newf(10170100, "%s can only be the first stage of a pipeline", k)
		case k == "$geoNear" && i == 0 && onlySelects(arg):
		case !Has(k, Selects):
			return mongoerr.Newf(s.rules.changes, "stage '%s' of %s input pipeline '%s' modifies documents: only stages that select and order may be used", k, s.name, name)
		}
	}
	return nil
}

// checkFits checks that an input pipeline orders, or scores, what it selects.
func (s *fusion) checkFits(o *Options, name string, specs []value.Value) error {
	for i, st := range specs {
		k, arg, err := splitStage(st, o)
		if err != nil {
			return err
		}
		if k == "$geoNear" && i == 0 || s.rules.fits(k, i == 0, arg) {
			return nil
		}
	}
	return mongoerr.Newf(s.rules.rejected, "%s input pipeline '%s' %s", s.name, name, s.rules.rejectedText)
}

// onlySelects reports whether a $geoNear adds no fields to its documents.
func onlySelects(v value.Value) bool {
	return v.T == value.Document && value.Lookup(v.Doc(), "distanceField").T == value.Missing &&
		value.Lookup(v.Doc(), "includeLocs").T == value.Missing
}

func (s *fusion) parseCombination(v value.Value) error {
	s.weights = make([]float64, len(s.names))
	for i := range s.weights {
		s.weights[i] = 1
	}
	var weights value.Value
	for k, e := range value.Elements(v.Doc()) {
		if k != "weights" {
			if s.rules.checkCombination == nil {
				return unknownField(s.name + ".combination." + k)
			}
			if err := s.rules.checkCombination(k, e); err != nil {
				return err
			}
			continue
		}
		if weights = e; !e.IsNullish() && e.T != value.Document {
			return wrongType(s.name+".combination.weights", e.T.Name(), "object")
		}
	}
	if s.rules.finishCombination != nil {
		if err := s.rules.finishCombination(!weights.IsNullish()); err != nil {
			return err
		}
	} else if v.T != value.Missing && weights.IsNullish() {
		return missingField(s.name + ".combination.weights")
	}
	return s.parseWeights(weights)
}

func (s *fusion) parseWeights(weights value.Value) error {
	if n := value.Count(weights.Doc()); n > len(s.names) {
		return mongoerr.Newf(9460301, "%s input has %d pipelines, but %d weights", s.name, len(s.names), n)
	}
	for k, e := range value.Elements(weights.Doc()) {
		i := slices.Index(s.names, k)
		switch {
		case i < 0:
			return mongoerr.Newf(9967500, "%s weight '%s' does not match the name of an input pipeline", s.name, k)
		case !e.T.Numeric():
			return mongoerr.Newf(13118, "%s's weight must be a number, but is %s", s.name, e.T.Name())
		}
		w := e.AsFloat64()
		if math.IsNaN(w) || w < 0 {
			return mongoerr.Newf(9460300, "%s's weight must be non-negative, but is %s", s.name, expr.Show(e))
		}
		s.weights[i] = w
	}
	return nil
}

func (s *fusion) Name() string      { return s.name }
func (s *fusion) Spec() value.Value { return s.arg }

// generates marks the stage as a generator: the input pipelines read the collection themselves.
func (s *fusion) generates() {}

func (s *fusion) namespaces() (reads, writes []Namespace) { return []Namespace{s.inputs[0].ns}, nil }

// onView sets the view's stages, with which each of the input pipelines then begins.
func (s *fusion) onView(stages []value.Value) { s.view = stages }

func (s *fusion) base() *fusion { return s }

// fused is a document of the output, with its ranks or scores in each pipeline.
type fused struct {
	raw   []byte
	id    value.Value
	parts []part
	score float64
}

// part is a document's rank and score in one pipeline; rank is 0 if the pipeline does not return the document.
type part struct {
	rank       int32
	raw, score float64 // the pipeline's score; the same normalized and weighted
	scored     bool
	details    value.Value // the pipeline's own scoreDetails
}

// pool collects the documents of all pipelines, each once, by _id.
type pool struct {
	byID  map[string]*fused
	all   []*fused
	parts int
	bytes int64
	limit int64
	name  string
}

func (s *fusion) newPool(x *exec) *pool {
	return &pool{byID: map[string]*fused{}, parts: len(s.inputs), limit: x.opts.limitOf(s.name), name: s.name}
}

// add records that pipeline i returns a document.
func (p *pool) add(d Doc, i int) (*part, error) {
	id := value.Lookup(d.Raw, "_id")
	k := string(value.AppendGroupKey(nil, id, nil))
	f := p.byID[k]
	if f == nil {
		raw := append(make([]byte, 0, len(d.Raw)), d.Raw...)
		f = &fused{raw: raw, id: value.Lookup(raw, "_id"), parts: make([]part, p.parts)}
		p.byID[k] = f
		p.all = append(p.all, f)
		if p.bytes += int64(len(raw) + len(k) + 64*p.parts); p.bytes > p.limit {
			return nil, mongoerr.Newf(mongoerr.ExceededMemoryLimit, "%s used too much memory for its input: its limit is %d bytes", p.name, p.limit)
		}
	}
	return &f.parts[i], nil
}

// documents returns the result, best score first.
func (p *pool) documents(details func(f *fused) value.Value) []Doc {
	slices.SortStableFunc(p.all, func(a, b *fused) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return value.Compare(a.id, b.id)
	})
	out := make([]Doc, len(p.all))
	for i, f := range p.all {
		m := &Meta{Score: value.NewDouble(f.score)}
		if details != nil {
			m.ScoreDetails = details(f)
		}
		out[i] = Doc{Raw: f.raw, Meta: m}
	}
	return out
}

// each runs an input pipeline and calls f with its documents.
func (s *fusion) each(ctx context.Context, x *exec, i int, f func(d Doc) error) error {
	src, err := s.inputs[i].run(ctx, x, x.opts.scope(), s.view...)
	if err != nil {
		return err
	}
	defer src.Close()
	frame := x.frame()
	for {
		if err := frame.Check(); err != nil {
			return err
		}
		d, ok, err := src.Next(ctx)
		if err != nil || !ok {
			return err
		}
		if err := f(d); err != nil {
			return err
		}
	}
}

// firstFusion returns the $rankFusion or $scoreFusion of a pipeline, nil if there is none.
func (p *Pipeline) firstFusion() *fusion {
	for _, s := range p.stages {
		if f, ok := s.(interface{ base() *fusion }); ok {
			return f.base()
		}
	}
	return nil
}

// Fuses reports whether a pipeline begins with a fusion, whose input pipelines read the collection themselves.
func (p *Pipeline) Fuses() bool { return p.GeneratesDocuments() && p.firstFusion() != nil }

// afterView moves the stages of the view that a fusion runs on into the fusion.
func (p *Pipeline) afterView(specs []value.Value) {
	for i, s := range p.stages {
		if f, ok := s.(interface{ base() *fusion }); ok && i > 0 {
			f.base().onView(specs[:p.opts.ViewStages])
			p.stages = p.stages[i:]
			return
		}
	}
}
