package shardnode

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/streams"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// docStream yields the documents of a command's cursor. A document is valid until the next call. Stop releases the
// store between batches.
type docStream interface {
	NextDoc(op *command.Op) (doc []byte, ok bool, err error)
	Stop()
	Close()
}

// cursorSession identifies a cursor's owner: the session in which it was opened (nil for none), the user, and the process of the cluster that opened it (zero for
// clients).
type cursorSession struct {
	lsid   []byte
	owner  command.CursorOwner
	opener [16]byte
}

// cursor is an open query between two getMores. While a request is using it, it is pinned and belongs to that request.
type cursor struct {
	id      int64
	during  func(ns string) string // the execution that errors of the first batch are attributed to
	ns      string
	stream  docStream
	work    *command.Work // tells the stream's stages when to stop
	query   *command.QueryRun
	snap    *storage.Snapshot
	at      storage.Timestamp // atClusterTime in replies, 0 for none
	pending []byte            // a document that did not fit the last batch
	cursorSession
	txn    *txn.Txn // the transaction that opened it, nil for none
	origin []byte   // the command that opened it, for currentOp and the log
	cursorUse
	noTimeout bool
	fixed     bool // it reads at one time (read concern snapshot), not the newest data at each batch
	tailable  bool
	awaitData bool
	plan      cursorPlan

	pinned bool // pinned and killed are guarded by the table's mutex
	killed bool
}

// cursorUse has the statistics of a cursor's use. currentOp reads the atomic ones.
type cursorUse struct {
	created  time.Time
	lastUse  atomic.Int64
	left     time.Duration // what remains of the command's maxTimeMS, which covers all batches; 0 if there is none
	returned atomic.Int64  // documents
	batches  atomic.Int64
}

// cursorPlan is the part of a cursor's plan that other goroutines may read.
type cursorPlan struct {
	summary string
	exec    command.ExecStats // nil if it was not requested when the cursor was opened
}

func (c *cursor) close() {
	c.stream.Close()
	if c.snap != nil {
		c.snap.Release()
		c.snap = nil
	}
	c.query.Close()
}

// cursorTable holds the open cursors of a node.
type cursorTable struct {
	mu struct {
		sync.Mutex
		byID map[int64]*cursor
	}
	command.CursorCounts
	away map[[16]byte]int // successive checks that found a process with cursors without a connection; used by expireLost alone
	feed *streams.Feed    // serves the change streams among them
}

func (t *cursorTable) init() { t.mu.byID = make(map[int64]*cursor) }

// add registers a cursor under an id that cannot be guessed.
func (t *cursorTable) add(c *cursor) int64 {
	c.created = time.Now()
	c.lastUse.Store(c.created.UnixNano())
	t.Opened.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var b [8]byte
		_, _ = rand.Read(b[:])
		id := int64(binary.LittleEndian.Uint64(b[:]) >> 1)
		if _, taken := t.mu.byID[id]; id != 0 && !taken {
			c.id = id
			t.mu.byID[id] = c
			return id
		}
	}
}

// pin takes a cursor for a request.
func (t *cursorTable) pin(id int64, ns string) (*cursor, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.byID[id]
	switch {
	case c == nil:
		return nil, mongoerr.Newf(mongoerr.CursorNotFound, "cursor id %d not found", id)
	case c.pinned:
		return nil, mongoerr.Newf(mongoerr.CursorInUse, "cursor id %d is already in use", id)
	case c.ns != ns:
		return nil, mongoerr.Newf(mongoerr.Unauthorized, "Requested getMore on namespace '%s', but cursor belongs to a different namespace %s", ns, c.ns)
	}
	c.pinned = true
	return c, nil
}

// unpin puts a cursor back. It returns false if the cursor was killed meanwhile; the cursor is closed then.
func (t *cursorTable) unpin(c *cursor) bool {
	c.lastUse.Store(time.Now().UnixNano())
	t.mu.Lock()
	c.pinned = false
	dead := c.killed
	t.mu.Unlock()
	if dead {
		c.close()
	}
	return !dead
}

// remove ends a pinned cursor.
func (t *cursorTable) remove(c *cursor) {
	t.mu.Lock()
	delete(t.mu.byID, c.id)
	t.mu.Unlock()
	t.Closed(time.Since(c.created))
	c.close()
}

// kill ends a cursor, or marks it to end if a request is using it.
func (t *cursorTable) kill(id int64) (found bool) {
	t.mu.Lock()
	c := t.mu.byID[id]
	if c == nil {
		t.mu.Unlock()
		return false
	}
	delete(t.mu.byID, id)
	t.Closed(time.Since(c.created))
	if c.pinned {
		c.killed = true
		t.mu.Unlock()
		return true
	}
	t.mu.Unlock()
	c.close()
	return true
}

