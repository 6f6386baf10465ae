package command

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/sdam"
	"github.com/shoaldb/shoal/command/querystats"
	"github.com/shoaldb/shoal/command/sampling"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Hooks are the additions of a role to the pipeline; each may be nil.
type Hooks struct {
	// Before runs after the request was parsed and before its handler: sessions, fail points, API checks.
	Before func(op *Op) error
	// Hides reports whether a command is treated as unknown, whatever its arguments; nil for none.
	Hides func(spec *Spec) bool
	// Starting is called for a request that is about to run.
	Starting func(op *Op)
	// After runs when the handler has returned; it may change the error (labels) or record the operation.
	After func(op *Op, err error) error
	// Metadata is called with the client document of a connection's first hello, and the compressors agreed upon
	// with it.
	Metadata func(c *Client, compressors []string, doc []byte)
	// ByUUID finds the namespace of a collection, empty if there is none.
	ByUUID func(id [16]byte) string
	// IsTimeSeries reports whether a namespace is that of a time series collection.
	IsTimeSeries func(op *Op, ns string) (bool, error)
	// BalancedLost is called when the connection of a client behind a load balancer has ended: the client's next connection may
	// lead to another router. It must not wait.
	BalancedLost func(c *Client)
	// Panic is called for a handler that panicked.
	Panic func(op *Op, what any, stack []byte)
}

// Service is one node's commands: table, clock, running operations, counters.
type Service struct {
	Role    Role
	Table   *Table
	Clock   *cluster.VectorClock // nil on a standalone server, which reports no times
	Hooks   Hooks
	Started time.Time
	Status  Status
	// Host is a router's address, as other nodes show it.
	Host string
	// Topology is the node's self-description in hello; "not primary" errors have its version, so that clients
	// recognise outdated ones. nil if the service has none.
	Topology *Topology
	// Peers are the replica sets that the process monitors and its connections to them; nil if it has none.
	Peers *sdam.Monitors
	// Sampler samples queries for analyzeShardKey; nil for none.
	Sampler *sampling.Sampler
	// Queries keeps the statistics of $queryStats; nil if the service runs no queries.
	Queries *querystats.Store
	// ProcessLost is called when the last connection of a process of the cluster is closed; nil for none. It must
	// not wait.
	ProcessLost func(id [16]byte)
	// Access holds the service's users; nil if it has none.
	Access *Access
	// Audit records events in the audit log; nil if there is none.
	Audit *Audit

	minutes  int32        // localLogicalSessionTimeoutMinutes, 0 for its default
	unknown  atomic.Int64 // requests for commands that do not exist
	ops      opTable
	clients  sync.Map // *Client → struct{}, the connected clients
	counters sync.Map // *Spec → *Counter
	stopping atomic.Bool
}

// Counter counts the runs of one command.
type Counter struct {
	Total, Failed, Rejected atomic.Int64
	Micros                  atomic.Int64
	ArrayFilters, Pipelines atomic.Int64 // update statements that have them
}

// NewService returns a service with an empty table.
func NewService(role Role) *Service {
	return &Service{Role: role, Table: NewTable(), Started: time.Now()}
}

// CounterOf returns the counter of a command.
func (s *Service) CounterOf(spec *Spec) *Counter {
	if c, ok := s.counters.Load(spec); ok {
		return c.(*Counter)
	}
	c, _ := s.counters.LoadOrStore(spec, &Counter{})
	return c.(*Counter)
}

// Stop makes every later request, and every running one, end with InterruptedAtShutdown.
func (s *Service) Stop() {
	s.Sampler.Stop() // it needs this service, or those of other nodes
	s.stopping.Store(true)
	s.ops.each(func(op *Op) { op.Kill(mongoerr.InterruptedAtShutdown) })
}

// Stopping reports whether Stop was called.
func (s *Service) Stopping() bool { return s.stopping.Load() }

// WaitIdle waits until no operation runs, or the limit has passed.
func (s *Service) WaitIdle(limit time.Duration) {
	s.waitUntil(time.Now().Add(limit), func(*Op) bool { return true })
}

