package namespace

import (
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
