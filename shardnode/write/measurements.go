package write

import (
	"bytes"
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/update"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The maximum number of measurements, and of bytes, in a bucket.
const (
	bucketMaxCount = 1000
	bucketMaxBytes = 128000

	// maxMeasurement is the limit of a measurement (https://www.mongodb.com/docs/manual/core/timeseries/timeseries-limitations/#document-size). A bucket also has the
	// minimum and maximum of each field, so it can be three times as large as its only measurement.
	maxMeasurement = 4 << 20
	// largeBucket is the maximum total size of the measurements in a bucket of few large ones: with the minima and maxima, the bucket still fits in a document.
	largeBucket = 7 << 20
	// maxBucket is the limit of a stored bucket.
	maxBucket = maxStoredSize
)

// openBucket is a bucket that may take more measurements.
type openBucket struct {
	rid storage.RecordID
	min int64
}

// openBuckets remembers the buckets last written to, by collection and meta value. No further measurements are
// added to a bucket that is not among them.
type openBuckets struct {
	mu sync.Mutex
	m  map[string][]openBucket
}

// The maximum number of open buckets that are remembered for a series, and of such series.
const (
	openPerSeries = 4
	openSeries    = 10000
)

func (o *openBuckets) get(key string) []openBucket {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.m[key]
}

// clear forgets all open buckets.
func (o *openBuckets) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.m = nil
}

// put makes a bucket the series' most recent one.
func (o *openBuckets) put(key string, b openBucket) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m == nil || len(o.m) >= openSeries {
		o.m = make(map[string][]openBucket)
	}
	list := []openBucket{b}
	for _, e := range o.m[key] {
		if string(e.rid) != string(b.rid) && len(list) < openPerSeries {
			list = append(list, e)
		}
	}
	o.m[key] = list
}

// filling is a bucket that an insert adds to.
type filling struct {
	openBucket
	key  string // of openBuckets
	meta value.Value
	old  []byte // nil for a new bucket
	docs [][]byte
	size int

	schema timeseries.Schema
	mixed  bool // some field has values of several kinds: possible in a restored bucket
}

// takes reports whether a measurement fits in the bucket, and if so adds its fields to the bucket's schema.
func (f *filling) takes(t *namespace.Series, ms int64, doc []byte) bool {
	return f.inTime(ms, t.SpanMS) && f.size+len(doc) <= largeBucket && !f.mixed && f.schema.Takes(t.Fields, doc)
}

func (f *filling) inTime(ms, span int64) bool {
	return ms >= f.min && ms < f.min+span && len(f.docs) < bucketMaxCount && (f.size < bucketMaxBytes || len(f.docs) < 10)
}

// bucketsIn returns the buckets of the time series collection that a command refers to, nil if there is none. A router that knows the
// placement of the buckets names their collection.
func (w *Command) bucketsIn(cat *catalog.Snapshot, ns string) *catalog.Collection {
	switch {
	case !namespace.IsBuckets(ns):
		return namespace.Buckets(cat, ns)
	case w.Op.Req.Shared("isTimeseriesNamespace").Truthy():
		return cat.Lookup(ns)
	}
	return nil
}

// seriesIn returns the time series collection that a command refers to as it is in a snapshot, nil if there is none.
//
// Hazard: an index build commits without the lock of its collection, and a unit of work that uses an older entry of the catalog than the newest is refused. Each
// attempt at a unit therefore looks the series up in its own snapshot; with an entry from before the attempts it would be refused every time.
func (w *Command) seriesIn(s *storage.Snapshot, ns string) *namespace.Series {
	if b := w.bucketsIn(s.Catalog(), ns); b != nil {
		return namespace.SeriesIn(b)
	}
	return nil
}

