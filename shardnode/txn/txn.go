package txn

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Multi-document transactions of one node. A transaction is one unit of work that stays open between commands: its
// commands read through the unit's own view and stage their writes in it; the commit is the unit's. A record that another
// unit has written, or is writing, is a WriteConflict at once. Any failure aborts the whole transaction.

// Txn is the transaction of a session. It is guarded by the session's busy.
type Txn struct {
	Number  int64
	State   State
	Failed  bool // a statement of the running command failed
	Started time.Time
	Base    *storage.Snapshot
	View    *storage.Snapshot
	Unit    *storage.UnitOfWork
	Locks   *lock.Locker      // held until the transaction ends, so that no catalog change or migration overtakes its writes
	ts      storage.Timestamp // of the commit
	pending *Pending          // the undecided commit, in state Committing
	unread  bool              // no statement has read from Base

	readConcern *command.ReadConcern // nil for the default
	By          command.Caller       // the user who began it
	router      [16]byte             // the process that began it, zero for this one or a client
	Active      time.Duration        // time spent in its commands

	prepared    storage.OpTime // optime of its vote to commit
	coordinator string         // the shard that asked for the vote
	torn        bool           // its commit failed, and its unit does not have what it voted for

	releaseSession func() // releases the session before the end of the command, which no longer uses the transaction

	moved []movedWrite // the statements of the parent session that it executes
}

type State uint8

const (
	Open State = iota
	Prepared
	Aborted
	Committed
	Committing // the client got a reply before the set has decided
)

// Config has what transactions and retries depend on.
type Config struct {
	Engine  *storage.Engine
	Set     replication.Set
	Docs    *statedoc.Docs
	Params  *cluster.Params
	Points  *cluster.FailPoints // nil for none
	Service *command.Service
	Locks   *lock.Manager
	Now     func() time.Time
	// Missing returns those of some sessions that are not in the sessions collection.
	Missing func(ctx context.Context, ids []cluster.LogicalSessionID) ([]cluster.LogicalSessionID, error)
	// Writes counts the statements that have written.
	Writes func() int64
}

// Node has the methods that transactions use of the node that they run on.
type Node interface {
	// Lone reports whether the node is not a member of a replica set: then it has neither transactions nor
	// retryable writes.
	Lone() bool
	// NotPrimary returns the error of a write on a member that is not primary; nil on the primary.
	NotPrimary() error
	// CheckConcern checks whether a write concern can be satisfied.
	CheckConcern(op *command.Op, wc command.WriteConcern) error
	// ReadSnapshot opens the snapshot for an operation's read concern.
	ReadSnapshot(op *command.Op) (*storage.Snapshot, error)
	// WaitVisible waits until a time is visible.
	WaitVisible(ctx context.Context, ts storage.Timestamp) error
	// CommitAt commits a unit that is visible from a time before the commit.
	CommitAt(ctx context.Context, u *storage.UnitOfWork, at storage.Timestamp, wc replication.WriteConcern) (storage.Timestamp, error)
	// KillCursors ends the cursors that a transaction opened.
	KillCursors(t *Txn)
	// Background runs work that outlives its command.
	Background(f func(life context.Context))
	// Warn logs errors that no client receives.
	Warn(msg string, err error)
}

// Manager manages a node's sessions: their transactions, and the history of their retryable writes.
type Manager struct {
	Config
	node     Node
	retries  retryTable
	prepared preparedTxns
	counters Counters

	coordinators *Coordinators // nil if the node is not a shard
}

func New(c Config, node Node) *Manager {
	return &Manager{Config: c, node: node}
}

// Counters returns the transaction counters of serverStatus.
func (m *Manager) Counters() *Counters { return &m.counters }

// Of returns the transaction that an operation belongs to; nil for none.
func Of(op *command.Op) *Txn {
	t, _ := op.Txn.(*Txn)
	return t
}

// ReadConcern returns the read concern that the transaction was begun with.
func (t *Txn) ReadConcern() *command.ReadConcern { return t.readConcern }

