package write

import (
	"bytes"
	"encoding/hex"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// $out to a time series collection fills the buckets of a temporary one, which then replace the target's.

// newOutSeries opens the target of an $out that creates or replaces a time series collection.
func (w *Command) newOutSeries(spec agg.WriteSpec, there *namespace.Series) (*outWriter, error) {
	ns := spec.NS.String()
	opts, collation := (*namespace.SeriesOptions)(nil), []byte(nil)
	if spec.TimeSeries != nil {
		given, err := parseOutSeries(spec.TimeSeries)
		if err != nil {
			return nil, err
		}
		if err := w.writer.checkOutSeries(ns, given, there); err != nil {
			return nil, err
		}
		opts = given
	}
	var indexes [][]byte
	if there != nil {
		opts, collation = there.Options, there.Buckets.Collation
		for _, i := range there.Buckets.Indexes {
			if !i.IsID {
				indexes = append(indexes, i.Spec.Raw)
			}
		}
	} else if idx := opts.DefaultIndex(); idx != nil {
		indexes = [][]byte{idx}
	}
	id := cluster.NewObjectID()
	o := &outWriter{w: w, ns: ns, temp: spec.NS.DB + ".tmp.agg_out." + hex.EncodeToString(id[:]), series: opts}
	options := namespace.Options{}
	if there != nil {
		o.target = namespace.TargetOf(there.Buckets)
		options = namespace.OptionsOf(there.Buckets.Options)
	}
	if collation != nil {
		options.Set("collation", value.NewDocument(collation))
	}
	o.options, o.indexes = opts.StoredOptions(options), indexes
	return o, o.create(timeseries.BucketsOf(o.temp))
}

// parseOutSeries reads $out's time series options. Unlike create's, their field names are not checked against each other.
func parseOutSeries(doc []byte) (*namespace.SeriesOptions, error) {
	f, err := command.ParseFields("$out.timeseries", doc, namespace.SeriesFields)
	if err != nil {
		return nil, err
	}
	t := &namespace.SeriesOptions{TimeField: f[0].Str(), MetaField: f[1].Str(), Granularity: f[2].Str()}
	if err := command.OneOf("$out.timeseries.granularity", f[2], "seconds", "minutes", "hours"); err != nil {
		return nil, err
	}
	return t, t.SetSpan(f[3], f[4])
}

// checkOutSeries compares an existing target with $out's options.
func (wr *Writer) checkOutSeries(ns string, given *namespace.SeriesOptions, there *namespace.Series) error {
	if there != nil {
		if !bytes.Equal(there.Options.Doc(), given.Doc()) {
			return mongoerr.Newf(7406103, "Time field options of $out do not match those of the existing time-series collection %s", ns)
		}
		return nil
	}
	cat := wr.Engine.Catalog()
	v, err := namespace.ViewAt(wr.Engine, cat, ns)
	if err == nil && (v != nil || cat.Lookup(ns) != nil) {
		err = mongoerr.Newf(7268700, "Cannot create a time-series collection from a non time-series collection or a view: %s", ns)
	}
	return err
}

// replaceSeries replaces the target's buckets by the temporary ones, and creates the view on them if there is
// none.
func (o *outWriter) replaceSeries() error {
	s := o.w.Snapshot()
	defer s.Release()
	cat := s.Catalog()
	c := cat.Lookup(timeseries.BucketsOf(o.temp))
	if c == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while $out wrote to it", o.temp)
	}
	if cat.Lookup(o.ns) != nil {
		return mongoerr.Newf(7268700, "%s was created while $out wrote to it", o.ns)
	}
	if err := o.target.Check(o.ns, cat.Lookup(timeseries.BucketsOf(o.ns))); err != nil {
		return err
	}
	v, err := namespace.ViewIn(s, o.ns)
	if err != nil {
		return err
	}
	u := o.w.Unit(s)
	defer u.Rollback()
	if _, err := u.RenameCollection(c, timeseries.BucketsOf(o.ns), cat.Lookup(timeseries.BucketsOf(o.ns)), false); err != nil {
		return err
	}
	o.w.AuditRename(u, c.NS, timeseries.BucketsOf(o.ns), cat.Lookup(timeseries.BucketsOf(o.ns)))
	if v == nil {
		v = &namespace.View{NS: o.ns, On: catalog.CollOf(timeseries.BucketsOf(o.ns)), Pipeline: value.NewArray(o.series.UnpackStage()), Collation: c.Collation}
		v.Doc = v.MakeDoc()
		o.w.AuditView(u, "createCollection", v)
		if err := o.w.PutView(u, s, v); err != nil {
			return err
		}
	}
	return o.w.Commit(u, replication.Visible)
}

// create creates the temporary collection.
func (o *outWriter) create(ns string) error {
	w := o.w
	options := namespace.OptionsOf(o.options)
	options.Set("temp", value.NewBool(true))
	return w.Retry(func() error {
		u := w.Unit(nil)
		defer u.Rollback()
		c, err := u.CreateCollection(storage.CollectionSpec{NS: ns, Options: options.Doc(), Unreplicated: catalog.Unreplicated(ns)})
		if err != nil {
			return err
		}
		w.AuditCreate(u, w.Catalog(), c)
		if len(o.indexes) > 0 {
			if _, err := u.CreateIndexes(c, o.indexes); err != nil {
				return err
			}
		}
		return w.Commit(u, replication.Visible)
	})
}

// tempNS returns the namespace of the temporary collection.
func (o *outWriter) tempNS() string {
	if o.series != nil {
		return timeseries.BucketsOf(o.temp)
	}
	return o.temp
}
