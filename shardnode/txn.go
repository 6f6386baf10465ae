package shardnode

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Multi-document transactions of one node. A transaction is one unit of work that stays open between commands: its
// commands read through the unit's own view and stage their writes in it; the commit is the unit's. A record that another
// unit wrote, or is writing, is a WriteConflict at once. Whatever fails aborts the whole transaction.

// openTxn is the transaction of a session. Who holds the session's busy may use it.
type openTxn struct {
	number  int64
	state   txnState
	failed  bool // a statement of the running command failed
	started time.Time
	base    *storage.Snapshot
	view    *storage.Snapshot
	unit    *storage.UnitOfWork
	locks   *lock.Locker      // held until the transaction ends, so that no catalog change or migration passes its writes
	ts      storage.Timestamp // of the commit
	left    *leftCommit       // the commit that is not decided, while committing

	readConcern []byte
	by          command.Caller // who began it
	router      [16]byte       // the process that began it, zero where that is this one or a client
	active      time.Duration  // spent in its commands

	prepared storage.Timestamp // when it was promised to commit
	parts    int               // of the record of that
	torn     bool              // its commit failed, and its unit is not what was promised

	moved []movedWrite // the statements of the parent session that it carries out
}

type txnState uint8

const (
	txnOpen txnState = iota
	txnPrepared
	txnAborted
	txnCommitted
	txnCommitting // the client was answered before the set has decided
)

// txnCounters are serverStatus's transactions section.
type txnCounters struct {
	started, committed, aborted, open atomic.Int64
	watching                          atomic.Bool // their routers are being watched
}

// txnOf is the transaction that an operation belongs to; nil for none.
func txnOf(op *command.Op) *openTxn {
	t, _ := op.Txn.(*openTxn)
	return t
}

// ReadTime is the time that the transaction's statements read at, 0 where it has ended.
func (t *openTxn) ReadTime() storage.Timestamp {
	if t.base == nil {
		return 0
	}
	return t.base.Timestamp()
}

// ReadConcern is the one that the transaction was begun with.
func (t *openTxn) ReadConcern() []byte { return t.readConcern }

// beginTxn takes an operation of a transaction into it; end lets it go with the operation's outcome.
func (n *Node) beginTxn(op *command.Op) (end func(err error), err error) {
	if n.Repl == nil || n.Repl.Name == "" {
		return nil, mongoerr.New(mongoerr.IllegalOperation, "Transaction numbers are only allowed on a replica set member or mongos")
	}
	if err := command.CheckTxnOp(op); err != nil {
		return nil, err
	}
	if op.Req.Spec.Name == "coordinateCommitTransaction" {
		return nil, nil // the coordinator speaks to this shard as to the others
	}
	s, release, err := n.retries.take(op)
	if err != nil {
		return nil, err
	}
	t, err := n.enterTxn(op, s)
	if err != nil {
		release()
		return nil, n.knows(op, err)
	}
	op.Txn = t
	return func(err error) {
		// A view is no failure: the router goes on with the aggregate that it stands for.
		// Nor is a document that has to move: the router carries that out.
		goesOn := mongoerr.CodeOf(err) == mongoerr.CommandOnShardedViewNotSupportedOnMongod || mongoerr.CodeOf(err) == mongoerr.WouldChangeOwningShard
		if t.state == txnOpen && (err != nil && !goesOn || t.failed) {
			n.abortTxn(s)
		}
		t.failed = false
		t.active += n.now().Sub(op.Start)
		release()
	}, nil
}

// knows is err, unless the node's word about transactions does not count: it is no primary, or was none in between, so
// that what it remembers is not what became of them. A coordinator would take "no such transaction" for the end of one.
func (n *Node) knows(op *command.Op, err error) error {
	if lost := op.Err(); lost != nil {
		return lost
	}
	if lost := n.notPrimary(); lost != nil {
		return lost
	}
	return err
}

