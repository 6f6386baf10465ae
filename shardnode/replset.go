package shardnode

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ReplSet is a node's membership of a replica set of one member: its configuration, kept in local.system.replset, and
// what hello and the replSet commands tell of it. Name is empty on a standalone node.
type ReplSet struct {
	Name string
	node *Node
	topo *command.Topology
	down atomic.Bool // stepped down for a while

	mu struct {
		sync.RWMutex
		config   []byte // the document of local.system.replset; nil before replSetInitiate
		host     string
		election [12]byte
		since    time.Time
		back     *time.Timer // ends a step-down
	}
	// OnPrimary is told when the member becomes primary; nil for nobody.
	OnPrimary func()
}

const replsetNS = "local.system.replset"

// NewReplSet reads the stored configuration of a set; a node that has one becomes primary at once.
func NewReplSet(n *Node, name string, topo *command.Topology) (*ReplSet, error) {
	r := &ReplSet{Name: name, node: n, topo: topo}
	n.Repl = r
	if name == "" {
		return r, n.ensureSystem(context.Background())
	}
	s := n.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(replsetNS)
	if c == nil {
		return r, nil
	}
	_, doc, ok, err := s.FindByID(c, value.NewString(name))
	if err != nil || !ok {
		return r, err
	}
	r.become(append([]byte(nil), doc...))
	return r, n.ensureSystem(context.Background())
}

// become makes the member primary under a configuration.
func (r *ReplSet) become(config []byte) {
	r.mu.Lock()
	r.mu.config = config
	members := value.Values(value.Lookup(config, "members").Doc())
	if len(members) > 0 {
		r.mu.host = value.Lookup(members[0].Doc(), "host").Str()
	}
	if term := value.Lookup(config, "term"); !term.IsMissing() {
		r.mu.election = [12]byte{0x7f, 0xff, 0xff, 0xff, 11: byte(term.AsFloat64())}
	}
	r.mu.since = r.node.now()
	r.mu.Unlock()
	r.topo.Changed()
	if r.OnPrimary != nil {
		r.OnPrimary()
	}
}

// Initiated reports whether the set has a configuration.
func (r *ReplSet) Initiated() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.config != nil
}

