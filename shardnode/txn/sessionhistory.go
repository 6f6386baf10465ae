package txn

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
)

// History returns the records of the sessions with retryable writes, of those that wrote after a time. A session may have several,
// with different statements.
func (m *Manager) History(since storage.Timestamp) [][]byte {
	t := &m.retries
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([][]byte, 0, len(t.mu.sessions)+1)
	if h := t.mu.hole; h.matters(m.Now()) {
		out = append(out, h.record())
	}
	for _, s := range t.mu.sessions {
		s.mu.Lock()
		if h := s.newest(); h.torn || len(h.runs) > 0 && h.last.TS >= since {
			for _, part := range h.statements() {
				out = append(out, s.record(s.used, part))
			}
		}
		s.mu.Unlock()
	}
	return out
}

// WithImage adds to a record the reply of the session's findAndModify, if that is stored.
func (m *Manager) WithImage(rec []byte) ([]byte, error) {
	image, err := m.Docs.Get(ImagesNS, value.Lookup(rec, "_id"))
	if err != nil {
		return nil, err
	}
	if image != nil && value.SafeInt64(value.Lookup(image, "txnNum")) == value.SafeInt64(value.Lookup(rec, "txnNum")) {
		rec = value.WithField(rec, "image", value.NewDocument(image))
	}
	return rec, nil
}

// Adopt merges in the history of another shard, durably.
//
// A client whose statement was executed on the donor may send it again after the range has moved, and the router
// then sends it here. The history is therefore durable here before the migration commits. It is merged into what
// this shard knows: statements of the same or an earlier txnNumber are added, and nothing known here is removed.
func (m *Manager) Adopt(ctx context.Context, records []value.Value) error {
	var adopted []adoptedSession
	t := &m.retries
	t.mu.Lock()
	load := t.mu.load
	t.mu.Unlock()
	for _, rec := range records {
		if h := readHole(rec.Doc()); h.found != 0 {
			if err := m.adoptHole(ctx, h); err != nil {
				return err
			}
			continue
		}
		a, err := m.adoptSession(ctx, rec.Doc())
		if err != nil {
			return err
		}
		if a != nil {
			adopted = append(adopted, *a)
		}
	}
	return t.storeAdopted(ctx, m.Docs, adopted, load)
}

// adoptedSession is a session into which the table has merged the history of another shard.
type adoptedSession struct {
	dueRecord
	number int64
	image  []byte // the record of the document that its findAndModify returned, nil for none
}

// storeAdopted makes adopted histories durable. If a client has meanwhile moved on to another number, its writes
// under that number are kept.
func (t *retryTable) storeAdopted(ctx context.Context, docs *statedoc.Docs, adopted []adoptedSession, load int64) error {
	return docs.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		due := make([]dueRecord, len(adopted))
		for i := range adopted {
			due[i] = adopted[i].dueRecord
		}
		if err := t.put(s, u, due, load); err != nil {
			return err
		}
		c, err := statedoc.CollectionFor(s, u, ImagesNS)
		for i := range adopted {
			a := &adopted[i]
			a.of.mu.Lock()
			h := a.of.newest()
			current := h.number == a.number
			a.of.mu.Unlock()
			if err == nil && current && a.image != nil {
				err = statedoc.PutIn(s, u, c, a.image)
			}
		}
		return err
	})
}

// takeForHistory acquires a session whose history of a txnNumber is to be merged. The newer number takes
// precedence: an open transaction with a lower number is aborted, as the client would abort it by continuing
// here, and one that has voted to commit is waited for. So are the internal transactions that execute a write of
// the session.
func (m *Manager) takeForHistory(ctx context.Context, s *Session, number int64) (release func(), err error) {
	for try := 0; ; try++ {
		release, err := s.Take(ctx)
		if err != nil {
			return nil, err
		}
		child := s.openChild(number)
		prepared := number > s.Number && s.Txn != nil && s.Txn.State == Prepared
		if number < s.Number || child == nil && !prepared {
			return release, nil
		}
		release()
		if prepared {
			err = cluster.Backoff(ctx, try)
		} else {
			err = m.endChild(ctx, child)
		}
		if err != nil {
			return nil, err
		}
	}
}

// adoptSession merges a record into the table and returns the session to be stored; nil if this shard's knowledge
// is newer.
func (m *Manager) adoptSession(ctx context.Context, rec []byte) (*adoptedSession, error) {
	id, err := cluster.ParseLSID(value.Lookup(rec, "_id").Doc(), cluster.NoUser)
	if err != nil {
		return nil, nil // not a client's session
	}
	t := &m.retries
	t.mu.Lock()
	s := sessionOf(t.mu.sessions, id)
	t.mu.Unlock()
	from := newSession()
	if err := from.readRecord(rec); err != nil {
		return nil, err
	}
	// Of a number that the session has moved on from nothing else is needed. A transaction of a newer number may be waiting, with the
	// session, for the end of the very critical section in which this history is fetched.
	if s.isPast(from.Number) {
		return s.adoptLate(id, from), nil
	}
	release, err := m.takeForHistory(ctx, s, from.Number)
	if err != nil {
		return nil, err
	}
	defer release()
	switch {
	case from.Number < s.Number:
		return s.adoptLate(id, from), nil
	case from.Number == s.Number && s.Txn != nil:
		return nil, nil
	case from.Number > s.Number:
		m.abortTxn(s)
		s.begin(from.Number)
		s.used = from.used
	}
	for _, r := range from.runs {
		for id := r.From; id <= r.To; id++ {
			if !s.has(id) {
				s.ran(Run{id, id, r.Op, r.ID})
			}
		}
	}
	if from.incomplete == inRecord {
		s.tear()
	}
	a := &adoptedSession{dueRecord: dueRecord{id, s, s.used}, number: s.Number}
	if img := value.Lookup(rec, "image"); img.T == value.Document {
		a.image = img.Doc()
		s.Image = append([]byte(nil), value.Lookup(a.image, "image").Doc()...)
	}
	return a, nil
}

// isPast reports whether the session has moved on from a number.
func (s *Session) isPast(number int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return number < s.Number
}

// adoptLate merges the history of a number that the session has moved on from without writing anything since; nil
// if it has written.
func (s *Session) adoptLate(id cluster.LogicalSessionID, from *Session) *adoptedSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.late(from.Number)
	if h == nil || h.committed {
		return nil
	}
	for _, r := range from.runs {
		for stmt := r.From; stmt <= r.To; stmt++ {
			if !h.has(stmt) {
				h.runs, s.unsaved = withRun(h.runs, Run{stmt, stmt, r.Op, r.ID}), true
			}
		}
	}
	return &adoptedSession{dueRecord: dueRecord{id, s, from.used}, number: from.Number}
}
