package shardnode

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/shoaldb/shoal/auth/oidc"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/replset"
	"github.com/shoaldb/shoal/shardnode/resharding"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
)

// OperationLog configures the log of operations.
type OperationLog struct {
	// Slow writes the line of an operation; nil if there is no log.
	Slow func(conn int64, write bool, attrs []byte)
	// All reports whether every operation gets a line, however fast; nil if only slow ones do.
	All func(write bool) bool
	// BuildWaits writes that an index build waits for members that are not ready to commit; nil if there is no log.
	BuildWaits func(build, ns string, quorum value.Value, missing []string)
}

// Config configures a data-bearing server.
type Config struct {
	Dir     string
	Memory  bool
	SetName string // the replica set; empty for a standalone server
	Host    string // host:port by which others reach it
	Config  bool   // whether it is the config server
	Params  *cluster.Params
	Points  *cluster.FailPoints
	// Clock is shared by the nodes of one process; nil makes one. A standalone server reports no times.
	Clock *cluster.VectorClock
	Info  *command.Info
	// Invalid logs documents that validators reject.
	Invalid func(ns string, doc, errInfo []byte)
	// Logger is the logger of the node and its part in the set; nil for none.
	Logger *zerolog.Logger
	Store  StoreConfig
	// OnPrimary is called when the server begins to accept writes; nil for none.
	OnPrimary func()
	// Warn logs errors that no client receives; nil if they are not logged.
	Warn func(msg string, err error)
	// Fatal is called when the store or the member of the set cannot continue, perhaps more than once; nil for
	// none.
	Fatal func(err error)
	// Security configures whether requests need authorization, and how members prove who they are.
	Security Security
	// Repl connects the server to the other members of its set.
	Repl ReplOptions
	// Operations configures the log of operations.
	Operations OperationLog
	// Done is called for every operation when it has ended; nil for none.
	Done func(op *command.Op, err error)
}

// StoreConfig configures a server's store.
type StoreConfig struct {
	Logger *zerolog.Logger // nil for none
	// Stores is the number of servers in this process whose stores are on the same disk; 0 means 1.
	Stores int
	// Change changes the options of the store; nil for none. Tests pass file systems that lose what was not synced.
	Change func(o *storage.Options)
}

// Security configures access to a server.
type Security struct {
	// Enforced means that requests need authorization.
	Enforced bool
	// Members verifies that a peer is a member of the cluster; nil if its claim is believed.
	Members *command.Members
	// OneProcess is set if all members are in this process.
	OneProcess bool
	// Providers verify the tokens of MONGODB-OIDC; nil if it cannot be enabled.
	Providers *oidc.Registry
	// Audit is the process's audit log; nil without one.
	Audit *command.Audit
}

// install sets up a server's access control, with users from its own store.
func (c *Security) install(s *Server, params *cluster.Params) {
	a := &command.Access{Enforced: c.Enforced, Members: c.Members, OneProcess: c.OneProcess, Params: params, Providers: c.Providers, Users: s.OwnPeer()}
	a.Install(s.Service)
	s.Service.Hooks.ByUUID = func(id [16]byte) string {
		if coll := s.Engine.Catalog().LookupUUID(id); coll != nil {
			return coll.NS
		}
		return ""
	}
}

// Server is an open data-bearing server: its store, its commands, its replica set.
type Server struct {
	Node    *Node
	Service *command.Service
	Base    *command.Base
	Repl    *replset.Membership
	Clock   *cluster.VectorClock
	Engine  *storage.Engine

	sessions cluster.SessionStore // the cluster's sessions, on its config server; nil on other nodes

	again   chan struct{} // signals the follower to read again
	joins   atomic.Pointer[func(migration.Identity) (*migration.ShardState, error)]
	joining sync.Mutex
	local   *command.Client
	life    context.Context // canceled by stop
	stop    context.CancelFunc
	work    sync.WaitGroup
	builds  sync.WaitGroup // index builds; they may wait for the replicated log until the node leaves the set
	done    chan struct{}
}

