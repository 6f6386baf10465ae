package txn

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
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

// Prepared transactions: participants of a two-phase commit that have voted to commit. The vote is a record of the
// transaction's operations in a collection of its own, as durable as a majority write; a node that opens, or becomes
// primary, makes the open transaction from it anew, before anyone else can write. From the vote to the decision of
// the coordinator nothing ends the transaction: not time, not killSessions, not a newer transaction of the session.

const PreparedNS = "config.system.preparedTransactions"

// preparedTxns is what readers at a time ask about prepared transactions: see AwaitPrepared. Every member keeps it, by the
// notices of the units that prepare transactions, commit them and remove their records.
type preparedTxns struct {
	count atomic.Int64 // 0 where nobody has to wait, whatever the time
	mu    struct {
		sync.Mutex
		open    map[string]undecidedTxn // by preparedKey
		settled []settledTxn            // in the order of their commits
		lost    bool                    // nothing is known before the records are loaded
		changed chan struct{}           // nil where nobody waits
	}
}

// undecidedTxn is a prepared transaction that is not decided.
type undecidedTxn struct {
	prepared storage.Timestamp // 0 where that is not known
	touched  []catalog.UUID    // the collections that it writes to; nil where that is not known
}

func (p *undecidedTxn) touches(c *catalog.Collection) bool {
	return c == nil || p.touched == nil || slices.Contains(p.touched, c.UUID)
}

// settledTxn is a prepared transaction that committed: readers of a cluster time see it from the time that its coordinator decided
// for, which is before the one that the commit got here.
type settledTxn struct {
	decided, committed storage.Timestamp
	at                 time.Time
}

// The notices of units that write a prepared record, commit its transaction, or remove it; a record that is removed and was not committed is
// aborted, or its commit was told before.
func prepareNotice(state string, lsid []byte, number int64, more ...value.Field) []byte {
	return value.Doc(append([]value.Field{value.F("promise", value.NewString(state)), value.F("key", value.NewString(preparedKey(lsid, number)))}, more...)...)
}

// touchedField is what the notice of a prepared record says of the collections that its transaction writes to.
func touchedField(collections []catalog.UUID) value.Field {
	list := make([]value.Value, len(collections))
	for i, c := range collections {
		list[i] = c.Value()
	}
	return value.F("touched", value.NewArray(value.ArrayOf(list...)))
}

func preparedKey(lsid []byte, number int64) string { return string(coordinatorKey(lsid, number).Doc()) }

// hear takes in a notice, before the unit that it is of is visible.
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

// change is closed when what readers wait for may have changed.
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

// Open is the number of prepared transactions.
func (p *preparedTxns) open() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(len(p.mu.open))
}

// settledFor is how long readers at earlier times are still told: longer than any transaction lives.
const settledFor = 5 * time.Minute

// at tells a reader at a time, which is visible, whether it has to wait for a transaction that was prepared by then. What has
// committed it sees once upTo is visible: a commit is heard of a moment before it is.
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

// causal tells a reader that comes after a time, and reads a collection or, for nil, several, whether it has to wait: a
// transaction that was prepared by then may have been seen on another shard. What it waited for, it sees from upTo on: a
// commit is heard of a moment before it is visible.
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

// Conceals tells whether what a write found in a snapshot may lack what a prepared transaction wrote; see preparedTxns.conceals.
func (m *Manager) Conceals(c *catalog.Collection, began storage.Timestamp, s *storage.Snapshot) bool {
	return m.prepared.count.Load() > 0 && m.prepared.conceals(c, began, s)
}

// conceals tells whether what a write found in a snapshot may lack what a transaction wrote that its client has seen on another
// shard: one that was prepared when the command began and is not decided, or whose commit is not in the snapshot.
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

// Hear takes in a notice of a unit of work, before the unit is visible.
func (m *Manager) OnCommitNotice(ts storage.Timestamp, notice []byte) {
	m.prepared.onCommitNotice(ts, notice, m.Now())
}

// LoadPrepared reads the prepared records that are stored, when the node opens and after a snapshot from another member.
func (m *Manager) LoadPrepared() error {
	open := make(map[string]undecidedTxn)
	err := m.Docs.Each(PreparedNS, func(doc []byte) error {
		if p, ok, _ := readPreparedRecord(doc); ok && p.parts > 0 {
			open[preparedKey(p.lsid, p.number)] = undecidedTxn{}
		}
		return nil
	})
	if err != nil {
		return err
	}
	p := &m.prepared
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.open, p.mu.settled, p.mu.lost = open, nil, false
	p.recount()
	return nil
}

