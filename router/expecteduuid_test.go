package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A DDL command whose collection does not have the UUID that its client expects says which one has, whether the collection has an entry in the catalog or not. A UUID that no collection of the
// database has is no collection's. Coordinators used to name none, and a rename of a missing source onto a sharded target said that it was missing.
func TestExpectedUUIDNamesTheCollectionThatHasIt(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, coll := range []string{"sharded", "other"} {
		c.run("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"k": 1}}`, coll))
		c.run("admin", fmt.Sprintf(`{"split": "db.%s", "middle": {"k": 0}}`, coll))
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.%s", "find": {"k": 0}, "to": "shard1"}`, coll))
	}
	for _, coll := range []string{"plain", "moved"} {
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1, "k": 1}]}`, coll))
	}
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	uuids := map[string]string{"": `{"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAA==", "subType": "04"}}`}
	for _, d := range c.all("db", `{"listCollections": 1}`) {
		uuids[get(d, "name").(string)] = show(get(get(d, "info"), "uuid"))
	}
	commands := strings.Split(`{"drop": "COLL"}
{"collMod": "COLL"}
{"dropIndexes": "COLL", "index": "*"}
{"createIndexes": "COLL", "indexes": [{"key": {"x": 1}, "name": "x"}]}
{"renameCollection": "db.COLL", "to": "db.new"}
{"renameCollection": "db.COLL", "to": "db.other", "dropTarget": true}`, "\n")
	for _, coll := range []string{"sharded", "plain", "moved", "missing"} {
		for _, has := range []string{"other", "plain", "moved", ""} {
			if has == coll {
				continue
			}
			for _, cmd := range commands {
				db := "db"
				if strings.HasPrefix(cmd, `{"rename`) {
					db = "admin"
				}
				cmd = strings.TrimSuffix(strings.ReplaceAll(cmd, "COLL", coll), "}") + `, "collectionUUID": ` + uuids[has] + "}"
				m := c.raw(db, cmd)
				var want any
				if has != "" {
					want = has
				}
				if m["code"] != int32(mongoerr.CollectionUUIDMismatch) || m["actualCollection"] != want || m["expectedCollection"] != coll {
					t.Errorf("%s: %s is the collection, and the reply %v", cmd, has, m)
				}
			}
		}
	}
}

// Reads and writes say so, too, whichever shard answers them: it used to know only what it has itself.
func TestReadsAndWritesNameTheCollectionThatHasTheUUID(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.sharded", "key": {"k": 1}}`)
	c.run("admin", `{"shardCollection": "db.elsewhere", "key": {"k": 1}}`)
	for _, coll := range []string{"sharded", "elsewhere"} {
		c.run("admin", fmt.Sprintf(`{"split": "db.%s", "middle": {"k": 0}}`, coll))
	}
	c.run("admin", `{"moveChunk": "db.sharded", "find": {"k": 1}, "to": "shard1"}`)
	c.run("admin", `{"moveChunk": "db.elsewhere", "find": {"k": 1}, "to": "shard2"}`)
	c.run("admin", `{"moveChunk": "db.elsewhere", "find": {"k": -1}, "to": "shard2"}`)
	for _, coll := range []string{"plain", "moved"} {
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1, "k": 1}]}`, coll))
	}
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	uuids := map[string]string{"": `{"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAA==", "subType": "04"}}`}
	for _, d := range c.all("db", `{"listCollections": 1}`) {
		uuids[get(d, "name").(string)] = show(get(get(d, "info"), "uuid"))
	}
	commands := strings.Split(`{"find": "COLL", "filter": {"k": 1}, "collectionUUID": UUID}
{"find": "COLL", "collectionUUID": UUID}
{"aggregate": "COLL", "pipeline": [{"$match": {"k": 1}}], "cursor": {}, "collectionUUID": UUID}
{"count": "COLL", "query": {"k": 1}, "collectionUUID": UUID}
{"distinct": "COLL", "key": "k", "query": {"k": 1}, "collectionUUID": UUID}
{"insert": "COLL", "documents": [{"_id": 1, "k": 1}], "collectionUUID": UUID}
{"insert": "COLL", "documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 2}], "ordered": false, "collectionUUID": UUID}
{"update": "COLL", "updates": [{"q": {"k": 1}, "u": {"$set": {"x": 1}}}], "collectionUUID": UUID}
{"delete": "COLL", "deletes": [{"q": {"k": 1}, "limit": 1}], "collectionUUID": UUID}
{"findAndModify": "COLL", "query": {"k": 1}, "update": {"$set": {"x": 1}}, "collectionUUID": UUID}
{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 1, "k": 1}}], "nsInfo": [{"ns": "db.COLL", "collectionUUID": UUID}]}`, "\n")
	for _, coll := range []string{"sharded", "moved", "plain"} {
		for _, has := range []string{"elsewhere", "plain", "moved", ""} {
			if has == coll {
				continue
			}
			for _, cmd := range commands {
				cmd = strings.NewReplacer("COLL", coll, "UUID}", uuids[has]+"}").Replace(strings.ReplaceAll(cmd, `"collectionUUID": UUID`, `"collectionUUID": `+uuids[has]))
				db := "db"
				if strings.HasPrefix(cmd, `{"bulkWrite`) {
					db = "admin"
				}
				m := c.raw(db, cmd)
				failed := bson.A{}
				if list, ok := m["writeErrors"].(bson.A); ok {
					failed = list
				} else if m["cursor"] != nil {
					failed = get(m["cursor"], "firstBatch").(bson.A)
				}
				if len(failed) > 0 {
					m = decode(t, mustBSON(t, failed[0].(bson.D)))
				}
				var want any
				if has != "" {
					want = has
				}
				if m["code"] != int32(mongoerr.CollectionUUIDMismatch) || m["actualCollection"] != want || m["expectedCollection"] != coll {
					t.Errorf("%s: %s is the collection, and the reply %v", cmd, has, m)
				}
			}
		}
	}
}
