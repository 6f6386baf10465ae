package write

import (
	"context"
	"encoding/hex"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// On a secondary, a pipeline that ends in $out or $merge reads the member's own data and writes to the primary, with
// the same commands as clients.

// remoteBatch is the maximum number of documents in a command to the primary.
const remoteBatch = 1000

// newRemoteWriter is Output on a secondary.
func newRemoteWriter(w *Command, spec agg.WriteSpec, coll *collation.Spec) (agg.Writer, error) {
	p := &primaryWrites{w: w, db: spec.NS.DB}
	if spec.Stage == "$merge" {
		m, err := w.newMergeWriter(spec, coll)
		if err != nil {
			return nil, err
		}
		return &remoteMerge{primaryWrites: p, m: m}, nil
	}
	id := cluster.NewObjectID()
	o := &remoteOut{primaryWrites: p, spec: spec, temp: "tmp.agg_out." + hex.EncodeToString(id[:])}
	if spec.TimeSeries != nil || namespace.SeriesOf(w.writer.Engine.Catalog(), spec.NS.String()) != nil {
		o.series = true
		return o, o.create(w.Op, nil)
	}
	target, err := w.writer.outTarget(spec)
	if err != nil {
		return nil, err
	}
	o.target = namespace.TargetOf(target)
	return o, o.create(w.Op, target)
}

// primaryWrites sends commands to the primary.
type primaryWrites struct {
	w  *Command
	db string
}

// run makes the primary run a command, with further elements and the aggregate's write concern.
func (p *primaryWrites) run(ctx context.Context, m msg.Message, elements ...byte) ([]byte, error) {
	if wc := p.w.Op.Req.AskedConcern().Doc; wc != nil {
		elements = value.Append(slices.Clip(elements), "writeConcern", value.NewDocument(wc))
	}
	reply, err := p.w.writer.node.AskPrimary(ctx, msg.With(m, elements))
	if err != nil {
		return nil, err
	}
	for _, e := range value.Values(value.Lookup(reply, "writeErrors").Doc()) {
		return nil, mongoerr.New(mongoerr.Code(value.SafeInt64(value.Lookup(e.Doc(), "code"))), value.Lookup(e.Doc(), "errmsg").Str())
	}
	if e := cluster.WriteConcernErrorOf(reply); e != nil {
		p.w.Op.SetWriteConcernError(e)
	}
	return reply, nil
}

// remoteOut is $out: it fills a temporary collection that replaces the target at the end.
type remoteOut struct {
	*primaryWrites
	spec   agg.WriteSpec
	temp   string
	uuid   [16]byte // the temporary collection's: each step names it, so that none makes another collection of the name on a new primary
	target namespace.Target
	series bool   // the target is a time series collection, or becomes one
	batch  []byte // documents, as elements of an array
	n      int
}

// create makes the temporary collection with the target's options and indexes.
func (o *remoteOut) create(ctx context.Context, target *catalog.Collection) error {
	var indexes [][]byte
	var options []byte
	if target != nil {
		for k, v := range value.Elements(target.Options) {
			options = value.Append(options, k, v)
		}
		for _, i := range target.Indexes {
			if !i.IsID {
				indexes = append(indexes, i.Spec.Raw)
			}
		}
	}
	if _, err := o.run(ctx, &msg.Create{DB: o.db, Coll: o.temp, Temp: true}, options...); err != nil {
		return err
	}
	if err := o.findTemp(ctx); err != nil || len(indexes) == 0 {
		return err
	}
	return o.step(ctx, &msg.CreateIndexes{DB: o.db, Coll: o.temp, Indexes: indexes})
}

// findTemp finds the UUID of the temporary collection.
func (o *remoteOut) findTemp(ctx context.Context) error {
	list := &msg.ListCollections{DB: o.db, Filter: value.Doc(value.F("name", value.NewString(o.temp)))}
	reply, err := o.w.writer.node.AskPrimary(ctx, msg.Doc(list))
	if err != nil {
		return err
	}
	var ok bool
	if o.uuid, ok = msg.ListedUUID(reply); !ok {
		return o.spec.Interrupted()
	}
	return nil
}

// step makes the primary run a command on the temporary collection.
func (o *remoteOut) step(ctx context.Context, m msg.Message) error {
	_, err := o.run(ctx, m, value.Append(nil, "collectionUUID", value.NewBinary(4, o.uuid[:]))...)
	if mongoerr.CodeOf(err) == mongoerr.CollectionUUIDMismatch {
		err = o.spec.Interrupted()
	}
	return err
}

func (o *remoteOut) Write(ctx context.Context, doc []byte, _ []value.Value) error {
	o.batch = value.AppendIndex(o.batch, o.n, value.NewDocument(doc))
	if o.n++; o.n < remoteBatch && len(o.batch) <= command.MaxBSONSize/2 {
		return nil
	}
	return o.flush(ctx)
}

func (o *remoteOut) flush(ctx context.Context) error {
	if o.n == 0 {
		return nil
	}
	arr, m := value.Begin(nil)
	documents := value.End(append(arr, o.batch...), m)
	o.batch, o.n = o.batch[:0], 0
	return o.step(ctx, &msg.Insert{DB: o.db, Coll: o.temp, Documents: documents, Bypass: o.w.bypass})
}

func (o *remoteOut) Commit(ctx context.Context) error {
	if err := o.flush(ctx); err != nil {
		return err
	}
	if o.series {
		return o.commitSeries(ctx)
	}
	rename := &msg.RenameIfMatch{From: o.db + "." + o.temp, To: o.spec.NS.String()}
	rename.There, rename.Options, rename.Indexes = o.target.Described()
	_, err := o.run(ctx, rename)
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound { // an earlier version's primary does not know collectionUUID here; no step has made another collection of the name
		err = o.spec.Interrupted()
	}
	return err
}

// commitSeries has the primary put the documents into the buckets of a time series collection, which it replaces.
func (o *remoteOut) commitSeries(ctx context.Context) error {
	to := []value.Field{value.F("db", value.NewString(o.db)), value.F("coll", value.NewString(o.spec.NS.Coll))}
	if o.spec.TimeSeries != nil {
		to = append(to, value.F("timeseries", value.NewDocument(o.spec.TimeSeries)))
	}
	out := value.Doc(value.F("$out", value.NewDocument(value.Doc(to...))))
	err := o.step(ctx, &msg.Aggregate{DB: o.db, On: value.NewString(o.temp), Pipeline: value.ArrayOf(value.NewDocument(out)), Cursor: new(msg.Cursor)})
	o.Abort(ctx) // which drops the temporary collection
	return err
}

// Abort drops the temporary collection; if it cannot, the next primary does.
func (o *remoteOut) Abort(ctx context.Context) {
	_, _ = o.run(context.WithoutCancel(ctx), &msg.Drop{DB: o.db, Coll: o.temp})
}

// remoteMerge is $merge: each document becomes a statement of an update.
type remoteMerge struct {
	*primaryWrites
	m     *mergeWriter
	batch []msg.UpdateStatement
	size  int
}

func (r *remoteMerge) Write(ctx context.Context, doc []byte, let []value.Value) error {
	m := r.m
	doc, filter, err := m.identify(doc)
	if err != nil {
		return err
	}
	st := msg.UpdateStatement{Query: filter, Change: m.spec.Change(doc), Collation: collationValue(m.coll).Doc(), Upsert: m.spec.WhenNotMatched == "insert"}
	if m.spec.WhenMatched == "pipeline" {
		c := []value.Field{value.F("new", value.NewDocument(doc))}
		for i, name := range m.lets {
			if name != "new" {
				c = append(c, value.F(name, let[i]))
			}
		}
		st.Constants, st.UpsertSupplied = value.Doc(c...), st.Upsert
	}
	r.batch, r.size = append(r.batch, st), r.size+st.Size()
	if m.spec.WhenMatched != "fail" && m.spec.WhenNotMatched != "fail" {
		if len(r.batch) == remoteBatch || r.size > command.MaxBSONSize/2 {
			return r.flush(ctx, nil)
		}
		return nil
	}
	return r.flush(ctx, doc) // the result for each document matters
}

// flush sends the statements; of a single one it checks the result.
func (r *remoteMerge) flush(ctx context.Context, doc []byte) error {
	if len(r.batch) == 0 {
		return nil
	}
	_, coll := cluster.SplitNS(r.m.ns)
	update := &msg.Update{DB: r.db, Coll: coll, Updates: r.batch, Unordered: true, Bypass: r.w.bypass, Let: r.m.w.Op.Opened("let").Doc()}
	reply, err := r.run(ctx, update)
	r.batch, r.size = r.batch[:0], 0
	if err != nil || doc == nil {
		return err
	}
	var did result
	if ups := value.Values(value.Lookup(reply, "upserted").Doc()); len(ups) > 0 {
		did.upserted = value.Lookup(ups[0].Doc(), "_id")
	} else {
		did.matched = value.SafeInt64(value.Lookup(reply, "n"))
	}
	if err := r.m.checkResult(did, doc); err != nil && r.m.failed == nil {
		r.m.failed = err
	}
	return nil
}

func (r *remoteMerge) Commit(ctx context.Context) error {
	if err := r.flush(ctx, nil); err != nil {
		return err
	}
	return r.m.failed
}

// Abort does nothing: merged documents remain, as documented.
func (r *remoteMerge) Abort(context.Context) {}
