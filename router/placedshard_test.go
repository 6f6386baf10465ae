package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// namesOfIndexes returns the names of the indexes that a shard has of a collection.
func (c *testCluster) namesOfIndexes(shard, ns string) string {
	l := c.server[shard].Node.Engine.Catalog().Lookup(ns)
	if l == nil {
		return "no collection"
	}
	var names []string
	for _, x := range l.Indexes {
		names = append(names, x.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// A collection that moveCollection has placed on another shard is sharded there. The primary shard of its database has a copy, though none of the chunks: its indexes were
// none but that of _id, and a later movePrimary passed on no others.
func TestShardingAPlacedCollectionGivesThePrimaryItsIndexes(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, coll := range []string{"ready", "empty"} {
		c.run("db", fmt.Sprintf(`{"createIndexes": %q, "indexes": [{"key": {"a": 1}, "name": "a"}]}`, coll))
	}
	c.run("db", `{"createIndexes": "ready", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}`)
	c.insertKeys("ready", 1, 10)
	for _, coll := range []string{"ready", "empty"} {
		c.run("admin", fmt.Sprintf(`{"moveCollection": "db.%s", "toShard": "shard1"}`, coll))
		c.run("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"k": 1}}`, coll))
		for _, shard := range []string{"shard1", "shard0"} {
			if have := c.namesOfIndexes(shard, "db."+coll); have != "_id_ a k_1" {
				t.Errorf("%s has on %s the indexes %s", coll, shard, have)
			}
		}
	}
	c.run("admin", `{"movePrimary": "db", "to": "shard2"}`)
	for _, coll := range []string{"ready", "empty"} {
		if have := c.namesOfIndexes("shard2", "db."+coll); have != "_id_ a k_1" {
			t.Errorf("%s has on the new primary shard the indexes %s", coll, have)
		}
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.expect(c.counted("ready", 1), `10`)
}
