package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// lostRouterDDL is a command whose router is killed while it is under way.
type lostRouterDDL struct {
	name    string
	db      string
	command bson.D
	prepare []bson.D // on the database crash
	admin   []bson.D // likewise on admin, afterwards
	hold    holding
	again   mongoerr.Code // with which the command may fail when another router sends it, too, if the first one was carried out
	check   func(ctx context.Context, c *shardedCluster) error

	before []bson.D  // on admin, after all that, by TestKilledAlone: each until it has taken effect
	steps  []holding // where TestKilledAlone holds it, nil if it does not
	undone func(ctx context.Context, c *shardedCluster) error
}

// holding is where a command is held: by a fail point of a node.
type holding struct {
	node  func(c *shardedCluster) *server
	point string
	mode  any
	data  bson.D
}

func onCoordinator(c *shardedCluster) *server  { return c.shards[1].lead() }
func onOtherShard(c *shardedCluster) *server   { return c.shards[0].lead() }
func onConfigServer(c *shardedCluster) *server { return c.config.lead() }

// atPhaseOf holds a run of the coordinator before a phase.
func atPhaseOf(operation, phase string) holding {
	return holding{onCoordinator, "hangBeforeRunningShardingDDLPhase", "alwaysOn", bson.D{{Key: "operationType", Value: operation}, {Key: "phase", Value: phase}}}
}

// atSteps holds a change of the list of shards before each of its steps.
func atSteps(operation string, steps ...string) (all []holding) {
	for _, s := range steps {
		h := atPhaseOf(operation, s)
		h.node = onConfigServer
		all = append(all, h)
	}
	return all
}

// beforeNodes holds a command to the whole cluster before a node has it: the config server, or a shard when the config server has it already.
func beforeNodes(onConfig, onShard string) []holding {
	return []holding{beforeCommand(onConfigServer, onConfig), beforeCommand(onOtherShard, onShard)}
}

// atStateOf holds a resharding.
func atStateOf(state string) holding {
	return holding{onConfigServer, "reshardingPauseCoordinatorAtState", "alwaysOn", bson.D{{Key: "state", Value: state}}}
}

func atEachState() (all []holding) {
	for _, s := range reshardStates {
		all = append(all, atStateOf(s))
	}
	return all
}

// beforeCommand holds a command that a node is sent, until its sender is gone.
func beforeCommand(node func(c *shardedCluster) *server, command string) holding {
	return holding{node, "failCommand", bson.D{{Key: "times", Value: 1}}, bson.D{{Key: "failCommands", Value: bson.A{command}}, {Key: "failInternalCommands", Value: true},
		{Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 10000}}}
}

