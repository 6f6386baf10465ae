package sortkey

import (
	"testing"

	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzSort: no sort specification may do worse than fail.
func FuzzSort(f *testing.F) {
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := Parse(valuetest.NewGenerator(in, []string{"$meta", "a.b", "b.c", "$natural", "a.0.b"}).Doc(), nil)
		if err != nil {
			return
		}
		_ = p.Spec()
		subjects := valuetest.Subjects()
		for i, d := range subjects {
			a, err := p.Key(nil, d, nil)
			if err != nil {
				continue
			}
			b, err := p.Key(nil, subjects[(i+1)%len(subjects)], nil)
			if err != nil {
				continue
			}
			if p.Compare(a, b) != -p.Compare(b, a) {
				t.Errorf("%v: keys of %d compare one way only", p.Spec(), i)
			}
		}
	})
}
