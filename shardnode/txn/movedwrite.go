package txn

import (
	"bytes"
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Internal transactions. An update that gives a document a shard key of another shard is executed by the router as
// a transaction that deletes it here and inserts it there. If the update is a retryable write, the transaction's
// session is a child of the client's, and the transaction writes a note on the shard that the statement was sent
// to. The note commits with the transaction, and from then on the client's session knows that the statement was
// executed.
//
// At most one transaction for a write of a session is open on a shard: a request with the same or a newer
// txnNumber aborts the previous one or, if that has voted to commit, waits for it. A statement that is retried
// while its first execution is delayed somewhere thus learns its outcome.

// movedWrite is the record of a statement that was executed by an internal transaction.
type movedWrite struct {
	stmt  int32
	op    byte        // u or, for an upsert, i
	id    value.Value // what the upsert inserted
	image []byte      // the reply of a findAndModify; nil for updates
}

// outdated reports whether an internal transaction's session is no longer needed: its client has continued with
// other writes.
func (s *Session) outdated() bool {
	if s.parent == nil {
		return false
	}
	s.parent.mu.Lock()
	defer s.parent.mu.Unlock()
	return s.parent.Number > s.of
}

// openChild returns an open transaction for a write up to a txnNumber; nil if there is none.
func (s *Session) openChild(number int64) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.children {
		if c.of <= number {
			return c
		}
	}
	return nil
}

// endChild aborts the open transaction of an internal session or, if it has voted to commit, waits until it is decided.
func (m *Manager) endChild(ctx context.Context, c *Session) error {
	for try := 0; ; try++ {
		select {
		case <-c.busy:
		case <-ctx.Done():
			return ctx.Err()
		}
		m.abortTxn(c)
		over := c.Txn == nil || c.Txn.State != Prepared && c.Txn.State != Committing
		c.busy <- struct{}{}
		if over {
			return nil
		}
		if err := cluster.Backoff(ctx, try); err != nil {
			return err
		}
	}
}

// joinParent makes the transaction that an internal session is about to open the only one for its write.
func (m *Manager) joinParent(op *command.Op, s *Session) error {
	p := s.parent
	if p == nil {
		return nil
	}
	for {
		select {
		case <-p.busy: // wait for the end of a command of the write itself
		case <-op.Done():
			return op.Err()
		}
		m.catchUp(p)
		other, newer := p.openChild(s.of), p.Number > s.of
		if other == nil && !newer {
			s.enrol()
		}
		p.busy <- struct{}{}
		switch {
		case newer:
			return mongoerr.Newf(mongoerr.TransactionTooOld, "txnNumber %d is less than last txnNumber %d seen in session %s", s.of, p.Number, value.ShowDoc(p.LSID))
		case other == nil:
			return nil
		}
		if err := m.endChild(op, other); err != nil {
			return err
		}
	}
}

// enrol makes a session one of its parent's children.
func (s *Session) enrol() {
	if p := s.parent; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.children == nil {
			p.children = make(map[*Session]struct{})
		}
		p.children[s] = struct{}{}
	}
}

func (s *Session) leaveParent() {
	if p := s.parent; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.children, s)
	}
}

// notifyParent records the statements that a session's committed transaction executed in the client's session.
func (m *Manager) notifyParent(s *Session, moved []movedWrite, at storage.OpTime, used time.Time) {
	p := s.parent
	if p == nil || len(moved) == 0 {
		return
	}
	<-p.busy
	defer func() { p.busy <- struct{}{} }()
	m.catchUp(p)
	p.learn(s.of, moved, at, used)
}

// learn records statements of a txnNumber; the caller must hold the session.
func (s *Session) learn(number int64, moved []movedWrite, at storage.OpTime, used time.Time) {
	if number < s.Number || number == s.Number && s.Txn != nil {
		return
	}
	if number > s.Number {
		s.begin(number)
	}
	s.used, s.dirty = used, true
	for _, m := range moved {
		if !s.has(m.stmt) {
			s.ran(Run{m.stmt, m.stmt, m.op, m.id})
		}
		if m.image != nil {
			s.Image = append([]byte(nil), m.image...)
		}
	}
	s.wrote(at)
}

// note adds a statement to those that the transaction executes, and its record to what it will commit.
func (t *Txn) note(m movedWrite) {
	t.moved = append(t.moved, m)
	o := []value.Field{value.F("stmtId", value.NewInt32(m.stmt)), value.F("kind", value.NewStringBytes([]byte{m.op}))}
	if !m.id.IsMissing() {
		o = append(o, value.F("id", m.id))
	}
	if m.image != nil {
		o = append(o, value.F("image", value.NewDocument(m.image)))
	}
	o = []value.Field{value.F("movedWrite", value.NewDocument(value.Doc(o...)))}
	t.Unit.Oplog(storage.OplogEntry{Op: 'n', NS: "admin.$cmd", O: value.Doc(o...), StmtID: -1})
}

// movedWriteOf reads the record from an operation of a transaction.
func movedWriteOf(entry []byte) (m movedWrite, ok bool) {
	if value.Lookup(entry, "op").Str() != "n" {
		return m, false
	}
	note := value.Lookup(value.Lookup(entry, "o").Doc(), "movedWrite").Doc()
	kind := value.Lookup(note, "kind").Str()
	if len(kind) != 1 {
		return m, false
	}
	m = movedWrite{stmt: int32(value.SafeInt64(value.Lookup(note, "stmtId"))), op: kind[0], id: value.Lookup(note, "id").Clone()}
	if img := value.Lookup(note, "image"); img.T == value.Document {
		m.image = append([]byte(nil), img.Doc()...)
	}
	return m, true
}

