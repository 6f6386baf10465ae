package migration

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// splitChunkSpec returns the row of the command by which a shard is asked to split one of its chunks.
func (m *Manager) splitChunkSpec() command.Spec {
	s := command.Internal(m.runSplitChunk)
	s.Roles, s.PrimaryOnly = command.Shard, true
	return s
}

// runSplitChunk checks that this shard owns the chunk and that the collection is the one that the caller means, has the config server commit the
// split, and reads the new table.
func (m *Manager) runSplitChunk(op *command.Op, req *msg.SplitChunk, dst []byte) ([]byte, error) {
	ns := req.NS
	if err := command.CheckFullName(ns); err != nil {
		return dst, err
	}
	if req.From != m.state.ID {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "splitChunk is for shard %s, but this is shard %s", req.From, m.state.ID)
	}
	m.state.Catalog.InvalidateCollection(ns)
	info, err := m.state.Catalog.Collection(op, ns)
	if err != nil {
		return dst, err
	}
	if !info.Sharded() {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	if epoch := info.Map.Version().Epoch; epoch != cluster.Epoch(req.Epoch) {
		return dst, mongoerr.Newf(mongoerr.StaleEpoch, "splitChunk cannot split a chunk of %s: the epoch of the collection has changed", ns)
	}
	lo, err := info.Map.Key.NormalizeBound(req.Min)
	if err != nil {
		return dst, err
	}
	if owner := info.Map.ShardOf(value.Values(lo)); owner != m.state.ID {
		return dst, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the chunk %s of %s belongs to shard %s", value.ShowDoc(lo), ns, owner)
	}
	_, err = cluster.RunWrite(op, m.state.Registry.Config(), msg.Doc(&msg.CommitChunkSplit{NS: ns, Range: msg.Range{Min: lo, Max: req.Max}, Points: req.Points}))
	m.state.Catalog.InvalidateCollection(ns)
	if err == nil {
		_, err = m.state.Catalog.Collection(op, ns)
	}
	return dst, err
}
