package router_test

import (
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// duringMigration runs commands on database d while a migration of all of d.c to shard1 has cloned but not committed.
func (c *testCluster) duringMigration(cmds ...string) {
	c.t.Helper()
	entered := c.point("shard0", "moveChunkHangAtStep4", true)
	var wg sync.WaitGroup
	wg.Go(func() {
		c.run("admin", `{"moveRange": "d.c", "min": {"k": {"$minKey": 1}}, "max": {"k": {"$maxKey": 1}}, "toShard": "shard1"}`)
	})
	entered()
	for _, cmd := range cmds {
		c.run("d", cmd)
	}
	c.point("shard0", "moveChunkHangAtStep4", false)
	wg.Wait()
}

// collatedWrites are several writes for each key that an index on _id has under a collation: what was deleted as "e" was inserted as "E".
var collatedWrites = []string{
	`{"delete": "c", "deletes": [{"q": {"_id": "a"}, "limit": 0}]}`, `{"insert": "c", "documents": [{"_id": "A", "k": 1}]}`,
	`{"delete": "c", "deletes": [{"q": {"_id": "e"}, "limit": 0}]}`, `{"insert": "c", "documents": [{"_id": "E", "k": 2}]}`, `{"delete": "c", "deletes": [{"q": {"_id": "e"}, "limit": 0}]}`,
	`{"insert": "c", "documents": [{"_id": "n", "k": 3}]}`, `{"delete": "c", "deletes": [{"q": {"_id": "n"}, "limit": 0}]}`, `{"insert": "c", "documents": [{"_id": "N", "k": 3}]}`,
}

// collated creates d.c with a collation and two documents on shard0.
func (c *testCluster) collated() {
	c.t.Helper()
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("d", `{"create": "c", "collation": {"locale": "en", "strength": 2}}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": "a", "k": 1}, {"_id": "e", "k": 2}]}`)
}

// expectCollated checks what is left of d.c after collatedWrites, and how many of its documents shard1 counts.
func (c *testCluster) expectCollated() {
	c.t.Helper()
	c.expect(c.all("d", `{"find": "c", "sort": {"k": 1}}`), `[{"_id":"A","k":1},{"_id":"N","k":3}]`)
	c.expect(c.admin(c.shards["shard1"], bson.D{{Key: "collStats", Value: "c"}, {Key: "$db", Value: "d"}})["count"], `2`)
}

// The recipient of a migration used to delete a document twice, so that its count was wrong, or to fail because it inserted one twice.
func TestCatchUpComparesIdentitiesAsTheCollectionDoes(t *testing.T) {
	c := newTestCluster(t, 2)
	c.collated()
	c.run("d", `{"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k", "collation": {"locale": "simple"}}]}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"k": 1}, "collation": {"locale": "simple"}}`)
	c.duringMigration(collatedWrites...)
	c.expectCollated()
}

func TestMovePrimaryComparesIdentitiesAsTheCollectionDoes(t *testing.T) {
	c := newTestCluster(t, 2)
	c.collated()
	reached, release := c.hangAt("shard0", "blockWrites")
	moved := make(chan bson.M, 1)
	go func() { moved <- c.raw("admin", `{"movePrimary": "d", "to": "shard1", "maxTimeMS": 100000}`) }()
	reached()
	for _, cmd := range collatedWrites {
		c.run("d", cmd)
	}
	release()
	if m := <-moved; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	c.expectCollated()
}

func TestMoveCollectionComparesIdentitiesAsTheCollectionDoes(t *testing.T) {
	var c *testCluster
	var once sync.Once // shards that receive it at the same time wait
	c = newWatchedCluster(t, 2, func(_ string, m *wire.Message) error {
		if string(m.CommandName()) == "_shardsvrParticipantBlock" && value.Lookup(m.Body, "blockType").Str() == msg.BlockWrites {
			once.Do(func() {
				for _, cmd := range collatedWrites {
					c.run("d", cmd)
				}
			})
		}
		return nil
	})
	c.collated()
	c.run("admin", `{"moveCollection": "d.c", "toShard": "shard1", "maxTimeMS": 100000}`)
	c.expectCollated()
}

// Documents exchange a value of a unique index during a migration. The recipient learns only the outcome, in which each has the key that another document still
// has on the recipient: the migration used to fail with a duplicate key.
func TestCatchUpOfExchangedUniqueKeys(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("d", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "u": 1}, "name": "u", "unique": true}]}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"k": 1}}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 1, "k": 1, "u": 1}, {"_id": 2, "k": 1, "u": 2}, {"_id": 3, "k": 1, "u": 3}]}`)
	set := func(id, u string) string {
		return `{"update": "c", "updates": [{"q": {"_id": ` + id + `, "k": 1}, "u": {"$set": {"u": ` + u + `}}}]}`
	}
	c.duringMigration(set("1", "9"), set("2", "1"), set("3", "2"), set("1", "3"))
	c.expect(c.all("d", `{"find": "c", "sort": {"_id": 1}}`), `[{"_id":1,"k":1,"u":3},{"_id":2,"k":1,"u":1},{"_id":3,"k":1,"u":2}]`)
}
