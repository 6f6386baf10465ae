package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A cursor that stays open across the first migration of its collection returns the documents that it was opened on. While
// one shard owned all of a collection its reads had no ownership filter, and a getMore took a newer snapshot: the cursor
// returned none of the documents that had moved meanwhile. The same applies to a collection that is sharded while a cursor is
// open.
func TestCursorOverFirstMigration(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprint("sharded before ", before), func(t *testing.T) { cursorOverFirstMigration(t, before) })
	}
}

func cursorOverFirstMigration(t *testing.T, before bool) {
	c := newTestCluster(t, 2)
	const n = 2000
	shard := func() {
		c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
		c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"_id": %d}}`, n/4))
	}
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	if before {
		shard()
	}
	docs := make([]string, n)
	for i := range docs {
		docs[i] = fmt.Sprintf(`{"_id": %d}`, i)
	}
	c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [%s]}`, strings.Join(docs, ",")))
	m := c.run("db", `{"find": "c", "batchSize": 100}`)
	seen := map[any]int{}
	note := func(batch any) {
		for _, d := range batch.(bson.A) {
			seen[get(d, "_id")]++
		}
	}
	note(get(m["cursor"], "firstBatch"))
	if !before {
		shard()
	}
	c.run("admin", fmt.Sprintf(`{"moveRange": "db.c", "min": {"_id": %d}, "toShard": "shard1", "waitForDelete": true}`, n/4))
	for id := get(m["cursor"], "id").(int64); id != 0; {
		m = c.run("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c", "batchSize": 100}`, id))
		note(get(m["cursor"], "nextBatch"))
		id = get(m["cursor"], "id").(int64)
	}
	if len(seen) != n {
		t.Errorf("the cursor returned %d of %d documents", len(seen), n)
	}
	for id, times := range seen {
		if times != 1 {
			t.Errorf("document %v was returned %d times", id, times)
		}
	}
}
