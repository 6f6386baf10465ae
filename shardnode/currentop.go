package shardnode

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/lock"
)

func (n *Node) currentOpSpecs() []command.Spec {
	cur := adminOnly("currentOp", n.runCurrentOp)
	cur.Lenient = true
	return []command.Spec{cur}
}

// runCurrentOp is $currentOp behind a filter: the command's other fields.
func (n *Node) runCurrentOp(op *command.Op, dst []byte) ([]byte, error) {
	filter, fm := value.Begin(nil)
	spec, sm := value.Begin(nil)
	first, all := true, false
	for k, v := range value.Elements(op.Req.Body) {
		switch {
		case first || k == "$truncateOps" || command.IsGeneric(k):
		case k == "$ownOps":
		case k == "$all":
			all = v.Truthy()
		default:
			filter = value.Append(filter, k, v)
		}
		first = false
	}
	spec = value.Append(spec, "idleConnections", value.NewBool(all))
	m, err := match.Compile(value.End(filter, fm), &match.Options{})
	if err != nil {
		return dst, err
	}
	dst, am := value.BeginKey(dst, value.Array, "inprog")
	i := 0
	for _, doc := range n.currentOps(op, value.End(spec, sm)) {
		ok, err := m.Match(doc)
		if err != nil {
			return dst, err
		}
		if ok {
			dst = value.AppendIndex(dst, i, value.NewDocument(doc))
			i++
		}
	}
	dst = value.End(dst, am)
	if n.admin.fsync.locked() {
		dst = value.Append(dst, "fsyncLock", value.NewBool(true))
		dst = value.Append(dst, "info", value.NewString("use db.fsyncUnlock() to terminate the fsync write/snapshot lock"))
	}
	return dst, nil
}

// currentOps describes the running operations, and the open cursors where spec asks for idle ones. Of a running operation
// only what does not change while it runs is read: its request and its client.
func (n *Node) currentOps(self *command.Op, spec []byte) [][]byte {
	now := n.now()
	out := command.DescribeOps(self, command.OpsView{Host: n.host(), Now: now, Locks: true, Cursor: n.appendBusyCursor,
		Truncate: value.Lookup(spec, "truncateOps").Truthy(), Idle: value.Lookup(spec, "idleConnections").Truthy()})
	if value.Lookup(spec, "idleCursors").Truthy() {
		out = append(out, n.idleCursors(now)...)
	}
	if idle := value.Lookup(spec, "idleSessions"); idle.IsMissing() || idle.Truthy() {
		out = append(out, n.idleSessions(now)...)
	}
	return out
}

// idleCursors describes the cursors that no request works on.
func (n *Node) idleCursors(now time.Time) (out [][]byte) {
	t := &n.cursors
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mu.byID {
		if c.pinned {
			continue
		}
		d, m := value.Begin(nil)
		d = value.Append(d, "type", value.NewString("idleCursor"))
		d = value.Append(d, "host", value.NewString(n.host()))
		d = value.Append(d, "ns", value.NewString(c.ns))
		if c.lsid != nil {
			d = value.Append(d, "lsid", value.NewDocument(c.lsid))
		}
		last := time.Unix(0, c.lastUse.Load())
		d = value.Append(d, "cursor", value.NewDocument(value.Doc(append([]value.Field{value.F("cursorId", value.NewInt64(c.id)),
			value.F("createdDate", value.NewTime(c.created)), value.F("lastAccessDate", value.NewTime(last)),
			value.F("nDocsReturned", value.NewInt64(c.returned)), value.F("nBatchesReturned", value.NewInt64(c.batches))}, c.options()...)...)))
		out = append(out, value.End(d, m))
	}
	return out
}

// idleSessions describes the open transactions that no command is at work in.
func (n *Node) idleSessions(now time.Time) (out [][]byte) {
	if n.txns.open.Load() == 0 {
		return nil
	}
	limit := time.Duration(n.Params.Int("transactionLifetimeLimitSeconds")) * time.Second
	n.retries.eachIdle(func(_ cluster.LogicalSessionID, s *retrySession) {
		t := s.txn
		if t == nil || t.state != txnOpen && t.state != txnPrepared {
			return
		}
		open := now.Sub(t.started)
		txn := []value.Field{
			value.F("parameters", value.NewDocument(value.Doc(value.F("txnNumber", value.NewInt64(t.number)), value.F("autocommit", value.NewBool(false)),
				value.F("readConcern", value.NewDocument(t.readConcern))))),
			value.F("readTimestamp", t.base.Timestamp().Value()), value.F("startWallClockTime", value.NewString(wallClock(t.started))),
			value.F("timeOpenMicros", value.NewInt64(open.Microseconds())), value.F("timeActiveMicros", value.NewInt64(t.active.Microseconds())),
			value.F("timeInactiveMicros", value.NewInt64((open - t.active).Microseconds())), value.F("expiryTime", value.NewString(wallClock(t.started.Add(limit)))),
		}
		if t.state == txnPrepared {
			txn = append(txn, value.F("prepareReadConflicts", value.NewInt64(0)))
		}
		out = append(out, value.Doc(value.F("type", value.NewString("idleSession")), value.F("host", value.NewString(n.host())),
			value.F("desc", value.NewString("inactive transaction")), value.F("client", value.NewString(t.client)), value.F("lsid", value.NewDocument(s.lsid)),
			value.F("transaction", value.NewDocument(value.Doc(txn...))), value.F("waitingForLock", value.NewBool(false)), value.F("active", value.NewBool(false)),
			value.F("locks", value.NewDocument(lockSummary(t.locks))), value.F("lockStats", value.NewDocument(value.Doc()))))
	})
	return out
}

// lockSummary is the strongest mode held of each kind of lock.
func lockSummary(l *lock.Locker) []byte {
	held, _ := l.Summary()
	var f []value.Field
	for _, k := range lock.Kinds() {
		if m := held[k]; m != lock.None {
			f = append(f, value.F(k.String(), value.NewString(m.Letter())))
		}
	}
	return value.Doc(f...)
}

func wallClock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// options are what does not change of a cursor.
func (c *cursor) options() []value.Field {
	return []value.Field{value.F("noCursorTimeout", value.NewBool(c.noTimeout)), value.F("tailable", value.NewBool(c.tailable)),
		value.F("awaitData", value.NewBool(c.awaitData)), value.F("originatingCommand", value.NewDocument(c.origin))}
}

// appendBusyCursor appends the cursor that a getMore works on: what another goroutine may read of it.
func (n *Node) appendBusyCursor(dst []byte, op *command.Op, id int64) []byte {
	t := &n.cursors
	t.mu.Lock()
	c := t.mu.byID[id]
	t.mu.Unlock()
	if c == nil {
		return dst
	}
	return value.Append(dst, "cursor", value.NewDocument(value.Doc(append([]value.Field{value.F("cursorId", value.NewInt64(c.id)),
		value.F("createdDate", value.NewTime(c.created)), value.F("operationUsingCursorId", value.NewInt64(int64(op.ID)))}, c.options()...)...)))
}
