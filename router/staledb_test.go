package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Commands of a router that did not know that a database had been dropped and recreated on another shard used to run on the old
// shard: create made an orphaned collection there, lists were empty, counts 0. Every command checks the versions that
// it carries before it begins, and those that change the catalog check them again under their locks.
func TestStaleRouterAfterADatabaseWasMadeAgain(t *testing.T) {
	c := newTestCluster(t, 2)
	on := 0
	place := func() {
		c.run("admin", fmt.Sprintf(`{"enableSharding": "d", "primaryShard": "shard%d"}`, on))
	}
	remake := func() (stale *testCluster) {
		stale = c.through()
		c.run("d", `{"dropDatabase": 1}`)
		place()
		for _, read := range []string{`{"count": "c"}`, `{"count": "new"}`, `{"listCollections": 1}`} {
			stale.run("d", read)
		}
		c.run("d", `{"dropDatabase": 1}`)
		on = 1 - on
		place()
		c.run("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 1}]}`)
		c.run("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
		return stale
	}
	for _, s := range []struct{ db, cmd, field, want string }{
		{"d", `{"listCollections": 1, "nameOnly": true}`, "cursor.firstBatch", `[{"name":"c","type":"collection"}]`},
		{"d", `{"listIndexes": "c"}`, "cursor.firstBatch", `[{"v":2,"key":{"_id":1},"name":"_id_"},{"v":2,"key":{"a":1},"name":"a"}]`},
		{"d", `{"collStats": "c"}`, "count", `2`},
		{"d", `{"dbStats": 1}`, "objects", `2`},
		{"d", `{"dataSize": "d.c"}`, "numObjects", `2`},
		{"d", `{"validate": "c"}`, "nrecords", `2`},
		{"d", `{"planCacheListFilters": "c"}`, "filters", `[]`},
		{"d", `{"planCacheSetFilter": "c", "query": {"a": 1}, "indexes": ["a"]}`, "ok", `1.0`},
		{"d", `{"planCacheClear": "c"}`, "ok", `1.0`},
		{"d", `{"count": "c"}`, "n", `2`},
		{"d", `{"aggregate": "c", "pipeline": [{"$collStats": {"count": {}}}, {"$project": {"count": 1, "_id": 0}}], "cursor": {}}`, "cursor.firstBatch.count", `2`},
		{"d", `{"aggregate": "c", "pipeline": [{"$indexStats": {}}, {"$count": "n"}], "cursor": {}}`, "cursor.firstBatch.n", `2`},
		{"d", `{"collMod": "c", "index": {"name": "a", "hidden": true}}`, "hidden_new", `true`},
		{"d", `{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}`, "numIndexesAfter", `3`},
		{"d", `{"dropIndexes": "c", "index": "a"}`, "nIndexesWas", `2`},
		{"d", `{"create": "new", "capped": true, "size": 4096}`, "ok", `1.0`},
		{"d", `{"create": "c"}`, "ok", `1.0`},
		{"d", `{"create": "new", "viewOn": "c", "pipeline": []}`, "ok", `1.0`},
		{"d", `{"convertToCapped": "c", "size": 4096}`, "ok", `1.0`},
		{"admin", `{"renameCollection": "d.c", "to": "d.new"}`, "ok", `1.0`},
		{"d", `{"drop": "c"}`, "nIndexesWas", `2`},
		{"d", `{"insert": "new", "documents": [{"_id": 1}]}`, "n", `1`},
		{"d", `{"aggregate": "c", "pipeline": [{"$out": "new"}], "cursor": {}}`, "ok", `1.0`},
		{"d", `{"aggregate": "c", "pipeline": [{"$merge": "new"}], "cursor": {}}`, "ok", `1.0`},
		{"admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`, "collectionsharded", `"d.c"`},
	} {
		stale := remake()
		m := stale.raw(s.db, s.cmd)
		if got := show(fieldAt(m, s.field)); got != s.want {
			t.Errorf("%s:\n%v, want %s: %s", s.cmd, m, s.field, s.want)
		}
		old := c.admin(c.shards[fmt.Sprintf("shard%d", 1-on)], bson.D{{Key: "listCollections", Value: 1}, {Key: "$db", Value: "d"}})
		if left := get(old["cursor"], "firstBatch").(bson.A); len(left) > 0 {
			t.Errorf("%s: the old shard has %s", s.cmd, show(left))
		}
	}
}

// fieldAt returns the value at a path of a reply; a step into an array goes to its first element.
func fieldAt(v any, path string) any {
	for _, name := range strings.Split(path, ".") {
		if a, ok := v.(bson.A); ok && len(a) > 0 {
			v = a[0]
		}
		switch d := v.(type) {
		case bson.M:
			v = d[name]
		case bson.D:
			v = get(d, name)
		default:
			return nil
		}
	}
	return v
}

// A bulkWrite through a router that did not know that a collection had been sharded, or its database's new shard, used to write
// to the collection's previous shard: the versions that the router sent with each namespace were ignored.
func TestBulkWriteByAStaleRouter(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("d", `{"insert": "a", "documents": [{"_id": 1}]}`)
	for _, errorsOnly := range []bool{false, true} {
		c.run("d", `{"insert": "c", "documents": [{"_id": -1}, {"_id": 1}]}`)
		stale := c.through()
		stale.run("d", `{"count": "a"}`)
		stale.run("d", `{"count": "c"}`)
		c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
		c.run("admin", `{"split": "d.c", "middle": {"_id": 0}}`)
		c.moved(0, "shard1")
		m := stale.run("admin", fmt.Sprintf(`{"bulkWrite": 1, "errorsOnly": %v, "ops": [{"insert": 0, "document": {"_id": 2}}, {"update": 0, "filter": {"_id": 1}, "updateMods": {"$inc": {"x": 1}}},
			{"update": 1, "filter": {}, "updateMods": {"$inc": {"x": 1}}, "multi": true}, {"insert": 1, "document": {"_id": 5}}, {"delete": 0, "filter": {"_id": 2}}], "nsInfo": [{"ns": "d.a"}, {"ns": "d.c"}]}`, errorsOnly))
		for name, want := range map[string]string{"nErrors": "0", "nInserted": "2", "nMatched": "3", "nModified": "3", "nDeleted": "1"} {
			if got := show(m[name]); got != want {
				t.Errorf("%s is %s, want %s: %v", name, got, want, m)
			}
		}
		c.expect(c.all("d", `{"find": "c", "sort": {"_id": 1}}`), `[{"_id":-1,"x":1},{"_id":1,"x":1},{"_id":5}]`)
		if got := len(fieldAt(m, "cursor.firstBatch").(bson.A)); got != 5 && !errorsOnly || got != 0 && errorsOnly {
			t.Errorf("%d results: %v", got, m)
		}
		c.run("d", `{"drop": "c"}`)
	}
}

// $out and $merge of a router that treated their target as unsharded used to be written by the source's shard: documents that
// belong to other shards became orphans there.
func TestWritingPipelinesOfAStaleRouter(t *testing.T) {
	for _, stage := range []string{`{"$merge": "to"}`, `{"$merge": {"into": "to", "whenMatched": "fail"}}`, `{"$out": "to"}`} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
		c.run("d", `{"insert": "from", "documents": [{"_id": -1}, {"_id": 1}]}`)
		c.run("d", `{"insert": "to", "documents": [{"_id": -5}]}`)
		stale := c.through()
		stale.run("d", `{"count": "from"}`)
		stale.run("d", `{"count": "to"}`)
		c.run("admin", `{"shardCollection": "d.to", "key": {"_id": 1}}`)
		c.run("admin", `{"split": "d.to", "middle": {"_id": 0}}`)
		c.run("admin", `{"moveChunk": "d.to", "find": {"_id": 1}, "to": "shard1"}`)
		m := stale.raw("d", fmt.Sprintf(`{"aggregate": "from", "pipeline": [%s], "cursor": {}}`, stage))
		want := `[{"_id":-5},{"_id":-1},{"_id":1}]`
		if stage == `{"$out": "to"}` { // $out cannot write into a sharded collection
			want = `[{"_id":-5}]`
			if m["code"] != int32(mongoerr.NamespaceCannotBeSharded) {
				t.Errorf("%s: %v", stage, m)
			}
		} else if m["ok"] != 1.0 {
			t.Errorf("%s: %v", stage, m)
		}
		c.expect(c.all("d", `{"find": "to", "sort": {"_id": 1}}`), want)
		if n := c.admin(c.shards["shard0"], bson.D{{Key: "count", Value: "to"}, {Key: "query", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "$db", Value: "d"}})["n"]; n != int32(0) {
			t.Errorf("%s: %v orphans", stage, n)
		}
	}
}

// A router that knows a sharded collection, and not that its database has another primary shard now, or was recreated, sends DDL to that
// shard: it used to return StaleDbVersion until something made it read the collection's table again.
func TestDDLOfAStaleRouterFollowsTheDatabase(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	stale, on := c.through(), 0
	for _, s := range []struct{ db, cmd string }{
		{"d", `{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}`}, {"d", `{"collMod": "c", "validator": {}}`}, {"d", `{"dropIndexes": "c", "index": "b"}`},
		{"admin", `{"reshardCollection": "d.c", "key": {"k": 1}}`}, {"admin", `{"renameCollection": "d.c", "to": "d.b"}`}, {"d", `{"drop": "b"}`},
	} {
		stale.run("d", `{"count": "c"}`)
		stale.run("d", `{"count": "b"}`)
		on = 1 - on
		c.run("admin", fmt.Sprintf(`{"movePrimary": "d", "to": "shard%d"}`, on))
		if m := stale.raw(s.db, s.cmd); m["ok"] != 1.0 {
			t.Errorf("%s: %v", s.cmd, m)
		}
	}
}
