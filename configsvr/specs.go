package configsvr

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// row is a config server command between nodes.
func row(name string, types command.Types, run command.Handler, fields ...command.Field) command.Spec {
	return command.Spec{
		Name: name, Roles: command.Config, Kind: command.DDL, Internal: true, AdminOnly: true, ArgTypes: types,
		ReadConcern: true, WriteConcern: true, Lenient: true, Fields: fields, Run: run,
	}
}

// Register adds the config server's commands to its service, beside those of its data node.
func (m *Manager) Register(s *command.Service) { s.Table.Add(m.specs()...) }

func (m *Manager) specs() []command.Spec {
	any, s := command.TAny, command.TString
	o, req := command.Opt, command.Req
	obj, flag := command.TObject, command.TSafeBool
	return []command.Spec{
		row("_configsvrCreateDatabase", s, m.runCreateDatabase, o("primaryShardId", s)),
		row("_configsvrDropDatabase", s, m.runDropDatabase),
		row("_configsvrAddShard", s, m.runAddShard, o("name", any)),
		row("_configsvrRemoveShard", s, m.runRemoveShard),
		row("_configsvrShardCollection", s, m.runShardCollection, req("key", obj), o("unique", flag), o("numInitialChunks", command.TNumber),
			o("collation", obj), o("implicitlyCreateIndex", flag)),
		row("_configsvrDropCollection", s, m.runDropCollection, o("collectionUUID", any)),
		row("_configsvrRenameCollection", s, m.runRenameCollection, req("to", s), o("dropTarget", any), o("collectionUUID", any)),
		row("_configsvrHoldsCriticalSection", command.TOther, m.runHoldsSection),
		row("_configsvrCommitChunkSplit", s, m.runCommitSplit, req("min", obj), req("max", obj), req("splitPoints", command.TArray), o("shard", s)),
		row("_configsvrCommitChunksMerge", s, m.runCommitMerge, req("chunkRange", obj), o("shard", s)),
		row("_configsvrCommitChunkMigration", s, m.runCommitMigration, req("fromShard", s), req("toShard", s), req("migratedChunk", obj),
			o("validAfter", any)),
		row("_configsvrEnsureChunkVersionIsGreaterThan", s, m.runEnsureVersion, req("minKey", obj), o("maxKey", obj), req("version", obj)),
		row("_configsvrMoveRange", s, m.runMoveRange, req("toShard", s), o("min", obj), o("max", obj), o("waitForDelete", flag), o("forceJumbo", flag),
			o("secondaryThrottle", flag), o("throttleConcern", obj)),
		row("_configsvrClearJumboFlag", s, m.runClearJumbo, o("find", obj), o("bounds", command.TArray)),
		row("_configsvrBalancerStart", any, m.runBalancerStart),
		row("_configsvrBalancerStop", any, m.runBalancerStop),
		row("_configsvrBalancerStatus", any, m.runBalancerStatus),
		row("_configsvrBalancerCollectionStatus", s, m.runBalancerCollectionStatus),
		row("_configsvrAddShardToZone", s, m.runAddShardToZone, req("zone", s)),
		row("_configsvrRemoveShardFromZone", s, m.runRemoveShardFromZone, req("zone", s)),
		row("_configsvrUpdateZoneKeyRange", s, m.runUpdateZone, req("min", obj), req("max", obj), req("zone", any)),
	}
}

func (m *Manager) runCreateDatabase(op *command.Op, dst []byte) ([]byte, error) {
	db, err := m.createDatabase(op, op.Req.Cmd.Str(), op.Req.Str("primaryShardId"))
	if err != nil {
		return dst, err
	}
	dst = value.Append(dst, "primaryShard", str(db.Primary))
	return value.Append(dst, "databaseVersion", value.NewDocument(db.Version.Doc())), nil
}

func (m *Manager) runDropDatabase(op *command.Op, dst []byte) ([]byte, error) {
	return dst, m.dropDatabase(op, op.Req.Cmd.Str())
}

func (m *Manager) runAddShard(op *command.Op, dst []byte) ([]byte, error) {
	name, err := m.addShard(op, op.Req.Cmd.Str(), op.Req.Str("name"))
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "shardAdded", str(name)), nil
}