// AwaitPrepared holds a reader at a time that other shards are read at, too, until the transactions are decided that were
// prepared by then, and those that committed are visible.
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

// AwaitPreparedUpTo holds a causal read, which comes after a time, until the transactions that had been prepared by then are
// decided. sole tells the only collection that the read looks at, nil where there may be others. The metadata of the cluster is not written in transactions, and what decides one may have to read it.
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

// runPrepare votes to commit: it stores the prepared record.
func (m *Manager) runPrepare(op *command.Op, _ *msg.PrepareTransaction, dst []byte) ([]byte, error) {
	t := Of(op)
	if t == nil {
		return dst, mongoerr.New(mongoerr.CommandFailed, "prepareTransaction must be run within a transaction")
	}
	if t.State == Open {
		if t.Unit.ChangesCatalog() {
			return dst, mongoerr.New(mongoerr.OperationNotSupportedInTransaction, "Cannot create new collections or indexes in a cross-shard write transaction.")
		}
		if err := m.prepare(op, t); err != nil {
			return dst, err
		}
	}
	op.AdvanceOperationTime(uint64(t.prepared))
	return msg.AppendFields(dst, &msg.PrepareTransactionReply{Timestamp: uint64(t.prepared)}), nil
}

func (m *Manager) prepare(op *command.Op, t *Txn) error {
	if err := t.Unit.CheckSize(); err != nil {
		return err
	}
	t.Unit.LimitTransaction(0)
	s := m.retries.of(op)
	m.node.KillCursors(t)
	w := recordWriter{m: m, ctx: op, s: s, t: t}
	if err := t.Unit.TransactionOps(w.add); err != nil {
		m.removeParts(storage.WithReserve(context.WithoutCancel(op)), s.LSID, t.Number, w.parts)
		return err
	}
	err := w.finish()
	if err == nil || t.prepared != 0 { // a record that is not known to be safe has to be removed all the same
		t.State, t.parts = Prepared, w.parts+1
		m.counters.prepared.all.Add(1)
	}
	return err
}

// recordWriter writes a prepared record: the parts of a large one in units of their own, so that no more than two are in
// memory. The record counts once it has its last part.
type recordWriter struct {
	m     *Manager
	ctx   context.Context
	s     *Session
	t     *Txn
	last  []byte // the newest array, of which it is not known whether others follow; nil before the first
	parts int    // before it
}

// add writes the part before an array.
func (w *recordWriter) add(array []byte) error {
	if w.last != nil {
		err := w.m.Docs.WriteWith(w.ctx, replication.Visible, func(snap *storage.Snapshot, u *storage.UnitOfWork) error {
			return w.put(snap, u, value.F("more", value.NewBool(true)))
		})
		if err != nil {
			return err
		}
		w.parts++
	}
	w.last = append(w.last[:0], array...)
	return nil
}

func (w *recordWriter) put(snap *storage.Snapshot, u *storage.UnitOfWork, fields ...value.Field) error {
	c, err := statedoc.CollectionFor(snap, u, PreparedNS)
	if err != nil {
		return err
	}
	id := PreparedID(w.s.LSID, w.t.Number, w.parts)
	return statedoc.PutIn(snap, u, c, value.Doc(append([]value.Field{value.F("_id", id), value.F("applyOps", value.NewArray(w.last))}, fields...)...))
}

// finish writes the last part: with it, those before it are durable too.
func (w *recordWriter) finish() error {
	if w.last == nil {
		w.last = value.ArrayOf()
	}
	return w.m.Docs.WriteWith(w.ctx, replication.Durable, func(snap *storage.Snapshot, u *storage.UnitOfWork) error {
		u.OnCommit(func(ts storage.Timestamp) { w.t.prepared = ts })
		u.Notice(prepareNotice("prepared", w.s.LSID, w.t.Number, touchedField(w.t.Unit.Collections())))
		return w.put(snap, u)
	})
}

func PreparedID(lsid []byte, number int64, part int) value.Value {
	return value.NewDocument(value.Doc(value.F("lsid", value.NewDocument(lsid)), value.F("txnNumber", value.NewInt64(number)), value.F("part", value.NewInt32(int32(part)))))
}

