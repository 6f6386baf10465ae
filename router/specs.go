package router

import (
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
)

// opt returns optional fields of any type: the shard that a command is relayed to checks them.
func opt(names ...string) []command.Field {
	out := make([]command.Field, len(names))
	for i, n := range names {
		out[i] = command.Opt(n, command.TAny)
	}
	return out
}

// relayed returns a row whose arguments the shards check: the router reads those that it needs and accepts all others.
func relayed(name string, kind command.Kind, run command.Handler, fields ...string) command.Spec {
	return command.Spec{
		Name: name, Roles: command.Router, Kind: kind, ArgTypes: command.TAny, Fields: opt(fields...), Lenient: true,
		ReadConcern: kind != command.DDL, WriteConcern: true, Txn: command.RunsInTransaction(name), Retryable: kind == command.Write, API: inAPI[name], Run: run,
	}
}

// inAPI are the relayed commands of API Version 1.
var inAPI = map[string]bool{
	"aggregate": true, "collMod": true, "count": true, "create": true, "createIndexes": true, "delete": true, "drop": true, "dropDatabase": true,
	"dropIndexes": true, "explain": true, "find": true, "findAndModify": true, "insert": true, "listCollections": true, "listDatabases": true, "listIndexes": true,
	"renameCollection": true, "update": true,
}

// onColl is relayed for a command whose value is a collection.
func onColl(name string, kind command.Kind, run command.Handler, fields ...string) command.Spec {
	s := relayed(name, kind, run, fields...)
	s.Namespace = true
	return s
}

// admin returns a row for a sharding command.
func admin(name string, types command.Types, run command.Handler, fields ...command.Field) command.Spec {
	return command.Spec{
		Name: name, Roles: command.Router, Kind: command.DDL, AdminOnly: true, ArgTypes: types, Fields: fields,
		WriteConcern: true, Run: run,
	}
}

// specs returns the router's command table; commands common to every role are registered elsewhere.
func (r *Router) specs() []command.Spec {
	fam := onColl("findAndModify", command.Write, r.findAndModify, "query", "upsert", "collation", "let", "hint", "sort", "new", "bypassDocumentValidation")
	fam.Aliases = []string{"findandmodify"}
	out := []command.Spec{
		onColl("find", command.Read, r.bySettings(r.find), "filter", "collation", "projection", "sort", "skip", "limit", "batchSize", "singleBatch",
			"tailable", "awaitData", "noCursorTimeout", "returnKey", "showRecordId", "min", "max", querySettingsField, "let", "allowDiskUse"),
		onColl("aggregate", command.Read, r.bySettings(r.aggregate), "pipeline", "bypassDocumentValidation", "cursor", "collation", "allowDiskUse", "explain", "let", "runtimeConstants",
			"needsMerge", "fromRouter", "fromMongos", "exchange", querySettingsField),
		onColl("count", command.Read, r.bySettings(r.count), "query", "skip", "limit", "collation", querySettingsField),
		onColl("distinct", command.Read, r.bySettings(r.distinct), "query", "key", "collation", querySettingsField),
		onColl("insert", command.Write, r.insert, "documents", "ordered"),
		onColl("update", command.Write, r.update, "updates", "ordered", "bypassDocumentValidation", writtenRanges),
		onColl("delete", command.Write, r.delete, "deletes", "ordered", writtenRanges),
		fam,
		command.BulkWriteSpec(command.Router, r.bulkWrite),
		{
			Name: "getMore", Roles: command.Router, Kind: command.Read, API: true, Txn: true, TimeToWait: true, Run: r.getMore,
			Fields: []command.Field{
				command.Req("collection", command.TString), command.Opt("batchSize", command.TNumber), command.Opt("term", command.TInt),
				command.Opt("lastKnownCommittedOpTime", command.TObject), command.Opt("includeQueryStatsMetrics", command.TSafeBool),
			},
		},
		{
			Name: "killCursors", Roles: command.Router, Kind: command.Read, Namespace: true, API: true, Txn: true, Run: r.killCursors,
			Fields: []command.Field{command.Req("cursors", command.TArray)},
		},
		relayed("explain", command.Read, r.bySettings(r.explain), "verbosity"),
		{Name: "currentOp", Roles: command.Router, AdminOnly: true, ArgTypes: command.TAny, Lenient: true, Run: r.currentOp},
		{Name: "killOp", Roles: command.Router, AdminOnly: true, Fields: []command.Field{command.Req("op", command.TAny)}, Run: r.killOp},
	}
	out = append(out, r.ddlSpecs()...)
	for i := range out {
		out[i].Run = r.namesActual(out[i].Run)
	}
	out = append(out, r.txnSpecs()...)
	out = append(out, r.shardingSpecs()...)
	return out
}