// ReadTime returns the time that the transaction's statements read at, 0 if it has ended.
func (t *Txn) ReadTime() storage.Timestamp {
	if t.Base == nil {
		return 0
	}
	return t.Base.Timestamp()
}

// ReadView returns the snapshot that the transaction's statements read from.
func (t *Txn) ReadView() *storage.Snapshot { return t.View }

// Begin attaches an operation to its transaction; end detaches it with the operation's outcome.
func (m *Manager) Begin(op *command.Op) (end func(err error), err error) {
	if m.node.Lone() {
		return nil, mongoerr.New(mongoerr.IllegalOperation, "Transaction numbers are only allowed on a replica set member or mongos")
	}
	if err := command.CheckTxnOp(op); err != nil {
		return nil, err
	}
	if op.Req.Spec.Name == "coordinateCommitTransaction" {
		return nil, nil // the coordinator sends commands to this shard as to the others
	}
	s, release, t, err := m.takeTxn(op)
	if err != nil {
		return nil, err
	}
	began := m.Now() // the command may have waited for others of its session
	op.Txn = t
	if t.Base != nil {
		view := m.Shown(t)
		op.ShowTxn(func(now time.Time) []byte {
			view := view
			view.TxnView = view.Running(began, now)
			return value.Doc(view.Fields(now)...)
		})
	}
	m.counters.active.Add(1)
	gone := false
	t.releaseSession = func() {
		gone = true
		release()
	}
	return func(err error) {
		m.counters.active.Add(-1)
		if gone {
			return
		}
		// A view is not a failure: the router continues with the aggregate that it translates to. Nor is a
		// document that has to move: the router moves it.
		goesOn := mongoerr.CodeOf(err) == mongoerr.CommandOnShardedViewNotSupportedOnMongod || mongoerr.CodeOf(err) == mongoerr.WouldChangeOwningShard
		if t.State == Open && (err != nil && !goesOn || t.Failed) {
			m.abortTxn(s)
		}
		if err == nil && t.State == Open && (op.Client.InProcess || op.Client.Internal) {
			op.AddTopLevel("readOnly", value.NewBool(t.readOnly()))
		}
		t.Failed, t.unread = false, false
		t.Active += m.Now().Sub(began)
		release()
	}, nil
}

// Shown is an open transaction as $currentOp shows it. It refers to nothing that the transaction's commands change.
type Shown struct {
	command.TxnView
	read   storage.Timestamp
	expiry time.Time
}

// Shown returns the view of an open transaction, whose session is held.
func (m *Manager) Shown(t *Txn) Shown {
	limit := time.Duration(m.Params.Int("transactionLifetimeLimitSeconds")) * time.Second
	return Shown{command.TxnView{Number: t.Number, ReadConcern: t.readConcern.AsSent(), Started: t.Started, Active: t.Active}, t.ReadTime(), t.Started.Add(limit)}
}

// Fields returns the fields of the document transaction.
func (s Shown) Fields(now time.Time) []value.Field {
	return append(s.TxnView.Fields(now, value.F("readTimestamp", s.read.Value())), value.F("expiryTime", value.NewString(command.WallClock(s.expiry))))
}

// readOnly reports whether nothing has been written in an open transaction; routers choose the kind of commit by it.
func (t *Txn) readOnly() bool { return t.Unit.Empty() && len(t.moved) == 0 }

// takeTxn checks out the session of an operation with its transaction. A newer transaction waits until the previous one,
// if it is prepared, is decided.
func (m *Manager) takeTxn(op *command.Op) (s *Session, release func(), t *Txn, err error) {
	for {
		changed := m.prepared.change()
		s, release, err = m.take(op)
		if err != nil {
			return nil, nil, nil, err
		}
		if !s.preparedBefore(op.Req.TxnNumber) {
			break
		}
		release()
		if err := awaitChange(op, changed); err != nil {
			return nil, nil, nil, err
		}
	}
	if t, err = m.enterTxn(op, s); err != nil {
		release()
		return nil, nil, nil, m.knows(op, err)
	}
	return s, release, t, nil
}

