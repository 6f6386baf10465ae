package replset

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// minOplogMB is the smallest oplog size that replSetResizeOplog accepts.
const minOplogMB = 990

// Specs returns the commands of replica sets.
func (r *Membership) Specs() []command.Spec {
	row := func(name string, run command.Handler, fields ...command.Field) command.Spec {
		return command.Spec{Name: name, Roles: command.Shard | command.Config, AdminOnly: true, Fields: fields, Run: run}
	}
	any := func(name string, run command.Handler, fields ...command.Field) command.Spec {
		s := row(name, run, fields...)
		s.ArgTypes = command.TAny
		return s
	}
	lenient := func(s command.Spec) command.Spec { s.Lenient = true; return s }
	return []command.Spec{
		any("replSetInitiate", r.runReplSetInitiate),
		any("replSetGetConfig", r.runReplSetGetConfig, command.Opt("commitmentStatus", command.TSafeBool)),
		any("replSetGetStatus", r.runReplSetGetStatus, command.Opt("initialSync", command.TNumber)),
		any("replSetReconfig", r.runReplSetReconfig, command.Opt("force", command.TSafeBool)),
		row("replSetStepDown", r.runStepDown, command.Opt("secondaryCatchUpPeriodSecs", command.TNumber), command.Opt("force", command.TSafeBool)),
		row("replSetStepUp", r.runStepUp, command.Opt("skipDryRun", command.TSafeBool)),
		row("replSetGetRBID", r.runGetRBID),
		row("replSetResizeOplog", r.runResizeOplog, command.Opt("size", command.TNumber), command.Opt("minRetentionHours", command.TNumber)),
		lenient(row("replSetFreeze", r.runFreeze)),
		lenient(row("replSetMaintenance", r.runMaintenance)),
		lenient(row("replSetSyncFrom", r.runSyncFrom)),
		row("replSetAbortPrimaryCatchUp", r.runAbortCatchUp),
		r.heartbeatSpec(), r.raftSpec(), r.isSelfSpec(),
	}
}

// needSet returns an error on a standalone node.
func (r *Membership) needSet() error {
	if r.Name == "" {
		return mongoerr.New(mongoerr.NoReplicationEnabled, "not running with --replSet")
	}
	return nil
}

// NeedConfig returns an error if the set has not been initiated.
func (r *Membership) NeedConfig() error {
	if err := r.needSet(); err != nil {
		return err
	}
	if !r.Initiated() {
		return mongoerr.New(mongoerr.NotYetInitialized, "no replset config has been received")
	}
	return nil
}

func (r *Membership) runReplSetInitiate(op *command.Op, dst []byte) ([]byte, error) {
	if r.Name == "" {
		return dst, mongoerr.New(mongoerr.NoReplicationEnabled, "This node was not started with replication enabled.")
	}
	if r.Initiated() {
		return dst, mongoerr.New(mongoerr.AlreadyInitialized, "already initialized")
	}
	doc := op.Req.Cmd.Doc()
	if op.Req.Cmd.T != value.Document || len(doc) <= 5 {
		c := replication.NewConfig(r.Name, cmp.Or(r.opts.FirstHost, r.conf.Host))
		c.ConfigServer = r.conf.ConfigServer
		dst = value.Append(dst, "info2", value.NewString("no configuration specified. Using a default configuration for the set"))
		dst = value.Append(dst, "me", value.NewString(c.Members[0].Host))
		return dst, r.Initiate(op, c)
	}
	if id := value.Lookup(doc, "_id"); id.T == value.String && id.Str() != r.Name {
		return dst, mongoerr.Newf(mongoerr.InvalidReplicaSetConfig,
			"Rejecting initiate with a set name that differs from command line set name, initiate set name: %s, command line set name: %s", id.Str(), r.Name)
	}
	c, err := replication.ParseConfig(doc)
	if err != nil {
		return dst, err
	}
	c.ConfigServer = c.ConfigServer || r.conf.ConfigServer // launchers rely on the server to set it
	if err := c.ValidateInitiate(r.Name, r.conf.ConfigServer); err != nil {
		return dst, err
	}
	if err := r.checkSelf(op, c, 0, mongoerr.InvalidReplicaSetConfig); err != nil {
		return dst, err
	}
	if err := r.askMembers(op, "replSetInitiate", c, nil); err != nil {
		return dst, err
	}
	return dst, r.Initiate(op, c)
}

