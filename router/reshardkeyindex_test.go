package router_test

import (
	"fmt"
	"strings"
	"testing"
)

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

// Chunks of a resharding have bounds with which clients' commands can name them: keys with regular expressions, which moveRange refuses, became bounds.
func TestReshardChoosesBoundsThatCommandsTake(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	var docs []string
	for i := range 60 {
		key := fmt.Sprint(i)
		if i >= 20 {
			key = fmt.Sprintf(`{"$regularExpression": {"pattern": "a%02d", "options": ""}}`, i)
		}
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "u": %s}`, i, key))
	}
	c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
	c.run("db", `{"insert": "c", "documents": [`+strings.Join(docs, ",")+`]}`)
	c.run("admin", `{"reshardCollection": "db.c", "key": {"u": 1}, "numInitialChunks": 4}`)
	chunks := c.all("config", `{"find": "chunks"}`)
	if len(chunks) < 2 {
		t.Fatalf("%d chunks", len(chunks))
	}
	for _, chunk := range chunks {
		c.run("admin", fmt.Sprintf(`{"moveRange": "db.c", "min": %s, "max": %s, "toShard": "shard1"}`, show(get(chunk, "min")), show(get(chunk, "max"))))
	}
	c.expect(len(c.all("db", `{"find": "c"}`)), `60`)
}
