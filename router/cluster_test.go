package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/configsvr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/router"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// testCluster is a router, a config server and some shards in memory, reached by function calls. It is not the clusters of cmd/shoal's tests
// (startHere, launchCluster), which are assembled as an operator's: here a test has the rooms themselves, puts a wrapper around a peer, a set or a
// clock, and no room may import cmd/shoal.
type testCluster struct {
	t      testing.TB
	router *command.Service
	r      *router.Router
	config *configsvr.Manager
	conf   *shardnode.Server
	dial   func(set string, hosts []string) (cluster.Peer, error)
	confP  cluster.Peer
	shards map[string]cluster.Peer
	server map[string]*shardnode.Server   // the first of each set
	points map[string]*cluster.FailPoints // by shard
	params map[string]*cluster.Params     // by shard
	client *command.Client
	warned func(msg string, err error)                    // receives what servers log for no client; nil for nothing
	reuses bool                                           // a request's memory is written over after the reply, as by the next one on a connection
	join   func(id, hosts string, s ...*shardnode.Server) // makes servers a shard
	add    func(id, hosts string, s ...*shardnode.Server) error
	opened func(c shardnode.Config) *shardnode.Server
	clock  *cluster.VectorClock                                          // of all nodes
	disk   *syncs                                                        // what the durable commits of all nodes wait for
	mongos func(*cluster.VectorClock) (*command.Service, *router.Router) // creates one more router
	hooks  clusterHooks
	term   int64                        // of the config server's primary
	depose func()                       // ends it
	ends   map[*shardnode.Server]func() // end servers before the test does
}

// fromConnection is the context of a request that comes from a connection: none, as the operation is its own.
var fromConnection context.Context

// clusterHooks are what a test puts between the rooms of a cluster.
type clusterHooks struct {
	watch func(shard string, m *wire.Message) error           // sees what nodes send to shards, the config server too, and may fail it
	store func(set string, o *storage.Options)                // changes the options of a node's store
	peer  func(set string, s *shardnode.Server) cluster.Peer  // reaches a node
	out   func(set string) func(to cluster.Peer) cluster.Peer // is how a node that begins now reaches another
	own   func(cluster.Peer) cluster.Peer                     // is how the config server reaches itself
}

func newTestCluster(t testing.TB, shards int) *testCluster {
	t.Helper()
	return newWatchedCluster(t, shards, nil)
}

// newWatchedCluster makes a cluster in which watch sees what nodes send to shards, the config server too, and may fail it.
func newWatchedCluster(t testing.TB, shards int, watch func(shard string, m *wire.Message) error) *testCluster {
	t.Helper()
	return newHookedCluster(t, shards, clusterHooks{watch: watch})
}

