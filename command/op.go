package command

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Op is one running operation: its request, its deadline, and the means to kill it. It is a context.Context, so that
// it can be passed to anything that waits; its Done channel is made only when it is needed, which it never is for
// point operations.
type Op struct {
	Req     Request
	Service *Service
	Client  *Client
	ID      int32
	Start   time.Time
	Stats   Stats
	// Txn is the transaction that the operation runs in, of the role's own type; nil for none.
	Txn    any
	endTxn func(err error)
	// Query is the query that the operation is a part of, nil if no statistics are kept for it.
	Query *QueryRun

	behalf
	deadline time.Time
	killed   atomic.Int32 // the error code it was killed with
	ticks    uint32
	ran      bool // its handler was called: nothing has refused it before

	opReply

	work *Work // nil until Work or Resume

	mu struct {
		sync.Mutex
		done  chan struct{}
		stop  []func() bool
		timer *time.Timer
		shown
	}
	slot *opShard
	prev *Op
	next *Op
}

// behalf describes on whose behalf an operation runs, and the oplog entry on whose behalf it runs others.
type behalf struct {
	parent   context.Context
	parentOp *Op
	// EntryUUID is the "ui" field of the oplog entry that the operation is applying as a command; nil for none.
	EntryUUID *[16]byte
}

// shown has what currentOp shows about a running operation in addition to its request.
type shown struct {
	plan      *string
	locks     *lock.Locker
	awaits    bool // those who hold locks that it needs, without asking for the locks
	txn       func(now time.Time) []byte
	conflicts int64
}

// UsePlan records the plan that the operation runs, as the log, the profiler and currentOp summarize it.
func (op *Op) UsePlan(summary *string) {
	op.Stats.PlanSummary = *summary
	op.mu.Lock()
	op.mu.plan = summary
	op.mu.Unlock()
}

// Conflicted counts a write conflict after which the operation tries again.
func (op *Op) Conflicted() {
	op.Stats.Conflicts++
	op.mu.Lock()
	op.mu.conflicts++
	op.mu.Unlock()
}

// ShowTxn makes currentOp show the operation's transaction as describe returns it, which may be called from any goroutine.
func (op *Op) ShowTxn(describe func(now time.Time) []byte) {
	op.mu.Lock()
	op.mu.txn = describe
	op.mu.Unlock()
}

// ShowLocks implements lock.Holder.
func (op *Op) ShowLocks(l *lock.Locker) {
	op.mu.Lock()
	op.mu.locks = l
	op.mu.Unlock()
}

// HideLocks implements lock.Holder.
func (op *Op) HideLocks(l *lock.Locker) {
	op.mu.Lock()
	if op.mu.locks == l {
		op.mu.locks = nil
	}
	op.mu.Unlock()
}

// ShowAwaitsLocks makes currentOp show that the operation waits for locks, until end is called, although it has not asked for them yet.
func (op *Op) ShowAwaitsLocks() (end func()) {
	set := func(awaits bool) {
		op.mu.Lock()
		op.mu.awaits = awaits
		op.mu.Unlock()
	}
	set(true)
	return func() { set(false) }
}

// opReply holds what the pipeline adds to the reply of a handler.
type opReply struct {
	opTime atomic.Uint64 // the operationTime to report
	labels []string
	// IntOK makes the reply's ok an int, as in replies that the real server builds from another command's.
	IntOK     bool
	points    *cluster.FailPoints // the node's, nil for none
	failPoint bool
	// fixedLabels means that a fail point set the labels itself.
	fixedLabels bool
	wcError     *mongoerr.Error
	wcDoc       []byte // a writeConcernError requested by a fail point
	topLevel    []byte // elements that other layers add to the reply
}

// Stats has the statistics of an operation that the slow-operation log, the profiler and currentOp show.
type Stats struct {
	NS           string
	Type         string
	PlanSummary  string
	KeysExamined int64
	DocsExamined int64
	NReturned    int64
	WriteStats
	CursorStats
	HasSortStage bool
	UsedDisk     bool   // something exceeded its memory limit and was written to a file
	CollType     string // the kind of what a query reads: "collection", "view", "timeseries", "nonExistent"
	// FromMultiPlanner is set if several plans took part in a trial, and FromPlanCache if the plan came from the plan
	// cache; ReplanReason is the reason for which such a plan was abandoned.
	FromMultiPlanner, FromPlanCache bool
	ReplanReason                    string
	Plan                            PlanKeys  // nil if nothing was planned
	Exec                            ExecStats // of the plan that ran; nil if not wanted
	ScanStats
	ReplyLen int
	Origin   []byte // of a getMore: the command that opened its cursor
}