// Open opens the store and returns a server on it. Requests reach it through a front (command.Front) or a peer.
func Open(c Config) (*Server, error) {
	store := storage.Options{Dir: c.Dir, Memory: c.Memory, Logger: c.Store.Logger, OnFailure: c.Fatal, Stores: c.Store.Stores, Standalone: c.SetName == "", Needs: resharding.NeededHistory}
	if c.Store.Change != nil {
		c.Store.Change(&store)
	}
	eng, err := storage.Open(store)
	if err != nil {
		return nil, err
	}
	role := command.Shard
	if c.Config {
		role = command.Config
	}
	s := &Server{Engine: eng, Service: command.NewService(role), Clock: c.Clock, done: make(chan struct{}), again: make(chan struct{}, 1)}
	s.Service.Audit = c.Security.Audit // before the node reads its settings, with auditConfig among them
	if s.Clock == nil && c.SetName != "" {
		s.Clock = cluster.NewVectorClock(time.Now)
	}
	if c.SetName != "" {
		s.Service.Clock = s.Clock
		s.Clock.AdvanceCluster(uint64(eng.Visible()))
	}
	c.setDefaults()
	member := replication.NewMember(replication.NewSingle(eng))
	var set replication.Set = member
	if c.Repl.Commits != nil {
		set = c.Repl.Commits(set)
	}
	if s.Clock != nil {
		set = clockedSet{set, eng, s.Clock}
	}
	temp := ""
	if !c.Memory && c.Dir != "" {
		temp = filepath.Join(c.Dir, "_tmp")
		_ = os.RemoveAll(temp) // left by a killed process
	}
	s.Service.ProcessLost = func(id [16]byte) { s.Node.txns.RouterLost(id) }
	s.Node = New(Options{Engine: eng, Set: set, Service: s.Service, Host: c.Host, Params: c.Params, Points: c.Points})
	s.Node.TempDir = temp
	s.Node.ConfigServer = c.Config
	s.Node.exec.Watch(s.Node.Params)
	s.Node.Invalid, s.Node.BuildWaits = c.Invalid, c.Operations.BuildWaits
	s.Node.Warn, s.Node.Fatal, s.Node.Logger = c.Warn, c.Fatal, c.Logger
	s.Base = &command.Base{Service: s.Service, Params: c.Params, FailPoints: c.Points, Done: s.Node.noteDone(c.Done)}
	s.openSessions()
	s.Base.BeginTxn = s.Node.txns.Begin
	s.Base.Install()
	s.Service.AddGeneric(c.Info)
	c.Security.install(s, c.Params)
	topo := command.NewTopology(cluster.NewObjectID(), 0)
	s.Repl = s.Node.joinSet(c.SetName, topo, member, c.Repl)
	s.Repl.OnPrimary = c.OnPrimary
	if err := s.Node.settings.Load(); err != nil {
		_ = eng.Close()
		return nil, err
	}
	s.Base.Admit = s.Node.admit
	s.Service.Topology = topo
	topo.Describe, topo.Tail = s.Repl.Describe, s.Repl.Tail
	s.Service.Table.Add(command.HelloSpec(topo))
	s.Node.addStatus(s.Base)
	s.Node.SlowLog, s.Node.profiler.LogAll = c.Operations.Slow, c.Operations.All
	s.Service.AddRest(s.sharded)
	s.local = &command.Client{InProcess: true, Internal: true, Remote: "local", Started: time.Now()}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// setDefaults makes the parameters and fail points that the caller has not supplied.
func (c *Config) setDefaults() {
	if c.Params == nil {
		c.Params = cluster.NewParams()
	}
	if c.Points == nil {
		c.Points = cluster.NewFailPoints()
	}
}

// noteDone counts operations, logs and profiles slow ones, and calls done for each if it is not nil.
func (n *Node) noteDone(done func(op *command.Op, err error)) func(op *command.Op, err error) {
	return func(op *command.Op, err error) {
		n.opDone(op, err)
		if done != nil {
			done(op, err)
		}
	}
}

// Peer reaches the server from within the process.
func (s *Server) Peer() cluster.Peer { return s.peer(s.local) }

// OwnPeer is Peer for the server's own work, which reads on any member.
func (s *Server) OwnPeer() cluster.Peer { return s.peer(command.OwnClient()) }

func (s *Server) peer(c *command.Client) cluster.Peer {
	return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
		return s.Service.Direct(ctx, c, m, dst)
	})
}

// Initiate makes the server the only member of its set; if the set is already initiated, it updates the server's address.
func (s *Server) Initiate(ctx context.Context) error {
	if s.Repl.Initiated() {
		return s.Repl.Rehost(ctx, s.Node.Host)
	}
	c := replication.NewConfig(s.Repl.Name, s.Node.Host)
	c.ConfigServer = s.Node.ConfigServer
	return s.Repl.Initiate(ctx, c)
}

// keysWait is the time that a node that joins a cluster waits for the signing keys.
const keysWait = 5 * time.Second