func newHookedCluster(t testing.TB, shards int, hooks clusterHooks) *testCluster {
	t.Helper()
	ctx := context.Background()
	if hooks.peer == nil {
		hooks.peer = func(_ string, s *shardnode.Server) cluster.Peer { return s.Peer() }
	}
	if hooks.out == nil {
		hooks.out = func(string) func(cluster.Peer) cluster.Peer {
			return func(to cluster.Peer) cluster.Peer { return to }
		}
	}
	watch := hooks.watch
	c := &testCluster{t: t, hooks: hooks, ends: map[*shardnode.Server]func(){}, shards: map[string]cluster.Peer{}, server: map[string]*shardnode.Server{}, points: map[string]*cluster.FailPoints{}, params: map[string]*cluster.Params{}, disk: &syncs{}}
	clock := cluster.NewVectorClock(time.Now)
	c.clock = clock
	c.opened = func(o shardnode.Config) *shardnode.Server {
		if c.points[o.SetName] == nil {
			c.points[o.SetName] = cluster.NewFailPoints()
		}
		if o.Params == nil {
			o.Params = cluster.NewParams()
			o.Params.Store("orphanCleanupDelaySecs", value.NewInt32(0))                       // tests look for remains of a migration
			o.Params.Store("reshardingCriticalSectionTimeoutMillis", value.NewInt32(300_000)) // beside other tests, a restart within it may take long
		}
		c.params[o.SetName] = o.Params
		o.Warn = func(msg string, err error) {
			if c.warned != nil {
				c.warned(msg, err)
			}
		}
		o.Repl.Commits = func(s replication.Set) replication.Set { return slowDisk{s, c.disk, o.SetName} }
		o.Memory, o.Points, o.Clock, o.Info = true, c.points[o.SetName], clock, &command.Info{Host: "test"}
		if hooks.store != nil {
			o.Store.Change = func(s *storage.Options) { hooks.store(o.SetName, s) }
		}
		s, err := shardnode.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Node.Docs.Set = &docsSet{Set: s.Node.Docs.Set} // before the node works
		c.ends[s] = sync.OnceFunc(func() { _ = s.Close() })
		t.Cleanup(c.ends[s])
		if c.server[o.SetName] == nil {
			c.server[o.SetName] = s
		}
		return s
	}
	open := func(set string, config bool) *shardnode.Server {
		s := c.opened(shardnode.Config{SetName: set, Host: set + ":27018", Config: config})
		if err := s.Initiate(ctx); err != nil {
			t.Fatal(err)
		}
		return s
	}
	conf := open("config", true)
	c.conf, c.confP = conf, hooks.peer("config", conf)
	c.dial = func(set string, hosts []string) (cluster.Peer, error) {
		if set == "" {
			set, _, _ = strings.Cut(hosts[0], ":")
		}
		if watch == nil {
			return c.shards[set], nil
		}
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if err := watch(set, m); err != nil {
				return dst, err
			}
			return c.shards[set].Call(ctx, m, dst)
		}), nil
	}
	reg := func() *cluster.Registry { return cluster.NewRegistry(c.confP, clock, c.dial) }
	c.manage(conf)
	c.add = func(id, hosts string, servers ...*shardnode.Server) error {
		for _, s := range servers {
			s.OnJoin(c.joining(id))
		}
		c.shards[id] = newShardPeer(hooks.peer(id, servers[0]))
		_, err := cluster.Run(ctx, c.confP, value.Doc(value.F("_configsvrAddShard", value.NewString(id+"/"+hosts)), value.F("name", value.NewString(id)), value.F("$db", value.NewString("admin"))))
		return err
	}
	c.join = func(id, hosts string, servers ...*shardnode.Server) {
		if err := c.add(id, hosts, servers...); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < shards; i++ {
		id := fmt.Sprintf("shard%d", i)
		c.join(id, id+":27018", open(id, false))
	}
	c.mongos = func(clock *cluster.VectorClock) (*command.Service, *router.Router) {
		s := command.NewService(command.Router)
		params, points := cluster.NewParams(), cluster.NewRouterFailPoints()
		base := &command.Base{Service: s, Params: params, FailPoints: points}
		registry := reg()
		base.Sessions = cluster.NewSessionCache(cluster.NewShardedSessions(cluster.NewCatalog(c.confP), registry, nil), time.Now, func(id cluster.LogicalSessionID) {
			base.Sessions.ClosedCursors(base.KillCursors(func(other cluster.LogicalSessionID) bool { return other == id }))
		})
		base.Install()
		s.Clock = clock
		r := router.New(s, registry, clock, params, points)
		r.Serve(base)
		return s, r
	}
	c.router, c.r = c.mongos(clock)
	c.client = command.NewClient(1, "test", "test", nil)
	return c
}

// registry is how a node finds the shards.
func (c *testCluster) registry(of string) *cluster.Registry {
	out := c.hooks.out(of)
	return cluster.NewRegistry(out(c.confP), c.clock, func(set string, hosts []string) (cluster.Peer, error) {
		to, err := c.dial(set, hosts)
		return out(to), err
	})
}

// joining returns how a server becomes a shard.
func (c *testCluster) joining(set string) func(migration.Identity) (*migration.ShardState, error) {
	return func(id migration.Identity) (*migration.ShardState, error) {
		return migration.NewShardState(id.Shard, cluster.NewCatalog(c.hooks.out(set)(c.confP)), c.registry(set), c.clock), nil
	}
}

