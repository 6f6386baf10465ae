package shardnode

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/ddl"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/profile"
	"github.com/shoaldb/shoal/shardnode/queryanalysis"
	"github.com/shoaldb/shoal/shardnode/replset"
	"github.com/shoaldb/shoal/shardnode/settings"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/shardnode/streams"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/shardnode/write"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/lock"
)

// Node is one data-bearing node.
type Node struct {
	Engine  *storage.Engine
	Set     replication.Set
	Docs    *statedoc.Docs // the node's own documents
	Service *command.Service
	Params  *cluster.Params
	Points  *cluster.FailPoints // nil for none
	// Repl is the node's membership of its replica set; nil before joinSet.
	Repl *replset.Membership
	// ConfigServer is true on the config server's node.
	ConfigServer bool
	// Host is host:port as diagnostics print it.
	Host string
	Process
	// Sessions caches the sessions in use, for $listLocalSessions; nil for none.
	Sessions *cluster.SessionCache
	// Services are the primary-only services of the node.
	Services *replication.Services
	Reports

	rooms
	cursors  cursorTable
	locks    *lock.Manager // keeps writes (IX) and changes of the catalog (X) of one collection apart
	counters *opCounters
	latency  latencyTable
	admin    adminState
	now      func() time.Time
}

// Process has what the process provides to the node.
type Process struct {
	// SlowLog writes the log line of a slow operation; nil if there is no log.
	SlowLog func(conn int64, write bool, attrs []byte)
	// TempDir is the directory that sorts spill to; empty for the system's temporary directory.
	TempDir string
	// Fatal is called when the node's store or its replication cannot continue; nil for none.
	Fatal func(err error)
	// Logger is for the parts that log for themselves; nil for none.
	Logger *zerolog.Logger

	background func(func(life context.Context)) // runs work that outlives its command; the server waits for it
}

// rooms are the parts of the node that are packages of their own.
type rooms struct {
	shard    *migration.Shard
	metas    *namespace.Cache
	exec     *exec.Executor
	txns     *txn.Manager
	writes   *write.Writer
	settings *settings.Settings
	profiler *profile.Profiler
	ddl      *ddl.Commands
	analysis *queryanalysis.Manager
}

// Options configure a node.
type Options struct {
	Engine  *storage.Engine
	Set     replication.Set
	Service *command.Service
	Host    string
	Params  *cluster.Params
	Points  *cluster.FailPoints
	Now     func() time.Time // nil: time.Now
}

// New makes a node and registers its commands with the service.
func New(o Options) *Node {
	n := &Node{Engine: o.Engine, Set: o.Set, Service: o.Service, Host: o.Host, Params: o.Params, Points: o.Points, now: o.Now, counters: &opCounters{}, Services: &replication.Services{}}
	if n.now == nil {
		n.now = time.Now
	}
	n.locks = lock.NewManager()
	n.Docs = &statedoc.Docs{Engine: n.Engine, Set: n.Set, Warn: n.warn}
	n.profiler = profile.New(profile.Config{Engine: n.Engine, Set: n.Set, Now: n.now, SlowLog: func() func(int64, bool, []byte) { return n.SlowLog }})
	n.settings = settings.New(settings.Config{Engine: n.Engine, Docs: n.Docs, Locks: n.locks, Params: n.Params, Now: n.now, Lone: n.lone, Audit: n.Service.Audit,
		IsShard: func() bool { return n.shard.State() != nil }, Cluster: func() settings.Cluster { return clusterOf(n) },
		Drain: func(ctx context.Context, why error) error { return drainUsers(ctx, n, why) }})
	n.shard = migration.NewShard(n.Docs, shardNode{n})
	n.txns = txn.New(txn.Config{
		Engine: n.Engine, Set: n.Set, Docs: n.Docs, Params: n.Params, Points: n.Points, Service: n.Service, Locks: n.locks, Now: n.now,
		Writes: n.counters.Writes,
		Missing: func(ctx context.Context, ids []cluster.LogicalSessionID) ([]cluster.LogicalSessionID, error) {
			return n.Sessions.Missing(ctx, ids) // opened later
		},
	}, sessionNode{n})
	n.exec = exec.New(nodeEnv{n})
	n.metas = namespace.NewCache(n.exec, n.reportInvalid)
	n.writes = write.New(write.Config{
		Engine: n.Engine, Set: n.Set, Docs: n.Docs, Params: n.Params, Points: n.Points, Service: n.Service, Exec: n.exec, Compiled: n.metas,
		Locks: n.locks, Txns: n.txns, Counts: &n.counters.Opcounters, Now: n.now,
	}, writingNode{n})
	n.ddl = ddl.New(n.Engine, n.writes, catalogNode{n})
	n.cursors.init()
	n.cursors.feed = streams.NewFeed(o.Engine, n.warn)
	n.counters.work.Init()
	n.analysis = newAnalysis(n)
	n.register(o.Service.Table)
	o.Service.DescribeTasks(func(time.Time) [][]value.Field { return describeBuilds(o.Engine) })
	o.Service.Hooks.IsTimeSeries = func(_ *command.Op, ns string) (bool, error) {
		return namespace.Buckets(n.Engine.Catalog(), ns) != nil, nil
	}
	return n
}

// Close ends the cursors that are still open.
func (n *Node) Close() {
	n.cursors.closeAll()
	n.cursors.feed.Close()
}

// Reports are the node's callbacks for what has a log line of its own; nil means that it is not logged.
type Reports struct {
	// Warn logs errors that no client receives.
	Warn func(msg string, err error)
	// Invalid logs a document that its collection's validator rejects, if the validation action is to log.
	Invalid func(ns string, doc, errInfo []byte)
	// BuildWaits logs that an index build waits for members that are not ready to commit.
	BuildWaits func(build, ns string, quorum value.Value, missing []string)
}

// reportInvalid logs a document that a validator rejects.
func (n *Node) reportInvalid(ns string, doc, errInfo []byte) {
	if n.Invalid != nil {
		n.Invalid(ns, doc, errInfo)
	}
}

func (n *Node) warn(msg string, err error) {
	if n.Warn != nil {
		n.Warn(msg, err)
	}
}

// notPrimary returns the error of a write on a member that may not accept it.
func (n *Node) notPrimary() error {
	if n.Repl == nil {
		return nil
	}
	return n.Repl.NotPrimary()
}