// Drain waits until no client operation is running, or the time is over. An awaitable hello does not count: it ends with
// the connection.
func (s *Service) Drain(until time.Time) {
	s.waitUntil(until, func(op *Op) bool { return op.Req.Spec.Name != "hello" && !op.Client.InProcess })
}

func (s *Service) waitUntil(end time.Time, counts func(*Op) bool) {
	for ; time.Now().Before(end); time.Sleep(time.Millisecond) {
		busy := false
		s.ops.each(func(op *Op) { busy = busy || counts(op) })
		if !busy {
			return
		}
	}
}

// EachClient calls f with each connected client.
func (s *Service) EachClient(f func(*Client)) {
	s.clients.Range(func(c, _ any) bool {
		f(c.(*Client))
		return true
	})
}

// HasProcess reports whether a process of the cluster is connected.
func (s *Service) HasProcess(id [16]byte) (found bool) {
	s.EachClient(func(c *Client) { found = found || c.Process() == id })
	return found
}

// Silent returns the processes of the cluster that are connected and have announced an interval of messages, but
// have sent none on any connection for that many intervals, nor since the given time.
func (s *Service) Silent(now, since time.Time, times int) map[[16]byte]bool {
	type process struct{ lastReceived, every int64 }
	all := map[[16]byte]process{}
	s.EachClient(func(c *Client) {
		c.mu.Lock()
		id, every := c.mu.process, c.mu.every
		c.mu.Unlock()
		if id != [16]byte{} {
			p := all[id]
			all[id] = process{max(p.lastReceived, c.lastReceived.Load(), since.UnixNano()), max(p.every, int64(every))}
		}
	})
	silent := map[[16]byte]bool{}
	for id, p := range all {
		if p.every > 0 && now.UnixNano()-p.lastReceived > int64(times)*p.every {
			silent[id] = true
		}
	}
	return silent
}

// EachOp calls f with every running operation; f must not block.
func (s *Service) EachOp(f func(*Op)) { s.ops.each(f) }

// runningSessions lists the sessions of running operations.
func (s *Service) runningSessions() (ids []cluster.LogicalSessionID) {
	s.EachOp(func(op *Op) {
		if op.Req.LSID == nil {
			return
		}
		if id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser); err == nil {
			ids = append(ids, id)
		}
	})
	return ids
}

// KillOp kills the operation with that id; false if there is none.
func (s *Service) KillOp(id int32, code mongoerr.Code) (found bool) {
	s.ops.each(func(op *Op) {
		if op.ID == id {
			found = true
			op.Kill(code)
		}
	})
	return found
}

var opPool = sync.Pool{New: func() any { return new(Op) }}

// Run runs one request and appends its whole reply document to dst. ctx is the calling operation when the request comes
// from a node of the same process, nil when it comes from a connection.
func (s *Service) Run(ctx context.Context, c *Client, msg *wire.Message, dst []byte) []byte {
	op := opPool.Get().(*Op)
	op.Service, op.Client, op.Start = s, c, time.Now()
	op.Req.Msg, op.Req.Body = msg, msg.Body
	if ctx != nil {
		op.parent = ctx
		switch by := ctx.(type) {
		case *Op:
			op.parentOp = by
		case withValue:
			op.parentOp = by.Op
		}
	}
	if op.parentOp != nil && op.parentOp.Service == s {
		op.Txn = op.parentOp.Txn // commands that a command runs for itself are part of its transaction
	}
	dst, mark := value.Begin(dst)
	body := len(dst)
	dst, err := s.dispatch(op, dst)
	if err == nil {
		switch {
		case op.wcDoc != nil:
			dst = value.Append(dst, "writeConcernError", value.NewDocument(op.wcDoc))
			dst = appendLabels(dst, op.labels)
		case op.wcError != nil:
			dst = appendWCError(dst, op.wcError)
			if op.MayBeRetried() && op.wcError.Code.IsRetryableWrite() {
				op.AddLabel(mongoerr.LabelRetryableWrite)
			}
			dst = appendLabels(dst, op.labels)
		}
		dst = append(dst, op.topLevel...)
		if op.IntOK {
			dst = value.Append(dst, "ok", value.NewInt32(1))
		} else {
			dst = append(dst, okOne...)
		}
	} else {
		e := mongoerr.From(err)
		dst = dst[:body]
		// The version is raised at each change of the member's state, so that clients can tell whether the error
		// is newer than what they know. A shutdown does not raise it: its errors are always newer.
		if s.Topology != nil && e.Code.In(mongoerr.CategoryNotPrimary) {
			dst = s.Topology.appendErrorVersion(dst)
		}
		if !c.InProcess && !c.Internal {
			e = cluster.ForClients(e)
		}
		dst = appendError(dst, e, op)
	}
	if !c.InProcess && s.Clock != nil {
		dst = s.appendTimes(dst, op)
	}
	s.finish(op)
	return value.End(dst, mark)
}

