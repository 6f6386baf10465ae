package storage

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/cockroachkvs"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// SnapshotManifest describes the files of a snapshot of all replicated tables.
type SnapshotManifest struct {
	Index, Term uint64 // newest entry of the log that it includes
	TS          Timestamp
	Files       []SnapshotFile
}

// SnapshotFile is one file of a snapshot. The files are in key order and do not overlap.
type SnapshotFile struct {
	Name string
	Size int64
	Sum  uint64 // xxhash64 of the content
}

// replicatedSpan returns the span of the tables that members have in common.
func replicatedSpan() (lower, upper []byte) {
	lower, _ = identRange(identMeta)
	upper, _ = identRange(identLocal)
	return lower, upper
}

// WriteSnapshot writes everything that is replicated, with its history, as of one entry of the log, into dir, in files of
// about maxFile bytes. It reads from one iterator, so writers and readers continue meanwhile.
func (e *Engine) WriteSnapshot(ctx context.Context, dir string, maxFile int64) (m SnapshotManifest, err error) {
	lower, upper := replicatedSpan()
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return m, err
	}
	defer closeQuietly(it)
	if it.SeekGE(metaKey(metaApplied)) && bytes.Equal(it.Key(), metaKey(metaApplied)) {
		var at applied
		p, err := it.ValueAndErr()
		if err != nil {
			return m, err
		}
		at.decode(p)
		m.Index, m.Term, m.TS = at.index, at.term, at.ts
	}
	files := e.Files()
	if err := files.Remove(dir); err != nil {
		return m, err
	}
	w := snapshotWriter{e: e, dir: files.path(dir), max: maxFile}
	if err := e.opts.FS.MkdirAll(w.dir, 0o755); err != nil {
		return m, err
	}
	err = w.copy(ctx, it)
	if err = errorsJoin(err, w.close()); err != nil {
		return m, errorsJoin(err, files.Remove(dir))
	}
	m.Files = w.files
	return m, nil
}

type snapshotWriter struct {
	e     *Engine
	dir   string
	max   int64
	size  int64
	last  []byte // the last key written
	w     *sstable.Writer
	f     *summedFile
	files []SnapshotFile
}

func (w *snapshotWriter) copy(ctx context.Context, it *pebble.Iterator) error {
	split := cockroachkvs.Comparer.Split
	for n, ok := 0, it.First(); ok; n, ok = n+1, it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		k := it.Key()
		// All versions of one key go into the same file.
		if w.w != nil && w.size > w.max && !bytes.Equal(k[:split(k)], w.last[:split(w.last)]) {
			if err := w.close(); err != nil {
				return err
			}
		}
		if w.w == nil {
			if err := w.open(); err != nil {
				return err
			}
		}
		if err := w.w.Set(k, val); err != nil {
			return err
		}
		w.size += int64(len(k) + len(val))
		w.last = append(w.last[:0], k...)
		if n%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return it.Error()
}

func (w *snapshotWriter) open() error {
	name := snapshotFileName(len(w.files))
	f, err := w.e.opts.FS.Create(w.e.opts.FS.PathJoin(w.dir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// Written to disk continuously: one sync of a whole file would delay those of the log.
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: 1 << 20})
	w.f = &summedFile{File: f, sum: xxhash.New()}
	w.files = append(w.files, SnapshotFile{Name: name})
	o := w.e.pebbleOptions()
	o.EnsureDefaults()
	w.w = sstable.NewWriter(objstorageprovider.NewFileWritable(w.f), o.MakeWriterOptions(6, w.e.db.TableFormat()))
	w.size = 0
	return nil
}

func (w *snapshotWriter) close() error {
	if w.w == nil {
		return nil
	}
	err := w.w.Close()
	w.w = nil
	f := &w.files[len(w.files)-1]
	f.Size, f.Sum = w.f.size, w.f.sum.Sum64()
	return err
}

func snapshotFileName(n int) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[n>>12&15], digits[n>>8&15], digits[n>>4&15], digits[n&15]}) + ".sst"
}

// summedFile computes the checksum of what is written to it.
type summedFile struct {
	vfs.File
	sum  *xxhash.Digest
	size int64
}

