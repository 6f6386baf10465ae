package router_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A collection that is not sharded and not on the primary shard of its database: commands change it where it is, and what is asked about
// it through a router is answered from there, while the primary shard's copy of its definition stays the same in all that a check compares.
func TestDDLOfPlacedCollections(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("moved", 1, 10)
	c.run("db", `{"createIndexes": "moved", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
	c.shardedAs("unsharded", 1, 10)
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	c.run("admin", `{"unshardCollection": "db.unsharded", "toShard": "shard2"}`)
	check := func() {
		t.Helper()
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
	check()
	for coll, shard := range map[string]string{"moved": "shard1", "unsharded": "shard2"} {
		do := func(cmd string, more string) bson.M {
			t.Helper()
			return c.run("db", fmt.Sprintf(`{%q: %q, %s}`, cmd, coll, more))
		}
		do("createIndexes", `"indexes": [{"key": {"b": 1}, "name": "b"}, {"key": {"d": 1}, "name": "d"}]`)
		check()
		m := do("collMod", `"index": {"name": "b", "hidden": true}`)
		c.expect(bson.D{{Key: "was", Value: m["hidden_old"]}, {Key: "is", Value: m["hidden_new"]}, {Key: "raw", Value: m["raw"]}}, `{"was":false,"is":true,"raw":null}`)
		check()
		m = do("dropIndexes", `"index": "d"`)
		c.expect(bson.D{{Key: "was", Value: m["nIndexesWas"]}, {Key: "raw", Value: m["raw"]}}, fmt.Sprintf(`{"was":%d,"raw":null}`, 4))
		check()
		if m := c.raw("db", fmt.Sprintf(`{"dropIndexes": %q, "index": "d"}`, coll)); m["code"] != int32(mongoerr.IndexNotFound) {
			t.Errorf("%s: an index is dropped twice: %v", coll, m)
		}
		do("collMod", `"validator": {"k": {"$exists": true}}`)
		check()
		for id, s := range c.server {
			l := s.Node.Engine.Catalog().Lookup("db." + coll)
			if l == nil {
				if id == "shard0" || id == shard {
					t.Errorf("%s is not on %s", coll, id)
				}
				continue
			}
			if value.LookupDoc(l.Options, "validator") == nil {
				t.Errorf("%s has no validator on %s", coll, id)
			}
			if l.Index("d") != nil || id == shard && l.Index("b") == nil {
				t.Errorf("%s has the wrong indexes on %s", coll, id)
			}
		}
		if m := c.raw("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 100}]}`, coll)); m["writeErrors"] == nil {
			t.Errorf("%s: %v", coll, m)
		}
		list := c.all("db", fmt.Sprintf(`{"listCollections": 1, "filter": {"name": %q}}`, coll))
		c.expect(get(get(list[0], "options"), "validator"), `{"k":{"$exists":true}}`)
		var names []any
		for _, x := range c.all("db", fmt.Sprintf(`{"listIndexes": %q}`, coll)) {
			names = append(names, get(x, "name"))
		}
		if len(names) != 3 {
			t.Errorf("%s has the indexes %v", coll, names)
		}
		do("create", `"validator": {"k": {"$exists": true}}`)
		if m := c.raw("db", fmt.Sprintf(`{"create": %q, "capped": true, "size": 4096}`, coll)); m["code"] != int32(mongoerr.NamespaceExists) {
			t.Errorf("%s is created otherwise: %v", coll, m)
		}
		c.expect(c.counted(coll, 1), `10`)
	}
	c.leftOver()
	c.run("admin", `{"movePrimary": "db", "to": "shard2"}`)
	check()
	c.run("db", `{"collMod": "moved", "validator": {}}`)
	c.run("admin", `{"renameCollection": "db.moved", "to": "db.renamed"}`)
	check()
	c.expect(c.counted("renamed", 1), `10`)
	c.run("db", `{"drop": "renamed"}`)
	check()
	for id, s := range c.server {
		if s.Node.Engine.Catalog().Lookup("db.renamed") != nil {
			t.Errorf("it is left on %s", id)
		}
	}
}

