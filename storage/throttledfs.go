package storage

import (
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// throttledFS makes flushes and compactions pause while clients wait for syncs of a journal. A flush at full speed occupies a processor for as long as
// it takes to compress a memtable, and sends all of that to the disk: a sync that takes half a millisecond alone then waits for either.
//
// The pauses end as soon as the store falls behind (urgent): memtables must not pile up for the sake of a few slow writes. Without clients nothing pauses.
type throttledFS struct {
	vfs.FS
	urgent func() bool
	pauses *atomic.Int64
}

// lastDurable is the time at which a caller last began to wait for a unit of work to become durable, in any store of the process: they share its
// processors, and as a rule the disk.
var lastDurable atomic.Int64

const (
	// durableRecently is the time after the start of such a wait within which another one is expected.
	durableRecently = 50 * time.Millisecond
	// throttleStep is the number of bytes of a table that are written between two pauses.
	throttleStep = 128 << 10
	// A pause takes as long as the step has taken, within these bounds: less than the first cannot be slept, and a step that took longer than the second
	// has itself waited for others.
	leastPause = 500 * time.Microsecond
	mostPause  = 5 * time.Millisecond
)

// noteDurable records that a caller waits for a unit to become durable, and returns the time.
func noteDurable() time.Time {
	now := time.Now()
	lastDurable.Store(now.UnixNano())
	return now
}

// journalWaits counts how often units waited for the journal, and for how long.
type journalWaits struct {
	count, slow atomic.Int64
	nanos       atomic.Int64
}

// slowWait is the duration from which a wait for the journal counts as slow.
const slowWait = 10 * time.Millisecond

func (j *journalWaits) waited(d time.Duration) {
	j.count.Add(1)
	j.nanos.Add(int64(d))
	if d >= slowWait {
		j.slow.Add(1)
	}
}

// clientsWait reports whether units are being made durable for waiters.
func clientsWait() bool {
	ago := time.Now().UnixNano() - lastDurable.Load()
	return ago >= 0 && ago < int64(durableRecently)
}

// Unwrap implements vfs.FS.
func (p throttledFS) Unwrap() vfs.FS { return p.FS }

// Create implements vfs.FS.
func (p throttledFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := p.FS.Create(name, category)
	if err == nil && (category == "pebble-memtable-flush" || category == "pebble-compaction") {
		f = &throttledFile{File: f, fs: p, since: time.Now()}
	}
	return f, err
}

// throttledFile is a table that is written by one goroutine.
type throttledFile struct {
	vfs.File
	fs    throttledFS
	since time.Time // start of the current step
	step  int       // bytes written since
}

func (f *throttledFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	if f.step += n; f.step >= throttleStep {
		if clientsWait() && !f.fs.urgent() {
			f.fs.pauses.Add(1)
			time.Sleep(min(max(time.Since(f.since), leastPause), mostPause))
		}
		f.since, f.step = time.Now(), 0
	}
	return n, err
}

// mostSublevels is the number of sublevels of L0 up to which a compaction is slowed down: each one is another table that readers look into.
const mostSublevels = 8

// tablesUrgent reports whether flushes and compactions should not pause: a memtable waits behind the one that is being flushed, L0 has grown, a large
// transaction waits for room in memory, the disk is nearly full, or the store is being opened or closed.
func (e *Engine) tablesUrgent() bool {
	if !e.running.Load() || e.space.low.Load() || e.replica.staging.pace.waiting.Load() > 0 {
		return true
	}
	m := e.db.Metrics()
	return m.MemTable.Count > 2 || m.Levels[0].Sublevels > mostSublevels
}
