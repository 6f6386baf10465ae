package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/extsort"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// IndexBuild builds indexes on a collection that has documents. Writers are not blocked by it, and there is no
// side-writes table: from the commit of the start at T on, writers maintain the unfinished index with versions
// later than T, while the build loads what the collection held at T as version T. Any later write is therefore
// newer than what the build loads, and the order in which the two reach the index does not matter.
//
// Invariant: a snapshot of T or later that finds the index ready finds its keys for the documents of that snapshot. Hazard: a key that
// was loaded with a version later than T could restore what a writer has removed meanwhile. Rejected: a table of the writes made
// during the build, which is applied at its end. Every writer would write each key twice, and the end of the build would have to keep
// writers out until the rest is applied.
type IndexBuild struct {
	e       *Engine
	uuid    catalog.UUID // of the collection
	ns      string
	build   catalog.UUID
	start   Timestamp
	indexes []*catalog.Index
	marked  []*catalog.Index // the indexes with the multikey paths found
	left    []*catalog.Index // see UnfinishedBuild.Again
	specs   [][]byte
	done    atomic.Int64
	total   atomic.Int64
	phase   atomic.Pointer[string]
	since   atomic.Int64 // when the commit under way began, 0 for none

	cause error // why it has failed
	stop  stopped

	quorum  value.Value   // see WithQuorum
	wait    WaitForCommit // nil for a build without one
	loaded  Timestamp     // see Loaded
	changed chan struct{} // see Changed
}

// BuildProgress describes how far a build has come.
type BuildProgress struct {
	Phase string // as currentOp shows it
	Done  int64
	Total int64
}

// Scanning reports whether the numbers are those of the phase.
func (p *BuildProgress) Scanning() bool { return p.Phase == phaseScan }

// Phases of a build, as currentOp shows them.
const (
	phaseScan  = "Index Build: scanning collection"
	phaseLoad  = "Index Build: inserting keys from external sorter into index"
	phaseCheck = "Index Build: checking uniqueness"
	// Of a build that has all its keys.
	phaseQuorum = "Index Build: waiting for commit quorum"
	// Of a build that has failed, and whose indexes could not be removed yet.
	phaseAbort = "Index Build: aborting"
)

// NewIndexBuild returns a build that has not begun.
func (e *Engine) NewIndexBuild(ns string, specs [][]byte, build catalog.UUID) *IndexBuild {
	b := &IndexBuild{e: e, ns: ns, specs: specs, build: build, changed: make(chan struct{}, 1), stop: newStopped()}
	b.setPhase(phaseScan)
	return b
}

// StartIndexBuild combines NewIndexBuild and Start.
func (e *Engine) StartIndexBuild(ctx context.Context, ns string, specs [][]byte, build catalog.UUID) (*IndexBuild, error) {
	b := e.NewIndexBuild(ns, specs, build)
	return b, b.Start(ctx)
}

// Start enters the indexes into the catalog as not ready (oplog: startIndexBuild). From its commit on, writers keep them
// up to date. A build that was cut short begins again: new indexes take the place of the ones that it had, in the same unit of work.
func (b *IndexBuild) Start(ctx context.Context) error {
	b.e.builds.add(b)
	_, err := b.retry(ctx, func(u *UnitOfWork) error {
		c, err := b.begins(u.Catalog())
		if err != nil {
			return err
		}
		next := *c
		if err := b.enter(&next); err != nil {
			return err
		}
		if err := checkDefinition(c, &next); err != nil {
			return err
		}
		if len(b.left) > 0 {
			b.replaceLeft(u, c)
		}
		u.command(c, b.entry("startIndexBuild", c, nil), nil)
		u.stageReplace(c, &next)
		u.OnCommit(func(ts Timestamp) { b.start, b.loaded = ts, ts })
		if !b.hasEntry() {
			return nil
		}
		e := &BuildEntry{Build: b.build, Collection: b.uuid, Quorum: b.quorum, Names: b.Names()}
		if len(b.left) == 0 {
			return u.addEntry(e)
		}
		return u.changeEntry(b.build, func(now BuildEntry) *BuildEntry {
			e.Quorum = now.Quorum
			return e // without votes
		})
	})
	switch {
	case err == nil:
		b.marked = slices.Clone(b.indexes)
		return nil
	case len(b.left) > 0:
		b.indexes = b.left
		return b.end(err)
	case b.leaves(err): // another primary may find the unit in its log, and commit it
		b.e.builds.leave(b)
	default:
		b.e.builds.remove(b)
	}
	return err
}