// ScanStats counts an operation's scans of collections, and names the indexes that it has used.
type ScanStats struct {
	CollScans, TailScans int64           // scans of whole collections, and those of them by tailable cursors on capped collections
	IndexesUsed          map[string]bool // names of indexes, if explain has set a map
}

// WriteStats counts what an operation has written, and the locks it has held.
type WriteStats struct {
	NMatched, NModified, NInserted, NDeleted int64
	KeysInserted, KeysDeleted                int64 // index keys
	Conflicts                                int64
	Locks                                    LockStats // nil for an operation that takes none
}

// LockStats counts an operation's locks.
type LockStats interface{ Stats() lock.Stats }

// FrozenLocks are final counts.
type FrozenLocks lock.Stats

// Stats implements LockStats.
func (f *FrozenLocks) Stats() lock.Stats { return lock.Stats(*f) }

// ExecStats are the execution statistics of each stage of a plan.
type ExecStats interface{ AppendExecStats(dst []byte) []byte }

// CursorStats are the statistics of the cursor that an operation opened or continued.
type CursorStats struct {
	CursorID        int64         // 0 if no cursor remains
	CursorExhausted bool          // the operation returned the last of its documents
	Awaited         time.Duration // how long a getMore waited for something to return
}

// PlanKeys returns the keys of a plan: the hash of its shape, and that of the shape with the existing indexes.
type PlanKeys interface {
	PlanKeys() (shape, key string)
}

// DB returns the database the command was sent to.
func (op *Op) DB() string { return op.Req.DB }

// AppliedUUID returns the UUID that an oplog entry names, if the operation is the command of that entry.
func (op *Op) AppliedUUID() *[16]byte {
	if op.parentOp == nil {
		return nil
	}
	return op.parentOp.EntryUUID
}

// Arg returns the request's argument of that name.
func (op *Op) Arg(name string) value.Value { return op.Req.Arg(name) }

// Check reports whether the operation has to stop: killed, past its deadline, or its client gone. It is cheap
// enough to be called for each document.
func (op *Op) Check() error {
	if k := op.killed.Load(); k != 0 {
		return op.killError(mongoerr.Code(k))
	}
	if op.ticks++; op.ticks&63 != 0 {
		return nil
	}
	return op.CheckNow()
}

// CheckNow is Check that reads the clock every time.
func (op *Op) CheckNow() error {
	if k := op.killed.Load(); k != 0 {
		return op.killError(mongoerr.Code(k))
	}
	if !op.deadline.IsZero() && !time.Now().Before(op.deadline) {
		return op.killError(mongoerr.MaxTimeMSExpired)
	}
	if op.parentOp != nil {
		return op.parentOp.CheckNow()
	}
	if op.parent != nil {
		if err := op.parent.Err(); err != nil {
			return contextError(err)
		}
	}
	if op.Client != nil && op.Client.gone.Load() && op.endsWithClient() {
		return op.killError(mongoerr.ClientDisconnect)
	}
	return nil
}

func contextError(err error) error {
	if err == context.DeadlineExceeded {
		return mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit")
	}
	if e, ok := err.(*mongoerr.Error); ok {
		return e
	}
	return mongoerr.New(mongoerr.Interrupted, "operation was interrupted")
}

func (op *Op) killError(c mongoerr.Code) error {
	switch c {
	case mongoerr.MaxTimeMSExpired:
		return mongoerr.New(c, "operation exceeded time limit")
	case mongoerr.ClientDisconnect:
		return mongoerr.New(c, "operation was interrupted because a client disconnected")
	case mongoerr.InterruptedAtShutdown:
		return mongoerr.New(c, "interrupted at shutdown")
	case mongoerr.CursorKilled:
		return mongoerr.New(c, "cursor was killed")
	}
	return mongoerr.New(c, "operation was interrupted")
}

// Kill makes the operation stop at its next check with that code.
func (op *Op) Kill(c mongoerr.Code) {
	if op.killed.CompareAndSwap(0, int32(c)) {
		op.mu.Lock()
		if op.mu.done != nil {
			closeOnce(op.mu.done)
		}
		op.mu.Unlock()
	}
}

func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// Deadline implements context.Context.
func (op *Op) Deadline() (time.Time, bool) {
	if !op.deadline.IsZero() {
		return op.deadline, true
	}
	if op.parent != nil {
		return op.parent.Deadline()
	}
	return time.Time{}, false
}

// SetDeadline replaces the operation's deadline (a cursor's remaining maxTimeMS).
func (op *Op) SetDeadline(t time.Time) {
	if op.deadline.IsZero() || t.Before(op.deadline) {
		op.deadline = t
		op.timePoints()
	}
}