// Writable tells whether clients may write: on a standalone node, and on the primary.
func (r *ReplSet) Writable() bool {
	if r.Name == "" {
		return true
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.config != nil && !r.down.Load()
}

// Initiate gives the set its first configuration: one member, at host.
func (r *ReplSet) Initiate(op *command.Op, host string, configsvr bool) error {
	if r.Initiated() {
		return nil
	}
	m := value.Doc(value.F("_id", value.NewInt32(0)), value.F("host", value.NewString(host)))
	fields := []value.Field{value.F("_id", value.NewString(r.Name)), value.F("members", value.NewArray(value.ArrayOf(value.NewDocument(m))))}
	if configsvr {
		fields = append(fields, value.F("configsvr", value.NewBool(true)))
	}
	return r.store(op, fullConfig(value.Doc(fields...), 1))
}

// store writes a configuration and takes it up.
func (r *ReplSet) store(op *command.Op, config []byte) error {
	n := r.node
	err := retryConflicts(op, func() error {
		s := n.Engine.Snapshot()
		defer s.Release()
		u := n.Engine.NewUnitOfWork(s)
		defer u.Rollback()
		c := s.Catalog().Lookup(replsetNS)
		var err error
		if c == nil {
			if c, err = u.CreateCollection(storage.CollectionSpec{NS: replsetNS, Unreplicated: true}); err != nil {
				return err
			}
		}
		rid, old, ok, err := s.FindByID(c, value.NewString(r.Name))
		if err != nil {
			return err
		}
		if ok {
			err = u.Update(c, rid.Clone(), append([]byte(nil), old...), config, storage.NoInfo)
		} else {
			_, err = u.Insert(c, config, storage.NoInfo)
		}
		if err != nil {
			return err
		}
		_, err = n.Set.Commit(op, u, replicationConcern{W: 1, J: true})
		return err
	})
	if err != nil {
		return err
	}
	r.become(config)
	return n.ensureSystem(op)
}

// fullConfig fills in the defaults of a configuration, in the order replSetGetConfig shows them.
func fullConfig(c []byte, version int64) []byte {
	out, m := value.Begin(nil)
	out = value.Append(out, "_id", value.Lookup(c, "_id"))
	out = value.Append(out, "version", value.NewInt32(int32(version)))
	out = value.Append(out, "term", value.NewInt64(1))
	if v := value.Lookup(c, "configsvr"); v.Truthy() {
		out = value.Append(out, "configsvr", value.NewBool(true))
	}
	out, am := value.BeginKey(out, value.Array, "members")
	for i, v := range value.Values(value.Lookup(c, "members").Doc()) {
		out = value.AppendIndex(out, i, value.NewDocument(fullMember(v.Doc())))
	}
	out = value.End(out, am)
	out = value.Append(out, "protocolVersion", value.NewInt64(1))
	out = value.Append(out, "writeConcernMajorityJournalDefault", value.NewBool(true))
	out, sm := value.BeginKey(out, value.Document, "settings")
	given := value.Lookup(c, "settings").Doc()
	for _, f := range []value.Field{
		value.F("chainingAllowed", value.NewBool(true)), value.F("heartbeatIntervalMillis", value.NewInt32(2000)),
		value.F("heartbeatTimeoutSecs", value.NewInt32(10)), value.F("electionTimeoutMillis", value.NewInt32(10000)),
		value.F("catchUpTimeoutMillis", value.NewInt32(-1)), value.F("catchUpTakeoverDelayMillis", value.NewInt32(30000)),
		value.F("getLastErrorModes", value.NewDocument(value.Doc())), value.F("replicaSetId", value.NewObjectID(NewObjectID())),
	} {
		if v := value.Lookup(given, f.Key); !v.IsMissing() {
			f.Val = v
		}
		out = value.Append(out, f.Key, f.Val)
	}
	out = value.End(out, sm)
	return value.End(out, m)
}

func fullMember(m []byte) []byte {
	or := func(k string, d value.Value) value.Field {
		if v := value.Lookup(m, k); !v.IsMissing() {
			return value.F(k, v)
		}
		return value.F(k, d)
	}
	return value.Doc(
		value.F("_id", value.Lookup(m, "_id")), value.F("host", value.Lookup(m, "host")), or("arbiterOnly", value.NewBool(false)),
		or("buildIndexes", value.NewBool(true)), or("hidden", value.NewBool(false)), or("priority", value.NewInt32(1)),
		or("tags", value.NewDocument(value.Doc())), or("secondaryDelaySecs", value.NewInt64(0)), or("votes", value.NewInt32(1)))
}

// Describe appends the fields of hello that tell a node's role.
func (r *ReplSet) Describe(op *command.Op, hello bool, dst []byte) []byte {
	writable := "ismaster"
	if hello {
		writable = "isWritablePrimary"
	}
	dst = r.topo.AppendVersion(dst)
	if r.Name == "" {
		return value.Append(dst, writable, value.NewBool(true))
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.mu.config == nil {
		dst = value.Append(dst, writable, value.NewBool(false))
		dst = value.Append(dst, "secondary", value.NewBool(false))
		dst = value.Append(dst, "info", value.NewString("Does not have a valid replica set config"))
		return value.Append(dst, "isreplicaset", value.NewBool(true))
	}
	host := value.NewString(r.mu.host)
	dst = value.Append(dst, "hosts", value.NewArray(value.ArrayOf(host)))
	dst = value.Append(dst, "setName", value.NewString(r.Name))
	dst = value.Append(dst, "setVersion", value.Lookup(r.mu.config, "version"))
	dst = value.Append(dst, writable, value.NewBool(!r.down.Load()))
	dst = value.Append(dst, "secondary", value.NewBool(r.down.Load()))
	if !r.down.Load() {
		dst = value.Append(dst, "primary", host)
	}
	dst = value.Append(dst, "me", host)
	if !r.down.Load() {
		dst = value.Append(dst, "electionId", value.NewObjectID(r.mu.election))
	}
	last, durable := r.node.Engine.Visible(), r.node.Set.MajorityCommitted()
	dst, m := value.BeginKey(dst, value.Document, "lastWrite")
	dst = appendOpTime(dst, "opTime", last, r.node.Set.Term())
	dst = value.Append(dst, "lastWriteDate", value.NewDateTime(int64(last.Seconds())*1000))
	dst = appendOpTime(dst, "majorityOpTime", durable, r.node.Set.Term())
	dst = value.Append(dst, "majorityWriteDate", value.NewDateTime(int64(durable.Seconds())*1000))
	return value.End(dst, m)
}

// Tail appends readOnly, and what else mongod says at hello's end.
func (r *ReplSet) Tail(dst []byte) []byte { return value.Append(dst, "readOnly", value.NewBool(false)) }

func appendOpTime(dst []byte, key string, ts storage.Timestamp, term int64) []byte {
	dst, m := value.BeginKey(dst, value.Document, key)
	dst = value.Append(dst, "ts", ts.Value())
	dst = value.Append(dst, "t", value.NewInt64(term))
	return value.End(dst, m)
}

func (n *Node) replSpecs() []command.Spec {
	admin := func(name string, fields []command.Field, run command.Handler) command.Spec {
		return command.Spec{Name: name, Roles: command.Shard | command.Config, AdminOnly: true, ArgTypes: command.TAny, Fields: fields, Run: run}
	}
	return []command.Spec{
		admin("replSetInitiate", nil, n.runReplSetInitiate),
		admin("replSetGetConfig", []command.Field{command.Opt("commitmentStatus", command.TSafeBool)}, n.runReplSetGetConfig),
		admin("replSetGetStatus", []command.Field{command.Opt("initialSync", command.TNumber)}, n.runReplSetGetStatus),
		admin("replSetReconfig", []command.Field{command.Opt("force", command.TSafeBool)}, n.runReplSetReconfig),
	}
}

func (n *Node) replSet() (*ReplSet, error) {
	if n.Repl == nil || n.Repl.Name == "" {
		return nil, mongoerr.New(mongoerr.NoReplicationEnabled, "not running with --replSet")
	}
	return n.Repl, nil
}

func (n *Node) initiatedSet() (*ReplSet, error) {
	r, err := n.replSet()
	if err == nil && !r.Initiated() {
		err = mongoerr.New(mongoerr.NotYetInitialized, "no replset config has been received")
	}
	return r, err
}

func (n *Node) runReplSetInitiate(op *command.Op, dst []byte) ([]byte, error) {
	if n.Repl == nil || n.Repl.Name == "" {
		return dst, mongoerr.New(mongoerr.NoReplicationEnabled, "This node was not started with replication enabled.")
	}
	r := n.Repl
	if r.Initiated() {
		return dst, mongoerr.New(mongoerr.AlreadyInitialized, "already initialized")
	}
	config := op.Req.Cmd
	if config.T != value.Document || len(config.Doc()) <= 5 {
		return dst, r.Initiate(op, n.Host, n.ConfigServer)
	}
	if err := r.checkConfig(config.Doc()); err != nil {
		return dst, err
	}
	return dst, r.store(op, fullConfig(config.Doc(), 1))
}

// checkConfig holds a configuration to what a set of one member can be.
func (r *ReplSet) checkConfig(c []byte) error {
	if id := value.Lookup(c, "_id"); id.T != value.String || id.Str() != r.Name {
		return mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "Rejecting initiate with a set name that differs from command line set name, initiate set name: %s, command line set name: %s", id.Str(), r.Name)
	}
	members := value.Values(value.Lookup(c, "members").Doc())
	if len(members) == 0 {
		return mongoerr.New(mongoerr.InvalidReplicaSetConfig, "Replica set configuration must have at least one member")
	}
	if len(members) > 1 {
		return mongoerr.New(mongoerr.NotImplemented, "replica sets of more than one member are not implemented")
	}
	m := members[0]
	if m.T != value.Document || value.Lookup(m.Doc(), "host").T != value.String || !value.Lookup(m.Doc(), "_id").T.Numeric() {
		return mongoerr.New(mongoerr.FailedToParse, "a member needs an integer _id and a host")
	}
	if !strings.Contains(value.Lookup(m.Doc(), "host").Str(), ":") {
		return nil // the default port is understood
	}
	return nil
}

func (n *Node) runReplSetGetConfig(op *command.Op, dst []byte) ([]byte, error) {
	r, err := n.initiatedSet()
	if err != nil {
		return dst, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	dst = value.Append(dst, "config", value.NewDocument(r.mu.config))
	if op.Bool("commitmentStatus") {
		dst = value.Append(dst, "commitmentStatus", value.NewBool(true))
	}
	return dst, nil
}

func (n *Node) runReplSetReconfig(op *command.Op, dst []byte) ([]byte, error) {
	r, err := n.initiatedSet()
	if err != nil {
		return dst, err
	}
	c := op.Req.Cmd
	if c.T != value.Document {
		return dst, mongoerr.New(mongoerr.BadValue, "no configuration specified")
	}
	if err := r.checkConfig(c.Doc()); err != nil {
		return dst, err
	}
	v, _ := value.Lookup(c.Doc(), "version").AsInt64()
	r.mu.RLock()
	cur, _ := value.Lookup(r.mu.config, "version").AsInt64()
	r.mu.RUnlock()
	if v <= cur {
		if !op.Bool("force") {
			return dst, mongoerr.Newf(mongoerr.NewReplicaSetConfigurationIncompatible, "New replica set configuration version must be greater than old, but %d is not greater than %d for replica set %s", v, cur, r.Name)
		}
		v = cur + 1
	}
	return dst, r.store(op, fullConfig(c.Doc(), v))
}

func (n *Node) runReplSetGetStatus(op *command.Op, dst []byte) ([]byte, error) {
	r, err := n.initiatedSet()
	if err != nil {
		return dst, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	last, durable, term := n.Engine.Visible(), n.Set.MajorityCommitted(), n.Set.Term()
	date := func(ts storage.Timestamp) value.Value { return value.NewDateTime(int64(ts.Seconds()) * 1000) }
	dst = value.Append(dst, "set", value.NewString(r.Name))
	dst = value.Append(dst, "date", value.NewTime(n.now()))
	dst = value.Append(dst, "myState", value.NewInt32(1))
	dst = value.Append(dst, "term", value.NewInt64(term))
	dst = value.Append(dst, "syncSourceHost", value.NewString(""))
	dst = value.Append(dst, "syncSourceId", value.NewInt32(-1))
	if n.ConfigServer {
		dst = value.Append(dst, "configsvr", value.NewBool(true))
	}
	dst = value.Append(dst, "heartbeatIntervalMillis", value.NewInt64(2000))
	for _, k := range []string{"majorityVoteCount", "writeMajorityCount", "votingMembersCount", "writableVotingMembersCount"} {
		dst = value.Append(dst, k, value.NewInt32(1))
	}
	dst, m := value.BeginKey(dst, value.Document, "optimes")
	dst = appendOpTime(dst, "lastCommittedOpTime", durable, term)
	dst = value.Append(dst, "lastCommittedWallTime", date(durable))
	dst = appendOpTime(dst, "readConcernMajorityOpTime", durable, term)
	dst = appendOpTime(dst, "appliedOpTime", last, term)
	dst = appendOpTime(dst, "durableOpTime", durable, term)
	dst = appendOpTime(dst, "writtenOpTime", last, term)
	dst = value.Append(dst, "lastAppliedWallTime", date(last))
	dst = value.Append(dst, "lastDurableWallTime", date(durable))
	dst = value.Append(dst, "lastWrittenWallTime", date(last))
	dst = value.End(dst, m)
	dst = value.Append(dst, "lastStableRecoveryTimestamp", durable.Value())
	dst, m = value.BeginKey(dst, value.Array, "members")
	dst, mm := value.BeginKey(dst, value.Document, "0")
	dst = value.Append(dst, "_id", value.NewInt32(0))
	dst = value.Append(dst, "name", value.NewString(r.mu.host))
	dst = value.Append(dst, "health", value.NewDouble(1))
	dst = value.Append(dst, "state", value.NewInt32(1))
	dst = value.Append(dst, "stateStr", value.NewString("PRIMARY"))
	dst = value.Append(dst, "uptime", value.NewInt32(int32(n.now().Sub(n.Service.Started).Seconds())))
	dst = appendOpTime(dst, "optime", last, term)
	dst = value.Append(dst, "optimeDate", date(last))
	dst = appendOpTime(dst, "optimeWritten", last, term)
	dst = value.Append(dst, "optimeWrittenDate", date(last))
	dst = value.Append(dst, "lastAppliedWallTime", date(last))
	dst = value.Append(dst, "lastDurableWallTime", date(durable))
	dst = value.Append(dst, "lastWrittenWallTime", date(last))
	dst = value.Append(dst, "syncSourceHost", value.NewString(""))
	dst = value.Append(dst, "syncSourceId", value.NewInt32(-1))
	dst = value.Append(dst, "infoMessage", value.NewString(""))
	dst = value.Append(dst, "electionTime", value.NewTimestamp(uint32(r.mu.since.Unix()), 1))
	dst = value.Append(dst, "electionDate", value.NewTime(r.mu.since))
	dst = value.Append(dst, "configVersion", value.Lookup(r.mu.config, "version"))
	dst = value.Append(dst, "configTerm", value.NewInt64(term))
	dst = value.Append(dst, "self", value.NewBool(true))
	dst = value.Append(dst, "lastHeartbeatMessage", value.NewString(""))
	dst = value.End(dst, mm)
	return value.End(dst, m), nil
}

// Rehost makes the set's one member known by another address: a cluster in one process was started on other ports.
func (r *ReplSet) Rehost(op *command.Op, host string) error {
	r.mu.RLock()
	config, have := r.mu.config, r.mu.host
	r.mu.RUnlock()
	if config == nil || have == host {
		return nil
	}
	version, _ := value.Lookup(config, "version").AsInt64()
	members := value.Values(value.Lookup(config, "members").Doc())
	if len(members) != 1 {
		return nil
	}
	member, m := value.Begin(nil)
	for k, v := range value.Elements(members[0].Doc()) {
		if k == "host" {
			v = value.NewString(host)
		}
		member = value.Append(member, k, v)
	}
	member = value.End(member, m)
	next, m := value.Begin(nil)
	for k, v := range value.Elements(config) {
		switch k {
		case "version":
			v = value.NewInt32(int32(version + 1))
		case "members":
			v = value.NewArray(value.ArrayOf(value.NewDocument(member)))
		}
		next = value.Append(next, k, v)
	}
	return r.store(op, value.End(next, m))
}