// manage has a server be the config server.
func (c *testCluster) manage(conf *shardnode.Server) {
	c.t.Helper()
	var own cluster.Peer = conf.OwnPeer()
	if c.hooks.own != nil {
		own = c.hooks.own(own)
	}
	c.config = configsvr.New(own, c.registry("config"), c.clock, func() string { return "config:27019" })
	c.config.Params, c.config.Points = c.params["config"], c.points["config"]
	c.config.SetPatience(time.Hour)
	c.config.Register(conf.Service)
	conf.CoordinateSettings(c.config.Coordinate)
	conf.KeepSessionsIn(c.config.Sessions(conf.Base.Sessions.Timeout(), func(context.Context) (bool, error) { return false, nil }))
	if err := c.config.Init(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	c.reshardings()
}

// reshardings has the config server coordinate reshardings until the test ends.
func (c *testCluster) reshardings() {
	c.t.Helper()
	c.term++
	c.depose = c.drives(c.config, c.term)
}

// through returns the same cluster through another router, whose cache is empty.
func (c *testCluster) through() *testCluster {
	other := *c
	other.router, other.r = c.mongos(c.clock)
	return &other
}

func (c *testCluster) admin(p cluster.Peer, cmd bson.D) bson.M {
	c.t.Helper()
	raw, err := bson.Marshal(cmd)
	if err != nil {
		c.t.Fatal(err)
	}
	defer c.unanswered(bson.Raw(raw)).Stop()
	reply, err := cluster.Run(context.Background(), p, raw)
	if err != nil {
		c.t.Fatalf("%v: %v", cmd, err)
	}
	return decode(c.t, reply)
}

// point sets one of a shard's fail points; entered waits until it has been reached.
func (c *testCluster) point(shard, name string, on bool) (entered func()) {
	c.t.Helper()
	mode := "off"
	if on {
		mode = "alwaysOn"
	}
	if _, err := c.points[shard].Configure(name, value.NewString(mode), nil); err != nil {
		c.t.Fatal(err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := c.points[shard].Register(name).WaitEntered(ctx, 1); err != nil {
			c.t.Fatalf("%s: %v", name, err)
		}
	}
}

// restart makes a shard forget what a primary keeps only in memory, as an election or a restart does.
func (c *testCluster) restart(shard string) {
	c.t.Helper()
	s := c.server[shard].Node.Services
	s.StepDown()
	if err := s.StepUp(context.Background(), 0); err != nil {
		c.t.Fatal(err)
	}
}

func decode(t testing.TB, raw []byte) bson.M {
	t.Helper()
	var m bson.M
	if err := bson.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%v in %x", err, raw)
	}
	return m
}

// unanswered ends the tests, with the stacks of all goroutines, if a command has no answer within a time in which each has one: the limit of the whole package comes much later, and does
// not name the command.
func (c *testCluster) unanswered(cmd any) *time.Timer {
	const limit = 10 * time.Minute
	return time.AfterFunc(limit, func() { panic(fmt.Sprintf("%s: no answer within %v: %s", c.t.Name(), limit, cmd)) })
}

// raw sends a command to the router and returns the reply unchanged.
func (c *testCluster) raw(db, cmd string) bson.M {
	c.t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		c.t.Fatalf("%s: %v", cmd, err)
	}
	body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: db}))
	if err != nil {
		c.t.Fatal(err)
	}
	defer c.unanswered(cmd).Stop()
	m := decode(c.t, c.router.Run(fromConnection, c.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
	if c.reuses {
		clear(body)
	}
	return m
}

// run is raw for a command that must succeed.
func (c *testCluster) run(db, cmd string) bson.M {
	c.t.Helper()
	m := c.raw(db, cmd)
	if m["ok"] != 1.0 || m["writeErrors"] != nil {
		c.t.Fatalf("%s: %v", cmd, m)
	}
	return m
}

// all runs a find or aggregate to its end.
func (c *testCluster) all(db, cmd string) bson.A {
	c.t.Helper()
	m := c.run(db, cmd)
	cur := m["cursor"]
	out := get(cur, "firstBatch").(bson.A)
	ns := get(cur, "ns").(string)
	for get(cur, "id").(int64) != 0 {
		m = c.run(db, fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": %q}`, get(cur, "id").(int64), ns[len(db)+1:]))
		cur = m["cursor"]
		out = append(out, get(cur, "nextBatch").(bson.A)...)
	}
	return out
}

// get returns a field of a document.
func get(doc any, name string) any {
	for _, e := range doc.(bson.D) {
		if e.Key == name {
			return e.Value
		}
	}
	return nil
}

func show(v any) string {
	b, err := bson.MarshalExtJSON(bson.M{"v": v}, false, false)
	if err != nil {
		j, _ := json.Marshal(v)
		return string(j)
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(b), `{"v":`), "}")
}

func (c *testCluster) expect(got any, want string) {
	c.t.Helper()
	if s := show(got); s != want {
		c.t.Errorf("got  %s\nwant %s", s, want)
	}
}

// fill creates a collection of n documents {_id, k, g} sharded by k, with chunks on two shards split at n/2.
func (c *testCluster) fill(n int) {
	c.t.Helper()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"k": %d}}`, n/2))
	c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "find": {"k": %d}, "to": "shard1", "_waitForDelete": true}`, n/2))
	var docs []string
	for i := 0; i < n; i++ {
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "k": %d, "g": %d}`, i, i, i%3))
	}
	c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [%s]}`, strings.Join(docs, ",")))
}

