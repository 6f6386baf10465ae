package shardnode

import (
	"strings"
	"sync"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// registerDDL adds the commands on namespaces and indexes, and those that tell of them.
func (n *Node) registerDDL(t *command.Table) {
	t.Add(
		createSpec(n), dropSpec(n), dropDatabaseSpec(n), renameSpec(n), collModSpec(n), listCollectionsSpec(n), listDatabasesSpec(n),
		listIndexesSpec(n), createIndexesSpec(n), dropIndexesSpec(n), collStatsSpec(n), dbStatsSpec(n), dataSizeSpec(n), dbHashSpec(n),
		validateSpec(n), convertToCappedSpec(n), cloneAsCappedSpec(n), compactSpec(n), autoCompactSpec(n), reIndexSpec(n),
		validateDBMetadataSpec(n), commitQuorumSpec(n),
	)
}

// defaultFreeSpaceMB is how much there must be to gain before compact works.
const defaultFreeSpaceMB = 20

func compactSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "compact", Roles: command.Shard | command.Config, Kind: command.DDL, Namespace: true, Run: n.runCompact,
		Fields: []command.Field{
			command.Opt("dryRun", command.TBool), command.Opt("force", command.TBool), command.Opt("freeSpaceTargetMB", command.TNumber),
		},
	}
}

func (n *Node) runCompact(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	target := int64(defaultFreeSpaceMB)
	if v := op.Arg("freeSpaceTargetMB"); !v.IsMissing() {
		if target, err = command.InRange("compact.freeSpaceTargetMB", v, 1, 1<<63-1); err != nil {
			return dst, err
		}
	}
	s := n.Engine.Snapshot()
	defer s.Release()
	c, _, err := namespace.FindCollection(s, ns)
	if err != nil {
		return dst, err
	}
	if c == nil {
		return dst, mongoerr.New(mongoerr.NamespaceNotFound, "collection does not exist")
	}
	sz, err := n.Engine.CollectionSizes(c)
	if err != nil {
		return dst, err
	}
	gain := max(sz.StorageSize-sz.DataSize, 0)
	if gain>>20 < target {
		gain = 0
	}
	if op.Bool("dryRun") {
		return value.Append(dst, "estimatedBytesFreed", shortInt(gain)), nil
	}
	if gain > 0 {
		if gain, err = n.Engine.Compact(c); err != nil {
			return dst, err
		}
	}
	return value.Append(dst, "bytesFreed", shortInt(gain)), nil
}

// autoCompaction is what autoCompact was told. The store compacts by itself all the time, so that there is nothing to
// switch: the setting is kept and checked as the real server's.
type autoCompaction struct {
	mu struct {
		sync.Mutex
		on      bool
		target  int64
		runOnce bool
	}
}

func autoCompactSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "autoCompact", Roles: command.Shard | command.Config, AdminOnly: true, Run: n.runAutoCompact,
		Fields: []command.Field{command.Opt("freeSpaceTargetMB", command.TNumber), command.Opt("runOnce", command.TBool)},
	}
}

func (n *Node) runAutoCompact(op *command.Op, dst []byte) ([]byte, error) {
	v := op.Req.Cmd
	switch {
	case v.IsNullish():
		return dst, command.MissingField("autoCompact.autoCompact")
	case v.T != value.Boolean:
		return dst, command.WrongType("autoCompact.autoCompact", v.T, command.TBool)
	}
	target := int64(defaultFreeSpaceMB)
	if t := op.Arg("freeSpaceTargetMB"); !t.IsMissing() {
		var err error
		if target, err = command.InRange("autoCompact.freeSpaceTargetMB", t, 1, 1<<63-1); err != nil {
			return dst, err
		}
		if v.Bool() && target > 1<<43-1 {
			return dst, mongoerr.New(mongoerr.BadValue, "autoCompact.freeSpaceTargetMB is too large")
		}
	}
	a := &n.admin.compaction
	a.mu.Lock()
	defer a.mu.Unlock()
	once := op.Bool("runOnce")
	if v.Bool() && a.mu.on && (a.mu.target != target || a.mu.runOnce != once) {
		return dst, mongoerr.New(mongoerr.AlreadyInitialized, "background compaction is already running with another configuration")
	}
	a.mu.on, a.mu.target, a.mu.runOnce = v.Bool() && !once, target, once
	return dst, nil
}

func reIndexSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "reIndex", Roles: command.Shard | command.Config, Kind: command.DDL, Namespace: true,
		Run: func(op *command.Op, dst []byte) ([]byte, error) {
			if _, err := op.Req.Coll(); err != nil {
				return dst, err
			}
			return dst, mongoerr.Newf(mongoerr.IllegalOperation, "reIndex is only allowed on a standalone mongod instance. Cannot reIndex '%s' while replication is active",
				op.Req.NS(op.Req.Cmd.Str()))
		},
	}
}

func commitQuorumSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "setIndexCommitQuorum", Roles: command.All, Kind: command.DDL, Namespace: true, WriteConcern: true, Run: n.runSetCommitQuorum,
		Fields: []command.Field{command.Req("indexNames", command.TArray), command.Req("commitQuorum", command.TStringInt)},
	}
}

// runSetCommitQuorum finds no build to change: a set of one member's builds commit by themselves.
func (n *Node) runSetCommitQuorum(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	c := n.Engine.Catalog().Lookup(ns)
	if c == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "Collection '%s' was not found.", ns)
	}
	names := value.Values(op.Req.Doc("indexNames"))
	for _, name := range names {
		if idx := c.Index(name.Str()); idx == nil || idx.Ready {
			return dst, mongoerr.Newf(mongoerr.IndexNotFound, "Cannot find an index build on collection '%s' with the provided index names", ns)
		}
	}
	return dst, nil
}

func validateDBMetadataSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "validateDBMetadata", Roles: command.All, Kind: command.Read, ArgTypes: command.TAny, Run: n.runValidateDBMetadata,
		Fields: []command.Field{
			command.Opt("apiParameters", command.TObject), command.Opt("db", command.TString), command.Opt("collection", command.TString),
		},
	}
}

var apiFields = []command.Field{
	command.Req("version", command.TString), command.Opt("strict", command.TAny), command.Opt("deprecationErrors", command.TAny),
}

func (n *Node) runValidateDBMetadata(op *command.Op, dst []byte) ([]byte, error) {
	strict, err := apiParameters(op)
	if err != nil {
		return dst, err
	}
	db, coll := op.Arg("db"), op.Arg("collection")
	if !db.IsMissing() {
		if err := checkMetadataDB(db.Str()); err != nil {
			return dst, err
		}
	}
	if !coll.IsMissing() {
		if err := command.CheckCollName(db.Str(), coll.Str()); err != nil {
			return dst, err
		}
	}
	dst, m := value.BeginKey(dst, value.Array, "apiVersionErrors")
	i := 0
	for _, c := range n.Engine.Catalog().All() {
		if !strict || !db.IsMissing() && c.DB() != db.Str() || !coll.IsMissing() && c.Name() != coll.Str() {
			continue
		}
		for _, idx := range c.Indexes {
			if idx.Spec.Kind == indexkey.Text || idx.Spec.Sparse {
				dst = value.AppendIndex(dst, i, value.NewDocument(apiError(c, idx)))
				i++
			}
		}
	}
	return value.End(dst, m), nil
}

func apiError(c *catalog.Collection, idx *catalog.Index) []byte {
	code := mongoerr.APIStrictError
	return value.Doc(value.F("ns", value.NewString(c.NS)), value.F("code", value.NewInt32(int32(code))), value.F("codeName", value.NewString(code.Name())),
		value.F("errmsg", value.NewString("The index with name "+idx.Name+" is not allowed in API version 1.")))
}

// apiParameters reads apiParameters; strict is true where there is something to be checked.
func apiParameters(op *command.Op) (strict bool, err error) {
	const path = "validateDBMetadata.apiParameters"
	p := op.Arg("apiParameters")
	if p.IsMissing() {
		return false, command.MissingField(path)
	}
	for k, v := range value.Elements(p.Doc()) {
		if (k == "strict" || k == "deprecationErrors") && v.T != value.Boolean {
			return false, command.WrongType(path+"."+k, v.T, command.TBool)
		}
	}
	f, err := command.ParseFields(path, p.Doc(), apiFields)
	if err != nil {
		return false, err
	}
	return f[0].Str() == "1" && f[1].Truthy(), nil
}

func checkMetadataDB(db string) error {
	switch {
	case db == "":
		return mongoerr.New(28539, "Database name must not be empty")
	case strings.ContainsAny(db, ".\x00") || len(db) >= 64:
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid database name: '%s'", db)
	case strings.ContainsAny(db, "/\\ \""):
		return mongoerr.Newf(13280, "Invalid db name: %s", db)
	}
	return nil
}
