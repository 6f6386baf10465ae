package replset

import (
	"context"
	"errors"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// hasRaft reports whether the store belongs to a member of a set of several.
func (r *Membership) hasRaft() (bool, error) {
	if r.opts.Transport == nil {
		return false, nil
	}
	return replication.HasRaft(replication.EngineStore(r.conf.Engine))
}

// beginRaft makes the node the first member of a set of several.
func (r *Membership) beginRaft(ctx context.Context, c *replication.SetConfig) error {
	if r.opts.Transport == nil {
		return mongoerr.New(mongoerr.NotImplemented, "this node has no connections to other members")
	}
	if r.conf.Member.Raft() == nil {
		if err := r.startRaft(); err != nil {
			return err
		}
	}
	return r.conf.Member.Raft().Initiate(ctx, c)
}

// startRaft opens the node's raft. From then on raft determines the node's role.
func (r *Membership) startRaft() error {
	c := &r.conf
	var store replication.LocalStore // nil for a store in memory, with its log in memory, too
	if !r.opts.Memory {
		store = replication.EngineStore(c.Engine)
	}
	opened := make(chan struct{}) // callbacks wait until the node knows its raft
	raft, err := replication.OpenRaft(replication.Options{
		Machine: replication.EngineMachine(c.Engine), Store: store, SetName: r.Name,
		Transport: r.opts.Transport, IsSelf: r.isSelf, Logger: c.Logger,
		OnRole:   func(c replication.RoleChange) { <-opened; r.roleChanged(c) },
		OnConfig: func(c *replication.SetConfig) { <-opened; r.configChanged(c) },
		OnFatal: func(err error) {
			r.node.Warn("The member cannot continue", err)
			r.node.Fatal(err)
		},
		Starved: func() bool { return c.Points != nil && c.Points.On("stopReplProducer") },
		Params:  r.params,
	})
	if err != nil {
		return err
	}
	r.conf.Member.Switch(raft)
	if c := raft.Config(); c != nil {
		r.takeConfig(c)
	}
	close(opened)
	return nil
}

// params returns the values of the server parameters that replication uses.
func (r *Membership) params() replication.Params {
	p := replication.DefaultParams()
	if r.conf.Params == nil {
		return p
	}
	num := func(name string, f func(v value.Value)) {
		if q, ok := r.conf.Params.Lookup(name); ok {
			f(q.Value())
		}
	}
	secs := func(d *time.Duration) func(v value.Value) {
		return func(v value.Value) { *d = time.Duration(v.AsFloat64() * float64(time.Second)) }
	}
	num("periodicNoopIntervalSecs", secs(&p.NoopInterval))
	num("writePeriodicNoops", func(v value.Value) {
		if !v.Truthy() {
			p.NoopInterval = 0
		}
	})
	num("priorityTakeoverFreshnessWindowSeconds", secs(&p.PriorityLag))
	num("enableFlowControl", func(v value.Value) { p.FlowControl = v.Truthy() })
	num("flowControlTargetLagSeconds", secs(&p.FlowTargetLag))
	num("flowControlThresholdLagPercentage", func(v value.Value) { p.FlowThreshold = v.AsFloat64() })
	num("flowControlMinTicketsPerSecond", func(v value.Value) { p.FlowMinTickets = int(v.AsFloat64()) })
	return p
}

// roleChanged applies a change of the member's role. The set calls it in order. For a new primary it is called twice:
// first to step up, for which the node itself may write, then to let clients write.
func (r *Membership) roleChanged(c replication.RoleChange) {
	was := r.state.Load()
	switch {
	case c.Role == replication.Primary && c.Writable:
		r.setWritable(r.publish(c))
	case c.Role == replication.Primary:
		r.elected(c)
	case was.role == replication.Primary:
		r.resigned(c)
	default:
		r.publish(c)
	}
}

// publish makes a role visible in hello and elsewhere, without letting clients write.
func (r *Membership) publish(c replication.RoleChange) *replState {
	r.roleChange.Lock()
	defer r.roleChange.Unlock()
	for {
		old := r.state.Load()
		s := *old
		s.role, s.term, s.leader = c.Role, c.Term, c.Leader
		s.writable = old.writable && c.Role == replication.Primary
		if r.state.CompareAndSwap(old, &s) {
			r.conf.Topology.Changed()
			return &s
		}
	}
}

// slowStepUp is the duration from which stepping up is logged as slow.
const slowStepUp = time.Second

// If the required services of a new primary fail to step up, it tries to hand over to another member after every stepUpTries attempts, and
// remains a secondary for stepDownFor.
const (
	stepUpTries = 20
	stepDownFor = time.Minute
)

// elected steps the node up: it rereads its state of sessions, parameters and unfinished work.
func (r *Membership) elected(c replication.RoleChange) {
	r.publish(c)
	began := time.Now()
	leading := r.conf.Member.Raft().LeaderContext(c.Term)
	var vital *replication.VitalError
	for try := 0; ; try++ {
		err := errors.Join(r.node.EnsureSystem(leading), r.conf.Services.StepUp(leading, c.Term))
		if err != nil {
			r.node.Warn("Some primary-only services did not step up", err)
		}
		if !errors.As(err, &vital) {
			break
		}
		// Clients cannot write before the services have stepped up: another member may be able to, or this one a little later.
		if try%stepUpTries == stepUpTries-1 {
			_ = r.conf.Member.Raft().StepDown(leading, stepDownFor, 0, false)
		}
		r.conf.Services.StepDown()
		if cluster.Backoff(leading, try+4) != nil {
			return
		}
	}
	if took := time.Since(began); took > slowStepUp && r.conf.Logger != nil {
		r.conf.Logger.Warn().Int64("term", c.Term).Dur("tookMillis", took).Msg("clients waited for the primary-only services to step up")
	}
}

// resigned steps the node down. The set refuses writes already: writes in progress are interrupted, connections remain open.
func (r *Membership) resigned(c replication.RoleChange) {
	r.publish(c)
	r.conf.Services.Interrupt()
	r.conf.Service.EachOp(func(op *command.Op) {
		if killedOnStepDown(op) {
			op.Kill(mongoerr.InterruptedDueToReplStateChange)
		}
	})
	r.conf.Services.StepDown()
}

// killedOnStepDown reports whether a step-down interrupts an operation: one that writes, or a read that has to be the primary's.
func killedOnStepDown(op *command.Op) bool {
	spec := op.Req.Spec
	if spec == nil {
		return false
	}
	if spec.Primary() || !op.Req.Autocommit.IsMissing() {
		return true
	}
	return op.Req.ReadConcern.Is("linearizable")
}

// configChanged applies a new configuration; nil if the node is no longer in one.
func (r *Membership) configChanged(c *replication.SetConfig) {
	r.takeConfig(c)
	r.conf.Topology.Changed()
	if c == nil {
		return
	}
	// The primary's write reaches the other members through the log.
	if err := r.store(context.Background(), c.Doc()); err != nil && !mongoerr.In(err, mongoerr.CategoryNotPrimary) {
		r.node.Warn("The configuration could not be written to "+replsetNS, err)
	}
}

func (r *Membership) takeConfig(c *replication.SetConfig) {
	for {
		old := r.state.Load()
		s := *old
		s.config, s.self = c, nil
		if c != nil {
			s.self = c.Member(r.conf.Member.Raft().Status().Self)
		}
		if r.state.CompareAndSwap(old, &s) {
			return
		}
	}
}

// HandOver prepares for closing: hello directs clients to other members, and a primary hands over to a member that
// has caught up.
func (r *Membership) HandOver(ctx context.Context, until time.Time) {
	r.Quiesce(until)
	if err := r.giveUp(ctx, time.Until(until), false); err != nil {
		r.node.Warn("No other member took over before the shutdown", err)
	}
}

// MayShutDown prepares for a shutdown requested by a client: a primary hands over first. If no other member can take over in
// time, the shutdown is refused unless it is forced.
func (r *Membership) MayShutDown(ctx context.Context, wait time.Duration, force bool) error {
	return r.giveUp(ctx, wait, force)
}

// giveUp makes a primary with other members step down.
func (r *Membership) giveUp(ctx context.Context, wait time.Duration, force bool) error {
	raft := r.conf.Member.Raft()
	if raft == nil || !r.Writable() || !r.HasOthers() {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !force {
		go r.cancelAlone(ctx, cancel)
	} else {
		wait = 0
	}
	err := raft.StepDown(ctx, time.Minute, wait, force)
	if mongoerr.CodeOf(err) == mongoerr.NotWritablePrimary {
		return nil // it is no longer primary
	}
	return err
}

// HasOthers reports whether the set has other members that clients can use.
func (r *Membership) HasOthers() bool { return r.Name != "" && len(r.configMembers()) > 1 }

// cancelAlone ends the wait for a successor once no other member is reachable: all are being shut down.
func (r *Membership) cancelAlone(ctx context.Context, cancel func()) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		alone := true
		for _, m := range r.Status().Members {
			alone = alone && (m.Self || !m.Healthy || m.Error != "")
		}
		if alone {
			cancel()
			return
		}
	}
}

