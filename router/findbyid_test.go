package router_test

import (
	"fmt"
	"testing"
)

// A find by _id, which shards execute in one step, replies like the same query in a form that they plan: on a collection that is not sharded, on one
// that is sharded by _id, and by another field, where every shard is asked and one has an orphan.
func TestFindByIDRepliesLikeThePlannedQuery(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.hashed", "key": {"_id": "hashed"}}`)
	c.run("admin", `{"shardCollection": "db.other", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.other", "middle": {"k": 5}}`)
	c.run("db", `{"create": "clustered", "clusteredIndex": {"key": {"_id": 1}, "unique": true}}`)
	c.run("db", `{"create": "collated", "collation": {"locale": "en", "strength": 1}}`)
	ids := []string{`1`, `2.5`, `7`, `"a"`, `"A"`, `{"x": 1}`, `{"x": 1, "y": 2}`, `{"$oid": "650000000000000000000001"}`, `true`, `{"$date": "2026-01-01T00:00:00Z"}`,
		`{"$binary": {"base64": "AAAA", "subType": "00"}}`, `{"$minKey": 1}`, `null`, `{"$numberLong": "12345678901"}`, `{"$numberDecimal": "1.50"}`}
	colls := []string{"single", "hashed", "other", "clustered", "collated"}
	for _, coll := range colls {
		for i, id := range ids {
			if coll != "collated" || id != `"A"` {
				c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": %s, "k": %d}]}`, coll, id, i))
			}
		}
	}
	c.param("shard0", "disableResumableRangeDeleter", true)
	c.run("admin", `{"moveRange": "db.other", "min": {"k": 5}, "toShard": "shard1"}`)
	if n := c.onShard("shard0", "other"); n != int32(len(ids)) {
		t.Fatalf("%d documents on the donor, which has lost its orphans", n)
	}
	uses := func() (out string) {
		for _, coll := range colls[:3] {
			out += show(c.run("db", fmt.Sprintf(`{"aggregate": %q, "pipeline": [{"$indexStats": {}}, {"$match": {"name": "_id_"}}, {"$group": {"_id": null, "n": {"$sum": "$accesses.ops"}}}], "cursor": {}}`, coll))["cursor"])
		}
		return out
	}
	for _, options := range []string{``, `, "limit": 1, "singleBatch": true`, `, "batchSize": 0`, `, "batchSize": 1`, `, "limit": 1, "batchSize": 1, "singleBatch": true`, `, "projection": {"k": 1, "_id": 0}`,
		`, "skip": 1`, `, "hint": "_id_"`, `, "sort": {"k": 1}`, `, "returnKey": true`, `, "showRecordId": true`, `, "let": {"a": 1}`, `, "collation": {"locale": "en", "strength": 1}`, `, "readConcern": {"level": "majority"}`} {
		for _, coll := range colls {
			if coll == "clustered" && options == `, "hint": "_id_"` {
				continue
			}
			for _, id := range append(ids, `3`, `"b"`, `1.0`, `{"x": 2}`, `{"$numberDecimal": "1.5"}`, `[1]`) {
				find := func(filter string) string {
					return show(c.all("db", fmt.Sprintf(`{"find": %q, "filter": %s%s}`, coll, filter, options)))
				}
				if one, planned := find(`{"_id": `+id+`}`), find(`{"$and": [{"_id": {"$in": [`+id+`]}}, {}]}`); one != planned {
					t.Errorf("%s, _id %s%s:\n%s\nplanned: %s", coll, id, options, one, planned)
				}
			}
		}
	}
	for _, coll := range colls[:3] {
		before := uses()
		c.run("db", fmt.Sprintf(`{"find": %q, "filter": {"_id": 1}}`, coll))
		if after := uses(); after == before {
			t.Errorf("$indexStats does not count a find by _id in %s: %s", coll, after)
		}
	}
}
