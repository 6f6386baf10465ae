package auth

import "strings"

// direct are the commands that users may run on a shard itself once its cluster has several, whether or not they have the role
// directShardOperations: those of the manual's page Sharded Node Direct Commands.
var direct = names(`abortTransaction appendOplogNote authenticate autoCompact buildInfo commitTransaction compact connectionStatus connPoolStats
	createRole createUser currentOp dbHash dropAllRolesFromDatabase dropAllUsersFromDatabase dropRole dropUser endSessions flushRouterConfig
	fsync fsyncUnlock getAuditConfig getClusterParameter getCmdLineOpts getLog getParameter getShardMap grantPrivilegesToRole grantRolesToRole
	grantRolesToUser hello hostInfo invalidateUserCache killAllSessions killAllSessionsByPattern killCursors killOp killSessions listCommands
	lockInfo logApplicationMessage logout logRotate ping profile replSetAbortPrimaryCatchUp replSetFreeze replSetGetConfig replSetGetStatus
	replSetMaintenance replSetReconfig replSetResizeOplog replSetStepDown replSetSyncFrom revokePrivilegesFromRole revokeRolesFromRole
	revokeRolesFromUser rolesInfo rotateCertificates serverStatus setParameter shardingState startSession top updateRole updateUser usersInfo
	whatsmyuri`)

// directToo are commands that the page, which does not claim to be complete, leaves out: they touch no data of the cluster, and clients and
// operators could not do without them.
var directToo = names(`refreshSessions shutdown replSetInitiate setAuditConfig replSetTestEgress dropConnections features isdbgrid echo driverOIDTest
	whatsmysni configureFailPoint waitForFailPoint`)

// directReads are the commands by which the collections that a shard has for itself may be read.
var directReads = names(`find aggregate count distinct getMore explain listCollections listIndexes collStats dbStats`)

// ofCluster are collections of config that are read through a router alone.
var ofCluster = names(`changelog chunks collections databases mongos placementHistory shards system.sessions tags version`)

func names(list string) map[string]bool {
	out := map[string]bool{}
	for _, n := range strings.Fields(list) {
		out[n] = true
	}
	return out
}

// DirectCommand reports whether users without directShardOperations may run a command on a shard of a cluster that has several. coll is the
// collection that it is about, empty for none; writes means that it is an aggregation that stores its result.
func DirectCommand(name, db, coll string, writes bool) bool {
	if rule := rules[name]; rule != nil && rule.Open || direct[name] || directToo[name] {
		return true
	}
	if writes || !directReads[name] {
		return false
	}
	return db == "admin" || db == "local" || db == "config" && !ofCluster[coll]
}

// MayDirect reports whether an identity has the privilege of the role directShardOperations.
func (id *Identity) MayDirect() bool { return id.System || id.Grants.AllowCluster(actDirect) }

var actDirect = Actions("issueDirectShardOperations")
