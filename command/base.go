package command

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Base provides what every role needs around its commands: server parameters, fail points, sessions, the stable API.
type Base struct {
	Service    *Service
	Params     *cluster.Params
	FailPoints *cluster.FailPoints
	Sessions   *cluster.SessionCache
	// KillCursors ends the cursors and transactions of sessions and returns the number of cursors; nil if the role has none.
	KillCursors func(f func(cluster.LogicalSessionID) bool) (killed int)
	// KillBelow passes a command that kills sessions to the nodes below, where others may have started operations
	// in them; nil if there are none.
	KillBelow func(op *Op) error
	// Reap drops the state of sessions that have expired according to the sessions collection; nil if there is
	// none.
	Reap func(ctx context.Context) error
	// SessionCatalog returns the number of sessions whose transactions or retryable writes the node knows; nil for none.
	SessionCatalog func() int
	// BeginTxn attaches an operation to its multi-document transaction; end receives its outcome. nil if the role
	// has none.
	BeginTxn func(op *Op) (end func(err error), err error)
	// Admit is called before a command runs, after all checks that need no node; nil admits everything.
	Admit func(op *Op) error
	// Disturb injects faults into client commands; nil if fault injection is off.
	Disturb Disturber
	// Done is called for every operation that has ended, for logs, the profiler and counters; nil for none.
	Done func(op *Op, err error)
}

// Disturber delays clients' commands and breaks their connections, for tests of applications.
type Disturber interface {
	// Before is called before a command runs. An error is the command's.
	Before(op *Op) error
	// After is called when it has run, before its reply is sent.
	After(op *Op)
}

// Install registers the commands of Base and puts its hooks into the service.
func (b *Base) Install() {
	b.Service.Table.Add(b.paramSpecs()...)
	b.Service.Table.Add(b.sessionSpecs()...)
	b.Service.Table.Add(searchSpecs()...)
	if n := b.Params.Int("localLogicalSessionTimeoutMinutes"); n > 0 {
		b.Service.minutes = int32(n)
		b.Sessions.SetTimeout(time.Duration(n) * time.Minute)
	}
	b.Sessions.SetLimit(b.Params.Int("maxSessions"))
	b.Sessions.WithOperations(b.Service.runningSessions)
	b.Service.Status.Add(StatusSection{Name: "logicalSessionRecordCache", Doc: func(*Op, value.Value) []byte {
		known := 0
		if b.SessionCatalog != nil {
			known = b.SessionCatalog()
		}
		return b.Sessions.Status(known)
	}})
	b.Service.useQueryStats(b.Params)
	b.Service.Hooks.Hides = func(s *Spec) bool { return s.TestOnly && !b.Params.TestCommands() }
	b.Service.Hooks.Before = b.before
	b.Service.Hooks.After = b.after
}

func (b *Base) before(op *Op) error {
	if err := b.checkAPI(op); err != nil {
		return err
	}
	if op.Req.LSID != nil {
		id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser)
		if err != nil {
			return err
		}
		if !id.IsChild() { // an internal transaction does not count as use of the session by its client
			if err := b.Sessions.Touch(id); err != nil {
				return err
			}
		}
	} else if op.Req.HasTxnNumber && op.Req.TxnNumber >= 0 {
		return mongoerr.New(mongoerr.InvalidOptions, "Transaction number requires a session ID to also be specified")
	}
	if err := b.checkTxn(op); err != nil {
		return err
	}
	if op.Req.Spec.Kind == DDL {
		if err := checkDDL(op); err != nil {
			return err
		}
	}
	if err := b.failCommand(op); err != nil {
		return err
	}
	if b.Disturb != nil {
		if err := b.Disturb.Before(op); err != nil {
			return err
		}
	}
	if op.points = b.FailPoints; !op.deadline.IsZero() {
		if op.timePoints(); op.killed.Load() != 0 {
			return op.CheckNow()
		}
	}
	if b.Admit != nil {
		if err := b.Admit(op); err != nil {
			return err
		}
	}
	if op.InTransaction() && b.BeginTxn != nil {
		var err error
		op.endTxn, err = b.BeginTxn(op)
		return err
	}
	return nil
}

// checkTxn refuses arguments of multi-document transactions where they do not belong, and txnNumber on commands that are not retryable writes.
func (b *Base) checkTxn(op *Op) error {
	r := &op.Req
	if r.HasTxnNumber && r.TxnNumber < 0 {
		return mongoerr.Newf(mongoerr.InvalidOptions, "Transaction number cannot be negative, found %d", r.TxnNumber)
	}
	if !r.Autocommit.IsMissing() || r.StartTxn {
		if !r.HasTxnNumber {
			return mongoerr.New(mongoerr.InvalidOptions, "'autocommit' field requires a transaction number to also be specified")
		}
		if r.Autocommit.IsMissing() {
			return mongoerr.New(mongoerr.InvalidOptions, "'startTransaction' field requires 'autocommit' field to also be specified")
		}
		if !r.Spec.Txn {
			return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot run '%s' in a multi-document transaction.", r.Spec.Name)
		}
		if r.Autocommit.Truthy() {
			return mongoerr.New(mongoerr.InvalidOptions, "The 'autocommit' field must be set to false when specified")
		}
		if b.BeginTxn != nil {
			return nil
		}
		if endsTransaction(r.Spec.Name) {
			return nil
		}
		return NotImplemented("multi-document transactions: command %s", r.Spec.Name)
	}
	if r.HasTxnNumber && !r.Spec.Retryable && !op.Client.InProcess {
		return mongoerr.New(50768, "txnNumber may only be provided for multi-document transactions and retryable write commands. autocommit:false was not provided, and "+r.Spec.Name+" is not a retryable write command.")
	}
	return nil
}