// lostRouterRows has a row for each kind of DDL; third is a set that is added as a shard, nil for none. The collection crash.c is sharded, crash.plain is not, and has the same documents.
func lostRouterRows(third *replicaSet) []lostRouterDDL {
	conn, name := "", shardName(2)
	if third != nil {
		conn = third.conn()
	}
	onThird := func(*shardedCluster) *server { return third.members[0] }
	d, add := pairs, pairs("addShard", conn, "name", name)
	has := func(want map[string]int64) func(context.Context, *shardedCluster) error {
		return func(ctx context.Context, c *shardedCluster) error {
			return holds(ctx, c.survivor().Database("crash"), want)
		}
	}
	both := has(map[string]int64{"c": 100, "plain": 100})
	entry := func(ns string, want bson.D) func(context.Context, *shardedCluster) error {
		return func(ctx context.Context, c *shardedCluster) error {
			n, err := c.survivor().Database("config").Collection("collections").CountDocuments(ctx, append(d("_id", ns), want...))
			if err == nil && n != 1 {
				err = fmt.Errorf("%d entries of %s are as they should be", n, ns)
			}
			return errors.Join(err, both(ctx, c))
		}
	}
	setting := func(cmd bson.D, want string) func(context.Context, *shardedCluster) error {
		return func(ctx context.Context, c *shardedCluster) error {
			for _, rs := range c.shards[:2] {
				r, err := rs.lead().direct.Database("admin").RunCommand(ctx, cmd).Raw()
				if got := fmt.Sprint(r); err != nil || !strings.Contains(got, want) {
					return fmt.Errorf("%s has %s, not %s, %v", rs.name, got, want, err)
				}
			}
			return both(ctx, c)
		}
	}
	blocked := func(want int64) func(context.Context, *shardedCluster) error {
		return func(ctx context.Context, c *shardedCluster) error {
			for _, rs := range c.shards {
				sections := rs.lead().direct.Database("config").Collection("user_writes_critical_sections")
				n, err := sections.CountDocuments(ctx, bson.D{})
				if err == nil && n == want {
					n, err = sections.CountDocuments(ctx, d("blockUserWrites", true))
				}
				if err != nil || n != want {
					return fmt.Errorf("%s has %d sections, %v", rs.name, n, err)
				}
			}
			return both(ctx, c)
		}
	}
	index := func(keys ...string) (list bson.A) {
		for _, k := range keys {
			list = append(list, d("key", d(k, 1), "name", k))
		}
		return list
	}
	indexes := func(want int) func(context.Context, *shardedCluster) error {
		return func(ctx context.Context, c *shardedCluster) error {
			for _, rs := range c.shards[:2] {
				specs, err := rs.lead().direct.Database("crash").Collection("c").Indexes().ListSpecifications(ctx)
				if err != nil || len(specs) != want {
					return fmt.Errorf("%s has %d indexes, %v", rs.name, len(specs), err)
				}
			}
			return both(ctx, c)
		}
	}
	shards := func(want bson.D, n int64) func(context.Context, *shardedCluster) error {
		return func(ctx context.Context, c *shardedCluster) error {
			found, err := c.survivor().Database("config").Collection("shards").CountDocuments(ctx, want)
			if err == nil && found != n {
				err = fmt.Errorf("%d shards are as %v, not %d", found, want, n)
			}
			return errors.Join(err, both(ctx, c))
		}
	}
	move := []bson.D{d("moveCollection", "crash.plain", "toShard", shardName(0))}
	back := append(slices.Clone(move), d("moveCollection", "crash.plain", "toShard", shardName(1)))
	return []lostRouterDDL{
		{name: "drop", db: "crash", command: d("drop", "c"), hold: atPhaseOf("dropCollection", "dropCollection"), check: has(map[string]int64{"c": 0, "plain": 100})},
		{name: "drop of what is not sharded", db: "crash", command: d("drop", "plain"), hold: beforeCommand(onCoordinator, "_shardsvrDropCollection"), check: has(map[string]int64{"c": 100, "plain": 0})},
		{
			name: "rename", db: "admin", command: d("renameCollection", "crash.c", "to", "crash.d", "dropTarget", true), again: mongoerr.NamespaceNotFound,
			hold: atPhaseOf("renameCollection", "renameMetadata"), check: has(map[string]int64{"c": 0, "d": 100}),
		},
		{
			name: "rename of what is not sharded", db: "admin", command: d("renameCollection", "crash.plain", "to", "crash.d", "dropTarget", true), again: mongoerr.NamespaceNotFound,
			hold: beforeCommand(onCoordinator, "_shardsvrRenameCollection"), check: has(map[string]int64{"plain": 0, "d": 100}),
		},
		{
			name: "create", db: "crash", command: d("create", "fresh", "capped", true, "size", 1<<20), hold: beforeCommand(onCoordinator, "_shardsvrCreateCollection"),
			check: func(ctx context.Context, c *shardedCluster) error {
				return errors.Join(listed(ctx, c.survivor().Database("crash"), d("name", "fresh", "options.capped", true)), both(ctx, c))
			},
		},
		{
			name: "collMod", db: "crash", command: d("collMod", "c", "validator", d("x", d("$ne", 1))), hold: atPhaseOf("collMod", "updateShards"),
			check: func(ctx context.Context, c *shardedCluster) error {
				return errors.Join(listed(ctx, c.survivor().Database("crash"), d("name", "c", "options.validator.x.$ne", 1)), both(ctx, c))
			},
		},
		{ // a member that is frozen must not be waited for, as it would be with the default quorum
			name: "createIndexes", db: "crash", command: d("createIndexes", "c", "indexes", index("g"), "commitQuorum", "majority"),
			hold: atPhaseOf("createIndexes", "updateShards"), check: indexes(3),
		},
		{
			name: "dropIndexes", db: "crash", command: d("dropIndexes", "c", "index", "g"), prepare: []bson.D{d("createIndexes", "c", "indexes", index("g"))},
			again: mongoerr.IndexNotFound, hold: atPhaseOf("dropIndexes", "updateShards"), check: indexes(2),
		},
		{
			name: "shardCollection", db: "admin", command: d("shardCollection", "crash.plain", "key", d("_id", 1)), hold: atPhaseOf("shardCollection", "commit"),
			check: entry("crash.plain", d("key", d("_id", 1), "unsplittable", nil)),
		},
		{
			name: "reshardCollection", db: "admin", command: d("reshardCollection", "crash.c", "key", d("g", 1), "numInitialChunks", 2), hold: atStateOf("cloning"),
			check: entry("crash.c", d("key", d("g", 1))), steps: atEachState(),
		},
		{name: "moveCollection", db: "admin", command: move[0], hold: atStateOf("applying"), check: entry("crash.plain", d("unsplittable", true)), steps: atEachState()},
		{
			name: "unshardCollection", db: "admin", command: d("unshardCollection", "crash.c", "toShard", shardName(0)), hold: atStateOf("cloning"), again: mongoerr.NamespaceNotSharded,
			check: entry("crash.c", d("unsplittable", true)), steps: atEachState(),
		},
		{
			name: "movePrimary", db: "admin", command: d("movePrimary", "crash", "to", shardName(0)), hold: atPhaseOf("movePrimary", "commit"),
			check: func(ctx context.Context, c *shardedCluster) error {
				n, err := c.survivor().Database("config").Collection("databases").CountDocuments(ctx, d("_id", "crash", "primary", shardName(0)))
				if err == nil && n != 1 {
					err = errors.New("the database has its former primary shard")
				}
				return errors.Join(err, both(ctx, c))
			},
		},
		{
			name: "refineCollectionShardKey", db: "admin", command: d("refineCollectionShardKey", "crash.c", "key", d("_id", "hashed", "g", 1)), hold: atPhaseOf("refineCollectionShardKey", "commit"),
			prepare: []bson.D{d("createIndexes", "c", "indexes", bson.A{d("key", d("_id", "hashed", "g", 1), "name", "new")})}, check: entry("crash.c", d("key.g", 1)),
		},
		{name: "dropDatabase", db: "crash", command: d("dropDatabase", 1), hold: atPhaseOf("dropDatabase", "dropDatabase"), check: has(map[string]int64{"c": 0, "plain": 0})},
		{
			name: "convertToCapped", db: "crash", command: d("convertToCapped", "plain", "size", 1<<20), admin: move, hold: atPhaseOf("convertToCapped", "convertCollection"),
			check: func(ctx context.Context, c *shardedCluster) error {
				return errors.Join(listed(ctx, c.survivor().Database("crash"), d("name", "plain", "options.capped", true)), both(ctx, c))
			},
		},
		{
			name: "untrackUnshardedCollection", db: "admin", command: d("untrackUnshardedCollection", "crash.plain"), admin: back, hold: atPhaseOf("untrackUnsplittableCollection", "commit"),
			check: func(ctx context.Context, c *shardedCluster) error {
				n, err := c.survivor().Database("config").Collection("collections").CountDocuments(ctx, d("_id", "crash.plain"))
				if err == nil && n != 0 {
					err = errors.New("the collection has its entry")
				}
				return errors.Join(err, both(ctx, c))
			},
		},
		{
			name: "setUserWriteBlockMode", db: "admin", command: d("setUserWriteBlockMode", 1, "global", true), hold: beforeCommand(onOtherShard, "_shardsvrSetUserWriteBlockMode"),
			check: blocked(1), steps: append(beforeNodes("setUserWriteBlockMode", "_shardsvrSetUserWriteBlockMode"), atSteps("setUserWriteBlockMode", "prepareOnConfigServer", "prepareOnShards", "storeOnConfigServer", "storeOnShards")...), undone: blocked(0),
		},
		{
			name: "setUserWriteBlockMode, off", db: "admin", command: d("setUserWriteBlockMode", 1, "global", false), hold: beforeCommand(onOtherShard, "_shardsvrSetUserWriteBlockMode"), check: blocked(0),
			before: []bson.D{d("setUserWriteBlockMode", 1, "global", true)}, steps: append(beforeNodes("setUserWriteBlockMode", "_shardsvrSetUserWriteBlockMode"), atSteps("setUserWriteBlockMode", "storeOnConfigServer", "storeOnShards")...), undone: blocked(1),
		},
		{
			name: "setClusterParameter", db: "admin", command: d("setClusterParameter", d("changeStreamOptions", d("preAndPostImages", d("expireAfterSeconds", 77)))),
			hold: beforeCommand(onOtherShard, "_shardsvrSetClusterParameter"), check: setting(d("getClusterParameter", "changeStreamOptions"), `"77"`),
			before: []bson.D{d("setClusterParameter", d("changeStreamOptions", d("preAndPostImages", d("expireAfterSeconds", 55))))},
			steps:  append(beforeNodes("setClusterParameter", "_shardsvrSetClusterParameter"), atSteps("setClusterParameter", "storeOnConfigServer", "storeOnShards")...), undone: setting(d("getClusterParameter", "changeStreamOptions"), `"55"`),
		},
		{
			name: "setFeatureCompatibilityVersion", db: "admin", command: d("setFeatureCompatibilityVersion", "8.0", "confirm", true), hold: beforeCommand(onOtherShard, "setFeatureCompatibilityVersion"),
			check: setting(d("getParameter", 1, "featureCompatibilityVersion", 1), `"8.0"`), undone: setting(d("getParameter", 1, "featureCompatibilityVersion", 1), `"8.2"`),
			before: []bson.D{d("setFeatureCompatibilityVersion", "8.2", "confirm", true)}, steps: append(beforeNodes("setFeatureCompatibilityVersion", "setFeatureCompatibilityVersion"), atSteps("setFeatureCompatibilityVersion", "storeOnConfigServer", "storeOnShards")...),
		},
		{
			name: "setFeatureCompatibilityVersion, back", db: "admin", command: d("setFeatureCompatibilityVersion", "8.2", "confirm", true), hold: beforeCommand(onOtherShard, "setFeatureCompatibilityVersion"),
			check: setting(d("getParameter", 1, "featureCompatibilityVersion", 1), `"8.2"`), undone: setting(d("getParameter", 1, "featureCompatibilityVersion", 1), `"8.0"`),
			before: []bson.D{d("setFeatureCompatibilityVersion", "8.0", "confirm", true)}, steps: append(beforeNodes("setFeatureCompatibilityVersion", "setFeatureCompatibilityVersion"), atSteps("setFeatureCompatibilityVersion", "storeOnConfigServer", "storeOnShards")...),
		},
		{
			name: "configureQueryAnalyzer", db: "admin", command: d("configureQueryAnalyzer", "crash.c", "mode", "full", "samplesPerSecond", 7), hold: beforeCommand(onConfigServer, "findAndModify"),
			check: func(ctx context.Context, c *shardedCluster) error {
				n, err := c.survivor().Database("config").Collection("queryAnalyzers").CountDocuments(ctx, d("_id", "crash.c", "samplesPerSecond", 7))
				if err == nil && n != 1 {
					err = errors.New("no samples are asked for")
				}
				return errors.Join(err, both(ctx, c))
			},
		},
		{name: "analyzeShardKey", db: "admin", command: d("analyzeShardKey", "crash.c", "key", d("_id", 1), "readWriteDistribution", false), hold: beforeCommand(onOtherShard, "aggregate"), check: both},
		{
			name: "addShard", db: "admin", command: add, hold: beforeCommand(onThird, "_addShard"), check: shards(d("_id", name), 1),
			steps: append(atSteps("addShard", "checkDatabases", "join", "sendSettings", "commit", "sendParameters", "endSections"), beforeCommand(onThird, "_addShard")),
		},
		{
			name: "removeShard", db: "admin", command: d("removeShard", name), hold: beforeCommand(onConfigServer, "_configsvrRemoveShard"), check: shards(d("_id", name, "draining", d("$ne", true)), 0),
			before: []bson.D{add}, steps: atSteps("removeShard", "startDraining", "reportDraining"),
		},
		{
			name: "removeShard, drained", db: "admin", command: d("removeShard", name), hold: beforeCommand(onConfigServer, "_configsvrRemoveShard"), again: mongoerr.ShardNotFound, check: shards(d("_id", name), 0),
			before: []bson.D{add, d("removeShard", name)}, steps: atSteps("removeShard", "commit", "reportRemoval"),
		},
		{
			name: "transitionFromDedicatedConfigServer", db: "admin", command: d("transitionFromDedicatedConfigServer", 1),
			hold: beforeCommand(onConfigServer, "_configsvrTransitionFromDedicatedConfigServer"), check: shards(d("_id", "config"), 1),
			steps: atSteps("transitionFromDedicatedConfigServer", "checkDatabases", "join", "commit"),
		},
		{
			name: "transitionToDedicatedConfigServer", db: "admin", command: d("transitionToDedicatedConfigServer", 1),
			hold: beforeCommand(onConfigServer, "_configsvrTransitionToDedicatedConfigServer"), check: shards(d("_id", "config", "draining", d("$ne", true)), 0),
			before: []bson.D{d("transitionFromDedicatedConfigServer", 1)}, steps: atSteps("transitionToDedicatedConfigServer", "startDraining", "reportDraining"),
		},
		{
			name: "transitionToDedicatedConfigServer, drained", db: "admin", command: d("transitionToDedicatedConfigServer", 1), again: mongoerr.ShardNotFound,
			hold: beforeCommand(onConfigServer, "_configsvrTransitionToDedicatedConfigServer"), check: shards(d("_id", "config"), 0),
			before: []bson.D{d("transitionFromDedicatedConfigServer", 1), d("transitionToDedicatedConfigServer", 1)},
			steps:  atSteps("transitionToDedicatedConfigServer", "commit", "removeEntry", "reportRemoval"),
		},
	}
}