// killWhere ends all cursors for which f returns true.
func (t *cursorTable) killWhere(f func(*cursor) bool) (n int) {
	var ids []int64
	t.mu.Lock()
	for id, c := range t.mu.byID {
		if f(c) {
			ids = append(ids, id)
		}
	}
	t.mu.Unlock()
	for _, id := range ids {
		if t.kill(id) {
			n++
		}
	}
	return n
}

// expire ends the cursors that have not been used for longer than the timeout.
func (t *cursorTable) expire(now time.Time, timeout time.Duration) {
	limit := now.Add(-timeout).UnixNano()
	n := t.killWhere(func(c *cursor) bool { return !c.pinned && !c.noTimeout && c.lastUse.Load() < limit })
	t.TimedOut.Add(int64(n))
}

// lostAfter is the number of successive checks, seconds apart, after which a process without a connection counts as lost: a minute in all. A live process
// always has a connection (txn.RouterLost).
const lostAfter = 15

// expireLost ends the cursors of lost processes. Only the router that opened a cursor knows it, so no client can continue it; but the range
// deleter would wait for it until its timeout or, with noCursorTimeout and outside of a session, forever.
func (t *cursorTable) expireLost(connected func(process [16]byte) bool) {
	openers := map[[16]byte]bool{}
	t.mu.Lock()
	for _, c := range t.mu.byID {
		if c.opener != [16]byte{} {
			openers[c.opener] = true
		}
	}
	t.mu.Unlock()
	away := map[[16]byte]int{}
	for p := range openers {
		if !connected(p) {
			away[p] = t.away[p] + 1
		}
	}
	t.away = away
	n := t.killWhere(func(c *cursor) bool { return !c.pinned && away[c.opener] >= lostAfter })
	t.TimedOut.Add(int64(n))
}

func (t *cursorTable) closeAll() { t.killWhere(func(*cursor) bool { return true }) }

// open counts the open and pinned cursors.
func (t *cursorTable) open() (total, pinned, noTimeout int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mu.byID {
		total++
		if c.noTimeout {
			noTimeout++
		}
		if c.pinned {
			pinned++
		}
	}
	return total, pinned, noTimeout
}

// maxBatchBytes is the maximum size of a batch: a reply stays below the message limit, and one document always
// fits.
const maxBatchBytes = command.MaxBSONSize

// fillBatch appends documents to an array that was begun at dst's end, until limit documents (< 0: no limit) or the size
// limit. done is true when the stream has ended; a document that did not fit is kept in c.
func (c *cursor) fillBatch(op *command.Op, dst []byte, limit int64) (out []byte, n int64, done bool, err error) {
	start := len(dst)
	if c.pending != nil && limit != 0 {
		dst = value.AppendIndex(dst, 0, value.NewDocument(c.pending))
		c.pending = nil
		n = 1
	}
	for limit < 0 || n < limit {
		doc, ok, err := c.stream.NextDoc(op)
		if err != nil {
			return dst, n, false, err
		}
		if !ok {
			return dst, n, true, nil
		}
		if err := command.CheckResultSize(doc); err != nil {
			return dst, n, false, err
		}
		if n > 0 && len(dst)-start+len(doc)+16 > maxBatchBytes {
			c.pending = append([]byte(nil), doc...)
			return dst, n, false, nil
		}
		dst = appendToBatch(dst, start, int(n), doc)
		n++
	}
	return dst, n, false, nil
}

// bigBatch is the size from which a reply's buffer grows in a few large steps: append's small steps would
// copy a batch of 16 MB five times.
const bigBatch = 256 << 10

// appendToBatch appends the i-th document to a batch that begins at start.
func appendToBatch(dst []byte, start, i int, doc []byte) []byte {
	if need := len(dst) + len(doc) + 16; need > cap(dst) && need > bigBatch {
		dst = growBatch(dst, start, need)
	} else if i == 0 && need > cap(dst) {
		dst = slices.Grow(dst, need-len(dst)+replyTail)
	}
	return value.AppendIndex(dst, i, value.NewDocument(doc))
}

// replyTail is about the size of what a reply has after its batch: a reply of one document grows once.
const replyTail = 320

func growBatch(dst []byte, start, need int) []byte {
	size := max(need, min(4*cap(dst), start+maxBatchBytes+64<<10))
	return append(make([]byte, 0, size), dst...)
}

// beginCursor appends the beginning of {cursor: {firstBatch: […; endCursor closes it.
func beginCursor(dst []byte, batch string) (out []byte, cm, bm int) {
	dst, cm = value.BeginKey(dst, value.Document, "cursor")
	dst, bm = value.BeginKey(dst, value.Array, batch)
	return dst, cm, bm
}