// acquireBuckets locks the buckets of the time series collection that a command names, and compares versions once more under that lock.
func (w *Command) acquireBuckets(ns string) error {
	b := namespace.Buckets(w.writer.Engine.Catalog(), ns)
	sharding := w.writer.node.Sharding()
	if b == nil || sharding == nil {
		return nil
	}
	unlock, err := w.lockDocuments(b.NS)
	if err != nil {
		return err
	}
	if w.Op.Req.ShardVersion != nil {
		if err := sharding.CheckUntracked(w.Op, b.NS); err != nil {
			unlock()
			w.refused(b.NS)
			return err
		}
	}
	outer := w.unlock
	w.unlock = func() {
		unlock()
		outer()
	}
	return nil
}

// tryMeasurements is tryInsert for a time series collection.
func (w *Command) tryMeasurements(ns string, raw [][]byte, wc replication.WriteConcern, stmt int) (done int, docErr, err error) {
	s := w.Snapshot()
	defer s.Release()
	t := w.seriesIn(s, ns)
	if t == nil {
		return 0, nil, mongoerr.Newf(mongoerr.WriteConflict, "time series %s was dropped meanwhile", ns)
	}
	for ; done < len(raw) && docErr == nil; done++ {
		if docErr = checkMeasurement(t, raw[done]); docErr != nil {
			break
		}
	}
	if done == 0 {
		return 0, docErr, nil
	}
	u := w.Unit(s)
	defer u.Rollback()
	fills, err := w.assign(s, t, raw[:done])
	if err != nil {
		return 0, nil, err
	}
	info := storage.OpInfo{StmtID: -1, Key: w.documentKey(t.Buckets.NS)}
	first := w.stmtID(stmt)
	if w.session != nil {
		info.Extra = stmtList(first, done)
	}
	for _, f := range fills {
		if err := w.writeBucket(u, t, f, info); err != nil {
			return 0, nil, err
		}
		info.Extra = nil // the unit is atomic: one entry has all statement ids
	}
	if err := w.commitRun(u, wc, txn.Run{From: first, To: first + int32(done) - 1, Op: 'i'}); err != nil {
		return 0, nil, err
	}
	if w.pending == nil { // otherwise it is not known whether the buckets exist
		for _, f := range fills {
			w.writer.buckets.put(f.key, f.openBucket)
		}
	}
	return done, docErr, nil
}

// checkMeasurement returns an error for a document that a time series collection does not accept.
func checkMeasurement(t *namespace.Series, doc []byte) error {
	if value.Lookup(doc, t.Fields.Time).T != value.DateTime {
		return mongoerr.Newf(mongoerr.BadValue, "'%s' must be present and contain a valid BSON UTC datetime value", t.Fields.Time)
	}
	if len(doc) > maxMeasurement {
		return mongoerr.Newf(mongoerr.BSONObjectTooLarge, "the measurement is too large for a time-series collection. size in bytes: %d, max size: %d", len(doc), maxMeasurement)
	}
	return nil
}

// checkBucket returns an error for a bucket that is too large for a document, as one of measurements with many small fields may be.
func checkBucket(bucket []byte) error {
	if len(bucket) > maxBucket {
		return mongoerr.Newf(mongoerr.BSONObjectTooLarge, "the bucket of a measurement is too large. size in bytes: %d, max size: %d", len(bucket), maxBucket)
	}
	return nil
}

// stmtList returns the field of an oplog entry that represents several statements of a retryable write.
func stmtList(first int32, n int) []byte {
	all := make([]value.Value, n)
	for i := range all {
		all[i] = value.NewInt32(first + int32(i))
	}
	return value.Doc(value.F("stmtId", value.NewArray(value.ArrayOf(all...))))
}

