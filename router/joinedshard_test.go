package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A shard joins the cluster after a DDL has listed the shards, and receives a chunk before migrations are excluded: the operation reaches it, too. It used to keep
// its documents of a dropped collection, or those under the old name.
func TestShardJoinsDuringDDL(t *testing.T) {
	for _, x := range []struct{ db, cmd, phase, now string }{
		{"db", `{"drop": "c"}`, "", ""}, {"admin", `{"renameCollection": "db.c", "to": "db.d"}`, "", "d"}, {"db", `{"dropDatabase": 1}`, "freezeCollections", ""},
		{"admin", `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 1}}`, "freezeMigrations", "c"},
	} {
		c := newTestCluster(t, 2)
		w := c.interposed("shard1")
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
		c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1", "_waitForDelete": true}`)
		c.insertKeys("c", 1, 10)
		c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "g": 1}, "name": "kg"}]}`)
		var reached, release func()
		if x.phase == "" {
			reached, release = w.held(c, "_shardsvrParticipantBlock", 1, false)
		} else {
			reached, release = c.hangAt("shard0", x.phase)
		}
		answer, other := make(chan bson.M, 1), c.through()
		go func() { answer <- c.raw(x.db, x.cmd) }()
		reached()
		c.addSet("shardx")
		other.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shardx", "_waitForDelete": true}`)
		release()
		if m := <-answer; m["ok"] != 1.0 {
			t.Errorf("%s: %v", x.cmd, m)
		}
		if x.now == "c" { // the shard was blocked while indexes were compared
			sections := bson.D{{Key: "ns", Value: "config.collection_critical_sections"}, {Key: "op", Value: "i"}, {Key: "o.reason.command", Value: "refineCollectionShardKey"}}
			c.expect(c.admin(c.shards["shardx"], bson.D{{Key: "count", Value: "oplog.rs"}, {Key: "query", Value: sections}, {Key: "$db", Value: "local"}})["n"], `1`)
		}
		c.leftOver()
		for _, name := range []string{"c", "d"} {
			if l := c.server["shardx"].Node.Engine.Catalog().Lookup("db." + name); (l != nil) != (name == x.now) {
				t.Errorf("%s: the new shard has %s: %v", x.cmd, name, l != nil)
			}
		}
		if x.now != "" {
			c.expect(c.counted(x.now, 1), `10`)
		}
		c.run("admin", `{"enableSharding": "db"}`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
}

// A shard joins after a shardCollection has listed the shards, and gets one of the chunks: creating the collection there used to be refused forever, because its
// name was not blocked.
func TestShardJoinsDuringShardCollection(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	reached, release := c.hangAt("shard0", "commit")
	answer := make(chan bson.M, 1)
	go func() {
		answer <- c.raw("admin", `{"shardCollection": "db.c", "key": {"k": "hashed"}, "maxTimeMS": 100000}`)
	}()
	reached()
	c.addSet("shardx")
	release()
	if m := <-answer; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	c.leftOver()
	c.insertKeys("c", 1, 30)
	c.expect(c.counted("c", 1), `30`)
	if c.server["shardx"].Node.Engine.Catalog().Lookup("db.c") == nil {
		t.Error("the new shard has no chunk")
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// A shard that joins while a drop or rename has blocked the collection everywhere is made an empty copy for a migration that cannot commit: it goes, or gets the new name. It used to
// stay under the former name, with the UUID of the renamed collection, of which no chunk could come there any more.
func TestShardThatJoinsBehindTheSectionsKeepsNoCopy(t *testing.T) {
	for _, x := range []struct{ db, cmd, phase, now string }{
		{"db", `{"drop": "c"}`, "dropCollection", ""}, {"admin", `{"renameCollection": "db.c", "to": "db.d"}`, "renameMetadata", "d"},
	} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		c.insertKeys("c", 1, 10)
		reached, release := c.hangAt("shard0", x.phase)
		answer := c.later(x.db, x.cmd)
		reached()
		c.addSet("shardx")
		has := func(name string) bool {
			return c.server["shardx"].Node.Engine.Catalog().Lookup("db."+name) != nil
		}
		moved := c.later("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shardx"}`)
		c.until("the new shard has a copy", func() bool { return has("c") })
		release()
		if m := <-answer; m["ok"] != 1.0 {
			t.Errorf("%s: %v", x.cmd, m)
		}
		if m := <-moved; m["ok"] == 1.0 {
			t.Errorf("the migration: %v", m)
		}
		c.leftOver()
		if has("c") || has("d") && x.now != "d" { // a copy whose creation finds the rename done has gone
			t.Errorf("%s: the new shard has c: %v, d: %v", x.cmd, has("c"), has("d"))
		}
		if x.now != "" {
			c.run("admin", `{"moveChunk": "db.d", "find": {"k": 0}, "to": "shardx"}`)
			c.expect(c.counted(x.now, 1), `10`)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
}