func (r *Router) ddlSpecs() []command.Spec {
	rename := relayed("renameCollection", command.DDL, r.renameCollection, "to", "dropTarget", "collectionUUID")
	rename.AdminOnly = true
	listDBs := relayed("listDatabases", command.Read, r.listDatabases, "nameOnly", "filter", "authorizedDatabases")
	listDBs.AdminOnly = true
	dropIndexes := onColl("dropIndexes", command.DDL, r.dropIndexes)
	dropIndexes.Aliases = []string{"deleteIndexes"}
	collStats := onColl("collStats", command.Read, r.collStats)
	collStats.Aliases = []string{"collstats"}
	dbStats := relayed("dbStats", command.Read, r.dbStats)
	dbStats.Aliases = []string{"dbstats"}
	dataSize := relayed("dataSize", command.Read, r.dataSize)
	dataSize.Aliases = []string{"datasize"}
	out := []command.Spec{
		onColl("create", command.DDL, r.create),
		onColl("drop", command.DDL, r.drop, "collectionUUID"),
		relayed("dropDatabase", command.DDL, r.dropDatabase),
		listDBs, rename, dropIndexes, collStats, dbStats, dataSize,
		relayed("listCollections", command.Read, r.toPrimaryRead, "filter", "nameOnly", "authorizedCollections"),
		onColl("listIndexes", command.Read, r.listIndexes),
		onColl("createIndexes", command.DDL, r.createIndexes),
		onColl("collMod", command.DDL, r.collMod),
		onColl("validate", command.Read, r.validate),
		onColl("convertToCapped", command.DDL, r.unshardedOnly), r.createUnsplittableSpec(),
		relayed("profile", command.None, r.profile),
		onColl("planCacheClear", command.None, r.toOwnersFirst),
		onColl("planCacheClearFilters", command.None, r.toOwnersFirst),
		onColl("planCacheListFilters", command.None, r.toOwnersFirst),
		onColl("planCacheSetFilter", command.None, r.toOwnersFirst),
		onColl("compactStructuredEncryptionData", command.None, r.toPrimaryRead),
		relayed("filemd5", command.Read, r.toPrimaryRead),
		relayed("getClusterParameter", command.None, r.getClusterParameter),
		relayed("setClusterParameter", command.None, r.setClusterParameter),
		relayed("getAuditConfig", command.None, r.getAuditConfig),
		relayed("setAuditConfig", command.None, r.setAuditConfig),
		relayed("setQuerySettings", command.None, r.changeQuerySettings),
		relayed("removeQuerySettings", command.None, r.changeQuerySettings),
		relayed("getDefaultRWConcern", command.None, r.toConfig),
		relayed("setDefaultRWConcern", command.None, r.everywhere),
		relayed("setFeatureCompatibilityVersion", command.None, r.toConfig),
		relayed("setUserWriteBlockMode", command.None, r.toConfig),
		onColl("setIndexCommitQuorum", command.None, r.toOwnersFirst),
		{
			Name: "checkMetadataConsistency", Roles: command.Router, ArgTypes: command.TAny,
			Fields: []command.Field{
				command.Opt("cursor", command.TObject), command.Opt("checkIndexes", command.TSafeBool), command.Opt("dbMetadataLockMaxTimeMS", command.TNumber),
			}, Run: r.checkMetadataConsistency,
		},
		oplogNote(r.oplogNote),
		relayed("validateDBMetadata", command.Read, r.validateDBMetadata),
		relayed("fsync", command.None, r.onAllShards),
		relayed("fsyncUnlock", command.None, r.onAllShards),
	}
	return out
}

func oplogNote(run command.Handler) command.Spec {
	s := relayed("appendOplogNote", command.None, run, "data", "maxClusterTime")
	s.AdminOnly = true
	return s
}

// toOwnersFirst sends a command to all shards that hold the collection and returns one reply.
func (r *Router) toOwnersFirst(op *command.Op, dst []byte) ([]byte, error) {
	return r.onOwners(op, false, dst, firstReply)
}