// preparedBefore reports whether the session has a prepared transaction with an earlier number. busy must be held.
func (s *Session) preparedBefore(number int64) bool {
	return s.Txn != nil && s.Txn.State == Prepared && number > s.Number
}

// knows returns err, unless the node cannot know the outcome of transactions: it is not primary, or was deposed in
// between. A coordinator would treat "no such transaction" as the end of one.
func (m *Manager) knows(op *command.Op, err error) error {
	if lost := op.Err(); lost != nil {
		return lost
	}
	if lost := m.node.NotPrimary(); lost != nil {
		return lost
	}
	return err
}

// enterTxn begins a session's transaction, or finds it.
func (m *Manager) enterTxn(op *command.Op, s *Session) (*Txn, error) {
	r := &op.Req
	t := s.Txn
	if t != nil {
		m.settleTxn(s, t)
	}
	switch {
	case r.TxnNumber < s.Number:
		return nil, tooOld(op, s)
	case r.StartTxn && r.TxnNumber == s.Number && t != nil && t.State == Aborted && (op.Client.InProcess || op.Client.Internal):
		// a router begins again with statements that it may send to other shards than before
		s.begin(r.TxnNumber)
		return m.openTxn(op, s)
	case r.StartTxn && r.TxnNumber == s.Number && (t != nil || len(s.runs) > 0 || s.Incomplete()):
		return nil, mongoerr.Newf(50911, "Cannot start a transaction at given transaction number %d because a transaction with the same number is already known on session %s", r.TxnNumber, value.ShowDoc(r.LSID))
	case t != nil && t.State == Prepared && r.TxnNumber == s.Number && !op.EndsTransaction():
		return nil, mongoerr.New(mongoerr.PreparedTransactionInProgress, "Cannot call any operation other than abort, prepare or commit on a prepared transaction")
	case r.StartTxn:
		m.abortTxn(s)
		s.begin(r.TxnNumber)
		s.ask(m.retries.found())
		return m.openTxn(op, s)
	case (t == nil || t.Number != r.TxnNumber) && op.EndsTransaction() && r.Spec.Name != "prepareTransaction" && m.retries.knowsStatement(s, r.TxnNumber, op.Start) != nil:
		return nil, s.IncompleteError(r.TxnNumber)
	case t == nil || t.Number != r.TxnNumber:
		return nil, mongoerr.Newf(mongoerr.NoSuchTransaction, "Given transaction number %d does not match any in-progress transactions. The active transaction number is %d", r.TxnNumber, s.Number)
	case t.State == Aborted:
		return nil, mongoerr.Newf(mongoerr.NoSuchTransaction, "Transaction with { txnNumber: %d } has been aborted.", r.TxnNumber)
	case (t.State == Committed || t.State == Committing) && r.Spec.Name != "commitTransaction":
		return nil, mongoerr.Newf(mongoerr.TransactionCommitted, "Transaction %d has been committed.", r.TxnNumber)
	}
	return t, nil
}

// openTxn opens the unit of a new transaction.
func (m *Manager) openTxn(op *command.Op, s *Session) (*Txn, error) {
	if err := m.joinParent(op, s); err != nil {
		return nil, err
	}
	base, err := m.node.ReadSnapshot(op)
	if err != nil {
		s.leaveParent()
		return nil, err
	}
	t := &Txn{Number: op.Req.TxnNumber, Started: m.Now(), Locks: m.Locks.NewLocker()}
	t.Locks.SetTimeout(time.Duration(m.Params.Int("maxTransactionLockRequestTimeoutMillis")) * time.Millisecond)
	t.readConcern, t.By, t.router = op.Req.ReadConcern.Clone(), op.Caller(), op.Client.Process()
	m.startUnit(t, s.LSID, base)
	s.hold(t)
	s.used, s.dirty = op.Start, true
	m.counters.Started.Add(1)
	m.counters.Open.Add(1)
	if t.router != [16]byte{} {
		m.watchRouters()
	}
	return t, nil
}

// hold makes a transaction the session's.
func (s *Session) hold(t *Txn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Txn = t
}

