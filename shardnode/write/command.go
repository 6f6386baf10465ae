package write

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Command is the state shared by the statements of a write command: its write concern, and its effects so far.
type Command struct {
	txnContext
	writer  *Writer
	Op      *command.Op
	Concern replication.WriteConcern
	began   storage.Timestamp // what was visible when the command began
	storeOptions

	FromMigrate bool // change streams skip its writes, because another shard reports them
	last        storage.Timestamp
	stmt        int32 // the next statement's id in a retryable write
	errs        []writeError
	unlock      func()
	pending     *txn.Pending         // the command's undecided commits, nil for none
	chain       *storage.CommitChain // the same commits, for the command's next units, which see them
	env         *expr.Env            // of the first statement: all statements of a command see the same $$NOW

	imageKind string // preImage or postImage: which document a findAndModify stores for its retry

	acquired string // the namespace that the command's versions are for, once they have been compared
	owns     ownedRanges

	retrying
}

// retrying is the part of a command that may be a retryable write.
type retrying struct {
	session  *txn.Session // of a retryable write, nil for others
	endRetry func()
	retried  []value.Value // the ids of statements that had been executed before
	blocked  error         // of statements that had not, while users are blocked
}

// storeOptions determine how a command's documents are stored.
type storeOptions struct {
	bypass  bool              // bypassDocumentValidation
	keepTS  bool              // bypassEmptyTsReplacement
	records *txn.Invalidation // for config.transactions: the sessions that change with their documents; nil for other collections
}

// ownedRanges is a command's shard filter with the collection that it was made for.
type ownedRanges struct {
	coll   catalog.UUID
	filter exec.Ownership
}

// writeError is one entry of writeErrors.
type writeError struct {
	index int
	err   *mongoerr.Error
}

// Begin checks that the node accepts writes, and reads the write concern.
func (wr *Writer) Begin(op *command.Op) (*Command, error) {
	if err := wr.MayWrite(op); err != nil {
		return nil, err
	}
	wc := op.Req.AskedConcern()
	if err := wr.node.CheckConcern(op, wc); err != nil {
		return nil, err
	}
	return wr.With(op, wc.ForSet()), nil
}

// With is Begin for a caller that has done both.
func (wr *Writer) With(op *command.Op, wc replication.WriteConcern) *Command {
	w := &Command{writer: wr, Op: op, Concern: wc, began: wr.Engine.Visible(), storeOptions: storeOptions{
		bypass: op.Opened("bypassDocumentValidation").Truthy(), keepTS: op.Opened("bypassEmptyTsReplacement").Truthy(),
	}}
	if t := txn.Of(op); t != nil {
		c := &transactionWrites{w: w, t: t}
		c.inserted, c.deleted = t.Unit.IndexKeys()
		w.txnContext = c
	} else {
		w.txnContext = plainWrites{w}
	}
	return w
}

// batchArgs are the arguments that insert, update and delete have in common.
type batchArgs struct {
	ns      string
	list    command.Docs // the documents or statements
	ordered bool
}

// parseBatch reads these arguments; field is the name of the one with the documents or statements.
func parseBatch(op *command.Op, field string) (a batchArgs, err error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return a, err
	}
	a = batchArgs{ns: op.Req.NS(coll), list: op.Req.DocList(field), ordered: op.Req.BoolOr("ordered", true)}
	return a, op.Req.CheckBatch(a.list.Count())
}

// beginBatch begins an insert, update or delete once its arguments are read: it acquires the collection.
func (wr *Writer) beginBatch(op *command.Op, ns string) (*Command, error) {
	if err := CheckWritable(op, ns); err != nil {
		return nil, err
	}
	if err := wr.checkWrittenRanges(op); err != nil {
		return nil, err
	}
	w, err := wr.Begin(op)
	if err != nil {
		return nil, err
	}
	return w, w.acquire(ns)
}

// acquire locks the collection in intent mode, so that no critical section or catalog change begins before the command's
// writes are committed, and compares versions under the lock.
func (w *Command) acquire(ns string) error {
	if err := w.startRetry(); err != nil {
		return err
	}
	err := w.acquireCollection(ns)
	if err == nil {
		return nil
	}
	w.release()
	// The session is checked in while the command waits: before the critical section of a resharding ends, this shard adopts
	// the other shards' history of its sessions.
	return migration.WaitCritical(w.Op, err)
}