// survivor is a client of the router that is not killed.
func (c *shardedCluster) survivor() *mongo.Client { return c.routers[1].direct }

// A router is killed while a DDL that it was sent is under way: the DDL is carried out, or nothing of it is, nothing waits for it, and the same command through
// another router joins it or does it.
func TestKilledRouter(t *testing.T) {
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{1, 1}, routers: 2})
	third := launchSet(t, setOptions{name: shardName(2), role: "--shardsvr", members: 1, args: []string{"--setParameter", cursorsEnd}})
	for _, k := range lostRouterRows(third) {
		k.lose(c)
	}
}

func (k *lostRouterDDL) lose(c *shardedCluster) {
	t := c.t
	t.Helper()
	t.Log(k.name)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	k.prepareIn(ctx, c)
	release, reached := k.hold.set(t, ctx, c)
	router := c.routers[0]
	sent := make(chan error, 1)
	go func() { sent <- router.direct.Database(k.db).RunCommand(ctx, k.command).Err() }()
	if err := reached(); err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	router.kill()
	if err := <-sent; err == nil {
		t.Errorf("%s is answered by a router that was killed", k.name)
	}
	joined := make(chan error, 1)
	go func() { joined <- c.survivor().Database(k.db).RunCommand(ctx, k.command).Err() }()
	release()
	select {
	case err := <-joined:
		var refused mongo.CommandError
		if err != nil && (k.again == 0 || !errors.As(err, &refused) || refused.Code != int32(k.again)) {
			t.Errorf("%s through the other router: %v", k.name, err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s through the other router has no end", k.name)
	}
	k.awaitEnd(ctx, c)
	if err := k.check(ctx, c); err != nil {
		t.Errorf("%s: %v", k.name, err)
	}
	router.start()
	c.checkCatalog("crash")
}

// awaitEnd waits until no document of a protocol is left.
func (k *lostRouterDDL) awaitEnd(ctx context.Context, c *shardedCluster) {
	c.t.Helper()
	for _, rs := range c.shards {
		for _, coll := range []string{"system.sharding_ddl_coordinators", "collection_critical_sections", "movePrimaryRecipients"} {
			awaitNone(c.t, ctx, coll+" after "+k.name, rs.lead().direct.Database("config").Collection(coll))
		}
	}
	for _, coll := range []string{"reshardingOperations", "sharding_configsvr_coordinators"} {
		awaitNone(c.t, ctx, coll+" after "+k.name, c.config.lead().direct.Database("config").Collection(coll))
	}
}

// set sets the fail point.
func (h *holding) set(t *testing.T, ctx context.Context, c *shardedCluster) (release func(), reached func() error) {
	t.Helper()
	admin := h.node(c).direct.Database("admin")
	var set struct{ Count int64 }
	point := bson.D{{Key: "configureFailPoint", Value: h.point}, {Key: "mode", Value: h.mode}, {Key: "data", Value: h.data}}
	if err := admin.RunCommand(ctx, point).Decode(&set); err != nil {
		t.Fatal(err)
	}
	return func() {
			if err := admin.RunCommand(ctx, bson.D{{Key: "configureFailPoint", Value: h.point}, {Key: "mode", Value: "off"}}).Err(); err != nil {
				t.Error(err)
			}
		}, func() error {
			return admin.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: h.point}, {Key: "timesEntered", Value: set.Count + 1}, {Key: "maxTimeMS", Value: 20000}}).Err()
		}
}

