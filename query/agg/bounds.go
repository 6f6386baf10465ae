package agg

import (
	"sort"
	"time"

	"github.com/shoaldb/shoal/query/agg/accum"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// bounds is the window of a window function: by position (documents), or by the value of the sort field (range).
type bounds struct {
	given  bool // a window was specified
	byVal  bool
	lo, hi bound
	unit   string
}

type bound struct {
	unbounded bool
	current   bool
	n         int64       // number of documents
	v         value.Value // range
}

func parseBounds(v value.Value) (*bounds, error) {
	b := &bounds{lo: bound{unbounded: true}, hi: bound{unbounded: true}}
	if v.T == value.Missing {
		return b, nil
	}
	if v.T != value.Document {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "'window' field must be an object, but found %s", v.T.Name())
	}
	b.given = value.Count(v.Doc()) > 0
	var docs, rng, unit value.Value
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "documents":
			docs = e
		case "range":
			rng = e
		case "unit":
			unit = e
		default:
			return nil, mongoerr.Newf(mongoerr.FailedToParse, "'window' field that contains an unknown field: %s", k)
		}
	}
	switch {
	case docs.T != value.Missing && rng.T != value.Missing:
		return nil, mongoerr.New(mongoerr.FailedToParse, "Window bounds can specify either 'documents' or 'range', not both.")
	case unit.T != value.Missing && rng.T == value.Missing:
		return nil, mongoerr.New(mongoerr.FailedToParse, "Window bounds can only specify 'unit' with range-based bounds.")
	case unit.T != value.Missing:
		if unit.T != value.String {
			return nil, mongoerr.New(mongoerr.FailedToParse, "'unit' must be a string")
		}
		if b.unit = unit.Str(); !validUnit(b.unit) {
			return nil, mongoerr.Newf(mongoerr.FailedToParse, "unknown time unit value: %s", b.unit)
		}
	}
	if rng.T != value.Missing {
		b.byVal = true
		return b, b.pair(rng)
	}
	if docs.T != value.Missing {
		return b, b.pair(docs)
	}
	return b, nil
}

func validUnit(u string) bool {
	switch u {
	case "year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond":
		return true
	}
	return false
}

func (b *bounds) pair(v value.Value) error {
	if v.T != value.Array || value.Count(v.Doc()) != 2 {
		return mongoerr.New(mongoerr.FailedToParse, "Window bounds must be a 2-element array")
	}
	two := value.Values(v.Doc())
	var err error
	if b.lo, err = b.one(two[0]); err != nil {
		return err
	}
	if b.hi, err = b.one(two[1]); err != nil {
		return err
	}
	if b.lo.unbounded || b.hi.unbounded {
		return nil
	}
	if value.Compare(b.lo.v, b.hi.v) > 0 {
		return mongoerr.Newf(5339900, "Lower bound must not exceed upper bound: %s", expr.Show(v))
	}
	return nil
}

func (b *bounds) one(v value.Value) (bound, error) {
	if v.T == value.String {
		switch v.Str() {
		case "unbounded":
			return bound{unbounded: true}, nil
		case "current":
			return bound{current: true, v: value.NewInt32(0)}, nil
		}
		return bound{}, mongoerr.New(mongoerr.FailedToParse, "Window bounds must be 'unbounded', 'current', or a number.")
	}
	if !v.T.Numeric() {
		return bound{}, mongoerr.New(mongoerr.FailedToParse, "Window bounds must be 'unbounded', 'current', or a number.")
	}
	n, ok := v.AsInt64()
	if !ok && (!b.byVal || b.unit != "") {
		return bound{}, mongoerr.Newf(mongoerr.FailedToParse, "Numeric bounds must be an integer: %s", expr.Show(v))
	}
	return bound{n: n, v: v}, nil
}

// check applies the rules on what a window requires of sortBy.
func (b *bounds) check(s *windowStage) error {
	switch {
	case b.byVal:
		if s.sort == nil || len(s.sort.Parts) != 1 {
			return mongoerr.New(5339902, "Range-based bounds require a sortBy a single field")
		}
		if s.sort.Parts[0].Sign < 0 {
			return mongoerr.New(8947401, "Range-based bounds require an ascending sortBy")
		}
	case (!b.lo.unbounded || !b.hi.unbounded) && !s.ordered:
		return mongoerr.New(5339901, "Document-based bounds require a sortBy")
	}
	return nil
}

// window returns document i's window: the documents from lo, inclusive, to hi, exclusive.
func (b *bounds) window(p *partition, i int) (lo, hi int, err error) {
	if err := p.frame.Check(); err != nil {
		return 0, 0, err
	}
	if b.byVal {
		return b.valueWindow(p, i)
	}
	lo, hi = 0, p.docs.len()
	if !b.lo.unbounded {
		lo = int(min(max(int64(i)+b.lo.n, 0), int64(hi)))
	}
	if !b.hi.unbounded {
		hi = int(min(max(int64(i)+b.hi.n+1, 0), int64(hi)))
	}
	return lo, max(lo, hi), nil
}

// each computes a result from the values of an expression in each document's window: those from lo, inclusive, to hi, exclusive.
func (b *bounds) each(p *partition, e *expr.Expr, result func(in []value.Value, lo, hi int) (value.Value, error)) ([]value.Value, error) {
	in, err := p.values(e)
	if err != nil {
		return nil, err
	}
	out := make([]value.Value, len(in))
	for i := range in {
		lo, hi, err := b.window(p, i)
		if err != nil {
			return nil, err
		}
		if out[i], err = result(in, lo, hi); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (b *bounds) valueWindow(p *partition, i int) (lo, hi int, err error) {
	v := p.keys[i][0]
	switch {
	case b.unit != "" && v.T != value.DateTime:
		return 0, 0, mongoerr.Newf(5429513, "Invalid range: Expected the sortBy field to be a Date, but it was %s", v.T.Name())
	case b.unit == "" && !v.T.Numeric():
		return 0, 0, mongoerr.Newf(5429414, "Invalid range: Expected the sortBy field to be a number, but it was %s", v.T.Name())
	}
	lo, hi = 0, p.docs.len()
	if !b.lo.unbounded {
		edge := b.shift(v, b.lo)
		lo = sort.Search(p.docs.len(), func(j int) bool { return value.Compare(p.keys[j][0], edge) >= 0 })
	}
	if !b.hi.unbounded {
		edge := b.shift(v, b.hi)
		hi = sort.Search(p.docs.len(), func(j int) bool { return value.Compare(p.keys[j][0], edge) > 0 })
	}
	return lo, max(lo, hi), nil
}

func (b *bounds) shift(v value.Value, by bound) value.Value {
	if by.current {
		return v
	}
	if b.unit != "" {
		return value.NewDateTime(addUnit(v.DateTime(), b.unit, by.n))
	}
	var t accum.Total
	t.Add(v)
	t.Add(by.v)
	return t.Value()
}

// unitMillis is the length of the units whose length is fixed.
var unitMillis = map[string]int64{
	"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000,
}

// addUnit adds n units to a time; days beyond a month's end become its last.
func addUnit(ms int64, unit string, n int64) int64 {
	if f, ok := unitMillis[unit]; ok {
		return ms + n*f
	}
	months := n
	switch unit {
	case "quarter":
		months = 3 * n
	case "year":
		months = 12 * n
	}
	t := time.UnixMilli(ms).UTC()
	first := time.Date(t.Year(), t.Month()+time.Month(months), 1, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
	last := first.AddDate(0, 1, -1).Day()
	return first.AddDate(0, 0, min(t.Day(), last)-1).UnixMilli()
}
