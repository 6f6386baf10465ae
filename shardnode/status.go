package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/settings"
)

func i64(name string, v int64) value.Field { return value.F(name, value.NewInt64(v)) }

func i32(name string, v int64) value.Field { return value.F(name, value.NewInt32(int32(v))) }

func sub(name string, fields ...value.Field) value.Field {
	return value.F(name, value.NewDocument(value.Doc(fields...)))
}

// addStatus adds the node's sections of serverStatus.
func (n *Node) addStatus(base *command.Base) {
	plain := func(name string, f func() []byte) command.StatusSection {
		return command.StatusSection{Name: name, Doc: func(*command.Op, value.Value) []byte { return f() }}
	}
	n.Service.Status.Host = n.Host
	n.Service.Status.Add(
		plain("catalogStats", n.catalogStatus),
		plain("defaultRWConcern", func() []byte { return docOf(n.settings.AppendConcerns) }),
		plain("electionMetrics", n.Repl.ElectionMetrics),
		plain("featureCompatibilityVersion", n.fcvStatus),
		plain("flowControl", n.Repl.FlowControl),
		plain("globalLock", n.globalLockStatus),
		plain("indexStats", func() []byte { return indexStatus(n) }),
		plain("indexBuilds", func() []byte { return value.Doc(i64("total", 0), i64("killedDueToInsufficientDiskSpace", 0)) }),
		plain("locks", func() []byte { return n.locks.Stats().Doc() }),
		n.counters.Section(),
		plain("opcountersRepl", func() []byte {
			return value.Doc(i64("insert", 0), i64("query", 0), i64("update", 0), i64("delete", 0), i64("getmore", 0), i64("command", 0))
		}),
		plain("oplogTruncation", func() []byte { return n.oplogStatus() }),
		plain("repl", n.replStatus),
		plain("shardingStatistics", func() []byte { return shardingStatus(n) }),
		plain("storageEngine", n.storageStatus),
		plain("pebble", n.pebbleStatus),
		plain("transactions", n.transactionStatus),
		plain("twoPhaseCommitCoordinator", n.txns.CoordinatorStatus),
		plain("mem", command.MemDoc),
		plain("metrics", n.metrics),
	)
}

func (n *Node) catalogStatus() []byte {
	var colls, capped, clustered, series, internal, views int64
	for _, c := range n.Engine.Catalog().All() {
		if namespace.IsSystemDB(c.NS) || isSystemName(c.Name()) {
			internal++
			if namespace.IsBuckets(c.NS) {
				series++
			}
			continue
		}
		colls++
		if c.Capped {
			capped++
		}
		if c.Clustered {
			clustered++
		}
	}
	s := n.Engine.Snapshot()
	defer s.Release()
	for _, db := range s.Catalog().Databases() {
		if c := s.Catalog().Lookup(db + ".system.views"); c != nil {
			views += c.Counters.Records.Load()
		}
	}
	return value.Doc(i32("collections", colls), i32("capped", capped), i32("clustered", clustered), i32("timeseries", series),
		i32("views", views), i32("internalCollections", internal), i32("internalViews", 0), i32("csfle", 0), i32("queryableEncryption", 0), i32("systemProfile", 0))
}

func isSystemName(coll string) bool { return len(coll) > 7 && coll[:7] == "system." }

func (n *Node) fcvStatus() []byte {
	version := value.Lookup(n.Params.Get(settings.FeatureVersionID).Value().Doc(), "version")
	major, minor := int64(0), int64(0)
	if s := version.Str(); len(s) == 3 {
		major, minor = int64(s[0]-'0'), int64(s[2]-'0')
	}
	return value.Doc(i32("major", major), i32("minor", minor), i32("transitioning", 0))
}

func (n *Node) globalLockStatus() []byte {
	readers, writers := n.locks.Queued()
	var active int64
	n.Service.EachOp(func(*command.Op) { active++ })
	return value.Doc(i64("totalTime", n.now().Sub(n.Service.Started).Microseconds()),
		sub("currentQueue", i32("total", int64(readers+writers)), i32("readers", int64(readers)), i32("writers", int64(writers))),
		sub("activeClients", i32("total", active), i32("readers", active), i32("writers", 0)))
}

// shardingStatus returns what the node does as a shard.
func shardingStatus(n *Node) []byte {
	re, state := n.admin.resharding.Load(), n.shard.State()
	if re == nil || state == nil {
		return nil
	}
	return value.Doc(append(state.Stats(n.Engine, n.Params.Int("chunkMigrationConcurrency")), value.F("resharding", value.NewDocument(re.Stats())))...)
}

// docOf makes a document of what f appends.
func docOf(f func(dst []byte) []byte) []byte {
	out, m := value.Begin(nil)
	return value.End(f(out), m)
}

func (n *Node) oplogStatus() []byte {
	if n.Repl == nil || n.Repl.Name == "" {
		return nil
	}
	return value.Doc(i64("totalTimeProcessingMicros", 0), value.F("processingMethod", value.NewString("scanning")), i64("totalTimeTruncatingMicros", 0),
		i64("truncateCount", 0))
}

