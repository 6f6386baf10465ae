package storage

import (
	"context"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rs/zerolog"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Options say where and how an engine stores.
type Options struct {
	Dir    string
	Memory bool   // keep everything in memory; Dir is ignored
	FS     vfs.FS // nil for the disk (or memory); tests hand in crashable ones
	// CacheSize is the block cache in bytes; 0 picks a default.
	CacheSize int64
	// Clock is the only source of time; nil is time.Now.
	Clock  func() time.Time
	Logger *zerolog.Logger // nil for none
	// HistoryWindow is how far back snapshots reach (minSnapshotHistoryWindowInSeconds); 0 is 300 s.
	HistoryWindow time.Duration
	// OplogSize is the size the oplog is truncated to, bytes; 0 picks 5 % of the free disk, at least 990 MB.
	OplogSize int64
	// JournalInterval is how often writes that waited for no sync are made durable; 0 is 100 ms.
	JournalInterval time.Duration
}

// Engine is the store of one node.
type Engine struct {
	opts Options
}

func nyi(what string) error { return mongoerr.New(mongoerr.NotImplemented, what+" is not implemented") }

// Open opens or creates the store, recovers it after a crash, and starts its background work.
func Open(opts Options) (*Engine, error) { return &Engine{opts: opts}, nyi("storage") }

// Close stops background work, flushes, and closes. All snapshots and units must have ended.
func (e *Engine) Close() error { return nyi("close") }

// Snapshot is the newest view. It must be released.
func (e *Engine) Snapshot() *Snapshot { return nil }

// SnapshotAt is the view at ts: SnapshotTooOld (239) before the history window; ts later than the visible timestamp
// waits for nothing and is SnapshotUnavailable (246); see WaitVisible.
func (e *Engine) SnapshotAt(ts Timestamp) (*Snapshot, error) { return nil, nyi("snapshot") }

// MajoritySnapshot is the newest view that no crash can take back.
func (e *Engine) MajoritySnapshot() *Snapshot { return nil }

// Visible is the timestamp of the newest commit that readers see.
func (e *Engine) Visible() Timestamp { return 0 }

// Durable is the timestamp of the newest commit that is synced to disk.
func (e *Engine) Durable() Timestamp { return 0 }

// Oldest is the earliest timestamp a snapshot may have.
func (e *Engine) Oldest() Timestamp { return 0 }

// WaitVisible returns once a commit later than after is visible, with its timestamp, or when ctx ends. Tailing reads
// of the oplog and reads with afterClusterTime wait here.
func (e *Engine) WaitVisible(ctx context.Context, after Timestamp) (Timestamp, error) {
	return 0, nyi("wait")
}

// Catalog is the newest catalog.
func (e *Engine) Catalog() *catalog.Snapshot { return catalog.Empty() }

// Commit gives the unit its timestamp and writes it, in order with all others, as part of a group. With sync it returns
// once the unit is durable, without it once it is visible. replication is the only caller.
func (e *Engine) Commit(ctx context.Context, u *UnitOfWork, sync bool) (Timestamp, error) {
	return 0, nyi("commit")
}

// Sync makes everything visible so far durable.
func (e *Engine) Sync(ctx context.Context) error { return nyi("sync") }

// AdvanceClock makes later commits have timestamps above ts (a $clusterTime seen from elsewhere).
func (e *Engine) AdvanceClock(ts Timestamp) {}

// Sizes are what a collection's storage takes.
type Sizes struct {
	Records     int64
	DataSize    int64
	StorageSize int64            // bytes on disk of the records
	IndexSizes  map[string]int64 // bytes on disk by index name
}

// CollectionSizes estimates from the store's files.
func (e *Engine) CollectionSizes(c *catalog.Collection) (Sizes, error) { return Sizes{}, nyi("sizes") }