// waitCritical waits for the end of a critical section that a command has met after some of its writes. Its session is
// checked in meanwhile, too.
func (w *Command) waitCritical(err error) error {
	if w.session == nil || !migration.MeetsCritical(err) {
		return migration.WaitCritical(w.Op, err)
	}
	w.endRetry()
	w.session, w.endRetry = nil, nil
	err = migration.WaitCritical(w.Op, err)
	if again := w.startRetry(); again != nil {
		return again // the session has moved on
	}
	return err
}

func (w *Command) acquireCollection(ns string) error {
	unlock, err := w.lockDocuments(ns)
	if err != nil {
		return err
	}
	w.unlock = unlock
	if err = w.writer.checkVersions(w.Op, ns); err == nil {
		err = w.checkBlocked(ns)
	}
	if err == nil {
		err = namespace.CheckCollectionUUID(w.Op, w.writer.Engine.Catalog(), ns)
	}
	if err == nil {
		err = w.admits(ns)
	}
	if err == nil {
		err = w.acquireBuckets(ns)
	}
	if err == nil {
		w.acquired = ns
		w.invalidates(ns)
		return nil
	}
	w.unlockCollection()
	w.refused(ns)
	return err
}

// invalidates begins the invalidation of sessions if the command writes their records.
func (w *Command) invalidates(ns string) {
	switch {
	case ns != txn.TransactionsNS:
		w.records.End(w.Op)
		w.records = nil
	case w.records == nil:
		w.records = w.writer.Txns.Invalidate(w.Op)
	}
}

// locked takes locks for the command. If commits are stalled, their commands may hold locks until the set
// decides; therefore it waits no longer than the write concern allows.
func (w *Command) locked(take func(*lock.Locker) error) (unlock func(), err error) {
	limit := w.Concern.Timeout
	if limit > 0 {
		limit = max(limit, decidedSoon)
	}
	for ; ; limit *= 2 {
		l := w.writer.Locks.NewLocker()
		w.Op.Stats.Locks = l
		w.Op.ShowLocks(l)
		if limit > 0 {
			l.SetTimeout(limit)
		}
		err := take(l)
		if err == nil {
			return l.UnlockAll, nil
		}
		l.UnlockAll()
		switch {
		case mongoerr.CodeOf(err) != mongoerr.LockTimeout:
			return nil, err
		case w.writer.Engine.HeldUp(w.Concern.Timeout):
			return nil, ErrLocked
		}
	}
}

