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
	return command.Spec{
		Name: "splitChunk", Roles: command.Shard, Internal: true, AdminOnly: true, PrimaryOnly: true, ArgTypes: command.TString, Run: m.runSplitChunk,
		Fields: []command.Field{
			command.Req("from", command.TString), command.Req("keyPattern", command.TObject), command.Req("epoch", command.TOther),
			command.Req("min", command.TObject), command.Req("max", command.TObject), command.Req("splitKeys", command.TArray),
			command.Opt("timestamp", command.TOther),
		},
	}
}

// runSplitChunk checks that this shard owns the chunk and that the collection is the one that the caller means, has the config server commit the
// split, and reads the new table.
func (m *Manager) runSplitChunk(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	if err := command.CheckFullName(ns); err != nil {
		return dst, err
	}
	if from := op.Req.Str("from"); from != m.state.ID {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "splitChunk names shard %s, and this is %s", from, m.state.ID)
	}
	if t := op.Arg("epoch").T; t != value.ObjectID {
		return dst, command.WrongType("splitChunk.epoch", t, command.TOther)
	}
	var points [][]byte
	for _, v := range value.Values(op.Arg("splitKeys").Doc()) {
		if v.T != value.Document {
			return dst, mongoerr.New(mongoerr.TypeMismatch, "the elements of splitKeys must be objects")
		}
		points = append(points, v.Doc())
	}
	m.state.Catalog.InvalidateCollection(ns)
	info, err := m.state.Catalog.Collection(op, ns)
	if err != nil {
		return dst, err
	}
	if !info.Sharded() {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	if epoch := info.Map.Version().Epoch; epoch != cluster.Epoch(op.Arg("epoch").ObjectID()) {
		return dst, mongoerr.Newf(mongoerr.StaleEpoch, "splitChunk cannot split a chunk of %s: the epoch of the collection has changed", ns)
	}
	lo, err := info.Map.Key.NormalizeBound(op.Req.Doc("min"))
	if err != nil {
		return dst, err
	}
	if owner := info.Map.ShardOf(value.Values(lo)); owner != m.state.ID {
		return dst, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the chunk %s of %s belongs to shard %s", value.ShowDoc(lo), ns, owner)
	}
	_, err = cluster.RunWrite(op, m.state.Registry.Config(), msg.Doc(&msg.CommitChunkSplit{NS: ns, Range: msg.Range{Min: lo, Max: op.Req.Doc("max")}, Points: points}))
	m.state.Catalog.InvalidateCollection(ns)
	if err == nil {
		_, err = m.state.Catalog.Collection(op, ns)
	}
	return dst, err
}
