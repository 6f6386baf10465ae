package agg

import (
	"context"

	"github.com/shoaldb/shoal/query/sortkey"
	"github.com/shoaldb/shoal/query/value"
)

func init() {
	register("$rankFusion", rules{hybrid: true, noView: true, traits: Selects}, one(parseRankFusion))
}

// rankConstant is the constant of reciprocal rank fusion: a document of rank r scores weight/(60+r).
const rankConstant = 60

// rankStage is $rankFusion: several ranked selections of one collection, fused by their ranks.
type rankStage struct{ fusion }

func parseRankFusion(o *Options, v value.Value) (*rankStage, error) {
	s := &rankStage{fusion{name: "$rankFusion", rules: fusionRules{
		empty: 9834300, changes: 9191103, rejected: 9191100,
		rejectedText: "must begin with a ranked stage or contain a $sort",
		fits: func(k string, first bool, _ value.Value) bool {
			return k == "$sort" || first && (k == "$search" || k == "$vectorSearch")
		},
	}}}
	return s, s.parse(o, v)
}

func (s *rankStage) open(x *exec, src Source) (Source, error) {
	return &lazySource{src: src, fill: func(ctx context.Context) ([]Doc, error) { return s.fuse(ctx, x) }}, nil
}

func (s *rankStage) fuse(ctx context.Context, x *exec) ([]Doc, error) {
	pool := s.newPool(x)
	for i := range s.inputs {
		if err := s.rank(ctx, x, i, pool); err != nil {
			return nil, err
		}
	}
	for _, f := range pool.all {
		for i, p := range f.parts {
			if p.rank > 0 {
				f.score += s.weights[i] * (1 / float64(rankConstant+p.rank))
			}
		}
	}
	if !s.details {
		return pool.documents(nil), nil
	}
	return pool.documents(s.explain), nil
}

// byDistance is the order of a $geoNear.
var byDistance = func() *sortkey.Pattern {
	p, err := sortkey.Parse(value.Doc(f("distance", doc(f("$meta", str("geoNearDistance"))))), nil)
	if err != nil {
		return nil
	}
	return p
}()

// order returns what an input pipeline sorts by: its last $sort, else the distance.
func (s *rankStage) order(i int) *sortkey.Pattern {
	by := byDistance
	for _, st := range s.parsed[i].stages {
		if so, ok := st.(*sortStage); ok {
			by = so.pattern
		}
	}
	return by
}

// rank runs one pipeline and records the ranks. Documents with equal sort keys have the same rank; the next rank counts all of them.
func (s *rankStage) rank(ctx context.Context, x *exec, i int, pool *pool) error {
	by := s.order(i)
	var last []value.Value
	rank, n := int32(0), int32(0)
	return s.each(ctx, x, i, func(d Doc) error {
		n++
		key, err := by.Key(nil, d.Raw, d.Meta.Meta)
		if err != nil {
			return err
		}
		if last == nil || by.Compare(last, key) != 0 {
			rank = n
			last = last[:0]
			for _, k := range key {
				last = append(last, k.Clone())
			}
		}
		p, err := pool.add(d, i)
		if err != nil {
			return err
		}
		p.rank = rank
		if score := d.Meta.Meta("score"); score.T.Numeric() {
			p.raw, p.scored = score.AsFloat64(), true
		}
		if s.details {
			p.details = d.Meta.Meta("scoreDetails").Clone()
		}
		return nil
	})
}

// explain returns the scoreDetails metadata of a document.
func (s *rankStage) explain(a *fused) value.Value {
	var details []value.Value
	for i, p := range a.parts {
		if p.rank == 0 {
			details = append(details, doc(f("inputPipelineName", str(s.names[i])), f("rank", str("NA"))))
			continue
		}
		fs := []value.Field{f("inputPipelineName", str(s.names[i])), f("rank", value.NewInt32(p.rank)), f("weight", value.NewDouble(s.weights[i]))}
		if p.scored {
			fs = append(fs, f("value", value.NewDouble(p.raw)))
		}
		details = append(details, doc(append(fs, p.inherited()...)...))
	}
	return doc(f("value", value.NewDouble(a.score)),
		f("description", str("value output by reciprocal rank fusion algorithm, computed as sum of (weight * (1 / (60 + rank))) across "+
			"input pipelines from which this document is output, from:")),
		f("details", array(details...)))
}

// inherited returns the fields that a pipeline's own scoreDetails contribute to those of the fusion.
func (p *part) inherited() (out []value.Field) {
	inner := value.Doc()
	if p.details.T == value.Document {
		inner = p.details.Doc()
	}
	if d := value.Lookup(inner, "description"); d.T != value.Missing {
		out = append(out, f("description", d))
	}
	d := value.Lookup(inner, "details")
	if d.T != value.Array {
		d = array()
	}
	return append(out, f("details", d))
}
