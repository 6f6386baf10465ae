package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/configsvr"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// uuids returns the UUIDs of a collection on the shards that have it.
func (c *testCluster) uuids(ns string) map[string]bool {
	out := map[string]bool{}
	for _, s := range c.server {
		if l := s.Node.Engine.Catalog().Lookup(ns); l != nil {
			out[fmt.Sprintf("%x", l.UUID)] = true
		}
	}
	return out
}

// configThrough replaces the config server by one that reaches the shards through other peers.
func (c *testCluster) configThrough(by func(set string, to cluster.Peer) cluster.Peer) {
	c.t.Helper()
	m := configsvr.New(c.conf.OwnPeer(), cluster.NewRegistry(c.confP, c.router.Clock, func(set string, hosts []string) (cluster.Peer, error) {
		p, err := c.dial(set, hosts)
		return by(set, p), err
	}), c.router.Clock, func() string { return "config:27019" })
	m.Register(c.conf.Service)
	if err := m.Init(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// The primary of the coordinating shard changes at each phase of a shardCollection: a new collection, an empty one, one with documents,
// and ones that were moved to another shard, are sharded, with one UUID everywhere, and change streams get one event.
func TestShardCollectionAtEveryPhase(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	for _, kind := range []string{"new", "empty", "full", "moved empty", "moved full"} {
		for _, phase := range []string{"enterWriteCriticalSection", "createCollection", "enterCriticalSection", "commit", "exitCriticalSection", "done"} {
			docs := 0
			switch kind {
			case "empty", "moved empty":
				c.run("db", `{"create": "c"}`)
			case "full", "moved full":
				c.insertKeys("c", 1, 10)
				c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": "hashed"}, "name": "kh"}]}`)
				docs = 10
			}
			if strings.HasPrefix(kind, "moved") {
				c.run("admin", `{"moveCollection": "db.c", "toShard": "shard0"}`)
			}
			s, _ := c.watch("c", bson.D{{Key: "showExpandedEvents", Value: true}}, bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "shardCollection"}}}})
			const shard = `{"shardCollection": "db.c", "key": {"k": "hashed"}}`
			if m := c.atPhase("shard2", phase, "admin", shard); m["ok"] != 1.0 && m["code"] != int32(mongoerr.HostUnreachable) {
				t.Errorf("%s, %s: %v", kind, phase, m)
			}
			c.expect(c.run("admin", shard)["collectionsharded"], `"db.c"`)
			c.leftOver()
			c.expect(len(c.uuids("db.c")), `1`)
			c.expect(c.all("db", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
			c.expect(c.counted("c", 1), fmt.Sprint(docs))
			c.expect(get(c.all("config", `{"find": "collections"}`)[0], "key"), `{"k":"hashed"}`)
			c.run("db", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
			c.insertKeys("c", 2, 10)
			c.expect(c.counted("c", 2), `10`)
			told := len(s.rest(1))
			if told != 1 {
				t.Errorf("%s, %s: %d events", kind, phase, told)
			}
			c.run("db", `{"drop": "c", "maxTimeMS": 100000}`)
		}
	}
	c.expect(c.all("config", `{"find": "chunks"}`), `[]`)
}

// A shardCollection that fails before its commit is undone: what it had created is removed everywhere, and what existed before is unchanged.
func TestFailedShardCollectionIsUndone(t *testing.T) {
	c := newTestCluster(t, 3)
	var refuse atomic.Bool
	c.configThrough(func(set string, to cluster.Peer) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			dst, err := to.Call(ctx, m, dst) // the call may or may not arrive
			if string(m.CommandName()) == "_shardsvrCreateCollectionParticipant" && refuse.Load() {
				return dst, mongoerr.New(mongoerr.Unauthorized, "refused")
			}
			return dst, err
		})
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	refuse.Store(true)
	const shard = `{"shardCollection": "db.c", "key": {"k": "hashed"}}`
	for _, existed := range []bool{false, true} {
		if existed {
			c.run("db", `{"create": "c"}`)
		}
		if m := c.raw("admin", shard); m["code"] != int32(mongoerr.Unauthorized) {
			t.Errorf("%v", m)
		}
		c.leftOver()
		if on := c.hasIndex("db.c", "k_hashed"); len(on) > 0 {
			t.Errorf("an index is left on %v", on)
		}
		if n := len(c.uuids("db.c")); n != map[bool]int{false: 0, true: 1}[existed] {
			t.Errorf("existed %v: %d", existed, n)
		}
		c.expect(c.all("config", `{"find": "collections"}`), `[]`)
		c.expect(c.all("config", `{"find": "chunks"}`), `[]`)
	}
	for id, s := range c.server {
		if id != "shard0" && id != "config" && s.Node.Engine.Catalog().Lookup("db.c") != nil {
			t.Errorf("the collection is left on %s", id)
		}
	}
	c.insertKeys("c", 1, 2)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": "hashed"}, "name": "kh"}]}`)
	refuse.Store(false)
	c.run("admin", shard)
	c.expect(c.counted("c", 1), `2`)
}

