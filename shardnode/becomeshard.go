package shardnode

import (
	"context"
	"errors"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/coordinator"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/resharding"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// onCommitNotice passes a unit's notice to the rooms that process it.
func (n *Node) onCommitNotice(ts storage.Timestamp, notice []byte) {
	n.txns.OnCommitNotice(ts, notice)
	n.shard.OnCommitNotice(ts, notice)
}

// loadNoticed reads from the store what missed notices would have reported.
func (n *Node) loadNoticed() error {
	if err := n.txns.LoadPrepared(); err != nil {
		return err
	}
	return n.shard.Load()
}

// BecomeShard makes the node take part in the sharding protocols and registers their commands.
func (n *Node) BecomeShard(state *migration.ShardState) {
	if n.Service.Access != nil {
		n.Service.Access.OfShard(state.Registry.Several)
	}
	c := txn.NewCoordinators(n.txns, txn.Shard{ID: state.ID, Registry: state.Registry, Clock: state.Clock})
	n.Service.Table.Add(c.Spec())
	err := migration.Start(migration.Config{
		Engine: n.Engine, Docs: n.Docs, Params: n.Params, Points: n.Points, Service: n.Service, Services: n.Services, Locks: n.locks, Now: n.now, Counts: &n.counters.Opcounters, Linearize: n.linearize,
	}, shardNode{n}, n.txns, n.shard, state)
	d := coordinator.New(coordinator.Config{Engine: n.Engine, Docs: n.Docs, State: state, Points: n.Points, Warn: n.warn, Locks: n.locks, Sessions: n.txns, Host: n.host, Forget: n.forget,
		Holds: n.Service.Table.Lookup("_holdsCriticalSection"), Linearize: n.linearize, Blocked: n.settings.CheckBlocked})
	n.Service.Table.Add(d.Specs()...)
	n.Service.DescribeTasks(d.CurrentOps)
	n.admin.coordinators.Store(d)
	re := resharding.New(resharding.Config{Engine: n.Engine, Docs: n.Docs, State: state, Points: n.Points, Warn: n.warn, Locks: n.locks, Sessions: n.txns, Forget: n.forget, Now: n.now, Counts: &n.counters.Opcounters,
		SnapshotAt: func(op *command.Op, ts storage.Timestamp) (*storage.Snapshot, error) { return snapshotAt(n, op, ts) }})
	n.Service.Table.Add(re.Specs()...)
	n.Service.DescribeTasks(re.CurrentOps)
	n.admin.resharding.Store(re)
	err = errors.Join(err, n.Services.Add(c.PrimaryOnly()), n.Services.Add(d.Service()), n.Services.Add(re.Service()))
	if err != nil {
		n.warn("Migrations and DDL did not step up", err)
		n.Repl.Failed(err)
	}
}

// shardNode implements what migrations need from the node.
type shardNode struct{ n *Node }

func (s shardNode) NotPrimary() error { return s.n.notPrimary() }

func (s shardNode) SetConfig() *replication.SetConfig { return s.n.Repl.Config() }

func (s shardNode) Warn(msg string, err error) { s.n.warn(msg, err) }

func (s shardNode) Forget(u *storage.UnitOfWork, c *catalog.Collection) { s.n.forget(u, c) }

func (s shardNode) LockDDL(ctx context.Context, ns string) (unlock func(), err error) {
	return s.n.admin.coordinators.Load().LockForMigration(ctx, ns)
}

// sessionNode implements what sessions and transactions need from the node.
type sessionNode struct{ n *Node }

func (s sessionNode) Lone() bool { return s.n.lone() }

func (s sessionNode) NotPrimary() error { return s.n.notPrimary() }

func (s sessionNode) CheckConcern(op *command.Op, wc command.WriteConcern) error {
	return s.n.Repl.CheckConcern(op, wc)
}

func (s sessionNode) ReadSnapshot(op *command.Op) (*storage.Snapshot, error) {
	return s.n.readSnapshot(op)
}

func (s sessionNode) WaitVisible(ctx context.Context, ts storage.Timestamp) error {
	return s.n.waitVisible(ctx, ts)
}

func (s sessionNode) CommitAt(ctx context.Context, u *storage.UnitOfWork, at storage.Timestamp, wc replication.WriteConcern) (storage.Timestamp, error) {
	return commitAt(ctx, s.n, u, at, wc)
}

func (s sessionNode) KillCursors(t *txn.Txn) {
	s.n.cursors.killWhere(func(c *cursor) bool { return c.txn == t })
}

func (s sessionNode) Background(f func(life context.Context)) {
	if s.n.background != nil {
		s.n.background(f)
	}
}

func (s sessionNode) Warn(msg string, err error) { s.n.warn(msg, err) }
