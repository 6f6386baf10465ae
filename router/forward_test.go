package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The primary of the coordinating shard changes at each phase of a collMod and of a dropIndexes: all shards that have the
// collection are changed, including the database's primary shard if it owns no chunk, and chunks move again.
func TestCollModAndDropIndexesAtEveryPhase(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	for _, phase := range []string{"freezeMigrations", "checkShards", "updateShards", "unfreezeMigrations", "done"} {
		c.shardedAs("c", 1, 10)
		for _, d := range c.all("config", `{"find": "chunks", "filter": {"shard": "shard2", "min.k": {"$exists": true}}}`) {
			min, max := get(d, "min"), get(d, "max")
			c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "bounds": [%s, %s], "to": "shard0", "_waitForDelete": true}`, show(min), show(max)))
		}
		c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}]}`)
		for _, cmd := range []string{
			`{"collMod": "c", "validator": {"k": {"$exists": true}}, "comment": "known"}`, `{"collMod": "c", "index": {"name": "a", "hidden": true}}`, `{"dropIndexes": "c", "index": "b"}`,
		} {
			m := c.atPhase("shard2", phase, "db", cmd)
			if raw, ok := m["raw"].(bson.D); m["ok"] != 1.0 || !ok || len(raw) < 2 {
				t.Errorf("%s, %s: %v", phase, cmd, m)
			}
			if m := c.raw("db", cmd); m["ok"] != 1.0 && m["code"] != int32(mongoerr.IndexNotFound) {
				t.Errorf("%s, %s again: %v", phase, cmd, m)
			}
			c.leftOver()
		}
		for id, s := range c.server {
			l := s.Node.Engine.Catalog().Lookup("db.c")
			if l == nil {
				if id != "config" {
					t.Errorf("%s: %s has no collection", phase, id)
				}
				continue
			}
			if value.LookupDoc(l.Options, "validator") == nil {
				t.Errorf("%s: no validator on %s", phase, id)
			}
			if l.Index("b") != nil {
				t.Errorf("%s: an index is left on %s", phase, id)
			}
		}
		c.expect(c.all("db", `{"checkMetadataConsistency": "c", "checkIndexes": true}`), `[]`)
		if m := c.raw("db", `{"insert": "c", "documents": [{"_id": 100}]}`); m["writeErrors"] == nil {
			t.Errorf("%s: %v", phase, m)
		}
		chunk := c.all("config", `{"find": "chunks", "filter": {"shard": "shard0", "min.k": {"$exists": true}}}`)[0]
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "bounds": [%s, %s], "to": "shard1"}`, show(get(chunk, "min")), show(get(chunk, "max"))))
		c.expect(c.counted("c", 1), `10`)
		c.run("db", `{"drop": "c"}`)
	}
}

// An error of a shard is returned, and nothing is changed; for an unsharded collection, the shard's own reply is returned.
func TestForwardedCommandsAnswer(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("s", 1, 4)
	c.insertKeys("u", 1, 4)
	for _, x := range []struct {
		cmd  string
		code mongoerr.Code
	}{
		{`{"dropIndexes": "s", "index": "none"}`, mongoerr.IndexNotFound},
		{`{"dropIndexes": "u", "index": "none"}`, mongoerr.IndexNotFound},
		{`{"dropIndexes": "none", "index": "none"}`, mongoerr.NamespaceNotFound},
		{`{"dropIndexes": "s", "index": "_id_"}`, mongoerr.InvalidOptions},
		{`{"collMod": "s", "index": {"name": "none", "hidden": true}}`, mongoerr.IndexNotFound},
		{`{"collMod": "s", "odd": 1}`, mongoerr.IDLUnknownField},
		{`{"collMod": "none"}`, mongoerr.NamespaceNotFound},
		{`{"create": "s", "capped": true, "size": 4096}`, mongoerr.NamespaceExists},
		{`{"create": "u", "odd": 1}`, mongoerr.IDLUnknownField},
		{`{"create": ""}`, mongoerr.InvalidNamespace},
		{`{"convertToCapped": "s", "size": 4096}`, mongoerr.IllegalOperation},
		{`{"convertToCapped": "none", "size": 4096}`, mongoerr.NamespaceNotFound},
	} {
		if m := c.raw("db", x.cmd); m["code"] != int32(x.code) {
			t.Errorf("%s: %v, want %d", x.cmd, m, x.code)
		}
	}
	c.leftOver()
	c.run("db", `{"create": "s"}`)
	c.run("db", `{"create": "u", "comment": "it is there"}`)
	c.run("db", `{"create": "new", "capped": true, "size": 4096, "writeConcern": {"w": 1}}`)
	c.expect(c.run("db", `{"collMod": "u", "validator": {}}`)["raw"], `null`)
	c.expect(len(c.run("db", `{"collMod": "s", "validator": {}}`)["raw"].(bson.D)), `2`)
	c.run("admin", `{"moveChunk": "db.s", "find": {"k": 1}, "to": "shard0"}`)
}

// A DDL waits for another one on the same name; those on other names of the database do not.
func TestCreateWaitsForDDL(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 4)
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("alwaysOn"), value.Doc(value.F("phase", value.NewString("done")))); err != nil {
		t.Fatal(err)
	}
	done := make(chan bson.M, 1)
	go func() { done <- c.raw("db", `{"drop": "c"}`) }()
	if err := c.points["shard0"].Register(hangBeforePhase).WaitEntered(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	c.run("db", `{"create": "other", "maxTimeMS": 100000}`)
	for _, cmd := range []string{`{"create": "c", "maxTimeMS": 50}`, `{"collMod": "c", "maxTimeMS": 50}`, `{"dropIndexes": "c", "index": "*", "maxTimeMS": 50}`, `{"convertToCapped": "c", "size": 4096, "maxTimeMS": 50}`} {
		if m := c.raw("db", cmd); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
			t.Errorf("%s beside a drop: %v", cmd, m)
		}
	}
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("off"), nil); err != nil {
		t.Fatal(err)
	}
	c.expect((<-done)["ok"], `1.0`)
	c.run("db", `{"create": "c", "maxTimeMS": 100000}`)
}
