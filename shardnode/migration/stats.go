package migration

import (
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// counts has the figures of the shard's migrations and range deleter since the process began. Times are in milliseconds.
type counts struct {
	donor struct {
		started, committed, aborted, lockTimeouts atomic.Int64
		docs, bytes                               atomic.Int64 // sent to be cloned
		total, clone, section, commit             atomic.Int64
	}
	recipient  recipientCounts
	deleted    struct{ docs, bytes atomic.Int64 }
	unfinished atomic.Int64 // migrations that an earlier primary left
	stale      atomic.Int64 // StaleConfig answers
}

type recipientCounts struct {
	started, docs, bytes   atomic.Int64
	caughtUp, caughtUpSize atomic.Int64 // documents and bytes after the clone
	section                atomic.Int64
}

// cloned counts documents that have been stored.
func (c *recipientCounts) cloned(docs [][]byte) {
	c.docs.Add(int64(len(docs)))
	for _, d := range docs {
		c.bytes.Add(int64(len(d)))
	}
}

// noteLeft counts the time of the recipient's critical section, which has ended.
func (r *recipient) noteLeft() {
	r.mu.Lock()
	entered := r.mu.entered
	r.mu.entered = time.Time{}
	r.mu.Unlock()
	if !entered.IsZero() {
		r.m.noteSince(&r.m.state.counts.recipient.section, entered)
	}
}

// NoteError counts an operation's error.
func (s *ShardState) NoteError(err error) {
	if err != nil && mongoerr.CodeOf(err) == mongoerr.StaleConfig {
		s.counts.stale.Add(1)
	}
}

// noteSince adds the time since began.
func (m *Manager) noteSince(to *atomic.Int64, began time.Time) {
	to.Add(m.Now().Sub(began).Milliseconds())
}

// noteOutcome counts the end of a migration from this shard.
func (d *donor) noteOutcome(err error) {
	n := &d.m.state.counts.donor
	d.m.noteSince(&n.total, d.started)
	switch mongoerr.CodeOf(err) {
	case mongoerr.OK:
		n.committed.Add(1)
		return
	case mongoerr.LockTimeout:
		n.lockTimeouts.Add(1)
	}
	n.aborted.Add(1)
}

// Stats returns shardingStatistics of serverStatus as far as migrations and placements are concerned. concurrency is the parameter
// chunkMigrationConcurrency.
func (s *ShardState) Stats(e *storage.Engine, concurrency int64) []value.Field {
	i64 := func(name string, v *atomic.Int64) value.Field { return value.F(name, value.NewInt64(v.Load())) }
	d, r := &s.counts.donor, &s.counts.recipient
	var tasks int64
	if c := e.Catalog().Lookup(rangeDeletionsNS); c != nil {
		tasks = c.Counters.Records.Load()
	}
	return []value.Field{
		i64("countStaleConfigErrors", &s.counts.stale),
		i64("countDonorMoveChunkStarted", &d.started), i64("countDonorMoveChunkCommitted", &d.committed), i64("countDonorMoveChunkAborted", &d.aborted),
		i64("totalDonorMoveChunkTimeMillis", &d.total), i64("totalDonorChunkCloneTimeMillis", &d.clone),
		i64("totalCriticalSectionCommitTimeMillis", &d.commit), i64("totalCriticalSectionTimeMillis", &d.section),
		i64("totalRecipientCriticalSectionTimeMillis", &r.section),
		i64("countDocsClonedOnRecipient", &r.docs), i64("countBytesClonedOnRecipient", &r.bytes),
		i64("countDocsClonedOnCatchUpOnRecipient", &r.caughtUp), i64("countBytesClonedOnCatchUpOnRecipient", &r.caughtUpSize),
		i64("countDocsClonedOnDonor", &d.docs), i64("countBytesClonedOnDonor", &d.bytes), i64("countRecipientMoveChunkStarted", &r.started),
		i64("countDocsDeletedByRangeDeleter", &s.counts.deleted.docs), i64("countBytesDeletedByRangeDeleter", &s.counts.deleted.bytes),
		i64("countDonorMoveChunkLockTimeout", &d.lockTimeouts), i64("unfinishedMigrationFromPreviousPrimary", &s.counts.unfinished),
		value.F("chunkMigrationConcurrency", value.NewInt32(int32(concurrency))),
		value.F("catalogCache", value.NewDocument(s.Catalog.Stats())), value.F("rangeDeleterTasks", value.NewInt32(int32(tasks))),
	}
}