// noteMovedWrites records what an internal transaction's oplog entry contains about its client's session. If the entry is the
// decision of a prepared transaction, the operations are in earlier entries.
func noteMovedWrites(snap *storage.Snapshot, sessions map[cluster.LogicalSessionID]*Session, e *storage.SessionEntry, decided bool) error {
	id, err := cluster.ParseLSID(e.LSID, cluster.NoUser)
	if err != nil || !id.IsChild() || id.TxnNumber == 0 {
		return nil
	}
	var moved []movedWrite
	collect := func(ops []byte) error {
		for _, v := range value.Values(ops) {
			if m, ok := movedWriteOf(v.Doc()); ok {
				moved = append(moved, m)
			}
		}
		return nil
	}
	if decided {
		if err := snap.PreparedOps(e.Prev.TS, collect); mongoerr.CodeOf(err) == mongoerr.CappedPositionLost {
			p := sessionOf(sessions, id.Parent())
			p.learn(id.TxnNumber, nil, e.At, time.UnixMilli(e.WallMS))
			if p.Number == id.TxnNumber {
				p.lose()
			}
		} else if err != nil {
			return err
		}
	} else {
		_ = collect(value.Lookup(e.O, "applyOps").Doc())
	}
	if len(moved) > 0 {
		sessionOf(sessions, id.Parent()).learn(id.TxnNumber, moved, e.At, time.UnixMilli(e.WallMS))
	}
	return nil
}

// MovedWriteSpecs returns the commands with which a router reports a statement that it executes as a transaction,
// and asks whether one was executed.
func (m *Manager) MovedWriteSpecs() []command.Spec {
	note, executed := command.Internal(m.runNoteMovedWrite), command.Internal(m.runStatementExecuted)
	note.Roles, executed.Roles = command.Shard|command.Config, command.Shard|command.Config
	note.Kind, note.Txn, note.AdminOnly = command.Write, true, false
	return []command.Spec{note, executed}
}

func (m *Manager) runNoteMovedWrite(op *command.Op, req *msg.NoteMovedWrite, dst []byte) ([]byte, error) {
	t := Of(op)
	s := m.retries.of(op)
	if t == nil || s == nil || s.parent == nil {
		return dst, mongoerr.New(mongoerr.IllegalOperation, "_shardsvrNoteMovedWrite must be run in an internal transaction")
	}
	w := movedWrite{stmt: int32(req.Statement), op: 'u', id: req.Upserted.Clone()}
	if !w.id.IsMissing() {
		w.op = 'i'
	}
	if s.parent.hasRun(s.of, w.stmt) {
		return dst, mongoerr.Newf(mongoerr.IncompleteTransactionHistory, "Statement %d of transaction %d has been executed already", w.stmt, s.of)
	}
	if err := m.retries.knowsStatement(s.parent, s.of, op.Start); err != nil {
		return dst, err
	}
	if req.Image != nil {
		w.image = bytes.Clone(req.Image)
		if err := m.keepMovedImage(op, t, s, req.ImageKind, w.image); err != nil {
			return dst, err
		}
	}
	t.note(w)
	return dst, nil
}

// keepMovedImage is keepImage for a transaction.
func (m *Manager) keepMovedImage(ctx context.Context, t *Txn, s *Session, kind string, image []byte) error {
	c := t.View.Catalog().Lookup(ImagesNS)
	if c == nil {
		return nil
	}
	if err := t.Locks.LockCollection(ctx, catalog.DBOf(ImagesNS), ImagesNS, lock.IX); err != nil {
		return err
	}
	return statedoc.PutIn(t.View, t.Unit, c, ImageRecord(t.View, s.parent, s.of, kind, image))
}

// hasRun reports whether a statement of a txnNumber was executed.
func (s *Session) hasRun(number int64, stmt int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ahead != nil && s.ahead.number == number {
		return s.ahead.has(stmt)
	}
	_, ran := s.ranBefore(stmt)
	return s.Number == number && ran
}

// runStatementExecuted reports whether this shard has executed a statement of a retryable write. It waits for one
// that is being executed.
func (m *Manager) runStatementExecuted(op *command.Op, req *msg.StatementExecuted, dst []byte) ([]byte, error) {
	if err := m.node.NotPrimary(); err != nil {
		return dst, err
	}
	id, err := cluster.ParseLSID(req.Session, cluster.NoUser)
	if err != nil {
		return dst, err
	}
	m.retries.mu.Lock()
	s := m.retries.mu.sessions[id]
	m.retries.mu.Unlock()
	executed := false
	if s == nil {
		s = newSession()
		s.LSID = id.Doc()
	} else {
		for c := s.openChild(req.Number); c != nil; c = s.openChild(req.Number) {
			if err := m.endChild(op, c); err != nil {
				return dst, err
			}
		}
		select {
		case <-s.busy:
		case <-op.Done():
			return dst, op.Err()
		}
		m.catchUp(s)
		l := s.Undecided()
		s.busy <- struct{}{}
		if l != nil {
			if _, err := l.Await(op, 0); err != nil {
				return dst, err
			}
		}
		executed = s.hasRun(req.Number, int32(req.Statement))
	}
	if !executed {
		if err := m.retries.knowsStatement(s, req.Number, op.Start); err != nil {
			return dst, err
		}
	}
	return msg.AppendFields(dst, &msg.StatementExecutedReply{Executed: executed}), nil
}
