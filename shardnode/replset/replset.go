package replset

import (
	"github.com/rs/zerolog"

	"github.com/shoaldb/shoal/cluster"

	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Membership is a node's membership of a replica set: the configuration, which is stored in local.system.replset, the
// member's current role, and what hello and the replSet commands report of them. Name is empty on a standalone node.
//
// A set of one member is replication.Single and has no log but its store's; the node starts replication.Raft when a
// configuration has more members, and keeps it.
type Membership struct {
	Name string
	// OnPrimary, if not nil, is called when the member begins to accept writes.
	OnPrimary func()

	node Node
	conf Config
	opts Options

	state      atomic.Pointer[replState]
	closing    atomic.Bool // the process is closing, as hello reports
	change     sync.Mutex  // serialises changes of configuration and of the kind of set
	roleChange sync.Mutex  // held while the role and hello's topology version change
	dialled    ownHosts

	mu struct {
		sync.Mutex
		since time.Time   // a set of one: when its member became primary
		back  *time.Timer // a set of one: ends a step-down
	}
}

// Node is a membership's interface to its node.
type Node interface {
	// EnsureSystem creates the system collections, once the node may write.
	EnsureSystem(ctx context.Context) error
	// ReadDoc returns a document of the node's own by its _id, nil if there is none.
	ReadDoc(ns string, id value.Value) ([]byte, error)
	// WriteDoc inserts or replaces a document of the node's own, durably. It needs no majority.
	WriteDoc(ctx context.Context, ns string, doc []byte) error
	// Warn logs errors that no client receives.
	Warn(msg string, err error)
	// Fatal is called when the node's membership cannot continue.
	Fatal(err error)
}

// Config configures a membership.
type Config struct {
	// Name is the name of the set; empty for a standalone node.
	Name string
	// Host is host:port of the node, as it names itself.
	Host         string
	ConfigServer bool
	Engine       *storage.Engine
	Member       *replication.Member
	Topology     *command.Topology
	// Service has the operations that a step-down interrupts, Services the primary-only ones that it ends.
	Service  *command.Service
	Services *replication.Services
	Params   *cluster.Params     // nil for the defaults
	Points   *cluster.FailPoints // nil for none
	Logger   *zerolog.Logger     // nil for none
	Now      func() time.Time
	// NewID returns the id for a new set.
	NewID func() [12]byte
}

// Options are a member's dependencies on its process.
type Options struct {
	// Transport reaches other members; nil if sets can have only one member.
	Transport replication.Transport
	// Ask sends a command to another member, or to a node that replSetInitiate is about to make a member.
	Ask func(ctx context.Context, host string, cmd []byte) ([]byte, error)
	// Listens are the addresses that the process listens on, by which a configuration may refer to this node.
	Listens []string
	// FirstHost is the address that a set initiated without a configuration gets; empty for Config.Host.
	FirstHost string
	// Memory means that the store is in memory.
	Memory bool
	// Together means that all members run in this process, and end with it.
	Together bool
	// Commits returns what the node commits through instead of its set; nil for the set itself. Tests count commits.
	Commits func(replication.Set) replication.Set
}

// replState is one state of a membership, replaced as a whole.
type replState struct {
	role     replication.Role
	writable bool
	term     int64
	leader   int // _id of the primary, replication.NoMember for none
	config   *replication.SetConfig
	self     *replication.MemberConfig // nil if the configuration does not have the node
}

const replsetNS = "local.system.replset"

// New returns the membership of a node, not started yet.
func New(n Node, c Config, o Options) *Membership {
	r := &Membership{Name: c.Name, node: n, conf: c, opts: o}
	r.state.Store(&replState{leader: replication.NoMember})
	c.Topology.CatchUp = r.catchUp
	return r
}

// Start reads the stored configuration. A node that has one joins its set; the only member of a set becomes primary
// at once. A standalone node does what a primary does.
func (r *Membership) Start(ctx context.Context) error {
	if r.Name == "" {
		if err := r.node.EnsureSystem(ctx); err != nil {
			return err
		}
		return r.conf.Services.StepUp(context.Background(), 0)
	}
	if yes, err := r.hasRaft(); err != nil || yes {
		if err != nil {
			return err
		}
		return r.startRaft()
	}
	config, err := r.stored()
	if err != nil || config == nil {
		return err
	}
	return r.becomeSingle(ctx, config)
}

// readStored parses the configuration of a set of one in local.system.replset. It may have been edited: a standalone server
// lets its administrator do that.
func readStored(doc []byte) (*replication.SetConfig, error) {
	c, err := replication.ParseConfig(doc)
	if err == nil {
		err = c.Validate()
	}
	if err == nil && len(c.Members) != 1 {
		err = mongoerr.Newf(mongoerr.InvalidReplicaSetConfig, "it has %d members, but was stored by a set of one", len(c.Members))
	}
	return c, err
}

// stored reads local.system.replset; nil if it is empty or not a valid configuration: then the member waits
// to be initiated like a new one, but keeps its data.
func (r *Membership) stored() (*replication.SetConfig, error) {
	doc, err := r.node.ReadDoc(replsetNS, value.NewString(r.Name))
	if err != nil || doc == nil {
		return nil, err
	}
	c, err := readStored(doc)
	if err != nil {
		r.node.Warn("The configuration in "+replsetNS+" cannot be used; initiate the set again", err)
		return nil, nil
	}
	return c, nil
}

// becomeSingle makes the node primary of a set of its own.
func (r *Membership) becomeSingle(ctx context.Context, config *replication.SetConfig) error {
	r.mu.Lock()
	r.mu.since = r.conf.Now()
	r.mu.Unlock()
	m := &config.Members[0]
	s := &replState{role: replication.Primary, term: r.conf.Member.Term(), leader: m.ID, config: config, self: m}
	r.state.Store(s)
	err := errors.Join(r.node.EnsureSystem(ctx), r.conf.Services.StepUp(context.Background(), s.term))
	if vital := (*replication.VitalError)(nil); !errors.As(err, &vital) {
		r.setWritable(s)
	}
	return err
}

// setWritable lets clients write, unless the member's state has changed since s.
func (r *Membership) setWritable(s *replState) {
	up := *s
	up.writable = true
	r.roleChange.Lock()
	current := r.state.CompareAndSwap(s, &up)
	if current {
		r.conf.Topology.Changed()
	}
	r.roleChange.Unlock()
	if current && r.OnPrimary != nil {
		r.OnPrimary()
	}
}

// catchUp makes hello report that the member is not writable if raft knows that already and roleChanged has not been called
// yet: it is called in order, after the work for earlier changes of the role.
func (r *Membership) catchUp() {
	r.roleChange.Lock()
	defer r.roleChange.Unlock()
	for {
		old := r.state.Load() // loaded before raft is asked: the member may become primary again in between
		if !old.writable || r.Name == "" || r.conf.Member.IsPrimary() {
			return
		}
		s := *old
		s.writable = false
		if r.state.CompareAndSwap(old, &s) {
			r.conf.Topology.Changed()
			return
		}
	}
}

// Config returns the configuration in force; nil before replSetInitiate and after the node was removed.
func (r *Membership) Config() *replication.SetConfig { return r.state.Load().config }

// Hosts returns the addresses of the members.
func (r *Membership) Hosts() []string {
	var hosts []string
	for _, m := range r.configMembers() {
		hosts = append(hosts, m.Host)
	}
	return hosts
}

// ConnString returns the set in the form of a connection string: name/host,host.
func (r *Membership) ConnString() string { return r.Name + "/" + strings.Join(r.Hosts(), ",") }

// Readable reports whether the member serves reads.
func (r *Membership) Readable() bool {
	role := r.state.Load().role
	return r.Name == "" || role == replication.Primary || role == replication.Secondary
}

// StepUp stands for election now; a set of one has its primary already.
func (r *Membership) StepUp(ctx context.Context) error {
	if raft := r.conf.Member.Raft(); raft != nil {
		return raft.StepUp(ctx)
	}
	return nil
}

// Initiated reports whether the set has a configuration.
func (r *Membership) Initiated() bool { return r.Config() != nil }

// Raft returns the set of several members that the node is in; nil for none.
func (r *Membership) Raft() *replication.Raft { return r.conf.Member.Raft() }

// MajorityCommitted returns the newest timestamp that a majority of the set has.
func (r *Membership) MajorityCommitted() storage.Timestamp { return r.conf.Member.MajorityCommitted() }

// Writable reports whether clients may write: on a standalone node, and on the primary.
func (r *Membership) Writable() bool { return r.Name == "" || r.state.Load().writable }

// Initiate stores the set's first configuration, which must be valid and include the node.
func (r *Membership) Initiate(ctx context.Context, c *replication.SetConfig) error {
	r.change.Lock()
	defer r.change.Unlock()
	if r.Initiated() {
		return mongoerr.New(mongoerr.AlreadyInitialized, "already initialized")
	}
	c = c.Clone()
	c.Settings.ID = r.conf.NewID()
	if len(c.Members) == 1 && r.conf.Member.Raft() == nil {
		c.Term = r.conf.Member.Term()
		if err := r.store(ctx, c.Doc()); err != nil {
			return err
		}
		return r.becomeSingle(ctx, c)
	}
	return r.beginRaft(ctx, c)
}

// Reconfigure replaces the configuration of the set whose primary the node is.
func (r *Membership) Reconfigure(ctx context.Context, c *replication.SetConfig) error {
	return r.reconfigure(ctx, c, false)
}

// reconfigure replaces the configuration by c, which is valid and may follow the one in force.
func (r *Membership) reconfigure(ctx context.Context, c *replication.SetConfig, force bool) error {
	r.change.Lock()
	defer r.change.Unlock()
	if raft := r.conf.Member.Raft(); raft != nil {
		return reconfigureInTurn(ctx, raft, c, force)
	}
	c.Term = r.conf.Member.Term()
	if len(c.Members) > 1 {
		return r.beginRaft(ctx, c)
	}
	if err := r.store(ctx, c.Doc()); err != nil {
		return err
	}
	for {
		old := r.state.Load()
		s := *old
		s.config, s.self = c, &c.Members[0]
		if s.leader != replication.NoMember {
			s.leader = s.self.ID
		}
		if r.state.CompareAndSwap(old, &s) {
			break
		}
	}
	r.conf.Topology.Changed()
	return nil
}

// reconfigWait limits how long a change of configuration waits for the previous one: a member that was added votes only
// once it has caught up.
const reconfigWait = 10 * time.Second

func reconfigureInTurn(ctx context.Context, raft *replication.Raft, c *replication.SetConfig, force bool) error {
	for end := time.Now().Add(reconfigWait); ; {
		err := raft.Reconfigure(ctx, c, force)
		if mongoerr.CodeOf(err) != mongoerr.ConfigurationInProgress || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// store writes a configuration to local.system.replset.
func (r *Membership) store(ctx context.Context, doc []byte) error {
	ctx = storage.WithReserve(ctx)
	for try := 0; ; try++ {
		err := r.node.WriteDoc(ctx, replsetNS, doc)
		if mongoerr.CodeOf(err) != mongoerr.DuplicateKey || try == 3 { // the write of an earlier primary came in between
			return err
		}
	}
}

// Rehost changes the address of the set's only member: a cluster in one process was restarted on other ports.
func (r *Membership) Rehost(ctx context.Context, host string) error {
	config := r.Config()
	if config == nil || len(config.Members) != 1 || config.Members[0].Host == host {
		return nil
	}
	next := config.Clone()
	next.Version++
	next.Members[0].Host = host
	return r.reconfigure(ctx, next, false)
}

// stepDownSingle makes the only member of a set a secondary for some time; then it becomes primary again.
func (r *Membership) stepDownSingle(d time.Duration) {
	r.mu.Lock()
	if r.mu.back != nil {
		r.mu.back.Stop()
	}
	r.mu.back = time.AfterFunc(d, r.stepUpSingle)
	r.mu.Unlock()
	r.resigned(replication.RoleChange{Role: replication.Secondary, Term: r.conf.Member.Term(), Leader: replication.NoMember})
}

// Failed steps the node down if err is that of a vital service which was added while the node was primary: clients may be writing already, unlike before the services of a new primary have stepped up. It, or
// another member, becomes primary once they step up.
func (r *Membership) Failed(err error) {
	if vital := (*replication.VitalError)(nil); !errors.As(err, &vital) {
		return
	}
	if raft := r.conf.Member.Raft(); raft != nil {
		leading := raft.LeaderContext(r.conf.Member.Term())
		r.resign(leading, func() error { return raft.StepDown(context.Background(), stepDownFor, 0, true) })
		return
	}
	r.stepDownSingle(time.Second)
}

// resign steps the node down until leading, which lasts as long as its term, is over. An attempt may fail, or end before the node has stepped down: the node would stay primary without a vital service.
func (r *Membership) resign(leading context.Context, stepDown func() error) {
	for try := 0; leading.Err() == nil; try++ {
		if err := stepDown(); err != nil && leading.Err() == nil {
			r.node.Warn("The node could not step down, although a service failed that its clients need", err)
		}
		if leading.Err() == nil && cluster.Backoff(leading, try) != nil {
			return
		}
	}
}

// stepUpSingle makes the only member of a set primary again.
func (r *Membership) stepUpSingle() {
	r.mu.Lock()
	if r.mu.back != nil {
		r.mu.back.Stop()
	}
	r.mu.since = r.conf.Now()
	r.mu.Unlock()
	s := *r.state.Load()
	if s.role == replication.Primary || s.self == nil || r.closing.Load() {
		return
	}
	s.role, s.leader = replication.Primary, s.self.ID
	r.state.Store(&s)
	err := r.conf.Services.StepUp(context.Background(), s.term)
	if err != nil {
		r.node.Warn("Some primary-only services did not step up", err)
	}
	if vital := (*replication.VitalError)(nil); errors.As(err, &vital) {
		r.stepDownSingle(time.Second)
		return
	}
	r.setWritable(&s)
}

// Status returns the state of the set as this member sees it.
func (r *Membership) Status() replication.Status {
	if raft := r.conf.Member.Raft(); raft != nil {
		return raft.Status()
	}
	s := r.state.Load()
	st := replication.Status{SetName: r.Name, Role: s.role, Writable: s.writable, Term: s.term, Leader: s.leader, Self: replication.NoMember, Config: s.config}
	if s.self == nil {
		return st
	}
	r.mu.Lock()
	since := r.mu.since
	r.mu.Unlock()
	at := func(ts storage.Timestamp) replication.OpTime {
		return replication.OpTime{TS: ts, Term: s.term, Wall: time.Unix(int64(ts.Seconds()), 0)}
	}
	st.Self, st.Initiated, st.Voting = s.self.ID, since, true
	st.Applied, st.Durable = at(r.conf.Engine.Visible()), at(r.conf.Member.MajorityCommitted())
	st.Committed = st.Durable
	st.Elections.PrimarySince, st.Elections.LastElection = since, since
	st.Members = []replication.MemberStatus{{
		ID: s.self.ID, Host: s.self.Host, Self: true, Role: s.role, Healthy: true, Voting: true, Applied: st.Applied, Durable: st.Durable,
		ConfigVersion: s.config.Version, ConfigTerm: s.config.Term, SyncSource: replication.NoMember, Uptime: r.conf.Now().Sub(r.conf.Service.Started),
		ElectedAt: since, ElectionTS: storage.Timestamp(uint64(since.Unix())<<32 | 1),
	}}
	return st
}

// electionID identifies an election: drivers consider the primary with the greater one newer.
func electionID(term int64) (id [12]byte) {
	binary.BigEndian.PutUint32(id[:], 0x7fffffff)
	binary.BigEndian.PutUint64(id[4:], uint64(term))
	return id
}

func appendOpTime(dst []byte, key string, ts storage.Timestamp, term int64) []byte {
	dst, m := value.BeginKey(dst, value.Document, key)
	dst = value.Append(dst, "ts", ts.Value())
	dst = value.Append(dst, "t", value.NewInt64(term))
	return value.End(dst, m)
}