// appendTimes appends the end of every reply to a client: the signed cluster time and the operation time.
func (s *Service) appendTimes(dst []byte, op *Op) []byte {
	if op.Client.Internal {
		dst = s.Clock.AppendClusterTime(dst)
	} else {
		dst = s.Clock.AppendSignedTime(dst)
	}
	ts := op.opTime.Load()
	if ts == 0 {
		ts = s.Clock.ClusterTime()
	}
	dst = value.Append(dst, "operationTime", value.NewTimestampU64(ts))
	if op.Client.Internal {
		dst = s.Clock.AppendPlain(dst) // last: see TakePlain
	}
	return dst
}

// AddTopLevel adds an element to the successful reply, after the handler's own.
func (op *Op) AddTopLevel(key string, v value.Value) { op.topLevel = value.Append(op.topLevel, key, v) }

var okOne = value.Append(nil, "ok", value.NewDouble(1))

func (s *Service) finish(op *Op) {
	op.release()
	// An operation that may still be referenced (a cursor's context, a waiting goroutine) is left to the garbage
	// collector.
	if op.mu.done == nil {
		*op = Op{}
		opPool.Put(op)
	}
}

func (s *Service) dispatch(op *Op, dst []byte) (out []byte, err error) {
	it := value.Walk(op.Req.Body)
	name, _, ok := it.Next()
	if !ok {
		return dst, mongoerr.New(mongoerr.CommandNotFound, "no such command: ''")
	}
	spec := s.Table.Lookup(string(name))
	if spec == nil || s.Hooks.Hides != nil && s.Hooks.Hides(spec) {
		s.unknown.Add(1)
		return dst, mongoerr.Newf(mongoerr.CommandNotFound, "no such command: '%s'", name)
	}
	op.Req.Spec = spec
	counter := s.CounterOf(spec)
	counter.Total.Add(1)
	defer func() {
		if p := recover(); p != nil {
			out, err = dst, mongoerr.Newf(mongoerr.InternalError, "internal error in command %s", spec.Name)
			if s.Hooks.Panic != nil {
				s.Hooks.Panic(op, p, debug.Stack())
			}
		}
		op.Stats.ReplyLen = len(out)
		s.Status.note(op, err)
		if s.Hooks.After != nil {
			err = s.Hooks.After(op, err)
		}
		if err != nil {
			counter.Failed.Add(1)
		}
		if op.Query != nil {
			op.endQuery(err)
		}
		if s.Access != nil && op.Req.DB == "admin" {
			s.Access.changed(op)
		}
		s.ops.remove(op)
	}()
	switch err := s.prepare(op); {
	case wantsHelp(&op.Req, err):
		return appendHelp(dst, spec), nil
	case err != nil:
		return dst, err
	}
	if s.Hooks.Starting != nil {
		s.Hooks.Starting(op)
	}
	s.beginQuery(op)
	before, from := op.auditBefore(), len(dst)
	op.ran = true
	if dst, err = spec.Run(op, dst); err == nil {
		op.reportQuery()
		op.auditDone(before, dst[from:])
	}
	return dst, err
}

