package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// catalogNode implements what catalog commands need from the node.
type catalogNode struct{ n *Node }

func (c catalogNode) Lone() bool { return c.n.lone() }

func (c catalogNode) SetConfig() *replication.SetConfig {
	if c.n.lone() {
		return nil
	}
	return c.n.Repl.Config()
}

func (c catalogNode) CheckVersion(op *command.Op, ns string) error { return c.n.checkVersion(op, ns) }

func (c catalogNode) Forget(u *storage.UnitOfWork, coll *catalog.Collection) { c.n.forget(u, coll) }

func (c catalogNode) NoteDropped(s *storage.Snapshot, u *storage.UnitOfWork, dropped ...*catalog.Collection) error {
	if c.n.shard.State() == nil {
		return nil
	}
	return migration.NoteDropped(s, u, dropped...)
}

func (c catalogNode) HoldsSection(ctx context.Context, name string, id catalog.UUID) error {
	s := c.n.shard.State()
	if s == nil {
		return mongoerr.New(mongoerr.ShardingStateNotInitialized, "this node is not a shard")
	}
	return s.HoldsSection(ctx, name, id)
}

func (c catalogNode) RunGoesOn(ctx context.Context, ns string, of *msg.RunMessage) error {
	s := c.n.shard.State()
	if s == nil {
		return mongoerr.New(mongoerr.ShardingStateNotInitialized, "this node is not a shard")
	}
	return s.RunGoesOn(ctx, ns, of)
}

func (c catalogNode) ShardKeyIndexes(ctx context.Context, coll *catalog.Collection) (names []string, required bool, err error) {
	s := c.n.shard.State()
	if s == nil || cluster.FixedDatabase(catalog.DBOf(coll.NS)) {
		return nil, false, nil
	}
	return s.ShardKeyIndexes(ctx, coll)
}

func (c catalogNode) Linearize(ctx context.Context) error { return c.n.linearize(ctx) }

func (c catalogNode) Primary() error {
	if c.n.Set.IsPrimary() {
		return nil
	}
	return c.n.notPrimary()
}

func (c catalogNode) AwaitMembers(ctx context.Context, ts storage.Timestamp, met func(c *replication.SetConfig, has func(id int) bool) bool) error {
	if raft := c.n.Repl.Raft(); raft != nil {
		return raft.AwaitMembers(ctx, ts, met)
	}
	if conf := c.SetConfig(); conf == nil || met(conf, func(int) bool { return true }) { // this member is the set
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (c catalogNode) BuildWaits(b *storage.IndexBuild, q replication.CommitQuorum, missing []string) {
	if f := c.n.BuildWaits; f != nil {
		f(b.UUID().String(), b.Namespace(), q.Value(), missing)
	}
}

func (c catalogNode) Background(f func(life context.Context)) { c.n.background(f) }

// forget drops a collection's compiled form once the collection is gone.
func (n *Node) forget(u *storage.UnitOfWork, c *catalog.Collection) {
	u.OnCommit(func(storage.Timestamp) {
		n.metas.Forget(c.UUID)
		if n.Engine.Catalog().Lookup(c.NS) == nil {
			n.latency.forget(c.NS)
			n.exec.Filters.Set(c.NS, "", nil)
		}
	})
}
