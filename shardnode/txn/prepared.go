package txn

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Prepared transactions: participants of a two-phase commit that have voted to commit. The vote is the transaction's operations
// in the oplog, as durable as a majority write (storage/prepared.go); a node that opens, or becomes primary, applies them again
// to a transaction that is open, before anyone else can write. From the vote to the decision of the coordinator nothing ends
// the transaction: not time, not killSessions, not a newer transaction of the session.

// preparedTxns tracks prepared transactions for readers at a time: see AwaitPrepared. Every member maintains it from the
// notices of the units that prepare, commit and abort transactions.
type preparedTxns struct {
	count atomic.Int64 // 0 if no reader has to wait, whatever its time
	mu    struct {
		sync.Mutex
		open    map[string]undecidedTxn // by preparedKey
		settled []settledTxn            // in the order of their commits
		lost    bool                    // unknown until the records are loaded
		changed chan struct{}           // nil if there are no waiters
	}
}

// undecidedTxn is a prepared transaction that is not decided.
type undecidedTxn struct {
	prepared storage.Timestamp // 0 if unknown
	touched  []catalog.UUID    // the collections that it writes to; nil if unknown
}

func (p *undecidedTxn) touches(c *catalog.Collection) bool {
	return c == nil || p.touched == nil || slices.Contains(p.touched, c.UUID)
}

// settledTxn is a prepared transaction that committed: readers at a cluster time see it from its commit timestamp, which its
// coordinator chose and which is before the timestamp of the commit here.
type settledTxn struct {
	decided, committed storage.Timestamp
	at                 time.Time
}

// prepareNotice returns the notice of a unit that prepares a transaction, commits it, or aborts it (forgotten).
func prepareNotice(state string, lsid []byte, number int64, more ...value.Field) []byte {
	return value.Doc(append([]value.Field{value.F("promise", value.NewString(state)), value.F("key", value.NewString(preparedKey(lsid, number)))}, more...)...)
}

// touchedField returns the field of a vote's notice with the collections that its transaction writes to.
func touchedField(collections []catalog.UUID) value.Field {
	list := make([]value.Value, len(collections))
	for i, c := range collections {
		list[i] = c.Value()
	}
	return value.F("touched", value.NewArray(value.ArrayOf(list...)))
}

func preparedKey(lsid []byte, number int64) string { return string(coordinatorKey(lsid, number).Doc()) }

// onCommitNotice processes a notice, before its unit is visible.
func (p *preparedTxns) onCommitNotice(ts storage.Timestamp, notice []byte, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.recount()
	if notice == nil {
		p.mu.lost = true
		return
	}
	key := value.Lookup(notice, "key").Str()
	switch value.Lookup(notice, "promise").Str() {
	case "prepared":
		if p.mu.open == nil {
			p.mu.open = make(map[string]undecidedTxn)
		}
		open := undecidedTxn{prepared: ts, touched: []catalog.UUID{}}
		for _, v := range value.Values(value.Lookup(notice, "touched").Doc()) {
			if c, ok := catalog.UUIDFrom(v); ok {
				open.touched = append(open.touched, c)
			}
		}
		p.mu.open[key] = open
	case "committed":
		delete(p.mu.open, key)
		for len(p.mu.settled) > 0 && p.mu.settled[0].at.Before(now.Add(-settledFor)) {
			p.mu.settled = p.mu.settled[1:]
		}
		decided := storage.Timestamp(value.Lookup(notice, "decided").TimestampU64())
		p.mu.settled = append(p.mu.settled, settledTxn{decided, ts, now})
	case "forgotten":
		delete(p.mu.open, key)
	}
}

// change returns a channel that is closed when what readers wait for may have changed.
func (p *preparedTxns) change() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.changed == nil {
		p.mu.changed = make(chan struct{})
	}
	return p.mu.changed
}

// recount is called with mu held, after each change.
func (p *preparedTxns) recount() {
	if p.mu.changed != nil {
		close(p.mu.changed)
		p.mu.changed = nil
	}
	n := len(p.mu.open) + len(p.mu.settled)
	if p.mu.lost {
		n++
	}
	p.count.Store(int64(n))
}

// open returns the number of prepared transactions.
func (p *preparedTxns) open() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(len(p.mu.open))
}

