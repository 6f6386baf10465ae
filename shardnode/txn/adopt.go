package txn

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A client whose statement was executed on the donor may send it again after the documents have moved, and the router then sends it here.
// The history is therefore durable here before the migration commits. It is merged into what this shard knows: statements of the same
// or an earlier txnNumber are added, and nothing known here is removed.
//
// Nothing waits for a session that is in use: the critical section in which the last part arrives blocks the collection's writers, and a
// statement may take as long as it likes, or wait for the end of that very section. What is adopted is logged while the session's command runs.
// Statements of the session's own number are known to it at once. Those of a newer number are kept aside (Session.ahead), and become the
// session's before its next command reads it: a retry that has moved with the documents cannot have begun before. The same applies if the
// session has a prepared transaction of an earlier number: the next number waits for its decision.
//
// Hazard: a retry of the client may come while its history is on the way. It finds the statement either in the session or in the history set aside,
// since both are durable before the migration commits, and before that the router sends it to the donor.
//
// Rejected: checking out each session. Six clients whose statements took 0.7 s on the new owner blocked the chunk's writers for 25 s.

// adoption is a part of one session's history that another shard has sent.
type adoption struct {
	id        cluster.LogicalSessionID
	number    int64
	entries   []statementEntry
	used      time.Time
	image     []byte // the document that the session's findAndModify returned
	imageKind string
}

// adoptAtOnce is the number of sessions that commit what they adopt at the same time.
const adoptAtOnce = 16

// Adopt merges in the history of another shard, as HistoryOf reads it. It is durable when Adopt returns; the shard that sent it relies on that:
// it deletes the documents, and does not send the history again.
func (m *Manager) Adopt(ctx context.Context, sent []value.Value) error {
	list, err := m.readSent(ctx, sent)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs, slots := make([]error, len(list)), make(chan struct{}, adoptAtOnce)
	for i, a := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = m.adopt(ctx, a)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return m.Engine.Sync(ctx)
}