func endCursor(dst []byte, cm, bm int, id int64, ns string, at storage.Timestamp, after []byte) []byte {
	dst = value.End(dst, bm)
	if after != nil {
		dst = value.Append(dst, "postBatchResumeToken", value.NewDocument(after))
	}
	if at != 0 {
		dst = value.Append(dst, "atClusterTime", at.Value())
	}
	dst = value.Append(dst, "id", value.NewInt64(id))
	dst = append(dst, byte(value.String))
	dst = append(dst, "ns\x00"...)
	dst = value.AppendPayload(dst, value.NewString(ns))
	return value.End(dst, cm)
}

// firstBatch writes the first reply of a cursor. If single is set, the cursor is closed after this batch even if documents remain.
func (n *Node) firstBatch(op *command.Op, dst []byte, c *cursor, size int64, single bool) ([]byte, error) {
	dst, cm, bm := beginCursor(dst, "firstBatch")
	dst, count, done, err := c.fillBatch(op, dst, size)
	if err != nil {
		c.close()
		if c.during != nil {
			err = exec.During(c.during(c.ns), err)
		}
		return dst, err
	}
	op.Stats.NReturned = count
	c.returned.Store(count)
	c.batches.Store(1)
	c.at = snapshotTime(op, c.snap)
	after := postBatch(c)
	var id int64
	if (done && !c.staysOpen(count)) || single {
		op.Stats.CursorExhausted = done
		c.close()
	} else {
		c.fixed, c.txn = readsMoment(op), txn.Of(op)
		c.stream.Stop()
		if c.snap != nil {
			c.snap.Save()
		}
		if op.Req.LSID != nil {
			c.lsid = append([]byte(nil), op.Req.LSID...)
		}
		c.owner = op.CursorOwner()
		c.opener = op.Client.Process()
		c.origin, c.plan = append([]byte(nil), op.Req.Body...), cursorPlan{op.Stats.PlanSummary, op.Stats.Exec}
		n.profiler.Freeze(op)
		c.work, c.query = op.Work(), op.HoldQuery()
		if end, ok := op.Deadline(); ok && !c.awaitData {
			c.left = max(time.Until(end), 1)
		}
		id = n.cursors.add(c)
		op.Stats.CursorID = id
	}
	return endCursor(dst, cm, bm, id, c.ns, c.at, after), nil
}

// runGetMore continues a cursor.
func (n *Node) runGetMore(op *command.Op, dst []byte) ([]byte, error) {
	g, err := command.ParseGetMore(op)
	if err != nil {
		return dst, err
	}
	c, err := n.cursors.pin(g.Cursor, g.NS)
	if err != nil {
		return dst, err
	}
	if err := c.accepts(op); err != nil {
		n.cursors.unpin(c)
		return dst, err
	}
	op.Stats.NS, op.Stats.CursorID, op.Stats.Origin = c.ns, c.id, c.origin
	op.ResumeQuery(c.query)
	if data, on := n.Points.Hit("failGetMoreAfterCursorCheckout"); on {
		n.cursors.remove(c)
		code, _ := value.Lookup(data, "errorCode").AsInt64()
		return dst, c.labelled(mongoerr.New(mongoerr.Code(code), "Failing getMore via 'failGetMoreAfterCursorCheckout' failpoint"))
	}
	if !c.tailable || !c.awaitData {
		return n.nextBatch(op, dst, c, g.Size)
	}
	owner := c.owner // the cursor may be closed when the getMore has ended
	return op.WhileAllowed(c.id, &owner, c.origin, dst, func(dst []byte) ([]byte, error) { return n.nextBatch(op, dst, c, g.Size) })
}

func (n *Node) nextBatch(op *command.Op, dst []byte, c *cursor, size int64) ([]byte, error) {
	op.Resume(c.work)
	op.Stats.Exec = c.plan.exec
	if c.plan.summary != "" {
		op.UsePlan(&c.plan.summary)
	}
	if c.left > 0 {
		op.SetDeadline(op.Start.Add(c.left))
	}
	if err := n.refresh(op, c); err != nil {
		n.cursors.remove(c)
		return dst, c.labelled(err)
	}
	dst, cm, bm := beginCursor(dst, "nextBatch")
	dst, count, done, err := c.more(n, op, dst, size)
	if err != nil {
		n.cursors.remove(c)
		return dst, c.labelled(exec.During(duringGetMore, err))
	}
	op.Stats.NReturned = count
	c.returned.Add(count)
	if c.batches.Add(1) == 2 {
		n.cursors.MoreThanOneBatch.Add(1)
	}
	if c.left > 0 {
		c.left = max(c.left-time.Since(op.Start), 1)
	}
	id := c.id
	after := postBatch(c)
	if c.over(done) {
		op.Stats.CursorExhausted = true
		n.cursors.remove(c)
		id = 0
	} else {
		c.stream.Stop()
		if c.snap != nil {
			c.snap.Save()
		}
		n.profiler.Freeze(op)
		if !n.cursors.unpin(c) {
			return dst, mongoerr.New(mongoerr.CursorKilled, "cursor was killed")
		}
	}
	return endCursor(dst, cm, bm, id, c.ns, c.at, after), nil
}

