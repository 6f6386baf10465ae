package write

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// txnContext is the context in which a write command's statements read and write: plainWrites commits each unit of work
// by itself, transactionWrites uses the unit of the command's transaction, which commitTransaction commits.
type txnContext interface {
	// lock locks collections for the command, or for the rest of the transaction.
	lock(mode lock.Mode, names ...string) (unlock func(), err error)
	// lockDocuments is lock for the documents of one collection, for which most commands wait without a time limit.
	lockDocuments(ns string) (unlock func(), err error)
	// refused releases the locks of a statement that was rejected before it had any effect and may wait for the end of a critical
	// section, whose operation may need these locks.
	refused(names ...string)
	// admits returns an error for a locked collection that the command cannot write because of its earlier reads.
	admits(ns string) error

	// Catalog returns the newest catalog that the statements see, including their own changes.
	Catalog() *catalog.Snapshot
	// Snapshot returns the snapshot that a statement reads from. The caller releases it.
	Snapshot() *storage.Snapshot
	// Unit returns the unit of work that a statement writes to, on top of a snapshot.
	Unit(s *storage.Snapshot) *storage.UnitOfWork
	// Drop ends a statement's use of a unit; unless it was committed or belongs to a transaction, it is rolled back.
	Drop(u *storage.UnitOfWork)
	// commitRun commits a unit. A failure to satisfy the write concern, or a commit whose client stopped waiting, is the
	// command's writeConcernError and not the unit's error. ran are the statements of a retryable write that the unit
	// executes, txn.NoRun for none.
	commitRun(u *storage.UnitOfWork, wc replication.WriteConcern, ran txn.Run) error
	// Finish waits for the write concern of commits that were made with a relaxed one.
	Finish()

	// foundAll returns a conflict if a prepared transaction may have written matching documents that a statement
	// does not find in its snapshot. A document that such a transaction changes is claimed, so a write to it
	// waits; but if its old version does not match, the statement does not find it at all.
	foundAll(c *catalog.Collection, s *storage.Snapshot) error
	// readsOwn reports whether a snapshot shows the command's own writes.
	readsOwn() bool
	// failed records a statement's error; ends reports whether it is the error of the whole command, so that
	// no other statement runs.
	failed(code mongoerr.Code) (ends bool)
	// Transaction is nil for plain writes.
	Transaction() *txn.Txn
}

// plainWrites is the context of a command outside transactions. The command builds on its undecided commits (w.pending): its
// next units follow them in a chain and see their writes.
type plainWrites struct{ w *Command }

func (p plainWrites) Transaction() *txn.Txn { return nil }

func (p plainWrites) lockDocuments(ns string) (unlock func(), err error) {
	w := p.w
	if w.Concern.Timeout != 0 {
		return p.lock(lock.IX, ns)
	}
	if !w.writer.node.Observes(w.Op.DB()) {
		return w.writer.Locks.Collection(w.Op, ns, lock.IX)
	}
	l := w.writer.Locks.NewLocker() // not reused: the profiler reads its counts
	w.Op.Stats.Locks = l
	w.Op.ShowLocks(l)
	if err := l.LockCollections(w.Op, lock.IX, ns); err != nil {
		l.UnlockAll()
		return nil, err
	}
	return l.UnlockAll, nil
}

func (p plainWrites) lock(mode lock.Mode, names ...string) (unlock func(), err error) {
	return p.w.locked(func(l *lock.Locker) error { return l.LockCollections(p.w.Op, mode, names...) })
}

func (p plainWrites) refused(...string) {} // the command releases its own locks

func (p plainWrites) admits(string) error { return nil }

func (p plainWrites) Catalog() *catalog.Snapshot {
	if p.w.chain != nil {
		return p.w.chain.Catalog()
	}
	return p.w.writer.Engine.Catalog()
}

func (p plainWrites) Snapshot() *storage.Snapshot {
	if p.w.chain != nil {
		return p.w.chain.Snapshot()
	}
	return p.w.writer.Engine.Snapshot()
}

func (p plainWrites) Unit(s *storage.Snapshot) *storage.UnitOfWork {
	u := p.w.newUnit(s)
	if p.w.FromMigrate {
		u.SetFromMigrate()
	}
	if r := &p.w.Op.Req; r.HasTxnNumber && r.LSID != nil {
		u.SetSession(r.LSID, r.TxnNumber, p.w.before())
	}
	return u
}

func (p plainWrites) Drop(u *storage.UnitOfWork) { u.Rollback() }

