package router_test

import "testing"

// The index that a reshardCollection makes on a collection with a collation is the one that createIndexes makes with the simple collation: it was stored with {locale: "simple"}, so that
// the same createIndexes was refused (86), and one with another name made a second index.
func TestReshardMakesTheIndexThatCreateIndexesMakes(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("db", `{"create": "c", "collation": {"locale": "en", "strength": 2}}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k_1", "collation": {"locale": "simple"}}]}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}, "collation": {"locale": "simple"}}`)
	c.run("admin", `{"reshardCollection": "db.c", "key": {"u": "hashed"}, "numInitialChunks": 2, "collation": {"locale": "simple"}}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"u": "hashed"}, "name": "u_hashed", "collation": {"locale": "simple"}}]}`)
	for _, shard := range []string{"shard0", "shard1"} {
		if have := c.namesOfIndexes(shard, "db.c"); have != "_id_ k_1 u_hashed" {
			t.Errorf("%s has the indexes %s", shard, have)
		}
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}
