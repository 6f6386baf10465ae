package write

import (
	"context"
	"encoding/hex"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Output opens the target of $out or $merge. coll is the collation that the aggregate runs under.
func (wr *Writer) Output(op *command.Op, spec agg.WriteSpec, coll *collation.Spec) (agg.Writer, error) {
	if err := namespace.CheckNew(spec.NS.String()); err != nil {
		return nil, err
	}
	if err := op.AdoptConcern(); err != nil {
		return nil, err
	}
	if err := wr.node.CheckBlocked(op, spec.NS.String()); err != nil {
		return nil, err
	}
	if err := command.CheckClientWrite(op, spec.NS.String()); err != nil {
		return nil, err
	}
	if err := checkPlain(wr, op, spec.NS.String()); err != nil {
		return nil, err
	}
	if wr.MayWrite(op) != nil {
		return newRemoteWriter(wr.With(op, replication.WriteConcern{}), spec, coll)
	}
	w, err := wr.Begin(op)
	if err != nil {
		return nil, err
	}
	if spec.Stage == "$out" {
		if there := namespace.SeriesOf(wr.Engine.Catalog(), spec.NS.String()); there != nil || spec.TimeSeries != nil {
			return w.newOutSeries(spec, there)
		}
		return w.newOutWriter(spec)
	}
	return w.newMergeWriter(spec, coll)
}

// checkPlain returns an error for a sharded target, of which this shard has at most a part: the router that sent the
// pipeline was not aware of it, and has to write it itself.
func checkPlain(wr *Writer, op *command.Op, ns string) error {
	s := wr.node.Sharding()
	if s == nil || op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil {
		return nil
	}
	if s.Sharded(op, ns) || namespace.Buckets(wr.Engine.Catalog(), ns) != nil && s.Sharded(op, timeseries.BucketsOf(ns)) {
		return namespace.ShardedForeign(ns)
	}
	return nil
}

// outWriter fills a temporary collection and replaces the target with it at the end.
type outWriter struct {
	w       *Command
	ns      string
	temp    string
	options []byte
	indexes [][]byte
	docs    []pendingDoc
	size    int
	series  *namespace.SeriesOptions // of a time series collection; nil for others
	target  namespace.Target         // what it replaces, a time series' buckets
}

func (w *Command) newOutWriter(spec agg.WriteSpec) (*outWriter, error) {
	ns := spec.NS.String()
	id := cluster.NewObjectID()
	o := &outWriter{w: w, ns: ns, temp: spec.NS.DB + ".tmp.agg_out." + hex.EncodeToString(id[:])}
	c, err := w.writer.outTarget(spec)
	if err != nil {
		return nil, err
	}
	o.target = namespace.TargetOf(c)
	if c != nil {
		o.options = c.Options
		for _, i := range c.Indexes {
			if !i.IsID {
				o.indexes = append(o.indexes, i.Spec.Raw)
			}
		}
	}
	return o, o.create(o.temp)
}

// outTarget returns the collection that $out replaces, nil for none.
func (wr *Writer) outTarget(spec agg.WriteSpec) (*catalog.Collection, error) {
	ns, cat := spec.NS.String(), wr.Engine.Catalog()
	c := cat.Lookup(ns)
	if v, err := namespace.ViewAt(wr.Engine, cat, ns); err != nil {
		return nil, err
	} else if v != nil && c == nil {
		return nil, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
	}
	if c != nil && c.Capped {
		return nil, mongoerr.Newf(17152, "namespace '%s' is capped so it can't be used for $out", ns)
	}
	return c, nil
}

func (o *outWriter) Write(ctx context.Context, doc []byte, _ []value.Value) error {
	stored, err := prepareInsert(append([]byte(nil), doc...), true, o.w.now)
	if err != nil {
		return err
	}
	if err := o.w.validateNew(o.temp, stored); err != nil {
		return err
	}
	o.docs = append(o.docs, pendingDoc{len(o.docs), stored})
	if o.size += len(stored); len(o.docs) >= insertUnitDocs || o.size >= insertUnitBytes {
		return o.flush()
	}
	return nil
}

func (o *outWriter) flush() error {
	if len(o.docs) == 0 {
		return nil
	}
	o.w.insert(insertUnit{ns: o.temp, docs: o.docs, ordered: true})
	o.docs, o.size = o.docs[:0], 0
	if len(o.w.errs) > 0 {
		return o.w.errs[0].err
	}
	return nil
}

func (o *outWriter) Commit(ctx context.Context) error {
	if err := o.flush(); err != nil {
		return err
	}
	w := o.w
	names := []string{o.ns}
	if o.series != nil {
		names = append(names, timeseries.BucketsOf(o.ns))
	}
	unlock, err := w.lock(lock.X, names...)
	if err != nil {
		return err
	}
	defer w.AfterCommit(unlock)
	if err := checkPlain(w.writer, w.Op, o.ns); err != nil { // it may have been sharded in the meantime
		return err
	}
	if err := w.checkTarget(names); err != nil {
		unlock()
		w.refused(names...)
		return migration.WaitCritical(w.Op, err)
	}
	if o.series != nil {
		err = w.Retry(o.replaceSeries)
	} else {
		err = w.Retry(o.replace)
	}
	if err == nil {
		w.Finish()
	}
	return err
}

// checkTarget makes sure that the names that $out replaces are still this shard's, and that it may write to them now.
func (w *Command) checkTarget(names []string) error {
	s := w.writer.node.Sharding()
	if s == nil || w.Op.Req.ShardVersion == nil && w.Op.Req.DatabaseVer == nil {
		return nil
	}
	for _, ns := range names {
		if err := s.CheckTarget(w.Op, ns); err != nil {
			return err
		}
	}
	return nil
}

// replace puts the temporary collection in place of the target.
func (o *outWriter) replace() error {
	w := o.w
	s := w.Snapshot()
	defer s.Release()
	cat := s.Catalog()
	c, target := cat.Lookup(o.temp), cat.Lookup(o.ns)
	if c == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while $out wrote to it", o.temp)
	}
	if err := o.target.Check(o.ns, target); err != nil {
		return err
	}
	if v, err := namespace.ViewIn(s, o.ns); err != nil {
		return err
	} else if v != nil && target == nil {
		return mongoerr.Newf(mongoerr.NamespaceExists, "a view already exists with that name: %s", o.ns)
	}
	u := w.Unit(s)
	defer u.Rollback()
	if _, err := u.RenameCollection(c, o.ns, target, false); err != nil {
		return err
	}
	w.AuditRename(u, o.temp, o.ns, target)
	return w.Commit(u, replication.Visible)
}