// onShard counts a collection's documents on one shard, orphans included.
func (c *testCluster) onShard(id, coll string) int32 {
	m := c.admin(c.shards[id], bson.D{{Key: "count", Value: coll}, {Key: "query", Value: bson.D{}}, {Key: "$db", Value: "db"}})
	return m["n"].(int32)
}

func TestUnshardedCollection(t *testing.T) {
	c := newTestCluster(t, 2)
	c.expect(c.all("db", `{"find": "none"}`), `[]`)
	c.run("db", `{"insert": "u", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 2}, {"_id": 3, "a": 3}]}`)
	c.expect(c.all("db", `{"find": "u", "filter": {"a": {"$gt": 1}}, "sort": {"a": -1}, "batchSize": 1}`), `[{"_id":3,"a":3},{"_id":2,"a":2}]`)
	m := c.raw("db", `{"insert": "u", "documents": [{"_id": 1}]}`)
	if errs, ok := m["writeErrors"].(bson.A); !ok || len(errs) != 1 || get(errs[0], "code") != int32(mongoerr.DuplicateKey) {
		t.Errorf("a duplicate: %v", m)
	}
	if m := c.raw("db", `{"find": "u", "filter": {"$bad": 1}}`); m["code"] != int32(mongoerr.BadValue) {
		t.Errorf("a bad filter: %v", m)
	}
	c.expect(c.run("db", `{"count": "u"}`)["n"], `3`)
}

func TestShardedReads(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	if a, b := c.onShard("shard0", "c"), c.onShard("shard1", "c"); a != 10 || b != 10 {
		t.Fatalf("%d and %d documents on the shards, want 10 and 10", a, b)
	}
	c.expect(c.all("db", `{"find": "c", "filter": {"k": 15}, "projection": {"k": 1, "_id": 0}}`), `[{"k":15}]`)
	c.expect(c.all("db", `{"find": "c", "sort": {"k": -1}, "skip": 8, "limit": 4, "projection": {"_id": 1}}`), `[{"_id":11},{"_id":10},{"_id":9},{"_id":8}]`)
	c.expect(c.all("db", `{"find": "c", "sort": {"k": 1}, "batchSize": 3, "filter": {"k": {"$gte": 8, "$lt": 12}}, "projection": {"k": 0, "g": 0}}`), `[{"_id":8},{"_id":9},{"_id":10},{"_id":11}]`)
	c.expect(c.run("db", `{"count": "c", "query": {"g": 0}}`)["n"], `7`)
	c.expect(c.run("db", `{"count": "c", "skip": 5, "limit": 10}`)["n"], `10`)
	c.expect(c.run("db", `{"distinct": "c", "key": "g"}`)["values"], `[0,1,2]`)
	c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
}