// begins returns the collection in which the build is to be entered.
func (b *IndexBuild) begins(cat *catalog.Snapshot) (c *catalog.Collection, err error) {
	if len(b.left) > 0 {
		if c = cat.LookupUUID(b.uuid); c == nil {
			return nil, b.gone()
		}
		err = lost(c, b.left)
	} else if c = cat.Lookup(b.ns); c == nil {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "ns does not exist: %s", b.ns)
	}
	b.e.builds.Lock()
	b.ns = c.NS // which a rename has changed since the build was cut short
	b.e.builds.Unlock()
	b.uuid, b.indexes = c.UUID, nil
	return c, err
}

// enter makes the build's indexes, and puts them into c.
func (b *IndexBuild) enter(c *catalog.Collection) error {
	c.Indexes = slices.Clone(c.Indexes)
	for i, raw := range b.specs {
		idx, err := b.e.newIndex(c, raw)
		if err != nil {
			return err
		}
		idx.Ready, idx.Enforcing, idx.Build = false, false, catalog.Build{UUID: b.build}
		b.indexes = append(b.indexes, idx)
		if len(b.left) > 0 {
			at := slices.IndexFunc(c.Indexes, func(now *catalog.Index) bool { return now.Ident == b.left[i].Ident })
			c.Indexes[at] = idx
			continue
		}
		if c.Index(idx.Name) != nil {
			return mongoerr.Newf(mongoerr.IndexAlreadyExists, "Index with name: %s already exists", idx.Name)
		}
		c.Indexes = append(c.Indexes, idx)
	}
	return nil
}

// replaceLeft stages the end of the attempt that was cut short.
//
// Invariant: from the unit that starts a build to the one that commits or aborts it, the catalog has its indexes and, if it has a commit quorum, IndexBuildsNS has
// its entry, over any number of step-downs and crashes. A primary that is about to begin the build again may die at any moment: the next one finds what this one
// has found. No other command can take the indexes' names, nor rename the collection, as long as nobody has begun again, and who waits for the build does not find it
// gone.
// Hazard: a build that is aborted in one unit and started in another is lost if the primary dies, or steps down, between the two, although members and clients that
// have joined it may be waiting for it. Rejected: a document with the intention to begin again, which would be a second record of what the catalog says.
func (b *IndexBuild) replaceLeft(u *UnitOfWork, c *catalog.Collection) {
	u.command(c, b.entry("abortIndexBuild", c, errCutShort), nil)
	u.catalogs.ops = append(u.catalogs.ops, func(ch *catalogChange) error {
		for _, idx := range b.left {
			ch.dropIdent(idx.Ident, 0)
		}
		return nil
	})
}

var errCutShort = mongoerr.New(mongoerr.InterruptedAtShutdown, "the index build was interrupted by a shutdown")

// retry is Engine.retry for a commit of the build.
func (b *IndexBuild) retry(ctx context.Context, f func(*UnitOfWork) error) (Timestamp, error) {
	b.since.Store(time.Now().UnixNano())
	defer b.since.Store(0)
	return b.e.retry(ctx, f)
}

// Waiting returns how long the build has been waiting for the commit that is under way.
func (b *IndexBuild) Waiting() time.Duration {
	since := b.since.Load()
	if since == 0 {
		return 0
	}
	return time.Duration(time.Now().UnixNano() - since)
}

// Building returns the build of that UUID if it is running, or nil.
func (e *Engine) Building(build catalog.UUID) *IndexBuild { return e.builds.get(build) }

