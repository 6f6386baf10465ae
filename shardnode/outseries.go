package shardnode

import (
	"bytes"

	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// $out to a time series collection fills the buckets of a temporary one, which take the place of the target's.

// newOutSeries opens the target of an $out that makes a time series collection or finds one in its place.
func (w *writeOp) newOutSeries(spec agg.WriteSpec, there *series) (*outWriter, error) {
	ns := spec.NS.String()
	opts, collation := (*tsOptions)(nil), []byte(nil)
	if spec.TimeSeries != nil {
		given, err := parseOutSeries(spec.TimeSeries)
		if err != nil {
			return nil, err
		}
		if err := w.n.checkOutSeries(ns, given, there); err != nil {
			return nil, err
		}
		opts = given
	}
	var indexes [][]byte
	if there != nil {
		opts, collation = there.opts, there.buckets.Collation
		for _, i := range there.buckets.Indexes {
			if !i.IsID {
				indexes = append(indexes, i.Spec.Raw)
			}
		}
	} else if idx := opts.defaultIndex(); idx != nil {
		indexes = [][]byte{idx}
	}
	id := NewObjectID()
	o := &outWriter{w: w, ns: ns, temp: spec.NS.DB + ".tmp.agg_out." + hex(id[:]), series: opts}
	c := &newNamespace{ns: bucketsOf(o.temp), ts: opts, options: collOptions{}}
	if there != nil {
		c.options = optionsOf(there.buckets.Options)
	}
	if collation != nil {
		c.options.set("collation", value.NewDocument(collation))
	}
	o.options, o.indexes = c.storedOptions(), indexes
	return o, o.create(c.ns)
}

// parseOutSeries reads $out's options, whose names are not compared with each other as those of create are.
func parseOutSeries(doc []byte) (*tsOptions, error) {
	f, err := parseFields("$out.timeseries", doc, tsFields)
	if err != nil {
		return nil, err
	}
	t := &tsOptions{timeField: f[0].Str(), metaField: f[1].Str(), granularity: f[2].Str()}
	if err := oneOf("$out.timeseries.granularity", f[2], "seconds", "minutes", "hours"); err != nil {
		return nil, err
	}
	return t, t.setSpan(f[3], f[4])
}

// checkOutSeries compares what stands in the target's place with the options that $out gives.
func (n *Node) checkOutSeries(ns string, given *tsOptions, there *series) error {
	if there != nil {
		if !bytes.Equal(there.opts.doc(), given.doc()) {
			return mongoerr.Newf(7406103, "Time field options of $out do not match those of the existing time-series collection %s", ns)
		}
		return nil
	}
	cat := n.Engine.Catalog()
	v, err := n.viewAt(cat, ns)
	if err == nil && (v != nil || cat.Lookup(ns) != nil) {
		err = mongoerr.Newf(7268700, "Cannot create a time-series collection from a non time-series collection or a view: %s", ns)
	}
	return err
}

// replaceSeries puts the temporary buckets in the place of the target's, and the view on them where there is none.
func (o *outWriter) replaceSeries() error {
	s := o.w.snapshot()
	defer s.Release()
	cat := s.Catalog()
	c := cat.Lookup(bucketsOf(o.temp))
	if c == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while $out wrote to it", o.temp)
	}
	if cat.Lookup(o.ns) != nil {
		return mongoerr.Newf(7268700, "%s was made a collection while $out wrote to it", o.ns)
	}
	v, err := viewFor(s, o.ns)
	if err != nil {
		return err
	}
	u := o.w.unit(s)
	defer u.Rollback()
	if _, err := u.RenameCollection(c, bucketsOf(o.ns), cat.Lookup(bucketsOf(o.ns)), false); err != nil {
		return err
	}
	if v == nil {
		v = &view{ns: o.ns, on: catalog.CollOf(bucketsOf(o.ns)), pipeline: value.NewArray(o.series.unpackStage()), collation: c.Collation}
		v.doc = v.makeDoc()
		if err := o.w.putView(u, s, v); err != nil {
			return err
		}
	}
	return o.w.commit(u, replication.Visible)
}

// create makes the temporary collection.
func (o *outWriter) create(ns string) error {
	w := o.w
	options := optionsOf(o.options)
	options.set("temp", value.NewBool(true))
	return w.retry(func() error {
		u := w.unit(nil)
		defer u.Rollback()
		c, err := u.CreateCollection(storage.CollectionSpec{NS: ns, Options: options.doc(), Unreplicated: catalog.Unreplicated(ns)})
		if err != nil {
			return err
		}
		if len(o.indexes) > 0 {
			if _, err := u.CreateIndexes(c, o.indexes); err != nil {
				return err
			}
		}
		return w.commit(u, replication.Visible)
	})
}

// tempNS is the namespace that holds what has been written.
func (o *outWriter) tempNS() string {
	if o.series != nil {
		return bucketsOf(o.temp)
	}
	return o.temp
}