func TestShardedAggregate(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.expect(c.all("db", `{"aggregate": "c", "pipeline": [{"$match": {"k": {"$lt": 15}}}, {"$group": {"_id": "$g", "n": {"$sum": 1}, "top": {"$max": "$k"}}}, {"$sort": {"_id": 1}}], "cursor": {}}`),
		`[{"_id":0,"n":5,"top":12},{"_id":1,"n":5,"top":13},{"_id":2,"n":5,"top":14}]`)
	c.expect(c.all("db", `{"aggregate": "c", "pipeline": [{"$sort": {"k": -1}}, {"$limit": 3}, {"$project": {"k": 1, "_id": 0}}], "cursor": {}}`), `[{"k":19},{"k":18},{"k":17}]`)
	c.expect(c.all("db", `{"aggregate": "c", "pipeline": [{"$group": {"_id": null, "avg": {"$avg": "$k"}}}], "cursor": {}}`), `[{"_id":null,"avg":9.5}]`)
	c.expect(c.all("db", `{"aggregate": "c", "pipeline": [{"$count": "n"}], "cursor": {}}`), `[{"n":20}]`)
	c.run("db", `{"insert": "names", "documents": [{"_id": 0, "name": "zero"}, {"_id": 1, "name": "one"}]}`)
	c.expect(c.all("db", `{"aggregate": "c", "pipeline": [{"$match": {"k": {"$in": [3, 16]}}}, {"$lookup": {"from": "names", "localField": "g", "foreignField": "_id", "as": "n"}}, {"$sort": {"k": 1}}, {"$project": {"n": "$n.name", "_id": 0}}], "cursor": {}}`),
		`[{"n":["zero"]},{"n":["one"]}]`)
	c.expect(c.all("db", `{"aggregate": "names", "pipeline": [{"$lookup": {"from": "c", "localField": "_id", "foreignField": "g", "as": "n"}}, {"$project": {"n": {"$size": "$n"}}}, {"$sort": {"_id": 1}}], "cursor": {}}`),
		`[{"_id":0,"n":7},{"_id":1,"n":7}]`)
	c.run("db", `{"aggregate": "c", "pipeline": [{"$match": {"g": 1}}, {"$out": "copy"}], "cursor": {}}`)
	c.expect(c.run("db", `{"count": "copy"}`)["n"], `7`)
}