// retry runs a small unit of work, again if it meets a conflict.
func (e *Engine) retry(ctx context.Context, f func(*UnitOfWork) error) (ts Timestamp, err error) {
	for {
		s := e.Snapshot()
		u := e.NewUnitOfWork(s)
		if err = f(u); err == nil {
			ts, err = e.Commit(ctx, u, true)
		}
		u.Rollback()
		s.Release()
		if err == nil || !ErrConflict(err) || ctx.Err() != nil {
			return ts, err
		}
	}
}

// entry returns the oplog command for a step of the build.
func (b *IndexBuild) entry(verb string, c *catalog.Collection, cause error) []byte {
	specs := make([]value.Value, len(b.indexes))
	for i, idx := range b.indexes {
		specs[i] = value.NewDocument(idx.Spec.Raw)
	}
	f := []value.Field{value.F(verb, value.NewString(c.Name())), value.F("indexBuildUUID", b.build.Value()),
		value.F("indexes", value.NewArray(value.ArrayOf(specs...)))}
	if cause != nil {
		me := mongoerr.From(cause)
		f = append(f, value.F("cause", value.NewDocument(value.Doc(value.F("ok", value.NewBool(false)),
			value.F("code", value.NewInt32(int32(me.Code))), value.F("codeName", value.NewString(me.Code.Name())),
			value.F("errmsg", value.NewString(me.Message))))))
	}
	return value.Doc(f...)
}

func (b *IndexBuild) setPhase(p string) { b.phase.Store(&p) }

// Progress returns how far the build has come. It may be called from any goroutine while Run is under way.
func (b *IndexBuild) Progress() BuildProgress {
	return BuildProgress{Phase: *b.phase.Load(), Done: b.done.Load(), Total: b.total.Load()}
}

// UUID identifies the build.
func (b *IndexBuild) UUID() catalog.UUID { return b.build }

// Run scans, sorts, loads, checks uniqueness, waits for the commit quorum if there is one, and commits (oplog: commitIndexBuild); on failure or when
// ctx ends it aborts the build (oplog: abortIndexBuild) and returns why.
func (b *IndexBuild) Run(ctx context.Context) (Timestamp, error) {
	if err := b.Load(ctx); err != nil {
		return 0, err
	}
	return b.Complete(ctx)
}

// Load is the first part of Run: after it, the indexes have all their keys.
func (b *IndexBuild) Load(ctx context.Context) error {
	ctx, release := b.stop.within(ctx)
	defer release()
	err := b.fill(ctx)
	if err == nil {
		err = b.checkUnique(ctx)
	}
	if err != nil {
		err = b.end(err)
	}
	return err
}

// Complete is the second part: it waits for the commit quorum and commits.
func (b *IndexBuild) Complete(ctx context.Context) (ts Timestamp, err error) {
	if b.hasEntry() {
		err = b.awaitQuorum(ctx)
	}
	if err == nil {
		err = b.stop.why()
	}
	if err == nil {
		ts, err = b.finish(ctx)
	}
	if err != nil {
		return 0, b.end(err)
	}
	b.e.builds.remove(b)
	return ts, nil
}

func (b *IndexBuild) awaitQuorum(ctx context.Context) error {
	ctx, release := b.stop.within(ctx)
	defer release()
	return b.wait(ctx, b)
}

// end ends a build that failed: it is aborted, or left to the next primary. If it cannot be aborted, for example because the disk is full, it stays among Builds, and
// is left to the service of unfinished builds, which tries again (UnfinishedBuild.Failed).
func (b *IndexBuild) end(err error) error {
	if why := b.stop.why(); why != nil && (errors.Is(err, context.Canceled) || mongoerr.CodeOf(err).IsInterruption()) {
		err = why // what else has failed was first
	}
	if b.leaves(err) {
		b.Leave()
		return err
	}
	b.cause = err
	// The build's own context may be what ended, so the removal does not use it.
	if aerr := b.Abort(context.Background()); aerr != nil {
		b.e.log.Error().Err(aerr).Str("ns", b.ns).Msg("aborting an index build, which will be tried again")
		b.setPhase(phaseAbort)
		b.e.builds.fail(b)
	}
	return b.failed(err)
}

