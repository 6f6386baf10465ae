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

// What a client writes to config.transactions is from then on what the node knows of the sessions. A session whose record is deleted has
// no history: its statements are executed when they are sent again. One whose record is inserted or updated has the number and the state
// of the record, and the history that the oplog has up to lastWriteOpTime; of what is not there, retries are refused
// (IncompleteTransactionHistory). Its open transaction ends. A transaction that has voted to commit is its coordinator's: its session is
// refused before anything is written.
//
// A session is taken while a unit that writes its record is open, so that no command of it runs, and is changed at the moment the unit
// becomes visible: a flush that reads the record reads the session as the record says.

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
	taken   []*Session // in the order in which they were taken
	changes []func()   // of the sessions, once the unit is visible
}

// Invalidate begins a client's write to config.transactions. The sessions' records are written first, so that it finds them all.
func (m *Manager) Invalidate(ctx context.Context) *Invalidation {
	m.WriteRecords(ctx)
	i := &Invalidation{m: m}
	i.mu.units = make(map[*storage.UnitOfWork]*invalidatingUnit)
	return i
}

// Delete has a unit delete a record. It is an error if the session has a prepared transaction.
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
	i.change(u, func() { s.become(newSession()) })
	return nil
}

// Put has a unit insert a record, or update old, and returns it as it is stored: with the statements that the session has executed.
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
		return value.Doc(append(r.fields, ofHistory(old)...)...), nil
	}
	h, err := r.history(snap)
	if err != nil {
		return nil, err
	}
	parts := h.statements()
	more := continuations{snap: snap, u: u}
	if err := more.put(r.id.Doc(), value.NewInt64(r.number), parts[1:]); err != nil {
		return nil, err
	}
	stored := value.Doc(r.fields...)
	if r.state == "" {
		stored = value.Doc(append(r.fields, h.fields(parts[0])...)...)
	}
	from := newSession()
	if err := from.readRecord(stored); err != nil {
		return nil, err
	}
	from.runs = h.runs
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

// take takes a session for a unit until that ends, and ends its open transaction. It does not wait for a command that uses the session,
// which may itself wait for what the unit has claimed: that is a conflict, and the unit begins again.
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

// hold takes one session for a unit and ends its open transaction.
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

// change has a session change when the unit becomes visible.
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

// All has a unit delete all records.
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

// End ends the command. After a drop it forgets all sessions. The progress of the table is stored behind the write: what is loaded after a
// restart or an election is not read from the oplog again.
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
		i.m.WriteRecords(ctx) // the progress is that of the flush before
	}
}

// forgetSession forgets a session's history, once no command uses it. What has been prepared since stays.
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

// become replaces what is known of a session.
func (s *Session) become(from *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Number, s.runs, s.last, s.Txn, s.committed, s.incomplete = from.Number, from.runs, from.last, from.Txn, from.committed, from.incomplete
	s.Image, s.pending, s.before, s.used, s.dirty, s.unsaved = nil, nil, history{}, from.used, false, false
}

// touch sets when a session was last used.
func (s *Session) touch(used time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = used
}
