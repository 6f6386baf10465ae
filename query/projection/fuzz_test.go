package projection

import (
	"testing"

	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzProjection: no projection, of a find or a stage, may do worse than fail.
func FuzzProjection(f *testing.F) {
	names := []string{"$slice", "$elemMatch", "$meta", "a.$", "b.$", "$add", "$concat", "$literal", "$map", "input", "in", "as", "$gt", "b.c", "a.b.c", "a.x"}
	f.Fuzz(func(t *testing.T, in []byte) {
		g := valuetest.NewGenerator(in, names)
		spec := g.Value()
		o := func() *Options {
			return &Options{Expr: expr.NewScope(&expr.Env{NowMS: 1, Work: &valuetest.Budget{Left: 200}})}
		}
		var all []*Projection
		if spec.T == value.Document {
			if p, err := Compile(spec.Doc(), o()); err == nil {
				all = append(all, p)
			}
		}
		for _, stage := range []Stage{Project, AddFields, Unset} {
			if p, err := CompileStage(stage, spec, o()); err == nil {
				all = append(all, p)
			}
		}
		for _, p := range all {
			p.Deps()
			_ = p.Serialize()
			for _, d := range valuetest.Subjects() {
				if out, err := p.Apply(nil, d, nil); err == nil {
					valuetest.JSON(t, out)
				}
			}
		}
	})
}
