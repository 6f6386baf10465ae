package shardnode

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Retryable writes. For each session the node remembers which statements of its newest txnNumber were executed, and
// answers a statement that comes again with what it did the first time.
//
// The table is in memory. What makes it durable is the oplog: each entry of a retryable write carries lsid, txnNumber
// and stmtId in the same unit of work as the write itself. So that a restart or an election need not read the whole oplog,
// the primary writes the table to config.transactions every few seconds, with the time up to which it is complete; what is
// newer is read from the oplog by the node that opens, or becomes primary.
type retryTable struct {
	mu struct {
		sync.Mutex
		sessions map[cluster.LogicalSessionID]*retrySession
		// cut is when it was found that a part of the oplog which was not written down is gone, zero where none is. Sessions
		// that are not known may have been in it, as long as those of before live.
		cut time.Time
	}
	writes  int64             // how many statements there had been at the last flush
	quiet   int               // how many flushes there have been since one had something to write
	flushed storage.Timestamp // what the last flush but one saw: complete up to there
	pending storage.Timestamp // what the last flush saw
	saved   atomic.Uint64     // flushed, as it is stored
}

// retrySession is a session's newest retryable write. Who holds busy may use the rest.
type retrySession struct {
	busy      chan struct{}
	number    int64
	runs      []stmtRun
	image     []byte // the document that findAndModify answered
	lsid      []byte
	last      storage.OpTime // of the newest entry of that number
	txn       *openTxn       // the transaction of that number, nil for retryable writes
	used      time.Time
	dirty     bool
	committed bool // the transaction of that number has
	// unsaved says that statements were executed, or a transaction has committed, and that is not written down.
	unsaved bool
	// incomplete says that a part of the history was cut off the oplog before it was written down: a statement that is
	// not known may have been executed.
	incomplete bool
	// unknown says the same of whatever number comes first: the session is new, or its history is lost as a whole.
	unknown bool
	left    *leftCommit // of that number, whose outcome is not known
	expired time.Time   // when the sessions collection was found to have no record of it, zero where it has
	mu      sync.Mutex  // held to change, and to read runs, last, number, committed, unsaved and left, which may change without busy

	parent   *retrySession              // of an internal transaction's session, nil for every other
	of       int64                      // the parent's txnNumber that it is for
	children map[*retrySession]struct{} // those with open transactions
}

// begin forgets the history of the numbers before.
func (s *retrySession) begin(number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number, s.runs, s.image, s.txn, s.last, s.incomplete, s.left = number, nil, nil, nil, storage.NoOpTime, false, nil
	s.unsaved, s.committed = false, false
}

// stmtRun are statements of one kind that were executed: i, u or d, as in the oplog. id is the _id that an upsert made.
type stmtRun struct {
	from, to int32
	op       byte
	id       value.Value
}

const (
	transactionsNS  = "config.transactions"
	imagesNS        = "config.image_collection"
	retryProgressNS = "config.system.retryableWrites"
	// retryFlushEvery is how often the table is written down; a restart reads about twice as much oplog.
	retryFlushEvery = 5 * time.Second
)

var retryProgressID = value.NewString("complete")

func newRetrySession() *retrySession {
	s := &retrySession{busy: make(chan struct{}, 1), number: -1, last: storage.NoOpTime}
	s.busy <- struct{}{}
	return s
}

