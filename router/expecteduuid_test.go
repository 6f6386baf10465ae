package router_test

import (
	"fmt"
	"strings"
	"testing"

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
				if coll == "moved" && strings.HasPrefix(cmd, `{"createIndexes`) {
					continue // its shard alone executes it, and does not know the others
				}
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