// assign finds the bucket of each measurement.
func (w *Command) assign(s *storage.Snapshot, t *namespace.Series, raw [][]byte) (all []*filling, err error) {
	byKey := map[string][]*filling{}
	owned, err := w.ownedBy(t.Buckets)
	if err != nil {
		return nil, err
	}
	var key []byte
	for _, doc := range raw {
		meta := value.Value{}
		if t.Fields.Meta != "" {
			meta = timeseries.NormalMeta(value.Lookup(doc, t.Fields.Meta))
		}
		key = value.Append(append(key[:0], t.Buckets.UUID[:]...), "", meta)
		list, known := byKey[string(key)]
		if !known {
			if list, err = w.reopen(s, t, string(key), meta, owned); err != nil {
				return nil, err
			}
		}
		ms := value.Lookup(doc, t.Fields.Time).DateTime()
		at := -1
		for i, f := range list {
			if f.takes(t, ms, doc) {
				at = i
				break
			}
		}
		if at < 0 {
			if mine, err := owned.Has(t.Head(doc)); err != nil || !mine {
				return nil, w.misplaced(t, err)
			}
			at = len(list)
			f := &filling{openBucket: openBucket{min: t.Round(ms)}, key: string(key), meta: meta}
			f.schema.Takes(t.Fields, doc)
			list = append(list, f)
		}
		list[at].docs = append(list[at].docs, doc)
		list[at].size += len(doc)
		byKey[string(key)] = list
	}
	for _, list := range byKey {
		all = append(all, list...)
	}
	return all, nil
}

// misplaced returns the error of a measurement whose bucket would belong to another shard: the router's options of the series differ
// from those in this shard's catalog.
func (w *Command) misplaced(t *namespace.Series, err error) error {
	if err != nil {
		return err
	}
	received, err := cluster.ParseChunkVersion(value.NewDocument(w.Op.Req.ShardVersion))
	if err != nil {
		return err
	}
	return cluster.StaleConfig(t.Buckets.NS, received, nil, "", "the bucket of a measurement belongs to another shard")
}

// reopen reads the series' buckets that are still open, and that this shard still owns.
func (w *Command) reopen(s *storage.Snapshot, t *namespace.Series, key string, meta value.Value, owned exec.Ownership) (list []*filling, err error) {
	for _, b := range w.writer.buckets.get(key) {
		doc, ok, err := s.Get(t.Buckets, b.rid)
		if err != nil {
			return nil, err
		}
		if !ok || !sameMeta(value.Lookup(doc, "meta"), meta) {
			continue
		}
		if mine, err := owned.Has(doc); err != nil {
			return nil, err
		} else if !mine {
			continue
		}
		old := append([]byte(nil), doc...)
		f := &filling{openBucket: b, key: key, meta: meta, old: old, docs: timeseries.Unpack(t.Fields, old), size: len(old)}
		schema, uniform := timeseries.SchemaOf(old)
		f.schema, f.mixed = schema, !uniform
		list = append(list, f)
	}
	return list, nil
}

// sameMeta compares the values of metaFields as the measurements of one bucket share them: 1 and 1.0 are equal for queries, but read as different types.
func sameMeta(a, b value.Value) bool {
	return bytes.Equal(value.Append(nil, "", a), value.Append(nil, "", b))
}

// writeBucket stores a bucket's measurements, if there are new ones.
func (w *Command) writeBucket(u *storage.UnitOfWork, t *namespace.Series, f *filling, info storage.OpInfo) error {
	if f.old == nil {
		head := timeseries.Bucket{ID: timeseries.NewID(f.min, cluster.NewObjectID()), MinTime: f.min, Meta: f.meta}
		bucket := w.pack(t, head, f.docs)
		if err := checkBucket(bucket); err != nil {
			return err
		}
		rid, err := u.Insert(t.Buckets, bucket, info)
		f.rid = rid.Clone()
		return err
	}
	if stored := value.Count(timeColumn(t, f.old)); stored == len(f.docs) {
		return nil
	}
	return w.replaceBucket(u, t, f.rid, f.old, f.docs, info)
}

// timeColumn returns the times of a bucket's measurements.
func timeColumn(t *namespace.Series, bucket []byte) []byte {
	return value.Lookup(value.Lookup(bucket, "data").Doc(), t.Fields.Time).Doc()
}