// timePoints applies the fail points that replace the clock of an operation with a deadline.
func (op *Op) timePoints() {
	if _, on := op.points.Hit("maxTimeNeverTimeOut"); on {
		op.deadline = time.Time{}
	} else if _, on := op.points.Hit("maxTimeAlwaysTimeOut"); on {
		op.Kill(mongoerr.MaxTimeMSExpired)
	}
}

// endsWithClient reports whether the operation is killed when its client disconnects. A write continues, as in the real server: a client
// that has lost its connection finds all of a command done when it retries it.
func (op *Op) endsWithClient() bool {
	if op.Req.Spec == nil {
		return true
	}
	switch s := op.Req.Spec; {
	case s.Kind == Write || s.Kind == DDL:
		return false
	case s.Name == "aggregate":
		pipeline, last := op.Req.Shared("pipeline"), ""
		if pipeline.T != value.Array {
			return true
		}
		for _, stage := range value.Elements(pipeline.Doc()) {
			if last = ""; stage.T == value.Document {
				for name := range value.Elements(stage.Doc()) {
					last = name
				}
			}
		}
		return last != "$out" && last != "$merge"
	case s.Name == "mapReduce":
		out := op.Req.Shared("out")
		return out.T == value.Document && !value.Lookup(out.Doc(), "inline").IsMissing()
	}
	return true
}

// Done implements context.Context.
func (op *Op) Done() <-chan struct{} {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.mu.done != nil {
		return op.mu.done
	}
	done := make(chan struct{})
	op.mu.done = done
	finish := func() {
		op.mu.Lock()
		closeOnce(done)
		op.mu.Unlock()
	}
	if op.killed.Load() != 0 {
		close(done)
		return done
	}
	if !op.deadline.IsZero() {
		op.mu.timer = time.AfterFunc(time.Until(op.deadline), func() {
			op.killed.CompareAndSwap(0, int32(mongoerr.MaxTimeMSExpired))
			finish()
		})
	}
	if op.parent != nil {
		op.mu.stop = append(op.mu.stop, context.AfterFunc(op.parent, finish))
	} else if op.Client != nil && op.endsWithClient() {
		if cl := op.Client.Context(); cl != nil {
			op.mu.stop = append(op.mu.stop, context.AfterFunc(cl, func() {
				op.killed.CompareAndSwap(0, int32(mongoerr.ClientDisconnect))
				finish()
			}))
		}
	}
	return done
}

