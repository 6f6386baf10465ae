package router_test

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// What TestRandomCommandsWhateverThePlacement found, one by one.

// TestMaxKeyMoves: a document whose shard key is MaxKey belongs to the last chunk, and moves with it.
func TestMaxKeyMoves(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for name, key := range map[string]string{"one": `{"k": 1}`, "two": `{"k": 1, "g": 1}`} {
		max := `{"$maxKey": 1}`
		c.run("admin", `{"shardCollection": "db.`+name+`", "key": `+key+`}`)
		c.run("db", `{"insert": "`+name+`", "documents": [{"_id": 1, "k": `+max+`, "g": `+max+`}, {"_id": 2, "k": `+max+`, "g": 3}, {"_id": 3, "k": 5, "g": `+max+`}]}`)
		for _, to := range []string{"shard1", "shard0"} {
			c.run("admin", `{"moveChunk": "db.`+name+`", "find": {"k": 5, "g": 5}, "to": "`+to+`", "_waitForDelete": true}`)
			c.expect(c.all("db", `{"find": "`+name+`", "sort": {"_id": 1}, "projection": {"_id": 1}}`), `[{"_id":1},{"_id":2},{"_id":3}]`)
		}
	}
}

// TestUpsertThatCollidesOnAShard: $merge into a collection sharded by another field than _id is refused if the _id is
// taken, and is not retried forever.
func TestUpsertThatCollidesOnAShard(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"shardCollection": "db.to", "key": {"g": 1, "_id": 1}}`)
	c.run("db", `{"insert": "to", "documents": [{"_id": 1, "g": 1}]}`)
	c.run("db", `{"insert": "from", "documents": [{"_id": 1, "g": 2}]}`)
	m := c.raw("db", `{"aggregate": "from", "pipeline": [{"$merge": {"into": "to"}}], "cursor": {}, "maxTimeMS": 100000}`)
	if m["code"] != int32(mongoerr.DuplicateKey) {
		t.Error(m)
	}
}

// TestBulkWriteErrorsOfUpdates: the error of an update reports that nothing was modified, whatever the placement.
func TestBulkWriteErrorsOfUpdates(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"shardCollection": "db.sharded", "key": {"k": 1}}`)
	c.run("db", `{"create": "single"}`)
	var want string
	for _, coll := range []string{"single", "sharded"} {
		m := c.raw("admin", `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {"a": {"$eq": {"$undefined": true}}}, "updateMods": {"$set": {"b": 1}}, "multi": true},
			{"delete": 0, "filter": {"$bad": 1}}], "ordered": false, "nsInfo": [{"ns": "db.`+coll+`"}]}`)
		got := show(get(m["cursor"], "firstBatch"))
		if coll == "single" {
			want = got
		}
		if got != want || strings.Count(got, "nModified") != 1 {
			t.Errorf("%s: %s\nsingle: %s", coll, got, want)
		}
	}
}
