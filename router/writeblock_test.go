package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// setUserWriteBlockMode through a router returned ok and blocked nothing: shards treated everything that a router sent as
// internal.
func TestUserWritesAreBlockedThroughARouter(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(6)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	c.run("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
	blocked := func(want bool, db, cmd string) {
		t.Helper()
		m := c.raw(db, cmd)
		code := m["code"]
		if errs, ok := m["writeErrors"].(bson.A); ok {
			code = get(errs[0], "code")
		} else if m["nErrors"] == int32(1) {
			code = get(get(m["cursor"], "firstBatch").(bson.A)[0], "code")
		}
		if (code == int32(mongoerr.UserWritesBlocked)) != want {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	writes := []struct{ db, cmd string }{
		{"db", `{"insert": "c", "documents": [{"_id": 100, "k": 100}]}`},
		{"db", `{"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": true}]}`},
		{"db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}`},
		{"db", `{"delete": "plain", "deletes": [{"q": {"_id": 17}, "limit": 1}]}`},
		{"db", `{"findAndModify": "c", "query": {"k": 1}, "update": {"$set": {"x": 2}}}`},
		{"admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 2}}], "nsInfo": [{"ns": "db.plain"}]}`},
		{"admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 101, "k": 101}}], "nsInfo": [{"ns": "db.c"}]}`},
		{"db", `{"aggregate": "c", "pipeline": [{"$out": "out"}], "cursor": {}}`},
		{"db", `{"aggregate": "c", "pipeline": [{"$merge": {"into": "plain"}}], "cursor": {}}`},
		{"db", `{"create": "fresh"}`},
		{"db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g"}]}`},
		{"admin", `{"shardCollection": "db.plain", "key": {"_id": 1}}`},
		{"elsewhere", `{"insert": "c", "documents": [{"_id": 1}]}`},
		{"admin", `{"renameCollection": "db.plain", "to": "db.renamed"}`},
		{"admin", `{"renameCollection": "db.c", "to": "db.also"}`},
		{"db", `{"drop": "also"}`},
		{"db", `{"dropDatabase": 1}`},
	}
	for _, x := range writes {
		if x.cmd != `{"drop": "also"}` { // dropping a missing collection writes nothing
			blocked(true, x.db, x.cmd)
		}
	}
	blocked(true, "db", `{"drop": "c"}`)
	c.expect(len(c.all("db", `{"find": "c"}`)), `6`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1", "_waitForDelete": true}`) // which is not a user's write
	c.run("admin", `{"setUserWriteBlockMode": 1, "global": false}`)
	for _, x := range writes {
		blocked(false, x.db, x.cmd)
	}
}

// appendOplogNote used to be unknown to routers; every shard writes the note.
func TestOplogNoteThroughARouter(t *testing.T) {
	c := newTestCluster(t, 2)
	m := c.run("admin", `{"appendOplogNote": 1, "data": {"msg": "noted"}}`)
	raw, _ := m["raw"].(bson.D)
	if len(raw) != 2 || get(raw[0].Value, "ok") != 1.0 {
		t.Errorf("the reply: %v", m)
	}
	for id, p := range c.shards {
		reply := c.admin(p, bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "filter", Value: bson.D{{Key: "op", Value: "n"}, {Key: "o.msg", Value: "noted"}}}, {Key: "$db", Value: "local"}})
		if n := len(get(reply["cursor"], "firstBatch").(bson.A)); n != 1 {
			t.Errorf("%d notes in the oplog of %s", n, id)
		}
	}
}
