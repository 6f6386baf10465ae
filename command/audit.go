package command

import (
	"bytes"
	"encoding/binary"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Audit connects the services of a process to its audit log (manual: Auditing). Services create events in the schema
// "mongo".
type Audit struct {
	// Record writes an event if it matches the log's filter. It is called before the reply to the client, possibly under
	// locks.
	Record func(event []byte)
	Params *cluster.Params
	// Runtime is set if the filter and auditAuthorizationSuccess come from the cluster parameter auditConfig
	// (auditLog.runtimeConfiguration). Otherwise Filter is that of the process's own configuration.
	Runtime *AuditRuntime
	Filter  []byte

	late sync.WaitGroup // of events from an event loop, written by another goroutine because writing may block
}

// AuditRuntime is the configuration of an audit log that can be changed while the process runs.
type AuditRuntime struct {
	// Check returns an error for an invalid filter; Use applies a filter to the log.
	Check, Use func(filter []byte) error

	mu      sync.Mutex
	at      uint64 // clusterParameterTime of the configuration
	success atomic.Bool
}

// AuditConfig is the cluster parameter with the configuration of audit logs.
const AuditConfig = "auditConfig"

// Configure applies a stored value of auditConfig. The nodes of a process share its log and learn of a change one after another, so the
// newest value wins.
func (a *Audit) Configure(doc []byte) {
	if a == nil || a.Runtime == nil {
		return
	}
	r, at := a.Runtime, value.Lookup(doc, "clusterParameterTime")
	r.mu.Lock()
	defer r.mu.Unlock()
	if at.T != value.Timestamp || at.TimestampU64() <= r.at {
		return
	}
	if r.Use(value.Lookup(doc, "filter").Doc()) == nil { // it was checked before it was stored
		r.at = at.TimestampU64()
		r.success.Store(value.Lookup(doc, "auditAuthorizationSuccess").Truthy())
	}
}

// ErrNotAuditing is the error of getAuditConfig and setAuditConfig on a process without an audit log.
var ErrNotAuditing = mongoerr.New(mongoerr.AuditingNotEnabled, "Auditing is not enabled: the server has no audit log")

// AppendAuditConfig appends a value of auditConfig in the form of getAuditConfig. The generation, which distinguishes
// configurations, is derived from the time at which the configuration was set; it is zero for the process's own.
func AppendAuditConfig(dst, doc []byte) []byte {
	var generation [12]byte
	if at := value.Lookup(doc, "clusterParameterTime"); at.T == value.Timestamp {
		binary.BigEndian.PutUint64(generation[:], at.TimestampU64())
	}
	dst = value.Append(dst, "generation", value.NewObjectID(generation))
	dst = value.Append(dst, "filter", value.Lookup(doc, "filter"))
	return value.Append(dst, "auditAuthorizationSuccess", value.Lookup(doc, "auditAuthorizationSuccess"))
}

// OwnConfig returns the value of auditConfig on a process whose audit log was configured at its start.
func (a *Audit) OwnConfig() []byte {
	filter := a.Filter
	if filter == nil {
		filter = value.Doc()
	}
	return value.Doc(value.F("filter", value.NewDocument(filter)), value.F("auditAuthorizationSuccess", value.NewBool(a.successes())))
}

// successes reports whether successful authorizations are recorded.
func (a *Audit) successes() bool {
	if a.Runtime != nil {
		return a.Runtime.success.Load()
	}
	return a.Params.Bool("auditAuthorizationSuccess")
}

// ParameterUpdated records that a node has applied a new value of a cluster parameter. op is the operation that set it on this node; nil if the
// node received the value from its replica set or from the config server.
func (a *Audit) ParameterUpdated(op *Op, before, after []byte) {
	if a == nil || a.Runtime == nil && value.Lookup(after, "_id").Str() == AuditConfig { // the configuration with which another node was started
		return
	}
	param := []value.Field{value.F("originalClusterServerParameter", value.NewDocument(before)), value.F("updatedClusterServerParameter", value.NewDocument(after))}
	const atype = "updateCachedClusterServerParameter"
	if op != nil {
		op.Audit(atype, mongoerr.OK, param...)
		return
	}
	a.Record(SystemEvent(atype, param...))
}

// Wait returns when all events are recorded.
func (a *Audit) Wait() { a.late.Wait() }

// Audits reports whether the operation's events are recorded.
func (op *Op) Audits() bool { return op.Service.Audit != nil }

// Audit records what the operation has done, on behalf of the client that began it.
func (op *Op) Audit(atype string, result mongoerr.Code, param ...value.Field) {
	if op.Audits() {
		op.Auditor()(atype, result, value.Doc(param...))
	}
}

// Auditor returns Audit as a function that may be called after the operation has ended.
func (op *Op) Auditor() func(atype string, result mongoerr.Code, param []byte) {
	if !op.Audits() {
		return func(string, mongoerr.Code, []byte) {}
	}
	origin, record := op.origin(), op.Service.Audit.Record
	client, served := origin.Client, bytes.Clone(origin.auditedFor())
	return func(atype string, result mongoerr.Code, param []byte) {
		record(client.event(served, atype, result, param))
	}
}

// origin returns the client's operation that this one is a part of.
func (op *Op) origin() *Op {
	for op.Client.InProcess && op.parentOp != nil {
		op = op.parentOp
	}
	return op
}

// auditedFor returns a member's description of the client that it serves; nil if the operation does not come from a
// member.
func (op *Op) auditedFor() []byte {
	if !op.Client.Internal || op.Client.InProcess {
		return nil
	}
	return value.Lookup(op.Req.Body, "$audit").Doc()
}

// audit records what happened on a connection outside of any command.
func (s *Service) audit(c *Client, atype string, result mongoerr.Code, param ...value.Field) {
	if s.Audit != nil && !c.InProcess {
		s.Audit.Record(c.event(nil, atype, result, value.Doc(param...)))
	}
}

// SystemEvent returns an event without a client: process start or shutdown.
func SystemEvent(atype string, param ...value.Field) []byte {
	return OwnClient().event(nil, atype, mongoerr.OK, value.Doc(param...))
}

// event returns an event about the client. served is a member's description of the client that it serves, nil for none.
func (c *Client) event(served []byte, atype string, result mongoerr.Code, param []byte) []byte {
	id := c.UUID()
	dst, mark := value.Begin(make([]byte, 0, 512+len(param)))
	dst = value.Append(dst, "atype", value.NewString(atype))
	dst = value.Append(dst, "ts", value.NewDateTime(time.Now().UnixMilli()))
	dst = value.Append(dst, "uuid", value.NewBinary(4, id[:]))
	dst = value.Append(dst, "local", c.endpoint(c.Local))
	if remote := value.Lookup(served, "$remote"); served != nil && remote.T == value.Document {
		dst = value.Append(dst, "remote", remote)
		between := append(value.Values(value.Lookup(served, "$intermediates").Doc()), c.endpoint(c.Remote))
		dst = value.Append(dst, "intermediates", value.NewArray(value.ArrayOf(between...)))
	} else {
		dst = value.Append(dst, "remote", c.endpoint(c.Remote))
		if c.Via != "" {
			dst = value.Append(dst, "intermediates", value.NewArray(value.ArrayOf(c.endpoint(c.Via))))
		}
	}
	users, roles := c.auditedUser(served)
	dst = value.Append(dst, "users", users)
	dst = value.Append(dst, "roles", roles)
	dst = value.Append(dst, "param", value.NewDocument(param))
	return value.End(value.Append(dst, "result", value.NewInt32(int32(result))), mark)
}

// auditedUser returns the client's users and all their roles, including inherited ones, which filters may refer to.
func (c *Client) auditedUser(served []byte) (users, roles value.Value) {
	var who, may []value.Value
	if user := value.Lookup(served, "$impersonatedUser"); served != nil && user.T == value.Document {
		who = append(who, user)
		for _, r := range value.Values(auth.ServedRoles(served).Doc()) {
			may = append(may, value.NewDocument(value.Doc(value.F("role", value.Lookup(r.Doc(), "role")), value.F("db", value.Lookup(r.Doc(), "db")))))
		}
	} else if id := c.login.Load(); id != nil {
		who = append(who, userDoc(id.Name))
		for _, r := range id.AllRoles {
			may = append(may, value.NewDocument(value.Doc(value.F("role", value.NewString(r.Role)), value.F("db", value.NewString(r.DB)))))
		}
	}
	return value.NewArray(value.ArrayOf(who...)), value.NewArray(value.ArrayOf(may...))
}

func userDoc(n auth.UserName) value.Value {
	return value.NewDocument(value.Doc(value.F("user", value.NewString(n.User)), value.F("db", value.NewString(n.DB))))
}

// endpoint returns one end of the client's connection as events show it.
func (c *Client) endpoint(addr string) value.Value {
	if c.InProcess {
		return value.NewDocument(value.Doc(value.F("isSystemUser", value.NewBool(true))))
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return value.NewDocument(value.Doc(value.F("unix", value.NewString(c.Local)))) // the client's end of a UNIX socket has no name
	}
	n, _ := strconv.Atoi(port)
	return value.NewDocument(value.Doc(value.F("ip", value.NewString(host)), value.F("port", value.NewInt32(int32(n)))))
}

// forOthers adds the operation's origin to the description of its user that other members receive, for their audit logs.
func (op *Op) forOthers(served []byte) []byte {
	origin := op.origin()
	if !origin.Audits() || origin.Client.InProcess {
		return served
	}
	if sent := origin.auditedFor(); sent != nil {
		return sent
	}
	if served == nil {
		served = value.Doc()
	}
	served = value.WithField(served, "$remote", origin.Client.endpoint(origin.Client.Remote))
	if via := origin.Client.Via; via != "" {
		served = value.WithField(served, "$intermediates", value.NewArray(value.ArrayOf(origin.Client.endpoint(via))))
	}
	return served
}

// auditCheck records the outcome of an authorization: a refusal always, success only with auditAuthorizationSuccess.
// Internal operations are not attributed to a user and are not audited.
func (op *Op) auditCheck(err error) {
	a, c := op.Service.Audit, op.Client
	if a == nil || c.InProcess || c.Internal || err == nil && !a.successes() {
		return
	}
	code := mongoerr.CodeOf(err)
	rule := op.Req.Spec.made.rule
	if err != nil && code != mongoerr.Unauthorized || err == nil && rule != nil && rule.Open {
		return
	}
	if id := c.login.Load(); id != nil && id.System {
		return
	}
	db := op.Req.DB
	if db == "" {
		db = value.Lookup(op.Req.Body, "$db").Str() // refused before it was read
	}
	ns, it := db, value.Walk(op.Req.Body)
	name, first, _ := it.Next()
	if first.T == value.String && (op.Req.Spec.Namespace || op.Req.Spec.Name == "getMore") {
		ns += "." + first.Str()
	}
	op.Audit("authCheck", code, value.F("command", value.NewString(string(name))), value.F("ns", value.NewString(ns)),
		value.F("args", value.NewDocument(withoutCredentials(WithoutSecrets(op.Req.Body)))))
}

// withoutCredentials returns a document without anything from which passwords could be guessed: it removes the values of
// fields with users' credentials, or parts of them, at any depth. A document without any is returned unchanged.
func withoutCredentials(doc []byte) []byte {
	if !bytes.Contains(doc, credentialsField) {
		return doc
	}
	out, mark := value.Begin(make([]byte, 0, len(doc)))
	for it := value.Walk(doc); ; {
		key, v, ok := it.Next()
		if !ok {
			return value.End(out, mark)
		}
		switch {
		case bytes.HasPrefix(key, credentialsField):
			v = value.NewString("xxx")
		case v.T == value.Document:
			v = value.NewDocument(withoutCredentials(v.Doc()))
		case v.T == value.Array:
			v = value.NewArray(withoutCredentials(v.Doc()))
		}
		out = value.AppendKeyBytes(out, key, v)
	}
}

var credentialsField = []byte("credentials")

// auditLogin records an attempt to authenticate.
func (s *Service) auditLogin(c *Client, name auth.UserName, mech string, result mongoerr.Code) {
	param := []value.Field{value.F("user", value.NewString(name.User)), value.F("db", value.NewString(name.DB)), value.F("mechanism", value.NewString(mech))}
	if id := c.login.Load(); id != nil && result == mongoerr.OK && id.Claims != nil {
		param = append(param, value.F("claims", value.NewDocument(id.Claims)))
	}
	s.audit(c, "authenticate", result, param...)
}

// auditLogout records that a connection's user has logged out.
func (s *Service) auditLogout(c *Client, was *auth.Identity, reason string) {
	if was == nil {
		return
	}
	s.audit(c, "logout", mongoerr.OK, value.F("reason", value.NewString(reason)),
		value.F("initialUsers", value.NewArray(value.ArrayOf(userDoc(was.Name)))), value.F("updatedUsers", value.NewArray(value.ArrayOf())))
}

// auditEnd records that the connection's user is logged out by the end of the connection. It runs in the event loop.
func (s *Service) auditEnd(c *Client) {
	if s.Audit == nil {
		return
	}
	l, was := c.takeLogin(), c.login.Load()
	if l == nil && was == nil {
		return
	}
	s.Audit.late.Go(func() {
		if l != nil {
			user, mech := l.name()
			s.auditLogin(c, user, mech, mongoerr.AuthenticationAbandoned)
		}
		s.auditLogout(c, was, "Implicit logout due to client connection closure")
	})
}

// auditMetadata records the client metadata sent with hello.
func (op *Op) auditMetadata(doc []byte) {
	op.Service.audit(op.Client, "clientMetadata", mongoerr.OK, value.F("localEndpoint", op.Client.endpoint(op.Client.Local)), value.F("clientMetadata", value.NewDocument(doc)))
}