func (m *Manager) runRemoveShard(op *command.Op, dst []byte) ([]byte, error) {
	f, err := m.removeShard(op, op.Req.Cmd.Str())
	if err != nil {
		return dst, err
	}
	for _, x := range f {
		dst = value.Append(dst, x.Key, x.Val)
	}
	return dst, nil
}

func (m *Manager) runShardCollection(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	err := m.shardCollection(op, shardRequest{
		ns: ns, key: op.Req.Doc("key"), unique: op.Bool("unique"), chunks: op.Req.Int("numInitialChunks", 0),
		collation: op.Req.Doc("collation"), makeIndex: op.Req.BoolOr("implicitlyCreateIndex", true),
	})
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "collectionsharded", str(ns)), nil
}

func (m *Manager) runDropCollection(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	expected, err := uuidArg(op, "collectionUUID")
	if err != nil {
		return dst, err
	}
	indexes := m.indexCount(op, ns)
	if err := m.dropCollection(op, ns, expected); err != nil {
		return dst, err
	}
	dst = value.Append(dst, "nIndexesWas", value.NewInt32(int32(indexes)))
	return value.Append(dst, "ns", str(ns)), nil
}

// indexCount is what drop reports of a collection; 0 where it cannot be found out.
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
	docs, err := cluster.FindAll(op, s.Peer, db, value.Doc(fld("listIndexes", str(coll)), fld("$db", str(db))))
	if err != nil {
		return 0
	}
	return len(docs)
}

func (m *Manager) runRenameCollection(op *command.Op, dst []byte) ([]byte, error) {
	j := &renameJob{m: m, from: op.Req.Cmd.Str(), to: op.Req.Str("to")}
	var err error
	switch t := op.Arg("dropTarget"); t.T {
	case value.Missing:
	case value.Boolean:
		j.dropTarget = t.Bool()
	case value.Binary:
		j.dropTarget = true
		j.expectedTarget, err = uuidArg(op, "dropTarget")
	default:
		err = mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'renameCollection.dropTarget' is the wrong type '%s', expected types '[bool, binData]'", t.T.Name())
	}
	if err == nil {
		j.expected, err = uuidArg(op, "collectionUUID")
	}
	if err != nil {
		return dst, err
	}
	return dst, j.run(op)
}

func (m *Manager) runHoldsSection(op *command.Op, dst []byte) ([]byte, error) {
	var id [16]byte
	if op.Req.Cmd.T != value.Binary || copy(id[:], op.Req.Cmd.Bytes()) != len(id) {
		return dst, mongoerr.New(mongoerr.InvalidUUID, "a critical section is named by a UUID")
	}
	return value.Append(dst, "held", value.NewBool(m.blocks.holds(id))), nil
}

func (m *Manager) runCommitSplit(op *command.Op, dst []byte) ([]byte, error) {
	v, err := m.splitChunk(op, op.Req.Cmd.Str(), op.Req.Doc("min"), op.Req.Doc("max"), value.Values(op.Req.Doc("splitPoints")))
	if err != nil {
		return dst, err
	}
	dst = value.Append(dst, "shardVersion", value.NewDocument(v.Doc()))
	return value.Append(dst, "collectionVersion", value.NewDocument(v.Doc())), nil
}

func (m *Manager) runCommitMerge(op *command.Op, dst []byte) ([]byte, error) {
	r := op.Req.Doc("chunkRange")
	v, err := m.mergeRange(op, op.Req.Cmd.Str(), value.Lookup(r, "min").Doc(), value.Lookup(r, "max").Doc())
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "shardVersion", value.NewDocument(v.Doc())), nil
}

