package router_test

import (
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A router that knows the table of a sharded collection whose database has been dropped through another router finds out that neither exists: its commands
// for the primary shard carried the version of the database with which the table was read, which no shard knows, until all tries were used up (249).
func TestDatabaseDroppedThroughAnotherRouter(t *testing.T) {
	c := newTestCluster(t, 2)
	for i, cmd := range []string{
		`{"collMod": "c", "validator": {"k": 1}}`, `{"dropIndexes": "c", "index": "k_1"}`, `{"drop": "c"}`, `{"renameCollection": "db.c", "to": "db.d"}`, `{"create": "c"}`,
		`{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`, `{"convertToCapped": "c", "size": 4096}`, `{"shardCollection": "db.c", "key": {"k": 1}}`,
		`{"moveCollection": "db.c", "toShard": "shard1"}`, `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 1}}`, `{"reshardCollection": "db.c", "key": {"g": 1}}`, `{"dropDatabase": 1}`,
		`{"untrackUnshardedCollection": "db.c"}`, `{"insert": "c", "documents": [{"_id": 1}]}`, `{"find": "c"}`, `{"listIndexes": "c"}`, `{"movePrimary": "db", "to": "shard1"}`,
	} {
		c.run("admin", fmt.Sprintf(`{"enableSharding": "db", "primaryShard": "shard%d"}`, i%2))
		c.shardedAs("c", 1, 10)
		late := c.through()
		late.expect(late.counted("c", 1), `10`)
		c.run("db", `{"dropDatabase": 1}`)
		db := "db"
		for _, of := range []string{`{"rename`, `{"shard`, `{"move`, `{"refine`, `{"reshard`, `{"untrack`} {
			if len(cmd) > len(of) && cmd[:len(of)] == of {
				db = "admin"
			}
		}
		if m := late.raw(db, cmd); m["code"] == int32(mongoerr.StaleDbVersion) || m["code"] == int32(mongoerr.StaleConfig) {
			t.Errorf("%s: %v", cmd, m)
		}
		c.run("db", `{"dropDatabase": 1}`)
	}
}