// settledFor is the time for which commits are remembered for readers at earlier times: longer than any transaction lives.
const settledFor = 5 * time.Minute

// at reports whether a reader at a time, which is visible, has to wait for a transaction that was prepared by
// then. It has to read once upTo is visible: the notice of a commit precedes its visibility.
func (p *preparedTxns) at(ts storage.Timestamp) (wait bool, upTo storage.Timestamp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lost {
		return true, 0
	}
	for _, o := range p.mu.open {
		if o.prepared <= ts {
			return true, 0
		}
	}
	for i := len(p.mu.settled) - 1; i >= 0 && ts < p.mu.settled[i].committed; i-- {
		if p.mu.settled[i].decided <= ts {
			return false, p.mu.settled[i].committed
		}
	}
	return false, 0
}

// causal reports whether a reader after a time, which reads a collection (nil: several), has to wait: a
// transaction that was prepared by then may have been seen on another shard. It has to read at upTo or later: the
// notice of a commit precedes its visibility.
func (p *preparedTxns) causal(ts storage.Timestamp, c *catalog.Collection) (wait bool, upTo storage.Timestamp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lost {
		return true, 0
	}
	for _, o := range p.mu.open {
		if o.prepared <= ts && o.touches(c) {
			return true, 0
		}
	}
	if n := len(p.mu.settled); n > 0 {
		upTo = p.mu.settled[n-1].committed
	}
	return false, upTo
}

// Conceals reports whether what a write found in a snapshot may lack what a prepared transaction wrote; see
// preparedTxns.conceals.
func (m *Manager) Conceals(c *catalog.Collection, began storage.Timestamp, s *storage.Snapshot) bool {
	return m.prepared.count.Load() > 0 && m.prepared.conceals(c, began, s)
}

// conceals reports whether what a write found in a snapshot may lack what a transaction wrote that its client has
// seen on another shard: one that was prepared when the command began and is not decided, or whose commit is not
// in the snapshot.
func (p *preparedTxns) conceals(c *catalog.Collection, began storage.Timestamp, s *storage.Snapshot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.mu.open {
		if o.prepared <= began && o.touches(c) {
			return true
		}
	}
	n := len(p.mu.settled)
	return p.mu.lost || n > 0 && p.mu.settled[n-1].committed > s.Timestamp()
}

// OnCommitNotice processes a notice of a unit of work, before the unit is visible.
func (m *Manager) OnCommitNotice(ts storage.Timestamp, notice []byte) {
	m.prepared.onCommitNotice(ts, notice, m.Now())
}

// LoadPrepared reads which transactions are prepared, when the node opens and after a snapshot from another member.
func (m *Manager) LoadPrepared() error {
	list, err := m.Engine.Prepared()
	if err != nil {
		return err
	}
	open := make(map[string]undecidedTxn)
	for _, t := range list {
		open[preparedKey(t.LSID, t.Number)] = undecidedTxn{prepared: t.At.TS}
	}
	p := &m.prepared
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.open, p.mu.settled, p.mu.lost = open, nil, false
	p.recount()
	return nil
}

// AwaitPrepared blocks a reader at a time that other shards are read at, too, until the transactions that were prepared
// by then are decided, and the committed ones are visible.
func (m *Manager) AwaitPrepared(op *command.Op, ts storage.Timestamp) error {
	var upTo storage.Timestamp
	err := m.whilePrepared(op, func() (wait bool) {
		wait, upTo = m.prepared.at(ts)
		return wait
	})
	if err == nil {
		err = m.node.WaitVisible(op, upTo)
	}
	return err
}

// AwaitPreparedUpTo delays a causal read after a time until the transactions that had been prepared by then are
// decided. sole returns the only collection that the read uses, nil if there may be others. Reads of the cluster's
// metadata do not wait: it is not written in transactions, and deciding a transaction may require reading it.
func (m *Manager) AwaitPreparedUpTo(op *command.Op, after storage.Timestamp, sole func(*command.Op) *catalog.Collection) (upTo storage.Timestamp, err error) {
	if m.prepared.count.Load() == 0 || command.CheckTxnDatabase(op.DB()) != nil {
		return after, nil
	}
	coll := sole(op)
	err = m.whilePrepared(op, func() (wait bool) {
		wait, upTo = m.prepared.causal(after, coll)
		return wait
	})
	if err == nil {
		err = m.node.WaitVisible(op, upTo)
	}
	return max(after, upTo), err
}