// A shard that had a collection may have looked it up when it was elsewhere, and not since. A moveCollection back to it was refused then, once: it
// was compared with that old entry.
func TestPlacedCollectionReturns(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("plain", 1, 10)
	for _, to := range []string{"shard2", "shard1"} {
		c.run("admin", fmt.Sprintf(`{"moveCollection": "db.plain", "toShard": %q}`, to))
	}
	c.admin(c.shards["shard2"], bson.D{{Key: "getShardVersion", Value: "db.plain"}, {Key: "$db", Value: "admin"}})
	for _, to := range []string{"shard0", "shard2"} {
		c.run("admin", fmt.Sprintf(`{"moveCollection": "db.plain", "toShard": %q}`, to))
	}
	c.expect(c.counted("plain", 1), `10`)
}

// A check finds nothing after any of the operations that give a collection another key or other shards, and waits for one that is under
// way.
func TestConsistentAfterResharding(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 40)
	c.insertKeys("plain", 1, 10)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "g": 1}, "name": "kg"}]}`)
	for _, cmd := range []string{
		`{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`,
		`{"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 1}}`,
		`{"moveCollection": "db.plain", "toShard": "shard2"}`,
		`{"moveCollection": "db.plain", "toShard": "shard1"}`,
		`{"moveCollection": "db.plain", "toShard": "shard0"}`,
		`{"unshardCollection": "db.c", "toShard": "shard1"}`,
		`{"movePrimary": "db", "to": "shard1"}`,
	} {
		c.run("admin", cmd)
		if bad := c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); len(bad) > 0 {
			t.Errorf("after %s: %s", cmd, show(bad))
		}
		c.expect(c.counted("c", 1), `40`)
		c.expect(c.counted("plain", 1), `10`)
	}
	const point = "reshardingPauseCoordinatorAtState"
	c.config.Points = c.points["config"]
	for _, state := range []string{"preparing-to-donate", "cloning", "blocking-writes", "committing", "done"} {
		entered, _ := c.points["config"].Configure(point, value.NewString("alwaysOn"), value.Doc(value.F("state", value.NewString(state))))
		done := make(chan bson.M, 1)
		to := "shard2"
		if state == "cloning" || state == "committing" {
			to = "shard0"
		}
		go func() { done <- c.raw("admin", fmt.Sprintf(`{"moveCollection": "db.plain", "toShard": %q}`, to)) }()
		if err := c.points["config"].Register(point).WaitEntered(t.Context(), entered+1); err != nil {
			t.Fatal(err)
		}
		for _, value := range []string{`1`, `"plain"`} {
			if m := c.raw("db", fmt.Sprintf(`{"checkMetadataConsistency": %s, "dbMetadataLockMaxTimeMS": 20}`, value)); m["code"] != int32(mongoerr.LockBusy) {
				t.Errorf("beside a moveCollection at %s: %v", state, m)
			}
		}
		c.expect(c.all("db", `{"checkMetadataConsistency": "c", "checkIndexes": true}`), `[]`)
		if _, err := c.points["config"].Configure(point, value.NewString("off"), nil); err != nil {
			t.Fatal(err)
		}
		c.expect((<-done)["ok"], `1.0`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
}

// The primary shard has a definition of each collection, including those that were moved to another shard. It loses it with the database, and no shard but
// the primary has anything under the name of a collection that is not tracked any more: otherwise the check would always report it.
func TestNoCopyIsLeftOfPlacedCollections(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	check := func(after string) {
		t.Helper()
		if got := show(c.all("admin", `{"checkMetadataConsistency": 1}`)); got != "[]" {
			t.Errorf("%s: %s", after, got)
		}
		c.expect(c.counted("u", 1), `10`)
	}
	c.insertKeys("u", 1, 10)
	for _, cmd := range []string{
		`{"moveCollection": "db.u", "toShard": "shard1"}`, `{"movePrimary": "db", "to": "shard1"}`, `{"untrackUnshardedCollection": "db.u"}`,
		`{"moveCollection": "db.u", "toShard": "shard0"}`, `{"movePrimary": "db", "to": "shard2"}`, `{"moveCollection": "db.u", "toShard": "shard2"}`,
	} {
		c.run("admin", cmd)
		check(cmd)
	}
	// One that was left by an earlier version.
	c.admin(c.shards["shard0"], bson.D{{Key: "create", Value: "u"}, {Key: "$db", Value: "db"}})
	c.run("admin", `{"untrackUnshardedCollection": "db.u"}`)
	check("untracked")
}

// A clustered collection is moved and resharded, and has one clustered index afterwards: listIndexes shows it, and the other shard used to create another
// index from that.
func TestClusteredCollectionIsPlaced(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "u", "clusteredIndex": {"key": {"_id": 1}, "unique": true, "name": "ci"}}`)
	c.insertKeys("u", 1, 10)
	for _, cmd := range []string{
		`{"moveCollection": "db.u", "toShard": "shard1"}`, `{"moveCollection": "db.u", "toShard": "shard0"}`, `{"createIndexes": "u", "indexes": [{"key": {"k": 1}, "name": "k"}]}`,
		`{"shardCollection": "db.u", "key": {"k": 1}}`, `{"split": "db.u", "middle": {"k": 0}}`, `{"moveRange": "db.u", "min": {"k": 0}, "toShard": "shard1"}`,
	} {
		db := "admin"
		if strings.HasPrefix(cmd, `{"createIndexes"`) {
			db = "db"
		}
		c.run(db, cmd)
		clustered := 0
		for _, x := range c.all("db", `{"listIndexes": "u"}`) {
			if get(x, "name") == "ci" {
				clustered++
			}
		}
		if m := c.raw("db", `{"validate": "u"}`); clustered != 1 || m["ok"] != 1.0 {
			t.Errorf("%s: %d clustered indexes, %v", cmd, clustered, m)
		}
		c.expect(c.counted("u", 1), `10`)
	}
}

// The manual has numInitialChunks result in less than 8192 chunks a shard, of reshardCollection, too, which used to accept up to 10,000 for one shard.
func TestReshardRefusesTooManyChunks(t *testing.T) {
	c := newTestCluster(t, 1)
	c.shardedAs("c", 1, 10)
	if m := c.raw("admin", `{"reshardCollection": "db.c", "key": {"g": "hashed"}, "numInitialChunks": 8192}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Errorf("answered %v", m)
	}
	c.leftOver()
}

