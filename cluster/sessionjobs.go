package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// sessionJobs counts what the periodic jobs on sessions have done, for serverStatus.
type sessionJobs struct {
	mu struct {
		sync.Mutex
		syncs, reaps                     int64
		synced, reaped                   time.Time // when the last of each began
		syncTook, reapTook               time.Duration
		refreshed, ended, cursors, freed int64 // by the last of each
	}
}

func (j *sessionJobs) beginSync(at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.syncs, j.mu.synced = j.mu.syncs+1, at
	j.mu.refreshed, j.mu.ended, j.mu.cursors = 0, 0, 0
}

func (j *sessionJobs) synced(refreshed, ended int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.refreshed, j.mu.ended = int64(refreshed), int64(ended)
}

func (j *sessionJobs) endSync(took time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.syncTook = took
}

// ClosedCursors counts cursors that were closed because their session has ended.
func (c *SessionCache) ClosedCursors(n int) {
	c.jobs.mu.Lock()
	defer c.jobs.mu.Unlock()
	c.jobs.mu.cursors += int64(n)
}

// Reap runs a job that forgets the transactions of expired sessions, and counts the job. f returns how many it has forgotten.
func (c *SessionCache) Reap(ctx context.Context, f func(context.Context) (int, error)) error {
	began := c.now()
	n, err := f(ctx)
	j := &c.jobs
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.reaps, j.mu.reaped, j.mu.reapTook, j.mu.freed = j.mu.reaps+1, began, c.now().Sub(began), int64(n)
	return err
}

// Status returns the section logicalSessionRecordCache of serverStatus. catalog is the number of sessions whose transactions or
// retryable writes the node knows.
func (c *SessionCache) Status(catalog int) []byte {
	i32 := func(name string, v int64) value.Field { return value.F(name, value.NewInt32(int32(v))) }
	live := c.Len()
	j := &c.jobs
	j.mu.Lock()
	defer j.mu.Unlock()
	return value.Doc(
		i32("activeSessionsCount", int64(live)), i32("sessionsCollectionJobCount", j.mu.syncs),
		i32("lastSessionsCollectionJobDurationMillis", j.mu.syncTook.Milliseconds()), value.F("lastSessionsCollectionJobTimestamp", value.NewTime(j.mu.synced)),
		i32("lastSessionsCollectionJobEntriesRefreshed", j.mu.refreshed), i32("lastSessionsCollectionJobEntriesEnded", j.mu.ended),
		i32("lastSessionsCollectionJobCursorsClosed", j.mu.cursors), i32("transactionReaperJobCount", j.mu.reaps),
		i32("lastTransactionReaperJobDurationMillis", j.mu.reapTook.Milliseconds()), value.F("lastTransactionReaperJobTimestamp", value.NewTime(j.mu.reaped)),
		i32("lastTransactionReaperJobEntriesCleanedUp", j.mu.freed), i32("sessionCatalogSize", int64(catalog)))
}