// FollowKeys makes the server sign cluster times with keys that others keep. If they cannot be read soon, the server
// signs nothing until they can be: a shard has to start while its config server has no primary.
func (s *Server) FollowKeys(store cluster.KeyStore) {
	ring := cluster.NewKeyRing(store)
	loaded := make(chan struct{})
	s.work.Go(func() {
		defer close(loaded)
		for try := 0; ring.Load(s.life) != nil; try++ {
			if cluster.Backoff(s.life, try) != nil {
				return
			}
		}
		s.Clock.UseKeys(ring)
		s.Background(func(life context.Context) { ring.Follow(life, s.Clock) })
	})
	select {
	case <-loaded:
	case <-time.After(keysWait):
		s.Clock.UseKeys(ring) // without keys it signs nothing
	}
}

// Background runs f until the server ends, which cancels its context.
func (s *Server) Background(f func(life context.Context)) { s.work.Go(func() { f(s.life) }) }

// MajorityTime returns the newest majority-committed timestamp.
func (s *Server) MajorityTime() uint64 { return uint64(s.Repl.MajorityCommitted()) }

// start adds the primary-only services, joins the node's set, and runs the rest of its background work.
func (s *Server) start() error {
	n := s.Node
	ctx, cancel := context.WithCancel(context.Background())
	s.life, s.stop = ctx, cancel
	n.background = func(f func(context.Context)) { s.builds.Go(func() { f(ctx) }) }
	services := []replication.Service{
		{Name: "Administration", StepUp: func(context.Context, int64) error { n.forgetWriting(); return n.settings.Load() }},
		n.txns.RetryService(), n.temporaryService(), secretService(n), s.buildService(), n.ttlService(), imageService(n),
	}
	for _, v := range services {
		if err := n.Services.Add(v); err != nil {
			close(s.done)
			return err
		}
	}
	n.Params.OnChange("minSnapshotHistoryWindowInSeconds", func(v value.Value) {
		s.Engine.SetHistoryWindow(time.Duration(value.SafeInt64(v)) * time.Second)
	})
	n.Params.OnChange("largeTransactionThresholdBytes", func(v value.Value) { s.Engine.SetLargeUnits(int(value.SafeInt64(v))) })
	s.Engine.OnApply(s.follow)
	s.Engine.OnNotice(n.onCommitNotice)
	if err := n.loadNoticed(); err != nil {
		close(s.done)
		return err
	}
	s.work.Go(func() { n.analysis.Run(ctx) })
	var follower sync.WaitGroup
	follower.Add(1)
	go func() {
		defer follower.Done()
		s.runFollower(ctx)
	}()
	go func() {
		defer close(s.done)
		defer follower.Wait()
		tick := time.NewTicker(4 * time.Second)
		synced := time.Now()
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				n.cursors.expireLost(s.Service.HasProcess)
				n.cursors.expire(now, time.Duration(n.Params.Int("cursorTimeoutMillis"))*time.Millisecond)
				n.metas.Prune(n.Engine.Catalog())
				if n.sessionsDue(now.Sub(synced)) {
					synced = now
					s.keepSessions(ctx)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return s.Repl.Start(ctx)
}

// Close ends running operations and closes the store.
func (s *Server) Close() error {
	s.Repl.Quiesce(time.Now())
	s.Service.Stop()
	s.stop()
	s.work.Wait()
	<-s.done
	s.Node.Services.Interrupt()
	s.Service.WaitIdle(10 * time.Second)
	err := s.Repl.Leave()
	s.Node.Services.StepDown() // after the log has ended, which a service may wait for: without a majority until the primary stepped down
	s.builds.Wait()
	s.Node.Close()
	return errors.Join(err, s.Engine.Close())
}

// killSessionCursors ends the cursors of the sessions for which f returns true.
func (n *Node) killSessionCursors(f func(cluster.LogicalSessionID) bool) (killed int) {
	return n.cursors.killWhere(func(c *cursor) bool {
		if c.lsid == nil {
			return false
		}
		id, err := cluster.ParseLSID(c.lsid, cluster.NoUser)
		return err == nil && f(id)
	})
}

// CoordinateSettings has the config server's settings set on the whole cluster (settings.Config).
func (s *Server) CoordinateSettings(by func(op *command.Op, setting msg.Message) error) {
	s.Node.settings.Coordinate = by
}

// ClusterParameters returns the values of all cluster parameters, by name.
func (s *Server) ClusterParameters() [][]byte { return s.Node.settings.ClusterParameters() }
