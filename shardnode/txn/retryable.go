package txn

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Retryable writes. For each session the node remembers which statements of its newest txnNumber were executed, and
// replies to a retried statement with the result of its first execution.
//
// The table is in memory. What makes it durable is the oplog: each entry of a retryable write carries lsid, txnNumber
// and stmtId in the same unit of work as the write itself. So that a restart or an election need not read the whole oplog,
// the primary writes the table to config.transactions every few seconds, with the time up to which it is complete; what is
// newer is read from the oplog by the node that opens, or becomes primary.
//
// Invariant: the table has a statement from the moment when its write is visible. Hazard: a client repeats a statement as soon as its
// connection breaks, while the first execution may still wait for its write concern. Statements are therefore recorded by a hook of the
// unit's commit (NoteOnCommit), which runs before the unit's claims are released, and not at the end of the command. Rejected: writing
// config.transactions in the unit of each write. The oplog entry is a sufficient record, and each small write would write a second
// document.
type retryTable struct {
	mu struct {
		sync.Mutex
		sessions map[cluster.LogicalSessionID]*Session
		hole     hole
		flushed  storage.Timestamp // what the second to last flush saw: the table is complete up to there
		pending  storage.Timestamp // what the last flush saw
		// load changes whenever the table does as a whole. It is 0 while the table may be stale: the node is not
		// primary, or has not loaded it yet.
		load, loads int64
	}
	flushing sync.Mutex         // held during a flush
	hold     *storage.OplogHold // keeps what is not flushed; nil if the node has no RetryService
	writes   int64              // the number of statements at the last flush
	quiet    int                // the number of flushes since one had something to write
	quietIn  int64              // the load that quiet counts for
	written  atomic.Int64       // records
}

// Session is a session with its newest retryable write or transaction. Fields that mu does not guard are guarded by busy.
type Session struct {
	busy      chan struct{}
	Number    int64
	runs      []Run
	Image     []byte // the document that findAndModify returned
	LSID      []byte
	last      storage.OpTime // optime of the newest entry of that number
	Txn       *Txn           // the transaction of that number, nil for retryable writes
	used      time.Time
	dirty     bool
	committed bool // whether the transaction of that number has committed
	// unsaved is set if executed statements, or the commit of a transaction, are not stored yet.
	unsaved bool
	docs    int // one more than the number of its documents in StatementsNS; 0 if that is not known
	// before is the history of the previous number as long as Number has none: its statements may still be retried
	// on a node that does not know of Number, since nothing durable records it.
	before     history
	ahead      *aheadOf          // history of a newer number that another shard has sent while a command used the session: see catchUp
	incomplete gap               // whether an unknown statement may have been executed
	asked      storage.Timestamp // when the hole was found whose first number has been refused: see hole
	pending    *Pending          // an undecided commit of that number
	expired    time.Time         // when the sessions collection was found to have no record of it; zero if it has one
	mu         sync.Mutex        // guards runs, last, number, committed, unsaved, docs, before, ahead, incomplete, asked, pending and whether there is a Txn

	family
}

// family links the session of an internal transaction with its parent session.
type family struct {
	parent   *Session              // of an internal transaction's session, nil for every other
	of       int64                 // the parent's txnNumber that it belongs to
	children map[*Session]struct{} // those with open transactions
}

// gap tells whether a part of a session's history is lost: then an unknown statement may have been executed.
type gap uint8

const (
	whole    gap = iota
	inHole       // was lost with a part of the oplog: see hole
	inRecord     // is not in the oplog, where the record of the session says that it is; stored with the record
)

// history is the stored history of one number of a session.
type history struct {
	number    int64
	runs      []Run
	last      storage.OpTime
	committed bool
	torn      bool // inRecord
}

// empty reports whether nothing is known of the number.
func (h *history) empty() bool { return len(h.runs) == 0 && !h.committed && !h.torn }

func (h *history) has(stmt int32) bool {
	_, ok := findRun(h.runs, stmt)
	return ok
}

// begin begins a new number; the history of the previous one is dropped once the new one has any: see before.
func (s *Session) begin(number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = s.newest()
	s.startOn(number)
}

// startOn sets a number of which nothing is known. mu must be held.
func (s *Session) startOn(number int64) {
	s.Number, s.runs, s.Image, s.Txn, s.last, s.incomplete, s.pending = number, nil, nil, nil, storage.NoOpTime, whole, nil
	s.committed = false
}

// newest returns the history of the newest number that has any. mu must be held.
func (s *Session) newest() history {
	if s.ahead != nil {
		return s.ahead.history
	}
	if h := (history{s.Number, s.runs, s.last, s.committed, s.incomplete == inRecord}); !h.empty() {
		return h
	}
	return s.before
}

// late returns the history of a number that the session has moved on from, for a detached commit of that number;
// nil if a newer number has a history. mu must be held.
func (s *Session) late(number int64) *history {
	if len(s.runs) > 0 || s.committed || s.incomplete == inRecord || s.Number < number || s.before.number > number && !s.before.empty() {
		return nil
	}
	if s.before.number != number {
		s.before = history{number: number, last: storage.NoOpTime}
	}
	return &s.before
}

