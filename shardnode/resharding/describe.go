package resharding

import (
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// counts has the figures of participants since the process began.
type counts struct {
	docs, bytes, applied       atomic.Int64
	started, succeeded, undone atomic.Int64
}

func (c *counts) ended(committed bool) {
	c.started.Add(1)
	if committed {
		c.succeeded.Add(1)
		return
	}
	c.undone.Add(1)
}

// Stats returns shardingStatistics.resharding of serverStatus.
func (m *Manager) Stats() []byte {
	m.mu.Lock()
	running := len(m.mu.recipients)
	for id := range m.mu.donors {
		if m.mu.recipients[id] == nil {
			running++
		}
	}
	m.mu.Unlock()
	return value.Doc(
		value.F("countStarted", value.NewInt64(m.counts.started.Load()+int64(running))), value.F("countSucceeded", value.NewInt64(m.counts.succeeded.Load())),
		value.F("countFailed", value.NewInt64(m.counts.undone.Load())),
		value.F("active", value.NewDocument(value.Doc(
			value.F("documentsCopied", value.NewInt64(m.counts.docs.Load())), value.F("bytesCopied", value.NewInt64(m.counts.bytes.Load())),
			value.F("oplogEntriesApplied", value.NewInt64(m.counts.applied.Load()))))))
}

// CurrentOps describes the shard's parts as currentOp does.
func (m *Manager) CurrentOps(now time.Time) (out [][]value.Field) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.mu.donors {
		f := d.doc.described("ReshardingDonorService", now)
		d.mu.Lock()
		state := d.doc.state
		d.mu.Unlock()
		if d.met.Blocking() {
			state = "blocking-writes"
		}
		writes, reads, blocked := d.met.Counts()
		out = append(out, append(f, value.F("donorState", value.NewString(state)), value.F("totalCriticalSectionTimeElapsedSecs", value.NewInt64(int64(blocked/time.Second))),
			value.F("countWritesDuringCriticalSection", value.NewInt64(writes)), value.F("countReadsDuringCriticalSection", value.NewInt64(reads))))
	}
	for _, r := range m.mu.recipients {
		out = append(out, append(r.doc.described("ReshardingRecipientService", now), r.progressFields(now)...))
	}
	return out
}

func (a *about) described(role string, now time.Time) []value.Field {
	return []value.Field{
		value.F("type", value.NewString("op")), value.F("desc", value.NewString(role+" "+a.id.String())), value.F("op", value.NewString("command")),
		value.F("ns", value.NewString(a.ns)),
		value.F("originatingCommand", value.NewDocument(a.command)), value.F("opStatus", value.NewString("running")),
		value.F("totalOperationTimeElapsedSecs", value.NewInt64(int64(now.Sub(time.UnixMilli(a.since))/time.Second))),
	}
}

// progressFields returns the fields of currentOp that show the progress of a recipient.
func (r *recipient) progressFields(now time.Time) []value.Field {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.mu.figures
	cloneEnd, applyEnd := now, now
	if !f.cloned.IsZero() {
		cloneEnd = f.cloned
	}
	if !f.strict.IsZero() {
		applyEnd = f.strict
	}
	secs := func(from, to time.Time) value.Value { return value.NewInt64(int64(to.Sub(from) / time.Second)) }
	out := []value.Field{
		value.F("approxDocumentsToCopy", value.NewInt64(r.doc.docs)), value.F("approxBytesToCopy", value.NewInt64(r.doc.bytes)),
		value.F("documentsCopied", value.NewInt64(f.docs)), value.F("bytesCopied", value.NewInt64(f.bytes)),
		value.F("totalCopyTimeElapsedSecs", secs(f.began, cloneEnd)),
		value.F("oplogEntriesFetched", value.NewInt64(f.fetched)), value.F("oplogEntriesApplied", value.NewInt64(f.applied)),
		value.F("insertsApplied", value.NewInt64(f.changes.inserts)), value.F("updatesApplied", value.NewInt64(f.changes.updates)),
		value.F("deletesApplied", value.NewInt64(f.changes.deletes)), value.F("countWritesToStashCollections", value.NewInt64(f.changes.stashed)),
	}
	if !f.cloned.IsZero() {
		out = append(out, value.F("totalApplyTimeElapsedSecs", secs(f.cloned, applyEnd)))
	}
	left := int64(-1) // as long as there is no estimate
	if d := r.remaining(); d >= 0 {
		left = int64((d + time.Second - 1) / time.Second)
	}
	return append(out, value.F("remainingOperationTimeEstimatedSecs", value.NewInt64(left)), value.F("recipientState", value.NewString(r.mu.state)))
}
