package auth

import (
	"math/bits"
	"strings"
)

// Action is something that a user may be allowed to do. Its value is its index in the list of names.
type Action uint8

// actionNames lists the privilege actions in order: those in the manual, and others that built-in roles show.
var actionNames = strings.Fields(`
	addShard advanceClusterTime allCollectionStats analyze analyzeShardKey anyAction appendOplogNote applicationMessage applyOps
	auditConfigure authSchemaUpgrade authenticate bypassDefaultMaxTimeMS bypassDocumentValidation bypassWriteBlockingMode
	changeCustomData changeOwnCustomData changeOwnPassword changePassword changeStream checkFreeMonitoringStatus
	checkMetadataConsistency cleanupOrphaned cleanupStructuredEncryptionData clearJumboFlag closeAllDatabases collMod collStats
	compact compactStructuredEncryptionData configureQueryAnalyzer connPoolStats connPoolSync convertToCapped cpuProfiler
	createCollection createDatabase createIndex createRole createSearchIndexes createUser dbHash dbStats dropCollection
	dropConnections dropDatabase dropIndex dropRole dropSearchIndex dropUser emptycapped enableProfiler enableSharding
	exportCollection find flushRouterConfig forceUUID fsync getChangeStreamState getClusterParameter getCmdLineOpts
	getDefaultRWConcern getLog getParameter getShardMap getShardVersion grantPrivilegesToRole grantRole grantRolesToRole
	grantRolesToUser hostInfo impersonate importCollection indexStats inprog insert internal invalidateUserCache
	issueDirectShardOperations killAnyCursor killAnySession killCursors killop listCachedAndActiveUsers listClusterCatalog
	listCollections listCursors listDatabases listIndexes listSampledQueries listSearchIndexes listSessions listShards logRotate
	moveChunk moveCollection netstat oidReset operationMetrics performRawDataOperations planCacheIndexFilter planCacheRead
	planCacheWrite querySettings queryStatsRead queryStatsReadTransformed reIndex refineCollectionShardKey remove removeShard
	renameCollection renameCollectionSameDB repairDatabase replSetConfigure replSetGetConfig replSetGetStatus replSetHeartbeat
	replSetReconfig replSetResizeOplog replSetStateChange reshardCollection resync revokePrivilegesFromRole revokeRole
	revokeRolesFromRole revokeRolesFromUser rotateCertificates runAsLessPrivilegedUser serverStatus
	setAuthenticationRestriction setChangeStreamState setClusterParameter setDefaultRWConcern setFeatureCompatibilityVersion
	setFreeMonitoring setParameter setUserWriteBlockMode shardedDataDistribution shardingState shutdown splitChunk splitVector
	storageDetails top touch trafficRecord transitionFromDedicatedConfigServer transitionToDedicatedConfigServer unlock
	unshardCollection update updateRole updateSearchIndex updateUser useTenant useUUID validate viewRole viewUser`)

var actionsByName = func() map[string]Action {
	m := make(map[string]Action, len(actionNames))
	for i, n := range actionNames {
		m[n] = Action(i)
	}
	return m
}()

// String returns the action's name.
func (a Action) String() string { return actionNames[a] }

// ParseAction finds an action by its name.
func ParseAction(name string) (Action, bool) {
	a, ok := actionsByName[name]
	return a, ok
}

// ActionSet is a set of actions.
type ActionSet [4]uint64

// Actions returns the set of the named actions. It is for tables: an unknown name panics.
func Actions(names string) (s ActionSet) {
	for _, n := range strings.Fields(names) {
		a, ok := ParseAction(n)
		if !ok {
			panic("auth: no action " + n)
		}
		s.Add(a)
	}
	return s
}

var anyAction = actionsByName["anyAction"]

// Add adds an action to the set; anyAction adds them all.
func (s *ActionSet) Add(a Action) {
	if a == anyAction {
		for i := range s {
			s[i] = ^uint64(0)
		}
	}
	s[a/64] |= 1 << (a % 64)
}

// AddAll adds another set's actions.
func (s *ActionSet) AddAll(o ActionSet) {
	for i := range s {
		s[i] |= o[i]
	}
}

// Remove removes another set's actions.
func (s *ActionSet) Remove(o ActionSet) {
	for i := range s {
		s[i] &^= o[i]
	}
}

// Has reports whether an action is in the set.
func (s *ActionSet) Has(a Action) bool { return s[a/64]&(1<<(a%64)) != 0 }

// without returns what of want is not in the set.
func (s *ActionSet) without(want ActionSet) ActionSet {
	for i := range want {
		want[i] &^= s[i]
	}
	return want
}

// Empty reports whether no action is in the set.
func (s *ActionSet) Empty() bool { return s[0]|s[1]|s[2]|s[3] == 0 }

// Names lists the actions in order; a set of all of them is anyAction.
func (s *ActionSet) Names() []string {
	if s.Has(anyAction) {
		return []string{anyAction.String()}
	}
	var out []string
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			out = append(out, actionNames[i*64+bits.TrailingZeros64(w)])
		}
	}
	return out
}
