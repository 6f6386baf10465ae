package auth

import "strings"

var (
	open  = &Rule{Open: true}
	login = &Rule{}
	// members is the rule for commands between nodes.
	members = &Rule{on: onCluster, need: Actions("internal")}
)

func cluster(actions string) *Rule  { return &Rule{on: onCluster, need: Actions(actions)} }
func coll(actions string) *Rule     { return &Rule{on: onColl, need: Actions(actions)} }
func db(actions string) *Rule       { return &Rule{on: onDB, need: Actions(actions)} }
func fullName(actions string) *Rule { return &Rule{on: onFullName, need: Actions(actions)} }
func namedDB(actions string) *Rule  { return &Rule{on: onNamedDB, need: Actions(actions)} }
func by(check func(g *Grants, r *Request) bool) *Rule {
	return &Rule{check: check}
}

// and adds a check to a rule.
func (rule *Rule) and(check func(g *Grants, r *Request) bool) *Rule {
	rule.check = check
	return rule
}

// rules is the table of actions by command, from the manual's pages Privilege Actions and those of the commands. Commands
// without a row are refused; a test lists them.
var rules = map[string]*Rule{
	// Before authentication.
	"hello": open, "_isSelf": open, "ping": open, "buildInfo": open, "whatsmyuri": open, "listCommands": open, "connectionStatus": open,
	"saslStart": open, "saslContinue": open, "authenticate": open, "logout": open, "features": login, "isdbgrid": login, "echo": login,
	"driverOIDTest": login, "whatsmysni": login,

	// Reading and writing.
	"find": coll("find"), "count": coll("find"), "distinct": coll("find"), "aggregate": by(checkAggregate),
	"mapReduce": by(checkMapReduce), "filemd5": db("find"), "dataSize": by(checkDataSize),
	"insert": coll("insert").and(checkBypass), "update": coll("update").and(checkUpdate), "delete": coll("remove"),
	"findAndModify": by(checkFindAndModify), "bulkWrite": by(checkBulkWrite),
	// A cursor knows its owner.
	"getMore": login, "killCursors": login,
	"abortTransaction": login, "commitTransaction": login,
	"startSession": login, "endSessions": login, "refreshSessions": login, "killSessions": login,
	"killAllSessions": cluster("killAnySession"), "killAllSessionsByPattern": cluster("killAnySession").and(checkKillSessionsByPattern),
	"refreshLogicalSessionCacheNow": login, "reapLogicalSessionCacheNow": login,

	// The catalog.
	"create": by(checkCreate), "drop": coll("dropCollection"), "dropDatabase": db("dropDatabase"), "collMod": coll("collMod").and(checkCollMod),
	"renameCollection": by(checkRename), "cloneCollectionAsCapped": by(checkCloneCapped), "convertToCapped": coll("convertToCapped"),
	"createIndexes": coll("createIndex"), "dropIndexes": coll("dropIndex"), "listIndexes": coll("listIndexes"), "reIndex": coll("reIndex"),
	"setIndexCommitQuorum": coll("createIndex"), "listCollections": by(checkListCollections), "listDatabases": by(checkListDatabases),
	"createSearchIndexes": coll("createSearchIndexes"), "dropSearchIndex": coll("dropSearchIndex"), "listSearchIndexes": coll("listSearchIndexes"),
	"updateSearchIndex": coll("updateSearchIndex"), "compact": coll("compact"), "autoCompact": cluster("compact"),
	"cleanupStructuredEncryptionData": coll("cleanupStructuredEncryptionData"), "compactStructuredEncryptionData": coll("compactStructuredEncryptionData"),
	"analyze": coll("analyze"), "validate": coll("validate"), "validateDBMetadata": by(checkValidateDB),
	"exportCollection": cluster("exportCollection"), "importCollection": cluster("importCollection"),

	// Statistics and diagnostics.
	"collStats": coll("collStats"), "dbStats": db("dbStats"), "dbHash": by(checkDBHash), "top": cluster("top"), "lockInfo": cluster("serverStatus"),
	"serverStatus": cluster("serverStatus"), "connPoolStats": cluster("connPoolStats"), "connPoolSync": cluster("connPoolSync"),
	"currentOp": by(checkCurrentOp), "killOp": by(checkKillOp), "getLog": cluster("getLog"), "getCmdLineOpts": cluster("getCmdLineOpts"),
	"hostInfo": cluster("hostInfo"), "netstat": cluster("netstat"), "getDiagnosticData": cluster("serverStatus replSetGetStatus").and(checkOplogStats),
	"profile": by(checkProfile), "getParameter": cluster("getParameter"), "setParameter": cluster("setParameter"),
	"planCacheClear": coll("planCacheWrite"), "planCacheClearFilters": coll("planCacheIndexFilter"),
	"planCacheListFilters": coll("planCacheIndexFilter"), "planCacheSetFilter": coll("planCacheIndexFilter"),
	"setQuerySettings": cluster("querySettings"), "removeQuerySettings": cluster("querySettings"),
	"getClusterParameter": cluster("getClusterParameter"), "setClusterParameter": cluster("setClusterParameter"),
	"getDefaultRWConcern": cluster("getDefaultRWConcern"), "setDefaultRWConcern": cluster("setDefaultRWConcern"),
	"setFeatureCompatibilityVersion": cluster("setFeatureCompatibilityVersion"), "setUserWriteBlockMode": cluster("setUserWriteBlockMode"),
	"getAuditConfig": cluster("auditConfigure"), "setAuditConfig": cluster("auditConfigure"), "getAuditConfigGeneration": cluster("auditConfigure"),
	"getChangeStreamState": cluster("getChangeStreamState"), "setChangeStreamState": cluster("setChangeStreamState"),
	"getQueryableEncryptionCountInfo": by(checkEncryptionCounts), "setProfilingFilterGlobally": cluster("enableProfiler"),

	// The server.
	"fsync": cluster("fsync"), "fsyncUnlock": cluster("unlock"), "logRotate": cluster("logRotate"), "logApplicationMessage": cluster("applicationMessage"),
	"shutdown": cluster("shutdown"), "dropConnections": cluster("dropConnections"), "rotateCertificates": cluster("rotateCertificates"),
	"appendOplogNote": cluster("appendOplogNote"), "clearLog": cluster("logRotate"),
	"dbCheck": db("dbHash"),

	// Replica sets.
	"replSetInitiate": cluster("replSetConfigure"), "replSetReconfig": cluster("replSetConfigure"), "replSetGetConfig": cluster("replSetGetConfig"),
	"replSetGetStatus": cluster("replSetGetStatus"), "replSetFreeze": cluster("replSetStateChange"), "replSetMaintenance": cluster("replSetStateChange"),
	"replSetStepDown": cluster("replSetStateChange"), "replSetStepUp": cluster("replSetStateChange"), "replSetSyncFrom": cluster("replSetStateChange"),
	"replSetAbortPrimaryCatchUp": cluster("replSetStateChange"), "replSetResizeOplog": cluster("replSetResizeOplog"),

	// Sharded clusters.
	"addShard": cluster("addShard"), "removeShard": cluster("removeShard"), "listShards": cluster("listShards"), "getShardMap": cluster("getShardMap"),
	"enableSharding": namedDB("enableSharding"), "shardCollection": fullName("enableSharding"), "split": by(checkOrCluster("splitChunk")),
	"moveChunk": fullName("moveChunk"), "moveRange": fullName("moveChunk"), "mergeChunks": by(checkOrCluster("splitChunk")), "clearJumboFlag": fullName("clearJumboFlag"),
	"mergeAllChunksOnShard": by(checkOrCluster("splitChunk")), "movePrimary": namedDB("moveChunk"), "changePrimary": namedDB("moveChunk"),
	"refineCollectionShardKey": fullName("refineCollectionShardKey"), "reshardCollection": fullName("reshardCollection"),
	"unshardCollection": by(checkOrCluster("unshardCollection")), "moveCollection": by(checkOrCluster("moveCollection")),
	"abortReshardCollection": fullName("reshardCollection"), "commitReshardCollection": fullName("reshardCollection"),
	"cleanupReshardCollection": fullName("reshardCollection"), "abortMoveCollection": by(checkOrCluster("moveCollection")),
	"abortUnshardCollection": by(checkOrCluster("unshardCollection")), "analyzeShardKey": by(checkAnalyzeShardKey),
	"configureQueryAnalyzer": fullName("configureQueryAnalyzer"), "checkMetadataConsistency": by(checkMetadata),
	"setAllowMigrations": fullName("moveChunk"), "flushRouterConfig": cluster("flushRouterConfig"), "shardingState": cluster("shardingState"),
	"cleanupOrphaned": cluster("cleanupOrphaned"), "getShardVersion": fullName("getShardVersion"), "getDatabaseVersion": namedDB("getShardVersion"),
	"balancerStart": by(checkSettings), "balancerStop": by(checkSettings), "balancerStatus": by(checkBalancerStatus),
	"balancerCollectionStatus": fullName("enableSharding"), "configureCollectionBalancing": by(checkSettings),
	"addShardToZone":                      by(checkZones("shards:update tags:find")),
	"removeShardFromZone":                 by(checkZones("shards:update tags:find")),
	"updateZoneKeyRange":                  by(checkZones("shards:find tags:find,update,remove")),
	"splitVector":                         fullName("splitVector"),
	"transitionFromDedicatedConfigServer": cluster("transitionFromDedicatedConfigServer"),
	"transitionToDedicatedConfigServer":   cluster("transitionToDedicatedConfigServer"), "transitionToShardedCluster": cluster("addShard"),
	"repairShardedCollectionChunksHistory": cluster("internal"), "resetPlacementHistory": cluster("internal"),
	"recreateRangeDeletionTasks": cluster("cleanupOrphaned"), "untrackUnshardedCollection": by(checkOrCluster("moveCollection")),
	"createUnsplittableCollection": cluster("internal"),

	// Users and roles: each names users and roles of several databases.
	"createUser": by(checkCreateUser), "updateUser": by(checkUpdateUser), "dropUser": by(checkDropUser), "dropAllUsersFromDatabase": db("dropUser"),
	"grantRolesToUser": by(checkGrantRoles), "revokeRolesFromUser": by(checkRevokeRoles), "usersInfo": by(checkUsersInfo),
	"createRole": by(checkCreateRole), "updateRole": by(checkUpdateRole), "dropRole": db("dropRole"), "dropAllRolesFromDatabase": db("dropRole"),
	"grantRolesToRole": by(checkGrantRoles), "revokeRolesFromRole": by(checkRevokeRoles),
	"grantPrivilegesToRole": by(checkGrantPrivileges), "revokePrivilegesFromRole": by(checkRevokePrivileges), "rolesInfo": by(checkRolesInfo),
	"invalidateUserCache": cluster("invalidateUserCache"), "_mergeAuthzCollections": by(checkMerge),
}