// Err implements context.Context; the error is the one that a client would see. Once Done is closed it is never
// nil, on which derived contexts rely: an operation that has ended counts as interrupted.
func (op *Op) Err() error {
	if err := op.CheckNow(); err != nil {
		return err
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.mu.done == nil {
		return nil
	}
	select {
	case <-op.mu.done:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context.
func (op *Op) Value(key any) any {
	switch key {
	case opKey:
		return op
	case cluster.ServedUser:
		if served := op.forOthers(op.servedUser()); served != nil {
			return served
		}
		return nil
	case cluster.BypassesWriteBlock:
		return op.BypassesWriteBlock()
	case cluster.MayQueue:
		if c := op.Client; c != nil && !c.InProcess && !c.Internal && !op.InTransaction() {
			return true
		}
		return nil
	}
	if op.parent != nil {
		return op.parent.Value(key)
	}
	return nil
}

type ctxKey struct{}

var opKey ctxKey

const interrupted = mongoerr.Interrupted

// FromContext finds the operation that ctx is or descends from; nil if there is none.
func FromContext(ctx context.Context) *Op {
	if op, ok := ctx.(*Op); ok {
		return op
	}
	op, _ := ctx.Value(opKey).(*Op)
	return op
}

// CheckResultSize refuses a document that is too large for a cursor to return.
func CheckResultSize(doc []byte) error {
	if len(doc) > wire.MaxInternalDocument {
		return mongoerr.Newf(mongoerr.BSONObjectTooLarge, "BSONObj size: %d (0x%X) is invalid. Size must be between 0 and %d(16MB)",
			len(doc), len(doc), wire.MaxInternalDocument)
	}
	return nil
}

// Work represents the successive operations on one cursor: code that computes for the cursor checks here whether
// the current operation has to stop.
type Work struct{ op atomic.Pointer[Op] }

// Check is CheckNow of the current operation; between two operations there is nothing to stop.
func (w *Work) Check() error {
	if op := w.op.Load(); op != nil {
		return op.CheckNow()
	}
	return nil
}

// UsedDisk records that the current operation has written something to a file.
func (w *Work) UsedDisk() {
	if op := w.op.Load(); op != nil {
		op.Stats.UsedDisk = true
	}
}

// Work returns the operation's Work, whose current operation it is from now until it ends.
func (op *Op) Work() *Work {
	if op.work == nil {
		op.Resume(new(Work))
	}
	return op.work
}

// Resume makes the operation continue the Work of an earlier one.
func (op *Op) Resume(w *Work) {
	if w != nil {
		op.work = w
		w.op.Store(op)
	}
}

// release ends what Done started.
func (op *Op) release() {
	if op.work != nil {
		op.work.op.CompareAndSwap(op, nil)
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.mu.timer != nil {
		op.mu.timer.Stop()
	}
	for _, f := range op.mu.stop {
		f()
	}
	if op.mu.done != nil {
		closeOnce(op.mu.done)
	}
}

// AdvanceOperationTime records the time of the operation's latest effect; it is reported as operationTime, and to the
// operation that called this one.
func (op *Op) AdvanceOperationTime(ts uint64) {
	for {
		old := op.opTime.Load()
		if ts <= old {
			break
		}
		if op.opTime.CompareAndSwap(old, ts) {
			break
		}
	}
	if op.parentOp != nil {
		op.parentOp.AdvanceOperationTime(ts)
	}
}

// OperationTime returns the time recorded by AdvanceOperationTime, 0 for none.
func (op *Op) OperationTime() uint64 { return op.opTime.Load() }

// AddLabel adds an error label to an error reply of this operation.
func (op *Op) AddLabel(l string) { op.labels = append(op.labels, l) }

// SetWriteConcernError makes the reply carry a writeConcernError; the command itself succeeded. If the error does
// not say which write concern was not met, errInfo does.
func (op *Op) SetWriteConcernError(e *mongoerr.Error) {
	if op.wcError = e; e == nil || e.Details != nil || op.Service != nil && op.Service.Role == Router {
		return
	}
	wc := op.Req.AskedConcern()
	info := []value.Field{value.F("writeConcern", value.NewDocument(wc.doc()))}
	if e.Code == mongoerr.WriteConcernTimeout {
		info = append([]value.Field{value.F("wtimeout", value.NewBool(true))}, info...)
	}
	op.wcError = e.WithDetails(value.Doc(value.F("errInfo", value.NewDocument(value.Doc(info...)))))
}

// WriteConcernError returns what SetWriteConcernError set, nil for none.
func (op *Op) WriteConcernError() *mongoerr.Error { return op.wcError }

// FailPoint reports whether the operation's error comes from a fail point.
func (op *Op) FailPoint() bool { return op.failPoint }

// Elapsed returns the time since the operation began.
func (op *Op) Elapsed() time.Duration { return time.Since(op.Start) }

// Worked is Elapsed without the time for which a getMore merely waited for documents or events. It determines whether an
// operation is slow. Only the operation itself may call it.
func (op *Op) Worked() time.Duration { return op.Elapsed() - op.Stats.Awaited }

// Await calls wait, whose time does not count as the operation's work.
func (op *Op) Await(wait func() error) error {
	from := time.Now()
	defer func() { op.Stats.Awaited += time.Since(from) }()
	return wait()
}

// opShard is a part of the table of running operations.
type opShard struct {
	sync.Mutex
	head *Op
	_    [40]byte
}

const opShards = 64

type opTable struct {
	next   atomic.Int32
	shards [opShards]opShard
	tasks  struct {
		sync.Mutex
		describe []func(now time.Time) [][]value.Field
	}
}

func (t *opTable) add(op *Op) {
	op.ID = t.next.Add(1)
	s := &t.shards[uint32(op.ID)%opShards]
	op.slot = s
	s.Lock()
	op.next = s.head
	op.prev = nil
	if s.head != nil {
		s.head.prev = op
	}
	s.head = op
	s.Unlock()
}

// remove removes an operation; one that ended before it was added is in no shard.
func (t *opTable) remove(op *Op) {
	s := op.slot
	if s == nil {
		return
	}
	s.Lock()
	if op.prev != nil {
		op.prev.next = op.next
	} else {
		s.head = op.next
	}
	if op.next != nil {
		op.next.prev = op.prev
	}
	s.Unlock()
}

// each calls f with every running operation, holding its shard's lock: f must not block.
func (t *opTable) each(f func(*Op)) {
	for i := range t.shards {
		s := &t.shards[i]
		s.Lock()
		for op := s.head; op != nil; op = op.next {
			f(op)
		}
		s.Unlock()
	}
}

// BoolOr returns the request's flag of that name, def if it was not sent.
func (op *Op) BoolOr(name string, def bool) bool { return op.Req.BoolOr(name, def) }

// Background returns an operation for the node's background work. It ends with ctx.
func (s *Service) Background(ctx context.Context, c *Client) *Op {
	op := &Op{Service: s, Client: c, Start: time.Now(), behalf: behalf{parent: ctx}}
	op.Req.Spec = &Spec{Name: "background", Kind: Write}
	return op
}