// startUnit starts a transaction's unit of work on a snapshot.
func (m *Manager) startUnit(t *Txn, lsid []byte, base *storage.Snapshot) {
	t.Base, t.Unit, t.unread = base, m.Engine.NewUnitOfWork(base), true
	t.View = t.Unit.Snapshot()
	t.Unit.SetTransaction(lsid, t.Number)
	t.Unit.LimitTransaction(m.Params.Int("transactionSizeLimitBytes"))
}

// Admit checks a collection that the running statement is about to write, and that the transaction has locked: it has to be the
// one that the transaction began with, because its unit could not commit otherwise. A first statement may have waited for that lock
// behind a catalog change that another connection of the client sent at the same time (an ODM that creates its collections in the
// background). As long as nothing has been read the choice of the snapshot is still free, so the transaction gets a newer one.
func (m *Manager) Admit(op *command.Op, t *Txn, ns string) error {
	err := t.stays(m.Engine.Catalog(), ns)
	if err == nil || !t.unread || !t.Unit.Empty() || t.readConcern != nil && t.readConcern.AtClusterTime != 0 {
		return err
	}
	op.Txn = nil // not the transaction's own snapshot
	base, again := m.node.ReadSnapshot(op)
	op.Txn = t
	if again != nil {
		return again
	}
	lsid := t.Unit.LSID()
	t.Unit.Rollback()
	t.Base.Release()
	m.startUnit(t, lsid, base)
	return t.stays(m.Engine.Catalog(), ns)
}

// Read notes that a statement is about to read from the transaction's snapshot.
func (t *Txn) Read() { t.unread = false }

// closeTxn releases what an open transaction holds.
func (m *Manager) closeTxn(s *Session, state State) {
	t := s.Txn
	m.node.KillCursors(t)
	t.State = state
	t.Unit.Rollback() // nothing after a commit
	t.Base.Release()
	t.Locks.UnlockAll()
	t.Unit, t.View, t.Base, t.Locks = nil, nil, nil, nil
	s.leaveParent()
	m.counters.Open.Add(-1)
}

// abortTxn ends a session's open transaction, if any, and discards its writes.
func (m *Manager) abortTxn(s *Session) {
	if s.Txn != nil && s.Txn.State == Open {
		m.closeTxn(s, Aborted)
		m.counters.Aborted.Add(1)
	}
}

// Specs returns commitTransaction and abortTransaction.
func (m *Manager) Specs() []command.Spec {
	specs := command.TxnSpecs(m.findTransaction)
	for i := range specs {
		outside, commit := specs[i].Run, specs[i].Name == "commitTransaction"
		specs[i].Run = func(op *command.Op, dst []byte) ([]byte, error) {
			t := Of(op)
			switch {
			case t == nil:
				return outside(op, dst)
			case commit:
				return dst, m.commitTxn(op, t)
			}
			s := m.retries.of(op)
			if t.State == Prepared {
				return dst, m.abortPrepared(op, s)
			}
			m.abortTxn(s)
			return dst, nil
		}
	}
	prepare := command.Internal(m.runPrepare)
	prepare.Roles, prepare.Txn, prepare.WriteConcern = command.Shard, true, true
	return append(specs, prepare)
}

// commitTxn commits a transaction. Sent again, it waits until the first commit satisfies the write concern.
func (m *Manager) commitTxn(op *command.Op, t *Txn) error {
	wc := op.Req.AskedConcern()
	err := m.node.CheckConcern(op, wc)
	if err != nil {
		return err
	}
	concern := wc.ForSet()
	atOnce := concern
	if concern.BeyondMajority() {
		atOnce = replication.WriteConcern{W: 1, Timeout: concern.Timeout}
	}
	s := m.retries.of(op)
	switch t.State {
	case Committed:
		m.awaitCommitted(op, t, concern)
		return nil
	case Committing:
		return m.awaitCommitting(op, s, t, concern)
	case Prepared:
		err = m.commitPrepared(op, s, atOnce)
	default:
		err = m.commitOpen(op, s, atOnce)
	}
	if l, ok := IsDetached(err); ok {
		m.detachTxn(op, s, t, l)
		return nil
	}
	if err != nil {
		return err
	}
	op.AdvanceOperationTime(uint64(t.ts))
	if t.State == Prepared {
		m.counters.prepared.committed.Add(1)
	}
	at := storage.OpTime{TS: t.ts, Term: m.Engine.Term()}
	m.notifyParent(s, t.moved, at, op.Start)
	m.closeTxn(s, Committed)
	s.committedAt(t.Number, at)
	m.counters.Committed.Add(1)
	if concern.BeyondMajority() {
		m.awaitCommitted(op, t, concern)
	}
	return nil
}

