package agg

import (
	"math"
	"slices"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// Each number lies between its neighbours of the series, at every magnitude, and between the last of a decade and the first of the next, too.
func TestGranularitiesRoundToNeighbours(t *testing.T) {
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*b }
	for _, name := range []string{"1-2-5", "R5", "R10", "R20", "R40", "R80", "E6", "E12", "E24", "E48", "E96", "E192"} {
		r, err := newRounder(name)
		if err != nil {
			t.Fatal(err)
		}
		var all []float64
		for e := -6; e <= 7; e++ {
			for _, s := range r.series {
				all = append(all, s*math.Pow(10, float64(e)))
			}
		}
		slices.Sort(all)
		for i := len(r.series); i < len(all)-len(r.series); i++ {
			x := math.Sqrt(all[i] * all[i+1])
			if got := r.down(value.NewDouble(x)).AsFloat64(); !near(got, all[i]) {
				t.Errorf("%s: %v is rounded down to %v, want %v", name, x, got, all[i])
			}
			if got := r.up(value.NewDouble(x)).AsFloat64(); !near(got, all[i+1]) {
				t.Errorf("%s: %v is rounded up to %v, want %v", name, x, got, all[i+1])
			}
		}
	}
	r, _ := newRounder("E12")
	for _, x := range []struct{ v, down, up float64 }{{760.4, 680, 820}, {820, 680, 1000}, {1000, 820, 1200}, {100, 82, 120}, {10, 8.2, 12}, {900, 820, 1000}} {
		if down, up := r.down(value.NewDouble(x.v)).AsFloat64(), r.up(value.NewDouble(x.v)).AsFloat64(); !near(down, x.down) || !near(up, x.up) {
			t.Errorf("E12: %v lies between %v and %v, want %v and %v", x.v, down, up, x.down, x.up)
		}
	}
}
