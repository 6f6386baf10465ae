package command

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/shape"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/lock"
)

// OpsView selects the running operations to describe, and how.
type OpsView struct {
	Host     string
	Now      time.Time
	Locks    bool                                          // with the operation's locks
	Truncate bool                                          // long commands as text
	Own      bool                                          // only those of the asking user
	Idle     bool                                          // also connections that wait for their client
	Threads  []string                                      // background threads, shown with the idle connections
	Cursor   func(dst []byte, op *Op, cursor int64) []byte // appends the cursor of a getMore; nil for none
}

// DescribeOps describes the running operations of self's service as currentOp shows them, without those that this
// process caused itself: a request from a router to a node of its process is attributed to the router's client. Of
// a running operation it reads only what does not change while it runs, its request and its client, and what the operation
// shows others (shown).
func DescribeOps(self *Op, view OpsView) (out [][]byte) {
	busy := map[*Client]bool{}
	self.Service.EachOp(func(op *Op) {
		if view.Own && op.servedFor() != self.servedFor() {
			return
		}
		if by := op.Caller(); by.Client != nil || op == self {
			out = append(out, view.op(op, by))
			busy[op.Client] = true
		}
	})
	if !view.Own {
		out = append(out, self.Service.describeTasks(view)...)
	}
	if !view.Idle {
		return out
	}
	self.Service.EachClient(func(c *Client) {
		if !busy[c] && (!view.Own || c.is(self.servedFor())) {
			out = append(out, view.idle(Caller{Client: c}, "", c.users()))
		}
	})
	if view.Own {
		return out
	}
	for _, name := range view.Threads {
		out = append(out, view.idle(Caller{}, name, nil))
	}
	return out
}

// DescribeTasks makes currentOp show the service's background work (migrations, DDL) as f describes it.
func (s *Service) DescribeTasks(f func(now time.Time) [][]value.Field) {
	t := &s.ops.tasks
	t.Lock()
	defer t.Unlock()
	t.describe = append(t.describe, f)
}

func (s *Service) describeTasks(view OpsView) (out [][]byte) {
	t := &s.ops.tasks
	t.Lock()
	all := slices.Clone(t.describe)
	t.Unlock()
	for _, describe := range all {
		for _, f := range describe(view.Now) {
			out = append(out, value.Doc(append([]value.Field{value.F("host", value.NewString(view.Host))}, f...)...))
		}
	}
	return out
}

// users returns the users whose privileges apply to an operation and, if a router has sent it for them, the members' user.
func (op *Op) users() (effective, runBy []value.Value) {
	own := op.Client.users()
	if id := op.Client.login.Load(); id != nil && !id.System || !op.Service.enforces() {
		return own, nil
	}
	if served := value.Lookup(op.servedUser(), "$impersonatedUser"); served.T == value.Document {
		return []value.Value{served}, []value.Value{userDoc(auth.System)}
	}
	return own, nil
}

// users returns the user who has authenticated on the connection, if there is one.
func (c *Client) users() []value.Value {
	if id := c.login.Load(); id != nil {
		return []value.Value{userDoc(id.Name)}
	}
	return nil
}

// is reports whether the connection's user has a digest.
func (c *Client) is(owner [32]byte) bool {
	id := c.login.Load()
	return id != nil && id.Owner == owner
}

// ConnectionUser returns the user of the operation's connection: a member's, if the operation is from a router of this process.
func (op *Op) ConnectionUser() (name auth.UserName, ok bool) {
	if id := op.Client.login.Load(); id != nil {
		return id.Name, true
	}
	return auth.System, op.Client.InProcess && op.Service.enforces()
}

// OwnOps reports whether $currentOp's specification asks for the user's own operations only, if users are known.
func OwnOps(op *Op, spec []byte) bool {
	return op.Service.enforces() && !value.Lookup(spec, "allUsers").Truthy()
}

// IdleShown returns a filter, by owner, for the idle cursors and sessions that $currentOp's specification asks for.
func IdleShown(op *Op, spec []byte) func(owner [32]byte) bool {
	if !OwnOps(op, spec) {
		return func([32]byte) bool { return true }
	}
	self := op.servedFor()
	return func(owner [32]byte) bool { return owner == self }
}

// Caller is the connection that an operation serves; none if it is the process's own work.
type Caller struct {
	Client *Client
	Via    string // the address of the router in this process that it came through
}

