package configsvr

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
)

// row returns the row of an internal command that the config server runs.
func row[M any, P interface {
	*M
	msg.Message
}](run func(op *command.Op, m P, dst []byte) ([]byte, error)) command.Spec {
	s := command.Internal(run)
	s.Roles, s.Kind, s.ReadConcern, s.WriteConcern = command.Config, command.DDL, true, true
	return s
}

// onPrimary restricts a row to the primary: it changes state in memory only, so no write would fail on other members.
func onPrimary(s command.Spec) command.Spec {
	s.PrimaryOnly = true
	return s
}

// Register adds the config server's commands to its service, in addition to those of its data node.
func (m *Manager) Register(s *command.Service) {
	s.Table.Add(m.specs()...)
	s.DescribeTasks(m.describeReshardings)
}

func (m *Manager) specs() []command.Spec {
	return []command.Spec{
		row(m.runCreateDatabase), row(m.runAddShard), row(m.runRemoveShard), row(m.runTransitionFromDedicated), row(m.runTransitionToDedicated),
		row(m.runCommitShardCollection), row(m.runDropCollection), row(m.runRenameMetadata), row(m.runReplaceUnsplittable), row(m.runRemoveDatabase), row(m.runCommitMovePrimary), row(m.runCommitRefine), row(m.runHoldsSection), row(m.runRemoveCollection), row(m.runSetAllowMigrations),
		row(m.runCommitSplit), row(m.runCommitMerge), row(m.runMergeAllOnShard), row(m.runCommitMigration), row(m.runEnsureVersion), row(m.runMoveRange), row(m.runClearJumbo),
		row(m.runBalancerStart), row(m.runBalancerStop), row(m.runBalancerStatus), row(m.runBalancerCollectionStatus), row(m.runConfigureBalancing),
		row(m.runAddShardToZone), row(m.runRemoveShardFromZone), row(m.runUpdateZone),
		onPrimary(row(m.runReshard)), onPrimary(row(m.runAbortReshard)), onPrimary(row(m.runCommitReshard)), onPrimary(row(m.runForgetReshard)), onPrimary(row(m.runCleanupReshard)),
		row(m.runResetPlacementHistory), row(m.runHistoricalPlacement), row(m.runAllowMigrations),
		onPrimary(row(m.runPauseMigrations)), onPrimary(row(m.runResumeMigrations)),
	}
}

func (m *Manager) runCreateDatabase(op *command.Op, req *msg.CreateDatabase, dst []byte) ([]byte, error) {
	db, err := m.createDatabase(op, req.DB, req.Primary)
	if err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, &msg.CreateDatabaseReply{Primary: db.Primary, Version: db.Version.Doc()}), nil
}

func (m *Manager) runAddShard(op *command.Op, req *msg.AddShard, dst []byte) ([]byte, error) {
	name, err := m.addShard(op, req.Connection, req.Name)
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "shardAdded", str(name)), nil
}

func (m *Manager) runRemoveShard(op *command.Op, req *msg.RemoveShard, dst []byte) ([]byte, error) {
	return m.appendRemoval(op, req.Shard, req.Starts, dst)
}

func (m *Manager) appendRemoval(op *command.Op, shard string, starts bool, dst []byte) ([]byte, error) {
	f, err := m.removeShard(op, shard, starts)
	if err != nil {
		return dst, err
	}
	for _, x := range f {
		dst = value.Append(dst, x.Key, x.Val)
	}
	return dst, nil
}

func (m *Manager) runTransitionFromDedicated(op *command.Op, _ *msg.TransitionFromDedicated, dst []byte) ([]byte, error) {
	return dst, m.becomeConfigShard(op)
}

func (m *Manager) runTransitionToDedicated(op *command.Op, req *msg.TransitionToDedicated, dst []byte) ([]byte, error) {
	return m.appendRemoval(op, cluster.ConfigShardID, req.Starts, dst)
}

func (m *Manager) runDropCollection(op *command.Op, req *msg.DropCollection, dst []byte) ([]byte, error) {
	indexes := m.indexCount(op, req.NS)
	if err := m.dropCollection(op, req.NS, req.UUID); err != nil {
		return dst, err
	}
	dst = value.Append(dst, "nIndexesWas", value.NewInt32(int32(indexes)))
	return value.Append(dst, "ns", str(req.NS)), nil
}

// indexCount returns the number of a collection's indexes, which drop reports; 0 if it is unknown.
func (m *Manager) indexCount(op *command.Op, ns string) int {
	info, _, err := m.table(op, ns)
	if err != nil {
		return 0
	}
	db, coll := cluster.SplitNS(ns)
	s, err := m.registry.Shard(op, info.Shards()[0])
	if err != nil {
		return 0
	}
	docs, err := cluster.FindAll(op, s.Peer, db, msg.Doc(&msg.ListIndexes{DB: db, Coll: coll}))
	if err != nil {
		return 0
	}
	return len(docs)
}

func (m *Manager) runHoldsSection(op *command.Op, req *msg.HoldsCriticalSection, dst []byte) ([]byte, error) {
	held := m.blocks.holds(req.ID)
	if !held {
		var err error
		if held, err = m.knowsReshard(op, req.ID); err != nil {
			return dst, err
		}
	}
	return msg.AppendFields(dst, &msg.HoldsCriticalSectionReply{Held: held}), nil
}

func (m *Manager) runCommitSplit(op *command.Op, req *msg.CommitChunkSplit, dst []byte) ([]byte, error) {
	v, err := m.splitChunk(op, req)
	if err != nil {
		return dst, err
	}
	dst = value.Append(dst, "shardVersion", value.NewDocument(v.Doc()))
	return value.Append(dst, "collectionVersion", value.NewDocument(v.Doc())), nil
}

func (m *Manager) runCommitMerge(op *command.Op, req *msg.CommitChunksMerge, dst []byte) ([]byte, error) {
	v, err := m.mergeRange(op, req.NS, req.Min, req.Max)
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "shardVersion", value.NewDocument(v.Doc())), nil
}

func (m *Manager) runCommitMigration(op *command.Op, req *msg.CommitChunkMigration, dst []byte) ([]byte, error) {
	return dst, m.commitMigration(op, req)
}

func (m *Manager) runEnsureVersion(op *command.Op, req *msg.EnsureChunkVersion, dst []byte) ([]byte, error) {
	return dst, m.outdateChunk(op, req.NS, req.Min, req.Version)
}

func (m *Manager) runMoveRange(op *command.Op, req *msg.MoveRange, dst []byte) ([]byte, error) {
	return dst, m.moveRange(op, req)
}

func (m *Manager) runAddShardToZone(op *command.Op, req *msg.AddShardToZone, dst []byte) ([]byte, error) {
	return dst, m.addShardToZone(op, req.Shard, req.Zone)
}

func (m *Manager) runRemoveShardFromZone(op *command.Op, req *msg.RemoveShardFromZone, dst []byte) ([]byte, error) {
	return dst, m.removeShardFromZone(op, req.Shard, req.Zone)
}

func (m *Manager) runUpdateZone(op *command.Op, req *msg.UpdateZoneKeyRange, dst []byte) ([]byte, error) {
	return dst, m.updateZoneRange(op, req)
}