func (m *Manager) whilePrepared(op *command.Op, waits func() bool) error {
	for m.prepared.count.Load() > 0 {
		changed := m.prepared.change()
		if !waits() {
			return nil
		}
		if err := awaitChange(op, changed); err != nil {
			return err
		}
	}
	return nil
}

// awaitChange waits until a channel of preparedTxns.change is closed.
func awaitChange(op *command.Op, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-op.Done():
		return op.Err()
	}
}

// runPrepare votes to commit: it logs the operations.
func (m *Manager) runPrepare(op *command.Op, req *msg.PrepareTransaction, dst []byte) ([]byte, error) {
	t := Of(op)
	if t == nil {
		return dst, mongoerr.New(mongoerr.CommandFailed, "prepareTransaction must be run within a transaction")
	}
	if t.State == Open {
		if t.Unit.ChangesCatalog() {
			return dst, mongoerr.New(mongoerr.OperationNotSupportedInTransaction, "Cannot create new collections or indexes in a cross-shard write transaction.")
		}
		if err := m.prepare(op, t, req.Coordinator); err != nil {
			return dst, err
		}
	}
	op.AdvanceOperationTime(uint64(t.prepared.TS))
	return msg.AppendFields(dst, &msg.PrepareTransactionReply{Timestamp: uint64(t.prepared.TS)}), nil
}

func (m *Manager) prepare(op *command.Op, t *Txn, coordinator string) error {
	if err := t.Unit.CheckSize(); err != nil {
		return err
	}
	t.Unit.LimitTransaction(0)
	s := m.retries.of(op)
	if err := s.executedMeanwhile(t.moved); err != nil {
		return err
	}
	m.node.KillCursors(t)
	var at storage.Timestamp
	err := m.Docs.WriteWith(op, replication.Durable, func(snap *storage.Snapshot, u *storage.UnitOfWork) error {
		t.Unit.LogPrepare(u, coordinator)
		u.OnCommit(func(ts storage.Timestamp) { at = ts })
		u.Notice(prepareNotice("prepared", s.LSID, t.Number, touchedField(t.Unit.Collections())))
		return m.recordVote(snap, u, s, "prepared", value.F("startOpTime", m.now().Value()))
	})
	if at != 0 { // even a vote that is not known to be durable has to be decided
		t.State, t.coordinator, t.prepared = Prepared, coordinator, storage.OpTime{TS: at, Term: m.Engine.Term()}
		t.Unit.SetPrepared(t.prepared)
		m.counters.prepared.all.Add(1)
		s.forgetBefore()
	}
	return err
}

// now returns an optime whose timestamp is filled in by the unit that writes it.
func (m *Manager) now() storage.OpTime { return storage.OpTime{TS: 1, Term: m.Engine.Term()} }

// recordVote writes the record of a vote, or of the decision to abort, to config.transactions in the unit that logs it. A
// commit is recorded like a retryable write. A session of which another shard has sent newer history keeps the record of that.
func (m *Manager) recordVote(snap *storage.Snapshot, u *storage.UnitOfWork, s *Session, state string, more ...value.Field) error {
	c := snap.Catalog().Lookup(TransactionsNS)
	if c == nil { // it is created by another unit, whose entries do not belong to the vote
		err := m.Docs.WriteWith(context.Background(), replication.Visible, func(snap *storage.Snapshot, u *storage.UnitOfWork) error {
			_, err := statedoc.CollectionFor(snap, u, TransactionsNS)
			return err
		})
		if err != nil {
			return err
		}
		return mongoerr.New(mongoerr.WriteConflict, TransactionsNS+" was created")
	}
	if s.isAhead() {
		return nil
	}
	u.RecordIn(c)
	id := value.NewDocument(s.LSID)
	return statedoc.PutRecord(snap, u, c, id, value.Doc(append([]value.Field{value.F("_id", id), value.F("txnNum", value.NewInt64(s.Number)),
		value.F("lastWriteOpTime", m.now().Value()), value.F("lastWriteDate", value.NewTime(m.Now())), value.F("state", value.NewString(state))}, append(more, s.parentField()...)...)...))
}

