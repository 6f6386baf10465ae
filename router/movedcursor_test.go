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

// foreignReads are pipelines on t that read f, whose documents have the same _ids. Each adds an array m of one document, or a document with a field of.
var foreignReads = []string{
	`{"$lookup": {"from": "f", "localField": "_id", "foreignField": "_id", "as": "m"}}`,
	`{"$lookup": {"from": "f", "let": {"i": "$_id"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$_id", "$$i"]}}}], "as": "m"}}`,
	`{"$graphLookup": {"from": "f", "startWith": "$_id", "connectFromField": "none", "connectToField": "_id", "as": "m"}}`,
	`{"$unionWith": {"coll": "f", "pipeline": [{"$set": {"of": "f"}}]}}`,
	`{"$lookup": {"from": "over", "localField": "_id", "foreignField": "_id", "as": "m"}}`,
}

// A cursor whose stages read another collection reads it to its end as it was at the beginning, whatever happens to that collection, as it does its own. The shard asked
// anew where the other collection was for each of its documents, and failed in a getMore with an error by which routers send a whole pipeline again.
func TestCursorOverDDLOfAForeignCollection(t *testing.T) {
	c := newTestCluster(t, 2)
	const n = 20
	for i, ddl := range [][]string{
		{`{"moveCollection": "DB.f", "toShard": "shard1"}`},
		{`{"shardCollection": "DB.f", "key": {"_id": 1}}`, `{"moveRange": "DB.f", "min": {"_id": {"$minKey": 1}}, "toShard": "shard1", "waitForDelete": true}`},
		{`{"movePrimary": "DB", "to": "shard1"}`},
		{`{"renameCollection": "DB.f", "to": "DB.g"}`},
	} {
		db := fmt.Sprint("db", i)
		c.run("admin", fmt.Sprintf(`{"enableSharding": %q, "primaryShard": "shard0"}`, db))
		docs := make([]string, n)
		for i := range docs {
			docs[i] = fmt.Sprintf(`{"_id": %d}`, i)
		}
		for _, coll := range []string{"t", "f", "between"} {
			c.run(db, fmt.Sprintf(`{"insert": %q, "documents": [%s]}`, coll, strings.Join(docs, ",")))
		}
		c.run(db, `{"create": "over", "viewOn": "between", "pipeline": [
			{"$lookup": {"from": "f", "localField": "_id", "foreignField": "_id", "as": "f"}}, {"$match": {"f": {"$size": 1}}}]}`)
		first := make([]bson.M, len(foreignReads))
		for i, stage := range foreignReads {
			first[i] = c.run(db, `{"aggregate": "t", "pipeline": [`+stage+`], "cursor": {"batchSize": 3}}`)
		}
		for _, cmd := range ddl {
			c.run("admin", strings.ReplaceAll(cmd, "DB", db))
		}
		for i, stage := range foreignReads {
			cursor := first[i]["cursor"]
			all := get(cursor, "firstBatch").(bson.A)
			m := c.raw(db, fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "t"}`, get(cursor, "id")))
			if m["ok"] != 1.0 {
				t.Errorf("%s after %s: %v", stage, ddl, m)
				continue
			}
			all = append(all, get(m["cursor"], "nextBatch").(bson.A)...)
			found := 0
			for _, d := range all {
				if get(d, "of") != nil {
					found++
				} else if m, ok := get(d, "m").(bson.A); ok {
					found += len(m)
				}
			}
			if found != n {
				t.Errorf("%s after %s: %d of %d foreign documents in %v", stage, ddl, found, n, all)
			}
		}
	}
}
