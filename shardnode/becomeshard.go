package shardnode

import (
	"context"
	"errors"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// hear takes in a notice of a unit of work.
func (n *Node) hear(ts storage.Timestamp, notice []byte) {
	n.prepared.hear(ts, notice, n.now())
	n.shard.Hear(notice)
}

// loadNoticed reads what the notices that were missed told of.
func (n *Node) loadNoticed() error {
	if err := n.loadPromises(); err != nil {
		return err
	}
	return n.shard.Load()
}

// BecomeShard gives the node its part in the sharding protocols and registers their commands.
func (n *Node) BecomeShard(state *migration.ShardState) {
	c := newCoordinators(n, state)
	n.Service.Table.Add(c.coordinatorSpec())
	err := migration.Start(migration.Config{
		Engine: n.Engine, Docs: n.Docs, Params: n.Params, Points: n.Points, Service: n.Service, Services: n.Services, Locks: n.locks, Now: n.now,
	}, shardNode{n}, sessionHistory{n}, n.shard, state)
	if err = errors.Join(err, n.Services.Add(c.service())); err != nil {
		n.warn("Migrations did not step up", err)
	}
}

// shardNode is the node as its migrations see it.
type shardNode struct{ n *Node }

func (s shardNode) NotPrimary() error { return s.n.notPrimary() }

func (s shardNode) SetConfig() *replication.SetConfig { return s.n.Repl.Config() }

func (s shardNode) Warn(msg string, err error) { s.n.warn(msg, err) }

func (s shardNode) Forget(u *storage.UnitOfWork, c *catalog.Collection) { s.n.forget(u, c) }

// sessionHistory is the history of the node's sessions as it goes with a chunk.
type sessionHistory struct{ n *Node }

func (h sessionHistory) History(since storage.Timestamp) [][]byte { return h.n.retries.history(since) }

func (h sessionHistory) WithImage(rec []byte) ([]byte, error) { return h.n.withImage(rec) }

func (h sessionHistory) Adopt(ctx context.Context, records []value.Value) error {
	return h.n.adoptSessions(ctx, records)
}