// Quiesce makes hello report that the node is closing, if clients can use another member.
func (r *Membership) Quiesce(until time.Time) {
	if r.closing.Swap(true) {
		return
	}
	if r.HasOthers() {
		r.conf.Topology.Quiesce(until)
	} else {
		r.conf.Topology.Changed()
	}
	r.mu.Lock()
	if r.mu.back != nil {
		r.mu.back.Stop()
	}
	r.mu.Unlock()
}

// EndWithSet is called when all members of the set are about to close.
func (r *Membership) EndWithSet() {
	if raft := r.conf.Member.Raft(); raft != nil {
		raft.EndWithSet()
	}
}

// Leave ends the node's membership.
func (r *Membership) Leave() error {
	r.change.Lock() // from now on nothing joins
	defer r.change.Unlock()
	raft := r.conf.Member.Raft()
	switch {
	case raft == nil:
		return nil
	case r.opts.Together:
		return raft.Stop()
	}
	return raft.Close()
}

func (r *Membership) configMembers() []replication.MemberConfig {
	if c := r.Config(); c != nil {
		return c.Members
	}
	return nil
}

// CheckRole returns an error for operations that the member must not execute in its current role: writes if it is not
// primary, reads if it is neither primary nor a readable secondary that the client accepts. The local database is the
// node's own.
func (r *Membership) CheckRole(op *command.Op) error {
	if r.Name == "" || op.Client.Own || op.Req.DB == "local" {
		return nil
	}
	s := r.state.Load()
	if s.writable {
		return nil
	}
	switch {
	case op.Req.Spec.Primary():
		return r.NotPrimary()
	case op.Req.Spec.Kind != command.Read, op.Req.Spec.Name == "killCursors": // drivers send it without a read preference
		return nil
	}
	readable := s.role == replication.Primary || s.role == replication.Secondary
	secondaryOk := secondaryOk(op)
	switch {
	case readable && (secondaryOk || op.Req.Spec.Name == "getMore"):
		return nil
	case secondaryOk:
		return mongoerr.New(mongoerr.NotPrimaryOrSecondary, "not primary or secondary; cannot currently read from this replSet member")
	}
	return mongoerr.New(mongoerr.NotPrimaryNoSecondaryOk, "not primary and secondaryOk=false")
}

// NotPrimary returns the error of a write on a member that may not accept it, nil if it may.
func (r *Membership) NotPrimary() error {
	if r.Writable() && r.conf.Member.IsPrimary() {
		return nil
	}
	return mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
}

// secondaryOk reports whether a read may be answered by a secondary.
func secondaryOk(op *command.Op) bool {
	return op.Req.ReadPreference.OrPrimary() != cluster.ReadPrimary
}
