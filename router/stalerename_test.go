package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A router that knows the former primary shards of two databases renames from one into the other as one that knows the present ones.
func TestRenameAcrossDatabasesThatHaveMoved(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	for _, db := range []string{"a", "b"} {
		c.run("admin", `{"enableSharding": "`+db+`", "primaryShard": "shard0"}`)
		c.run(db, `{"insert": "c", "documents": [{"_id": 1}]}`)
	}
	stale := c.through()
	stale.run("a", `{"find": "c"}`)
	stale.run("b", `{"find": "c"}`)
	c.run("admin", `{"movePrimary": "a", "to": "shard1"}`)
	c.run("admin", `{"movePrimary": "b", "to": "shard1"}`)
	stale.run("b", `{"find": "c"}`) // it hears of one of them
	stale.run("admin", `{"renameCollection": "a.c", "to": "b.d"}`)
	c.expect(c.all("b", `{"find": "d"}`), `[{"_id":1}]`)
	c.run("admin", `{"movePrimary": "a", "to": "shard0"}`)
	if m := stale.raw("admin", `{"renameCollection": "b.d", "to": "a.d"}`); m["code"] != int32(mongoerr.CommandFailed) {
		t.Errorf("between shards: %v", m)
	}
}
