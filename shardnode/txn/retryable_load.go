package txn

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// This file has the durable part of retryTable.

// LoadRetries rebuilds the table, when the node opens and whenever it becomes primary: from the stored records, then
// from the oplog after them.
//
// If the oplog no longer reaches back to the time up to which the table was flushed, statements may have been
// executed that are in neither: see hole.
func (m *Manager) LoadRetries() error {
	s := m.Engine.Snapshot()
	defer s.Release()
	t := &m.retries
	sessions := make(map[cluster.LogicalSessionID]*Session)
	progress, err := m.Docs.Get(RetryProgressNS, RetryProgressID)
	if err != nil {
		return err
	}
	complete := storage.Timestamp(value.Lookup(progress, "ts").TimestampU64())
	lost, err := m.lostAfter(complete)
	if err != nil {
		return err
	}
	h := readHole(progress)
	if lost != 0 {
		h = h.with(hole{lost, s.Timestamp()})
		m.node.Warn("A part of the oplog is missing, with retryable writes and transactions that were not stored", mongoerr.Newf(mongoerr.IncompleteTransactionHistory,
			"sessions are stored up to %v, and the oplog begins after %v", complete, lost))
	}
	err = m.Docs.Each(TransactionsNS, func(doc []byte) error {
		if s := known(sessions, value.LookupDoc(doc, "_id")); s != nil {
			err := s.readRecord(doc)
			s.unsaved = !value.Lookup(doc, "statements").IsMissing() || !value.Lookup(doc, tornField).IsMissing()
			if err != nil {
				m.node.Warn("A document of "+TransactionsNS+" is not a session record", err)
				s.lose()
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = m.Docs.Each(StatementsNS, func(doc []byte) error {
		m.readStatementDoc(sessions, doc)
		return nil
	})
	if err != nil {
		return err
	}
	err = s.SessionEntries(complete, func(e *storage.SessionEntry) error {
		return noteEntry(s, sessions, e)
	})
	if err != nil {
		return err
	}
	if h.matters(m.Now()) {
		for _, s := range sessions {
			s.loseBefore(h.found)
		}
	}
	t.mu.Lock()
	t.mu.loads++
	t.mu.sessions, t.mu.hole, t.mu.load = sessions, h, t.mu.loads
	t.mu.flushed, t.mu.pending = complete, complete
	t.mu.Unlock()
	if t.hold != nil {
		t.hold.Set(complete)
	}
	return nil
}

// lostAfter returns the time up to which the oplog was truncated if that is later than what the table was flushed
// up to, else 0.
func (m *Manager) lostAfter(complete storage.Timestamp) (storage.Timestamp, error) {
	cut, err := m.Engine.OplogCut()
	if err != nil || cut > complete {
		return cut, err
	}
	first, err := m.Engine.OplogFirst()
	if err == nil && cut == 0 && complete != 0 && first > complete+1 { // truncated by a version that did not record it
		return first - 1, nil
	}
	return 0, err
}

// known finds or creates a session by its stored id; nil if the id is invalid.
func known(sessions map[cluster.LogicalSessionID]*Session, lsid []byte) *Session {
	id, err := cluster.ParseLSID(lsid, cluster.NoUser)
	if err != nil {
		return nil
	}
	return sessionOf(sessions, id)
}

func (s *Session) has(stmt int32) bool {
	_, ok := s.Executed(stmt)
	return ok
}

// noteEntry processes an oplog entry that is a statement of a retryable write or the commit of a transaction.
func noteEntry(snap *storage.Snapshot, sessions map[cluster.LogicalSessionID]*Session, e *storage.SessionEntry) error {
	st, executed := statementOf(&e.OplogEntry)
	decided := e.Op == 'c' && !value.Lookup(e.O, "commitTransaction").IsMissing()
	commit := decided || e.Op == 'c' && !value.Lookup(e.O, "applyOps").IsMissing()
	switch {
	case commit && value.Lookup(e.O, "prepare").Truthy(): // its decision counts
		return nil
	case commit:
		if err := noteMovedWrites(snap, sessions, e, decided); err != nil {
			return err
		}
		if value.Lookup(e.O, "partialTxn").Truthy() { // the last of several counts
			return nil
		}
	case !executed:
		return nil
	}
	s := known(sessions, e.LSID)
	if s == nil || e.Number < s.Number {
		return nil
	}
	if e.Number > s.Number {
		s.begin(e.Number)
	}
	s.used, s.last, s.dirty = time.UnixMilli(e.WallMS), e.At, true
	if commit {
		s.Txn, s.committed, s.unsaved = &Txn{Number: s.Number, State: Committed, ts: e.At.TS}, true, true
		return nil
	}
	if st.lost {
		s.tear()
	}
	for _, r := range st.runs() {
		if !s.has(r.From) {
			s.ran(r)
		}
	}
	return nil
}

// FlushRetries writes the changed sessions to config.transactions, and drops those that have expired (Reap).
//
// Rejected: writing the session's record in the unit of each retryable write. It adds a versioned document to
// every small write; the oplog entry has the same information and is written anyway.
func (m *Manager) FlushRetries(ctx context.Context) error {
	t := &m.retries
	t.flushing.Lock()
	defer t.flushing.Unlock()
	seen := m.Engine.Published()
	records, load := t.changed(m.Now())
	if load == 0 {
		return errStaleTable
	}
	if load != t.quietIn {
		t.quietIn, t.quiet = load, 0
	}
	written := len(records)
	if err := t.store(ctx, m.Docs, records, load); err != nil {
		return err
	}
	// A statement that an internal transaction executed may be recorded a moment after its commit, so the table is
	// complete up to what the flush before this one saw. If nothing changes, the progress is stored once more, and
	// then not again.
	if writes := m.Writes(); writes != t.writes || written > 0 {
		t.writes, t.quiet = writes, 0
	} else {
		t.quiet++
	}
	t.mu.Lock()
	if t.mu.load != load {
		t.mu.Unlock()
		return errStaleTable
	}
	flushed := t.mu.pending
	t.mu.flushed, t.mu.pending = flushed, seen
	t.mu.Unlock()
	if flushed == 0 || t.quiet > 1 && !m.Engine.OplogTooLarge() {
		return nil
	}
	return m.saveProgress(ctx, flushed, load, replication.Visible)
}

// recordsWait is the time that a reader of config.transactions waits for the records to be written.
const recordsWait = time.Second

// WriteRecords flushes the records of sessions to config.transactions before that collection is read on the primary: records lag behind the
// writes that they describe, and a reader should see all acknowledged ones. Without a majority it sees what was stored before.
func (m *Manager) WriteRecords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, recordsWait)
	defer cancel()
	_ = m.FlushRetries(ctx)
}

// errStaleTable is the error of a flush on a node that is not primary, or that has not loaded its table yet: the
// table may be older than the stored records.
var errStaleTable = mongoerr.New(mongoerr.NotWritablePrimary, "the history of sessions is not loaded on this node")

// Reap drops the sessions that have not been used since limit and that the sessions collection no longer contains.
func (m *Manager) Reap(ctx context.Context, limit time.Time) (reaped int, err error) {
	idle := make(map[cluster.LogicalSessionID][]*Session)
	m.EachIdle(func(id cluster.LogicalSessionID, s *Session) {
		if s.used.Before(limit) {
			idle[id.Parent()] = append(idle[id.Parent()], s)
		}
	})
	gone, err := m.Missing(ctx, slices.Collect(maps.Keys(idle)))
	if err != nil {
		return 0, err
	}
	for _, id := range gone {
		reaped += len(idle[id])
		for _, s := range idle[id] {
			s.mu.Lock()
			s.expired = m.Now()
			s.mu.Unlock()
		}
	}
	if err = m.FlushRetries(ctx); errors.Is(err, errStaleTable) {
		return 0, nil // the primary does it
	}
	return reaped, err
}

// dueRecord is a session whose record has to be written, or removed if the table no longer contains the session.
type dueRecord struct {
	id   cluster.LogicalSessionID
	of   *Session
	used time.Time
}

// changed returns the sessions that have to be flushed, and drops those that have expired.
func (t *retryTable) changed(now time.Time) (records []dueRecord, load int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.load == 0 {
		return nil, 0
	}
	for id, s := range t.mu.sessions {
		select {
		case <-s.busy:
		default:
			// A command is using it, perhaps for longer than the write below may wait.
			s.mu.Lock()
			if h := s.newest(); s.unsaved && !h.empty() {
				records = append(records, dueRecord{id, s, now})
				s.unsaved = false
			}
			s.mu.Unlock()
			continue
		}
		s.mu.Lock()
		switch {
		case s.unsaved && (s.committed || !s.before.empty() || s.ahead != nil): // perhaps the command that committed it has not returned yet
			records = append(records, dueRecord{id, s, s.used})
			s.dirty, s.unsaved = false, false
		case s.Txn != nil && (s.Txn.State == Open || s.Txn.State == Prepared || s.Txn.State == Committing):
		case s.used.Before(s.expired), s.outdated():
			records = append(records, dueRecord{id, s, s.used})
			delete(t.mu.sessions, id)
		case s.dirty || s.unsaved:
			records = append(records, dueRecord{id, s, s.used})
			s.dirty, s.unsaved = false, false
		}
		s.mu.Unlock()
		s.busy <- struct{}{}
	}
	slices.SortFunc(records, func(a, b dueRecord) int { return bytes.Compare(a.of.LSID, b.of.LSID) }) // neighbours are found together
	return records, t.mu.load
}

// store writes sessions of one load of the table to config.transactions.
func (t *retryTable) store(ctx context.Context, docs *statedoc.Docs, records []dueRecord, load int64) error {
	for len(records) > 0 {
		batch := records[:min(len(records), 500)]
		err := docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			return t.put(s, u, batch, load)
		})
		if err != nil {
			for _, r := range records { // the next flush stores them before it declares itself complete
				r.of.mu.Lock()
				r.of.unsaved = true
				r.of.mu.Unlock()
			}
			return err
		}
		records = records[len(batch):]
	}
	return nil
}

