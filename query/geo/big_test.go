package geo

import (
	"errors"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// star is a ring of n points that alternate between two radii.
func star(n int, x, y, radius float64) value.Value {
	var at []float64
	for i := range n {
		a, r := 2*math.Pi*float64(i)/float64(n), radius*(1-0.2*float64(i%2))
		at = append(at, x+r*math.Cos(a), y+r*math.Sin(a))
	}
	return path(append(at, at[0], at[1])...)
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestBigShapes: shapes of many edges take time that grows little faster than they do.
func TestBigShapes(t *testing.T) {
	const n = 10_000
	geometry := func(v value.Value) value.Value { return doc(value.F("$geometry", v)) }
	big := shape("Polygon", list(star(n, 0, 0, 10)))
	for _, c := range []struct {
		name     string
		op       string
		query, v value.Value
		want     bool
	}{
		{"point", "$geoWithin", big, pair(1, 1), true}, {"point outside", "$geoWithin", big, pair(20, 1), false},
		{"polygon", "$geoWithin", big, shape("Polygon", list(star(n, 0, 0, 5))), true},
		{"polygon meets", "$geoIntersects", big, shape("Polygon", list(star(n, 3, 3, 5))), true},
		{"polygon apart", "$geoIntersects", big, shape("Polygon", list(star(n, 30, 3, 5))), false},
		{"line", "$geoWithin", big, shape("LineString", star(n, 0, 0, 5)), true},
		{"lines meet", "$geoIntersects", shape("LineString", star(n, 0, 0, 10)), shape("LineString", star(n, 0, 0, 5)), false},
		{"points", "$geoWithin", big, shape("MultiPoint", star(n, 0, 0, 5)), true},
		{"points meet", "$geoIntersects", shape("LineString", star(n, 0, 0, 10)), shape("MultiPoint", star(n, 0, 0, 5)), false},
		{"same", "$geoWithin", big, big, true}, {"same meets", "$geoIntersects", big, big, true},
	} {
		before := cpu()
		q, err := ParseQuery(c.op, geometry(c.query), nil)
		if err != nil {
			t.Fatal(c.name, err)
		}
		got, err := q.Matches(c.v, nil)
		if got != c.want || err != nil {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
		took := cpu() - before
		if t.Logf("%s: %v of CPU", c.name, took); took > 5*time.Second {
			t.Errorf("%s took %v of CPU", c.name, took)
		}
	}
}

// TestBigShapesStop: parsing a shape ends when the work has to stop.
func TestBigShapesStop(t *testing.T) {
	_, err := ParseQuery("$geoWithin", doc(value.F("$geometry", shape("Polygon", list(star(20_000, 0, 0, 10))))), &value.Pace{Work: stopped{}})
	if err != errStopped {
		t.Error(err)
	}
}

type stopped struct{}

var errStopped = errors.New("stopped")

func (stopped) Check() error { return errStopped }
