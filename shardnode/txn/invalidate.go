package txn

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A client's write to config.transactions changes the state of the sessions themselves. A session whose record is deleted has no history:
// its statements are executed when they are sent again. A session whose record is inserted or updated gets the number and the state of the
// record, and the history that the oplog has up to lastWriteOpTime; retries of statements that the oplog does not have are refused
// (IncompleteTransactionHistory). Its open transaction is aborted. A prepared transaction belongs to its coordinator: the write of its
// session's record is refused before anything is written.
//
// A session is checked out while a unit that writes its record is open, so that none of its commands runs, and changes when the unit
// becomes visible: a concurrent flush of the sessions finds the session in the state of the record.

// Invalidation is a client's write to config.transactions.
type Invalidation struct {
	m  *Manager
	mu struct { // a command that does not wait for its commit's outcome ends before the unit's hooks run
		sync.Mutex
		wrote, all bool
		units      map[*storage.UnitOfWork]*invalidatingUnit
	}
}

// invalidatingUnit is an open unit that writes records.
type invalidatingUnit struct {
	taken   []*Session // in the order in which they were checked out
	changes []func()   // of the sessions, once the unit is visible
}

// Invalidate begins a client's write to config.transactions. The records of all sessions are written first, so that the write finds them.
func (m *Manager) Invalidate(ctx context.Context) *Invalidation {
	m.WriteRecords(ctx)
	i := &Invalidation{m: m}
	i.mu.units = make(map[*storage.UnitOfWork]*invalidatingUnit)
	return i
}

// Delete prepares the deletion of a record by a unit. It is an error if the session has a prepared transaction.
func (i *Invalidation) Delete(u *storage.UnitOfWork, doc []byte) error {
	if i == nil {
		return nil // another collection
	}
	id, err := cluster.ParseLSID(value.LookupDoc(doc, "_id"), cluster.NoUser)
	if err != nil {
		return nil // no session has such a record
	}
	if err := checkDecided(id, doc); err != nil {
		return err
	}
	s, err := i.take(u, id)
	if err != nil {
		return err
	}
	snap := i.m.Engine.Snapshot()
	defer snap.Release()
	if _, err := (&statementDocs{snap: snap, u: u}).put(id.Doc(), nil, 0); err != nil {
		return err
	}
	i.change(u, func() { s.become(newSession()) })
	return nil
}

// Put prepares the insertion of a record by a unit, or an update of old, and returns the record to store; the statements that the session has
// executed are staged beside it.
func (i *Invalidation) Put(u *storage.UnitOfWork, old, doc []byte) ([]byte, error) {
	r, err := parseClientRecord(doc)
	if err != nil {
		return nil, err
	}
	if err := checkDecided(r.id, old); err != nil {
		return nil, err
	}
	s, err := i.take(u, r.id)
	if err != nil {
		return nil, err
	}
	snap := i.m.Engine.Snapshot()
	defer snap.Release()
	if r.last.TS > snap.Timestamp() {
		return nil, mongoerr.Newf(mongoerr.BadValue, "lastWriteOpTime of session %s is later than the oplog", value.ShowDoc(r.id.Doc()))
	}
	if r.agrees(old) {
		i.change(u, func() { s.touch(r.used) })
		return value.Doc(r.fields...), nil
	}
	h, err := r.history(snap)
	if err != nil {
		return nil, err
	}
	of := &h
	if r.state != "" {
		of = nil
	}
	if _, err := (&statementDocs{snap: snap, u: u}).put(r.id.Doc(), of, 0); err != nil {
		return nil, err
	}
	stored, from := value.Doc(r.fields...), newSession()
	if err := from.readRecord(stored); err != nil {
		return nil, err
	}
	if from.runs = h.runs; h.torn {
		from.incomplete = inRecord
	}
	i.change(u, func() { s.become(from) })
	return stored, nil
}

// checkDecided refuses a change of the record of a prepared transaction.
func checkDecided(id cluster.LogicalSessionID, doc []byte) error {
	if value.Lookup(doc, "state").Str() == "prepared" {
		return mongoerr.Newf(mongoerr.PreparedTransactionInProgress, "The record of session %s cannot be changed while its transaction is prepared", value.ShowDoc(id.Doc()))
	}
	return nil
}