func (w *Command) pack(t *namespace.Series, head timeseries.Bucket, docs [][]byte) []byte {
	return timeseries.Pack(t.Fields, head, docs, w.writer.Compiled.Of(t.Buckets).Collation.Collator())
}

// replaceBucket replaces the measurements of a bucket; if none are left, it deletes the bucket.
func (w *Command) replaceBucket(u *storage.UnitOfWork, t *namespace.Series, rid storage.RecordID, old []byte, docs [][]byte, info storage.OpInfo) error {
	if len(docs) == 0 {
		return u.Delete(t.Buckets, rid, old, info)
	}
	min := value.Lookup(value.Lookup(value.Lookup(old, "control").Doc(), "min").Doc(), t.Fields.Time).DateTime()
	next := w.pack(t, timeseries.Bucket{ID: value.Lookup(old, "_id"), MinTime: min, Meta: value.Lookup(old, "meta")}, docs)
	if err := checkBucket(next); err != nil && len(next) > len(old) {
		return err
	}
	if diff, ok := update.Diff(old, next); ok {
		info.O = update.DiffEntry(diff)
	}
	return u.Update(t.Buckets, rid, old, next, info)
}

// runOnSeries is runStatement for a time series collection with its buckets in b.
func (w *Command) runOnSeries(ns string, b *catalog.Collection, st *statement, last bool) (result, error) {
	if w.Transaction() != nil {
		return result{}, mongoerr.New(mongoerr.OperationNotSupportedInTransaction, "Cannot write to a time-series collection in a multi-document transaction")
	}
	if !st.u.IsMissing() {
		inner, err := metaUpdate(namespace.SeriesIn(b), st)
		if err != nil {
			return result{}, err
		}
		return w.runStored(b.NS, inner, last)
	}
	if len(st.sort) > 5 {
		return result{}, command.BadOption("Cannot perform a findAndModify with sort on a time-series collection")
	}
	wc := replication.Visible
	if last {
		wc = w.lastConcern()
	}
	return w.removeMeasurements(ns, b, st, wc)
}

// removeMeasurements deletes the measurements that match a statement, one or all. wc is for the commit of one.
func (w *Command) removeMeasurements(ns string, b *catalog.Collection, st *statement, wc replication.WriteConcern) (r result, err error) {
	if err := w.compileStatement(st, b); err != nil {
		return r, err
	}
	if r, done, err := w.replay(st); done || err != nil {
		return r, err
	}
	if err := w.refuseUnknown(); err != nil {
		return r, err
	}
	m, err := exec.CompileFilter(st.filter, st.lang.Scope, st.coll)
	if err != nil {
		return r, err
	}
	s := w.Snapshot()
	defer s.Release()
	t := w.seriesIn(s, ns)
	if t == nil {
		return r, nil
	}
	q := &exec.Query{NS: t.Buckets.NS, Snap: s, Coll: t.Buckets, Collation: st.coll, Scope: st.lang.Scope, AllowDiskUse: true,
		Filter: timeseries.BucketFilter(t.Fields, t.SpanMS, st.filter)}
	if q.Owned, err = w.ownedBy(t.Buckets); err != nil {
		return r, err
	}
	if err := q.Compile(nil); err != nil {
		return r, err
	}
	root, err := w.writer.Exec.Plan(w.Op, q)
	if err != nil {
		return r, err
	}
	defer root.Close()
	for {
		rids, end, err := w.nextRIDs(root)
		if err != nil {
			return r, err
		}
		err = w.writeUnits(rids, func(rids []storage.RecordID) error { return w.removeFrom(ns, st, m, rids, wc, &r) })
		if err != nil {
			return r, err
		}
		if end || !st.multi && r.deleted > 0 {
			return r, nil
		}
	}
}