func (m *Manager) runCommitMigration(op *command.Op, dst []byte) ([]byte, error) {
	c := op.Req.Doc("migratedChunk")
	g := migration{
		ns: op.Req.Cmd.Str(), from: op.Req.Str("fromShard"), to: op.Req.Str("toShard"),
		min: value.Lookup(c, "min").Doc(), max: value.Lookup(c, "max").Doc(), validAfter: op.Arg("validAfter").TimestampU64(),
	}
	if e := value.Lookup(c, "lastmodEpoch"); e.T == value.ObjectID {
		g.epoch = e.ObjectID()
	}
	if g.min == nil || g.max == nil {
		return dst, mongoerr.New(mongoerr.FailedToParse, "migratedChunk must hold min and max")
	}
	g.version = value.Lookup(c, "lastmod").TimestampU64()
	return dst, m.commitMigration(op, g)
}

func (m *Manager) runEnsureVersion(op *command.Op, dst []byte) ([]byte, error) {
	v, err := cluster.ParseChunkVersion(op.Arg("version"))
	if err != nil {
		return dst, err
	}
	return dst, m.outdateChunk(op, op.Req.Cmd.Str(), op.Req.Doc("minKey"), v)
}

func (m *Manager) runMoveRange(op *command.Op, dst []byte) ([]byte, error) {
	return dst, m.moveRange(op, op.Req.Cmd.Str(), op.Req.Str("toShard"), op.Req.Doc("min"), op.Req.Doc("max"), moveOptions{
		waitForDelete: op.Bool("waitForDelete"), force: op.Bool("forceJumbo"), throttle: op.Bool("secondaryThrottle"), concern: op.Req.Doc("throttleConcern"),
	})
}

func (m *Manager) runClearJumbo(op *command.Op, dst []byte) ([]byte, error) {
	at := op.Req.Doc("find")
	if b := value.Values(op.Req.Doc("bounds")); len(b) == 2 {
		at = b[0].Doc()
	}
	if at == nil {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "must specify exactly one of: find or bounds")
	}
	return dst, m.clearJumbo(op, op.Req.Cmd.Str(), at)
}

func (m *Manager) runBalancerStart(op *command.Op, dst []byte) ([]byte, error) {
	return dst, m.setBalancer(op, true)
}

func (m *Manager) runBalancerStop(op *command.Op, dst []byte) ([]byte, error) {
	return dst, m.setBalancer(op, false)
}

func (m *Manager) runBalancerStatus(op *command.Op, dst []byte) ([]byte, error) {
	mode, err := m.balancerMode(op)
	if err != nil {
		return dst, err
	}
	dst = value.Append(dst, "mode", str(mode))
	dst = value.Append(dst, "inBalancerRound", value.NewBool(m.balancer.inRound.Load()))
	dst = value.Append(dst, "numBalancerRounds", value.NewInt64(m.balancer.rounds.Load()))
	return value.Append(dst, "term", value.NewInt64(1)), nil
}

func (m *Manager) runBalancerCollectionStatus(op *command.Op, dst []byte) ([]byte, error) {
	mv, err := m.nextMove(op, op.Req.Cmd.Str(), false)
	if err != nil {
		return dst, err
	}
	if _, _, err := m.table(op, op.Req.Cmd.Str()); err != nil {
		return dst, err
	}
	dst = value.Append(dst, "chunkSize", value.NewInt64(m.chunkSize(op)>>20))
	dst = value.Append(dst, "balancerCompliant", value.NewBool(mv == nil))
	if mv != nil {
		why := map[string]string{"draining": "drainingShards", "zone": "zoneViolation", "size": "chunksImbalance"}[mv.why]
		dst = value.Append(dst, "firstComplianceViolation", str(why))
	}
	return dst, nil
}

func (m *Manager) runAddShardToZone(op *command.Op, dst []byte) ([]byte, error) {
	return dst, m.addShardToZone(op, op.Req.Cmd.Str(), op.Req.Str("zone"))
}

func (m *Manager) runRemoveShardFromZone(op *command.Op, dst []byte) ([]byte, error) {
	return dst, m.removeShardFromZone(op, op.Req.Cmd.Str(), op.Req.Str("zone"))
}

func (m *Manager) runUpdateZone(op *command.Op, dst []byte) ([]byte, error) {
	zone := ""
	if z := op.Arg("zone"); z.T == value.String {
		zone = z.Str()
	}
	return dst, m.updateZoneRange(op, op.Req.Cmd.Str(), op.Req.Doc("min"), op.Req.Doc("max"), zone)
}