// removePreparedRecord removes the record of a prepared transaction: the last part, without which it is none, and then the others.
func (m *Manager) removePreparedRecord(ctx context.Context, lsid []byte, number int64, parts int, wc replication.WriteConcern) error {
	err := m.Docs.WriteWith(ctx, wc, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		u.Notice(prepareNotice("forgotten", lsid, number))
		if c := s.Catalog().Lookup(PreparedNS); c != nil && parts > 0 {
			return statedoc.PutRecord(s, u, c, PreparedID(lsid, number, parts-1), nil)
		}
		return nil
	})
	if err == nil {
		m.removeParts(ctx, lsid, number, parts-1)
	}
	return err
}

// removeParts removes parts of a record that has no last one, each in a unit of its own. What it leaves, RestorePrepared removes.
func (m *Manager) removeParts(ctx context.Context, lsid []byte, number int64, parts int) {
	for i := range parts {
		err := m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			if c := s.Catalog().Lookup(PreparedNS); c != nil {
				return statedoc.PutRecord(s, u, c, PreparedID(lsid, number, i), nil)
			}
			return nil
		})
		if err != nil {
			return
		}
	}
}

// preparedRecord is what is stored of a prepared transaction.
type preparedRecord struct {
	lsid   []byte
	number int64
	stored int // one behind the last part that is stored
	parts  int // of the record; 0 where its last part is missing, so that it does not count
}

// readPreparedRecord reads a part of a stored record; ok is false for a document that is none.
func readPreparedRecord(doc []byte) (p preparedRecord, ok bool, err error) {
	id := value.LookupDoc(doc, "_id")
	lsid := value.LookupDoc(id, "lsid")
	number, isNumber := value.Lookup(id, "txnNumber").AsInt64()
	part, isPart := value.Lookup(id, "part").AsInt64()
	if _, err := cluster.ParseLSID(lsid, cluster.NoUser); err != nil || !isNumber || !isPart || part < 0 || part > 1<<20 {
		return p, false, nil
	}
	p = preparedRecord{lsid: append([]byte(nil), lsid...), number: number, stored: int(part) + 1}
	if !value.Lookup(doc, "more").Truthy() {
		p.parts = p.stored
	}
	if value.Lookup(doc, "applyOps").T != value.Array {
		return p, true, mongoerr.Newf(mongoerr.BadValue, "the record of prepared transaction %d on session %s has no operations", number, value.ShowDoc(p.lsid))
	}
	return p, true, nil
}