// put writes the current records of sessions, read after the unit's snapshot was taken, so that no unit with a
// later snapshot has an older record. A record built earlier might overwrite a newer one.
func (t *retryTable) put(snap *storage.Snapshot, u *storage.UnitOfWork, records []dueRecord, load int64) error {
	c, err := statedoc.CollectionFor(snap, u, TransactionsNS)
	statements := statementDocs{snap: snap, u: u}
	for _, r := range records {
		if err != nil {
			return err
		}
		t.mu.Lock()
		s, stale := t.mu.sessions[r.id], t.mu.load != load
		t.mu.Unlock()
		if stale {
			return errStaleTable
		}
		var doc []byte
		var h *history
		docs := 0
		if s == nil || s == r.of {
			docs = r.of.storedDocs()
		}
		if s != nil {
			used := r.used
			if s != r.of { // it was dropped, and has been created again
				used = time.Unix(int64(snap.Timestamp().Seconds()), 0)
			}
			s.mu.Lock()
			newest := s.newest()
			newest.runs = slices.Clone(newest.runs)
			h, doc = &newest, s.record(used)
			s.mu.Unlock()
			if h.empty() {
				continue // its client has not written anything yet
			}
		}
		if err = statedoc.PutRecord(snap, u, c, value.NewDocument(r.of.LSID), doc); err == nil {
			docs, err = statements.put(r.of.LSID, h, docs)
			u.OnCommit(func(storage.Timestamp) { r.of.setDocs(docs) })
		}
		t.written.Add(1)
	}
	return err
}