// awaitCommitted waits for a committed transaction to satisfy the write concern. The session is free meanwhile: a
// retried commit with another concern does not wait for this one's.
func (m *Manager) awaitCommitted(op *command.Op, t *Txn, concern replication.WriteConcern) {
	ts := t.ts
	op.AdvanceOperationTime(uint64(ts))
	t.releaseSession()
	if err := m.Set.Await(op, ts, concern); err != nil {
		op.SetWriteConcernError(mongoerr.From(err))
	}
}

// detachTxn replies to a commit that is not decided. What the transaction holds is released when it is; its
// session continues.
func (m *Manager) detachTxn(op *command.Op, s *Session, t *Txn, u *storage.Detached) {
	l := NewPending(u.Unwrap())
	l.Add(u)
	op.SetWriteConcernError(mongoerr.From(l.Why))
	base, locks, begun := t.Base, t.Locks, op.Start
	m.node.KillCursors(t)
	t.State, t.pending = Committing, l
	t.Unit, t.View, t.Base, t.Locks = nil, nil, nil, nil
	l.Then(func() {
		if ts, err := l.outcome(); err == nil {
			m.notifyParent(s, t.moved, storage.OpTime{TS: ts, Term: m.Engine.Term()}, begun)
		}
		base.Release()
		locks.UnlockAll()
		s.leaveParent()
		m.counters.Open.Add(-1)
		close(l.Decided)
		<-s.busy
		m.settleTxn(s, t)
		s.busy <- struct{}{}
	})
}

// settleTxn records the outcome of a transaction whose commit was detached, once it is decided. busy must be held.
func (m *Manager) settleTxn(s *Session, t *Txn) {
	if t.State != Committing {
		return
	}
	select {
	case <-t.pending.Decided:
	default:
		return
	}
	ts, err := t.pending.outcome()
	if err != nil {
		t.State = Aborted
		m.counters.Aborted.Add(1)
		return
	}
	t.State, t.ts = Committed, ts
	m.counters.Committed.Add(1)
	if s.Txn == t {
		s.committedAt(t.Number, storage.OpTime{TS: ts, Term: m.Engine.Term()})
	}
}

// awaitCommitting handles a commit that is sent again before the first is decided.
func (m *Manager) awaitCommitting(op *command.Op, s *Session, t *Txn, concern replication.WriteConcern) error {
	timedOut, err := t.pending.Await(op, concern.Timeout)
	if err != nil {
		return err
	}
	if timedOut {
		op.SetWriteConcernError(storage.ErrWaitTimeout)
		return nil
	}
	if m.settleTxn(s, t); t.State != Committed {
		return m.knows(op, aborted(t.Number))
	}
	m.awaitCommitted(op, t, concern)
	return nil
}

// commitOpen commits the unit of a transaction that this node decides alone.
func (m *Manager) commitOpen(op *command.Op, s *Session, concern replication.WriteConcern) error {
	t := s.Txn
	if err := s.executedMeanwhile(t.moved); err != nil {
		return err
	}
	if t.ts = m.Engine.Visible(); !t.Unit.Empty() {
		concern.MayDetach = true
		s.noteTxnOnCommit(t.Unit, m.Engine.Term(), t.moved)
		ts, err := m.Set.Commit(op, t.Unit, concern)
		if ts == 0 && err != nil {
			if mongoerr.CodeOf(err) == mongoerr.NamespaceExists { // another operation has created the collection meanwhile
				err = mongoerr.New(mongoerr.WriteConflict, "collection was created concurrently")
			}
			return err
		}
		if t.ts = ts; err != nil {
			op.SetWriteConcernError(mongoerr.From(err))
		}
	} else if err := m.Set.Await(op, t.ts, concern); err != nil { // what was read is as durable as the client requests
		op.SetWriteConcernError(mongoerr.From(err))
	}
	return nil
}