// A shardCollection that fails because an index of the user's has the name that the shard key's would get leaves that index, also where moveCollection
// has placed the collection. A failed one of a time series removes the index that it has made.
func TestFailedShardCollectionLeavesTheUsersIndexes(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, option := range []string{`"sparse": true`, `"partialFilterExpression": {"x": 1}`, `"collation": {"locale": "de"}`} {
		for _, placed := range []bool{false, true} {
			c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k_1", `+option+`}]}`)
			if placed {
				c.run("admin", `{"moveCollection": "db.c", "toShard": "shard1"}`)
			}
			if m := c.raw("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`); m["code"] != int32(mongoerr.IndexKeySpecsConflict) {
				t.Errorf("%s: %v", option, m)
			}
			c.leftOver()
			c.expect(len(c.all("db", `{"listIndexes": "c"}`)), `2`)
			c.run("db", `{"drop": "c"}`)
		}
	}
	var refuse atomic.Bool
	refuse.Store(true)
	c.configThrough(func(set string, to cluster.Peer) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if string(m.CommandName()) == "_shardsvrCreateCollectionParticipant" && refuse.Load() {
				return dst, mongoerr.New(mongoerr.Unauthorized, "refused")
			}
			return to.Call(ctx, m, dst)
		})
	})
	c.run("db", `{"create": "s", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	before := len(c.all("db", `{"listIndexes": "s"}`))
	if m := c.raw("admin", `{"shardCollection": "db.s", "key": {"m.x": "hashed"}}`); m["code"] != int32(mongoerr.Unauthorized) {
		t.Errorf("%v", m)
	}
	c.leftOver()
	c.expect(len(c.all("db", `{"listIndexes": "s"}`)), fmt.Sprint(before))
}

// A shardCollection of a collection that was moved, and that fails before its commit, leaves it where it was; one that succeeds leaves
// its documents there, and they can move from there.
func TestMovedCollectionIsSharded(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	c.run("db", `{"create": "c"}`)
	c.insertKeys("full", 1, 10)
	c.run("db", `{"createIndexes": "full", "indexes": [{"key": {"u": 1}, "name": "u", "unique": true, "sparse": true}]}`)
	c.insertKeys("back", 1, 10)
	for ns, to := range map[string]string{"c": "shard0", "full": "shard0", "back": "shard1"} {
		c.run("admin", fmt.Sprintf(`{"moveCollection": "db.%s", "toShard": %q}`, ns, to))
	}
	c.run("admin", `{"moveCollection": "db.back", "toShard": "shard2"}`)
	var refuse atomic.Bool
	c.configThrough(func(set string, to cluster.Peer) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			dst, err := to.Call(ctx, m, dst)
			if string(m.CommandName()) == "_shardsvrCreateCollectionParticipant" && set == "shard2" && refuse.Load() { // after shard1 has done it
				return dst, mongoerr.New(mongoerr.Unauthorized, "refused")
			}
			return dst, err
		})
	})
	refuse.Store(true)
	if m := c.raw("admin", `{"shardCollection": "db.c", "key": {"k": "hashed"}}`); m["code"] != int32(mongoerr.Unauthorized) {
		t.Errorf("%v", m)
	}
	c.leftOver()
	c.expect(get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "unsplittable"), `true`)
	c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)
	if c.server["shard1"].Node.Engine.Catalog().Lookup("db.c") != nil {
		t.Error("the collection is left on shard1")
	}
	if on := c.hasIndex("db.c", "k_hashed"); len(on) > 0 {
		t.Errorf("an index is left on %v", on)
	}
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 1}]}`)
	c.run("db", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
	refuse.Store(false)
	for _, x := range []struct {
		cmd  string
		code mongoerr.Code
	}{
		{`{"shardCollection": "db.full", "key": {"k": 1}}`, mongoerr.InvalidOptions},   // without an index
		{`{"shardCollection": "db.full", "key": {"_id": 1}}`, mongoerr.InvalidOptions}, // u is unique
		{`{"shardCollection": "db.full", "key": {"_id": "hashed"}, "unique": true}`, mongoerr.InvalidOptions},
		{`{"shardCollection": "db.c", "key": {"h": "hashed"}, "implicitlyCreateIndex": false}`, mongoerr.InvalidOptions},
		{`{"shardCollection": "db.full", "key": {"_id": 1}, "enforceUniquenessCheck": false}`, 0},
		{`{"shardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 6}`, 0},
		{`{"shardCollection": "db.back", "key": {"_id": 1}, "collation": {"locale": "simple"}}`, 0},
	} {
		if m := c.raw("admin", x.cmd); x.code == 0 && m["ok"] != 1.0 || x.code != 0 && m["code"] != int32(x.code) {
			t.Errorf("%s: %v", x.cmd, m)
		}
		c.leftOver()
	}
	c.expect(len(c.all("config", `{"find": "chunks"}`)), `8`)
	check := func() {
		t.Helper()
		c.expect(c.all("db", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		c.expect(c.counted("full", 1), `10`)
		c.expect(c.counted("back", 1), `10`)
	}
	check()
	c.expect(c.onShard("shard0", "full"), `10`)
	c.run("admin", `{"moveRange": "db.full", "min": {"_id": 5}, "toShard": "shard2"}`)
	c.run("admin", `{"moveRange": "db.back", "min": {"_id": 5}, "toShard": "shard1"}`)
	check()
	if c.server["shard2"].Node.Engine.Catalog().Lookup("db.full").Index("u") == nil {
		t.Error("the primary shard of the database has no index")
	}
	c.insertKeys("c", 1, 30)
	c.expect(c.counted("c", 1), `30`)
}

// The config server is killed while a collection is being sharded.
func TestShardCollectionWithKilledConfigServer(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	atEveryStep(t, func(t *testing.T, n int) bool {
		_, killed := c.withMortalConfig(n, "admin", `{"shardCollection": "db.c", "key": {"k": "hashed"}, "maxTimeMS": 300}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": "hashed"}, "maxTimeMS": 100000}`)
		c.leftOver()
		c.expect(len(c.uuids("db.c")), `1`)
		c.insertKeys("c", 2, 10)
		c.expect(c.counted("c", 2), `10`)
		c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)
		c.run("db", `{"drop": "c", "maxTimeMS": 100000}`)
		return killed
	})
}

func TestShardCollectionOptions(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	refuse := func(cmd string, code int32, text string) {
		t.Helper()
		if m := c.raw("admin", cmd); m["code"] != code || !strings.Contains(fmt.Sprint(m["errmsg"]), text) {
			t.Errorf("%s: %v, want %d %q", cmd, m, code, text)
		}
	}
	refuse(`{"shardCollection": "db.none", "key": {"k": 1}, "implicitlyCreateIndex": false}`, int32(mongoerr.InvalidOptions), "create an index")
	c.expect(c.all("db", `{"listCollections": 1}`), `[]`) // it was undone
	refuse(`{"shardCollection": "db.none", "key": {"k": 1}, "numInitialChunks": 4}`, int32(mongoerr.InvalidOptions), "not hashed")
	refuse(`{"shardCollection": "db.none", "key": {"k": "hashed"}, "numInitialChunks": 24576}`, int32(mongoerr.InvalidOptions), "8192 per shard")
	refuse(`{"shardCollection": "db.none", "key": {"k": "hashed"}, "numInitialChunks": -1}`, int32(mongoerr.InvalidOptions), "negative")
	c.run("admin", `{"shardCollection": "db.many", "key": {"k": "hashed"}, "numInitialChunks": 7}`)
	c.expect(len(c.all("config", `{"find": "chunks"}`)), `7`)

	c.run("db", `{"insert": "u", "documents": [{"_id": 1, "k": 1, "l": [1, 2], "m": 1}]}`)
	c.run("db", `{"createIndexes": "u", "indexes": [{"key": {"k": 1}, "name": "k"}, {"key": {"l": 1}, "name": "l"}, {"key": {"m": 1}, "name": "m", "unique": true}]}`)
	refuse(`{"shardCollection": "db.u", "key": {"k": 1}}`, int32(mongoerr.InvalidOptions), "unique index on m")
	refuse(`{"shardCollection": "db.u", "key": {"l": 1}, "enforceUniquenessCheck": false}`, int32(mongoerr.InvalidOptions), "create an index") // it is multikey
	refuse(`{"shardCollection": "db.u", "key": {"k": 1}, "unique": true, "enforceUniquenessCheck": false}`, int32(mongoerr.InvalidOptions), "create an index")
	refuse(`{"shardCollection": "db.u", "key": {"m": "hashed"}, "numInitialChunks": 3, "enforceUniquenessCheck": false}`, int32(mongoerr.InvalidOptions), "create an index")
	c.run("admin", `{"shardCollection": "db.u", "key": {"k": 1}, "enforceUniquenessCheck": false}`)
	c.run("admin", `{"shardCollection": "db.u", "key": {"k": 1}}`)
	refuse(`{"shardCollection": "db.u", "key": {"k": 1}, "unique": true}`, int32(mongoerr.AlreadyInitialized), "already enabled")
	refuse(`{"shardCollection": "db.u", "key": {"m": 1}}`, int32(mongoerr.AlreadyInitialized), "already enabled")
}

// presplitHashedZones creates several chunks for each zone, on the shards of the zone alone.
func TestPresplitHashedZones(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for shard, zone := range map[string]string{"shard0": "A", "shard1": "A", "shard2": "B"} {
		c.run("admin", fmt.Sprintf(`{"addShardToZone": %q, "zone": %q}`, shard, zone))
	}
	zone := func(ns, min, max, zone string) {
		c.run("admin", fmt.Sprintf(`{"updateZoneKeyRange": %q, "min": %s, "max": %s, "zone": %q}`, ns, min, max, zone))
	}
	const low = `{"$minKey": 1}`
	zone("db.c", `{"a": 1, "h": `+low+`}`, `{"a": 2, "h": `+low+`}`, "A")
	zone("db.c", `{"a": 2, "h": `+low+`}`, `{"a": 3, "h": `+low+`}`, "B")
	c.run("admin", `{"shardCollection": "db.c", "key": {"a": 1, "h": "hashed"}, "presplitHashedZones": true, "numInitialChunks": 8}`)
	on := map[string]int{}
	for _, d := range c.all("config", `{"find": "chunks", "filter": {"min.a": {"$in": [1, 2]}, "max.a": {"$lte": 3}}}`) {
		on[fmt.Sprint(get(get(d, "min"), "a"), get(d, "shard"))]++
	}
	if want := (map[string]int{"1shard0": 2, "1shard1": 2, "2shard2": 4}); fmt.Sprint(on) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", on, want)
	}
	for i := range 40 {
		c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "a": %d, "h": %d}]}`, i, 1+i%2, i))
	}
	if a, b := c.onShard("shard0", "c")+c.onShard("shard1", "c"), c.onShard("shard2", "c"); a != 20 || b != 20 || c.onShard("shard0", "c") == 0 {
		t.Errorf("%d and %d documents in the zones", a, b)
	}
	zone("db.odd", `{"a": 1, "h": 5}`, `{"a": 2, "h": `+low+`}`, "A")
	if m := c.raw("admin", `{"shardCollection": "db.odd", "key": {"a": 1, "h": "hashed"}, "presplitHashedZones": true}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Errorf("%v", m)
	}
	zone("db.other", `{"b": 1}`, `{"b": 2}`, "A")
	if m := c.raw("admin", `{"shardCollection": "db.other", "key": {"a": 1}}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Errorf("%v", m)
	}
}

// A zone that was set with a prefix of the key before the collection was sharded used to keep its short bounds: no chunk was ever on the
// right shard, the zone was reported as corrupt, and it could be neither removed nor set again.
func TestZonesSetBeforeSharding(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"addShardToZone": "shard1", "zone": "Z"}`)
	c.run("db", `{"createIndexes": "full", "indexes": [{"key": {"a": 1, "b": 1}, "name": "ab"}]}`)
	c.run("db", `{"insert": "full", "documents": [{"_id": 1, "a": 1, "b": 1}]}`)
	for coll, key := range map[string]string{"ranged": `{"a": 1, "b": 1}`, "mixed": `{"a": 1, "h": "hashed"}`, "full": `{"a": 1, "b": 1}`} {
		ns := "db." + coll
		zone := func(zone string) {
			c.run("admin", fmt.Sprintf(`{"updateZoneKeyRange": %q, "min": {"a": 0}, "max": {"a": 5}, "zone": %s}`, ns, zone))
		}
		tags := func() bson.A { return c.all("config", fmt.Sprintf(`{"find": "tags", "filter": {"ns": %q}}`, ns)) }
		zone(`"Z"`)
		c.run("admin", fmt.Sprintf(`{"shardCollection": %q, "key": %s}`, ns, key))
		if got := tags(); len(got) != 1 || len(get(got[0], "min").(bson.D)) != 2 || len(get(got[0], "max").(bson.D)) != 2 {
			t.Errorf("%s: %v", ns, got)
		}
		if coll != "full" { // its chunk has to be moved
			if m := c.raw("admin", fmt.Sprintf(`{"balancerCollectionStatus": %q}`, ns)); m["balancerCompliant"] != true {
				t.Errorf("%s: %v", ns, m)
			}
		}
		if odd := c.all("db", fmt.Sprintf(`{"checkMetadataConsistency": %q}`, coll)); len(odd) != 0 {
			t.Errorf("%s: %v", ns, odd)
		}
		zone(`"Z"`)
		zone(`null`)
		if got := tags(); len(got) != 0 {
			t.Errorf("%s: not removed: %v", ns, got)
		}
		// Short bounds that an earlier version has left are completed when a zone is set or removed.
		c.run("config", fmt.Sprintf(`{"insert": "tags", "documents": [{"ns": %q, "min": {"a": 0}, "max": {"a": 5}, "tag": "Z"}]}`, ns))
		zone(`"Z"`)
		if got := tags(); len(got) != 1 || len(get(got[0], "min").(bson.D)) != 2 {
			t.Errorf("%s: %v", ns, got)
		}
		refined := key[:len(key)-1] + `, "c": 1}`
		c.run("db", fmt.Sprintf(`{"createIndexes": %q, "indexes": [{"key": %s, "name": "refined"}]}`, coll, refined))
		c.run("admin", fmt.Sprintf(`{"refineCollectionShardKey": %q, "key": %s}`, ns, refined))
		if got := tags(); len(got) != 1 || len(get(got[0], "max").(bson.D)) != 3 {
			t.Errorf("%s after its key was refined: %v", ns, got)
		}
	}
}