// saveProgress stores the time up to which the table is flushed, and releases the oplog up to there.
func (m *Manager) saveProgress(ctx context.Context, flushed storage.Timestamp, load int64, wc replication.WriteConcern) error {
	t := &m.retries
	err := m.Docs.WriteWith(ctx, wc, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		t.mu.Lock()
		h, stale := t.mu.hole, t.mu.load != load
		t.mu.Unlock()
		if stale {
			return errStaleTable
		}
		c, err := statedoc.CollectionFor(s, u, RetryProgressNS)
		if err != nil {
			return err
		}
		doc := []value.Field{value.F("_id", RetryProgressID), value.F("ts", flushed.Value())}
		if h.matters(m.Now()) {
			doc = append(doc, h.field())
		}
		return statedoc.PutRecord(s, u, c, RetryProgressID, value.Doc(doc...))
	})
	if err == nil && t.hold != nil {
		t.hold.Set(flushed)
	}
	return err
}

// readRecord reads a stored record into the session. It reads as much as possible from a malformed record, whose statements are then not
// all known.
func (s *Session) readRecord(doc []byte) error {
	number, ok := value.Lookup(doc, "txnNum").AsInt64()
	if !ok || number < 0 {
		return mongoerr.Newf(mongoerr.BadValue, "txnNum of %s is not a valid transaction number", value.Show(value.Lookup(doc, "_id")))
	}
	s.begin(number)
	if used := value.Lookup(doc, "lastWriteDate"); used.T == value.DateTime {
		s.used = used.Time()
	}
	last := value.LookupDoc(doc, "lastWriteOpTime")
	s.last = storage.OpTime{TS: storage.Timestamp(value.Lookup(last, "ts").TimestampU64()), Term: value.SafeInt64(value.Lookup(last, "t"))}
	switch value.Lookup(doc, "state").Str() {
	case "committed":
		s.Txn, s.committed = &Txn{Number: s.Number, State: Committed, ts: s.last.TS}, true
	case "aborted", "inProgress":
		s.Txn = &Txn{Number: s.Number, State: Aborted}
	}
	return s.readStatements(doc)
}