// enterTxn begins a session's transaction, or finds it.
func (n *Node) enterTxn(op *command.Op, s *retrySession) (*openTxn, error) {
	r := &op.Req
	t := s.txn
	if t != nil {
		n.settleTxn(s, t)
	}
	switch {
	case r.TxnNumber < s.number:
		return nil, tooOld(op, s)
	case r.StartTxn && r.TxnNumber == s.number && t != nil && t.state == txnAborted && (op.Client.InProcess || op.Client.Internal):
		// a router begins again with what it may send to other shards than before
		s.begin(r.TxnNumber)
		return n.openTxn(op, s)
	case r.StartTxn && r.TxnNumber == s.number && (t != nil || len(s.runs) > 0):
		return nil, mongoerr.Newf(50911, "Cannot start a transaction at given transaction number %d because a transaction with the same number is already known on session %s", r.TxnNumber, value.ShowDoc(r.LSID))
	case t != nil && t.state == txnPrepared && r.TxnNumber > s.number:
		return nil, s.promised()
	case t != nil && t.state == txnPrepared && r.TxnNumber == s.number && !op.EndsTransaction():
		return nil, mongoerr.New(mongoerr.PreparedTransactionInProgress, "Cannot call any operation other than abort, prepare or commit on a prepared transaction")
	case r.StartTxn:
		n.abortTxn(s)
		s.begin(r.TxnNumber)
		s.unknown = false
		return n.openTxn(op, s)
	case t == nil && s.unknown && op.EndsTransaction():
		return nil, mongoerr.Newf(mongoerr.IncompleteTransactionHistory, "Incomplete history detected for transaction %d on session %s", r.TxnNumber, value.ShowDoc(r.LSID))
	case t == nil || t.number != r.TxnNumber:
		return nil, mongoerr.Newf(mongoerr.NoSuchTransaction, "Given transaction number %d does not match any in-progress transactions. The active transaction number is %d", r.TxnNumber, s.number)
	case t.state == txnAborted:
		return nil, mongoerr.Newf(mongoerr.NoSuchTransaction, "Transaction with { txnNumber: %d } has been aborted.", r.TxnNumber)
	case (t.state == txnCommitted || t.state == txnCommitting) && r.Spec.Name != "commitTransaction":
		return nil, mongoerr.Newf(mongoerr.TransactionCommitted, "Transaction %d has been committed.", r.TxnNumber)
	}
	return t, nil
}

// promised is the answer to whoever would leave a prepared transaction behind.
func (s *retrySession) promised() error {
	return mongoerr.Newf(mongoerr.PreparedTransactionInProgress, "Transaction %d on session %s is prepared to commit", s.number, value.ShowDoc(s.lsid))
}

// openTxn opens the unit of a new transaction.
func (n *Node) openTxn(op *command.Op, s *retrySession) (*openTxn, error) {
	if err := n.joinParent(op, s); err != nil {
		return nil, err
	}
	base, err := n.readSnapshot(op)
	if err != nil {
		s.leaveParent()
		return nil, err
	}
	t := &openTxn{number: op.Req.TxnNumber, started: n.now(), base: base, unit: n.Engine.NewUnitOfWork(base), locks: n.locks.NewLocker()}
	t.locks.SetTimeout(time.Duration(n.Params.Int("maxTransactionLockRequestTimeoutMillis")) * time.Millisecond)
	t.readConcern, t.by, t.router = value.Doc(), op.Caller(), op.Client.Process()
	if op.Req.ReadConcern != nil {
		t.readConcern = append([]byte(nil), op.Req.ReadConcern...)
	}
	t.view = t.unit.Snapshot()
	t.unit.SetTransaction(append([]byte(nil), op.Req.LSID...), t.number)
	t.unit.LimitTransaction(n.Params.Int("transactionSizeLimitBytes"))
	s.txn, s.used, s.dirty = t, op.Start, true
	n.txns.started.Add(1)
	n.txns.open.Add(1)
	if t.router != [16]byte{} {
		lostRouters{n}.watch()
	}
	return t, nil
}

// closeTxn lets go of what an open transaction holds.
func (n *Node) closeTxn(s *retrySession, state txnState) {
	t := s.txn
	n.cursors.killWhere(func(c *cursor) bool { return c.txn == t })
	t.state = state
	t.unit.Rollback() // nothing after a commit
	t.base.Release()
	t.locks.UnlockAll()
	t.unit, t.view, t.base, t.locks = nil, nil, nil, nil
	s.leaveParent()
	n.txns.open.Add(-1)
}

// abortTxn ends a session's transaction without its writes, where one is open.
func (n *Node) abortTxn(s *retrySession) {
	if s.txn != nil && s.txn.state == txnOpen {
		n.closeTxn(s, txnAborted)
		n.txns.aborted.Add(1)
	}
}