func (p plainWrites) commitRun(u *storage.UnitOfWork, wc replication.WriteConcern, ran txn.Run) error {
	w := p.w
	inserted, deleted := u.IndexKeys()
	if err := w.refuseUnknown(); err != nil {
		return err
	}
	if w.session != nil {
		hangUp, err := w.failRetryable()
		defer hangUp()
		if err != nil {
			return err
		}
		w.session.NoteOnCommit(u, w.writer.Engine.Term(), ran)
	}
	wc.MayDetach = true
	if wc.Timeout = w.Concern.Timeout; w.pending != nil {
		wc.Timeout = 1 // the client has already waited for its whole wtimeout
	}
	ts, err := w.writer.Set.Commit(w.Op, u, wc)
	if ts != 0 {
		w.noteKeys(inserted, deleted)
		w.last = ts
		w.Op.AdvanceOperationTime(uint64(ts))
		if err != nil {
			w.Op.SetWriteConcernError(mongoerr.From(err))
		}
		return nil
	}
	if l, ok := txn.IsDetached(err); ok {
		w.noteKeys(inserted, deleted)
		w.detach(l)
		if !ran.None() {
			w.pending.Ran(ran)
		}
		return nil
	}
	return err
}

func (p plainWrites) Finish() {
	w := p.w
	if w.pending != nil {
		return
	}
	if w.last == 0 {
		w.last = w.writer.Engine.Visible()
		w.Op.AdvanceOperationTime(uint64(w.last))
	}
	if w.Concern.BeyondMajority() {
		w.release() // so that neither catalog changes nor the session's next command wait for a member that is down
	}
	if err := w.writer.Set.Await(w.Op, w.last, w.Concern); err != nil {
		w.Op.SetWriteConcernError(mongoerr.From(err))
	}
}

func (p plainWrites) foundAll(c *catalog.Collection, s *storage.Snapshot) error {
	w := p.w
	if c == nil || command.CheckTxnDatabase(w.Op.DB()) != nil || !w.writer.Txns.Conceals(c, w.began, s) {
		return nil
	}
	return mongoerr.New(mongoerr.WriteConflict, "a transaction over several shards is being committed")
}

func (p plainWrites) readsOwn() bool { return p.w.chain != nil }

func (p plainWrites) failed(mongoerr.Code) (ends bool) { return false }

// transactionWrites is the context of a command within a transaction: its locks are held until the transaction ends, its statements share
// the transaction's unit and snapshot, and a write conflict aborts the transaction.
type transactionWrites struct {
	w *Command
	t *txn.Txn

	inserted, deleted int64 // index keys changed by the transaction before this command, and by the command so far
}

func (c *transactionWrites) Transaction() *txn.Txn { return c.t }

func (c *transactionWrites) lockDocuments(ns string) (unlock func(), err error) {
	return c.lock(lock.IX, ns)
}

func (c *transactionWrites) lock(mode lock.Mode, names ...string) (unlock func(), err error) {
	if c.w.writer.node.Observes(c.w.Op.DB()) {
		c.w.Op.Stats.Locks = &locksSince{c.t.Locks, c.t.Locks.Stats()}
	}
	c.w.Op.ShowLocks(c.t.Locks)
	return func() {}, c.t.Locks.LockCollections(c.w.Op, mode, names...)
}

// refused implements txnContext. The locks of earlier statements remain.
func (c *transactionWrites) refused(names ...string) {
	for _, ns := range names {
		c.t.Locks.UnlockCollection(ns)
	}
}

func (c *transactionWrites) admits(ns string) error {
	return c.w.writer.Txns.Admit(c.w.Op, c.t, ns)
}

func (c *transactionWrites) Catalog() *catalog.Snapshot { return c.t.Unit.Catalog() }

func (c *transactionWrites) Snapshot() *storage.Snapshot {
	c.t.Read()
	return c.t.View.Clone()
}

func (c *transactionWrites) Unit(*storage.Snapshot) *storage.UnitOfWork {
	c.t.Read()
	return c.t.Unit
}

func (c *transactionWrites) Drop(*storage.UnitOfWork) {}

// commitRun counts what the statement changed; commitTransaction commits it.
func (c *transactionWrites) commitRun(u *storage.UnitOfWork, _ replication.WriteConcern, _ txn.Run) error {
	inserted, deleted := u.IndexKeys()
	c.w.noteKeys(inserted-c.inserted, deleted-c.deleted)
	c.inserted, c.deleted = inserted, deleted
	return nil
}

func (c *transactionWrites) Finish() {}

func (c *transactionWrites) foundAll(*catalog.Collection, *storage.Snapshot) error { return nil }

func (c *transactionWrites) readsOwn() bool { return true }

// failed aborts the transaction, unless the document only has to move to another shard: the router does that.
func (c *transactionWrites) failed(code mongoerr.Code) (ends bool) {
	c.t.Failed = code != mongoerr.WouldChangeOwningShard
	return true
}
