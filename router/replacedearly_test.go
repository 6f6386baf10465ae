package router_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// holdSections keeps the messages that begin critical sections from a shard until release is called; reached returns once one is held.
func (w *interposedPeer) holdSections() (reached, release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(held) })
	w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "_shardsvrParticipantBlock" {
			once()
			<-free
		}
		return call()
	})
	return func() { <-held }, sync.OnceFunc(func() { close(free) })
}

// answered waits for the reply of a command, which may hang.
func (c *testCluster) answered(reply <-chan bson.M) bson.M {
	c.t.Helper()
	select {
	case m := <-reply:
		return m
	case <-time.After(time.Minute):
		c.t.Fatal("no answer")
		return nil
	}
}

// While the critical section of a shardCollection is entered on one shard, another shard, which has entered it, is replaced by a set under its name, which has not. The collection hung for ever: the new set was
// asked again and again to make a copy within a section that it did not hold.
func TestShardIsReplacedWhileSectionsAreEntered(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	reached, release := c.interposed("shard2").holdSections()
	defer release()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	reply := c.later("admin", `{"shardCollection": "db.hashed", "key": {"k": "hashed"}}`)
	reached()
	c.until("the shard has entered the section", func() bool {
		return c.admin(c.shards["shard1"], bson.D{{Key: "count", Value: "collection_critical_sections"}, {Key: "$db", Value: "config"}})["n"] != int32(0)
	})
	c.removeEmptyShard("shard1")
	c.addedAgain("shard1", "shardx")
	release()
	if m := c.answered(reply); m["ok"] != 1.0 {
		t.Errorf("shardCollection: %v", m)
	}
	c.insertKeys("hashed", 1, 50)
	c.expect(c.run("db", `{"count": "hashed"}`)["n"], `50`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// A shard is replaced, and the new set gets a chunk, before the coordinator's message reaches the former one, which enters the section still. The new set enters it, too: the documents that it has were left behind
// under the old name.
func TestShardIsReplacedBeforeItEntersASection(t *testing.T) {
	t.Parallel()
	for _, cmd := range []string{`{"renameCollection": "db.s", "to": "db.t"}`, `{"drop": "s"}`} {
		t.Run(cmd, func(t *testing.T) {
			c := newTestCluster(t, 3)
			donor, former := c.interposed("shard1"), c.interposed("shard2")
			c.twoShards()
			c.insertKeys("s", 1, 200)
			atDonor, freeDonor := donor.holdSections()
			defer freeDonor()
			atFormer, freeFormer := former.holdSections()
			defer freeFormer()
			db := "admin"
			if cmd == `{"drop": "s"}` {
				db = "db"
			}
			reply := c.later(db, cmd)
			atDonor()
			atFormer()
			c.removeEmptyShard("shard2")
			c.addedAgain("shard2", "shardx")
			c.run("admin", `{"moveChunk": "db.s", "find": {"k": 70}, "to": "shard2", "_waitForDelete": true}`)
			freeFormer()
			freeDonor()
			if m := c.answered(reply); m["ok"] != 1.0 {
				t.Errorf("%s: %v", cmd, m)
			}
			if db == "admin" {
				c.expect(len(c.all("db", `{"find": "t"}`)), `200`)
			}
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		})
	}
}

// A shard is replaced while a dropDatabase is under way: the database hung for ever, as the new set was asked again and again to drop it within a section that it did not hold.
func TestShardIsReplacedDuringADropDatabase(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	former := c.interposed("shard1")
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	reached, release := c.hangAt("shard0", "dropDatabase")
	defer release()
	reply := c.later("db", `{"dropDatabase": 1}`)
	reached()
	c.removeEmptyShard("shard1")
	c.addedAgain("shard1", "shardx")
	former.through(func(context.Context, string, func() ([]byte, error)) ([]byte, error) {
		return nil, mongoerr.New(mongoerr.HostUnreachable, "the set is gone")
	})
	release()
	if m := c.answered(reply); m["ok"] != 1.0 {
		t.Errorf("dropDatabase: %v", m)
	}
	c.run("db", `{"insert": "c", "documents": [{"_id": 2}]}`)
	c.expect(c.all("db", `{"find": "c"}`), `[{"_id":2}]`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
}