func (f *summedFile) Write(p []byte) (int, error) {
	_, _ = f.sum.Write(p) // before Write, which may change p
	f.size += int64(len(p))
	return f.File.Write(p)
}

// checkSnapshot verifies that a snapshot's files match the manifest and hold only keys of replicated tables.
func (e *Engine) checkSnapshot(ctx context.Context, dir string, m SnapshotManifest) error {
	if len(m.Files) == 0 {
		return corrupt("the snapshot has no files")
	}
	for _, f := range m.Files {
		if strings.ContainsAny(f.Name, `/\`) || f.Name == ".." {
			return corrupt("the snapshot has a file named %q", f.Name)
		}
		path := e.opts.FS.PathJoin(dir, f.Name)
		if err := e.checkSum(ctx, path, f); err != nil {
			return err
		}
		if err := e.checkBounds(path, f); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) checkSum(ctx context.Context, path string, want SnapshotFile) error {
	if _, err := e.opts.FS.Stat(path); err != nil {
		return err
	}
	f, err := e.opts.FS.OpenReadWrite(path, vfs.WriteCategoryUnspecified, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	defer closeQuietly(f)
	sum := xxhash.New()
	buf := make([]byte, 1<<20)
	size := int64(0)
	for {
		n, err := f.Read(buf)
		_, _ = sum.Write(buf[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			break
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if size != want.Size || sum.Sum64() != want.Sum {
		return corrupt("file %s of the snapshot is damaged: it has %d of %d bytes, or another checksum", want.Name, size, want.Size)
	}
	// The store ingests files without making them durable.
	return f.Sync()
}

func (e *Engine) checkBounds(path string, want SnapshotFile) error {
	f, err := e.opts.FS.Open(path)
	if err != nil {
		return err
	}
	r, err := e.readTable(f, func(err error) error { return corrupt("file %s of the snapshot: %v", want.Name, err) })
	if err != nil {
		return err
	}
	defer closeQuietly(r)
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	first := it.First()
	if first == nil {
		return corrupt("file %s of the snapshot is empty", want.Name)
	}
	low := identOf(first.K.UserKey)
	last := it.Last()
	if last == nil || low < identMeta || identOf(last.K.UserKey) >= identLocal {
		return corrupt("file %s of the snapshot has keys that are not replicated", want.Name)
	}
	return nil
}

// InstallSnapshot replaces everything replicated by a snapshot, in the store and in memory. It is refused on the
// primary, and if the store is already ahead of the snapshot; a snapshot of a later term may end before what is
// applied, which a forced reconfiguration has then abandoned. The files become the store's own.
//
// Invariant: the store has either the old or the new state, however the installation is interrupted. The files are
// verified and synced first, then one ingestion excises the old span and adds them. Hazard: a reader with a view
// of the old state whose next iterator shows the new one would mix the two. The era of the iterator pool therefore
// changes before the store does: readers keep the iterators that they have, and are refused new ones with
// InterruptedDueToReplStateChange.
//
// Rejected: writing the snapshot's keys through the memtable. It is not atomic, so a crash would leave a mixture
// that only a second journal could explain, and it writes everything twice.
func (e *Engine) InstallSnapshot(ctx context.Context, dir string, m SnapshotManifest) error {
	path := e.Files().path(dir)
	if err := e.checkSnapshot(ctx, path, m); err != nil {
		return err
	}
	if err := e.syncSnapshot(path, m); err != nil {
		return err
	}
	// The collector works from lists of what exists, so it must not run meanwhile.
	e.collecting.Lock()
	defer e.collecting.Unlock()
	if err := e.installFiles(ctx, path, m); err != nil {
		return err
	}
	e.replica.notify(ApplyInfo{Index: m.Index, TS: e.Visible(), Catalog: true, Snapshot: true})
	return e.Files().Remove(dir)
}

// syncSnapshot makes the files durable: the store ingests them by name.
func (e *Engine) syncSnapshot(dir string, m SnapshotManifest) error {
	for _, f := range m.Files {
		file, err := e.opts.FS.Open(e.opts.FS.PathJoin(dir, f.Name))
		if err != nil {
			return err
		}
		if err := errorsJoin(file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	d, err := e.opts.FS.OpenDir(dir)
	if err != nil {
		return err
	}
	return errorsJoin(d.Sync(), d.Close())
}

func (e *Engine) installFiles(ctx context.Context, dir string, m SnapshotManifest) error {
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := e.failure(); err != nil {
		return err
	}
	switch {
	case r.mu.mode == modePrimary:
		return mongoerr.New(mongoerr.InternalError, "a primary cannot install a snapshot")
	case m.Index <= r.applied().index && m.Term <= r.applied().term:
		return mongoerr.Newf(mongoerr.InternalError, "the snapshot ends at entry %d, but entry %d is already applied", m.Index, r.applied().index)
	}
	paths := make([]string, len(m.Files))
	for i, f := range m.Files {
		paths[i] = e.opts.FS.PathJoin(dir, f.Name)
	}
	if r.mu.mode == modeSingle {
		r.mu.mode, r.mu.refuse = modeFollower, errNoMember
	}
	r.turn()
	era := e.iters.nextEra()
	lower, upper := replicatedSpan()
	err := e.guard(func() error {
		_, err := e.db.IngestAndExcise(ctx, paths, nil, nil, pebble.KeyRange{Start: lower, End: upper})
		return err
	})
	// Memory is reloaded even if the store refused: readers of the previous era have been cut off.
	loaded := e.load(era)
	if loaded != nil {
		e.fail(loaded) // memory and store disagree
	}
	if err = errorsJoin(err, loaded); err != nil {
		return err
	}
	if at := r.applied(); at.index != m.Index || at.term != m.Term {
		err := corrupt("the snapshot should end at entry %d, and ends at %d", m.Index, at.index)
		e.fail(err)
		return err
	}
	return nil
}

// load brings memory in line with the store: the newest timestamp, the catalog, the counters, and the pending deletions
// of tables. The local line is loaded only once. replica.mu must be held, unless nothing else has access yet.
func (e *Engine) load(era uint32) error {
	p, err := e.getMeta(metaKey(metaApplied))
	if err != nil {
		return err
	}
	at := &applied{}
	at.decode(p)
	top, err := e.newestCommit(at)
	if err != nil {
		return err
	}
	all, err := e.loadLine(&e.lines[lineReplicated], top)
	if err != nil {
		return err
	}
	local := Timestamp(1)
	if old := e.view.Load(); old != nil {
		local = old.local
		old.cat.Each(func(c *catalog.Collection) {
			if isLocal(c.Ident) {
				all = append(all, c)
			}
		})
	} else {
		mark, err := e.metaTime(identLocalMeta, metaTop)
		if err != nil {
			return err
		}
		local = max(local, mark)
		own, err := e.loadLine(&e.lines[lineLocal], local)
		if err != nil {
			return err
		}
		all = append(all, own...)
	}
	e.lines[lineLocal].synced.Store(uint64(local))
	cat := catalog.Of(all)
	e.claims.forget(top)
	e.history.reset(top, cat)
	e.spans.update(cat)
	counters := &catalog.Counters{}
	if c := cat.Lookup(OplogNS); c != nil {
		counters = c.Counters
	}
	e.oplog.counters.Store(counters)
	numbers, err := e.getMeta(metaKey(metaNext))
	if err != nil {
		return err
	}
	e.noteNext(numbers)
	e.replica.mu.follower = nil
	if err := errors.Join(e.loadLate(), e.loadAgreed(), e.loadRefs()); err != nil {
		return err
	}
	e.notices.deliver(top, nil)
	e.view.Store(&view{moment{top, local, era}, cat, e.replica.late.now()})
	e.replica.at.Store(at)
	e.durable.Store(uint64(top))
	e.watch.wake()
	return nil
}

// loadLine loads the state of a line as of ts.
func (e *Engine) loadLine(l *line, ts Timestamp) ([]*catalog.Collection, error) {
	oldest, err := e.metaTime(l.meta, metaOldest)
	if err != nil {
		return nil, err
	}
	l.oldest.Store(uint64(max(oldest, 1)))
	if err := e.loadDrops(l); err != nil {
		return nil, err
	}
	return e.loadCatalog(l.catalog, ts, true)
}
