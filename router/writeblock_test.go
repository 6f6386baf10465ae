package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// setUserWriteBlockMode through a router used to return ok and block nothing: shards treated everything that a router sent as
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
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1", "_waitForDelete": true}`) // not a user's write
	c.run("admin", `{"setUserWriteBlockMode": 1, "global": false}`)
	for _, x := range writes {
		blocked(false, x.db, x.cmd)
	}
}

// If a router ends when the config server has stored a setting of the cluster, and not all shards have, the config server completes the change.
func TestSettingsReachAllShardsWithoutTheirRouter(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.config.RunSettings(ctx) }()
	defer func() { end(); <-ended }()
	own := c.conf.OwnPeer()
	set := func(p cluster.Peer, cmd bson.D) { c.admin(p, append(cmd, bson.E{Key: "$db", Value: "admin"})) }
	everywhere := func(what string, has func(p cluster.Peer) bool) {
		t.Helper()
		for id, p := range c.shards {
			await.True(t, fmt.Sprintf("%s has %s", id, what), func() bool { return has(p) })
		}
	}
	doc := func(p cluster.Peer, db, coll string) bson.D {
		m := c.admin(p, bson.D{{Key: "find", Value: coll}, {Key: "$db", Value: db}})
		found := m["cursor"].(bson.D)[0].Value.(bson.A)
		if len(found) == 0 {
			return nil
		}
		return found[len(found)-1].(bson.D)
	}
	blocked := func(p cluster.Peer) bool { return doc(p, "config", "user_writes_critical_sections") != nil }
	for _, reason := range []string{"Unspecified", "DiskUseThresholdExceeded"} {
		set(own, bson.D{{Key: "setUserWriteBlockMode", Value: 1}, {Key: "global", Value: true}, {Key: "reason", Value: reason}})
		everywhere("users' writes blocked", blocked)
		if m := c.raw("db", `{"insert": "plain", "documents": [{"_id": 2}]}`); !strings.Contains(show(m), "User writes blocked") {
			t.Errorf("an insert: %v", m)
		}
		set(own, bson.D{{Key: "setUserWriteBlockMode", Value: 1}, {Key: "global", Value: false}, {Key: "reason", Value: reason}})
		everywhere("users' writes let through", func(p cluster.Peer) bool { return !blocked(p) })
	}
	has := func(version string) func(p cluster.Peer) bool {
		return func(p cluster.Peer) bool {
			v := c.admin(p, bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}, {Key: "$db", Value: "admin"}})
			return strings.Contains(show(v["featureCompatibilityVersion"]), version)
		}
	}
	for _, version := range []string{"8.0", "8.2"} {
		set(own, bson.D{{Key: "setFeatureCompatibilityVersion", Value: version}, {Key: "confirm", Value: true}})
		everywhere("version "+version, has(version))
	}
	for _, n := range []int{1234, 4321} {
		set(own, bson.D{{Key: "setClusterParameter", Value: bson.D{{Key: "defaultMaxTimeMS", Value: bson.D{{Key: "readOperations", Value: n}}}}}})
		everywhere("its parameter", func(p cluster.Peer) bool {
			return strings.Contains(show(doc(p, "config", "clusterParameters")), fmt.Sprint(n))
		})
	}
	// shard1 was restored from old files.
	docs := c.server["shard1"].Node.Docs
	if err := docs.Put(t.Context(), "admin.system.version", bsonDoc(t, bson.D{{Key: "_id", Value: "featureCompatibilityVersion"}, {Key: "version", Value: "8.0"}})); err != nil {
		t.Fatal(err)
	}
	old := bson.D{{Key: "_id", Value: ""}, {Key: "blockNewUserShardedDDL", Value: true}, {Key: "blockUserWrites", Value: true}, {Key: "blockUserWritesReason", Value: "DiskUseThresholdExceeded"}}
	if err := docs.Put(t.Context(), "config.user_writes_critical_sections", bsonDoc(t, old)); err != nil {
		t.Fatal(err)
	}
	c.restart("shard1")
	everywhere("version 8.2 again", has("8.2"))
	everywhere("users' writes let through again", func(p cluster.Peer) bool { return !blocked(p) })
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

// serverStatus of a member reports whether users' writes are blocked, why, and how often they were blocked.
func TestStatusOfBlockedWrites(t *testing.T) {
	c := newTestCluster(t, 1)
	status := func() string {
		m := c.admin(c.shards["shard0"], bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
		return fmt.Sprint(show(fieldAt(m, "repl.userWriteBlockMode")), show(fieldAt(m, "repl.userWriteBlockReason")), show(fieldAt(m, "repl.userWriteBlockModeCounters")))
	}
	c.expect(status(), show(`10{"Unspecified":0,"ClusterToClusterMigrationInProgress":0,"DiskUseThresholdExceeded":0}`))
	for range 2 {
		c.run("admin", `{"setUserWriteBlockMode": 1, "global": true, "reason": "DiskUseThresholdExceeded"}`)
	}
	c.expect(status(), show(`22{"Unspecified":0,"ClusterToClusterMigrationInProgress":0,"DiskUseThresholdExceeded":1}`))
	c.run("admin", `{"setUserWriteBlockMode": 1, "global": false, "reason": "DiskUseThresholdExceeded"}`)
	c.run("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
	c.expect(status(), show(`20{"Unspecified":1,"ClusterToClusterMigrationInProgress":0,"DiskUseThresholdExceeded":1}`))
}