// readStatements adds the statements of a document of StatementsNS, or of a record with statements.
func (s *Session) readStatements(doc []byte) error {
	if value.Lookup(doc, tornField).Truthy() {
		s.incomplete = inRecord
	}
	list := value.Lookup(doc, "statements")
	if list.IsMissing() {
		return nil
	}
	if list.T != value.Array {
		return mongoerr.Newf(mongoerr.TypeMismatch, "statements of %s is not an array", value.Show(value.Lookup(doc, "_id")))
	}
	for _, v := range value.Values(list.Doc()) {
		r, ok := readRun(v)
		if !ok {
			return mongoerr.Newf(mongoerr.BadValue, "%s is not a valid statement of %s", value.Show(v), value.Show(value.Lookup(doc, "_id")))
		}
		s.runs = withRun(s.runs, r)
	}
	return nil
}

// readRun reads the statements of one kind.
func readRun(v value.Value) (r Run, ok bool) {
	if v.T != value.Document {
		return r, false
	}
	from, isFrom := value.Lookup(v.Doc(), "from").AsInt64()
	to, isTo := value.Lookup(v.Doc(), "to").AsInt64()
	op := value.Lookup(v.Doc(), "op").Str()
	if !isFrom || !isTo || from < 0 || to < from || to >= math.MaxInt32 || to-from > maxRun || len(op) != 1 || !strings.Contains("iud", op) {
		return r, false
	}
	return Run{From: int32(from), To: int32(to), Op: op[0], ID: value.Lookup(v.Doc(), "id").Clone()}, true
}

// maxRun limits what one entry of a record can claim: no session has that many statements under one number.
const maxRun = 10_000_000

// RetryService maintains the table: it is loaded when the node becomes primary, and flushed periodically from then on.
// Transactions that are open when the node steps down end there.
//
// The oplog is held as long as the node runs, and not only while it is primary: a new primary may truncate its oplog
// before it has loaded the table.
func (m *Manager) RetryService() replication.Service {
	m.retries.hold = m.Engine.HoldOplog()
	return replication.Service{
		Name: "RetryableWrites", Vital: true,
		StepUp: func(ctx context.Context, _ int64) error {
			err := m.LoadRetries()
			if err == nil {
				err = m.RestorePrepared(storage.WithReserve(ctx))
			}
			if err != nil {
				m.retries.unload()
				m.AbortTxns() // they are restored again
			}
			return err
		},
		Run: func(ctx context.Context, _ int64) {
			defer m.AbortTxns()
			defer m.retries.unload()
			m.flushPeriodically(storage.WithReserve(ctx)) // what is not flushed keeps the oplog from being truncated
		},
	}
}

// flushPeriodically flushes the table until ctx ends: more often while disk space is low, or a truncation of the
// oplog waits for it.
func (m *Manager) flushPeriodically(ctx context.Context) {
	tick := time.NewTimer(retryFlushEvery)
	defer tick.Stop()
	soon := false
	for {
		select {
		case <-tick.C:
			m.expireTxns()
			_ = m.FlushRetries(ctx) // the oplog still has what was not flushed
			if soon = m.Engine.DiskLow(); soon {
				tick.Reset(retryFlushSoon)
			} else {
				tick.Reset(retryFlushEvery)
			}
		case <-m.retries.hold.Asked():
			if !soon {
				soon = true
				tick.Reset(retryFlushSoon)
			}
		case <-ctx.Done():
			return
		}
	}
}

// unload declares the table stale.
func (t *retryTable) unload() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.load = 0
}
