package auth

import "strings"

// RoleName names a role.
type RoleName struct{ Role, DB string }

// String returns role@database.
func (r RoleName) String() string { return r.Role + "@" + r.DB }

// builtin is a row of the table of built-in roles: what the role grants according to the manual's page Built-In Roles.
type builtin struct {
	everywhere bool // the role exists in each database, otherwise only in admin
	includes   string
	grants     []grantRow
}

// grantRow allows actions on resources. A resource is written "cluster", "*" for everything, "any" for all databases, "db" for
// the role's database, else as database.collection: either may be "any", and the collection may be missing.
type grantRow struct{ on, actions string }

const (
	readActions = `changeStream collStats dbHash dbStats find killCursors listCollections listIndexes listSearchIndexes planCacheRead`
	// oldReadActions are the read actions without those for change streams.
	oldReadActions = `collStats dbHash dbStats find killCursors listCollections listIndexes listSearchIndexes planCacheRead`
	writeActions   = readActions + ` cleanupStructuredEncryptionData compactStructuredEncryptionData convertToCapped createCollection
		createIndex createSearchIndexes dropCollection dropIndex dropSearchIndex insert performRawDataOperations remove
		renameCollectionSameDB update updateSearchIndex`
	dbAdminActions = `analyze bypassDocumentValidation collMod collStats compact configureQueryAnalyzer convertToCapped createCollection createIndex
		createSearchIndexes dbStats dropCollection dropDatabase dropIndex dropSearchIndex enableProfiler listCollections listIndexes
		listSearchIndexes planCacheIndexFilter planCacheRead planCacheWrite reIndex renameCollectionSameDB storageDetails
		updateSearchIndex validate`
	profileActions   = readActions + ` convertToCapped createCollection dropCollection`
	userAdminActions = `changeCustomData changePassword createRole createUser dropRole dropUser grantRole revokeRole
		setAuthenticationRestriction viewRole viewUser`
	userStoreActions = `collStats createIndex createSearchIndexes dbHash dbStats dropIndex dropSearchIndex find killCursors planCacheRead`
	restoreActions   = `bypassDocumentValidation collMod createCollection createIndex dropCollection insert updateSearchIndex`
	shardActions     = `analyzeShardKey checkMetadataConsistency clearJumboFlag configureQueryAnalyzer enableSharding getShardVersion
		moveChunk refineCollectionShardKey reshardCollection splitChunk splitVector`
)