// more appends the documents of a getMore's batch.
func (c *cursor) more(n *Node, op *command.Op, dst []byte, size int64) (out []byte, count int64, done bool, err error) {
	if e, ok := c.stream.(*eventStream); ok {
		return e.more(op, dst, c, size)
	}
	dst, count, done, err = c.fillBatch(op, dst, size)
	if err == nil && c.tailable && count == 0 && done && c.awaitData {
		return n.awaitMore(op, dst, c, size)
	}
	return dst, count, done, err
}

// runKillCursors ends cursors by id.
func (n *Node) runKillCursors(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	op.Stats.NS, op.Stats.Type = op.Req.NS(coll), "command"
	return command.KillCursors(op, n.cursors.owner, n.cursors.kill, dst)
}

// owner returns the digest of the user who opened a cursor.
func (t *cursorTable) owner(id int64) (of [32]byte, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.mu.byID[id]
	if c == nil {
		return of, false
	}
	return c.owner.Digest, true
}

// over reports whether a cursor is closed after the batch that reached the end of its documents.
func (c *cursor) over(done bool) bool {
	if e, ok := c.stream.(*eventStream); ok {
		return done && e.stream.Ended()
	}
	return done && !c.tailable
}

// staysOpen reports whether a cursor remains open at its end: a tailable one does, unless it began on an
// empty collection.
func (c *cursor) staysOpen(count int64) bool {
	if !c.tailable {
		return false
	}
	if e, ok := c.stream.(*eventStream); ok {
		return !e.stream.Ended()
	}
	if qs, ok := c.stream.(*exec.Stream); ok && count == 0 {
		coll := qs.Collection()
		return coll != nil && (coll.Oplog || coll.Counters.Records.Load() > 0)
	}
	return true
}

// readsMoment reports whether an operation's cursor keeps reading at the time at which it was opened.
func readsMoment(op *command.Op) bool {
	if txn.Of(op) != nil {
		return true
	}
	return op.Req.ReadConcern.Is("snapshot")
}

// accepts checks that a getMore may continue the cursor: its transaction, user and session must be the cursor's, and
// only awaitData cursors accept a time limit.
func (c *cursor) accepts(op *command.Op) error {
	if v := value.Lookup(op.Req.Body, "maxTimeMS"); v.T.Numeric() && !(c.tailable && c.awaitData) {
		return mongoerr.New(mongoerr.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
	}
	switch t := txn.Of(op); {
	case c.txn != nil && t == nil:
		return mongoerr.Newf(50740, "Cannot run getMore on cursor %d, which was created in transaction %d, without a txnNumber", c.id, c.txn.Number)
	case c.txn == nil && t != nil:
		return mongoerr.Newf(50739, "Cannot run getMore on cursor %d, which was not created in a transaction, in transaction %d", c.id, t.Number)
	case c.txn != t:
		return mongoerr.Newf(50741, "Cannot run getMore on cursor %d, which was created in transaction %d, in transaction %d", c.id, c.txn.Number, t.Number)
	}
	if op.Client.InProcess || op.Client.Internal {
		return nil
	}
	if err := op.CheckCursor(c.id, &c.owner, c.origin); err != nil {
		return err
	}
	switch {
	case c.lsid == nil && op.Req.LSID != nil:
		return mongoerr.Newf(50737, "Cannot run getMore on cursor %d, which was not created in a session, in session %s", c.id, value.ShowDoc(op.Req.LSID))
	case c.lsid != nil && op.Req.LSID == nil:
		return mongoerr.Newf(50736, "Cannot run getMore on cursor %d, which was created in session %s, without an lsid", c.id, value.ShowDoc(c.lsid))
	case c.lsid != nil && value.Compare(value.Lookup(c.lsid, "id"), value.Lookup(op.Req.LSID, "id")) != 0:
		return mongoerr.Newf(50738, "Cannot run getMore on cursor %d, which was created in session %s, in session %s", c.id, value.ShowDoc(c.lsid), value.ShowDoc(op.Req.LSID))
	}
	return nil
}
