package router

import (
	"bytes"
	"context"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// outWriter is $out: documents go to a temporary collection, which replaces the target at Commit.
type outWriter struct {
	h      *aggHost
	op     *command.Op // $out runs within one request
	w      agg.WriteSpec
	info   *cluster.CollectionInfo
	temp   string
	uuid   [16]byte // the temporary collection's: each step names it, so that none makes another collection of the name, or takes one that lacks what was written
	batch  []byte
	n      int
	exists bool
	series bool // the target is a time series collection, or becomes one
	// options and indexes are the target's, as listCollections and listIndexes show them; nil if there is none.
	options []byte
	indexes [][]byte
}

func newOutWriter(h *aggHost, op *command.Op, w agg.WriteSpec, info *cluster.CollectionInfo) (*outWriter, error) {
	id := cluster.NewUUID()
	o := &outWriter{h: h, op: op, w: w, info: info, temp: "tmp.agg_out." + hex.EncodeToString(id[:])}
	if err := o.create(); err != nil {
		return nil, err
	}
	return o, nil
}

// create creates the temporary collection with the target's options and indexes.
func (o *outWriter) create() error {
	db := o.w.NS.DB
	p, err := o.h.r.peer(o.op, o.info.DB.Primary)
	if err != nil {
		return err
	}
	found, err := cluster.FindAll(o.op, p, db, msg.Doc(&msg.ListCollections{DB: db, Filter: value.Doc(value.F("name", value.NewString(o.w.NS.Coll)))}))
	if err != nil {
		return err
	}
	c := &msg.Create{DB: db, Coll: o.temp, Temp: true} // if it is not dropped otherwise, the shard's next primary drops it
	var options []byte
	o.series = o.w.TimeSeries != nil
	if len(found) > 0 && !o.series {
		switch t := value.Lookup(found[0], "type").Str(); {
		case t == "view":
			return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", o.w.NS)
		case t == "timeseries":
			o.series = true
		case value.Lookup(value.LookupDoc(found[0], "options"), "capped").Truthy():
			return mongoerr.Newf(17152, "namespace '%s' is capped so it can't be used for $out", o.w.NS)
		default:
			o.exists, o.options = true, value.LookupDoc(found[0], "options")
			options = rebuildElements(o.options, nil)
		}
	}
	err = o.h.runWrite(o.op, msg.With(c, options, timedConcern(o.op, false)))
	if err == nil {
		err = o.findTemp()
	}
	if err == nil && o.exists {
		err = o.copyIndexes(p)
	}
	if err != nil {
		o.Abort(o.op) // the creation may continue after its wtimeout
	}
	return err
}

// findTemp finds the UUID of the temporary collection.
func (o *outWriter) findTemp() error {
	reply, err := o.h.runReply(o.op, msg.Doc(&msg.ListCollections{DB: o.w.NS.DB, Filter: value.Doc(value.F("name", value.NewString(o.temp)))}))
	if err != nil {
		return err
	}
	var ok bool
	if o.uuid, ok = msg.ListedUUID(reply); !ok {
		return o.w.Interrupted()
	}
	return nil
}

// step runs a command on the temporary collection.
func (o *outWriter) step(ctx context.Context, m msg.Message) ([]byte, error) {
	reply, err := o.h.runReply(ctx, msg.With(m, value.Append(nil, "collectionUUID", value.NewBinary(4, o.uuid[:])), timedConcern(o.op, false)))
	if mongoerr.CodeOf(err) == mongoerr.CollectionUUIDMismatch {
		err = o.w.Interrupted()
	}
	return reply, err
}

// write is step for a command that waits for the write concern.
func (o *outWriter) write(ctx context.Context, m msg.Message) error {
	return waited(o.step(ctx, m))
}

func (o *outWriter) copyIndexes(p cluster.Peer) error {
	db := o.w.NS.DB
	specs, err := cluster.FindAll(o.op, p, db, msg.Doc(&msg.ListIndexes{DB: db, Coll: o.w.NS.Coll}))
	if err != nil {
		return err
	}
	o.indexes = specs
	var add [][]byte
	for _, s := range specs {
		if value.Lookup(s, "name").Str() != "_id_" {
			add = append(add, s)
		}
	}
	if len(add) == 0 {
		return nil
	}
	return o.write(o.op, &msg.CreateIndexes{DB: db, Coll: o.temp, Indexes: add})
}

// Write implements agg.Writer.
func (o *outWriter) Write(ctx context.Context, doc []byte, _ []value.Value) error {
	o.batch = value.AppendIndex(o.batch, o.n, value.NewDocument(doc))
	if o.n++; o.n < maxMergeBatch && len(o.batch) < maxBatchBytes/2 {
		return nil
	}
	return o.flush(ctx)
}

func (o *outWriter) flush(ctx context.Context) error {
	if o.n == 0 {
		return nil
	}
	arr, m := value.Begin(nil)
	docs := value.End(append(arr, o.batch...), m)
	o.batch, o.n = o.batch[:0], 0
	return o.write(ctx, &msg.Insert{DB: o.w.NS.DB, Coll: o.temp, Documents: docs, Bypass: bypasses(o.op)})
}

// Commit implements agg.Writer.
func (o *outWriter) Commit(ctx context.Context) error {
	if err := o.flush(ctx); err != nil {
		return err
	}
	if o.series {
		return o.commitSeries(ctx)
	}
	from, to := o.w.NS.DB+"."+o.temp, o.w.NS.String()
	rename := &msg.ShardRename{NS: from, To: to, DropTarget: value.NewBool(true), UUID: &o.uuid, Out: true, Options: o.options, Indexes: o.indexes}
	err := o.h.r.routed(o.op, from, false, func(info *cluster.CollectionInfo) error {
		reply, mark := value.Begin(nil)
		generic := genericArguments(o.op, "readConcern", "writeConcern") // the read concern applies to the pipeline's reads; the write concern follows
		generic = append(generic, writeConcern(o.op)...)
		reply, err := o.h.r.coordinatedWith(o.op, generic, info, rename, reply)
		if err == nil { // everything is done: the reply waits for the write concern
			o.op.SetWriteConcernError(cluster.WriteConcernErrorOf(value.End(reply, mark)))
		}
		return err
	})
	o.h.r.Catalog.InvalidateCollection(to)
	if mongoerr.CodeOf(err) == mongoerr.CollectionUUIDMismatch {
		err = o.w.Interrupted()
	}
	return err
}

// commitSeries has the primary shard of the database replace the buckets of a time series collection: by an $out of the temporary collection,
// which is one unit of work there.
func (o *outWriter) commitSeries(ctx context.Context) error {
	if err := o.bringHome(ctx); err != nil {
		return err
	}
	to := []value.Field{value.F("db", value.NewString(o.w.NS.DB)), value.F("coll", value.NewString(o.w.NS.Coll))}
	if o.w.TimeSeries != nil {
		to = append(to, value.F("timeseries", value.NewDocument(o.w.TimeSeries)))
	}
	out := value.Doc(value.F("$out", value.NewDocument(value.Doc(to...))))
	reply, err := o.step(ctx, &msg.Aggregate{DB: o.w.NS.DB, On: value.NewString(o.temp), Pipeline: value.ArrayOf(value.NewDocument(out)), Cursor: new(msg.Cursor)})
	if err != nil {
		return err
	}
	o.op.SetWriteConcernError(cluster.WriteConcernErrorOf(reply))
	o.Abort(ctx) // which drops the temporary collection
	return nil
}

// bringHome moves a time series that moveCollection or unshardCollection has placed on another shard to the primary shard of its database, and untracks it:
// $out leaves every collection there.
func (o *outWriter) bringHome(ctx context.Context) error {
	ns := o.w.NS.String()
	generic := genericArguments(o.op, "readConcern", "writeConcern")
	for _, m := range []func(home string) msg.Message{
		func(home string) msg.Message {
			return &msg.ShardReshard{NS: ns, Reshard: msg.Reshard{Provenance: msg.MoveCollection, To: home}}
		},
		func(string) msg.Message { return &msg.ShardUntrack{NS: ns} },
	} {
		err := o.h.r.routed(o.op, ns, false, func(info *cluster.CollectionInfo) error {
			buckets, err := o.h.r.freshBuckets(o.op, info)
			if err != nil || buckets == nil {
				return err
			}
			reply, _ := value.Begin(nil)
			_, err = o.h.r.coordinatedWith(o.op, generic, info, m(info.DB.Primary), reply)
			return err
		})
		o.h.r.Catalog.InvalidateCollection(ns)
		o.h.r.Catalog.InvalidateCollection(timeseries.BucketsOf(ns))
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Abort implements agg.Writer.
func (o *outWriter) Abort(ctx context.Context) {
	if o.h.r.dropTemp(context.WithoutCancel(ctx), o.w.NS.DB, o.temp) != nil {
		o.h.r.temps.add(o.w.NS.DB, o.temp)
	}
}

// dropTemp drops the temporary collection of a failed $out. It does not wait long for a shard without a majority.
func (r *Router) dropTemp(ctx context.Context, db, coll string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	h := &aggHost{r: r}
	return h.runWrite(ctx, msg.Doc(&msg.Drop{DB: db, Coll: coll},
		value.F("writeConcern", value.NewDocument(value.Doc(value.F("w", value.NewString("majority")), value.F("wtimeout", value.NewInt32(100)))))))
}

// temps are temporary collections that could not be dropped yet.
type temps struct {
	mu   sync.Mutex
	list [][2]string // database and name
}

func (t *temps) add(db, coll string) {
	t.mu.Lock()
	t.list = append(t.list, [2]string{db, coll})
	t.mu.Unlock()
}

// dropTemps tries again to drop them.
func (r *Router) dropTemps(ctx context.Context) {
	r.temps.mu.Lock()
	list := r.temps.list
	r.temps.list = nil
	r.temps.mu.Unlock()
	for _, t := range list {
		if r.dropTemp(ctx, t[0], t[1]) != nil {
			r.temps.add(t[0], t[1])
		}
	}
}

// timedConcern returns the write concern of a command's steps if the client limits the wait for it; over means
// that the limit has passed.
func timedConcern(op *command.Op, over bool) []byte {
	wc := op.Req.AskedConcern()
	if wc.Timeout == 0 {
		return nil
	}
	if !over {
		return writeConcern(op)
	}
	f := []value.Field{value.F("wtimeout", value.NewInt32(1))}
	for k, v := range value.Elements(wc.Doc) {
		if k != "wtimeout" {
			f = append(f, value.F(k, v))
		}
	}
	return value.Append(nil, "writeConcern", value.NewDocument(value.Doc(f...)))
}

// mergeWriter is $merge: each document becomes an insert or an update by the identifying fields.
type mergeWriter struct {
	h         *aggHost
	op        *command.Op
	late      bool // the write concern's time has passed
	w         agg.WriteSpec
	by        identity
	sparse    bool // the index on the identifying fields leaves out documents without them
	collation []byte
	bypass    bool
	let       []byte // the command's variables, which a whenMatched pipeline may use; the stage's own take precedence
	// The batch: documents, as elements of an array, if the stage only inserts, and otherwise statements, each with the document that it merges.
	documents []byte
	updates   []msg.UpdateStatement
	merged    [][]byte
	n, size   int
}

// newMergeWriter determines the fields that identify documents: those of the stage, which a unique index must
// cover, else _id and the shard key.
func newMergeWriter(h *aggHost, op *command.Op, w agg.WriteSpec, info *cluster.CollectionInfo) (*mergeWriter, error) {
	m := &mergeWriter{h: h, op: op, w: w, by: identity{ns: w.NS.String(), on: w.On}, bypass: bypasses(op)}
	if w.WhenMatched == "pipeline" {
		m.let = bytes.Clone(op.Opened("let").Doc())
	}
	m.collation = explicit(h.collation)
	if !w.DefaultOn {
		return m, h.r.routed(op, info.NS, true, func(info *cluster.CollectionInfo) error { return m.checkOn(op, info, h.collation) })
	}
	m.by.on = defaultOn(info)
	return m, nil
}

// checkOn requires a unique index on exactly the identifying fields, with the aggregate's collation.
func (m *mergeWriter) checkOn(op *command.Op, info *cluster.CollectionInfo, spec *collation.Spec) error {
	shard := info.Shards()[0]
	p, err := m.h.r.peer(op, shard)
	if err != nil {
		return err
	}
	specs, err := cluster.FindAll(op, p, m.w.NS.DB, versioned(msg.Doc(&msg.ListIndexes{DB: m.w.NS.DB, Coll: m.w.NS.Coll}), info, shard))
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound && len(m.by.on) == 1 && m.by.on[0] == "_id" {
		return nil // the collection does not exist yet; it will have an _id index
	}
	if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return err
	}
	found := false
	for _, s := range specs {
		key := value.Lookup(s, "key").Doc()
		id := value.Count(key) == 1 && !value.Lookup(key, "_id").IsMissing()
		if !id && !value.Lookup(s, "unique").Truthy() || value.Lookup(s, "partialFilterExpression").T == value.Document ||
			!m.identifiedBy(key) || !collation.Same(value.Lookup(s, "collation").Doc(), spec) {
			continue
		}
		if found = true; !value.Lookup(s, "sparse").Truthy() {
			m.sparse = false
			return nil
		}
		m.sparse = true
	}
	if !found {
		return mongoerr.New(51183, "Cannot find index to verify that join fields will be unique")
	}
	return nil
}

// identifiedBy reports whether an index's fields are the identifying ones.
func (m *mergeWriter) identifiedBy(key []byte) bool {
	n := 0
	for k := range value.Elements(key) {
		if n++; !slices.Contains(m.by.on, k) {
			return false
		}
	}
	return n == len(m.by.on)
}

// Write implements agg.Writer.
func (m *mergeWriter) Write(ctx context.Context, doc []byte, let []value.Value) error {
	if m.inserts() {
		m.documents = value.AppendIndex(m.documents, m.n, value.NewDocument(doc))
		m.size = len(m.documents)
	} else {
		if doc = bytes.Clone(doc); m.w.NeedsID(m.by.on, doc) { // the statement is kept until the batch is sent
			doc = withID(doc)
		}
		st, err := m.statement(doc, let)
		if err != nil {
			return err
		}
		m.updates, m.merged = append(m.updates, st), append(m.merged, doc)
		m.size += st.Size()
	}
	if m.n++; m.w.WhenNotMatched != "fail" && m.n < maxMergeBatch && m.size < maxBatchBytes/2 {
		return nil
	}
	return m.flush(ctx)
}

// inserts reports whether the stage only inserts.
func (m *mergeWriter) inserts() bool { return m.w.WhenMatched == "fail" }

func (m *mergeWriter) statement(doc []byte, let []value.Value) (st msg.UpdateStatement, err error) {
	if st.Query, err = agg.MergeFilter(m.by.on, m.sparse, doc); err != nil {
		return st, err
	}
	st.Change, st.Collation, st.Upsert = m.w.Change(doc), m.collation, m.w.WhenNotMatched == "insert"
	if m.w.WhenMatched == "pipeline" {
		st.Constants, st.UpsertSupplied = m.variables(doc, let), st.Upsert
	}
	return st, nil
}

// variables returns the variables of a whenMatched pipeline: those of the stage's let and, always, new, the new document.
func (m *mergeWriter) variables(doc []byte, let []value.Value) []byte {
	if m.w.Let.T != value.Document {
		return value.Doc(value.F("new", value.NewDocument(doc)))
	}
	b, mark := value.Begin(nil)
	b = value.Append(b, "new", value.NewDocument(doc))
	i := 0
	for k := range value.Elements(m.w.Let.Doc()) {
		if i < len(let) && k != "new" { // new is always the document
			b = value.Append(b, k, let[i])
		}
		i++
	}
	return value.End(b, mark)
}

// flush writes the batch. Statements that were not executed because the target's shard key is not the one that the fields were taken from are made again.
func (m *mergeWriter) flush(ctx context.Context) error {
	for try := 0; m.n > 0; try++ {
		left, err := m.send(ctx)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		if try >= maxStaleTries {
			return m.by.changed()
		}
		if err := m.identifyAgain(left); err != nil {
			return err
		}
	}
	m.documents, m.updates, m.merged, m.n, m.size = m.documents[:0], m.updates[:0], m.merged[:0], 0, 0
	return nil
}

// identifyAgain takes the identifying fields from the present shard key, and keeps of the batch the statements left, which are to be executed by these fields.
func (m *mergeWriter) identifyAgain(left []int) error {
	info, err := m.h.r.collectionForWrite(m.op, m.w.NS.String())
	if err != nil {
		return err
	}
	m.by.on = defaultOn(info)
	for n, i := range left {
		m.updates[n], m.merged[n] = m.updates[i], m.merged[i]
		if m.updates[n].Query, err = agg.MergeFilter(m.by.on, m.sparse, m.merged[n]); err != nil {
			return err
		}
	}
	m.n = len(left)
	m.updates, m.merged = m.updates[:m.n], m.merged[:m.n]
	return nil
}

// send sends the batch as one command and returns which of its statements are left because of a changed shard key.
func (m *mergeWriter) send(ctx context.Context) (left []int, err error) {
	var write msg.Message = &msg.Update{DB: m.w.NS.DB, Coll: m.w.NS.Coll, Updates: m.updates, Unordered: true, Bypass: m.bypass, Let: m.let}
	if m.inserts() {
		arr, mark := value.Begin(nil)
		write = &msg.Insert{DB: m.w.NS.DB, Coll: m.w.NS.Coll, Documents: value.End(append(arr, m.documents...), mark), Unordered: true, Bypass: m.bypass}
	}
	if m.w.DefaultOn && !m.inserts() {
		ctx = m.op.With(identityKey{}, &m.by)
	}
	reply, err := m.h.run(ctx, msg.With(write, timedConcern(m.op, m.late)))
	if err != nil {
		return nil, err
	}
	for _, e := range value.Values(value.Lookup(reply, "writeErrors").Doc()) {
		err := writeErrorOf(e.Doc())
		if !isChangedIdentity(err) {
			return nil, err
		}
		i, _ := value.Lookup(e.Doc(), "index").AsInt64()
		left = append(left, int(i))
	}
	slices.Sort(left)
	if e := cluster.WriteConcernErrorOf(reply); e != nil {
		m.late = e.Code == mongoerr.WriteConcernTimeout
		m.op.SetWriteConcernError(e)
	}
	if n, _ := value.Lookup(reply, "n").AsInt64(); m.w.WhenNotMatched == "fail" && n == 0 && len(left) == 0 {
		return nil, mongoerr.New(mongoerr.MergeStageNoMatchingDocument, "$merge could not find a matching document in the target collection for at least one document in the source collection")
	}
	return left, nil
}

// Commit implements agg.Writer.
func (m *mergeWriter) Commit(ctx context.Context) error { return m.flush(ctx) }

// Abort implements agg.Writer: what was merged remains, as documented.
func (m *mergeWriter) Abort(context.Context) {}

// bypasses reports whether an aggregate writes what the target's validator refuses.
func bypasses(op *command.Op) bool { return op.Opened("bypassDocumentValidation").Truthy() }
