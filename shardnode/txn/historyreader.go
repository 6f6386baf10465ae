package txn

import (
	"context"
	"errors"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// HistoryOf begins to read the history of the statements that wrote to certain documents, in the form that Adopt takes: first what sessions
// have executed so far, found by following each session's entries back from its newest one, then what the oplog has after a time.
// All that was visible at that time is in one of the two.
//
// of decides about an entry, and returns the key of its document as far as it is known. Statements whose entries the oplog no longer
// has are part of any history: a shard may know of statements that it never sees again.
//
// next returns the next part, of about the given size, and the time up to which entries of the oplog are no longer needed; more is false if that
// was everything at the moment of the call.
//
// Hazard: another shard keeps what it is sent, whatever becomes of this one. A statement that this shard loses with its power would count as executed there, and a client that sends it
// again would be told that it was. next therefore returns nothing that a crash could undo. A set of several members shows nothing else; one of a single member shows writes before they are
// synced. Rejected: leaving out what is not durable yet. The last part, read while writes are blocked, has to contain everything.
func (m *Manager) HistoryOf(of func(e *storage.OplogEntry) (key []byte, ok bool), after storage.Timestamp) (next func(size int) (part [][]byte, upTo storage.Timestamp, more bool, err error)) {
	r := m.readHistory(of, after)
	t := &m.retries
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.mu.sessions {
		if s.parent == nil { // what an internal transaction executes is its parent's
			r.sessions = append(r.sessions, s)
		}
	}
	return r.next
}

// HistoryAfter continues a reading that HistoryOf began, perhaps on another member, and that has reached a time.
func (m *Manager) HistoryAfter(of func(e *storage.OplogEntry) (key []byte, ok bool), after storage.Timestamp) (next func(size int) (part [][]byte, upTo storage.Timestamp, more bool, err error)) {
	return m.readHistory(of, after).next
}

// readHistory returns a reader that begins with the hole in this member's own history, if it matters.
func (m *Manager) readHistory(of func(e *storage.OplogEntry) (key []byte, ok bool), after storage.Timestamp) *historyReader {
	r := &historyReader{m: m, of: of, at: after}
	t := &m.retries
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.mu.hole; h.matters(m.Now()) {
		r.add(h.record())
	}
	return r
}

// historyReader is a history that is being read.
type historyReader struct {
	m        *Manager
	of       func(e *storage.OplogEntry) (key []byte, ok bool)
	sessions []*Session        // that have not been read yet
	at       storage.Timestamp // up to where the oplog has been read
	ready    [][][]byte        // what has been read and not returned: entries, each preceded by its image
	size     int               // of ready
	newest   storage.Timestamp // of the statements in ready and before: the store is synced if it is not durable
}

const (
	// sessionsAtOnce is the number of sessions that are read for one part, and logAtOnce the number of oplog entries.
	sessionsAtOnce = 2000
	logAtOnce      = 100_000
)

// errEnough ends the reading of the oplog for one part.
var errEnough = errors.New("a part of the history is complete")

func (r *historyReader) add(docs ...[]byte) {
	r.ready = append(r.ready, docs)
	for _, d := range docs {
		r.size += len(d)
	}
}

func (r *historyReader) next(size int) (part [][]byte, upTo storage.Timestamp, more bool, err error) {
	snap := r.m.Engine.Snapshot()
	defer snap.Release()
	for n := 0; len(r.sessions) > 0 && r.size < size && n < sessionsAtOnce; n++ {
		if err := r.readSession(snap, r.sessions[0]); err != nil {
			return nil, r.at, true, err
		}
		r.sessions = r.sessions[1:]
	}
	if len(r.sessions) == 0 && r.size < size {
		if err := r.follow(snap, size); err != nil {
			return nil, r.at, true, err
		}
	}
	if r.newest > r.m.Engine.Durable() {
		if err := r.m.Engine.Sync(context.Background()); err != nil {
			return nil, r.at, true, err
		}
	}
	for n := 0; len(r.ready) > 0 && (n == 0 || n < size); {
		for _, d := range r.ready[0] {
			part, n = append(part, d), n+len(d)
			r.size -= len(d)
		}
		r.ready = r.ready[1:]
	}
	return part, r.at, len(r.sessions) > 0 || len(r.ready) > 0 || r.at < snap.Timestamp(), nil
}

// follow reads the oplog to the snapshot's end, or until there is enough for a part.
func (r *historyReader) follow(snap *storage.Snapshot, size int) error {
	n := 0
	err := snap.SessionEntries(r.at, func(e *storage.SessionEntry) error {
		// The operations of one entry are read together: the position is past it once the first has been read.
		if (r.size >= size || n >= logAtOnce) && e.At.TS != r.at {
			return errEnough
		}
		n++
		before := len(r.ready)
		if err := r.readEntry(snap, e); err != nil {
			return err
		}
		if r.at = e.At.TS; len(r.ready) > before {
			r.newest = max(r.newest, r.at)
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	if err == nil {
		r.at = max(r.at, snap.Timestamp())
	}
	return err
}

// readEntry reads one entry of the oplog.
func (r *historyReader) readEntry(snap *storage.Snapshot, e *storage.SessionEntry) error {
	id, err := cluster.ParseLSID(e.LSID, cluster.NoUser)
	if err != nil {
		return nil // not a client's session
	}
	e.LSID = id.Doc() // clients leave out the user
	if e.Op != 'c' {
		if s, ok := statementOf(&e.OplogEntry); ok {
			r.addStatement(e, &s)
		}
		return nil
	}
	decided := !value.Lookup(e.O, "commitTransaction").IsMissing()
	if !decided && (value.Lookup(e.O, "applyOps").IsMissing() || value.Lookup(e.O, "prepare").Truthy() || value.Lookup(e.O, "partialTxn").Truthy()) {
		return nil
	}
	if id.IsChild() {
		_, whole, err := r.readMoved(snap, id, e)
		if err == nil && !whole {
			r.add((&statementEntry{lost: true}).document(id.Parent().Doc(), id.TxnNumber, e.At, e.WallMS))
		}
		return err
	}
	return r.readTransaction(snap, e.LSID, e.Number, e.At)
}

// addStatement adds an entry if it belongs to the history.
func (r *historyReader) addStatement(e *storage.SessionEntry, s *statementEntry) {
	if s.lost {
		r.add(s.document(e.LSID, e.Number, e.At, e.WallMS))
		return
	}
	if s.of.NS != "" { // else nothing is known of its document
		key, ok := r.of(&s.of)
		if !ok {
			return
		}
		s.of.O2 = key
		if s.of.Op == 'd' {
			s.of.O = key
		}
	}
	r.addKnown(e, s)
}

// addKnown adds an entry that belongs to the history, preceded by the image of its document if it has one.
func (r *historyReader) addKnown(e *storage.SessionEntry, s *statementEntry) {
	var image []byte
	if s.image != "" {
		image, s.image = r.m.imageOf(e.LSID, e.Number, s.image)
	}
	if image == nil {
		r.add(s.document(e.LSID, e.Number, e.At, e.WallMS))
		return
	}
	at := storage.OpTime{TS: e.At.TS - 1, Term: e.At.Term} // the optime of an entry for the image, which the log does not have
	r.add(value.Doc(append(ofSession(e.LSID, e.Number), value.F("op", value.NewString("n")), value.F("o", value.NewDocument(image)), value.F("ts", at.TS.Value()), value.F("t", value.NewInt64(at.Term)))...),
		s.document(e.LSID, e.Number, e.At, e.WallMS, value.F(s.image+"OpTime", at.Value())))
}

// wallOf returns the approximate time at which an entry was logged, in milliseconds.
func wallOf(at storage.OpTime) int64 { return int64(at.TS.Seconds()) * 1000 }

func ofSession(lsid []byte, number int64) []value.Field {
	return []value.Field{value.F("lsid", value.NewDocument(lsid)), value.F("txnNumber", value.NewInt64(number))}
}

// document returns the entry as it is sent.
func (s *statementEntry) document(lsid []byte, number int64, at storage.OpTime, wallMS int64, more ...value.Field) []byte {
	f := ofSession(lsid, number)
	if s.lost || s.of.NS == "" {
		o2 := tag(incompleteTag)
		if !s.lost {
			o2 = value.Doc(s.operation(s.key())...)
		}
		f = append(f, value.F("op", value.NewString("n")), value.F("o", value.NewDocument(tag(migratedTag))), value.F("o2", value.NewDocument(o2)))
	} else {
		f = append(f, s.operation(s.key())...)
	}
	f = append(f, value.F("stmtId", s.stmtID()), value.F("ts", at.TS.Value()), value.F("t", value.NewInt64(at.Term)), value.F("wall", value.NewDateTime(wallMS)))
	return value.Doc(append(f, more...)...)
}

// readSession reads the newest history of a session.
func (r *historyReader) readSession(snap *storage.Snapshot, s *Session) error {
	s.mu.Lock()
	h := s.newest()
	h.runs = slices.Clone(h.runs)
	s.mu.Unlock()
	r.newest = max(r.newest, h.last.TS)
	wall := wallOf(h.last)
	switch {
	case h.empty():
		return nil
	case h.committed:
		return r.readTransaction(snap, s.LSID, h.number, h.last)
	case h.torn:
		r.add((&statementEntry{lost: true}).document(s.LSID, h.number, h.last, wall))
	}
	found, err := r.readChain(snap, s, &h)
	if err != nil {
		return err
	}
	var rest []Run
	for _, run := range h.runs {
		for id := int64(run.From); id <= int64(run.To); id++ {
			if _, ok := findRun(found, int32(id)); !ok {
				rest = withRun(rest, Run{int32(id), int32(id), run.Op, run.ID})
			}
		}
	}
	for _, e := range entriesOf(rest) {
		r.add(e.document(s.LSID, h.number, h.last, wall))
	}
	return nil
}

// readChain follows the entries of a history, and returns the statements that it found, whether they belong to what is read or not.
func (r *historyReader) readChain(snap *storage.Snapshot, s *Session, h *history) (found []Run, err error) {
	own, err := cluster.ParseLSID(s.LSID, cluster.NoUser)
	if err != nil {
		return nil, nil
	}
	first := len(r.ready)
	_, failed := snap.SessionHistory(h.last, func(e *storage.SessionEntry) bool {
		id, bad := cluster.ParseLSID(e.LSID, cluster.NoUser)
		switch {
		case bad != nil:
			return false
		case id == own && e.Number == h.number && e.Op != 'c':
			e.LSID = s.LSID
			if st, ok := statementOf(&e.OplogEntry); ok && !st.lost {
				for _, run := range st.runs() {
					found = withRun(found, run)
				}
				r.addStatement(e, &st)
			}
			return true
		case id.IsChild() && id.Parent() == own && id.TxnNumber == h.number:
			var moved []Run
			if moved, _, err = r.readMoved(snap, id, e); err == nil {
				for _, run := range moved {
					found = withRun(found, run)
				}
			}
		}
		return false // what came before the transaction of a child is not known
	})
	slices.Reverse(r.ready[first:]) // the oldest first
	return found, errors.Join(err, failed)
}

// readTransaction reads a committed transaction. The new owner only has to know that its number is used: the shards that took part know
// the outcome.
func (r *historyReader) readTransaction(snap *storage.Snapshot, lsid []byte, number int64, at storage.OpTime) error {
	wrote := false
	whole, err := eachOperation(snap, at, func(op []byte) {
		if !wrote {
			e := operationOf(op)
			_, wrote = r.of(&e)
		}
	})
	if err == nil && (wrote || !whole) {
		r.add((&statementEntry{lost: true}).document(lsid, number, at, wallOf(at)))
	}
	return err
}

// readMoved reads the statements of its client's session that an internal transaction has executed, and returns them; whole is false if the
// oplog no longer has all of it. A transaction that inserts on another shard has nothing of the document here.
func (r *historyReader) readMoved(snap *storage.Snapshot, child cluster.LogicalSessionID, e *storage.SessionEntry) (runs []Run, whole bool, err error) {
	var moved []movedWrite
	var about storage.OplogEntry
	here, elsewhere := false, false
	whole, err = eachOperation(snap, e.At, func(op []byte) {
		if m, ok := movedWriteOf(op); ok {
			moved = append(moved, m)
			return
		}
		o := operationOf(op)
		key, ok := r.of(&o)
		if ok && !here {
			key = slices.Clone(key)
			about, here = storage.OplogEntry{NS: o.NS, UUID: o.UUID, O: key, O2: key}, true
		}
		elsewhere = elsewhere || !ok
	})
	if err != nil || !whole {
		return nil, whole, err
	}
	parent := &storage.SessionEntry{LSID: child.Parent().Doc(), Number: child.TxnNumber, At: e.At, WallMS: e.WallMS}
	for _, m := range moved {
		runs = withRun(runs, Run{m.stmt, m.stmt, m.op, m.id})
		if elsewhere && !here {
			continue
		}
		s := statementEntry{of: about, stmts: []value.Value{value.NewInt32(m.stmt)}, id: m.id}
		s.of.Op = m.op
		if m.image != nil {
			s.image = "preImage"
		}
		r.addKnown(parent, &s)
	}
	return runs, true, nil
}

// eachOperation calls f with the operations of a transaction whose commit is logged at a time. whole is false if the oplog no longer has all.
func eachOperation(snap *storage.Snapshot, at storage.OpTime, f func(op []byte)) (whole bool, err error) {
	each := func(ops []byte) error {
		for _, v := range value.Values(ops) {
			f(v.Doc())
		}
		return nil
	}
	decided := false
	whole, err = snap.SessionHistory(at, func(e *storage.SessionEntry) bool {
		switch {
		case e.Op != 'c':
			return false
		case !value.Lookup(e.O, "commitTransaction").IsMissing():
			decided = true
			err = snap.PreparedOps(e.Prev.TS, each)
			return false
		}
		return each(value.Lookup(e.O, "applyOps").Doc()) == nil
	})
	if mongoerr.CodeOf(err) == mongoerr.CappedPositionLost {
		return false, nil
	}
	return whole || decided, err
}

// imageOf returns the stored document that a session's findAndModify returned, and its kind; nil for none.
func (m *Manager) imageOf(lsid []byte, number int64, kind string) ([]byte, string) {
	doc, err := m.Docs.Get(ImagesNS, value.NewDocument(lsid))
	if err != nil || doc == nil || value.SafeInt64(value.Lookup(doc, "txnNum")) != number {
		return nil, ""
	}
	if k := value.Lookup(doc, "imageKind").Str(); k != "" {
		kind = k
	}
	return value.LookupDoc(doc, "image"), kind
}
