package migration

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// StateSpecs returns the commands about sharding state that a node outside of a cluster answers.
func StateSpecs() []command.Spec {
	return []command.Spec{stateSpec(func(_ *command.Op, dst []byte) ([]byte, error) {
		return value.Append(dst, "enabled", value.NewBool(false)), nil
	})}
}

func stateSpec(run command.Handler) command.Spec {
	return command.Spec{Name: "shardingState", Roles: command.Shard | command.Config, AdminOnly: true, ArgTypes: command.TAny, Run: run}
}

// infoSpecs returns the commands that show a shard's view of the cluster.
func (m *Manager) infoSpecs() []command.Spec {
	row := func(name string, types command.Types, run command.Handler, fields ...command.Field) command.Spec {
		return command.Spec{Name: name, Roles: command.Shard, AdminOnly: true, ArgTypes: types, Fields: fields, Run: run}
	}
	return []command.Spec{
		row("getShardMap", command.TAny, m.runShardMap),
		row("getShardVersion", command.TString, m.runShardVersion, command.Opt("fullMetadata", command.TSafeBool)),
		row("getDatabaseVersion", command.TString, m.runDatabaseVersion),
		stateSpec(m.runShardingState),
	}
}

func (m *Manager) runShardMap(op *command.Op, dst []byte) ([]byte, error) {
	return m.state.Registry.AppendShardMap(op, dst)
}

// runShardVersion returns the version of a collection that this shard has cached.
func (m *Manager) runShardVersion(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	info, err := m.state.Catalog.Collection(op, ns)
	if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return dst, err
	}
	dst = value.Append(dst, "configServer", value.NewString(m.state.ConfigHosts()))
	dst = value.Append(dst, "inShardedMode", value.NewBool(err == nil && info.Map != nil))
	if err != nil || info.Map == nil {
		dst = value.Append(dst, "mine", value.NewTimestamp(0, 0))
		return value.Append(dst, "global", value.NewString("UNSHARDED")), nil
	}
	mine := info.Map.ShardVersion(m.state.ID)
	dst = value.Append(dst, "mine", value.NewTimestampU64(mine.Combined()))
	dst = value.Append(dst, "global", value.NewTimestampU64(info.Map.Version().Combined()))
	if !op.Bool("fullMetadata") {
		return dst, nil
	}
	dst, mm := value.BeginKey(dst, value.Document, "metadata")
	dst = value.Append(dst, "collVersion", value.NewTimestampU64(info.Map.Version().Combined()))
	dst = value.Append(dst, "collVersionEpoch", value.NewObjectID(mine.Epoch))
	dst = value.Append(dst, "shardVersion", value.NewTimestampU64(mine.Combined()))
	dst = value.Append(dst, "keyPattern", value.NewDocument(info.Map.Key.Doc()))
	dst, am := value.BeginKey(dst, value.Array, "chunks")
	for i, c := range info.Map.ChunksOf(m.state.ID) {
		dst = value.AppendIndex(dst, i, value.NewArray(value.ArrayOf(value.NewDocument(c.Min), value.NewDocument(c.Max))))
	}
	return value.End(value.End(dst, am), mm), nil
}

func (m *Manager) runDatabaseVersion(op *command.Op, dst []byte) ([]byte, error) {
	info, err := m.state.Catalog.Database(op, op.Req.Cmd.Str())
	if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return dst, err
	}
	version := value.Doc()
	if err == nil && info.Primary == m.state.ID && !info.Version.IsFixed() {
		version = info.Version.Doc()
	}
	return value.Append(dst, "dbVersion", value.NewDocument(version)), nil
}

func (m *Manager) runShardingState(op *command.Op, dst []byte) ([]byte, error) {
	dst = value.Append(dst, "enabled", value.NewBool(true))
	dst = value.Append(dst, "configServer", value.NewString(m.state.ConfigHosts()))
	dst = value.Append(dst, "shardName", value.NewString(m.state.ID))
	dst = value.Append(dst, "clusterId", value.NewObjectID(m.state.ClusterID))
	dst, vm := value.BeginKey(dst, value.Document, "versions")
	s := m.Engine.Snapshot()
	defer s.Release()
	for _, c := range s.Catalog().All() {
		if info, ok := m.state.Catalog.Cached(c.NS); ok && info.Map != nil {
			dst = value.Append(dst, c.NS, value.NewTimestampU64(info.Map.ShardVersion(m.state.ID).Combined()))
		}
	}
	return value.End(dst, vm), nil
}