// stays refuses a collection that is not the one that the transaction began with.
func (t *Txn) stays(now *catalog.Snapshot, ns string) error {
	c, was := now.Lookup(ns), t.Base.Catalog().Lookup(ns)
	if c == was || c != nil && was != nil && c.UUID == was.UUID && c.Epoch == was.Epoch {
		return nil
	}
	return mongoerr.Newf(mongoerr.WriteConflict, "Unable to write to collection '%s' due to catalog changes; please retry the operation. Snapshot timestamp is %v.", ns, t.Base.Timestamp())
}

// Writable refuses the collections that transactions may not write.
func Writable(c *catalog.Collection) error {
	if c != nil && c.Capped {
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Collection '%s' is a capped collection. Writes in transactions are not allowed on capped collections.", c.NS)
	}
	return nil
}

// expireTxns aborts the transactions that have exceeded their lifetime.
func (m *Manager) expireTxns() {
	if m.counters.Open.Load() == 0 {
		return
	}
	limit := m.Now().Add(-time.Duration(m.Params.Int("transactionLifetimeLimitSeconds")) * time.Second)
	m.EachIdle(func(_ cluster.LogicalSessionID, s *Session) {
		if s.Txn != nil && s.Txn.State == Open && s.Txn.Started.Before(limit) {
			m.abortTxn(s)
		}
	})
}

// AbortTxns aborts all open transactions because the node steps down. Commands running in them have been
// interrupted.
func (m *Manager) AbortTxns() {
	if m.counters.Open.Load() == 0 {
		return
	}
	m.retries.mu.Lock()
	sessions := slices.Collect(maps.Values(m.retries.mu.sessions))
	m.retries.mu.Unlock()
	for _, s := range sessions {
		<-s.busy
		if s.Txn != nil && s.Txn.State == Prepared { // the next primary restores it
			m.closeTxn(s, Aborted)
		}
		m.abortTxn(s)
		s.busy <- struct{}{}
	}
}

// AbortSession aborts the transaction of a session that has ended or expired.
func (m *Manager) AbortSession(id cluster.LogicalSessionID) {
	m.retries.mu.Lock()
	s := m.retries.mu.sessions[id]
	m.retries.mu.Unlock()
	if s == nil {
		return
	}
	select {
	case <-s.busy:
		m.abortTxn(s)
		s.busy <- struct{}{}
	default: // a command is running in it
	}
}

// AbortWhere aborts the transactions of the sessions for which f returns true; one with a running command ends with that command.
func (m *Manager) AbortWhere(f func(cluster.LogicalSessionID) bool) {
	m.EachIdle(func(id cluster.LogicalSessionID, s *Session) {
		if f(id.Parent()) {
			m.abortTxn(s)
		}
	})
}

// EachIdle calls f with every session in which no command is running.
func (m *Manager) EachIdle(f func(id cluster.LogicalSessionID, s *Session)) {
	t := &m.retries
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.mu.sessions {
		select {
		case <-s.busy:
			f(id, s)
			s.busy <- struct{}{}
		default:
		}
	}
}

// findTransaction returns the error of a command that ends a transaction which the operation is not in.
func (m *Manager) findTransaction(op *command.Op) error {
	return mongoerr.Newf(mongoerr.NoSuchTransaction, "Given transaction number %d does not match any in-progress transactions.", op.Req.TxnNumber)
}

// abortSession aborts the open transaction that an operation names.
func (m *Manager) abortSession(op *command.Op) error {
	s, release, err := m.take(op)
	if err != nil {
		return err
	}
	defer release()
	if s.Number == op.Req.TxnNumber {
		m.abortTxn(s)
	}
	return nil
}