func TestShardedWrites(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.expect(c.run("db", `{"update": "c", "updates": [{"q": {"k": 3}, "u": {"$set": {"x": 1}}}, {"q": {"k": 13}, "u": {"$set": {"x": 1}}}]}`)["nModified"], `2`)
	c.expect(c.run("db", `{"update": "c", "updates": [{"q": {"g": 0}, "u": {"$set": {"y": 1}}, "multi": true}]}`)["n"], `7`)
	c.expect(c.run("db", `{"update": "c", "updates": [{"q": {"_id": 17}, "u": {"$set": {"z": 1}}}]}`)["n"], `1`)
	c.expect(c.run("db", `{"update": "c", "updates": [{"q": {"_id": 170}, "u": {"$set": {"z": 1}}}]}`)["n"], `0`)
	c.expect(c.all("db", `{"find": "c", "filter": {"z": 1}, "projection": {"_id": 1}}`), `[{"_id":17}]`)
	up := c.run("db", `{"update": "c", "updates": [{"q": {"k": 2}, "u": {"$set": {"q": 1}}}, {"q": {"k": 50}, "u": {"$set": {"q": 1}}, "upsert": true}]}`)
	if u, ok := up["upserted"].(bson.A); !ok || len(u) != 1 || get(u[0], "index") != int32(1) {
		t.Errorf("an upsert after an update: %v", up)
	}
	for _, ordered := range []bool{true, false} {
		m := c.raw("db", fmt.Sprintf(`{"insert": "c", "ordered": %v, "documents": [{"_id": 100, "k": 100}, {"_id": 3, "k": 3}, {"_id": 101, "k": -1}]}`, ordered))
		errs, ok := m["writeErrors"].(bson.A)
		if !ok || get(errs[0], "code") != int32(mongoerr.DuplicateKey) {
			t.Fatalf("ordered %v: %v", ordered, m)
		}
		last := get(errs[len(errs)-1], "index")
		if n := m["n"]; ordered && (n != int32(1) || last != int32(1)) || !ordered && (n != int32(1) || last != int32(1)) {
			t.Errorf("ordered %v: %v", ordered, m)
		}
	}
	c.expect(c.run("db", `{"delete": "c", "deletes": [{"q": {"_id": 5}, "limit": 1}, {"q": {"g": 1}, "limit": 0}]}`)["n"], `8`)
	fam := c.run("db", `{"findAndModify": "c", "query": {"g": 2}, "sort": {"k": -1}, "update": {"$set": {"last": true}}, "new": true}`)
	if v := fam["value"]; get(v, "_id") != int32(17) || get(v, "last") != true {
		t.Errorf("findAndModify without the shard key: %v", fam)
	}
	bw := c.run("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 200, "k": 200}}, {"update": 0, "filter": {"k": 200}, "updateMods": {"$set": {"a": 1}}}, {"delete": 0, "filter": {"k": 200}}], "nsInfo": [{"ns": "db.c"}]}`)
	if bw["nInserted"] != int32(1) || bw["nModified"] != int32(1) || bw["nDeleted"] != int32(1) {
		t.Errorf("bulkWrite: %v", bw)
	}
}

func TestHashedKeyIsPresplit(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"shardCollection": "db.h", "key": {"_id": "hashed"}}`)
	chunks := c.all("config", `{"find": "chunks", "sort": {"min": 1}, "projection": {"_id": 0, "shard": 1, "lastmod": 1}}`)
	c.expect(chunks, `[{"shard":"shard0","lastmod":{"$timestamp":{"t":1,"i":0}}},{"shard":"shard1","lastmod":{"$timestamp":{"t":1,"i":1}}},{"shard":"shard2","lastmod":{"$timestamp":{"t":1,"i":2}}}]`)
	var docs []string
	for i := 0; i < 300; i++ {
		docs = append(docs, fmt.Sprintf(`{"_id": %d}`, i))
	}
	c.run("db", fmt.Sprintf(`{"insert": "h", "ordered": false, "documents": [%s]}`, strings.Join(docs, ",")))
	for id := range c.shards {
		if n := c.onShard(id, "h"); n < 50 {
			t.Errorf("%d of 300 documents on %s", n, id)
		}
	}
	c.expect(c.all("db", `{"find": "h", "filter": {"_id": 77}}`), `[{"_id":77}]`)
	c.expect(len(c.all("db", `{"find": "h", "filter": {"_id": {"$in": [1, 2, 3, 4, 5]}}}`)), `5`)
}

func TestVersionsAfterSplitMoveMerge(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 10}}`)
	table := func() string {
		var b strings.Builder
		for _, x := range c.all("config", `{"find": "chunks", "sort": {"min": 1}}`) {
			ts := get(x, "lastmod").(bson.Timestamp)
			fmt.Fprintf(&b, "%s %s %d|%d\n", show(get(x, "min")), get(x, "shard"), ts.T, ts.I)
		}
		return b.String()
	}
	check := func(what, want string) {
		t.Helper()
		if got := table(); got != want {
			t.Errorf("%s:\n%swant\n%s", what, got, want)
		}
	}
	check("two splits", `{"k":{"$minKey":1}} shard0 1|1
{"k":0} shard0 1|3
{"k":10} shard0 1|4
`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 5}, "to": "shard1"}`)
	check("a move", `{"k":{"$minKey":1}} shard0 2|1
{"k":0} shard1 2|0
{"k":10} shard0 1|4
`)
	c.run("admin", `{"moveRange": "db.c", "min": {"k": 20}, "max": {"k": 30}, "toShard": "shard1"}`)
	check("a move out of the middle of a chunk", `{"k":{"$minKey":1}} shard0 2|1
{"k":0} shard1 2|0
{"k":10} shard0 3|2
{"k":20} shard1 3|0
{"k":30} shard0 3|1
`)
	c.run("admin", `{"moveRange": "db.c", "min": {"k": 10}, "toShard": "shard1"}`)
	c.run("admin", `{"mergeChunks": "db.c", "bounds": [{"k": 0}, {"k": 30}]}`)
	check("a merge", `{"k":{"$minKey":1}} shard0 4|1
{"k":0} shard1 4|2
{"k":30} shard0 3|1
`)
}

func TestStaleRouterFindsItsWay(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
	// The chunk moves without the router's knowledge: another client asks the config server.
	c.admin(c.confP, bson.D{{Key: "_configsvrMoveRange", Value: "db.c"}, {Key: "toShard", Value: "shard1"}, {Key: "min", Value: bson.D{{Key: "k", Value: bson.MinKey{}}}}, {Key: "waitForDelete", Value: true}, {Key: "$db", Value: "admin"}})
	c.expect(c.all("db", `{"find": "c", "filter": {"k": 3}, "projection": {"_id": 1}}`), `[{"_id":3}]`)
	c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 300, "k": -5}]}`)
	if n := c.onShard("shard0", "c"); n != 0 {
		t.Errorf("%d documents left on the donor", n)
	}
	c.expect(c.run("db", `{"drop": "c"}`)["ns"], `"db.c"`)
	c.expect(len(c.all("db", `{"find": "c"}`)), `0`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	c.expect(c.all("db", `{"find": "c"}`), `[{"_id":1}]`)
}

