package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
)

// A time series collection is a view on its buckets, and the collection of the buckets is what is sharded, or placed on a shard. Reads are
// executed as on any other view (aggregateOnView). Commands that write are sent under the name of the buckets, with isTimeseriesNamespace:
// documents and statements are still those of measurements.

// placingOf returns the rules by which measurements are placed in the buckets of a collection.
func placingOf(buckets *cluster.CollectionInfo) *timeseries.Placing {
	p := timeseries.ParsePlacing(value.LookupDoc(buckets.Entry, "timeseriesFields"))
	return &p
}

// freshBuckets returns the placement of the buckets of a collection as it is now; nil if the collection is not a time series, or if its buckets have no entry in the
// catalog.
func (r *Router) freshBuckets(op *command.Op, info *cluster.CollectionInfo) (*cluster.CollectionInfo, error) {
	if info.Map != nil || info.DB.Version.IsFixed() {
		return nil, nil
	}
	ns := timeseries.BucketsOf(info.NS)
	r.Catalog.InvalidateCollection(ns)
	b, err := r.collection(op, ns)
	if err != nil || b.Map == nil {
		return nil, err
	}
	return b, nil
}

// unpackingView returns the definition of the view that a time series collection is.
func unpackingView(buckets *cluster.CollectionInfo, options []byte) []byte {
	_, coll := cluster.SplitNS(buckets.NS)
	var f []value.Field
	for _, name := range []string{"timeField", "metaField", "bucketMaxSpanSeconds"} {
		f = append(f, value.F(name, value.Lookup(options, name)))
	}
	stage := value.Doc(value.F("$_internalUnpackBucket", value.NewDocument(value.Doc(f...))))
	return value.Doc(value.F("viewOn", value.NewString(coll)), value.F("pipeline", value.NewArray(value.ArrayOf(value.NewDocument(stage)))))
}

// onBuckets returns a command on a time series collection as one that names the buckets.
func onBuckets(body []byte, buckets *cluster.CollectionInfo) []byte {
	_, coll := cluster.SplitNS(buckets.NS)
	dst, mark := value.Begin(make([]byte, 0, len(body)+64))
	first := true
	for it := value.Walk(body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		switch {
		case first:
			dst, first = value.Append(dst, string(k), value.NewString(coll)), false
		case string(k) != "isTimeseriesNamespace":
			dst = append(dst, raw...)
		}
	}
	return value.End(value.Append(dst, "isTimeseriesNamespace", value.NewBool(true)), mark)
}

// maxSpanMS is the longest time span that buckets can have, a year. A collection's own may have been changed since this router read it.
const maxSpanMS = 31536000_000

// targetSeries returns the shards that may have buckets with a filter's matches.
func targetSeries(buckets *cluster.CollectionInfo, p *timeseries.Placing, filter []byte, collated bool) ([]string, error) {
	return target(buckets, timeseries.ShardFilter(p.Fields, maxSpanMS, filter), collated)
}

// unpackedMatch returns a filter on buckets for a pipeline that begins with unpacking them; nil if it begins otherwise, or if nothing
// about the buckets follows from its stages.
func unpackedMatch(pipeline value.Value) []byte {
	var spec []byte
	var terms []value.Value
	for i, st := range value.Values(pipeline.Doc()) {
		if i == 0 {
			if spec = value.LookupDoc(st.Doc(), "$_internalUnpackBucket"); spec == nil {
				return nil
			}
			continue
		}
		m := value.Lookup(st.Doc(), "$match")
		if m.T != value.Document {
			break
		}
		terms = append(terms, m)
	}
	if len(terms) == 0 {
		return nil
	}
	f := timeseries.NewFields(value.Lookup(spec, "timeField").Str(), value.Lookup(spec, "metaField").Str())
	return timeseries.ShardFilter(f, value.SafeInt64(value.Lookup(spec, "bucketMaxSpanSeconds"))*1000,
		value.Doc(value.F("$and", value.NewArray(value.ArrayOf(terms...)))))
}