// enforces reports whether the service requires authentication.
func (s *Service) enforces() bool { return s.Access != nil && s.Access.Enforced }

// acceptsMemberClaims reports whether a connection is believed to be a member's if its hello claims so: without
// authorization no proof is required, and members may be in other processes.
func (s *Service) acceptsMemberClaims() bool {
	return !s.enforces() && (s.Access == nil || !s.Access.OneProcess)
}

// openInternal are the internal commands that administrators send, too, or that members send to nodes that do not
// know them yet.
var openInternal = map[string]bool{
	"_flushRoutingTableCacheUpdates": true, "_flushDatabaseCacheUpdates": true, "_isSelf": true,
	"_flushRoutingTableCacheUpdatesWithWriteConcern": true, "_flushDatabaseCacheUpdatesWithWriteConcern": true,
}

// forMembers refuses the commands with which members change each other's state if the client is not a member. With
// authorization, privileges decide that.
func (s *Service) forMembers(op *Op) error {
	spec := op.Req.Spec
	if !spec.Internal || spec.Name[0] != '_' || op.Client.InProcess || op.Client.Internal || s.enforces() || openInternal[spec.Name] {
		return nil
	}
	return mongoerr.Newf(mongoerr.Unauthorized, "Command %s is for the members of a cluster", spec.Name)
}

// authenticated refuses unauthenticated clients before anything of their request is read, so that no error reveals
// anything.
func (s *Service) authenticated(op *Op) error {
	if !s.enforces() || op.Client.InProcess || op.Client.login.Load() != nil {
		return nil
	}
	if rule := op.Req.Spec.made.rule; rule != nil && rule.Open || firstSteps[op.Req.Spec.Name] && op.Client.Loopback && !s.Access.claimed.Load() {
		return nil // authorize decides
	}
	return mongoerr.Newf(mongoerr.Unauthorized, "Command %s requires authentication", op.Req.Spec.Name)
}

// prepare runs the generic part of a request, up to its handler.
func (s *Service) prepare(op *Op) error {
	req := &op.Req
	if err := s.authenticated(op); err != nil {
		op.auditCheck(err)
		return err
	}
	if err := s.forMembers(op); err != nil {
		return err
	}
	if len(req.Msg.Seqs) > 0 {
		if err := req.foldSequences(); err != nil {
			return err
		}
	}
	if err := req.parse(true); err != nil {
		return err
	}
	if req.DB == "" && req.Msg.OpCode == wire.OpQuery {
		req.DB = "admin" // the handshake of old drivers
	}
	err := s.allow(op)
	if op.auditCheck(err); err != nil {
		return err
	}
	if req.MaxTimeMS > 0 && !req.Spec.TimeToWait {
		op.deadline = op.Start.Add(time.Duration(req.MaxTimeMS) * time.Millisecond)
	}
	if err := s.onRawData(op); err != nil {
		return err
	}
	if s.Sampler.On() {
		if err := s.sample(op); err != nil {
			return err
		}
	}
	malformed := req.parseConcerns()
	s.ops.add(op) // from here on others read the request; it has to come before the check for shutdown, which kills what is in the table
	if s.stopping.Load() && !req.Spec.NoAuth {
		return mongoerr.New(mongoerr.InterruptedAtShutdown, "interrupted at shutdown")
	}
	if req.DB == "" {
		return mongoerr.New(40571, "OP_MSG requests require a $db argument")
	}
	if err := CheckDBName(req.DB); err != nil && req.DB != "$external" {
		return err
	}
	if !req.Autocommit.IsMissing() && req.HasTxnNumber && !req.Spec.Txn {
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot run '%s' in a multi-document transaction.", req.Spec.Name)
	}
	if req.Spec.AdminOnly && req.DB != "admin" {
		return mongoerr.Newf(mongoerr.Unauthorized, "%s may only be run against the admin database.", req.Spec.Name)
	}
	if known, trusted := s.Access.mayAdvance(op.Client); known && req.ClusterTime != nil && s.Clock != nil {
		if err := s.Clock.GossipIn(op, req.ClusterTime, trusted); err != nil {
			return err
		}
	}
	if req.ConfigTime != 0 && s.Clock != nil && op.Client.Internal {
		s.Clock.GossipInPlain(req.ConfigTime, req.TopologyTime)
	}
	if err := checkConcerns(req, malformed); err != nil {
		return err
	}
	if s.Hooks.Before != nil {
		return s.Hooks.Before(op)
	}
	return nil
}

