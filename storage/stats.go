package storage

import "time"

// Stats are statistics of the whole store, for serverStatus and the metrics page.
type Stats struct {
	LogStats
	TableStats
	CacheBytes, CacheMaximum int64
	CacheHits, CacheMisses   int64
	MemTableBytes            int64
	ZombieBytes              int64 // memtables that are flushed and still in use or kept for reuse
	DiskBytes                int64 // files of sstables and log
	ReadAmplification        int
	Files                    int64
	OplogBytes, OplogMaximum int64
	OpenSnapshots            int
	IdleIterators            int
	Failed                   error // why the store accepts no writes, nil while it does
}

// LogStats are those of the write-ahead log.
type LogStats struct {
	LogBytes     int64 // written since the start
	LogWaits     int64 // of groups of commits that had to be durable
	SlowLogWaits int64 // those of 10 ms or more
	LogWaitTime  time.Duration
}

// TableStats are those of flushes and compactions.
type TableStats struct {
	FlushedBytes         int64
	CompactedBytes       int64
	IngestedBytes        int64 // of index builds and copies that are written as tables
	Flushes, Compactions int64
	CompactionDebt       int64
	TablePauses          int64 // while clients waited for the journal
}

// Stats returns the store's statistics.
func (e *Engine) Stats() Stats {
	m := e.db.Metrics()
	s := Stats{
		CacheBytes: m.BlockCache.Size, CacheMaximum: e.opts.CacheSize,
		CacheHits: m.BlockCache.Hits, CacheMisses: m.BlockCache.Misses,
		MemTableBytes: int64(m.MemTable.Size), ZombieBytes: int64(m.MemTable.ZombieSize), DiskBytes: int64(m.DiskSpaceUsage()),
		LogStats: LogStats{
			LogBytes: int64(m.WAL.BytesWritten), LogWaits: e.journal.count.Load(), SlowLogWaits: e.journal.slow.Load(), LogWaitTime: time.Duration(e.journal.nanos.Load()),
		},
		TableStats:        TableStats{Flushes: m.Flush.Count, Compactions: m.Compact.Count, CompactionDebt: int64(m.Compact.EstimatedDebt), TablePauses: e.pauses.Load()},
		ReadAmplification: m.ReadAmp(),
		OplogBytes:        e.oplog.counters.Load().DataSize.Load(), OplogMaximum: e.OplogLimit(),
		OpenSnapshots: e.snapshots.count(), Failed: e.failure(),
	}
	for i := range m.Levels {
		l := &m.Levels[i]
		s.Files += l.TablesCount
		s.FlushedBytes += int64(l.TableBytesFlushed)
		s.CompactedBytes += int64(l.TableBytesCompacted)
		s.IngestedBytes += int64(l.TableBytesIngested)
	}
	e.iters.mu.Lock()
	s.IdleIterators = len(e.iters.mu.idle)
	e.iters.mu.Unlock()
	return s
}

// count returns the number of snapshots in use.
func (r *snapshotRegistry) count() (n int) {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.Lock()
		n += len(sh.at) - len(sh.free)
		sh.Unlock()
	}
	return n
}