// A migration's commit that arrives after its donor has asked for the outcome is refused.
func TestLateMigrationCommitIsRefused(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	x := c.all("config", `{"find": "chunks", "filter": {"min.k": 0}}`)[0]
	coll := c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0]
	version := bson.D{{Key: "e", Value: get(coll, "lastmodEpoch")}, {Key: "t", Value: get(coll, "timestamp")}, {Key: "v", Value: get(x, "lastmod")}}
	commit := bson.D{
		{Key: "_configsvrCommitChunkMigration", Value: "db.c"}, {Key: "fromShard", Value: "shard0"}, {Key: "toShard", Value: "shard1"},
		{Key: "migratedChunk", Value: bson.D{{Key: "min", Value: get(x, "min")}, {Key: "max", Value: get(x, "max")}, {Key: "lastmod", Value: get(x, "lastmod")},
			{Key: "lastmodEpoch", Value: get(coll, "lastmodEpoch")}}},
		{Key: "$db", Value: "admin"}}
	fence := bson.D{{Key: "_configsvrEnsureChunkVersionIsGreaterThan", Value: "db.c"}, {Key: "minKey", Value: get(x, "min")}, {Key: "version", Value: version}, {Key: "$db", Value: "admin"}}
	send := func(d bson.D) error {
		raw, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		_, err = cluster.Run(context.Background(), c.confP, raw)
		return err
	}
	for range 2 { // which may be repeated
		if err := send(fence); err != nil {
			t.Fatal(err)
		}
	}
	if ts := get(c.all("config", `{"find": "chunks", "filter": {"min.k": 0}}`)[0], "lastmod").(bson.Timestamp); ts.T != 2 || ts.I != 0 {
		t.Errorf("the fenced chunk has version %d|%d", ts.T, ts.I)
	}
	if err := send(commit); mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
		t.Errorf("the late commit: %v", err)
	}
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 5}, "to": "shard1"}`)
	if got := get(c.all("config", `{"find": "chunks", "filter": {"min.k": 0}}`)[0], "shard"); got != "shard1" {
		t.Errorf("a new migration leaves the chunk on %v", got)
	}
}