func (o *outWriter) Abort(ctx context.Context) {
	o.w.Discard(ctx, func(cat *catalog.Snapshot) *catalog.Collection { return cat.Lookup(o.tempNS()) })
}

// mergeWriter writes each document by its identifying fields.
type mergeWriter struct {
	w    *Command
	ns   string
	spec agg.WriteSpec
	coll *collation.Spec // of the aggregate
	lets []string

	sparse bool  // the index on the identifying fields leaves out documents without them
	failed error // the first error of a document; the other documents are still written
}

func (w *Command) newMergeWriter(spec agg.WriteSpec, coll *collation.Spec) (*mergeWriter, error) {
	m := &mergeWriter{w: w, ns: spec.NS.String(), spec: spec, coll: coll}
	for k := range value.Elements(spec.Let.Doc()) {
		m.lets = append(m.lets, k)
	}
	cat := w.writer.Engine.Catalog()
	c := cat.Lookup(m.ns)
	if c == nil {
		if v, err := namespace.ViewAt(w.writer.Engine, cat, m.ns); err != nil {
			return nil, err
		} else if v != nil {
			return nil, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", m.ns)
		}
	}
	return m, m.checkOn(c)
}

// CheckMerge makes the checks of $merge for an aggregate that is only explained.
func (wr *Writer) CheckMerge(op *command.Op, spec agg.WriteSpec, coll *collation.Spec) error {
	_, err := wr.With(op, replication.WriteConcern{}).newMergeWriter(spec, coll)
	return err
}

// checkOn requires a unique index on exactly the identifying fields, with the aggregate's collation.
func (m *mergeWriter) checkOn(c *catalog.Collection) error {
	if r := &m.w.Op.Req; m.spec.DefaultOn && (r.ShardVersion != nil || r.DatabaseVer != nil) {
		return nil // as on a router: _id and the shard key identify documents in every collection
	}
	want := map[string]bool{}
	for _, f := range m.spec.On {
		want[f] = true
	}
	if len(want) == 1 && want["_id"] && (c == nil || collation.Same(c.Collation, m.coll)) {
		return nil
	}
	if c != nil {
		for _, i := range c.Indexes {
			if !i.Unique || !i.Ready || i.Spec.PartialFilter != nil || !sameFields(i.Spec.KeyPattern, want) ||
				!collation.Same(i.Spec.Collation, m.coll) {
				continue
			}
			if m.sparse = i.Spec.Sparse; !m.sparse {
				return nil
			}
		}
		if m.sparse {
			return nil
		}
	}
	return mongoerr.New(51183, "Cannot find index to verify that join fields will be unique")
}

