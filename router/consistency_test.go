package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// inconsistent returns the types of inconsistency that a check finds, with the shards that they name.
func (c *testCluster) inconsistent(db, cmd string) string {
	c.t.Helper()
	var out []string
	for _, d := range c.all(db, cmd) {
		s := get(d, "type").(string)
		if shard, ok := get(get(d, "details"), "shard").(string); ok {
			s += " " + shard
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// An inconsistency is found by a check of the cluster, of its database and of its collection, and by no other; a check waits for
// a running DDL.
func TestCheckMetadataConsistency(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, coll := range []string{"c", "d", "e", "f"} {
		c.shardedAs(coll, 1, 10)
	}
	c.insertKeys("plain", 1, 2)
	c.run("db", `{"create": "v", "viewOn": "plain", "pipeline": []}`)
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t"}}`)
	c.run("other", `{"insert": "c", "documents": [{"_id": 1}]}`)
	check := func(db, cmd, want string) {
		t.Helper()
		if got := c.inconsistent(db, cmd); got != want {
			t.Errorf("%s on %s: %q, want %q", cmd, db, got, want)
		}
	}
	const whole, indexes = `{"checkMetadataConsistency": 1}`, `{"checkMetadataConsistency": 1, "checkIndexes": true}`
	check("admin", indexes, "")
	on := func(shard, db, cmd string) {
		t.Helper()
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
			t.Fatal(err)
		}
		p := c.confP
		if shard != "config" {
			p = c.shards[shard]
		}
		c.admin(p, append(d, bson.E{Key: "$db", Value: db}))
	}
	on("shard1", "db", `{"create": "stray"}`)
	on("shard1", "db", `{"drop": "d"}`)
	on("shard2", "db", `{"drop": "e"}`)
	on("shard2", "db", `{"create": "e"}`)
	on("shard2", "db", `{"createIndexes": "e", "indexes": [{"key": {"k": "hashed"}, "name": "k_hashed"}]}`)
	on("shard1", "db", `{"dropIndexes": "f", "index": "k_hashed"}`)
	on("config", "config", `{"delete": "chunks", "deletes": [{"q": {"shard": "shard1", "uuid": `+show(get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "uuid"))+`}, "limit": 1}]}`)
	on("config", "config", `{"insert": "collections", "documents": [{"_id": "gone.c", "uuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}, "lastmodEpoch": {"$oid": "6b03fe3ea9561bd055000213"}, "timestamp": {"$timestamp": {"t": 1, "i": 1}}, "key": {"_id": 1}}]}`)
	const inDB = "CollectionUUIDMismatch shard2, MisplacedCollection shard1, MissingLocalCollection shard1, MissingShardKeyIndex shard1, RoutingTableRangeGap"
	check("db", whole, inDB)
	check("admin", whole, strings.Replace(inDB, "MisplacedCollection", "HiddenShardedCollection, MisplacedCollection", 1))
	check("db", indexes, strings.Replace(inDB, "MisplacedCollection", "InconsistentIndex, MisplacedCollection", 1))
	check("other", whole, "")
	check("none", whole, "")
	for coll, want := range map[string]string{
		"c": "RoutingTableRangeGap", "d": "MissingLocalCollection shard1", "e": "CollectionUUIDMismatch shard2", "f": "MissingShardKeyIndex shard1",
		"stray": "MisplacedCollection shard1", "plain": "", "none": "",
	} {
		check("db", fmt.Sprintf(`{"checkMetadataConsistency": %q}`, coll), want)
	}
	m := c.run("db", `{"checkMetadataConsistency": 1, "cursor": {"batchSize": 2}}`)
	c.expect(len(get(m["cursor"], "firstBatch").(bson.A)), `2`)
	c.expect(len(c.all("db", `{"checkMetadataConsistency": 1, "cursor": {"batchSize": 2}}`)), `5`)
	for cmd, code := range map[string]mongoerr.Code{
		`{"checkMetadataConsistency": 1, "odd": 1}`: mongoerr.IDLUnknownField, `{"checkMetadataConsistency": 1, "dbMetadataLockMaxTimeMS": -1}`: mongoerr.BadValue, `{"checkMetadataConsistency": 1, "cursor": 1}`: mongoerr.TypeMismatch,
	} {
		if m := c.raw("db", cmd); m["code"] != int32(code) {
			t.Errorf("%s: %v", cmd, m)
		}
	}

	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("alwaysOn"), value.Doc(value.F("phase", value.NewString("done")))); err != nil {
		t.Fatal(err)
	}
	done := make(chan bson.M, 1)
	go func() { done <- c.raw("db", `{"drop": "f"}`) }()
	if err := c.points["shard0"].Register(hangBeforePhase).WaitEntered(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{`1`, `"f"`} {
		if m := c.raw("db", fmt.Sprintf(`{"checkMetadataConsistency": %s, "dbMetadataLockMaxTimeMS": 20}`, value)); m["code"] != int32(mongoerr.LockBusy) {
			t.Errorf("beside a drop: %v", m)
		}
	}
	check("db", `{"checkMetadataConsistency": "plain", "dbMetadataLockMaxTimeMS": 20000}`, "")
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("off"), nil); err != nil {
		t.Fatal(err)
	}
	c.expect((<-done)["ok"], `1.0`)
	check("db", `{"checkMetadataConsistency": "f"}`, "")
}

