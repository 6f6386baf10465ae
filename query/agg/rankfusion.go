package agg

import (
	"context"
	"math"
	"slices"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/sortkey"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$rankFusion", rules{hybrid: true}, one(parseRankFusion))
}

// rankConstant is the constant of reciprocal rank fusion: a document of rank r scores weight/(60+r).
const rankConstant = 60

// rankStage is $rankFusion: several ranked selections of one input, fused by their ranks.
type rankStage struct {
	arg     value.Value
	names   []string
	pipes   []*Pipeline
	weights []float64
	details bool
}

func parseRankFusion(o *Options, v value.Value) (*rankStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "$rankFusion must take a nested object but found: %s", v.T.Name())
	}
	s := &rankStage{arg: v}
	var input, combination value.Value
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "input", "combination":
			if e.IsNullish() {
				continue
			}
			if e.T != value.Document {
				return nil, wrongType("$rankFusion."+k, e.T.Name(), "object")
			}
			if k == "input" {
				input = e
			} else {
				combination = e
			}
		case "scoreDetails":
			if e.T != value.Boolean && !e.IsNullish() {
				return nil, wrongType("$rankFusion.scoreDetails", e.T.Name(), "bool")
			}
			s.details = e.Truthy()
		default:
			return nil, unknownField("$rankFusion." + k)
		}
	}
	if input.T == value.Missing {
		return nil, missingField("$rankFusion.input")
	}
	if err := s.parseInput(o, input); err != nil {
		return nil, err
	}
	return s, s.parseCombination(combination)
}