// aimSeries targets a statement on measurements. One that removes a single measurement is sent to one shard after another, until one has
// executed it.
func (b *writeBatch) aimSeries(buckets *cluster.CollectionInfo, st []byte) (aim, error) {
	if !buckets.Sharded() {
		return aim{shards: []string{buckets.Home()}, doc: st}, nil
	}
	if b.list == "documents" {
		var room [4]value.Value
		key, err := buckets.Map.Key.FromDocument(b.series.Head(st), room[:0])
		if err != nil {
			return aim{}, err
		}
		shard, err := ownerOf(buckets, key)
		return aim{shards: []string{shard}, doc: st}, err
	}
	shards, err := targetSeries(buckets, b.series, value.LookupDoc(st, "q"), collatedBy(buckets, value.LookupDoc(st, "collation")))
	if err != nil {
		return aim{}, err
	}
	one := !value.Lookup(st, "multi").Truthy()
	if b.list == "deletes" {
		n, ok := value.Lookup(st, "limit").AsInt64()
		one = ok && n == 1
	} else if one {
		shards = shards[:1] // which refuses it
	}
	return aim{shards: shards, search: one && len(shards) > 1, doc: st}, nil
}

// sendInTurn sends a statement that concerns one measurement to one shard after another, until one has executed it.
func (b *writeBatch) sendInTurn(buckets *cluster.CollectionInfo, i int, a aim) error {
	shard, err := b.r.executedOn(b.op, a.shards, b.stmtID(i))
	if err != nil {
		return b.settle(&shardReply{err: err}, []int{i})
	}
	if shard != "" {
		return b.sendGroup(buckets, shard, []int{i}, a.doc)
	}
	for _, shard := range a.shards {
		before := b.n
		if err := b.sendGroup(buckets, shard, []int{i}, a.doc); err != nil {
			return err
		}
		if b.n > before || b.errs[i] != nil || b.stale != nil {
			return nil
		}
	}
	return nil
}

// modifySeries runs a findAndModify on a time series collection.
func (r *Router) modifySeries(op *command.Op, buckets *cluster.CollectionInfo, dst []byte) ([]byte, error) {
	body, shards := onBuckets(op.Req.Body, buckets), []string{buckets.Home()}
	if buckets.Sharded() {
		var err error
		shards, err = targetSeries(buckets, placingOf(buckets), op.Req.Doc("query"), collatedBy(buckets, op.Req.Doc("collation")))
		if err != nil {
			return dst, err
		}
	}
	if len(shards) > 1 {
		shard, err := r.executedOn(op, shards, op.Req.StatementID(0))
		if err != nil {
			return dst, err
		}
		if shard != "" {
			shards = []string{shard}
		}
	}
	from := len(dst)
	for i, shard := range shards {
		out, err := r.relay(op, shard, body, buckets.Suffix(shard), dst[:from])
		if err != nil || i == len(shards)-1 || matchedOne(out[from-4:]) {
			return out, err
		}
	}
	return dst, nil
}

// statsOfSeries makes an aggregate that begins with $collStats and names a time series collection run on the shards that have its buckets: the view
// itself has no statistics. The stage reports buckets under the collection's name.
func (r *Router) statsOfSeries(op *command.Op, a *aggCommand) error {
	stages := value.Walk(a.pipeline.Doc())
	_, first, ok := stages.Next()
	if a.pipeline.T != value.Array || !ok || first.T != value.Document || value.Lookup(first.Doc(), "$collStats").IsMissing() {
		return nil
	}
	info, err := r.collection(op, a.ns)
	if err != nil {
		return err
	}
	buckets, err := r.freshBuckets(op, info)
	if err != nil || buckets == nil {
		return err
	}
	_, coll := cluster.SplitNS(buckets.NS)
	dst, mark := value.Begin(make([]byte, 0, len(a.body)+32))
	for k, v := range value.Elements(a.body) {
		if k == "aggregate" {
			v = value.NewString(coll)
		}
		dst = value.Append(dst, k, v)
	}
	a.as, a.ns, a.body = a.ns, buckets.NS, value.End(dst, mark)
	return nil
}