// checkoutRetry takes the session of a retryable write for one command, and gives the function that lets it go. A newer number
// forgets the history of the one before; an older one is refused.
func (n *Node) checkoutRetry(op *command.Op) (s *retrySession, release func(), err error) {
	number := op.Req.TxnNumber
	for {
		if s, release, err = n.retries.take(op); err != nil {
			return nil, nil, err
		}
		child := s.openChild(number)
		if child == nil {
			break
		}
		release()
		if err := n.endChild(op, child); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case number < s.number:
		err = tooOld(op, s)
	case number > s.number && s.txn != nil && s.txn.state == txnPrepared:
		err = s.promised()
	case number == s.number && s.txn != nil:
		err = mongoerr.Newf(mongoerr.IncompleteTransactionHistory, "Transaction %d on session %s is no retryable write", number, value.ShowDoc(op.Req.LSID))
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	if number > s.number {
		n.abortTxn(s)
		s.begin(number)
		s.incomplete, s.unknown = s.unknown, false
	}
	s.used = op.Start
	return s, release, nil
}

func tooOld(op *command.Op, s *retrySession) error {
	if !op.Req.Autocommit.IsMissing() {
		return mongoerr.Newf(mongoerr.TransactionTooOld, "Cannot start transaction %d on session %s because a newer transaction with txnNumber %d has already started on this session.",
			op.Req.TxnNumber, value.ShowDoc(op.Req.LSID), s.number)
	}
	return mongoerr.Newf(mongoerr.TransactionTooOld,
		"Retryable write with txnNumber %d is prohibited on session %s because a newer retryable write with txnNumber %d has already started on this session.",
		op.Req.TxnNumber, value.ShowDoc(op.Req.LSID), s.number)
}

// of is the session of an operation that has taken it.
func (t *retryTable) of(op *command.Op) *retrySession {
	id, _ := cluster.ParseLSID(op.Req.LSID, cluster.NoUser)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.sessions[id]
}

// take takes an operation's session for itself and gives the function that lets it go.
func (t *retryTable) take(op *command.Op) (s *retrySession, release func(), err error) {
	if op.Req.LSID == nil {
		return nil, nil, mongoerr.New(mongoerr.InvalidOptions, "Transaction number requires a session ID to also be specified")
	}
	id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser)
	if err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	if t.mu.sessions == nil {
		t.mu.sessions = make(map[cluster.LogicalSessionID]*retrySession)
	}
	_, seen := t.mu.sessions[id]
	s = sessionOf(t.mu.sessions, id)
	if !seen && !t.mu.cut.IsZero() && op.Start.Sub(t.mu.cut) < cluster.SessionTimeout {
		s.unknown = true
	}
	t.mu.Unlock()
	select {
	case <-s.busy:
	default:
		select {
		case <-s.busy:
		case <-op.Done():
			return nil, nil, op.Err()
		}
	}
	return s, func() { s.busy <- struct{}{} }, nil
}

// sessionOf finds or makes a session, and the parent of one of an internal transaction.
func sessionOf(sessions map[cluster.LogicalSessionID]*retrySession, id cluster.LogicalSessionID) *retrySession {
	s := sessions[id]
	if s != nil {
		return s
	}
	s = newRetrySession()
	s.lsid = id.Doc()
	sessions[id] = s
	if id.IsChild() && id.TxnNumber > 0 {
		s.parent, s.of = sessionOf(sessions, id.Parent()), id.TxnNumber
	}
	return s
}

// ran notes statements that were executed.
func (s *retrySession) ran(r stmtRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(r)
}

// note is ran for who holds mu.
func (s *retrySession) note(r stmtRun) {
	s.dirty, s.unsaved = true, true
	if n := len(s.runs); n > 0 && r.id.IsMissing() && s.runs[n-1].id.IsMissing() && s.runs[n-1].op == r.op && s.runs[n-1].to+1 == r.from {
		s.runs[n-1].to = r.to
		return
	}
	r.id = r.id.Clone()
	s.runs = append(s.runs, r)
}

// noteOnCommit has the session learn of a unit's statements in the moment in which they become visible. Its command may wait
// for a write concern long after that, and by then the oplog's entries need no longer be read by whoever loads the table.
func (s *retrySession) noteOnCommit(u *storage.UnitOfWork, term int64, runs []stmtRun) {
	number := s.number
	u.OnCommit(func(ts storage.Timestamp) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.number != number {
			return
		}
		for _, r := range runs {
			s.note(r)
		}
		s.last = storage.OpTime{TS: ts, Term: term}
	})
}

// noteTxnOnCommit is noteOnCommit for the session's transaction, and for the statements of its client's session that the
// transaction carries out.
func (s *retrySession) noteTxnOnCommit(u *storage.UnitOfWork, term int64, moved []movedWrite) {
	number := s.number
	u.OnCommit(func(ts storage.Timestamp) {
		at := storage.OpTime{TS: ts, Term: term}
		s.committedAt(number, at)
		if p := s.parent; p != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, m := range moved {
				if _, known := p.ranBefore(m.stmt); p.number == s.of && !known {
					p.note(stmtRun{m.stmt, m.stmt, m.op, m.id})
					p.last = at
				}
			}
		}
	})
}

// committedAt notes that the session's transaction has committed.
func (s *retrySession) committedAt(number int64, at storage.OpTime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.number == number {
		s.committed, s.unsaved, s.last = true, true, at
	}
}

// wrote notes the session's newest entry.
func (s *retrySession) wrote(at storage.OpTime) {
	s.mu.Lock()
	s.last = at
	s.mu.Unlock()
}

// executed finds the run that a statement belongs to.
func (s *retrySession) executed(stmt int32) (stmtRun, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ranBefore(stmt)
}

// ranBefore is executed for who holds mu.
func (s *retrySession) ranBefore(stmt int32) (stmtRun, bool) {
	for _, r := range s.runs {
		if r.has(stmt) {
			return r, true
		}
	}
	return stmtRun{}, false
}

func (r *stmtRun) has(stmt int32) bool { return r.from <= stmt && stmt <= r.to }