// take checks out a session for a unit until the unit ends, and aborts its open transaction. It does not wait for a command that uses the session,
// since that may wait for what the unit has claimed: it returns a conflict, after which the unit begins again.
func (i *Invalidation) take(u *storage.UnitOfWork, id cluster.LogicalSessionID) (*Session, error) {
	t := &i.m.retries
	t.mu.Lock()
	if t.mu.sessions == nil {
		t.mu.sessions = make(map[cluster.LogicalSessionID]*Session)
	}
	s := sessionOf(t.mu.sessions, id)
	t.mu.Unlock()
	for _, one := range append([]*Session{s}, s.openChildren()...) {
		if err := i.hold(u, one); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// openChildren returns the sessions of the internal transactions that are open for a session's writes.
func (s *Session) openChildren() []*Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.children))
}

// hold checks out one session for a unit and aborts its open transaction.
func (i *Invalidation) hold(u *storage.UnitOfWork, s *Session) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	of := i.mu.units[u]
	if of == nil {
		of = &invalidatingUnit{}
		i.mu.units[u] = of
		u.OnCommit(func(storage.Timestamp) { i.end(u, true) })
		u.OnRollback(func() { i.end(u, false) })
	}
	if slices.Contains(of.taken, s) {
		return nil // as the child of another
	}
	select {
	case <-s.busy:
		of.taken = append(of.taken, s)
	default:
		return mongoerr.Newf(mongoerr.WriteConflict, "session %s is in use", value.ShowDoc(s.LSID))
	}
	if t := s.Txn; t != nil {
		i.m.settleTxn(s, t)
		if t.State == Prepared || t.State == Committing {
			return mongoerr.Newf(mongoerr.PreparedTransactionInProgress, "The record of session %s cannot be changed while the commit of its transaction is undecided", value.ShowDoc(s.LSID))
		}
	}
	i.m.abortTxn(s)
	return nil
}

// change makes a session change when the unit becomes visible.
func (i *Invalidation) change(u *storage.UnitOfWork, f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	of := i.mu.units[u]
	of.changes = append(of.changes, f)
}

// end changes the sessions of a unit that has committed, and releases them.
func (i *Invalidation) end(u *storage.UnitOfWork, committed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	of := i.mu.units[u]
	delete(i.mu.units, u)
	if committed {
		i.mu.wrote = true
		for _, f := range of.changes {
			f()
		}
	}
	for _, s := range of.taken {
		s.busy <- struct{}{}
	}
}

// All prepares the deletion of all records by a unit.
func (i *Invalidation) All(u *storage.UnitOfWork) error {
	if i.m.prepared.open() > 0 {
		return mongoerr.New(mongoerr.PreparedTransactionInProgress, TransactionsNS+" cannot be dropped while a transaction is prepared")
	}
	u.OnCommit(func(storage.Timestamp) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.mu.wrote, i.mu.all = true, true
	})
	return nil
}

// End ends the command. After a drop it forgets all sessions. The progress of the table is stored after the write, so that earlier entries of
// the oplog are not loaded again after a restart or an election.
func (i *Invalidation) End(ctx context.Context) {
	if i == nil {
		return
	}
	t := &i.m.retries
	i.mu.Lock()
	wrote, all := i.mu.wrote, i.mu.all
	i.mu.wrote, i.mu.all = false, false
	i.mu.Unlock()
	if all {
		t.mu.Lock()
		sessions := slices.Collect(maps.Values(t.mu.sessions))
		t.mu.Unlock()
		for _, s := range sessions {
			if i.m.forgetSession(ctx, s) != nil {
				break
			}
		}
	}
	if wrote {
		i.m.WriteRecords(ctx)
		i.m.WriteRecords(ctx) // stores the progress of the previous flush
	}
}

// forgetSession drops a session's history, once no command uses the session. What has been prepared since remains.
func (m *Manager) forgetSession(ctx context.Context, s *Session) error {
	for {
		release, err := s.Take(ctx)
		if err != nil {
			return err
		}
		if child := s.openChild(math.MaxInt64); child != nil {
			release()
			if err := m.endChild(ctx, child); err != nil {
				return err
			}
			continue
		}
		m.abortTxn(s)
		if s.Txn == nil || s.Txn.State != Prepared && s.Txn.State != Committing {
			s.become(newSession())
		}
		release()
		return nil
	}
}

// become replaces the state of a session.
func (s *Session) become(from *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Number, s.runs, s.last, s.Txn, s.committed, s.incomplete = from.Number, from.runs, from.last, from.Txn, from.committed, from.incomplete
	s.ahead, s.docs = nil, 0
	s.Image, s.pending, s.before, s.used, s.dirty, s.unsaved = nil, nil, history{}, from.used, false, false
}

// touch sets when a session was last used.
func (s *Session) touch(used time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = used
}