// memberCommands are the commands without an underscore that only nodes send.
var memberCommands = strings.Fields(`replSetHeartbeat replSetRequestVotes replSetUpdatePosition replSetGetRBID replSetTest
	replSetTestEgress clusterAbortTransaction clusterAggregate clusterCommitTransaction clusterDelete clusterFind clusterGetMore clusterInsert
	clusterUpdate coordinateCommitTransaction prepareTransaction voteAbortTransaction voteCommitTransaction voteAbortIndexBuild
	voteCommitIndexBuild setShardVersion splitChunk autoSplitVector checkShardingIndex internalRenameIfOptionsAndIndexesMatch multicast
	makeSnapshot pinHistoryReplicated httpClientRequest stageDebug captrunc emptycapped godinsert cpuload sleep configureFailPoint
	waitForFailPoint logMessage testDeprecation testRemoval testVersion2 testDeprecationInVersion2 testVersions1And2 shoalChaos`)

// testCommands exist only if test commands are enabled, and are then allowed for every client.
var testCommands = strings.Fields(`replSetTest replSetTestEgress stageDebug captrunc emptycapped godinsert cpuload sleep configureFailPoint
	waitForFailPoint logMessage testDeprecation testRemoval testVersion2 testDeprecationInVersion2 testVersions1And2 shoalChaos httpClientRequest
	makeSnapshot pinHistoryReplicated`)

func init() {
	// Set here, since these read the table themselves.
	rules["explain"] = by(checkExplain)
	rules["applyOps"] = cluster("applyOps").and(checkApplyOps)
	for _, name := range memberCommands {
		rules[name] = members
	}
	for _, name := range testCommands {
		rules[name] = login
	}
}