// prepareIn makes the collections anew.
func (k *lostRouterDDL) prepareIn(ctx context.Context, c *shardedCluster) {
	c.t.Helper()
	if k.db == "admin" && k.prepare == nil && k.command[0].Key == "setUserWriteBlockMode" && k.command[1].Value == false {
		return // nothing can be written
	}
	k.makeAnew(ctx, c)
}

func (k *lostRouterDDL) makeAnew(ctx context.Context, c *shardedCluster) {
	c.t.Helper()
	client := c.survivor()
	db, admin := client.Database("crash"), client.Database("admin")
	if err := db.Drop(ctx); err != nil {
		c.t.Fatal(err)
	}
	for _, cmd := range []bson.D{
		{{Key: "enableSharding", Value: "crash"}, {Key: "primaryShard", Value: shardName(1)}},
		{{Key: "shardCollection", Value: "crash.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
	} {
		if err := admin.RunCommand(ctx, cmd).Err(); err != nil {
			c.t.Fatal(err)
		}
	}
	var docs []any
	for i := range 100 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "g", Value: i}, {Key: "n", Value: i}})
	}
	for _, name := range []string{"c", "plain"} {
		if _, err := db.Collection(name).InsertMany(ctx, docs); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, cmd := range k.prepare {
		if err := db.RunCommand(ctx, cmd).Err(); err != nil {
			c.t.Fatalf("%v: %v", cmd, err)
		}
	}
	for _, cmd := range k.admin {
		if err := admin.RunCommand(ctx, cmd).Err(); err != nil {
			c.t.Fatalf("%v: %v", cmd, err)
		}
	}
}