// A resharded collection has the simple collation under its key.
func TestReshardRefusesACollation(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	if m := c.raw("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "collation": {"locale": "de"}}`); m["code"] != int32(mongoerr.BadValue) {
		t.Errorf("%v", m)
	}
	c.run("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "collation": {"locale": "simple"}}`)
	c.expect(c.counted("c", 1), `10`)
}

// createUnsplittableCollection tracks a collection that is not sharded from the beginning, on any shard; sent again it finds it done.
func TestUnsplittableCollectionIsCreated(t *testing.T) {
	c := newTestCluster(t, 3)
	if err := c.r.Params.SetStartup("enableTestCommands", "1"); err != nil {
		t.Fatal(err)
	}
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("full", 1, 10)
	for _, x := range []struct{ coll, args, on string }{
		{"here", ``, "shard0"}, {"there", `, "dataShard": "shard1"`, "shard1"}, {"other", `, "dataShard": "shard2", "collation": {"locale": "fr"}`, "shard2"}, {"full", ``, "shard0"},
	} {
		cmd := fmt.Sprintf(`{"createUnsplittableCollection": %q%s}`, x.coll, x.args)
		c.run("db", cmd)
		c.run("db", cmd)
		e := c.all("config", fmt.Sprintf(`{"find": "collections", "filter": {"_id": "db.%s"}}`, x.coll))[0]
		c.expect(bson.D{{Key: "unsplittable", Value: get(e, "unsplittable")}, {Key: "key", Value: get(e, "key")}}, `{"unsplittable":true,"key":{"_id":1}}`)
		c.expect(get(c.all("config", fmt.Sprintf(`{"find": "chunks", "filter": {"shard": %q}, "sort": {"lastmod": -1}, "limit": 1}`, x.on))[0], "shard"), fmt.Sprintf("%q", x.on))
		if x.coll != "full" {
			c.insertKeys(x.coll, 11, 20)
		}
		if n := c.onShard(x.on, x.coll); n < 5 {
			t.Errorf("%s has %d documents on %s", x.coll, n, x.on)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		if m := c.raw("db", fmt.Sprintf(`{"createUnsplittableCollection": %q, "dataShard": %q}`, x.coll, "shard1")); x.on != "shard1" && m["code"] != int32(mongoerr.AlreadyInitialized) {
			t.Errorf("%s on another shard: %v", x.coll, m)
		}
	}
	c.leftOver()
	if m := c.raw("db", `{"createUnsplittableCollection": "none", "dataShard": "missing"}`); m["code"] != int32(mongoerr.ShardNotFound) {
		t.Errorf("on a shard that is none: %v", m)
	}
	c.leftOver()
	if n := len(c.all("db", `{"listCollections": 1, "filter": {"name": "none"}}`)); n != 0 {
		t.Error("a refused collection exists")
	}
	c.run("admin", `{"moveCollection": "db.here", "toShard": "shard1"}`)
	c.shardedAs("sharded", 1, 4)
	if m := c.raw("db", `{"createUnsplittableCollection": "sharded"}`); m["code"] != int32(mongoerr.AlreadyInitialized) {
		t.Errorf("a sharded collection: %v", m)
	}
}

// It takes the options of create, which the collection has on its shard as one that is created there, and refuses what create refuses.
func TestUnsplittableCollectionHasItsOptions(t *testing.T) {
	c := newTestCluster(t, 2)
	if err := c.r.Params.SetStartup("enableTestCommands", "1"); err != nil {
		t.Fatal(err)
	}
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	listed := func(coll string) any {
		return get(c.all("db", fmt.Sprintf(`{"listCollections": 1, "filter": {"name": %q}}`, coll))[0], "options")
	}
	for i, options := range []string{
		`"capped": true, "size": 4096, "max": 10`, `"validator": {"x": {"$exists": true}}, "validationLevel": "moderate"`, `"clusteredIndex": {"key": {"_id": 1}, "unique": true}`,
		`"collation": {"locale": "fr"}`, `"changeStreamPreAndPostImages": {"enabled": true}`, `"timeseries": {"timeField": "t", "metaField": "m"}`,
	} {
		plain, tracked := fmt.Sprintf("plain%d", i), fmt.Sprintf("tracked%d", i)
		c.run("db", fmt.Sprintf(`{"create": %q, %s}`, plain, options))
		cmd := fmt.Sprintf(`{"createUnsplittableCollection": %q, "dataShard": "shard1", %s}`, tracked, options)
		c.run("db", cmd)
		c.run("db", cmd)
		c.expect(listed(tracked), show(listed(plain)))
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1, "x": 1, "t": {"$date": "2026-01-01T00:00:00Z"}, "m": 1}]}`, tracked))
		c.expect(c.all("db", fmt.Sprintf(`{"find": %q, "projection": {"_id": 1}}`, tracked)), `[{"_id":1}]`)
		if on := c.server["shard1"].Node.Engine.Catalog(); on.Lookup("db."+tracked) == nil && on.Lookup("db.system.buckets."+tracked) == nil {
			t.Errorf("%s is not on its shard", tracked)
		}
		if m := c.raw("db", fmt.Sprintf(`{"createUnsplittableCollection": %q, "dataShard": "shard1", "capped": true, "size": 8192}`, tracked)); m["code"] != int32(mongoerr.NamespaceExists) {
			t.Errorf("%s with other options: %v", tracked, m)
		}
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.run("db", `{"create": "there"}`)
	for _, x := range []struct {
		args string
		code mongoerr.Code
	}{
		{`"no", "viewOn": "there"`, mongoerr.InvalidOptions}, {`"no", "capped": true`, mongoerr.InvalidOptions}, {`"no", "key": {"x": 1}`, mongoerr.IDLUnknownField},
		{`"no", "timeseries": {"timeField": "t"}, "capped": true, "size": 4096`, mongoerr.InvalidOptions}, {`"there", "capped": true, "size": 4096`, mongoerr.NamespaceExists},
	} {
		if m := c.raw("db", fmt.Sprintf(`{"createUnsplittableCollection": %s}`, x.args)); m["code"] != int32(x.code) {
			t.Errorf("%s: %v", x.args, m)
		}
		c.leftOver()
		if n := len(c.all("db", `{"listCollections": 1, "filter": {"name": "no"}}`)); n != 0 {
			t.Errorf("%s: it exists", x.args)
		}
	}
}

// A shard that once had a chunk keeps an empty copy of the collection. If it takes no part in a resharding, it does not keep it beyond that: its UUID is
// the former one.
func TestReshardingDropsEmptyCopies(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 40)
	for _, chunk := range c.all("config", `{"find": "chunks", "filter": {"shard": "shard2"}}`) {
		c.run("admin", fmt.Sprintf(`{"moveRange": "db.c", "min": %s, "toShard": "shard1"}`, show(get(chunk, "min"))))
	}
	if c.server["shard2"].Node.Engine.Catalog().Lookup("db.c") == nil {
		t.Fatal("shard2 never had a chunk")
	}
	c.run("admin", `{"unshardCollection": "db.c", "toShard": "shard0"}`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	if c.server["shard2"].Node.Engine.Catalog().Lookup("db.c") != nil {
		t.Error("it still has its copy")
	}
	c.expect(c.counted("c", 1), `40`)
	c.leftOver()
}

// Such a shard does not answer while the collection is resharded, and drops its copy when it has a primary again; neither a copy with documents nor another
// collection.
func TestSilentShardDropsItsEmptyCopy(t *testing.T) {
	var silent atomic.Bool
	c := newWatchedCluster(t, 3, func(shard string, m *wire.Message) error {
		if name := string(m.CommandName()); silent.Load() && shard == "shard2" && (name == "listCollections" || name == "_flushRoutingTableCacheUpdates") {
			return mongoerr.New(mongoerr.HostUnreachable, "it does not answer")
		}
		return nil
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, name := range []string{"c", "kept"} {
		c.shardedAs(name, 1, 40)
	}
	for _, chunk := range c.all("config", `{"find": "chunks", "filter": {"shard": "shard2"}}`) {
		for _, name := range []string{"c", "kept"} {
			if m := c.raw("admin", fmt.Sprintf(`{"moveRange": "db.%s", "min": %s, "toShard": "shard1", "_waitForDelete": true}`, name, show(get(chunk, "min")))); m["ok"] != 1.0 {
				t.Fatal(m)
			}
		}
	}
	silent.Store(true)
	c.run("admin", `{"unshardCollection": "db.c", "toShard": "shard0"}`)
	has := func(name string) bool { return c.server["shard2"].Node.Engine.Catalog().Lookup("db."+name) != nil }
	if !has("c") {
		t.Fatal("it has dropped its copy")
	}
	c.restart("shard2")
	c.until("it has no copy", func() bool { return !has("c") })
	if !has("kept") {
		t.Error("it has dropped another collection")
	}
	silent.Store(false)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.expect(c.counted("c", 1), `40`)
	c.expect(c.counted("kept", 1), `40`)
}