// removeFrom deletes the matching measurements of some buckets in one unit. A statement for one measurement does nothing once it has deleted that.
func (w *Command) removeFrom(ns string, st *statement, m *match.Matcher, rids []storage.RecordID, wc replication.WriteConcern, total *result) error {
	if !st.multi && total.deleted > 0 {
		return nil
	}
	var removed [][]byte
	err := w.retryUnit(len(rids), func() error {
		removed = removed[:0]
		s := w.Snapshot()
		defer s.Release()
		t := w.seriesIn(s, ns)
		if t == nil {
			return nil
		}
		u := w.Unit(s)
		defer u.Rollback()
		for _, rid := range rids {
			old, ok, err := s.Get(t.Buckets, rid)
			if err != nil {
				return err
			}
			if !ok || !st.multi && len(removed) > 0 {
				continue
			}
			old = append([]byte(nil), old...)
			kept, gone, err := part(timeseries.Unpack(t.Fields, old), m, st.multi)
			if err != nil {
				return err
			}
			if len(gone) == 0 {
				continue
			}
			if err := w.replaceBucket(u, t, rid, old, kept, w.imageInfo(t.Buckets.NS, nil)); err != nil {
				return err
			}
			removed = append(removed, gone...)
		}
		if u.Empty() {
			return nil
		}
		if st.multi {
			return w.Commit(u, replication.Visible)
		}
		if st.image != nil {
			st.onWrite(removed[0], nil)
			if err := st.image(s, u); err != nil {
				return err
			}
		}
		return w.commitRun(u, wc, w.runOf(&result{deleted: 1}))
	})
	if err != nil {
		return err
	}
	total.deleted += int64(len(removed))
	for _, doc := range removed {
		if st.onWrite != nil {
			st.onWrite(doc, nil)
		}
	}
	return nil
}

// part splits measurements into those to keep and those that match; without multi only one is removed.
func part(docs [][]byte, m *match.Matcher, multi bool) (kept, gone [][]byte, err error) {
	for _, doc := range docs {
		ok := m == nil
		if m != nil {
			if ok, err = m.Match(doc); err != nil {
				return nil, nil, err
			}
		}
		if ok && (multi || len(gone) == 0) {
			gone = append(gone, doc)
		} else {
			kept = append(kept, doc)
		}
	}
	return kept, gone, nil
}

// metaUpdate turns an update of measurements into one of buckets. Only the MetaField, which all measurements of a bucket
// share, may be queried and changed.
func metaUpdate(t *namespace.Series, st *statement) (*statement, error) {
	switch {
	case !st.multi:
		return nil, command.BadOption("Cannot perform a non-multi update on a time-series collection")
	case st.upsert:
		return nil, command.BadOption("Cannot perform an upsert on a time-series collection")
	case t.Fields.Meta == "":
		return nil, command.BadOption("Cannot perform an update on a time-series collection that does not have a metaField")
	case st.u.T != value.Document || !value.IsOperatorDoc(st.u.Doc()):
		return nil, command.BadOption("Cannot perform an update on a time-series collection using a pipeline or a replacement document")
	}
	inner := *st
	var err error
	if inner.filter, err = t.MetaFilter(st.filter); err != nil {
		return nil, err
	}
	u, m := value.Begin(nil)
	for op, args := range value.Elements(st.u.Doc()) {
		if op == "$rename" {
			return nil, command.BadOption("Cannot perform a $rename update on a time-series collection")
		}
		var at int
		u, at = value.BeginKey(u, value.Document, op)
		for path, v := range value.Elements(args.Doc()) {
			renamed, ok := t.MetaPath(path)
			if !ok {
				return nil, command.BadOption("Cannot perform an update on a time-series collection which updates a field that is not the metaField '%s'", t.Fields.Meta)
			}
			u = value.Append(u, renamed, v)
		}
		u = value.End(u, at)
	}
	inner.u = value.NewDocument(value.End(u, m))
	return &inner, nil
}