// Run is a range of executed statements of one kind: i, u or d, as in the oplog. ID is the _id that an upsert made.
type Run struct {
	From, To int32
	Op       byte
	ID       value.Value
}

// Own reports whether a collection is one that the real server does not have: it is not listed, so that a dump of the database
// config can be restored.
func Own(ns string) bool { return ns == StatementsNS || ns == RetryProgressNS || ns == oldPreparedNS }

// NoRun is the Run of a unit without recorded statements.
var NoRun = Run{From: 0, To: -1}

// None reports whether it is NoRun.
func (r Run) None() bool { return r.From > r.To }

const (
	TransactionsNS  = "config.transactions"
	StatementsNS    = "config.system.retryableStatements"
	ImagesNS        = "config.image_collection"
	RetryProgressNS = "config.system.retryableWrites"
	// retryFlushEvery is the interval at which the table is flushed; a restart reads about twice as much oplog.
	retryFlushEvery = 5 * time.Second
	// retryFlushSoon is that interval while disk space is low, or while the oplog cannot be truncated because of it.
	retryFlushSoon = time.Second
)

var RetryProgressID = value.NewString("complete")

func newSession() *Session {
	s := &Session{busy: make(chan struct{}, 1), Number: -1, last: storage.NoOpTime}
	s.busy <- struct{}{}
	return s
}

// CheckoutRetry takes the session of a retryable write for one command, and returns the function that releases it.
// A newer number discards the history of the previous one; an older one is refused.
func (m *Manager) CheckoutRetry(op *command.Op) (s *Session, release func(), err error) {
	number := op.Req.TxnNumber
	for {
		changed := m.prepared.change()
		if s, release, err = m.take(op); err != nil {
			return nil, nil, err
		}
		if s.preparedBefore(number) {
			release()
			if err := awaitChange(op, changed); err != nil {
				return nil, nil, err
			}
			continue
		}
		child := s.openChild(number)
		if child == nil {
			break
		}
		release()
		if err := m.endChild(op, child); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case number < s.Number:
		err = tooOld(op, s)
	case number == s.Number && s.Txn != nil:
		err = mongoerr.Newf(mongoerr.IncompleteTransactionHistory, "Transaction %d on session %s is not a retryable write", number, value.ShowDoc(op.Req.LSID))
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	if number > s.Number {
		m.abortTxn(s)
		lost := m.retries.lacks(s, op.Start)
		s.begin(number)
		if lost { // the client knows that it has not sent the next number before
			s.lose()
			s.ask(m.retries.found())
		}
	}
	s.used = op.Start
	return s, release, nil
}

func tooOld(op *command.Op, s *Session) error {
	if !op.Req.Autocommit.IsMissing() {
		return mongoerr.Newf(mongoerr.TransactionTooOld, "Cannot start transaction %d on session %s because a newer transaction with txnNumber %d has already started on this session.",
			op.Req.TxnNumber, value.ShowDoc(op.Req.LSID), s.Number)
	}
	return mongoerr.Newf(mongoerr.TransactionTooOld,
		"Retryable write with txnNumber %d is prohibited on session %s because a newer retryable write with txnNumber %d has already started on this session.",
		op.Req.TxnNumber, value.ShowDoc(op.Req.LSID), s.Number)
}

// Sessions returns the number of sessions whose transactions or retryable writes the node knows.
func (m *Manager) Sessions() int {
	m.retries.mu.Lock()
	defer m.retries.mu.Unlock()
	return len(m.retries.mu.sessions)
}

// of returns the session that an operation has checked out.
func (t *retryTable) of(op *command.Op) *Session {
	id, _ := cluster.ParseLSID(op.Req.LSID, cluster.NoUser)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.sessions[id]
}

// take acquires an operation's session, brings it up to date, and returns the function that releases it.
func (m *Manager) take(op *command.Op) (s *Session, release func(), err error) {
	if s, release, err = m.retries.take(op); err == nil {
		m.catchUp(s)
	}
	return s, release, err
}

// take acquires an operation's session.
func (t *retryTable) take(op *command.Op) (s *Session, release func(), err error) {
	if op.Req.LSID == nil {
		return nil, nil, mongoerr.New(mongoerr.InvalidOptions, "Transaction number requires a session ID to also be specified")
	}
	id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser)
	if err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	if t.mu.sessions == nil {
		t.mu.sessions = make(map[cluster.LogicalSessionID]*Session)
	}
	s = sessionOf(t.mu.sessions, id)
	t.mu.Unlock()
	release, err = s.Take(op)
	return s, release, err
}