// RestorePrepared reopens the transactions that the node has voted to commit. It runs before anyone else can
// write.
//
// Invariant: a stored vote is never lost and never executed twice. The record is removed only after the commit is
// visible, so a crash in between leaves a record of a transaction that has committed; the session's history,
// loaded before, tells that apart from one that is undecided. A record without its last part is not a vote: the
// primary that wrote it stopped midway, and told nobody. Hazard: until the operations are redone, their claims do
// not exist. A writer that came first could change a document that the transaction has promised to change, and the
// promise could not be kept.
func (m *Manager) RestorePrepared(ctx context.Context) error {
	var records []*preparedRecord
	err := m.Docs.Each(PreparedNS, func(doc []byte) error {
		part, ok, err := readPreparedRecord(doc)
		if !ok {
			m.node.Warn("A document of "+PreparedNS+" is passed over", mongoerr.Newf(mongoerr.BadValue, "%s is no prepared record", value.Show(value.Lookup(doc, "_id"))))
			return nil
		}
		if err != nil {
			return err
		}
		for _, p := range records {
			if p.number == part.number && string(p.lsid) == string(part.lsid) {
				p.stored, p.parts = max(p.stored, part.stored), max(p.parts, part.parts)
				return nil
			}
		}
		records = append(records, &part)
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range records {
		if p.parts == 0 { // a primary before stopped in the middle of it
			m.removeParts(ctx, p.lsid, p.number, p.stored)
			continue
		}
		m.retries.mu.Lock()
		s := known(m.retries.mu.sessions, p.lsid)
		m.retries.mu.Unlock()
		if s.Number > p.number || s.Number == p.number && s.Txn != nil && s.Txn.State == Committed {
			err = m.removePreparedRecord(ctx, p.lsid, p.number, p.parts, replication.Visible) // it was decided, and carried out
		} else {
			err = m.restore(ctx, s, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restore opens a prepared transaction from its record, as a whole or not at all.
func (m *Manager) restore(ctx context.Context, s *Session, p *preparedRecord) error {
	s.begin(p.number)
	base := m.Engine.Snapshot()
	t := &Txn{Number: p.number, State: Prepared, Started: m.Now(), prepared: base.Timestamp(), parts: p.parts, Base: base,
		Unit: m.Engine.NewUnitOfWork(base), Locks: m.Locks.NewLocker()}
	s.Txn, s.used, s.dirty = t, m.Now(), true
	s.enrol()
	m.counters.Started.Add(1)
	m.counters.Open.Add(1)
	err := m.restoreOps(ctx, s)
	if err != nil {
		m.closeTxn(s, Aborted)
	}
	return err
}

// restoreOps does the operations of a session's prepared transaction again, in a unit that is new, part by part.
func (m *Manager) restoreOps(ctx context.Context, s *Session) error {
	t := s.Txn
	t.View, t.moved = t.Unit.Snapshot(), nil
	t.Unit.SetTransaction(s.LSID, t.Number)
	for i := range t.parts {
		err := m.restorePart(ctx, s, i)
		if err != nil {
			return mongoerr.From(err).Prefix("prepared transaction " + strconv.Itoa(int(t.Number)) + " on session " + value.ShowDoc(s.LSID) + " cannot be restored: ")
		}
	}
	return nil
}

func (m *Manager) restorePart(ctx context.Context, s *Session, part int) error {
	doc, err := m.Docs.Get(PreparedNS, PreparedID(s.LSID, s.Txn.Number, part))
	if err != nil {
		return err
	}
	ops := value.Lookup(doc, "applyOps")
	if ops.T != value.Array {
		return mongoerr.Newf(mongoerr.InternalError, "its record has no part %d", part)
	}
	for i, v := range value.Values(ops.Doc()) {
		if err := s.Txn.restoreOp(ctx, i, v); err != nil {
			return err
		}
	}
	return nil
}

// restoreOp does one of a prepared transaction's operations again.
func (t *Txn) restoreOp(ctx context.Context, i int, v value.Value) error {
	if v.T != value.Document {
		return mongoerr.Newf(mongoerr.BadValue, "%s is no operation", value.Show(v))
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
		err = o.Apply(t.View, t.Unit)
	}
	return err
}

// commitPrepared carries out the decision to commit. The client that asked may be gone: the vote holds, and has room on
// a full disk.
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
	t.Unit.LogEmptyTransaction() // whoever asks for the outcome later may ask this shard
	t.Unit.Notice(prepareNotice("committed", s.LSID, t.Number, value.F("decided", decided.Value())))
	s.noteTxnOnCommit(t.Unit, m.Engine.Term(), t.moved)
	t.Unit.KeepClaims()
	ts, err := m.node.CommitAt(ctx, t.Unit, decided, wc)
	if ts == 0 && err != nil {
		if c := mongoerr.CodeOf(err); c.In(mongoerr.CategoryNotPrimary | mongoerr.CategoryShutdown) {
			// The log may commit it yet. Whoever is primary next, this node too, knows, and opens it anew if it did not.
			m.closeTxn(s, Aborted)
			return err
		}
		t.torn = true
		if again := m.reopen(ctx, s); again != nil {
			m.node.Warn("A prepared transaction whose commit failed cannot be opened again yet", again)
		}
		return err
	}
	if t.ts = ts; err != nil {
		op.SetWriteConcernError(mongoerr.From(err))
	}
	_ = m.removePreparedRecord(ctx, s.LSID, t.Number, t.parts, replication.Visible) // what it leaves, RestorePrepared removes
	return nil
}

// reopen makes the unit of a prepared transaction whose commit failed anew, so that it can be committed again. Its locks and
// claims go over to the new unit, so that nobody writes what it writes in between. Until that has been done as a whole, the
// transaction is torn, and not committed.
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

// abortPrepared carries out the decision to abort: the record goes first, so that no restart takes it up again.
func (m *Manager) abortPrepared(op *command.Op, s *Session) error {
	t := s.Txn
	if err := m.removePreparedRecord(storage.WithReserve(context.WithoutCancel(op)), s.LSID, t.Number, t.parts, replication.Durable); err != nil {
		return err
	}
	m.closeTxn(s, Aborted)
	m.counters.Aborted.Add(1)
	m.counters.prepared.aborted.Add(1)
	return nil
}

// outcome tells what became of a session's transaction, without waiting for its commands to end.
func (m *Manager) outcome(op *command.Op, number int64) (state State, ts storage.Timestamp, err error) {
	s, release, err := m.retries.take(op)
	if err != nil {
		return 0, 0, err
	}
	defer release()
	if s.Txn == nil || s.Txn.Number != number {
		return Aborted, 0, nil
	}
	return s.Txn.State, s.Txn.ts, nil
}
