package storage

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/witness"
)

// Options configure an engine.
type Options struct {
	Dir    string
	Memory bool   // keep everything in memory; Dir is ignored
	FS     vfs.FS // nil for the disk (or memory); tests pass file systems that can crash
	// CacheSize is the block cache in bytes; 0 picks a default.
	CacheSize int64
	// Clock is the only source of time; nil is time.Now.
	Clock  func() time.Time
	Logger *zerolog.Logger // nil for no log
	// HistoryWindow is the age of the oldest state that snapshots can read (minSnapshotHistoryWindowInSeconds); 0 is 300 s.
	HistoryWindow time.Duration
	// Needs returns the oldest time whose state will still be read, whatever its age, the largest timestamp if there is none; nil for none. It is asked in each round of the collector, on each member, about
	// what is stored, so that a member that becomes primary, or starts again, has what its predecessor kept.
	Needs func(*Snapshot) (Timestamp, error)
	// OplogSize is the size in bytes that the oplog is truncated to; 0 picks 5 % of the free disk, at least 990
	// MB, and 64 MB in memory. While the disk is low it is lowOplog at most.
	OplogSize int64
	// Standalone keeps no oplog: no other node follows the store. An existing oplog, from the time as a member of a set, stays as it is.
	Standalone bool
	// JournalInterval is the interval at which writes that did not wait for a sync are made durable; 0 is 100 ms.
	JournalInterval time.Duration
	// CollectInterval is the interval at which dead versions, dropped tables and old oplog entries are looked for; 0 is 5 s.
	CollectInterval time.Duration
	// MinFreeDisk is the free space below which units of work are refused with OutOfDiskSpace; 0 is 128 MB for
	// each of the stores on the disk, but no more than half of a disk of more than 256 MB.
	MinFreeDisk int64
	// Stores is the number of stores of the process that share the disk; 0 is 1.
	Stores int
	// OnFailure is called once when the store accepts no more writes, because its disk failed or a file is damaged; nil for
	// nobody. It must not use the store. Where the disk fails while pebble changes logs, pebble ends the process next.
	OnFailure func(error)

	// stageBytes and chunkBytes are set by tests, see staged.go.
	stageBytes, chunkBytes int
	copyStep               func(step string) error // before each step of a copy, see tableCopy
	memTable               int64
}

// Engine is the storage engine of one node.
type Engine struct {
	opts Options
	log  zerolog.Logger
	db   *pebble.DB
	term atomic.Int64

	failed atomic.Pointer[error]
	salt   uint64

	engineFiles
	commitPath
	readPath
	catalogState
	replica    replicaState
	notices    notices
	claims     claimTable
	space      spaceGuard
	oplog      oplogState
	spans      tableSpans
	collecting sync.Mutex // held while dead versions and tables are being deleted

	background struct {
		ctx  context.Context
		stop context.CancelFunc
		wg   sync.WaitGroup
	}
}

// engineFiles has the file system of the store, and the state of access to it.
type engineFiles struct {
	files   vfs.FS      // the file system that pebble works on
	witness *witness.FS // watches over the files; nil in memory
	lock    *pebble.Lock
	gate    fileGate     // see HoldFiles
	running atomic.Bool  // the store is open: tables need not be written in a hurry
	pauses  atomic.Int64 // of writers of tables, for the sake of clients
}

// commitPath has the stages that a unit passes through until it is durable.
type commitPath struct {
	commit   committer
	lines    [2]line
	waiters  sync.Pool     // *waiter
	detached atomic.Int64  // detached units, see DetachedCommits
	durable  atomic.Uint64 // the newest Timestamp synced to disk
	journal  journalWaits
}

// readPath has the state that readers use.
type readPath struct {
	view      atomic.Pointer[view] // the newest view, which new readers get
	watch     visibleWatch
	snapshots snapshotRegistry
	iters     iterPool
}

// catalogState has the engine's state of the catalog besides the snapshot in its view.
type catalogState struct {
	nextEntry  atomic.Int64 // next catalog id
	nextEpoch  atomic.Uint64
	history    catalogHistory
	builds     runningBuilds
	unfinished []UnfinishedBuild // when the store was opened
}