// replStatus returns the section repl: the content of hello, and the id of the last rollback.
func (n *Node) replStatus() []byte {
	if n.Repl == nil || n.Repl.Name == "" {
		return nil
	}
	out, m := value.Begin(nil)
	out = n.Repl.Describe(nil, true, out)
	out, sm := value.BeginKey(out, value.Document, "primaryOnlyServices")
	n.Services.Each(func(name, state string) {
		out = value.Append(out, name, value.NewDocument(value.Doc(value.F("state", value.NewString(state)))))
	})
	out = value.End(out, sm)
	out = n.settings.WriteBlockStatus(out)
	out = value.Append(out, "rbid", value.NewInt32(1))
	return value.End(out, m)
}

func (n *Node) storageStatus() []byte {
	return value.Doc(value.F("name", value.NewString("pebble")), value.F("supportsCommittedReads", value.NewBool(true)),
		value.F("oldestRequiredTimestampForCrashRecovery", n.Engine.Durable().Value()), value.F("supportsPendingDrops", value.NewBool(true)),
		value.F("dropPendingIdents", value.NewInt64(0)), value.F("supportsSnapshotReadConcern", value.NewBool(true)),
		value.F("readOnly", value.NewBool(false)), value.F("persistent", value.NewBool(true)), value.F("backupCursorOpen", value.NewBool(false)))
}

// pebbleStatus returns the store's statistics under its own name: the figures of another engine would have to be invented.
func (n *Node) pebbleStatus() []byte {
	s := n.Engine.Stats()
	return value.Doc(
		sub("cache", i64("bytes currently in the cache", s.CacheBytes), i64("maximum bytes configured", s.CacheMaximum), i64("hits", s.CacheHits), i64("misses", s.CacheMisses)),
		sub("log", i64("log bytes written", s.LogBytes), i64("waits for syncs", s.LogWaits), i64("waits of 10 ms or more", s.SlowLogWaits),
			i64("microseconds waited", s.LogWaitTime.Microseconds())), i64("memtable bytes", s.MemTableBytes), i64("memtable zombie bytes", s.ZombieBytes), i64("disk bytes", s.DiskBytes), i64("files", s.Files),
		sub("compaction", i64("flushes", s.Flushes), i64("flushed bytes", s.FlushedBytes), i64("compactions", s.Compactions),
			i64("compacted bytes", s.CompactedBytes), i64("ingested bytes", s.IngestedBytes), i64("debt bytes", s.CompactionDebt), i64("pauses for clients", s.TablePauses), i64("read amplification", int64(s.ReadAmplification))),
		sub("snapshots", i64("open", int64(s.OpenSnapshots)), i64("idle iterators", int64(s.IdleIterators))),
		sub("oplog", i64("bytes", s.OplogBytes), i64("maximum bytes", s.OplogMaximum)))
}

func (n *Node) transactionStatus() []byte {
	if n.Repl == nil || n.Repl.Name == "" {
		return nil
	}
	return n.txns.Status()
}

func (n *Node) metrics() []byte {
	open, pinned, noTimeout := n.cursors.open()
	w := &n.counters.work
	fields := []value.Field{
		value.F("commands", value.NewDocument(n.Service.CommandCounters())),
		n.cursors.Doc(i64("noTimeout", noTimeout), i64("pinned", pinned), i64("total", open)),
		sub("document", i64("deleted", n.counters.Deletes.Load()), i64("inserted", n.counters.Inserts.Load()), i64("returned", w.Returned()), i64("updated", n.counters.Updates.Load())),
	}
	fields = append(append(fields, w.Uses()...), w.Executor()...)
	return value.Doc(append(fields,
		sub("query", sub("planCache", sub("classic", i64("hits", n.exec.Counters.Hits.Load()), i64("misses", n.exec.Counters.Misses.Load()),
			i64("replanned", n.exec.Counters.Replanned.Load()), i64("skipped", n.exec.Counters.Skipped.Load())))),
		value.F("queryStats", value.NewDocument(n.Service.Queries.Status())),
		sub("ttl", i64("deletedDocuments", n.counters.ttlDeleted.Load()), i64("passes", n.counters.ttlPasses.Load()), i64("subPasses", n.counters.ttlPasses.Load())),
	)...)
}

func (n *Node) lockInfoSpecs() []command.Spec {
	return []command.Spec{command.AdminOnly("lockInfo", n.runLockInfo, command.Opt("includeStorageEngineDump", command.TSafeBool))}
}

// runLockInfo reports held and requested locks. The lock table keeps counts, not owners, so it can report only
// the lock of fsync and those of DDL.
func (n *Node) runLockInfo(op *command.Op, dst []byte) ([]byte, error) {
	dst, m := value.BeginKey(dst, value.Array, "lockInfo")
	i := 0
	if d := n.admin.coordinators.Load(); d != nil {
		for _, l := range d.LockInfo() {
			dst = value.AppendIndex(dst, i, l)
			i++
		}
	}
	if n.admin.fsync.locked() {
		granted := value.Doc(value.F("mode", value.NewString("S")), value.F("convertMode", value.NewString("NONE")),
			value.F("enqueueAtFront", value.NewBool(false)), value.F("compatibleFirst", value.NewBool(false)), value.F("desc", value.NewString("fsyncLock")))
		dst = value.AppendIndex(dst, i, value.NewDocument(value.Doc(
			value.F("resourceId", value.NewString("{8070450532247928834: Global, 2}")),
			value.F("granted", value.NewArray(value.ArrayOf(value.NewDocument(granted)))),
			value.F("pending", value.NewArray(value.ArrayOf())))))
	}
	return value.End(dst, m), nil
}