// Leave ends a build without removing its indexes: the next primary, which may be this member, continues with it.
func (b *IndexBuild) Leave() { b.e.builds.leave(b) }

// failed prefixes an error about the documents with the build and its collection. Errors from outside, which end a build, remain as they are.
func (b *IndexBuild) failed(err error) error {
	switch code := mongoerr.CodeOf(err); {
	case code.IsInterruption(), code.IsNotPrimary(), code == mongoerr.IndexBuildAborted, code == mongoerr.NamespaceNotFound:
		return err
	}
	return mongoerr.From(err).Prefix(fmt.Sprintf("Index build failed: %s: Collection %s ( %s ) :: caused by :: ", b.build, b.ns, b.uuid))
}

// snapshot returns a view of the store at the build's start. Unfinished indexes hold the history window back, so
// that view is still available.
func (b *IndexBuild) snapshot() (*Snapshot, error) {
	if !isLocal(b.indexes[0].Ident) {
		return b.e.SnapshotAt(b.start)
	}
	s := b.e.Snapshot()
	s.local = b.start
	return s, nil
}

// fill loads the collection as of the start of the build.
func (b *IndexBuild) fill(ctx context.Context) error {
	s, err := b.snapshot()
	if err != nil {
		return err
	}
	defer s.Release()
	c := s.Catalog().LookupUUID(b.uuid)
	if c == nil {
		return b.gone()
	}
	b.total.Store(c.Counters.Records.Load())
	sorters := make([]*extsort.Sorter, len(b.indexes))
	for i := range sorters {
		sorters[i] = extsort.New(extsort.Options{Memory: 200 << 20 / int64(len(sorters)), Store: spillStore{b.e}})
		defer sorters[i].Close()
	}
	if err := b.scan(ctx, s, c, sorters); err != nil {
		return err
	}
	b.setPhase(phaseLoad)
	for i, idx := range b.indexes {
		if err := b.load(ctx, idx, sorters[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *IndexBuild) gone() error {
	return mongoerr.Newf(mongoerr.IndexBuildAborted, "collection %s was dropped during the index build", b.ns)
}

func (b *IndexBuild) scan(ctx context.Context, s *Snapshot, c *catalog.Collection, sorters []*extsort.Sorter) error {
	cur := s.Scan(c, ScanOptions{})
	defer cur.Close()
	var set indexkey.KeySet
	var key []byte
	for n := int64(1); cur.Next(); n++ {
		for i, idx := range b.indexes {
			if err := idx.Keys.Keys(cur.Doc(), &set); err != nil {
				return err
			}
			for k := 0; k < set.Len(); k++ {
				key = appendIndexKey(key[:0], idx, set.Key(k), cur.RecordID())
				if err := sorters[i].Add(key, set.TypeBits(k)); err != nil {
					return err
				}
			}
			if set.IsMultikey() {
				b.marked[i] = b.marked[i].WithMultikey(set.Multikey, set.ArrayPaths)
			}
		}
		if n%1024 == 0 {
			b.done.Store(n)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return cur.Err()
}

// smallLoad is the size up to which keys go through the log like any write. Larger loads are written as sstables,
// which the store ingests.
const smallLoad = 4 << 20

func (b *IndexBuild) load(ctx context.Context, idx *catalog.Index, sorter *extsort.Sorter) error {
	stats := sorter.Stats()
	it, err := sorter.Sort()
	if err != nil {
		return err
	}
	if stats.Records == 0 {
		return nil
	}
	var sink keySink
	if b.e.replicated() && !isLocal(idx.Ident) {
		sink = &logSink{b: b, ctx: ctx}
	} else if stats.Bytes < smallLoad {
		sink = &batchSink{e: b.e, batch: b.e.db.NewBatch()}
	} else {
		sink = &fileSink{tableFiles{e: b.e, name: fmt.Sprintf("%s%d", buildFilePrefix, idx.Ident)}}
	}
	var key, val []byte
	for n := 0; ; n++ {
		k, tb, ok, err := it.Next()
		if err != nil {
			sink.abandon()
			return err
		}
		if !ok {
			return sink.finish(ctx)
		}
		key = appendVersion(append(appendIdent(key[:0], idx.Ident), k...), uint64(b.start))
		val = append(append(val[:0], entryLive...), tb...)
		if err := sink.add(key, val); err != nil {
			sink.abandon()
			return err
		}
		if n%4096 == 0 && ctx.Err() != nil {
			sink.abandon()
			return context.Cause(ctx)
		}
	}
}

// keySink receives keys in sorted order.
type keySink interface {
	add(key, val []byte) error
	finish(ctx context.Context) error
	abandon()
}

type batchSink struct {
	e     *Engine
	batch *pebble.Batch
}

func (s *batchSink) add(key, val []byte) error { return s.batch.Set(key, val, nil) }
func (s *batchSink) abandon()                  { closeQuietly(s.batch) }
func (s *batchSink) finish(context.Context) error {
	defer closeQuietly(s.batch)
	// The commit of the finished index follows in the same log and is synced, which covers this write.
	return s.e.guard(func() error { return s.e.db.Apply(s.batch, pebble.NoSync) })
}

// logSink sends the keys to all members through the replicated log, as units of work of moderate size.
type logSink struct {
	b   *IndexBuild
	ctx context.Context
	u   *UnitOfWork
}

const logSinkBytes = 1 << 20

func (s *logSink) add(key, val []byte) error {
	if s.u == nil {
		s.u = s.b.e.NewUnitOfWork(nil)
	}
	s.u.stageRaw(func(b *pebble.Batch) error { return b.Set(key, val, nil) })
	if s.u.Size() < logSinkBytes {
		return nil
	}
	return s.finish(s.ctx)
}

func (s *logSink) finish(ctx context.Context) error {
	if s.u == nil {
		return nil
	}
	s.b.since.Store(time.Now().UnixNano())
	ts, err := s.b.e.Commit(ctx, s.u, true)
	s.b.since.Store(0)
	s.b.loaded = max(s.b.loaded, ts)
	s.abandon()
	return err
}

func (s *logSink) abandon() {
	if s.u != nil {
		s.u.Rollback()
		s.u = nil
	}
}

// fileSink writes the keys as tables, which the store ingests.
type fileSink struct{ tableFiles }

func (s *fileSink) finish(ctx context.Context) error {
	err := s.close()
	if err == nil {
		err = s.e.guard(func() error { return s.e.db.Ingest(ctx, s.paths) })
	}
	if err != nil {
		s.abandon()
	}
	return err
}

const buildFilePrefix = "index-build-"

// spillStore keeps the sorter's runs beside the store.
type spillStore struct{ e *Engine }

var spillNumber atomic.Int64

func (s spillStore) Create() (extsort.File, error) {
	path := s.e.opts.FS.PathJoin(s.e.opts.Dir, fmt.Sprintf("%ssort-%d.tmp", buildFilePrefix, spillNumber.Add(1)))
	f, err := s.e.opts.FS.Create(path, vfs.WriteCategoryUnspecified)
	return &spillFile{fs: s.e.opts.FS, path: path, File: f}, err
}

type spillFile struct {
	vfs.File
	fs   vfs.FS
	path string
}

func (f *spillFile) Reader() (io.Reader, error) {
	if err := f.File.Close(); err != nil {
		return nil, err
	}
	r, err := f.fs.Open(f.path)
	f.File = r
	return r, err
}

func (f *spillFile) Remove() error {
	return errorsJoin(f.File.Close(), f.fs.Remove(f.path))
}

// checkUnique first makes writers enforce uniqueness, then checks the whole index for duplicates written before
// that.
func (b *IndexBuild) checkUnique(ctx context.Context) error {
	var unique []string
	for _, idx := range b.indexes {
		if idx.Unique || idx.PrepareUnique {
			unique = append(unique, idx.Name)
		}
	}
	if len(unique) == 0 {
		return nil
	}
	b.setPhase(phaseCheck)
	ts, err := b.change(ctx, "", func(idx *catalog.Index, _ int) { idx.Enforcing = idx.Unique || idx.PrepareUnique })
	if err != nil {
		return err
	}
	b.loaded = max(b.loaded, ts)
	s := b.e.Snapshot()
	defer s.Release()
	c := s.Catalog().LookupUUID(b.uuid)
	if c == nil {
		return b.gone()
	}
	for _, name := range unique {
		if idx := c.Index(name); idx != nil && idx.Unique {
			if err := s.findDuplicate(ctx, c, idx); err != nil {
				return err
			}
		}
	}
	return nil
}

// findDuplicate looks for two records with the same key.
func (s *Snapshot) findDuplicate(ctx context.Context, c *catalog.Collection, idx *catalog.Index) error {
	cur := s.IndexScan(c, idx, false)
	defer cur.Close()
	var last []byte
	for n := 0; cur.Next(); n++ {
		if n > 0 && bytes.Equal(last, cur.Key()) {
			return duplicateKey(c, idx, cur.Key(), cur.TypeBits())
		}
		last = append(last[:0], cur.Key()...)
		if n%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return cur.Err()
}

// change commits a new state of the build's indexes. With a verb, the change is logged as an oplog command.
func (b *IndexBuild) change(ctx context.Context, verb string, f func(idx *catalog.Index, i int)) (Timestamp, error) {
	return b.retry(ctx, func(u *UnitOfWork) error {
		c := u.Catalog().LookupUUID(b.uuid)
		if c == nil {
			return b.gone()
		}
		next := *c
		next.Indexes = append([]*catalog.Index(nil), c.Indexes...)
		for i, idx := range b.indexes {
			found := false
			for n, now := range next.Indexes {
				if now.Ident == idx.Ident {
					changed := *now
					f(&changed, i)
					next.Indexes[n], found = &changed, true
				}
			}
			if !found {
				return dropped(idx)
			}
		}
		if verb != "" {
			u.command(c, b.entry(verb, c, nil), nil)
		}
		u.stageReplace(c, &next)
		if verb == commitVerb {
			return u.changeEntry(b.build, func(BuildEntry) *BuildEntry { return nil })
		}
		return nil
	})
}

func (b *IndexBuild) finish(ctx context.Context) (Timestamp, error) {
	now := b.e.opts.Clock().UnixMilli()
	return b.change(ctx, commitVerb, func(idx *catalog.Index, i int) {
		idx.Ready, idx.Build = true, catalog.Build{}
		idx.Usage = &catalog.Usage{SinceMS: now}
		*idx = *b.withMultikey(idx, i)
	})
}

// commitVerb is the oplog command of a build that has been completed.
const commitVerb = "commitIndexBuild"

// Abort removes the indexes of a build that has failed from the catalog. After an error they are still there, and it can be repeated. A member that is no longer the
// primary leaves them to the next one.
func (b *IndexBuild) Abort(ctx context.Context) error {
	_, err := b.retry(ctx, func(u *UnitOfWork) error {
		c := u.Catalog().LookupUUID(b.uuid)
		if c != nil && !slices.ContainsFunc(c.Indexes, b.has) {
			return nil // its indexes were dropped, and the entry with them, or it has been begun again elsewhere, and the entry is that one's
		}
		if err := u.changeEntry(b.build, func(BuildEntry) *BuildEntry { return nil }); err != nil || c == nil {
			return err
		}
		return u.removeBuilds(c, b.has, b.entry("abortIndexBuild", c, b.cause))
	})
	switch {
	case err == nil:
		b.e.builds.remove(b)
	case mongoerr.CodeOf(err).IsNotPrimary():
		b.Leave()
	default:
		return err
	}
	return nil
}

func (b *IndexBuild) has(idx *catalog.Index) bool {
	for _, i := range b.indexes {
		if i.Ident == idx.Ident {
			return true
		}
	}
	return false
}

// runningBuilds are the builds that this engine is running.
type runningBuilds struct {
	sync.Mutex
	m      map[catalog.UUID]*IndexBuild
	failed []*IndexBuild // those of m that could not be aborted
	left   chan struct{} // see LeftBuilds
}

func (r *runningBuilds) add(b *IndexBuild) {
	r.Lock()
	if r.m == nil {
		r.m = map[catalog.UUID]*IndexBuild{}
	}
	r.m[b.build] = b
	r.Unlock()
}

// HeldUp reports whether commits are waiting for their outcome: detached units, or the commit of a build for
// longer than d.
func (e *Engine) HeldUp(d time.Duration) bool {
	if e.DetachedCommits() > 0 {
		return true
	}
	e.builds.Lock()
	defer e.builds.Unlock()
	for _, b := range e.builds.m {
		if b.Waiting() >= d {
			return true
		}
	}
	return false
}

// remove takes a build off, unless it has been begun again: then that one runs.
func (r *runningBuilds) remove(b *IndexBuild) {
	r.Lock()
	defer r.Unlock()
	if r.m[b.build] == b {
		delete(r.m, b.build)
	}
}

// leave removes a build that the next primary continues; that may be this member.
func (r *runningBuilds) leave(b *IndexBuild) {
	r.remove(b)
	r.notify()
}

// fail notes that a build could not be aborted.
func (r *runningBuilds) fail(b *IndexBuild) {
	r.Lock()
	r.failed = append(r.failed, b)
	r.Unlock()
	r.notify()
}

// takeFailed returns, once, the builds that could not be aborted.
func (r *runningBuilds) takeFailed() (all []*IndexBuild) {
	r.Lock()
	defer r.Unlock()
	all, r.failed = r.failed, nil
	return all
}

func (r *runningBuilds) notify() {
	select {
	case r.left <- struct{}{}:
	default:
	}
}

// LeftBuilds receives when a build has ended without being completed or aborted. If this member is the primary by then, it is among TakeUnfinishedBuilds.
func (e *Engine) LeftBuilds() <-chan struct{} { return e.builds.left }

// Builds returns the builds that are running.
func (e *Engine) Builds() (all []*IndexBuild) {
	e.builds.Lock()
	defer e.builds.Unlock()
	for _, b := range e.builds.m {
		all = append(all, b)
	}
	return all
}

// poke makes a build look at its entry.
func (r *runningBuilds) poke(id catalog.UUID) {
	if b := r.get(id); b != nil {
		select {
		case b.changed <- struct{}{}:
		default:
		}
	}
}

func (r *runningBuilds) get(id catalog.UUID) *IndexBuild {
	r.Lock()
	defer r.Unlock()
	return r.m[id]
}

// removeBuilds stages the removal of unfinished indexes.
func (u *UnitOfWork) removeBuilds(c *catalog.Collection, which func(*catalog.Index) bool, o []byte) error {
	next := *c
	next.Indexes = nil
	var gone []*catalog.Index
	for _, idx := range c.Indexes {
		if !idx.Ready && which(idx) {
			gone = append(gone, idx)
		} else {
			next.Indexes = append(next.Indexes, idx)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	u.command(c, o, nil)
	u.stageReplace(c, &next)
	u.catalogs.ops = append(u.catalogs.ops, func(ch *catalogChange) error {
		for _, idx := range gone {
			ch.dropIdent(idx.Ident, 0)
		}
		return nil
	})
	u.catalogs.spare += 2 // both changes only drop: a build that a full disk ends can be removed
	return nil
}

// UnfinishedBuild is an index build that was cut short by a crash, a shutdown or a step-down. In a set its indexes remain in the catalog until it is begun again
// (Again), or completed if they had all their keys (ReadyBuild). A lone server removes them when it opens the store.
type UnfinishedBuild struct {
	NS     string
	Build  catalog.UUID
	Specs  [][]byte
	Quorum value.Value // missing for a build without a commit quorum
	ready  *IndexBuild
	left   *IndexBuild
	failed *IndexBuild
}

// Failed returns the build if it has failed and could not be aborted, which the caller repeats (IndexBuild.Abort) until it succeeds or the node steps down
// (IndexBuild.Leave); nil for one that is to be continued.
func (f *UnfinishedBuild) Failed() *IndexBuild { return f.failed }

// Again returns the build, which is to begin again with Start. wait is for one with a commit quorum.
func (f *UnfinishedBuild) Again(e *Engine, wait WaitForCommit) *IndexBuild {
	b := e.NewIndexBuild(f.NS, f.Specs, f.Build)
	if f.left != nil {
		b.uuid, b.left = f.left.uuid, f.left.indexes
	}
	if !f.Quorum.IsMissing() {
		b.WithQuorum(f.Quorum, wait)
	}
	return b
}

// TakeUnfinishedBuilds returns, once, the builds that were under way when the store was last closed or when
// another member stopped being primary, and those that have failed and could not be aborted. The caller, a primary, starts or aborts them again.
func (e *Engine) TakeUnfinishedBuilds() ([]UnfinishedBuild, error) {
	for _, b := range e.builds.takeFailed() {
		if c := e.Catalog().LookupUUID(b.uuid); c == nil || !slices.ContainsFunc(c.Indexes, b.has) {
			e.builds.remove(b) // another primary has aborted it, or begun it again
			continue
		}
		e.unfinished = append(e.unfinished, UnfinishedBuild{NS: b.Namespace(), Build: b.build, Specs: b.specs, failed: b})
	}
	if e.replicated() {
		if err := e.resetBuilds(); err != nil {
			return nil, err
		}
	}
	found := e.unfinished
	e.unfinished = nil
	return found, nil
}

// resetBuilds lists the unfinished builds that are not running. On a lone server it removes from the catalog what they left there.
func (e *Engine) resetBuilds() error {
	for _, c := range e.Catalog().All() {
		for _, b := range e.leftBuilds(c) {
			if err := e.resetBuild(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// leftBuilds returns the unfinished builds of a collection that are not running.
func (e *Engine) leftBuilds(c *catalog.Collection) (order []*IndexBuild) {
	for _, idx := range c.Indexes {
		if idx.Ready || e.builds.get(idx.Build.UUID) != nil {
			continue
		}
		at := slices.IndexFunc(order, func(b *IndexBuild) bool { return b.build == idx.Build.UUID })
		if at < 0 {
			at = len(order)
			order = append(order, e.NewIndexBuild(c.NS, nil, idx.Build.UUID))
			order[at].uuid = c.UUID
		}
		b := order[at]
		b.indexes, b.specs = append(b.indexes, idx), append(b.specs, idx.Spec.Raw)
	}
	return order
}

func (e *Engine) resetBuild(b *IndexBuild) error {
	found := UnfinishedBuild{NS: b.ns, Build: b.build, Specs: b.specs}
	entry, err := e.BuildEntry(b.build)
	if err != nil {
		return err
	}
	if entry != nil {
		found.Quorum = entry.Quorum
	}
	switch {
	case entry != nil && e.replicated() && !slices.ContainsFunc(b.indexes, func(idx *catalog.Index) bool { return !idx.Build.Loaded }):
		b.setPhase(phaseQuorum)
		b.marked, b.loaded = slices.Clone(b.indexes), e.Visible()
		e.builds.add(b)
		found.ready = b
	case e.replicated():
		found.left = b
	default:
		b.cause = errCutShort
		if err := b.Abort(context.Background()); err != nil {
			e.log.Error().Err(err).Str("ns", b.ns).Msg("removing what an index build has left")
			found.left = b // it is replaced as the build begins again
		}
	}
	e.unfinished = append(e.unfinished, found)
	return nil
}

// removeBuildFiles removes what builds and copies have left beside the store's tables.
func (e *Engine) removeBuildFiles() error {
	names, err := e.opts.FS.List(e.opts.Dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if !strings.HasPrefix(n, buildFilePrefix) && !strings.HasPrefix(n, copyFilePrefix) {
			continue
		}
		if err := e.opts.FS.Remove(e.opts.FS.PathJoin(e.opts.Dir, n)); err != nil {
			return err
		}
	}
	return nil
}