// view is the state that becomes visible at once: a moment and its catalog.
type view struct {
	moment
	cat  *catalog.Snapshot
	late lateList
}

// Open opens or creates the store, recovers it after a crash, and starts its background work.
func Open(opts Options) (*Engine, error) {
	opts.setDefaults()
	e := &Engine{opts: opts, log: zerolog.Nop()}
	e.term.Store(1)
	e.waiters.New = newWaiter
	e.space.wake, e.builds.left = make(chan struct{}, 1), make(chan struct{}, 1)
	if opts.Logger != nil {
		e.log = *opts.Logger
	}
	e.SetHistoryWindow(opts.HistoryWindow)
	e.claims.init()
	e.replica.init()
	e.replica.staging.size(opts.stageBytes, opts.chunkBytes)
	e.initLines()
	if err := e.openFiles(); err != nil {
		return nil, err
	}
	rest, err := e.openStore()
	if err != nil {
		return nil, errorsJoin(openError(opts.Dir, err), e.closeFiles())
	}
	ctx, stop := context.WithCancel(context.Background())
	e.background.ctx, e.background.stop = ctx, stop
	e.running.Store(true)
	e.spawn(func() { e.journalLoop(ctx) })
	e.spawn(func() { e.collectLoop(ctx) })
	e.spawn(func() { e.iters.closeLoop(ctx) })
	e.spawn(func() { e.checkRest(ctx, rest) })
	return e, nil
}

// openStore opens pebble's store, checks its tables, and recovers. It returns the tables that it did not get to
// check.
func (e *Engine) openStore() (rest []table, err error) {
	if err := e.openPebble(); err != nil {
		return nil, err
	}
	e.iters.db, e.iters.wake = e.db, make(chan struct{}, 1)
	if !e.opts.Memory {
		rest, err = e.checkTables()
	}
	if err == nil {
		err = e.recover()
	}
	if err != nil {
		e.iters.close()
		err = errorsJoin(err, e.db.Close())
	}
	return rest, err
}

func (o *Options) setDefaults() {
	if o.FS == nil {
		if o.Memory {
			o.FS = vfs.NewMem()
		} else {
			o.FS = vfs.Default
		}
	}
	if o.Memory {
		o.Dir = "data"
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	setDefault(&o.CacheSize, 256<<20)
	setDefault(&o.HistoryWindow, 300*time.Second)
	setDefault(&o.JournalInterval, 100*time.Millisecond)
	setDefault(&o.CollectInterval, 5*time.Second)
	o.fitDisk()
	setDefault(&o.stageBytes, stageBytes)
	setDefault(&o.chunkBytes, chunkBytes)
	if o.OplogSize == 0 {
		o.OplogSize = 990 << 20
		if o.Memory {
			o.OplogSize = 64 << 20
		} else if du, err := o.FS.GetDiskUsage(o.Dir); err == nil {
			o.OplogSize = min(max(int64(du.AvailBytes/20), 990<<20), 50<<30)
		}
	}
}

const (
	// minFreeDisk is the default of Options.MinFreeDisk for one store: room for one memtable to be flushed while
	// the next fills.
	minFreeDisk = 128 << 20
	// memTableSize is large enough for sequential inserts to reach the disk as few files that need no further
	// compaction.
	memTableSize = 64 << 20
	// memTableShare is the fraction of the disk (1/n) that the memtables of all its stores may take when they are
	// flushed at once, as those of a set's members are.
	memTableShare = 16
)

// fitDisk sets the options whose defaults depend on the size of the disk.
func (o *Options) fitDisk() {
	du, err := o.FS.GetDiskUsage(o.existing())
	total, stores := int64(du.TotalBytes), int64(max(o.Stores, 1))
	if err != nil || o.Memory {
		setDefault(&o.MinFreeDisk, minFreeDisk)
		setDefault(&o.memTable, memTableSize)
		return
	}
	setDefault(&o.MinFreeDisk, max(minFreeDisk, min(minFreeDisk*stores, total/2)))
	setDefault(&o.memTable, min(memTableSize, max(memTableSize/16, total/memTableShare/stores)))
}

// existing returns the store's directory, or its nearest ancestor that exists.
func (o *Options) existing() string {
	dir := o.Dir
	for up := o.FS.PathDir(dir); up != dir; up = o.FS.PathDir(dir) {
		if _, err := o.FS.Stat(dir); err == nil {
			break
		}
		dir = up
	}
	return dir
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (e *Engine) spawn(f func()) {
	e.background.wg.Add(1)
	go func() {
		defer e.background.wg.Done()
		f()
	}()
}

// openPebble opens pebble's store. Pebble panics on journals whose records are corrupt.
func (e *Engine) openPebble() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = damaged(r)
		}
	}()
	e.returnReserved()
	o := e.pebbleOptions()
	o.Lock = e.lock
	return e.guard(func() error {
		e.db, err = pebble.Open(e.opts.Dir, o)
		return err
	})
}

