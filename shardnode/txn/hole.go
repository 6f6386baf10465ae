package txn

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// hole is a part of the oplog that is gone although its retryable writes and transactions were not stored. The oplog
// is not truncated past what is stored (storage.OplogHold), but older versions did that, and a donor of chunks may be
// one. Until all sessions of that time have expired,
//
//   - a statement that its number's history lacks is refused, if the number was begun before the hole was found;
//   - of a session without any history, the first number that is later than the hole is refused, and so is the
//     commit of a transaction that is not known.
//
// Rejected: refusing all retries until then, and with them nearly all numbers that are known as a whole; and refusing nothing, which executes a
// statement twice.
//
// The hole is stored with the table's progress, which would otherwise pass it, and is part of the history that other
// shards adopt.
type hole struct {
	lost  storage.Timestamp // entries up to here are gone
	found storage.Timestamp // when that was found: what was begun later is complete
}

// matters reports whether sessions that wrote in the hole may still be in use.
func (h hole) matters(now time.Time) bool {
	return h.found != 0 && now.Sub(time.Unix(int64(h.found.Seconds()), 0)) < cluster.SessionTimeout
}

// with returns a hole that covers both.
func (h hole) with(other hole) hole {
	return hole{max(h.lost, other.lost), max(h.found, other.found)}
}

const holeField = "incomplete"

func (h hole) field() value.Field {
	return value.F(holeField, value.NewDocument(value.Doc(value.F("lost", h.lost.Value()), value.F("found", h.found.Value()))))
}

// readHole is the reverse: it returns the hole that a document describes, if any.
func readHole(doc []byte) hole {
	d := value.LookupDoc(doc, holeField)
	return hole{storage.Timestamp(value.Lookup(d, "lost").TimestampU64()), storage.Timestamp(value.Lookup(d, "found").TimestampU64())}
}

// lacks reports whether a number that is newer than what is known of a session may have been executed.
func (t *retryTable) lacks(s *Session, now time.Time) bool {
	t.mu.Lock()
	h := t.mu.hole
	t.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.matters(now) && s.asked < h.found && s.newest().last.TS <= h.lost
}

// knowsStatement returns an error if an unknown statement of a number may have been executed.
func (t *retryTable) knowsStatement(s *Session, number int64, now time.Time) error {
	s.mu.Lock()
	incomplete, newer := s.Number == number && s.incomplete != whole || s.ahead != nil && s.ahead.number == number && s.ahead.torn, s.Number < number
	s.mu.Unlock()
	if incomplete || newer && t.lacks(s, now) {
		return s.IncompleteError(number)
	}
	return nil
}

// Incomplete reports whether a statement that the session does not know may have been executed.
func (s *Session) Incomplete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incomplete != whole
}

// IncompleteError is the error of such a statement.
func (s *Session) IncompleteError(number int64) error {
	return mongoerr.Newf(mongoerr.IncompleteTransactionHistory, "Incomplete history detected for transaction %d on session %s", number, value.ShowDoc(s.LSID))
}

// lose declares the history incomplete.
func (s *Session) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.incomplete = max(s.incomplete, inHole)
}

// tear declares the history incomplete for as long as it is stored.
func (s *Session) tear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.incomplete, s.dirty, s.unsaved = inRecord, true, true
}

// loseBefore declares the history incomplete if it ends before a time.
func (s *Session) loseBefore(found storage.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest().last.TS <= found {
		s.incomplete = max(s.incomplete, inHole)
	}
}

// ask records that the number that may have been executed in the hole has been refused, or cannot have been executed there.
func (s *Session) ask(found storage.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = found
}

// found returns when the hole was found, 0 for none.
func (t *retryTable) found() storage.Timestamp {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.hole.found
}

// record returns the hole as a record of the history that HistoryOf reads.
func (h hole) record() []byte { return value.Doc(value.F("_id", RetryProgressID), h.field()) }

// adoptHole takes over the hole in the history of another shard: what that shard may have lost, clients may send here.
func (m *Manager) adoptHole(ctx context.Context, h hole) error {
	t := &m.retries
	t.flushing.Lock()
	defer t.flushing.Unlock()
	t.mu.Lock()
	flushed, load := t.mu.flushed, t.mu.load
	if load == 0 {
		t.mu.Unlock()
		return errStaleTable
	}
	t.mu.hole = t.mu.hole.with(h)
	for _, s := range t.mu.sessions {
		s.loseBefore(h.found)
	}
	t.mu.Unlock()
	return m.saveProgress(ctx, flushed, load, replication.Durable)
}
