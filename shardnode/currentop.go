package shardnode

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/txn"
)

func (n *Node) currentOpSpecs() []command.Spec {
	cur := command.AdminOnly("currentOp", n.runCurrentOp)
	cur.Lenient = true
	return []command.Spec{cur}
}

// runCurrentOp runs $currentOp with a filter: the command's other fields.
func (n *Node) runCurrentOp(op *command.Op, dst []byte) ([]byte, error) {
	dst, err := command.CurrentOp(op, dst, func(spec []byte) ([][]byte, error) { return n.currentOps(op, spec), nil })
	if err == nil && n.admin.fsync.locked() {
		dst = value.Append(dst, "fsyncLock", value.NewBool(true))
		dst = value.Append(dst, "info", value.NewString("use db.fsyncUnlock() to terminate the fsync write/snapshot lock"))
	}
	return dst, err
}

// currentOps describes the running operations, and open cursors and transactions if spec asks for idle ones.
func (n *Node) currentOps(self *command.Op, spec []byte) [][]byte {
	now := n.now()
	out := command.DescribeOps(self, command.OpsView{Host: n.host(), Now: now, Locks: true, Own: command.OwnOps(self, spec), Cursor: n.appendBusyCursor, Threads: n.Services.AtWork(),
		Truncate: value.Lookup(spec, "truncateOps").Truthy(), Idle: value.Lookup(spec, "idleConnections").Truthy()})
	if !command.OwnOps(self, spec) {
		out = append(out, n.txns.DescribeCommits(n.host())...)
	}
	shown := command.IdleShown(self, spec)
	if value.Lookup(spec, "idleCursors").Truthy() {
		out = append(out, n.idleCursors(shown)...)
	}
	if idle := value.Lookup(spec, "idleSessions"); idle.IsMissing() || idle.Truthy() {
		out = append(out, n.idleSessions(now, shown)...)
	}
	return out
}

// idleCursors describes the cursors that no request is using, of the owners for whom shown returns true.
func (n *Node) idleCursors(shown func(owner [32]byte) bool) (out [][]byte) {
	t := &n.cursors
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mu.byID {
		if c.pinned || !shown(c.owner.Served) {
			continue
		}
		out = append(out, command.IdleCursor(n.host(), c.ns, c.lsid, c.described()))
	}
	return out
}

// idleSessions describes the open transactions in which no command is running, of the owners for whom shown returns true.
func (n *Node) idleSessions(now time.Time, shown func(owner [32]byte) bool) (out [][]byte) {
	if n.txns.Counters().Open.Load() == 0 {
		return nil
	}
	n.txns.EachIdle(func(id cluster.LogicalSessionID, s *txn.Session) {
		t := s.Txn
		if t == nil || !shown(id.UID) || t.State != txn.Open && t.State != txn.Prepared {
			return
		}
		view := n.txns.Shown(t).Fields(now)
		if t.State == txn.Prepared {
			view = append(view, value.F("prepareReadConflicts", value.NewInt64(0)))
		}
		d, m := command.BeginIdleTxn(n.host(), t.By, s.LSID)
		d = value.Append(d, "transaction", value.NewDocument(value.Doc(view...)))
		d = value.Append(d, "waitingForLock", value.NewBool(false))
		d = value.Append(d, "active", value.NewBool(false))
		d = value.Append(d, "locks", value.NewDocument(command.LocksHeld(t.Locks)))
		d = value.Append(d, "lockStats", value.NewDocument(value.Doc()))
		d = value.Append(d, "waitingForFlowControl", value.NewBool(false))
		d = value.Append(d, "flowControlStats", value.NewDocument(value.Doc()))
		out = append(out, value.End(d, m))
	})
	return out
}

// described returns the description of a cursor, which others may read at any time.
func (c *cursor) described() []value.Field {
	return command.CursorView{ID: c.id, Created: c.created, Used: time.Unix(0, c.lastUse.Load()), Returned: c.returned.Load(), Batches: c.batches.Load(),
		NoTimeout: c.noTimeout, Tailable: c.tailable, AwaitData: c.awaitData, Origin: c.origin}.Fields()
}

// appendBusyCursor appends the cursor that a getMore is using.
func (n *Node) appendBusyCursor(dst []byte, op *command.Op, id int64) []byte {
	t := &n.cursors
	t.mu.Lock()
	c := t.mu.byID[id]
	t.mu.Unlock()
	if c == nil {
		return dst
	}
	f := c.described()
	if c.plan.summary != "" {
		f = append(f, value.F("planSummary", value.NewString(c.plan.summary)))
	}
	return value.Append(dst, "cursor", value.NewDocument(value.Doc(append(f, value.F("operationUsingCursorId", value.NewInt64(int64(op.ID))))...)))
}
