package shardnode

import (
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
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
	var out [][]byte
	now := n.now()
	n.Service.EachOp(func(op *command.Op) {
		if op.Client.InProcess && op != self {
			return
		}
		out = append(out, n.describeOp(op, now))
	})
	if value.Lookup(spec, "idleCursors").Truthy() {
		out = append(out, n.idleCursors(now)...)
	}
	return out
}

func (n *Node) describeOp(op *command.Op, now time.Time) []byte {
	body := op.Req.Body
	name, ns := requestTarget(body)
	d, m := value.Begin(nil)
	d = value.Append(d, "type", value.NewString("op"))
	d = value.Append(d, "host", value.NewString(n.host()))
	d = value.Append(d, "desc", value.NewString("conn"+itoa(int(op.Client.ID))))
	d = value.Append(d, "connectionId", value.NewInt64(op.Client.ID))
	d = value.Append(d, "client", value.NewString(op.Client.Remote))
	if meta, app := op.Client.Metadata(); meta != nil {
		if app != "" {
			d = value.Append(d, "appName", value.NewString(app))
		}
		d = value.Append(d, "clientMetadata", value.NewDocument(meta))
	}
	d = value.Append(d, "active", value.NewBool(true))
	d = value.Append(d, "currentOpTime", value.NewString(now.Format("2006-01-02T15:04:05.000-07:00")))
	d = value.Append(d, "effectiveUsers", value.NewArray(value.ArrayOf()))
	d = value.Append(d, "threaded", value.NewBool(true))
	d = value.Append(d, "opid", value.NewInt32(op.ID))
	if lsid := value.Lookup(body, "lsid"); lsid.T == value.Document {
		d = value.Append(d, "lsid", lsid)
	}
	run := now.Sub(op.Start)
	d = value.Append(d, "secs_running", value.NewInt64(int64(run.Seconds())))
	d = value.Append(d, "microsecs_running", value.NewInt64(run.Microseconds()))
	d = value.Append(d, "op", value.NewString(opKind(name)))
	d = value.Append(d, "ns", value.NewString(ns))
	d = value.Append(d, "redacted", value.NewBool(false))
	d = value.Append(d, "command", value.NewDocument(commandOf(body)))
	d = value.Append(d, "numYields", value.NewInt32(0))
	d = value.Append(d, "locks", value.NewDocument(value.Doc()))
	d = value.Append(d, "waitingForLock", value.NewBool(false))
	d = value.Append(d, "lockStats", value.NewDocument(value.Doc()))
	d = value.Append(d, "waitingForFlowControl", value.NewBool(false))
	d = value.Append(d, "flowControlStats", value.NewDocument(value.Doc()))
	return value.End(d, m)
}

// requestTarget reads the command's name and namespace off a request.
func requestTarget(body []byte) (name, ns string) {
	it := value.Walk(body)
	k, v, ok := it.Next()
	if !ok {
		return "", ""
	}
	name = string(k)
	db := value.Lookup(body, "$db").Str()
	switch {
	case name == "getMore":
		return name, db + "." + value.Lookup(body, "collection").Str()
	case v.T == value.String && v.Str() != "":
		return name, db + "." + v.Str()
	case name == "aggregate":
		return name, db + ".$cmd.aggregate"
	}
	return name, db + ".$cmd"
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
		d = value.Append(d, "cursor", value.NewDocument(value.Doc(
			value.F("cursorId", value.NewInt64(c.id)), value.F("createdDate", value.NewTime(c.created)), value.F("lastAccessDate", value.NewTime(last)),
			value.F("nDocsReturned", value.NewInt64(c.returned)), value.F("nBatchesReturned", value.NewInt64(c.batches)),
			value.F("noCursorTimeout", value.NewBool(c.noTimeout)), value.F("tailable", value.NewBool(c.tailable)), value.F("awaitData", value.NewBool(c.awaitData)),
			value.F("originatingCommand", value.NewDocument(c.origin)))))
		out = append(out, value.End(d, m))
	}
	return out
}