func (r *Membership) runReplSetGetConfig(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	dst = value.Append(dst, "config", value.NewDocument(r.Config().Doc()))
	if op.Bool("commitmentStatus") {
		if !r.Writable() {
			return dst, mongoerr.New(mongoerr.NotWritablePrimary, "commitmentStatus is only supported on primary.")
		}
		dst = value.Append(dst, "commitmentStatus", value.NewBool(true))
	}
	return dst, nil
}

func (r *Membership) runReplSetReconfig(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	if op.Req.Cmd.T != value.Document {
		return dst, mongoerr.New(mongoerr.BadValue, "no configuration specified")
	}
	force := op.Bool("force")
	s := r.state.Load()
	if !force && !s.writable {
		return dst, mongoerr.Newf(mongoerr.NotWritablePrimary, "Safe reconfig is only allowed on a writable PRIMARY. Current state %s", s.role)
	}
	c, err := replication.ParseConfig(op.Req.Cmd.Doc())
	if err != nil {
		return dst, err
	}
	old := s.config
	if force { // so that it takes precedence over any configuration that unreachable members may have agreed on
		c.Version = max(c.Version, old.Version) + 10000 + rand.Int64N(90000)
		c.Term = replication.NoTerm
	}
	if err := c.CheckConfigServer(r.conf.ConfigServer); err != nil {
		return dst, err
	}
	if err := c.ValidateReconfig(old, force); err != nil {
		return dst, err
	}
	c.Settings.ID = old.Settings.ID
	term := s.term
	if force {
		term = replication.NoTerm
	}
	if err := r.checkSelf(op, c, term, mongoerr.NodeNotFound); err != nil {
		return dst, err
	}
	if i := r.findSelf(c); !force && i >= 0 && !c.Members[i].Electable() {
		return dst, mongoerr.Newf(mongoerr.NodeNotElectable, "This node, %s, with _id %d is not electable under the new configuration with {version: %d, term: %d} for replica set %s",
			c.Members[i].Host, c.Members[i].ID, c.Version, s.term, c.Name)
	}
	if !force {
		if err := r.askMembers(op, "replSetReconfig", c, old); err != nil {
			return dst, err
		}
	}
	return dst, r.reconfigure(op, c, force)
}

// runStepDown makes the primary a secondary for some seconds, once another member has caught up. If none
// does, it steps down only with force.
func (r *Membership) runStepDown(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	if !op.Req.Cmd.T.Numeric() {
		return dst, command.WrongType("replSetStepDown.replSetStepDown", op.Req.Cmd.T, command.TNumber)
	}
	secs := value.SafeInt64(op.Req.Cmd)
	force := op.Bool("force")
	catchUp := int64(10)
	if force {
		catchUp = 0
	}
	if v := op.Arg("secondaryCatchUpPeriodSecs"); !v.IsMissing() {
		catchUp = value.SafeInt64(v)
	}
	switch {
	case secs < 0:
		return dst, mongoerr.New(mongoerr.BadValue, "stepdown period must be a positive integer")
	case catchUp < 0:
		return dst, mongoerr.New(mongoerr.BadValue, "secondaryCatchUpPeriodSecs period must be a positive or absent")
	case secs < catchUp:
		return dst, mongoerr.New(mongoerr.BadValue, "stepdown period must be longer than secondaryCatchUpPeriodSecs")
	case !r.Writable():
		return dst, mongoerr.New(mongoerr.NotWritablePrimary, "not primary so can't step down")
	}
	period, wait := time.Duration(secs)*time.Second, time.Duration(catchUp)*time.Second
	if raft := r.Raft(); raft != nil {
		return dst, raft.StepDown(op, period, wait, force)
	}
	if !force {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-op.Done():
			return dst, op.Err()
		}
		return dst, mongoerr.New(mongoerr.ExceededTimeLimit, "No electable secondaries caught up. Please use the replSetStepDown command with the argument {force: true} to force node to step down.")
	}
	r.stepDownSingle(period)
	return dst, nil
}

// runStepUp stands for election at once, and ends a step-down early.
func (r *Membership) runStepUp(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	if raft := r.Raft(); raft != nil {
		return dst, raft.StepUp(op)
	}
	r.stepUpSingle()
	return dst, nil
}

