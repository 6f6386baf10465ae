package namespace

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// FindCollection finds a collection, or the buckets of a time series collection, whose options then are ts. A view is an
// error; nil, nil, nil means that there is nothing.
func FindCollection(s *storage.Snapshot, ns string) (c *catalog.Collection, ts *SeriesOptions, err error) {
	if c = s.Catalog().Lookup(ns); c != nil {
		return c, nil, nil
	}
	v, err := ViewIn(s, ns)
	if err != nil || v == nil {
		return nil, nil, err
	}
	if b := Buckets(s.Catalog(), ns); b != nil && v.IsTimeseries() {
		return b, SeriesOptionsOf(value.Lookup(b.Options, "timeseries").Doc()), nil
	}
	return nil, nil, NotOnView(ns)
}

// FindFor is FindCollection for a command: one with isTimeseriesNamespace names the buckets of a time series collection, but refers to
// the collection.
func FindFor(op *command.Op, s *storage.Snapshot, ns string) (c *catalog.Collection, ts *SeriesOptions, err error) {
	c, ts, err = FindCollection(s, ns)
	if c != nil && ts == nil && IsBuckets(ns) && op.Arg("isTimeseriesNamespace").Truthy() {
		ts = SeriesIn(c).Options
	}
	return c, ts, err
}
