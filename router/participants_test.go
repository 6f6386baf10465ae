package router_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// replaced runs a command while the primary of a participating shard steps down and up again all the time, and another collection is
// written to.
func (c *testCluster) replaced(shard, db, cmd string) bson.M {
	c.t.Helper()
	var done atomic.Bool
	ended := make(chan int, 2)
	go func() {
		n := 0
		for ; !done.Load(); n++ {
			c.restart(shard)
			time.Sleep(time.Millisecond) // without a pause between two elections the command would have no primary to go on
		}
		ended <- n
	}()
	other := c.through()
	go func() {
		n := 0
		for ; !done.Load(); n++ {
			if m := other.raw("beside", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$inc": {"n": 1}}, "upsert": true}], "maxTimeMS": 100000}`, n%20)); m["ok"] == 1.0 && m["writeErrors"] == nil {
				continue
			} else if code, _ := m["code"].(int32); code != int32(mongoerr.HostUnreachable) && code != int32(mongoerr.InterruptedDueToReplStateChange) && code != int32(mongoerr.NotWritablePrimary) {
				c.t.Errorf("a concurrent write: %v", m)
				break
			}
		}
		ended <- n
	}()
	m := c.raw(db, cmd)
	done.Store(true)
	<-ended
	<-ended
	c.leftOver()
	return m
}

// The primary of a participant of a DDL may step down at any moment: the operation is done on all shards, and the catalogs agree.
func TestParticipantsAreReplaced(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	c.run("admin", `{"enableSharding": "beside", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "beside.c", "key": {"_id": "hashed"}}`)
	for round := range 3 {
		for _, x := range []struct {
			db, cmd string
			coll    string // that has the documents then
		}{
			{"db", `{"collMod": "c", "validator": {"k": {"$exists": true}}}`, "c"},
			{"db", `{"dropIndexes": "c", "index": "b"}`, "c"},
			{"admin", `{"refineCollectionShardKey": "db.c", "key": {"k": "hashed", "g": 1}}`, "c"},
			{"admin", `{"shardCollection": "db.plain", "key": {"k": "hashed"}}`, "c"},
			{"admin", `{"renameCollection": "db.c", "to": "db.d", "dropTarget": true}`, "d"},
			{"admin", `{"movePrimary": "db", "to": "shard0"}`, "d"},
			{"db", `{"drop": "d"}`, ""},
			{"db", `{"dropDatabase": 1}`, ""},
		} {
			if strings.Contains(x.cmd, "collMod") {
				c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
				c.shardedAs("c", 1, 40)
				c.run("db", `{"create": "plain"}`)
				c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": "hashed", "g": 1}, "name": "kg"}, {"key": {"b": 1}, "name": "b"}]}`)
			}
			shard := "shard0"
			if strings.Contains(x.cmd, "drop") && x.coll == "" {
				shard = "shard2" // it is no primary any more
			}
			if m := c.replaced(shard, x.db, x.cmd); m["ok"] != 1.0 {
				t.Fatalf("round %d, %s: %v", round, x.cmd, m)
			}
			if bad := c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); len(bad) > 0 {
				t.Fatalf("round %d, %s: %s", round, x.cmd, show(bad))
			}
			if x.coll != "" {
				c.expect(c.counted(x.coll, 1), `40`)
			}
		}
	}
}

// A shard that receives a write to a sharded collection that it does not have refuses to create the collection: it would have a UUID
// that is not in the catalog, and the documents written to it would be lost.
func TestMissingPartIsNotCreated(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	c.admin(c.shards["shard1"], bson.D{{Key: "drop", Value: "c"}, {Key: "$db", Value: "db"}})
	var wg sync.WaitGroup
	for _, cmd := range []string{
		`{"insert": "c", "ordered": false, "documents": [{"_id": 1000, "k": 1}, {"_id": 1001, "k": 2}, {"_id": 1002, "k": 3}, {"_id": 1003, "k": 4}, {"_id": 1004, "k": 5}]}`,
		`{"update": "c", "ordered": false, "updates": [{"q": {"k": 6}, "u": {"$set": {"x": 1}}, "upsert": true}, {"q": {"k": 7}, "u": {"$set": {"x": 1}}, "upsert": true}, {"q": {"k": 8}, "u": {"$set": {"x": 1}}, "upsert": true}, {"q": {"k": 9}, "u": {"$set": {"x": 1}}, "upsert": true}]}`,
		`{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`,
	} {
		wg.Go(func() {
			m := c.through().raw("db", cmd)
			code := m["code"]
			if errs, ok := m["writeErrors"].(bson.A); ok {
				code = get(errs[0], "code")
			}
			if code != int32(mongoerr.CannotImplicitlyCreateCollection) {
				t.Errorf("%s: %v", cmd, m)
			}
		})
	}
	wg.Wait()
	if c.server["shard1"].Node.Engine.Catalog().Lookup("db.c") != nil {
		t.Error("a collection was created")
	}
}