// forgetBefore drops the history of numbers before the session's: a vote for the current number is durable, so that earlier numbers are refused.
func (s *Session) forgetBefore() {
	s.mu.Lock()
	s.before = history{}
	s.mu.Unlock()
}

// RestorePrepared reopens the transactions that the node has voted to commit. It runs before anyone else can
// write.
//
// Invariant: a stored vote is never lost and never executed twice. Its key is deleted by the unit that commits or
// aborts the transaction. Hazard: until the operations are redone, their claims do not exist. A writer that came first
// could change a document that the transaction has voted to change, and the vote could not be honoured.
//
// Rejected: redoing the operations only when the decision arrives. It would need no memory until then, but nothing would protect the documents
// of the vote. Rejected, too: storing the staged keys instead of the operations. Each vote would be written twice, since the oplog needs
// the operations in any case.
func (m *Manager) RestorePrepared(ctx context.Context) error {
	if err := m.refuseOldRecords(); err != nil {
		return err
	}
	list, err := m.Engine.Prepared()
	if err != nil {
		return err
	}
	for i := range list {
		m.retries.mu.Lock()
		s := known(m.retries.mu.sessions, list[i].LSID)
		m.retries.mu.Unlock()
		if s == nil {
			return mongoerr.Newf(mongoerr.InternalError, "prepared transaction %d has no valid session: %s", list[i].Number, value.ShowDoc(list[i].LSID))
		}
		if err := m.restore(ctx, s, &list[i]); err != nil {
			return err
		}
	}
	return nil
}

// oldPreparedNS is where earlier versions stored the votes.
const oldPreparedNS = "config.system.preparedTransactions"

// refuseOldRecords refuses a store with votes of an earlier version: a node that did not restore them would lose what other
// shards have committed.
func (m *Manager) refuseOldRecords() error {
	return m.Docs.Each(oldPreparedNS, func(doc []byte) error {
		if value.Lookup(doc, "applyOps").T == value.Array && !value.Lookup(doc, "more").Truthy() {
			return mongoerr.Newf(mongoerr.IncompatibleServerVersion, "%s holds a transaction prepared by an earlier version; commit or abort it with that version first: %s",
				oldPreparedNS, value.Show(value.Lookup(doc, "_id")))
		}
		return nil
	})
}

// restore opens a prepared transaction again, as a whole or not at all.
func (m *Manager) restore(ctx context.Context, s *Session, p *storage.PreparedTxn) error {
	s.setAside(p.Number)
	s.begin(p.Number)
	base := m.Engine.Snapshot()
	t := &Txn{Number: p.Number, State: Prepared, Started: m.Now(), prepared: p.At, coordinator: p.Coordinator, Base: base,
		Unit: m.Engine.NewUnitOfWork(base), Locks: m.Locks.NewLocker()}
	s.hold(t)
	s.used, s.dirty = m.Now(), true
	s.forgetBefore()
	s.enrol()
	m.counters.Started.Add(1)
	m.counters.Open.Add(1)
	err := m.restoreOps(ctx, s)
	if err != nil {
		m.closeTxn(s, Aborted)
	}
	return err
}

