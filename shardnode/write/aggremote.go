package write

import (
	"context"
	"encoding/hex"

	"github.com/shoaldb/shoal/cluster"
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
	if spec.TimeSeries != nil || namespace.SeriesOf(w.writer.Engine.Catalog(), spec.NS.String()) != nil {
		return nil, command.NotImplemented("$out to a time-series collection on a member that is not primary")
	}
	target, err := w.writer.outTarget(spec)
	if err != nil {
		return nil, err
	}
	id := cluster.NewObjectID()
	o := &remoteOut{primaryWrites: p, to: spec.NS.String(), temp: "tmp.agg_out." + hex.EncodeToString(id[:])}
	return o, o.create(w.Op, target)
}

// primaryWrites collects the documents or statements of a command to the primary.
type primaryWrites struct {
	w     *Command
	db    string
	batch []byte
	n     int
}

func (p *primaryWrites) add(doc []byte) (full bool) {
	p.batch = value.AppendIndex(p.batch, p.n, value.NewDocument(doc))
	p.n++
	return p.n == remoteBatch || len(p.batch) > command.MaxBSONSize/2
}

// send sends what was collected as the list argument of a command, together with other arguments.
func (p *primaryWrites) send(ctx context.Context, name, coll, list string, more ...value.Field) ([]byte, error) {
	if p.n == 0 {
		return nil, nil
	}
	arr, m := value.Begin(nil)
	arr = value.End(append(arr, p.batch...), m)
	p.batch, p.n = p.batch[:0], 0
	if p.w.bypass {
		more = append(more, value.F("bypassDocumentValidation", value.NewBool(true)))
	}
	return p.run(ctx, p.db, append([]value.Field{value.F(name, value.NewString(coll)), value.F(list, value.NewArray(arr))}, more...)...)
}

// run makes the primary run a command with the aggregate's write concern.
func (p *primaryWrites) run(ctx context.Context, db string, cmd ...value.Field) ([]byte, error) {
	if wc := p.w.Op.Req.AskedConcern().Doc; wc != nil {
		cmd = append(cmd, value.F("writeConcern", value.NewDocument(wc)))
	}
	reply, err := p.w.writer.node.AskPrimary(ctx, value.Doc(append(cmd, value.F("$db", value.NewString(db)))...))
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
	to, temp string
}

// create makes the temporary collection with the target's options and indexes.
func (o *remoteOut) create(ctx context.Context, target *catalog.Collection) error {
	cmd := []value.Field{value.F("create", value.NewString(o.temp)), value.F("temp", value.NewBool(true))}
	var indexes []value.Value
	if target != nil {
		for k, v := range value.Elements(target.Options) {
			cmd = append(cmd, value.F(k, v))
		}
		for _, i := range target.Indexes {
			if !i.IsID {
				indexes = append(indexes, value.NewDocument(i.Spec.Raw))
			}
		}
	}
	if _, err := o.run(ctx, o.db, cmd...); err != nil || len(indexes) == 0 {
		return err
	}
	_, err := o.run(ctx, o.db, value.F("createIndexes", value.NewString(o.temp)), value.F("indexes", value.NewArray(value.ArrayOf(indexes...))))
	return err
}

func (o *remoteOut) Write(ctx context.Context, doc []byte, _ []value.Value) error {
	if o.add(doc) {
		_, err := o.send(ctx, "insert", o.temp, "documents")
		return err
	}
	return nil
}

func (o *remoteOut) Commit(ctx context.Context) error {
	if _, err := o.send(ctx, "insert", o.temp, "documents"); err != nil {
		return err
	}
	_, err := o.run(ctx, "admin", value.F("renameCollection", value.NewString(o.db+"."+o.temp)), value.F("to", value.NewString(o.to)),
		value.F("dropTarget", value.NewBool(true)))
	return err
}

// Abort drops the temporary collection; if it cannot, the next primary does.
func (o *remoteOut) Abort(ctx context.Context) {
	_, _ = o.run(context.WithoutCancel(ctx), o.db, value.F("drop", value.NewString(o.temp)))
}

// remoteMerge is $merge: each document becomes a statement of an update.
type remoteMerge struct {
	*primaryWrites
	m *mergeWriter
}

func (r *remoteMerge) Write(ctx context.Context, doc []byte, let []value.Value) error {
	m := r.m
	doc, filter, err := m.identify(doc)
	if err != nil {
		return err
	}
	st := []value.Field{value.F("q", value.NewDocument(filter)), value.F("u", m.spec.Change(doc)), value.F("collation", collationValue(m.coll)),
		value.F("upsert", value.NewBool(m.spec.WhenNotMatched == "insert"))}
	if m.spec.WhenMatched == "pipeline" {
		c := []value.Field{value.F("new", value.NewDocument(doc))}
		for i, name := range m.lets {
			if name != "new" {
				c = append(c, value.F(name, let[i]))
			}
		}
		st = append(st, value.F("c", value.NewDocument(value.Doc(c...))))
		if m.spec.WhenNotMatched == "insert" {
			st = append(st, value.F("upsertSupplied", value.NewBool(true)))
		}
	}
	full := r.add(value.Doc(st...))
	if m.spec.WhenMatched != "fail" && m.spec.WhenNotMatched != "fail" {
		if full {
			return r.flush(ctx, nil)
		}
		return nil
	}
	return r.flush(ctx, doc) // the result for each document matters
}

// flush sends the statements; of a single one it checks the result.
func (r *remoteMerge) flush(ctx context.Context, doc []byte) error {
	let := []value.Field{value.F("ordered", value.NewBool(false))}
	if v := r.m.w.Op.Req.Doc("let"); v != nil {
		let = append(let, value.F("let", value.NewDocument(v)))
	}
	_, coll := cluster.SplitNS(r.m.ns)
	reply, err := r.send(ctx, "update", coll, "updates", let...)
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

// Abort keeps what was merged, as documented.
func (r *remoteMerge) Abort(context.Context) {}
