package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// onCatalog changes the sharding catalog directly, unnoticed by all caches.
func (c *testCluster) onCatalog(cmd bson.D) {
	c.t.Helper()
	if m := c.admin(c.confP, append(cmd, bson.E{Key: "$db", Value: "config"})); m["writeErrors"] != nil {
		c.t.Fatal(m)
	}
}

// anotherDatabase replaces the entry of the database db, as a drop and a creation do.
func (c *testCluster) anotherDatabase(primary string) {
	c.t.Helper()
	was := c.all("config", `{"find": "databases"}`)[0].(bson.D)
	at := get(get(was, "version"), "timestamp").(bson.Timestamp)
	version := bson.D{{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: []byte("another database")}}, {Key: "timestamp", Value: bson.Timestamp{T: at.T + 1, I: 1}}, {Key: "lastMod", Value: 1}}
	c.onCatalog(bson.D{{Key: "update", Value: "databases"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "db"}}}, {Key: "u", Value: bson.D{
		{Key: "_id", Value: "db"}, {Key: "primary", Value: primary}, {Key: "version", Value: version}}}}}}})
}

// A shard considers itself the primary shard of a database that has been dropped and created on another one: its DDL locks exclude nothing. It reads the database's
// entry again under them, and the other shard coordinates the operation. A dropDatabase of the second shard used not to know what the first one had done:
// the entry of a collection remained without that of its database (HiddenShardedCollection), or a commit found no database, forever.
func TestCoordinatorOfADatabaseThatWent(t *testing.T) {
	for _, cmd := range []string{
		`{"shardCollection": "db.c", "key": {"k": "hashed"}}`, `{"create": "c"}`, `{"drop": "c"}`, `{"dropDatabase": 1}`, `{"movePrimary": "db", "to": "shard0"}`,
		`{"movePrimary": "db", "to": "shard1"}`, `{"renameCollection": "db.c", "to": "db.d"}`, `{"collMod": "c", "validator": {}}`, `{"moveCollection": "db.c", "toShard": "shard0"}`,
	} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
		c.run("db", `{"create": "cached"}`)
		late := c.through()
		late.run("db", `{"listCollections": 1, "cursor": {}}`)
		c.run("db", `{"dropDatabase": 1}`)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
		late.r.Catalog.PurgeDatabase("db")
		late.run("db", `{"listCollections": 1, "cursor": {}}`)
		state := c.server["shard1"].Node.Sharding().(*migration.ShardState)
		before, err := state.Catalog.Database(t.Context(), "db")
		if err != nil || before.Primary != "shard1" {
			t.Fatal(before, err)
		}
		c.anotherDatabase("shard0")
		db := "db"
		if cmd[2] == 's' || cmd[2] == 'm' || cmd[2] == 'r' {
			db = "admin"
		}
		m := late.raw(db, cmd)
		if code, _ := m["code"].(int32); m["ok"] != 1.0 && code != int32(mongoerr.NamespaceNotFound) {
			t.Errorf("%s: %v", cmd, m)
		}
		for _, name := range []string{"db.c", "db.d"} {
			l := c.server["shard1"].Node.Engine.Catalog().Lookup(name)
			if sharded := cmd[2:7] == "shard"; l != nil && !sharded { // which has a chunk there
				t.Errorf("%s: shard1 has %s", cmd, name)
			}
		}
		c.leftOver()
		if dbs := c.all("config", `{"find": "databases"}`); len(dbs) == 1 {
			want := "shard0"
			if strings.Contains(cmd, `"to": "shard1"`) {
				want = "shard1"
			}
			c.expect(get(dbs[0], "primary"), `"`+want+`"`)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
}

// A database is gone when the config server is asked to commit a shardCollection in it, or its movePrimary: the operation is undone. It
// was repeated forever.
func TestCommitWithoutADatabase(t *testing.T) {
	for _, cmd := range []string{`{"shardCollection": "db.c", "key": {"k": "hashed"}}`, `{"movePrimary": "db", "to": "shard0"}`} {
		commitWithoutADatabase(t, cmd)
	}
}

func commitWithoutADatabase(t *testing.T, cmd string) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	reached, release := c.hangAt("shard1", "commit")
	answer := make(chan bson.M, 1)
	go func() { answer <- c.raw("admin", cmd) }()
	reached()
	c.onCatalog(bson.D{{Key: "delete", Value: "databases"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
	release()
	var m bson.M
	await.State(t, "the command ends", func() (any, bool) {
		select {
		case m = <-answer:
			return m, true
		default:
			return nil, false
		}
	})
	if m["code"] != int32(mongoerr.NamespaceNotFound) {
		t.Error(m)
	}
	c.leftOver()
	for _, shard := range []string{"shard0", "shard1"} {
		if c.server[shard].Node.Engine.Catalog().Lookup("db.c") != nil {
			t.Errorf("%s has the collection", shard)
		}
	}
	c.expect(c.all("config", `{"find": "collections"}`), `[]`)
	c.shardedAs("c", 1, 10)
	c.expect(c.counted("c", 1), `10`)
}

// A shardCollection requests its commit when its shard is no longer the primary shard of the database: it is undone, and the new primary shard coordinates it.
func TestCommitForAShardThatIsNotPrimary(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	reached, release := c.hangAt("shard1", "commit")
	answer := make(chan bson.M, 1)
	go func() { answer <- c.raw("admin", `{"shardCollection": "db.c", "key": {"k": 1}, "maxTimeMS": 100000}`) }()
	reached()
	c.anotherDatabase("shard0")
	release()
	if m := <-answer; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	c.leftOver()
	c.insertKeys("c", 1, 10)
	c.expect(c.onShard("shard0", "c"), `10`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}