// LockDatabase locks a whole database exclusively, for a command that changes the catalog. Like LockVersioned it refuses a user's command if users have been blocked.
func (w *Command) LockDatabase(db string) (unlock func(), err error) {
	if unlock, err = w.locked(func(l *lock.Locker) error { return l.LockDatabase(w.Op, db, lock.X) }); err != nil {
		return nil, err
	}
	if err = w.writer.node.CheckBlocked(w.Op, db); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// CommittedAt records a commit of another operation that has the effect that the command requests.
func (w *Command) CommittedAt(ts storage.Timestamp) {
	w.last = ts
	w.Op.AdvanceOperationTime(uint64(ts))
}

// lastConcern returns the write concern that the command's last commit waits for. It does not include members beyond
// the majority: the command releases its collection and session before it waits for those (Finish).
func (w *Command) lastConcern() replication.WriteConcern {
	if w.Concern.BeyondMajority() {
		return replication.Visible
	}
	return w.Concern
}

// release undoes acquire. The session is informed of an undecided commit before the collection is unlocked: a
// migration of its chunks that begins then also transfers the session's history.
func (w *Command) release() {
	w.followDetached()
	w.unlockCollection()
	w.records.End(w.Op)
	if w.endRetry != nil {
		if n := len(w.retried); n > 0 {
			w.writer.Txns.Counters().Retried.Commands.Add(1)
			w.writer.Txns.Counters().Retried.Statements.Add(int64(n))
		}
		w.endRetry()
		w.session, w.endRetry = nil, nil
	}
}

func (w *Command) unlockCollection() {
	if w.unlock != nil {
		w.AfterCommit(w.unlock)
		w.unlock = nil
	}
}

func (w *Command) newUnit(s *storage.Snapshot) (u *storage.UnitOfWork) {
	if w.chain != nil {
		u = w.chain.NewUnitOfWork(s)
	} else {
		u = w.writer.Engine.NewUnitOfWork(s)
	}
	if w.Op.ForClient() {
		u.ForClient()
	}
	return u
}

// before returns the optime of the session's previous oplog entry, to which a retryable write's next entry
// refers; zero if it is unknown, as it is for a detached commit.
func (w *Command) before() storage.OpTime {
	if w.session == nil {
		return storage.NoOpTime
	}
	return w.session.LastEntry()
}

// noteKeys counts the index keys that a unit of the command has changed.
func (w *Command) noteKeys(inserted, deleted int64) {
	w.Op.Stats.KeysInserted += inserted
	w.Op.Stats.KeysDeleted += deleted
}

// locksSince tracks the locks that a statement has added to its transaction's.
type locksSince struct {
	l      *lock.Locker
	before lock.Stats
}

// Stats implements command.LockStats.
func (s *locksSince) Stats() lock.Stats { return s.l.Stats().Without(&s.before) }

// failRetryable implements the fail point onPrimaryTransactionalWrite: it fails a retryable write before its
// commit if it has an error code, and, unless disabled, closes the client's connection once the write has
// committed or failed.
func (w *Command) failRetryable() (hangUp func(), err error) {
	hangUp = func() {}
	data, on := w.writer.Points.Hit("onPrimaryTransactionalWrite")
	if !on {
		return hangUp, nil
	}
	if c := value.Lookup(data, "closeConnection"); (c.IsMissing() || c.Truthy()) && w.Op.Client.Close != nil {
		hangUp = w.Op.Client.Close
	}
	if code, ok := value.Lookup(data, "failBeforeCommitExceptionCode").AsInt64(); ok {
		err = mongoerr.New(mongoerr.Code(code), "Failing the write before its commit via 'onPrimaryTransactionalWrite' failpoint")
	}
	return hangUp, err
}

// Commit is commitRun for a unit that executes no statement of a retryable write.
func (w *Command) Commit(u *storage.UnitOfWork, wc replication.WriteConcern) error {
	return w.commitRun(u, wc, txn.NoRun)
}

// Retry runs a statement until it meets no write conflict, with a growing pause between attempts. It ends with the
// operation. After a detached commit it runs on top of that commit's writes, if possible. (It is not a method of
// txnContext because what f captures would escape to the heap.)
func (w *Command) Retry(f func() error) error {
	if err := w.mayFollow(); err != nil {
		return err
	}
	if w.Transaction() != nil {
		return f() // a conflict aborts the transaction
	}
	if w.Concern.Timeout == 0 {
		return retryConflicts(w.Op, f)
	}
	begun, limit := time.Now(), max(w.Concern.Timeout, decidedSoon)
	return retryConflicts(w.Op, func() error {
		err := f()
		if storage.ErrConflict(err) && w.writer.Engine.DetachedCommits() > 0 && time.Since(begun) > limit {
			return ErrBlocked
		}
		return err
	})
}

// decidedSoon is the least time that a statement waits for an undecided commit of the same documents, however short its wtimeout: if there is
// a majority, the commit is decided within it, and the client gets the reply that the real server gives: the statement was
// executed and its write concern timed out.
const decidedSoon = time.Second

func retryConflicts(op *command.Op, f func() error) error {
	pause := 100 * time.Microsecond
	for try := 0; ; try++ {
		err := f()
		if err == nil || !storage.ErrConflict(err) {
			return err
		}
		op.Conflicted()
		if err := op.CheckNow(); err != nil {
			return err
		}
		if try < 3 {
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-op.Done():
			timer.Stop()
			return op.Err()
		}
		if pause < 50*time.Millisecond {
			pause *= 2
		}
	}
}

// Target finds the collection that a write goes to. With create, a missing collection is created in the same unit; if another operation is faster, that is
// a conflict, after which the write finds the collection.
func (w *Command) Target(u *storage.UnitOfWork, s *catalog.Snapshot, ns string, create bool) (*catalog.Collection, error) {
	if c := s.Lookup(ns); c != nil {
		return c, nil
	}
	if v, err := namespace.ViewAt(w.writer.Engine, s, ns); err != nil {
		return nil, err
	} else if v != nil {
		return nil, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
	}
	if !create {
		return nil, nil
	}
	if err := namespace.CheckCreate(ns); err != nil {
		return nil, err
	}
	if err := namespace.RefuseBuckets(ns); err != nil {
		return nil, err
	}
	if err := MayCreate(w.Op, ns); err != nil {
		return nil, err
	}
	c, err := u.CreateCollection(storage.CollectionSpec{NS: ns, Unreplicated: catalog.Unreplicated(ns), Shared: true})
	if err == nil {
		w.AuditCreate(u, s, c)
	}
	return c, err
}

// MayCreate returns an error if a missing collection would be created for a request that considers it sharded: its UUID would
// differ from the sharding catalog's, and the written documents would never be read.
func MayCreate(op *command.Op, ns string) error {
	if op.Req.ShardVersion == nil {
		return nil
	}
	v, err := cluster.ParseChunkVersion(value.NewDocument(op.Req.ShardVersion))
	if err != nil || !v.IsSharded() {
		return err
	}
	return mongoerr.Newf(mongoerr.CannotImplicitlyCreateCollection, "request doesn't allow collection %s to be created implicitly", ns).
		WithDetails(value.Doc(value.F("ns", value.NewString(ns))))
}

// CheckWritable returns an error for namespaces that clients may not write.
func CheckWritable(op *command.Op, ns string) error {
	if ns == storage.OplogNS && op.Service.Clock != nil { // the members of sets have one
		return mongoerr.Newf(mongoerr.InvalidNamespace, "cannot write to %s", ns)
	}
	if strings.HasPrefix(catalog.CollOf(ns), "system.") {
		if err := namespace.CheckNew(ns); err != nil {
			return err
		}
	}
	return command.CheckClientWrite(op, ns)
}

// fail records a statement's error; stop reports whether the remaining statements of the command are skipped.
func (w *Command) fail(i int, err error, ordered bool) (stop bool) {
	e := mongoerr.From(err)
	w.errs = append(w.errs, writeError{i, e})
	return w.failed(e.Code) || ordered || isFatal(e.Code)
}

// isFatal reports whether an error ends the whole command instead of one statement.
func isFatal(c mongoerr.Code) bool {
	switch c {
	case mongoerr.Interrupted, mongoerr.InterruptedAtShutdown, mongoerr.MaxTimeMSExpired, mongoerr.ClientDisconnect,
		mongoerr.StaleConfig, mongoerr.StaleDbVersion, mongoerr.NotWritablePrimary, mongoerr.OutOfDiskSpace,
		mongoerr.WouldChangeOwningShard, mongoerr.CannotImplicitlyCreateCollection, mongoerr.IncompleteTransactionHistory:
		return true
	}
	return c.IsRetryableWrite() // the node is stepping down or stopping
}

// commandError returns the error of the whole command if the operation was stopped.
func (w *Command) commandError() error {
	for _, e := range w.errs {
		if e.err.Code.IsRetryableWrite() || w.Transaction() != nil && isFatal(e.err.Code) {
			return e.err
		}
		switch e.err.Code {
		case mongoerr.Interrupted, mongoerr.InterruptedAtShutdown, mongoerr.MaxTimeMSExpired, mongoerr.ClientDisconnect, mongoerr.NotWritablePrimary,
			mongoerr.IncompleteTransactionHistory, mongoerr.WriteConflict, mongoerr.SnapshotUnavailable, mongoerr.OperationNotSupportedInTransaction: // the last three in transactions only
			return e.err
		}
	}
	return nil
}

// appendWriteErrors writes the writeErrors array, if there are any.
func appendWriteErrors(dst []byte, errs []writeError) []byte {
	if len(errs) == 0 {
		return dst
	}
	dst, m := value.BeginKey(dst, value.Array, "writeErrors")
	for i, e := range errs {
		var dm int
		dst, dm = value.BeginKey(dst, value.Document, strconv.Itoa(i))
		dst = value.Append(dst, "index", value.NewInt32(int32(e.index)))
		dst = appendErrorFields(dst, e.err)
		dst = value.End(dst, dm)
	}
	return value.End(dst, m)
}

func appendErrorFields(dst []byte, e *mongoerr.Error) []byte {
	dst = value.Append(dst, "code", value.NewInt32(int32(e.Code)))
	if len(e.Details) > 5 {
		dst = append(dst, e.Details[4:len(e.Details)-1]...)
	}
	return value.Append(dst, "errmsg", value.NewString(e.Message))
}

var _ context.Context = (*command.Op)(nil)
