package router_test

import (
	"fmt"
	"testing"
)

// A database moves to a shard that owns all chunks of an empty sharded collection, of whose indexes the former primary shard's copy has none. The owner's indexes stay: it lost them, that of the
// shard key among them.
func TestMovePrimaryKeepsIndexesOfOwners(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for i, indexes := range []string{`[]`, `[{"key": {"m": 1}, "name": "m"}, {"key": {"m": 1, "n": 1}, "name": "mn"}]`} {
		coll := fmt.Sprint("c", i)
		c.run("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"_id": "hashed"}}`, coll))
		c.run("admin", fmt.Sprintf(`{"unshardCollection": "db.%s", "toShard": "shard1"}`, coll))
		if indexes != `[]` {
			c.run("db", fmt.Sprintf(`{"createIndexes": %q, "indexes": %s}`, coll, indexes))
		}
		c.run("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"m": 1}}`, coll))
	}
	names := func() (out []string) {
		for _, coll := range []string{"c0", "c1"} {
			for _, d := range c.all("db", fmt.Sprintf(`{"listIndexes": %q}`, coll)) {
				out = append(out, coll+"."+get(d, "name").(string))
			}
		}
		return out
	}
	before := names()
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	c.expect(names(), show(before))
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}
