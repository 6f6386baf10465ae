package ddl

import (
	"sync"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// defaultFreeSpaceMB is the minimum space to be gained for compact to do anything.
const defaultFreeSpaceMB = 20

func compactSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "compact", Roles: command.Shard | command.Config, Kind: command.DDL, Namespace: true, Run: cs.runCompact,
		Fields: []command.Field{
			command.Opt("dryRun", command.TBool), command.Opt("force", command.TBool), command.Opt("freeSpaceTargetMB", command.TNumber),
		},
	}
}

func (cs *Commands) runCompact(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	target := int64(defaultFreeSpaceMB)
	if v := op.Arg("freeSpaceTargetMB"); !v.IsMissing() {
		if target, err = command.InRange("freeSpaceTargetMB", v, 1, 1<<63-1); err != nil {
			return dst, err
		}
	}
	s := cs.Engine.Snapshot()
	defer s.Release()
	c, _, err := namespace.FindCollection(s, ns)
	if err != nil {
		return dst, err
	}
	if c == nil {
		return dst, mongoerr.New(mongoerr.NamespaceNotFound, "collection does not exist")
	}
	sz, err := cs.Engine.CollectionSizes(c)
	if err != nil {
		return dst, err
	}
	gain := max(sz.StorageSize-sz.DataSize, 0)
	if gain>>20 < target {
		gain = 0
	}
	if op.Bool("dryRun") {
		return value.Append(dst, "estimatedBytesFreed", value.NewInt(gain)), nil
	}
	if gain > 0 {
		if gain, err = cs.Engine.Compact(c); err != nil {
			return dst, err
		}
	}
	return value.Append(dst, "bytesFreed", value.NewInt(gain)), nil
}

// autoCompaction is the setting of autoCompact. The store always compacts by itself, so there is nothing to switch:
// the setting is kept and checked as on the real server.
type autoCompaction struct {
	mu struct {
		sync.Mutex
		on      bool
		target  int64
		runOnce bool
	}
}

func autoCompactSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "autoCompact", Roles: command.Shard | command.Config, AdminOnly: true, Run: cs.runAutoCompact,
		Fields: []command.Field{command.Opt("freeSpaceTargetMB", command.TNumber), command.Opt("runOnce", command.TBool)},
	}
}

func (cs *Commands) runAutoCompact(op *command.Op, dst []byte) ([]byte, error) {
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
		if target, err = command.InRange("freeSpaceTargetMB", t, 1, 1<<63-1); err != nil {
			return dst, err
		}
		if v.Bool() && target > 1<<43-1 {
			return dst, mongoerr.New(mongoerr.BadValue, "autoCompact.freeSpaceTargetMB is too large")
		}
	}
	a := &cs.compaction
	a.mu.Lock()
	defer a.mu.Unlock()
	once := op.Bool("runOnce")
	if v.Bool() && a.mu.on && (a.mu.target != target || a.mu.runOnce != once) {
		return dst, mongoerr.New(mongoerr.AlreadyInitialized, "background compaction is already running with another configuration")
	}
	a.mu.on, a.mu.target, a.mu.runOnce = v.Bool() && !once, target, once
	return dst, nil
}

func reIndexSpec(cs *Commands) command.Spec {
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