func (r *Router) shardingSpecs() []command.Spec {
	any, str := command.TAny, command.TString
	o, req := command.Opt, command.Req
	add := admin("addShard", str, r.addShard, o("name", str), o("maxSize", any))
	remove := admin("removeShard", str, r.removeShard)
	out := []command.Spec{
		admin("enableSharding", str, r.enableSharding, o("primaryShard", str)),
		admin("shardCollection", str, r.shardCollection, req("key", command.TObject), o("unique", command.TSafeBool), o("numInitialChunks", command.TNumber),
			o("presplitHashedZones", command.TSafeBool), o("collation", command.TObject), o("timeseries", command.TObject),
			o("implicitlyCreateIndex", command.TSafeBool), o("enforceUniquenessCheck", command.TSafeBool)),
		admin("split", str, r.split, o("find", command.TObject), o("bounds", command.TArray), o("middle", command.TObject)),
		admin("moveChunk", str, r.moveChunk, o("find", command.TObject), o("bounds", command.TArray), o("to", str), o("toShard", str),
			o("_secondaryThrottle", command.TSafeBool), o("secondaryThrottle", command.TSafeBool), o("waitForDelete", command.TSafeBool), o("_waitForDelete", command.TSafeBool), o("forceJumbo", command.TSafeBool)),
		admin("moveRange", str, r.moveChunk, o("toShard", str), o("min", command.TObject), o("max", command.TObject),
			o("_secondaryThrottle", command.TSafeBool), o("secondaryThrottle", command.TSafeBool), o("waitForDelete", command.TSafeBool), o("_waitForDelete", command.TSafeBool), o("forceJumbo", command.TSafeBool)),
		admin("mergeChunks", str, r.mergeChunks, o("bounds", command.TArray)),
		admin("mergeAllChunksOnShard", str, r.mergeAllChunksOnShard, req("shard", str), o("maxNumberOfChunksToMerge", command.TNumber), o("maxTimeProcessingChunksMS", command.TNumber)),
		admin("listShards", any, r.listShards, o("filter", command.TObject)),
		add, remove,
		admin("transitionFromDedicatedConfigServer", any, r.transitionToShard),
		admin("transitionToDedicatedConfigServer", any, r.transitionToDedicated),
		admin("getShardMap", any, r.getShardMap),
		admin("getShardVersion", str, r.getShardVersion, o("fullMetadata", command.TSafeBool)),
		admin("flushRouterConfig", any, r.flushRouterConfig),
		admin("balancerStart", any, r.asks(func(*command.Op) msg.Message { return &msg.BalancerStart{} }), o("maxTimeMS", any)),
		admin("balancerStop", any, r.asks(func(*command.Op) msg.Message { return &msg.BalancerStop{} }), o("maxTimeMS", any)),
		admin("balancerStatus", any, r.asks(func(*command.Op) msg.Message { return &msg.BalancerStatus{} })),
		admin("balancerCollectionStatus", str, r.asks(balancerCollectionStatus)),
		admin("configureCollectionBalancing", str, r.configureBalancing, o("chunkSize", command.TNumber), o("defragmentCollection", command.TBool),
			o("enableAutoMerger", command.TBool), o("enableBalancing", command.TBool), o("noBalance", command.TBool)),
		admin("addShardToZone", str, r.asks(addShardToZone), req("zone", str)),
		admin("removeShardFromZone", str, r.asks(removeShardFromZone), req("zone", str)),
		admin("updateZoneKeyRange", str, r.updateZoneKeyRange, req("min", command.TObject), req("max", command.TObject), req("zone", any)),
		admin("movePrimary", str, r.movePrimary, o("to", str), o("moveTo", str)),
		admin("refineCollectionShardKey", str, r.refineCollectionShardKey, req("key", command.TObject), o("enforceUniquenessCheck", command.TSafeBool)),
		admin("resetPlacementHistory", command.TAny, r.asks(func(*command.Op) msg.Message { return new(msg.ResetPlacementHistory) })),
		admin("setAllowMigrations", str, r.setAllowMigrations, command.Req("allowMigrations", command.TSafeBool)),
		admin("untrackUnshardedCollection", str, r.untrack),
		admin("clearJumboFlag", str, r.clearJumboFlag, o("find", command.TObject), o("bounds", command.TArray)),
		admin("recreateRangeDeletionTasks", str, r.recreateRangeDeletionTasks, o("skipEmptyRanges", command.TSafeBool)),
		admin("netstat", any, r.netstat),
		{
			Name: "splitVector", Roles: command.Router, ArgTypes: str, Lenient: true, Run: r.splitVector,
			Fields: []command.Field{
				req("keyPattern", command.TObject), o("min", command.TObject), o("max", command.TObject), o("force", command.TSafeBool),
				o("maxChunkSizeBytes", command.TNumber), o("maxChunkSize", command.TNumber), o("maxSplitPoints", command.TNumber), o("maxChunkObjects", command.TNumber),
			},
		},
		{Name: "isdbgrid", Roles: command.Router, ArgTypes: any, Run: r.isdbgrid},
	}
	out = append(out, r.reshardSpecs()...)
	return out
}