// Caller returns the connection that an operation serves; for a request from a router of this process, that is
// the connection to the router. What a node sends to itself is its own work.
func (op *Op) Caller() Caller {
	from := op
	for from.Client.InProcess {
		if from = from.parentOp; from == nil || from.Service == op.Service {
			return Caller{}
		}
	}
	by := Caller{Client: from.Client}
	if from != op {
		by.Via = from.Service.Host
	}
	return by
}

// Sender returns the address of the sender of the operation's request: that of the router in this process, or of the other end of the connection; empty for the process's own
// work. Unlike Caller it finds the router's operation even if that has sent the request under a context of its own.
func (op *Op) Sender() string {
	from := op
	for from.Client.InProcess {
		next := from.parentOp
		if next == nil && from.parent != nil {
			next = FromContext(from.parent)
		}
		if next == nil && from.parent != nil {
			by, _ := from.parent.Value(cluster.SentBy).(string)
			return by
		}
		if next == nil || next.Service == op.Service {
			return ""
		}
		from = next
	}
	if from != op && from.Service.Host != "" {
		return from.Service.Host
	}
	return from.Client.Remote
}

// Describe appends currentOp's fields about a caller.
func (by Caller) Describe(d []byte) []byte {
	c := by.Client
	if c == nil {
		return d
	}
	remote := c.Remote
	if by.Via != "" {
		remote = by.Via
	}
	d = value.Append(d, "connectionId", value.NewInt64(c.ID))
	d = value.Append(d, "client", value.NewString(remote))
	meta, app := c.Metadata()
	if meta == nil {
		return d
	}
	if app != "" {
		d = value.Append(d, "appName", value.NewString(app))
	}
	d, m := value.BeginKey(d, value.Document, "clientMetadata")
	d = append(d, elements(meta)...)
	if by.Via != "" {
		d = value.Append(d, "mongos", value.NewDocument(value.Doc(value.F("host", value.NewString(by.Via)),
			value.F("client", value.NewString(c.Remote)), value.F("version", value.NewString(Version)))))
	}
	return value.End(d, m)
}

// client begins the description of a connection, active or idle. desc names an operation without a connection.
func (w *OpsView) client(by Caller, desc string, users []value.Value, active bool) (d []byte, mark int) {
	d, mark = value.Begin(nil)
	d = value.Append(d, "type", value.NewString("op"))
	d = value.Append(d, "host", value.NewString(w.Host))
	if by.Client != nil {
		desc = "conn" + strconv.FormatInt(by.Client.ID, 10)
	}
	d = by.Describe(value.Append(d, "desc", value.NewString(desc)))
	d = value.Append(d, "active", value.NewBool(active))
	d = value.Append(d, "currentOpTime", value.NewString(w.Now.Format("2006-01-02T15:04:05.000-07:00")))
	return value.Append(d, "effectiveUsers", value.NewArray(value.ArrayOf(users...))), mark
}

// idle describes a connection that waits for its client, or a thread that waits for work.
func (w *OpsView) idle(by Caller, thread string, users []value.Value) []byte {
	d, m := w.client(by, thread, users, false)
	d = value.Append(d, "threaded", value.NewBool(true))
	for _, name := range []string{"waitingForLock", "waitingForFlowControl"} {
		d = value.Append(d, name, value.NewBool(false))
	}
	return value.End(d, m)
}

// longCommand is the length from which truncateOps shows a command as text.
const longCommand = 1000

// truncated returns a command as shown with truncateOps: the beginning of its text, and its comment.
func truncated(cmd []byte) []byte {
	if len(cmd) <= longCommand {
		return cmd
	}
	text := value.ShowDoc(cmd)
	out := []value.Field{value.F("$truncated", value.NewString(strings.ToValidUTF8(text[:min(len(text), longCommand)], "")+"..."))}
	if c := value.Lookup(cmd, "comment"); c.T != value.Missing {
		out = append(out, value.F("comment", c))
	}
	return value.Doc(out...)
}

