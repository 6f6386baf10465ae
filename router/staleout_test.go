package router_test

import (
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// An $out through a router that takes its target for sharded, as it was, replaces what is there now. It used to be refused until something else refreshed the router's
// placement.
func TestOutOfARouterWhoseTargetWasSharded(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	for i, since := range [][][2]string{
		{{"d", `{"drop": "to"}`}},
		{{"d", `{"drop": "to"}`}, {"d", `{"create": "to"}`}},
		{{"d", `{"drop": "to"}`}, {"d", `{"create": "to", "timeseries": {"timeField": "t"}}`}},
		{{"admin", `{"renameCollection": "d.to", "to": "d.away"}`}},
		{{"d", `{"insert": "other", "documents": [{"x": 1}]}`}, {"admin", `{"renameCollection": "d.other", "to": "d.to", "dropTarget": true}`}},
		{{"admin", `{"unshardCollection": "d.to", "toShard": "shard0"}`}},
		{{"admin", `{"unshardCollection": "d.to", "toShard": "shard1"}`}},
		{{"d", `{"dropDatabase": 1}`}, {"d", `{"insert": "from", "documents": [{"_id": 1, "t": {"$date": 0}}, {"_id": 2, "t": {"$date": 0}}]}`}},
		{{"d", `{"dropDatabase": 1}`}, {"admin", `{"enableSharding": "d", "primaryShard": "shard1"}`}, {"d", `{"insert": "from", "documents": [{"_id": 1, "t": {"$date": 0}}, {"_id": 2, "t": {"$date": 0}}]}`}, {"d", `{"createIndexes": "to", "indexes": [{"key": {"k": 1}, "name": "k"}]}`}},
	} {
		c.run("d", `{"dropDatabase": 1}`)
		c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
		c.run("d", `{"insert": "from", "documents": [{"_id": 1, "t": {"$date": 0}}, {"_id": 2, "t": {"$date": 0}}]}`)
		c.run("admin", `{"shardCollection": "d.to", "key": {"x": 1}}`)
		stale := c.through()
		stale.run("d", `{"count": "from"}`)
		stale.run("d", `{"count": "to"}`)
		for _, s := range since {
			c.run(s[0], s[1])
		}
		if m := stale.raw("d", `{"aggregate": "from", "pipeline": [{"$out": "to"}], "cursor": {}}`); m["ok"] != 1.0 {
			t.Errorf("%d, after %v: %v", i, since, m)
			continue
		}
		c.expect(c.run("d", `{"count": "to"}`)["n"], `2`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
}

// Through a router that takes its target for unsharded, as it was, an $out is refused with the same code as through any other, and changes nothing.
func TestOutOfARouterWhoseTargetWasNotSharded(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	for _, at := range []string{"shard0", "shard1"} {
		c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
		c.run("d", `{"insert": "from", "documents": [{"_id": 1}, {"_id": 2}]}`)
		c.run("d", `{"insert": "to", "documents": [{"_id": 7}]}`)
		stale := c.through()
		stale.run("d", `{"count": "from"}`)
		stale.run("d", `{"count": "to"}`)
		c.run("admin", `{"shardCollection": "d.to", "key": {"_id": 1}}`)
		c.run("admin", fmt.Sprintf(`{"movePrimary": "d", "to": %q}`, at))
		for _, r := range []*testCluster{stale, stale, c.through()} {
			m := r.raw("d", `{"aggregate": "from", "pipeline": [{"$out": "to"}], "cursor": {}}`)
			if m["code"] != int32(mongoerr.NamespaceCannotBeSharded) {
				t.Errorf("%v", m)
			}
		}
		c.expect(c.all("d", `{"find": "to"}`), `[{"_id":7}]`)
		c.expect(c.all("d", `{"listCollections": 1, "filter": {"name": {"$regex": "tmp"}}}`), `[]`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		c.run("d", `{"dropDatabase": 1}`)
	}
}