func sameFields(key []byte, want map[string]bool) bool {
	n := 0
	for k := range value.Elements(key) {
		if !want[k] {
			return false
		}
		n++
	}
	return n == len(want)
}

// identify returns a document, with an _id if it needs one, and the filter for the document that it is merged
// into.
func (m *mergeWriter) identify(in []byte) (doc, filter []byte, err error) {
	doc = append([]byte(nil), in...)
	if m.spec.NeedsID(m.spec.On, doc) {
		if doc, err = prepareInsert(doc, true, m.w.now); err != nil {
			return nil, nil, err
		}
	}
	filter, err = agg.MergeFilter(m.spec.On, m.sparse, doc)
	return doc, filter, err
}

func (m *mergeWriter) Write(ctx context.Context, doc []byte, let []value.Value) error {
	doc, filter, err := m.identify(doc)
	if err != nil {
		return err
	}
	if err := m.write(filter, doc, let); err != nil && m.failed == nil {
		m.failed = err
	}
	return nil
}

// collationValue returns a collation as a statement's argument.
func collationValue(c *collation.Spec) value.Value {
	if c == nil {
		return value.NewDocument(namespace.SimpleCollation)
	}
	return value.NewDocument(c.Document())
}

// write runs the statement that whenMatched and whenNotMatched translate to.
func (m *mergeWriter) write(filter, doc []byte, let []value.Value) error {
	st := statement{filter: filter, u: m.spec.Change(doc), collation: collationValue(m.coll), upsert: m.spec.WhenNotMatched == "insert"}
	if m.spec.WhenMatched == "pipeline" {
		st.let = m.w.Op.Opened("let").Doc() // the command's variables are visible, too; the stage's own take precedence
		c, mark := value.Begin(nil)
		for i, name := range m.lets {
			c = value.Append(c, name, let[i])
		}
		st.constants = value.End(c, mark)
	}
	if m.spec.WhenMatched == "pipeline" && st.upsert {
		st.supplied = value.NewDocument(doc) // $merge inserts its document, not what the pipeline produces from an empty one
	}
	r, err := m.w.runStatement(m.ns, &st, false)
	if err != nil {
		return err
	}
	return m.checkResult(r, doc)
}

// atPath follows a dotted path through documents.
func atPath(doc []byte, path string) value.Value {
	v := value.NewDocument(doc)
	for part := range strings.SplitSeq(path, ".") {
		v = value.Lookup(v.Doc(), part)
	}
	return v
}

// duplicate returns the error of an insert that finds its document there: the one that the index on the 'on'
// fields would raise.
func (m *mergeWriter) duplicate(doc []byte) error {
	on := m.spec.On
	if len(on) == 0 {
		on = []string{"_id"}
	}
	var pattern, key []value.Field
	name := ""
	for _, f := range on {
		pattern = append(pattern, value.F(f, value.NewInt32(1)))
		key = append(key, value.F(f, atPath(doc, f)))
		name += f + "_1_"
	}
	if name = strings.TrimSuffix(name, "_"); len(on) == 1 && on[0] == "_id" {
		name = "_id_"
	}
	keyValue := value.NewDocument(value.Doc(key...))
	return mongoerr.Newf(mongoerr.DuplicateKey, "E11000 duplicate key error collection: %s index: %s dup key: %s", m.ns, name, value.Show(keyValue)).
		WithDetails(value.Doc(value.F("keyPattern", value.NewDocument(value.Doc(pattern...))), value.F("keyValue", keyValue)))
}

func (m *mergeWriter) checkResult(r result, doc []byte) error {
	found := r.matched > 0
	if found && m.spec.WhenMatched == "fail" {
		return m.duplicate(doc)
	}
	if !found && r.upserted.IsMissing() && m.spec.WhenNotMatched == "fail" {
		return mongoerr.New(mongoerr.MergeStageNoMatchingDocument, "$merge could not find a matching document in the target collection for at least one document in the source collection")
	}
	return nil
}

func (m *mergeWriter) Commit(ctx context.Context) error {
	m.w.Finish()
	return m.failed
}

func (m *mergeWriter) Abort(ctx context.Context) {}