// startRetry takes the session of a command that is a retryable write.
func (w *writeOp) startRetry() error {
	r := &w.op.Req
	if !r.HasTxnNumber || r.LSID == nil || !r.Autocommit.IsMissing() || w.session != nil {
		return nil
	}
	if w.n.Repl == nil || w.n.Repl.Name == "" {
		return mongoerr.New(mongoerr.IllegalOperation, "Transaction numbers are only allowed on a replica set member or mongos")
	}
	s, release, err := w.n.checkoutRetry(w.op)
	if err != nil {
		return err
	}
	w.session, w.endRetry = s, release
	if err := w.awaitLeft(); err != nil {
		w.leave()
		return err
	}
	return nil
}

// stmtID is the id of a command's statement.
func (w *writeOp) stmtID(i int) int32 { return w.op.Req.StatementID(i) }

// executed tells whether a statement was executed before; it is noted for the reply.
func (w *writeOp) executed(i int) (stmtRun, bool) {
	if w.session == nil {
		return stmtRun{}, false
	}
	run, ok := w.session.executed(w.stmtID(i))
	if !ok && w.left != nil {
		run, ok = w.left.executed(w.stmtID(i))
	}
	if ok {
		w.retried = append(w.retried, value.NewInt32(w.stmtID(i)))
	}
	return run, ok
}

// replay gives the result of a statement that was executed before.
func (w *writeOp) replay(st *statement) (r result, ok bool) {
	run, ok := w.executed(int(w.stmt))
	if !ok {
		return r, false
	}
	switch run.op {
	case 'i':
		r.upserted = run.id
	case 'u':
		r.matched, r.modified = 1, 1
	case 'd':
		r.deleted = 1
	}
	if st.onWrite == nil {
		return r, true
	}
	if w.session.image == nil {
		w.session.image = w.storedImage()
	}
	if w.session.image != nil {
		st.onWrite(w.session.image, w.session.image)
	}
	return r, true
}

// storedImage is the image that keepImage stored, nil for none.
func (w *writeOp) storedImage() []byte {
	doc, err := w.n.Docs.Get(imagesNS, value.NewDocument(w.session.lsid))
	if err != nil || value.SafeInt64(value.Lookup(doc, "txnNum")) != w.session.number {
		return nil
	}
	return value.Lookup(doc, "image").Doc()
}

// runOf is what a statement did that changed a document; one that changed nothing may run again.
func (w *writeOp) runOf(r *result) stmtRun {
	if w.session == nil {
		return stmtRun{}
	}
	id := w.stmtID(int(w.stmt))
	switch {
	case !r.upserted.IsMissing():
		return stmtRun{id, id, 'i', r.upserted.Clone()}
	case r.deleted > 0:
		return stmtRun{from: id, to: id, op: 'd'}
	}
	return stmtRun{from: id, to: id, op: 'u'}
}

// refuseMulti refuses statements on many documents in a retryable write: they cannot be told apart when retried.
func (w *writeOp) refuseMulti(st *statement, text string) error {
	if st.multi && w.session != nil {
		return mongoerr.New(mongoerr.InvalidOptions, text)
	}
	return nil
}

// keepImage stores, in the unit of a findAndModify, the document that it answers, for when it is retried after a restart.
func (w *writeOp) keepImage(s *storage.Snapshot, u *storage.UnitOfWork, image []byte) error {
	if w.session == nil || len(image) == 0 {
		return nil
	}
	c := s.Catalog().Lookup(imagesNS)
	if c == nil {
		return nil // the node has only just begun: the table in memory serves
	}
	return statedoc.PutIn(s, u, c, imageRecord(s, w.session, w.session.number, w.imageKind, image))
}

// imageRecord is the stored form of what a session's findAndModify answered.
func imageRecord(s *storage.Snapshot, of *retrySession, number int64, kind string, image []byte) []byte {
	return value.Doc(value.F("_id", value.NewDocument(of.lsid)), value.F("txnNum", value.NewInt64(number)),
		value.F("ts", s.Timestamp().Value()), value.F("imageKind", value.NewString(kind)), value.F("image", value.NewDocument(image)),
		value.F("invalidated", value.NewBool(false)))
}

// appendRetried tells of the statements that had been executed before.
func (w *writeOp) appendRetried(dst []byte) []byte {
	if len(w.retried) == 0 {
		return dst
	}
	return value.Append(dst, "retriedStmtIds", value.NewArray(value.ArrayOf(w.retried...)))
}

// consecutive is how many documents from the first on have statement ids that follow each other: a unit of a retryable
// write numbers its entries so.
func (w *writeOp) consecutive(docs []pendingDoc) int {
	if w.session == nil {
		return len(docs)
	}
	for k := range docs {
		if w.stmtID(docs[k].index) != w.stmtID(docs[0].index)+int32(k) {
			return k
		}
	}
	return len(docs)
}