// checkAPI enforces the stable API.
func (b *Base) checkAPI(op *Op) error {
	a := &op.Req.API
	if !a.Given {
		if a.Strict || a.DeprecationErrors {
			return mongoerr.New(4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion")
		}
		if b.Params.Bool("requireApiVersion") && !op.Client.InProcess && !op.Req.Spec.Internal && op.Req.Spec.Name != "hello" {
			return mongoerr.New(498870, "The apiVersion parameter is required, please configure your MongoClient's API version")
		}
		return nil
	}
	if a.Version != "1" {
		return mongoerr.Newf(mongoerr.APIVersionError, "API version must be \"1\"")
	}
	// A router has checked its client's command before it sends others, with the same arguments, for it.
	if legacy := op.Req.Spec.Name == "hello" && op.Req.Name != "hello"; a.Strict && !op.Client.Internal && (legacy || !op.Req.Spec.API) {
		return notInAPI(op.Req.Name)
	}
	if a.Strict && !op.Client.Internal {
		if err := op.checkStrict(); err != nil {
			return err
		}
	}
	if a.DeprecationErrors && op.Req.Spec.Name == "testDeprecation" {
		return mongoerr.Newf(mongoerr.APIDeprecationError, "Provided apiDeprecationErrors:true, but the command %s is deprecated in API Version 1", op.Req.Spec.Name)
	}
	return nil
}

// failCommand implements the failCommand fail point.
func (b *Base) failCommand(op *Op) error {
	if op.Client.InProcess || !b.FailPoints.Any() {
		return nil
	}
	site := cluster.CommandSite{Name: op.Req.Spec.Name, InternalClient: op.Client.Internal}
	_, site.AppName = op.Client.Metadata()
	if site.Name == "hello" { // its legacy spellings are separate commands here; a first hello also sets the application name
		site.Name = op.Req.Name
		if cl := op.Arg("client"); cl.T == value.Document {
			site.AppName, _ = checkMetadata(cl.Doc())
		}
	}
	if op.Req.Cmd.T == value.String {
		site.NS = op.Req.NS(op.Req.Cmd.Str())
	}
	f := b.FailPoints.FailCommand(&site)
	if f == nil {
		return nil
	}
	op.failPoint = true
	if f.Block > 0 {
		t := time.NewTimer(f.Block)
		defer t.Stop()
		select {
		case <-t.C:
		case <-op.Done():
			return op.Err()
		}
	}
	if f.CloseConnection {
		if op.Client.Close != nil {
			op.Client.Close()
		}
		return mongoerr.New(mongoerr.HostUnreachable, "failCommand closed the connection")
	}
	if f.HasLabels {
		op.fixedLabels = true
		op.labels = append(op.labels, f.Labels...)
	}
	if f.Err != nil {
		return f.Err
	}
	if op.wcDoc = f.WriteConcernError; op.wcDoc != nil && !op.fixedLabels {
		code, _ := value.Lookup(op.wcDoc, "code").AsInt64()
		if op.MayBeRetried() && mongoerr.Code(code).IsRetryableWrite() {
			op.AddLabel("RetryableWriteError")
		}
	}
	return nil
}

// MayBeRetried reports whether the operation is one that a driver may send again under the same txnNumber.
func (op *Op) MayBeRetried() bool {
	r := &op.Req
	if r.Spec == nil || !r.HasTxnNumber {
		return false
	}
	if !r.Autocommit.IsMissing() {
		return endsTransaction(r.Spec.Name) // the statements before it are not retried individually
	}
	return r.Spec.Retryable
}

// InTransaction reports whether the operation is part of a multi-document transaction.
func (op *Op) InTransaction() bool { return op.Req.HasTxnNumber && !op.Req.Autocommit.IsMissing() }

// atSnapshot reports whether an error of a snapshot read outside transactions concerns the snapshot's time: no
// read at that time will succeed, and the session has to repeat its reads at another time.
func (op *Op) atSnapshot(err error) bool {
	return op.Req.ReadConcern.Is("snapshot") && mongoerr.In(err, mongoerr.CategorySnapshot)
}

// after adds the error labels that the drivers' specifications require of a server, and reports the operation.
func (b *Base) after(op *Op, err error) error {
	if op.endTxn != nil {
		op.endTxn(err)
		op.endTxn = nil
	}
	if err != nil && (op.InTransaction() || op.atSnapshot(err)) && !op.fixedLabels && mongoerr.CodeOf(err).IsTransientTransaction(endsTransaction(op.Req.Spec.Name)) {
		op.AddLabel(mongoerr.LabelTransientTransaction)
	}
	if err != nil && !op.fixedLabels {
		e := mongoerr.From(err)
		if op.MayBeRetried() && e.Code.IsRetryableWrite() {
			op.AddLabel("RetryableWriteError")
		}
		if label := e.Code.EveryLabel(); label != "" && !e.HasLabel(label) {
			op.AddLabel(label)
		}
	}
	if b.Done != nil {
		b.Done(op, err)
	}
	if b.Disturb != nil {
		b.Disturb.After(op)
	}
	return err
}