// restoreOps applies the operations of a session's prepared transaction again, in a new unit, entry by entry.
func (m *Manager) restoreOps(ctx context.Context, s *Session) error {
	t := s.Txn
	t.View, t.moved = t.Unit.Snapshot(), nil
	t.Unit.SetTransaction(s.LSID, t.Number)
	t.Unit.SetPrepared(t.prepared)
	err := t.Base.PreparedOps(t.prepared.TS, func(ops []byte) error {
		for i, v := range value.Values(ops) {
			if err := t.restoreOp(ctx, i, v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return mongoerr.From(err).Prefix("prepared transaction " + strconv.Itoa(int(t.Number)) + " on session " + value.ShowDoc(s.LSID) + " cannot be restored: ")
	}
	return nil
}

// restoreOp applies one of a prepared transaction's operations again.
func (t *Txn) restoreOp(ctx context.Context, i int, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(mongoerr.BadValue, "%s is not an operation", value.Show(v))
	}
	if m, ok := movedWriteOf(v.Doc()); ok {
		t.note(m)
		return nil
	}
	o, err := ParseLoggedOp(i, v)
	if err == nil {
		err = t.Locks.LockCollection(ctx, catalog.DBOf(o.NS), o.NS, lock.IX)
	}
	if err == nil {
		err = o.Apply(t.View, t.Unit, nil)
	}
	return err
}

// commitPrepared executes the decision to commit, even if the client that sent it is gone. On a full disk it may use
// the reserve.
func (m *Manager) commitPrepared(op *command.Op, s *Session, wc replication.WriteConcern) error {
	t := s.Txn
	var decision msg.CommitTransaction
	if err := msg.Parse(op.Req.Body, &decision); err != nil {
		return err
	}
	if decision.Timestamp == 0 {
		return mongoerr.New(mongoerr.InvalidOptions, "commitTransaction for a prepared transaction must be run with a 'commitTimestamp'")
	}
	decided := storage.Timestamp(decision.Timestamp)
	ctx := storage.WithReserve(context.WithoutCancel(op))
	if t.torn {
		if err := m.reopen(ctx, s); err != nil {
			return err
		}
	}
	t.Unit.LogCommit(decided)
	t.Unit.Notice(prepareNotice("committed", s.LSID, t.Number, value.F("decided", decided.Value())))
	s.noteTxnOnCommit(t.Unit, m.Engine.Term(), t.moved)
	t.Unit.KeepClaims()
	ts, err := m.node.CommitAt(ctx, t.Unit, decided, wc)
	if ts == 0 && err != nil {
		if c := mongoerr.CodeOf(err); c.In(mongoerr.CategoryNotPrimary | mongoerr.CategoryShutdown) {
			// The log may still commit it. The next primary, which may be this node again, will know the outcome,
			// and reopens the transaction if it was not committed.
			m.closeTxn(s, Aborted)
			return err
		}
		t.torn = true
		if again := m.reopen(ctx, s); again != nil {
			m.node.Warn("A prepared transaction whose commit failed cannot be reopened yet", again)
		}
		return err
	}
	if t.ts = ts; err != nil {
		op.SetWriteConcernError(mongoerr.From(err))
	}
	return nil
}

// reopen recreates the unit of a prepared transaction whose commit failed, so that it can be committed again. Its locks
// and claims move to the new unit, so that its documents are not written in between. Until that is complete the
// transaction is torn, and cannot be committed.
func (m *Manager) reopen(ctx context.Context, s *Session) error {
	t := s.Txn
	base := m.Engine.Snapshot()
	unit := m.Engine.NewUnitOfWork(base)
	unit.TakeOver(t.Unit)
	t.Unit.Rollback()
	t.Base.Release()
	t.Unit, t.Base = unit, base
	if err := m.restoreOps(ctx, s); err != nil {
		return err
	}
	t.torn = false
	return nil
}

// abortPrepared executes the decision to abort: it is logged first, so that no restart restores the transaction.
func (m *Manager) abortPrepared(op *command.Op, s *Session) error {
	t := s.Txn
	err := m.Docs.WriteWith(storage.WithReserve(context.WithoutCancel(op)), replication.Durable, func(snap *storage.Snapshot, u *storage.UnitOfWork) error {
		t.Unit.LogAbort(u)
		u.Notice(prepareNotice("forgotten", s.LSID, t.Number))
		return m.recordVote(snap, u, s, "aborted")
	})
	if err != nil {
		return err
	}
	m.closeTxn(s, Aborted)
	m.counters.Aborted.Add(1)
	m.counters.prepared.aborted.Add(1)
	return nil
}

// outcome returns the outcome of a session's transaction, without waiting for its commands to end. A transaction before the session's
// newest is an error: it may have committed, but nothing is known of it any more.
func (m *Manager) outcome(op *command.Op, number int64) (state State, ts storage.Timestamp, err error) {
	s, release, err := m.take(op)
	if err != nil {
		return 0, 0, err
	}
	defer release()
	if number < s.Number {
		return 0, 0, tooOld(op, s)
	}
	if s.Txn == nil || s.Txn.Number != number {
		if s.Txn == nil || number > s.Number {
			err = m.retries.knowsStatement(s, number, op.Start)
		}
		return Aborted, 0, err
	}
	return s.Txn.State, s.Txn.ts, nil
}
