package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
)

// clockedSet ties the timestamps of commits to the cluster time: a commit is later than every cluster time that this node
// has received, and the node's time is never behind its own commits.
type clockedSet struct {
	replication.Set
	engine *storage.Engine
	clock  *cluster.VectorClock
}

// commitAt commits the unit of a prepared transaction, visible from the commit timestamp that its participants agreed upon:
// later than that, but not necessarily later than every cluster time that this node has seen.
func commitAt(ctx context.Context, n *Node, u *storage.UnitOfWork, at storage.Timestamp, wc replication.WriteConcern) (storage.Timestamp, error) {
	u.VisibleFrom(at)
	n.Engine.AdvanceClock(at)
	s, ok := n.Set.(clockedSet)
	if !ok {
		return n.Set.Commit(ctx, u, wc)
	}
	ts, err := s.Set.Commit(ctx, u, wc)
	s.clock.AdvanceCluster(uint64(ts))
	return ts, err
}

// Commit implements replication.Set.
func (s clockedSet) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	s.engine.AdvanceClock(storage.Timestamp(s.clock.ClusterTime()))
	ts, err := s.Set.Commit(ctx, u, wc)
	s.clock.AdvanceCluster(uint64(ts))
	return ts, err
}
