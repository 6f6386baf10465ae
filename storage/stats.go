package storage

// Stats are statistics of the whole store, for serverStatus and the metrics page.
type Stats struct {
	CacheBytes, CacheMaximum int64
	CacheHits, CacheMisses   int64
	MemTableBytes            int64
	ZombieBytes              int64 // memtables that are flushed and still in use or kept for reuse
	DiskBytes                int64 // files of sstables and log
	LogBytes                 int64 // written to the log since the start
	FlushedBytes             int64
	CompactedBytes           int64
	Flushes, Compactions     int64
	CompactionDebt           int64
	ReadAmplification        int
	Files                    int64
	OplogBytes, OplogMaximum int64
	OpenSnapshots            int
	IdleIterators            int
	Failed                   error // why the store accepts no writes, nil while it does
}

// Stats returns the store's statistics.
func (e *Engine) Stats() Stats {
	m := e.db.Metrics()
	s := Stats{
		CacheBytes: m.BlockCache.Size, CacheMaximum: e.opts.CacheSize,
		CacheHits: m.BlockCache.Hits, CacheMisses: m.BlockCache.Misses,
		MemTableBytes: int64(m.MemTable.Size), ZombieBytes: int64(m.MemTable.ZombieSize), DiskBytes: int64(m.DiskSpaceUsage()),
		LogBytes: int64(m.WAL.BytesWritten), Flushes: m.Flush.Count, Compactions: m.Compact.Count,
		CompactionDebt: int64(m.Compact.EstimatedDebt), ReadAmplification: m.ReadAmp(),
		OplogBytes: e.oplog.counters.Load().DataSize.Load(), OplogMaximum: e.OplogLimit(),
		OpenSnapshots: e.snapshots.count(), Failed: e.failure(),
	}
	for i := range m.Levels {
		l := &m.Levels[i]
		s.Files += l.TablesCount
		s.FlushedBytes += int64(l.TableBytesFlushed)
		s.CompactedBytes += int64(l.TableBytesCompacted)
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