// Take acquires the session for its caller alone, and returns the function that releases it.
func (s *Session) Take(ctx context.Context) (release func(), err error) {
	select {
	case <-s.busy:
	default:
		select {
		case <-s.busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func() { s.busy <- struct{}{} }, nil
}

// sessionOf finds or makes a session, and the parent of one of an internal transaction.
func sessionOf(sessions map[cluster.LogicalSessionID]*Session, id cluster.LogicalSessionID) *Session {
	s := sessions[id]
	if s != nil {
		return s
	}
	s = newSession()
	s.LSID = id.Doc()
	sessions[id] = s
	if id.IsChild() && id.TxnNumber > 0 {
		s.parent, s.of = sessionOf(sessions, id.Parent()), id.TxnNumber
	}
	return s
}

// ran records statements that were executed.
func (s *Session) ran(r Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(r)
}

// note is ran without the lock: mu must be held.
func (s *Session) note(r Run) {
	s.dirty, s.unsaved, s.before = true, true, history{}
	s.runs = withRun(s.runs, r)
}

// withRun adds statements to runs, which are in the order of their statements. Of a command of 100,000 statements over several
// shards each shard executes only some, so that nearly each is a run of its own: the search for one must not examine them all.
func withRun(runs []Run, r Run) []Run {
	i := runsUpTo(runs, r.From)
	if i > 0 && runs[i-1].continuedBy(&r) {
		runs[i-1].To = r.To
		return runs
	}
	r.ID = r.ID.Clone()
	return slices.Insert(runs, i, r)
}

// continuedBy reports whether one run can stand for both.
func (r *Run) continuedBy(next *Run) bool {
	return r.ID.IsMissing() && next.ID.IsMissing() && r.Op == next.Op && r.To+1 == next.From
}

// NoteOnCommit records a unit's statements in the session at the moment they become visible. Its command may wait
// for a write concern long afterwards, and by then loading the table need no longer read the unit's oplog entries.
func (s *Session) NoteOnCommit(u *storage.UnitOfWork, term int64, ran Run) {
	number := s.Number
	u.OnCommit(func(ts storage.Timestamp) {
		s.mu.Lock()
		defer s.mu.Unlock()
		at := storage.OpTime{TS: ts, Term: term}
		if s.Number == number {
			if !ran.None() {
				s.note(ran)
			}
			s.last = at
		} else if h := s.late(number); h != nil && !ran.None() {
			h.runs, h.last, s.unsaved = withRun(h.runs, ran), at, true
		}
	})
}

// noteTxnOnCommit is NoteOnCommit for the session's transaction, and for the statements of its client's session that the
// transaction carries out.
func (s *Session) noteTxnOnCommit(u *storage.UnitOfWork, term int64, moved []movedWrite) {
	number := s.Number
	u.OnCommit(func(ts storage.Timestamp) {
		at := storage.OpTime{TS: ts, Term: term}
		s.committedAt(number, at)
		if p := s.parent; p != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, m := range moved {
				if _, known := p.ranBefore(m.stmt); p.Number == s.of && !known {
					p.note(Run{m.stmt, m.stmt, m.op, m.id})
					p.last = at
				}
			}
		}
	})
}

// committedAt records that the session's transaction has committed.
func (s *Session) committedAt(number int64, at storage.OpTime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Number == number {
		s.committed, s.unsaved, s.last, s.before = true, true, at, history{}
	} else if h := s.late(number); h != nil {
		h.committed, h.last, s.unsaved = true, at, true
	}
}

// wrote records the session's newest entry.
func (s *Session) wrote(at storage.OpTime) {
	s.mu.Lock()
	s.last = at
	s.mu.Unlock()
}

// LastEntry returns the optime of the session's newest entry.
func (s *Session) LastEntry() storage.OpTime {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Executed finds the run that a statement belongs to.
func (s *Session) Executed(stmt int32) (Run, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ranBefore(stmt)
}

// HasExecuted reports whether statements of the current number were executed.
func (s *Session) HasExecuted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs) > 0
}

// ranBefore is Executed without the lock: mu must be held.
func (s *Session) ranBefore(stmt int32) (Run, bool) {
	return findRun(s.runs, stmt)
}

// findRun finds the run that a statement belongs to.
func findRun(runs []Run, stmt int32) (Run, bool) {
	if i := runsUpTo(runs, stmt); i > 0 && stmt <= runs[i-1].To {
		return runs[i-1], true
	}
	return Run{}, false
}

// runsUpTo returns how many runs begin at or before a statement.
func runsUpTo(runs []Run, stmt int32) int {
	i, _ := slices.BinarySearchFunc(runs, int64(stmt)+1, func(r Run, next int64) int { return cmp.Compare(int64(r.From), next) })
	return i
}

// ImageRecord returns the stored form of the document that a session's findAndModify returned.
func ImageRecord(s *storage.Snapshot, of *Session, number int64, kind string, image []byte) []byte {
	return value.Doc(value.F("_id", value.NewDocument(of.LSID)), value.F("txnNum", value.NewInt64(number)),
		value.F("ts", s.Timestamp().Value()), value.F("imageKind", value.NewString(kind)), value.F("image", value.NewDocument(image)),
		value.F("invalidated", value.NewBool(false)))
}
