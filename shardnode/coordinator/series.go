package coordinator

import (
	"context"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The sharding catalog has an entry of a time series' collection of buckets, not of the time series itself. DDL commands name the time series, and change the
// buckets on all shards that have them; the view is on the primary shard of the database alone.

// lockedWithBuckets returns the names that an operation on a collection locks; the collection may be a time series.
func lockedWithBuckets(ns string) []string {
	if series, ok := timeseries.SeriesOf(ns); ok {
		return []string{ns, series}
	}
	return []string{ns, timeseries.BucketsOf(ns)}
}

// entryOf returns the catalog entry of a collection, or else that of its buckets if it is a time series, with the namespace of the entry.
func (m *Coordinators) entryOf(ctx context.Context, ns string) (at string, raw []byte, e *cluster.CollectionEntry, err error) {
	if raw, e, err = m.entry(ctx, ns); err != nil || e != nil {
		return ns, raw, e, err
	}
	if _, there := m.seriesAt(ns); !there {
		return ns, nil, nil, nil
	}
	at = timeseries.BucketsOf(ns)
	if raw, e, err = m.entry(ctx, at); e == nil {
		at = ns
	}
	return at, raw, e, err
}

// seriesAt returns the options of the time series collection with a name, as the primary shard of its database has them.
func (m *Coordinators) seriesAt(ns string) (*namespace.Series, bool) {
	t := namespace.SeriesOf(m.Engine.Catalog(), ns)
	return t, t != nil
}

// resolveSeries determines whether the collection to be sharded is a time series, or is to be created as one, and if so what its buckets and
// their shard key are.
func (s *shard) resolveSeries(r *run) error {
	s.at.Buckets, s.at.BucketKey = "", nil
	var opts *namespace.SeriesOptions
	if t, there := r.m.seriesAt(s.req.NS); there {
		opts = t.Options
	} else if b := r.m.Engine.Catalog().Lookup(s.req.NS); b != nil {
		if series, ok := timeseries.SeriesOf(s.req.NS); ok {
			return mongoerr.Newf(mongoerr.IllegalOperation, "the buckets of a time-series collection are sharded under its name: %s", series)
		}
		if s.req.TimeSeries != nil {
			return mongoerr.Newf(mongoerr.InvalidOptions, "the collection %s exists and is not a time-series collection", s.req.NS)
		}
	} else if s.req.TimeSeries != nil {
		t, err := namespace.ParseTimeseries(s.req.TimeSeries)
		if err != nil {
			return err
		}
		opts = t
	}
	if opts == nil {
		return nil
	}
	if s.req.Unique {
		return mongoerr.New(mongoerr.InvalidOptions, "the shard key of a time-series collection cannot be unique")
	}
	key := s.req.Key
	if !s.req.Unsplittable { // which has no shard key of its own
		var err error
		if key, err = seriesKey(opts, s.req.Key); err != nil {
			return err
		}
	}
	s.at.Buckets, s.at.BucketKey = timeseries.BucketsOf(s.req.NS), key
	return nil
}

// checkSeries compares the options of an existing time series collection, nil if it is none, with those in the request.
func (s *shard) checkSeries(have []byte) error {
	if s.req.TimeSeries == nil {
		return nil
	}
	t, err := namespace.ParseTimeseries(s.req.TimeSeries)
	if err == nil && value.CompareDocs(t.Doc(), have, nil) != 0 {
		err = mongoerr.Newf(mongoerr.InvalidOptions, "the time-series options of %s differ from those of the request: %s", s.req.NS, value.ShowDoc(have))
	}
	return err
}

// seriesKey translates a shard key of measurements to one of their buckets. It may consist of the metaField or fields of it, and of the
// timeField, which comes last and is ascending.
func seriesKey(t *namespace.SeriesOptions, key []byte) ([]byte, error) {
	if _, err := cluster.ParseShardKey(key); err != nil {
		return nil, err
	}
	var f []value.Field
	ended := false
	for k, v := range value.Elements(key) {
		if ended {
			return nil, mongoerr.Newf(mongoerr.InvalidOptions, "the time field of a time-series collection can only be the last field of its shard key: %s", t.TimeField)
		}
		at, ok := seriesField(t, k)
		if !ok {
			return nil, mongoerr.Newf(mongoerr.InvalidOptions, "the shard key of a time-series collection can only have fields of the metaField, and the timeField: %s", k)
		}
		if ended = k == t.TimeField; ended && v.T == value.String {
			return nil, mongoerr.New(mongoerr.InvalidOptions, "the time field of a time-series collection can only be ascending in its shard key")
		}
		f = append(f, value.F(at, v))
	}
	return value.Doc(f...), nil
}

// resolveSeries determines whether the collection to be resharded or moved is a time series, and if so translates the request to its buckets.
// The balancer reads names from the catalog, so it names the buckets itself.
func (s *reshard) resolveSeries(r *run) error {
	ns := s.req.NS
	if series, ok := timeseries.SeriesOf(ns); ok {
		if s.req.Provenance == msg.ReshardCollection {
			return mongoerr.Newf(mongoerr.IllegalOperation, "the buckets of a time-series collection are resharded under its name: %s", series)
		}
		ns = series
	}
	t, there := r.m.seriesAt(ns)
	if !there {
		return nil
	}
	s.at = msg.ReshardFound{Buckets: timeseries.BucketsOf(ns)}
	if s.req.Provenance != msg.ReshardCollection {
		return nil
	}
	user, err := cluster.ParseShardKey(s.req.Key)
	if err != nil {
		return err
	}
	if s.at.Key, err = seriesKey(t.Options, s.req.Key); err != nil {
		return err
	}
	s.at.Index = namespace.BucketIndexSpec(t.Options, value.Doc(value.F("v", value.NewInt32(2)), value.F("key", value.NewDocument(user.Doc())),
		value.F("name", value.NewString(user.IndexName()))))
	s.at.Zones, s.at.Ranges = seriesRanges(t.Options, s.req.Zones), seriesRanges(t.Options, s.req.Distribution)
	return nil
}

// seriesRanges translates the bounds of documents that have min and max from fields of measurements to those of their buckets.
func seriesRanges(t *namespace.SeriesOptions, ranges [][]byte) (out [][]byte) {
	if ranges != nil {
		out = make([][]byte, len(ranges))
	}
	for i, z := range ranges {
		out[i] = seriesZone(t, z)
	}
	return out
}

// seriesZone translates the bounds of a zone from fields of measurements to those of their buckets.
func seriesZone(t *namespace.SeriesOptions, zone []byte) []byte {
	var f []value.Field
	for k, v := range value.Elements(zone) {
		if (k == "min" || k == "max") && v.T == value.Document {
			v = value.NewDocument(seriesBound(t, v.Doc()))
		}
		f = append(f, value.F(k, v))
	}
	return value.Doc(f...)
}

// seriesBound translates a bound of shard keys. Fields that no key can have are kept, so that the error names them.
func seriesBound(t *namespace.SeriesOptions, bound []byte) []byte {
	var f []value.Field
	for k, v := range value.Elements(bound) {
		if at, ok := seriesField(t, k); ok {
			k = at
		}
		f = append(f, value.F(k, v))
	}
	return value.Doc(f...)
}

// seriesField returns the field of buckets for a field of measurements that a shard key may have.
func seriesField(t *namespace.SeriesOptions, name string) (string, bool) {
	if name == t.TimeField {
		return "control.min." + name, true
	}
	rest, ok := strings.CutPrefix(name, t.MetaField)
	return "meta" + rest, ok && t.MetaField != "" && (rest == "" || rest[0] == '.')
}