// txnSpecs are commitTransaction and abortTransaction.
func (n *Node) txnSpecs() []command.Spec {
	specs := command.TxnSpecs(n.findTransaction)
	for i := range specs {
		outside, commit := specs[i].Run, specs[i].Name == "commitTransaction"
		specs[i].Run = func(op *command.Op, dst []byte) ([]byte, error) {
			t := txnOf(op)
			switch {
			case t == nil:
				return outside(op, dst)
			case commit:
				return dst, n.commitTxn(op, t)
			}
			s := n.retries.of(op)
			if t.state == txnPrepared {
				return dst, n.abortPrepared(op, s)
			}
			n.abortTxn(s)
			return dst, nil
		}
	}
	return append(specs, command.Spec{
		Name: "prepareTransaction", Roles: command.Shard, AdminOnly: true, Internal: true, Txn: true, WriteConcern: true,
		Fields: []command.Field{command.Opt("coordinatorId", command.TString)}, Run: n.runPrepare,
	})
}

// commitTxn commits a transaction. Sent again, it waits for the write concern of the first time's commit.
func (n *Node) commitTxn(op *command.Op, t *openTxn) error {
	wc, err := command.ParseWriteConcern(op.Req.WriteConcern)
	if err != nil {
		return err
	}
	if err := n.checkConcern(op, wc); err != nil {
		return err
	}
	concern := wc.ForSet()
	s := n.retries.of(op)
	switch t.state {
	case txnCommitted:
		n.awaitCommitted(op, t, concern)
		return nil
	case txnCommitting:
		return n.awaitCommitting(op, s, t, concern)
	case txnPrepared:
		err = n.commitPrepared(op, s, concern)
	default:
		err = n.commitOpen(op, s, concern)
	}
	if l, ok := isLeft(err); ok {
		n.leaveTxn(op, s, t, l)
		return nil
	}
	if err != nil {
		return err
	}
	op.AdvanceOperationTime(uint64(t.ts))
	at := storage.OpTime{TS: t.ts, Term: n.Engine.Term()}
	s.tellParent(t.moved, at, op.Start)
	n.closeTxn(s, txnCommitted)
	s.committedAt(t.number, at)
	n.txns.committed.Add(1)
	return nil
}

// awaitCommitted waits for what the write concern asks of a transaction that has committed.
func (n *Node) awaitCommitted(op *command.Op, t *openTxn, concern replication.WriteConcern) {
	op.AdvanceOperationTime(uint64(t.ts))
	if err := n.Set.Await(op, t.ts, concern); err != nil {
		op.SetWriteConcernError(mongoerr.From(err))
	}
}

// leaveTxn answers a commit that is not decided. What the transaction holds is let go when it is; its session goes on.
func (n *Node) leaveTxn(op *command.Op, s *retrySession, t *openTxn, u *storage.Left) {
	l := newLeftCommit(u.Unwrap())
	l.add(u)
	op.SetWriteConcernError(mongoerr.From(l.why))
	base, locks, begun := t.base, t.locks, op.Start
	n.cursors.killWhere(func(c *cursor) bool { return c.txn == t })
	t.state, t.left = txnCommitting, l
	t.unit, t.view, t.base, t.locks = nil, nil, nil, nil
	l.then(func() {
		if ts, err := l.outcome(); err == nil {
			s.tellParent(t.moved, storage.OpTime{TS: ts, Term: n.Engine.Term()}, begun)
		}
		base.Release()
		locks.UnlockAll()
		s.leaveParent()
		n.txns.open.Add(-1)
		close(l.decided)
		<-s.busy
		n.settleTxn(s, t)
		s.busy <- struct{}{}
	})
}

// settleTxn notes what became of a transaction whose commit was left, once that is known. Who calls it holds busy.
func (n *Node) settleTxn(s *retrySession, t *openTxn) {
	if t.state != txnCommitting {
		return
	}
	select {
	case <-t.left.decided:
	default:
		return
	}
	ts, err := t.left.outcome()
	if err != nil {
		t.state = txnAborted
		n.txns.aborted.Add(1)
		return
	}
	t.state, t.ts = txnCommitted, ts
	n.txns.committed.Add(1)
	if s.txn == t {
		s.committedAt(t.number, storage.OpTime{TS: ts, Term: n.Engine.Term()})
	}
}