// op describes a running operation and the connection that it serves.
func (w *OpsView) op(op *Op, by Caller) []byte {
	body := WithoutSecrets(op.Req.Body)
	name, ns := requestTarget(body)
	users, runBy := op.users()
	d, m := w.client(by, "own work", users, true)
	if runBy != nil {
		d = value.Append(d, "runBy", value.NewArray(value.ArrayOf(runBy...)))
	}
	d = value.Append(d, "threaded", value.NewBool(true))
	d = value.Append(d, "opid", value.NewInt32(op.ID))
	if lsid := value.Lookup(body, "lsid"); lsid.T == value.Document {
		d = value.Append(d, "lsid", value.NewDocument(cluster.ShownLSID(lsid.Doc())))
	}
	own, locks := op.shown(w.Locks)
	if own.txn != nil {
		d = value.Append(d, "transaction", value.NewDocument(own.txn(w.Now)))
	}
	run := w.Now.Sub(op.Start)
	d = value.Append(d, "secs_running", value.NewInt64(int64(run.Seconds())))
	d = value.Append(d, "microsecs_running", value.NewInt64(run.Microseconds()))
	d = value.Append(d, "op", value.NewString(OpKind(name)))
	d = value.Append(d, "ns", value.NewString(ns))
	d = value.Append(d, "redacted", value.NewBool(false))
	cmd := Shown(body)
	if w.Truncate {
		cmd = truncated(cmd)
	}
	d = value.Append(d, "command", value.NewDocument(cmd))
	if c := op.Service.Clock; c != nil {
		if at := c.Now(); at.Topology != 0 {
			d = value.Append(d, "configTime", value.NewTimestampU64(at.Config))
			d = value.Append(d, "topologyTime", value.NewTimestampU64(at.Topology))
		}
	}
	d = own.appendQuery(d, op, body)
	if name == "getMore" && w.Cursor != nil {
		d = w.Cursor(d, op, value.Lookup(body, "getMore").Int64())
	}
	if op.killed.Load() != 0 {
		d = value.Append(d, "killPending", value.NewBool(true))
	}
	d = value.Append(d, "numYields", value.NewInt32(0))
	return value.End(append(d, locks...), m)
}

// shown returns what the operation shows others, with its locks as the elements that describe them.
func (op *Op) shown(withLocks bool) (s shown, locks []byte) {
	op.mu.Lock()
	defer op.mu.Unlock()
	if withLocks {
		locks = op.mu.appendLocks(nil) // under mu: a Locker that is hidden may be the next operation's
	}
	return op.mu.shown, locks
}

// appendQuery appends what is known of an operation's query: the hash of the shape that its client sent, and its plan.
func (s *shown) appendQuery(d []byte, op *Op, body []byte) []byte {
	if !op.Client.InProcess && !op.Client.Internal {
		if doc, ok := shape.Command(nil, value.Lookup(body, "$db").Str(), body); ok {
			d = value.Append(d, "queryShapeHash", value.NewString(shape.Hash(doc)))
		}
	}
	if s.plan != nil {
		d = value.Append(d, "queryFramework", value.NewString("classic"))
		d = value.Append(d, "planSummary", value.NewString(*s.plan))
	}
	if s.conflicts > 0 {
		d = value.Append(d, "writeConflicts", value.NewInt64(s.conflicts))
	}
	return d
}

// appendLocks appends the locks that an operation holds or waits for, and counts those that it has taken.
func (s *shown) appendLocks(d []byte) []byte {
	held, stats, waits := value.Doc(), value.Doc(), s.awaits
	if s.locks != nil {
		held, stats = LocksHeld(s.locks), s.locks.Stats().Doc()
		_, asked := s.locks.Summary()
		waits = waits || asked
	}
	d = value.Append(d, "locks", value.NewDocument(held))
	d = value.Append(d, "waitingForLock", value.NewBool(waits))
	d = value.Append(d, "lockStats", value.NewDocument(stats))
	d = value.Append(d, "waitingForFlowControl", value.NewBool(false))
	return value.Append(d, "flowControlStats", value.NewDocument(value.Doc()))
}

// LocksHeld returns the strongest mode held of each kind of lock.
func LocksHeld(l *lock.Locker) []byte {
	held, _ := l.Summary()
	var f []value.Field
	for _, k := range lock.Kinds() {
		if m := held[k]; m != lock.None {
			f = append(f, value.F(k.String(), value.NewString(m.Letter())))
		}
	}
	return value.Doc(f...)
}

// requestTarget reads the command's name and namespace from a request.
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

// OpKind returns the value of op for a command in the profiler and currentOp.
func OpKind(name string) string {
	switch name {
	case "find":
		return "query"
	case "getMore":
		return "getmore"
	case "insert", "update", "bulkWrite":
		return name
	case "delete":
		return "remove"
	}
	return "command"
}

// Shown returns a request as diagnostics show it: without what drivers add to every request.
func Shown(body []byte) []byte {
	out, m := value.Begin(make([]byte, 0, len(body)))
	for it := value.Walk(body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return value.End(out, m)
		}
		if len(raw) > 50<<10 && (string(k) == "documents" || string(k) == "updates" || string(k) == "deletes") {
			continue
		}
		out = append(out, raw...)
	}
}