// What a shard has stored of a routing table is compared with the table of that version: missing and changed chunks, and another collection's fields, are found; a table that is only older is not.
func TestConsistencyOfStoredTables(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(40)
	c.run("admin", `{"split": "db.c", "middle": {"k": 5}}`)
	for _, s := range []string{"shard0", "shard1"} {
		c.admin(c.shards[s], bson.D{{Key: "_flushRoutingTableCacheUpdates", Value: "db.c"}, {Key: "$db", Value: "admin"}})
	}
	c.until("both have stored it", func() bool { return c.storedAs("shard0", "db.c") && c.storedAs("shard1", "db.c") })
	on := func(shard, cmd string) {
		t.Helper()
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
			t.Fatal(err)
		}
		if n := c.admin(c.shards[shard], append(d, bson.E{Key: "$db", Value: "config"}))["n"]; n != int32(1) {
			t.Fatalf("%s: n is %v", cmd, n)
		}
	}
	const check = `{"checkMetadataConsistency": "c"}`
	c.expect(c.all("db", check), `[]`)
	on("shard1", `{"delete": "cache.chunks.db.c", "deletes": [{"q": {"_id": {"k": 5}}, "limit": 1}]}`)
	c.expect(c.inconsistent("db", check), `"ShardCatalogCacheCollectionMetadataMismatch"`)
	c.expect(get(get(c.all("db", check)[0], "details"), "details"), `[{"shard":"shard1","field":"chunks"}]`)
	on("shard0", `{"update": "cache.collections", "updates": [{"q": {"_id": "db.c"}, "u": {"$set": {"key": {"other": 1}}}}]}`)
	c.expect(get(get(c.all("db", check)[0], "details"), "details"), `[{"shard":"shard0","field":"collection"},{"shard":"shard1","field":"chunks"}]`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 7}}`) // the table that is stored is older now, or read anew
	c.expect(c.all("db", check), `[]`)
}

// A check of a time series by its name checks its buckets, which it used to pass over: the series itself is a view.
func TestConsistencyOfATimeSeriesByItsName(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.ts", "key": {"m": 1}, "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.run("admin", `{"split": "db.system.buckets.ts", "middle": {"meta": 0}}`)
	c.run("admin", `{"moveChunk": "db.system.buckets.ts", "find": {"meta": 5}, "to": "shard1", "_waitForDelete": true}`)
	c.expect(c.all("db", `{"checkMetadataConsistency": "ts", "checkIndexes": true}`), `[]`)
	if m := c.onPeer(c.shards["shard1"], "db", `{"dropIndexes": "system.buckets.ts", "index": "m_1_t_1"}`); m["ok"] == 1.0 {
		t.Fatalf("the index of the shard key was dropped: %v", m)
	}
	if m := c.onPeer(c.shards["shard1"], "db", `{"createIndexes": "system.buckets.ts", "indexes": [{"key": {"meta.x": 1}, "name": "x"}]}`); m["ok"] != 1.0 {
		t.Fatal(m)
	}
	for _, name := range []string{`"ts"`, `"system.buckets.ts"`, `1`} {
		found := c.all("db", `{"checkMetadataConsistency": `+name+`, "checkIndexes": true}`)
		if len(found) != 1 || get(found[0], "type") != "InconsistentIndex" || get(get(found[0], "details"), "namespace") != "db.system.buckets.ts" {
			t.Errorf("%s: %s", name, show(found))
		}
	}
}

// The collection of sessions is checked as any sharded collection is. Only its routing table used to be.
func TestConsistencyOfTheSessions(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.fill(4)
	c.run("db", `{"find": "c", `+ownLSID+`}`)
	c.run("admin", `{"refreshLogicalSessionCacheNow": 1}`)
	const whole, one, indexes = `{"checkMetadataConsistency": 1}`, `{"checkMetadataConsistency": "system.sessions"}`, `{"checkMetadataConsistency": 1, "checkIndexes": true}`
	check := func(db, cmd, want string) {
		t.Helper()
		if got := c.inconsistent(db, cmd); got != want {
			t.Errorf("%s on %s: %q, want %q", cmd, db, got, want)
		}
	}
	check("config", indexes, "")
	on := func(shard, cmd string) {
		t.Helper()
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
			t.Fatal(err)
		}
		c.admin(c.shards[shard], append(d, bson.E{Key: "$db", Value: "config"}))
	}
	on("shard1", `{"createIndexes": "system.sessions", "indexes": [{"key": {"user": 1}, "name": "user"}]}`)
	check("config", whole, "")
	check("config", indexes, "InconsistentIndex")
	on("shard1", `{"drop": "system.sessions"}`)
	for _, cmd := range []string{whole, one} {
		check("config", cmd, "MissingLocalCollection shard1")
	}
	check("admin", whole, "MissingLocalCollection shard1")
	check("config", `{"checkMetadataConsistency": "settings"}`, "")
	on("shard1", `{"create": "system.sessions"}`)
	check("config", one, "CollectionUUIDMismatch shard1")
}