func (s *rankStage) parseInput(o *Options, input value.Value) error {
	var pipelines value.Value
	for k, e := range value.Elements(input.Doc()) {
		if k != "pipelines" {
			return unknownField("$rankFusion.input." + k)
		}
		if pipelines = e; !e.IsNullish() && e.T != value.Document {
			return wrongType("$rankFusion.input.pipelines", e.T.Name(), "object")
		}
	}
	if pipelines.IsNullish() {
		return missingField("$rankFusion.input.pipelines")
	}
	for k, e := range value.Elements(pipelines.Doc()) {
		if e.T != value.Array {
			return wrongType("$rankFusion.input.pipelines."+k, e.T.Name(), "array")
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
		p, err := parseRanked(o, k, value.Values(e.Doc()))
		if err != nil {
			return err
		}
		s.names, s.pipes = append(s.names, k), append(s.pipes, p)
	}
	if len(s.pipes) == 0 {
		return mongoerr.New(mongoerr.BadValue, "$rankFusion input must have at least one pipeline")
	}
	return nil
}

// selecting are the stages that choose and order documents without changing them.
var selecting = map[string]bool{
	"$match": true, "$sort": true, "$limit": true, "$skip": true, "$sample": true, "$search": true, "$vectorSearch": true,
	"$rankFusion": true, "$scoreFusion": true,
}

// parseRanked checks that an input pipeline ranks what it selects.
func parseRanked(o *Options, name string, specs []value.Value) (*Pipeline, error) {
	if len(specs) == 0 {
		return nil, mongoerr.Newf(9834300, "$rankFusion input pipeline '%s' cannot be empty", name)
	}
	ranked := false
	for i, st := range specs {
		k, arg, err := splitStage(st, o)
		if err != nil {
			return nil, err
		}
		switch {
		case registry[k] == nil:
			return nil, mongoerr.Newf(40324, "Unrecognized pipeline stage name: '%s'", k)
		case i == 0 && (k == "$rankFusion" || k == "$scoreFusion"):
			return nil, mongoerr.Newf(10473002, "$rankFusion input pipeline '%s' must not be a nested %s", name, k)
		case k == "$rankFusion" || k == "$scoreFusion":
			return nil, mongoerr.Newf(10170100, "%s can only be the first stage of a pipeline", k)
		case k == "$geoNear" && i == 0 && onlySelects(arg):
			ranked = true
		case !selecting[k]:
			return nil, mongoerr.Newf(9191103, "stage '%s' of $rankFusion input pipeline '%s' modifies documents: only stages that select and order may be used", k, name)
		}
		ranked = ranked || k == "$sort" || i == 0 && (k == "$search" || k == "$vectorSearch")
	}
	p, err := parseStages(specs, o.sub(o.within, o.NS))
	if err == nil && !ranked {
		err = mongoerr.Newf(9191100, "$rankFusion input pipeline '%s' must begin with a ranked stage or hold a $sort", name)
	}
	return p, err
}

// onlySelects is true for a $geoNear that writes nothing into its documents.
func onlySelects(v value.Value) bool {
	return v.T == value.Document && value.Lookup(v.Doc(), "distanceField").T == value.Missing &&
		value.Lookup(v.Doc(), "includeLocs").T == value.Missing
}

func (s *rankStage) parseCombination(v value.Value) error {
	s.weights = make([]float64, len(s.names))
	for i := range s.weights {
		s.weights[i] = 1
	}
	if v.T == value.Missing {
		return nil
	}
	var weights value.Value
	for k, e := range value.Elements(v.Doc()) {
		if k != "weights" {
			return unknownField("$rankFusion.combination." + k)
		}
		if weights = e; !e.IsNullish() && e.T != value.Document {
			return wrongType("$rankFusion.combination.weights", e.T.Name(), "object")
		}
	}
	if weights.IsNullish() {
		return missingField("$rankFusion.combination.weights")
	}
	if n := value.Count(weights.Doc()); n > len(s.names) {
		return mongoerr.Newf(9460301, "$rankFusion input has %d pipelines, but %d weights", len(s.names), n)
	}
	for k, e := range value.Elements(weights.Doc()) {
		i := slices.Index(s.names, k)
		switch {
		case i < 0:
			return mongoerr.Newf(9967500, "$rankFusion weight '%s' does not match the name of an input pipeline", k)
		case !e.T.Numeric():
			return mongoerr.Newf(13118, "$rankFusion's weight must be a number, but is %s", e.T.Name())
		}
		w := e.AsFloat64()
		if math.IsNaN(w) || w < 0 {
			return mongoerr.Newf(9460300, "$rankFusion's weight must be non-negative, but is %s", expr.Show(e))
		}
		s.weights[i] = w
	}
	return nil
}

func (s *rankStage) Name() string      { return "$rankFusion" }
func (s *rankStage) Spec() value.Value { return s.arg }
func (s *rankStage) open(x *exec, src Source) (Source, error) {
	return &lazySource{src: src, fill: func(ctx context.Context) ([]Doc, error) { return s.fuse(ctx, x, src) }}, nil
}

// fused is a document of the output: its rank in each pipeline, 0 where a pipeline does not give it.
type fused struct {
	doc   Doc
	id    value.Value
	ranks []int32
	score float64
}

func (s *rankStage) fuse(ctx context.Context, x *exec, src Source) ([]Doc, error) {
	var in []Doc
	for {
		d, ok, err := src.Next(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		in = append(in, d.clone())
	}
	byID := map[string]*fused{}
	var all []*fused
	for i, p := range s.pipes {
		if err := s.rank(ctx, x, i, p, in, byID, &all); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(a, b *fused) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return value.Compare(a.id, b.id)
	})
	out := make([]Doc, len(all))
	for i, a := range all {
		m := &Meta{Score: value.NewDouble(a.score)}
		if s.details {
			m.ScoreDetails = s.explain(a)
		}
		out[i] = Doc{Raw: a.doc.Raw, Meta: m}
	}
	return out, nil
}

// rank runs one pipeline and adds its part to the scores. Documents that sort alike have one rank; the next one counts
// them all.
func (s *rankStage) rank(ctx context.Context, x *exec, i int, p *Pipeline, in []Doc, byID map[string]*fused, all *[]*fused) error {
	var src Source = &sliceSource{docs: in}
	var by *sortkey.Pattern
	for _, st := range p.stages {
		if so, ok := st.(*sortStage); ok {
			by = so.pattern
		}
		var err error
		if src, err = st.open(&exec{opts: p.opts, host: x.host}, src); err != nil {
			return err
		}
	}
	defer src.Close()
	var last, key []value.Value
	rank := int32(0)
	for n := int32(1); ; n++ {
		d, ok, err := src.Next(ctx)
		if err != nil || !ok {
			return err
		}
		d = d.clone()
		if key, err = by.Key(nil, d.Raw, d.Meta.Meta); err != nil {
			return err
		}
		if last == nil || by.Compare(last, key) != 0 {
			rank = n
		}
		last = key
		id := value.Lookup(d.Raw, "_id")
		k := string(value.AppendGroupKey(nil, id, nil))
		f := byID[k]
		if f == nil {
			f = &fused{doc: d, id: id, ranks: make([]int32, len(s.pipes))}
			byID[k] = f
			*all = append(*all, f)
		}
		f.ranks[i] = rank
		f.score += s.weights[i] * (1 / float64(rankConstant+rank))
	}
}

// explain is the scoreDetails metadata of a document.
func (s *rankStage) explain(a *fused) value.Value {
	var details []value.Value
	for i, r := range a.ranks {
		if r == 0 {
			details = append(details, doc(f("inputPipelineName", str(s.names[i])), f("rank", str("NA"))))
			continue
		}
		details = append(details, doc(f("inputPipelineName", str(s.names[i])), f("rank", value.NewInt32(r)),
			f("weight", value.NewDouble(s.weights[i])), f("details", array())))
	}
	return doc(f("value", value.NewDouble(a.score)),
		f("description", str("value output by reciprocal rank fusion algorithm, computed as sum of (weight * (1 / (60 + rank))) across "+
			"input pipelines from which this document is output, from:")),
		f("details", array(details...)))
}