// readSent groups what was sent by sessions and numbers.
func (m *Manager) readSent(ctx context.Context, sent []value.Value) (list []*adoption, err error) {
	type key struct {
		id     cluster.LogicalSessionID
		number int64
	}
	by := make(map[key]*adoption)
	of := func(lsid []byte, number value.Value) *adoption {
		id, err := cluster.ParseLSID(lsid, cluster.NoUser)
		n, ok := number.AsInt64()
		if err != nil || !ok || n < 0 {
			return nil // not a client's session
		}
		a := by[key{id, n}]
		if a == nil {
			a = &adoption{id: id, number: n}
			by[key{id, n}] = a
			list = append(list, a)
		}
		return a
	}
	for _, v := range sent {
		doc := v.Doc()
		switch h := readHole(doc); {
		case h.found != 0:
			err = m.adoptHole(ctx, h)
		default:
			if a := of(value.LookupDoc(doc, "lsid"), value.Lookup(doc, "txnNumber")); a != nil {
				a.readEntry(doc)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// readEntry reads an entry as HistoryOf sends it.
func (a *adoption) readEntry(doc []byte) {
	e, stmt := operationOf(doc), value.Lookup(doc, "stmtId")
	if e.Op == 'i' {
		e.O2 = e.O
	}
	switch {
	case stmt.IsMissing():
		a.image = e.O
		return
	case stmt.T == value.Array || value.SafeInt64(stmt) < 0:
		e.Extra = value.Doc(value.F("stmtId", stmt))
	default:
		e.StmtID = int32(value.SafeInt64(stmt))
	}
	s, ok := statementOf(&e)
	if !ok {
		return
	}
	for _, kind := range []string{"preImage", "postImage"} {
		if a.image != nil && !value.Lookup(doc, kind+"OpTime").IsMissing() {
			s.image, a.imageKind = kind, kind
		}
	}
	if wall := value.Lookup(doc, "wall"); wall.T == value.DateTime {
		a.used = wall.Time()
	}
	a.entries = append(a.entries, s)
}

// adopt logs the part of a session's history that is new here, and adds it to the session when it becomes visible.
func (m *Manager) adopt(ctx context.Context, a *adoption) error {
	t := &m.retries
	t.mu.Lock()
	if t.mu.load == 0 {
		t.mu.Unlock()
		return errStaleTable
	}
	s := sessionOf(t.mu.sessions, a.id)
	t.mu.Unlock()
	if entries, _ := s.lacking(a); len(entries) == 0 {
		return nil
	}
	// A session that is not in use is taken, so that the chain of its entries does not fork.
	select {
	case <-s.busy:
		defer func() {
			m.catchUp(s)
			s.busy <- struct{}{}
		}()
	default:
	}
	return m.Docs.WriteWith(ctx, replication.Visible, func(snap *storage.Snapshot, u *storage.UnitOfWork) error {
		entries, prev := s.lacking(a)
		if len(entries) == 0 {
			return nil
		}
		u.SetFromMigrate()
		u.SetSession(s.LSID, a.number, prev)
		if a.image != nil {
			c, err := statedoc.CollectionFor(snap, u, ImagesNS)
			if err == nil {
				err = statedoc.PutIn(snap, u, c, ImageRecord(snap, s, a.number, a.imageKind, a.image))
			}
			if err != nil {
				return err
			}
		}
		for i := range entries {
			u.Oplog(entries[i].adopted())
		}
		u.OnCommit(func(ts storage.Timestamp) { s.merge(a, storage.OpTime{TS: ts, Term: m.Engine.Term()}) })
		return nil
	})
}

// aheadOf is history of a number that is newer than the one of the command that uses the session.
type aheadOf struct {
	history
	used time.Time
}

// receiving returns the history to which another shard's history of a number is added; nil if this shard's is newer, so that nothing is added.
// A copy is returned where the session changes only if something is added. mu must be held.
func (s *Session) receiving(number int64) *history {
	switch {
	case s.ahead != nil && number < s.ahead.number:
		return nil
	case s.ahead != nil && number == s.ahead.number:
		return &s.ahead.history
	case number > s.Number:
		return &history{number: number, last: storage.NoOpTime}
	case number == s.Number && s.Txn != nil:
		return nil
	case number == s.Number:
		return &history{s.Number, s.runs, s.last, s.committed, s.incomplete == inRecord}
	}
	was := s.before
	h := s.late(number)
	if h != nil {
		copied := *h
		h = &copied
	}
	s.before = was
	if h == nil || h.committed {
		return nil
	}
	return h
}

// lacking returns the entries of which the session does not know all statements, and the optime of its newest entry of that number.
func (s *Session) lacking(a *adoption) (entries []*statementEntry, prev storage.OpTime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.receiving(a.number)
	if h == nil {
		return nil, prev
	}
	for i := range a.entries {
		if e := &a.entries[i]; e.lost && !h.torn || !e.lost && !h.hasAll(e.runs()) {
			entries = append(entries, e)
		}
	}
	return entries, h.last
}

// hasAll reports whether all of some statements are known.
func (h *history) hasAll(runs []Run) bool {
	for _, r := range runs {
		if !h.has(r.From) {
			return false
		}
	}
	return true
}

// merge adds the statements of another shard, which were logged at a time.
func (s *Session) merge(a *adoption, at storage.OpTime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.receiving(a.number)
	if h == nil {
		return
	}
	for i := range a.entries {
		h.torn = h.torn || a.entries[i].lost
		for _, r := range a.entries[i].runs() {
			if !h.has(r.From) {
				h.runs = withRun(h.runs, r)
			}
		}
	}
	if at.TS > h.last.TS {
		h.last = at
	}
	s.unsaved = true
	switch {
	case s.ahead != nil || a.number > s.Number:
		s.ahead = &aheadOf{*h, a.used}
	case a.number < s.Number:
		s.before = *h
	default:
		s.runs, s.last, s.before = h.runs, h.last, history{}
		if h.torn {
			s.incomplete = inRecord
		}
	}
}

// catchUp makes history of a newer number, which was adopted while a command used the session, the session's own: its client has moved on,
// so that its open transaction ends. A prepared one is decided first. busy must be held.
func (m *Manager) catchUp(s *Session) {
	s.mu.Lock()
	ahead := s.ahead
	s.mu.Unlock()
	if ahead == nil || s.Txn != nil && s.Txn.State == Prepared {
		return
	}
	m.abortTxn(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead, s.ahead = s.ahead, nil // more may have been added to it
	s.startOn(ahead.number)
	s.runs, s.last, s.used, s.before = ahead.runs, ahead.last, ahead.used, history{}
	s.dirty, s.unsaved = true, true
	if ahead.torn {
		s.incomplete = inRecord
	}
}

// setAside keeps history of a newer number than that of the transaction which the session is about to continue.
func (s *Session) setAside(number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.newest(); h.number > number && !h.empty() {
		s.ahead = &aheadOf{h, s.used}
	}
}

// isAhead reports whether the session has history of a newer number than its own.
func (s *Session) isAhead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ahead != nil
}

// executedMeanwhile returns an error if another shard has executed a statement that the session's internal transaction is about to commit.
func (s *Session) executedMeanwhile(moved []movedWrite) error {
	if s.parent == nil {
		return nil
	}
	for _, w := range moved {
		if s.parent.hasRun(s.of, w.stmt) {
			return mongoerr.Newf(mongoerr.IncompleteTransactionHistory, "Statement %d of transaction %d has been executed already", w.stmt, s.of)
		}
	}
	return nil
}
