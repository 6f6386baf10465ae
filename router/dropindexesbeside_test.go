package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Indexes that are not being built are dropped while another one is (manual: dropIndexes, since 5.2). It used to wait for the build for up to five minutes. Chunks still do not move
// before the build has ended, and they do afterwards.
func TestDropIndexesBesideABuild(t *testing.T) {
	c := newTestCluster(t, 2)
	c.halved("c")
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}]}`)
	refused := func(when string) {
		t.Helper()
		if m := c.raw("admin", `{"moveChunk": "db.c", "find": {"k": -1}, "to": "shard1"}`); m["code"] != int32(mongoerr.ConflictingOperationInProgress) {
			t.Errorf("a chunk moves %s: %v", when, m)
		}
	}
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("alwaysOn"), value.Doc(value.F("operationType", value.NewString("createIndexes")), value.F("phase", value.NewString("updateShards")))); err != nil {
		t.Fatal(err)
	}
	created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
	if err := c.points["shard0"].Register(hangBeforePhase).WaitEntered(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if m := c.inTime("db", `{"dropIndexes": "c", "index": "a"}`); m["ok"] != 1.0 {
		t.Errorf("dropIndexes of another index: %v", m)
	}
	if on := c.hasIndex("db.c", "a"); len(on) > 0 {
		t.Errorf("it is still on %v", on)
	}
	refused("during the build")
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("off"), nil); err != nil {
		t.Fatal(err)
	}
	if m := <-created; m["ok"] != 1.0 {
		t.Errorf("createIndexes: %v", m)
	}
	if on := c.hasIndex("db.c", "x"); len(on) != 2 {
		t.Errorf("the index is on %v", on)
	}
	// The other way round, one that is asked for later begins when the drop has ended.
	reached, release := c.hangOn("shard0", hangBeforePhase, "operationType", "dropIndexes")
	dropped := c.later("db", `{"dropIndexes": "c", "index": "b"}`)
	reached()
	created = c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"b": -1}, "name": "b"}]}`)
	c.until("createIndexes waits", func() bool {
		ops := c.admin(c.shards["shard0"], bson.D{{Key: "currentOp", Value: 1}, {Key: "command._shardsvrCreateIndexes", Value: bson.D{{Key: "$exists", Value: true}}}, {Key: "waitingForLock", Value: true}, {Key: "$db", Value: "admin"}})
		return len(ops["inprog"].(bson.A)) > 0
	})
	release()
	for _, reply := range []<-chan bson.M{dropped, created} {
		if m := <-reply; m["ok"] != 1.0 {
			t.Error(m)
		}
	}
	if on := c.hasIndex("db.c", "b"); len(on) != 2 {
		t.Errorf("the new index is on %v", on)
	}
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": -1}, "to": "shard1"}`)
	c.expect(c.all("db", `{"checkMetadataConsistency": "c", "checkIndexes": true}`), `[]`)
	c.leftOver()
}

// A drop, or a dropIndexes, of a collection with another UUID than its own changes nothing: it used to end the builds of its indexes first.
func TestDropOfAnotherUUIDEndsNoBuild(t *testing.T) {
	c := newTestCluster(t, 2)
	c.halved("c")
	reached, release := c.hangAt("shard0", "updateShards")
	created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
	reached()
	const other = `"collectionUUID": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAA==", "subType": "04"}}}`
	for _, cmd := range []string{`{"drop": "c", `, `{"dropIndexes": "c", "index": "x", `, `{"dropIndexes": "c", "index": "*", `} {
		if m := c.inTime("db", cmd+other); m["code"] != int32(mongoerr.CollectionUUIDMismatch) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	release()
	if m := <-created; m["ok"] != 1.0 {
		t.Errorf("createIndexes: %v", m)
	}
	if on := c.hasIndex("db.c", "x"); len(on) != 2 {
		t.Errorf("the index is on %v", on)
	}
}