// awaitCommitting is for a commit that is sent again before the first is decided.
func (n *Node) awaitCommitting(op *command.Op, s *retrySession, t *openTxn, concern replication.WriteConcern) error {
	timedOut, err := t.left.await(op, concern.Timeout)
	if err != nil {
		return err
	}
	if timedOut {
		op.SetWriteConcernError(storage.ErrWaitTimeout)
		return nil
	}
	if n.settleTxn(s, t); t.state != txnCommitted {
		return n.knows(op, aborted(t.number))
	}
	n.awaitCommitted(op, t, concern)
	return nil
}

// commitOpen commits the unit of a transaction that this node decides alone.
func (n *Node) commitOpen(op *command.Op, s *retrySession, concern replication.WriteConcern) error {
	t := s.txn
	if t.ts = n.Engine.Visible(); !t.unit.Empty() {
		concern.MayLeave = true
		s.noteTxnOnCommit(t.unit, n.Engine.Term(), t.moved)
		ts, err := n.Set.Commit(op, t.unit, concern)
		if ts == 0 && err != nil {
			if mongoerr.CodeOf(err) == mongoerr.NamespaceExists { // another made the collection meanwhile
				err = mongoerr.New(mongoerr.WriteConflict, "collection was created concurrently")
			}
			return err
		}
		if t.ts = ts; err != nil {
			op.SetWriteConcernError(mongoerr.From(err))
		}
	} else if err := n.Set.Await(op, t.ts, concern); err != nil { // what was read is as safe as the client asks
		op.SetWriteConcernError(mongoerr.From(err))
	}
	return nil
}

// stays refuses a collection that is not the one the transaction began with: its unit could not commit.
func (t *openTxn) stays(now *catalog.Snapshot, ns string) error {
	c, was := now.Lookup(ns), t.base.Catalog().Lookup(ns)
	if c == was || c != nil && was != nil && c.UUID == was.UUID && c.Epoch == was.Epoch {
		return nil
	}
	return mongoerr.Newf(mongoerr.WriteConflict, "Unable to write to collection '%s' due to catalog changes; please retry the operation. Snapshot timestamp is %v.", ns, t.base.Timestamp())
}

// writableInTxn refuses the collections that transactions do not write.
func writableInTxn(c *catalog.Collection) error {
	if c != nil && c.Capped {
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Collection '%s' is a capped collection. Writes in transactions are not allowed on capped collections.", c.NS)
	}
	return nil
}

// expireTxns aborts the transactions that are open for longer than they may be.
func (n *Node) expireTxns() {
	if n.txns.open.Load() == 0 {
		return
	}
	limit := n.now().Add(-time.Duration(n.Params.Int("transactionLifetimeLimitSeconds")) * time.Second)
	n.retries.eachIdle(func(_ cluster.LogicalSessionID, s *retrySession) {
		if s.txn != nil && s.txn.state == txnOpen && s.txn.started.Before(limit) {
			n.abortTxn(s)
		}
	})
}

// abortTxns aborts all open transactions: the node steps down. Commands at work in them have been interrupted.
func (n *Node) abortTxns() {
	if n.txns.open.Load() == 0 {
		return
	}
	n.retries.mu.Lock()
	sessions := slices.Collect(maps.Values(n.retries.mu.sessions))
	n.retries.mu.Unlock()
	for _, s := range sessions {
		<-s.busy
		if s.txn != nil && s.txn.state == txnPrepared { // whoever becomes primary restores it
			n.closeTxn(s, txnAborted)
		}
		n.abortTxn(s)
		s.busy <- struct{}{}
	}
}

// killSessionTxns aborts the transactions of the sessions that f names; one that is at work ends with its operation.
func (n *Node) killSessionTxns(f func(cluster.LogicalSessionID) bool) {
	n.retries.eachIdle(func(id cluster.LogicalSessionID, s *retrySession) {
		if f(id.Parent()) {
			n.abortTxn(s)
		}
	})
}

// eachIdle calls f with every session that no command is at work in.
func (t *retryTable) eachIdle(f func(id cluster.LogicalSessionID, s *retrySession)) {
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

// findTransaction is the answer to a command that ends a transaction the operation is in none of.
func (n *Node) findTransaction(op *command.Op) error {
	return mongoerr.Newf(mongoerr.NoSuchTransaction, "Given transaction number %d does not match any in-progress transactions.", op.Req.TxnNumber)
}