// allow checks whether the client may do what it asks for. A collection given by its UUID is looked up first: the
// client needs a privilege on its name. From here on the request has the name.
func (s *Service) allow(op *Op) error {
	named, byUUID := s.byUUID(op)
	if byUUID && named == "" && (!s.enforces() || op.Client.InProcess || op.Granted("useUUID")) {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "no collection of database %s has the UUID of %s", op.Req.DB, op.Req.Spec.Name)
	}
	if s.enforces() && !op.Client.InProcess {
		if err := s.Access.authorize(op, named); err != nil {
			return err
		}
	}
	if !byUUID {
		return nil
	}
	req, msg := &op.Req, *op.Req.Msg
	msg.Body = replaceField(req.Body, req.Name, value.NewString(named))
	req.Msg, req.Body = &msg, msg.Body
	return req.parse(true)
}

// byUUID finds the collection if a command gives it by its UUID, and is one that may (manual: action useUUID).
func (s *Service) byUUID(op *Op) (coll string, ok bool) {
	req := &op.Req
	if req.Cmd.T != value.Binary || s.Hooks.ByUUID == nil || req.Spec.Name != "find" && req.Spec.Name != "listIndexes" {
		return "", false
	}
	if req.Cmd.Subtype() != 4 || len(req.Cmd.Bytes()) != 16 {
		return "", false
	}
	db, coll, _ := strings.Cut(s.Hooks.ByUUID([16]byte(req.Cmd.Bytes())), ".")
	if db != req.DB {
		coll = ""
	}
	return coll, true
}

func appendWCError(dst []byte, e *mongoerr.Error) []byte {
	dst, m := value.BeginKey(dst, value.Document, "writeConcernError")
	dst = value.Append(dst, "code", value.NewInt32(int32(e.Code)))
	dst = value.Append(dst, "codeName", value.NewString(e.Code.Name()))
	dst = value.Append(dst, "errmsg", value.NewString(e.Message))
	if len(e.Details) > 0 {
		dst = append(dst, elements(e.Details)...)
	}
	return value.End(dst, m)
}

func appendLabels(dst []byte, labels []string) []byte {
	if len(labels) == 0 {
		return dst
	}
	dst, m := value.BeginKey(dst, value.Array, "errorLabels")
	for i, l := range labels {
		dst = value.AppendIndex(dst, i, value.NewString(l))
	}
	return value.End(dst, m)
}

func appendError(dst []byte, e *mongoerr.Error, op *Op) []byte {
	labels := append([]string(nil), e.Labels...)
	for _, l := range op.labels {
		if !e.HasLabel(l) { // a shard may have set it already
			labels = append(labels, l)
		}
	}
	dst = appendLabels(dst, labels)
	dst = value.Append(dst, "ok", value.NewDouble(0))
	dst = value.Append(dst, "errmsg", value.NewString(e.Message))
	dst = value.Append(dst, "code", value.NewInt32(int32(e.Code)))
	dst = value.Append(dst, "codeName", value.NewString(e.Code.Name()))
	if len(e.Details) > 0 {
		dst = append(dst, elements(e.Details)...)
	}
	if op.wcError != nil {
		dst = appendWCError(dst, op.wcError)
	}
	return dst
}

// elements returns a document without its length and terminator.
func elements(doc []byte) []byte {
	if len(doc) < 5 {
		return nil
	}
	return doc[4 : len(doc)-1]
}

// NotImplemented returns the error for what is not implemented; a command that is not implemented must not reply with anything else.
func NotImplemented(what string, args ...any) error {
	return mongoerr.New(mongoerr.NotImplemented, fmt.Sprintf(what, args...)+" is not implemented")
}