// returnReserved releases the disk space that the logs of the previous run have reserved and not used: on a full
// disk recovery needs it to write tables. Truncating a file to its own length does that.
func (e *Engine) returnReserved() {
	if vfs.Root(e.opts.FS) != vfs.Default {
		return
	}
	logs, _ := filepath.Glob(filepath.Join(e.opts.Dir, "*.log"))
	for _, path := range logs {
		if st, err := os.Stat(path); err == nil {
			_ = os.Truncate(path, st.Size()) // on an error the space stays reserved until the log goes
		}
	}
}

// Close stops background work, flushes, and closes the store. All snapshots and units must have ended.
func (e *Engine) Close() error {
	e.ReleaseFiles()
	e.running.Store(false)
	e.background.stop()
	e.background.wg.Wait()
	e.commit.close()
	e.iters.close()
	if err := e.failure(); err != nil {
		// A store that failed is not flushed: what it has acknowledged is in its log, which recovery reads.
		return err
	}
	var err error
	if !e.opts.Memory {
		err = e.guard(func() error { return e.db.LogData(nil, pebble.Sync) })
	}
	return errorsJoin(errorsJoin(err, e.db.Close()), e.closeFiles())
}

// Visible returns the timestamp of the newest commit that readers see.
func (e *Engine) Visible() Timestamp { return e.view.Load().ts }

// Durable returns the timestamp of the newest commit that is synced to disk.
func (e *Engine) Durable() Timestamp { return Timestamp(e.durable.Load()) }

// Oldest returns the earliest timestamp that a snapshot may have.
func (e *Engine) Oldest() Timestamp { return Timestamp(e.lines[lineReplicated].oldest.Load()) }

// Catalog returns the newest catalog.
func (e *Engine) Catalog() *catalog.Snapshot { return e.view.Load().cat }

// Term returns the election term that oplog entries get.
func (e *Engine) Term() int64 { return e.term.Load() }

// SetTerm changes the term of later entries, after an election.
func (e *Engine) SetTerm(t int64) { e.term.Store(t) }

// Sync makes everything visible so far durable.
func (e *Engine) Sync(ctx context.Context) error {
	v := e.view.Load()
	synced := &e.lines[lineLocal].synced
	if e.Durable() >= v.ts && synced.Load() >= uint64(v.local) {
		return nil
	}
	if err := e.failure(); err != nil {
		return err
	}
	if e.opts.Memory {
		// There is no journal, hence nothing to wait for: the committer is about to report this timestamp as
		// durable anyway.
		e.setDurable(v.ts)
		synced.Store(uint64(v.local))
		return nil
	}
	if err := e.guard(func() error { return e.db.LogData(nil, pebble.Sync) }); err != nil {
		return err
	}
	e.setDurable(v.ts)
	synced.Store(uint64(v.local))
	return nil
}

func (e *Engine) setDurable(ts Timestamp) {
	for {
		old := e.durable.Load()
		if old >= uint64(ts) {
			return
		}
		if e.durable.CompareAndSwap(old, uint64(ts)) {
			e.watch.wake()
			return
		}
	}
}

// journalLoop periodically syncs writes without waiters.
func (e *Engine) journalLoop(ctx context.Context) {
	t := time.NewTicker(e.opts.JournalInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := e.Sync(ctx); err != nil && e.failure() == nil {
				e.log.Error().Err(err).Msg("syncing the journal")
			}
			e.iters.trim(e.opts.Clock())
		}
	}
}