var builtins = map[string]builtin{
	"read":      {everywhere: true, grants: []grantRow{{"db", readActions}, {"db.system.js", readActions}}},
	"readWrite": {everywhere: true, grants: []grantRow{{"db", writeActions}, {"db.system.js", writeActions}}},
	"dbAdmin":   {everywhere: true, grants: []grantRow{{"db", dbAdminActions}, {"db.system.profile", profileActions}}},
	"dbOwner":   {everywhere: true, includes: "readWrite dbAdmin userAdmin"},
	"userAdmin": {everywhere: true, grants: []grantRow{{"db", userAdminActions}}},
	"enableSharding": {everywhere: true, grants: []grantRow{{"any",
		`analyzeShardKey enableSharding moveCollection refineCollectionShardKey reshardCollection unshardCollection`},
		{"cluster", `moveCollection unshardCollection`}}},

	"readAnyDatabase":      {grants: []grantRow{{"any", readActions}, {"any.system.js", readActions}, {"cluster", `listDatabases`}}},
	"readWriteAnyDatabase": {grants: []grantRow{{"any", writeActions}, {"any.system.js", writeActions}, {"cluster", `listDatabases`}}},
	"dbAdminAnyDatabase": {grants: []grantRow{{"any", dbAdminActions}, {"any.system.profile", profileActions},
		{"cluster", `applyOps listDatabases`}}},
	"userAdminAnyDatabase": {grants: []grantRow{{"any", userAdminActions}, {"cluster", `authSchemaUpgrade invalidateUserCache listDatabases`},
		{"admin.system.users", userStoreActions}, {"admin.system.roles", userStoreActions}, {"any.system.users", userStoreActions},
		{"admin.system.version", oldReadActions}, {"admin.system.new_users", userStoreActions}, {"admin.system.backup_users", userStoreActions}}},

	"clusterAdmin": {includes: "clusterManager clusterMonitor hostManager", grants: []grantRow{{"any", `dropDatabase`},
		{"cluster", `getChangeStreamState importCollection setChangeStreamState exportCollection`}}},
	"clusterManager": {grants: []grantRow{
		{"cluster", `addShard appendOplogNote applicationMessage checkMetadataConsistency cleanupOrphaned flushRouterConfig
			getClusterParameter getDefaultRWConcern listSessions listShards moveCollection querySettings removeShard replSetConfigure
			replSetGetConfig replSetGetStatus replSetResizeOplog replSetStateChange resync setClusterParameter setDefaultRWConcern
			setFeatureCompatibilityVersion setFreeMonitoring transitionFromDedicatedConfigServer transitionToDedicatedConfigServer
			unshardCollection enableSharding splitChunk`},
		{"any", shardActions + ` moveCollection unshardCollection`},
		{"config", oldReadActions + ` enableSharding insert moveChunk remove update`}, {"config.system.js", oldReadActions},
		{"local", `enableSharding insert moveChunk remove update`}, {"local.system.replset", oldReadActions}}},
	"clusterMonitor": {grants: []grantRow{
		{"cluster", `checkFreeMonitoringStatus connPoolStats getCmdLineOpts getDefaultRWConcern getLog getParameter getShardMap hostInfo
			inprog listClusterCatalog listDatabases listSampledQueries listSessions listShards netstat operationMetrics queryStatsRead queryStatsReadTransformed
			replSetGetConfig replSetGetStatus serverStatus setFreeMonitoring shardedDataDistribution shardingState top useUUID`},
		{"any", `collStats dbStats getShardVersion indexStats useUUID`}, {"any.system.profile", `find`},
		{"config", oldReadActions + ` getShardVersion indexStats`}, {"config.system.js", oldReadActions},
		{"local", oldReadActions + ` getShardVersion indexStats`}, {"local.system.js", oldReadActions}, {"local.system.replset", `find`},
		{"local.system.profile", `find`}, {"config.system.profile", `find`}}},
	"directShardOperations": {grants: []grantRow{{"cluster", `issueDirectShardOperations`}}},
	"hostManager": {grants: []grantRow{
		{"cluster", `applicationMessage auditConfigure closeAllDatabases compact connPoolSync cpuProfiler flushRouterConfig fsync
			invalidateUserCache killAnyCursor killAnySession killop logRotate oidReset resync rotateCertificates setParameter shutdown touch
			unlock`},
		{"any", `killAnyCursor killCursors`}}},
	"searchCoordinator": {includes: "readAnyDatabase", grants: []grantRow{{"cluster", `bypassDefaultMaxTimeMS`},
		{"__mdb_internal_search", writeActions}}},

	"backup": {grants: []grantRow{
		{"*", `listCollections listDatabases listIndexes listSearchIndexes`},
		{"cluster", `appendOplogNote getParameter listDatabases serverStatus setUserWriteBlockMode`},
		{"any", `find performRawDataOperations`}, {"config", `find`}, {"local", `find`}, {"any.system.js", `find`}, {"any.system.profile", `find`}, {"any.system.users", `find`},
		{"any.system.buckets.", `find performRawDataOperations`}, {"any.system.views", `find`},
		{"admin.system.users", `find`}, {"admin.system.roles", `find`}, {"admin.system.version", `find`}, {"admin.system.new_users", `find`},
		{"admin.system.backup_users", `find`}, {"local.oplog.rs", `find`}, {"config.settings", `find insert update`},
		{"admin.mms.backup", `insert update`}}},
	"restore": {grants: []grantRow{
		{"cluster", `getParameter bypassWriteBlockingMode setUserWriteBlockMode`},
		{"*", `listCollections`},
		{"any", restoreActions + ` convertToCapped createSearchIndexes performRawDataOperations ` + userAdminActions},
		{"any.system.js", restoreActions}, {"any.system.buckets.", restoreActions + ` performRawDataOperations`}, {"config", restoreActions}, {"local", restoreActions},
		{"any.system.views", `dropCollection`},
		{"admin.system.version", restoreActions + ` find`}, {"admin.system.roles", `createIndex`},
		{"admin.system.users", restoreActions + ` find remove update`}, {"any.system.users", restoreActions + ` find remove update`}}},

	"root": {includes: `readWriteAnyDatabase dbAdminAnyDatabase userAdminAnyDatabase clusterAdmin restore backup`,
		grants: []grantRow{{"*", `validate`}, {"any.system.buckets.", writeActions}, {"config.system.preimages", `find remove`},
			{"cluster", `analyze bypassDefaultMaxTimeMS impersonate`}}},
	"__queryableBackup": {includes: "backup", grants: []grantRow{{"any", `collStats`}}},
	"__system":          {grants: []grantRow{{"*", `anyAction`}}},
}

// IsBuiltin reports whether a role is built in.
func IsBuiltin(r RoleName) bool {
	b, ok := builtins[r.Role]
	return ok && (b.everywhere || r.DB == "admin") && r.DB != "$external"
}

// BuiltinNames lists the built-in roles of a database.
func BuiltinNames(db string) (out []string) {
	for n := range builtins {
		if IsBuiltin(RoleName{n, db}) {
			out = append(out, n)
		}
	}
	return out
}

// BuiltinPrivileges lists what a built-in role grants.
func BuiltinPrivileges(r RoleName) []Privilege { return appendBuiltin(nil, r) }

func appendBuiltin(list []Privilege, r RoleName) []Privilege {
	b := builtins[r.Role]
	for _, in := range strings.Fields(b.includes) {
		list = appendBuiltin(list, RoleName{in, r.DB})
	}
	for _, g := range b.grants {
		list = Merge(list, Privilege{On: rowResource(g.on, r.DB), Actions: Actions(g.actions)})
	}
	return list
}

func rowResource(on, own string) Resource {
	switch on {
	case "cluster":
		return Resource{Cluster: true}
	case "*":
		return Resource{Any: true}
	}
	db, coll, _ := strings.Cut(on, ".")
	switch db {
	case "db":
		db = own
	case "any":
		db = ""
	}
	if series, ok := strings.CutPrefix(coll, bucketsPrefix); ok {
		return Resource{DB: db, Coll: series, Buckets: true}
	}
	return Resource{DB: db, Coll: coll}
}