// runFreeze keeps a secondary from standing for election for some seconds.
func (r *Membership) runFreeze(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	if r.state.Load().role == replication.Primary {
		return dst, mongoerr.New(mongoerr.NotSecondary, "cannot freeze node when primary or running for election. state: Primary")
	}
	secs := value.SafeInt64(op.Req.Cmd)
	switch {
	case secs < 0:
		return dst, mongoerr.New(mongoerr.BadValue, "freeze seconds must be non-negative")
	case secs == 0:
		dst = value.Append(dst, "info", value.NewString("unfreezing"))
	case secs == 1:
		dst = value.Append(dst, "warning", value.NewString("you really want to freeze for only 1 second?"))
	}
	if raft := r.Raft(); raft != nil {
		return dst, raft.Freeze(time.Duration(secs) * time.Second)
	}
	if secs == 0 {
		r.stepUpSingle()
	} else {
		r.stepDownSingle(time.Duration(secs) * time.Second)
	}
	return dst, nil
}

// runMaintenance puts a secondary into RECOVERING, where it serves no reads, and back.
func (r *Membership) runMaintenance(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	s := r.state.Load()
	if s.role == replication.Primary {
		return dst, mongoerr.New(mongoerr.NotSecondary, "primaries can't modify maintenance mode")
	}
	on := op.Req.Cmd.Truthy()
	if !on && s.role != replication.Recovering {
		return dst, mongoerr.New(mongoerr.OperationFailed, "already out of maintenance mode")
	}
	raft := r.Raft()
	if raft == nil {
		return dst, command.NotImplemented("replSetMaintenance on the only member of a set")
	}
	return dst, raft.SetMaintenance(op, on)
}

// runSyncFrom sets the sync source. All members follow the primary, so no other member is accepted.
func (r *Membership) runSyncFrom(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	s := r.state.Load()
	if s.role == replication.Primary {
		return dst, mongoerr.New(mongoerr.NotSecondary, "primaries don't sync")
	}
	host := op.Req.Cmd.Str()
	m := s.config.ByHost(host)
	switch {
	case m == nil:
		return dst, mongoerr.Newf(mongoerr.NodeNotFound, "Could not find member \"%s\" in replica set", host)
	case s.self != nil && m.ID == s.self.ID:
		return dst, mongoerr.New(mongoerr.InvalidOptions, "I cannot sync from myself")
	case m.ID != s.leader:
		return dst, command.NotImplemented("replSetSyncFrom: all members follow the primary's log; syncing from another member")
	}
	dst = value.Append(dst, "syncFromRequested", value.NewString(host))
	return value.Append(dst, "prevSyncTarget", value.NewString(host)), nil
}

func (r *Membership) runAbortCatchUp(op *command.Op, dst []byte) ([]byte, error) {
	err := r.NeedConfig()
	switch {
	case err != nil:
	case r.state.Load().role != replication.Primary:
		err = mongoerr.New(mongoerr.NotWritablePrimary, "Node is not primary")
	default:
		err = mongoerr.New(mongoerr.IllegalOperation, "The node is not in catchup mode")
	}
	return dst, err
}

func (r *Membership) runGetRBID(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	return value.Append(dst, "rbid", value.NewInt32(1)), nil
}

func (r *Membership) runResizeOplog(op *command.Op, dst []byte) ([]byte, error) {
	if err := r.NeedConfig(); err != nil {
		return dst, err
	}
	size, hours := op.Arg("size"), op.Arg("minRetentionHours")
	if size.IsMissing() && hours.IsMissing() {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "replSetResizeOplog needs a size or minRetentionHours")
	}
	if !size.IsMissing() && size.AsFloat64() < minOplogMB {
		return dst, mongoerr.Newf(mongoerr.BadValue, "BSON field 'size' value must be >= %d, actual value '%s'", minOplogMB, value.Show(size))
	}
	if !hours.IsMissing() && hours.AsFloat64() < 0 {
		return dst, mongoerr.Newf(mongoerr.BadValue, "BSON field 'minRetentionHours' value must be >= 0, actual value '%s'", value.Show(hours))
	}
	if hours.AsFloat64() > 0 {
		return dst, command.NotImplemented("replSetResizeOplog: minRetentionHours")
	}
	if !size.IsMissing() {
		r.conf.Engine.SetOplogSize(int64(size.AsFloat64() * (1 << 20)))
	}
	return dst, nil
}
