package router_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// plainAndSharded creates a database on a shard, with 20 documents each in db.plain and, sharded by k, db.s.
func (c *testCluster) plainAndSharded(primary string) {
	c.t.Helper()
	c.run("admin", fmt.Sprintf(`{"enableSharding": "db", "primaryShard": %q}`, primary))
	c.insertKeys("plain", 1, 20)
	c.run("admin", `{"shardCollection": "db.s", "key": {"k": 1}}`)
	c.insertKeys("s", 1, 20)
}

// While data goes to a shard it is removed, as it has none yet, and another set is added under its name, before the commit. Data was lost then: the other set, which has none of it, became
// its owner.
func TestRecipientIsReplacedBeforeTheCommit(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name, point, field, at, cmd, coll string
		code                              any
	}{
		{"movePrimary", hangBeforePhase, "phase", "commit", `{"movePrimary": "db", "to": "shard1"}`, "plain", int32(mongoerr.IllegalOperation)},
		{"movePrimary", hangBeforePhase, "phase", "blockWrites", `{"movePrimary": "db", "to": "shard1"}`, "plain", int32(mongoerr.IllegalOperation)},
		{"moveChunk", "moveChunkHangAtStep5", "any", "any", `{"moveChunk": "db.s", "find": {"k": 5}, "to": "shard1"}`, "s", int32(mongoerr.IllegalOperation)},
		{"shardCollection", hangBeforePhase, "phase", "commit", `{"shardCollection": "db.hashed", "key": {"k": "hashed"}}`, "plain", nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newTestCluster(t, 3)
			c.plainAndSharded("shard0")
			reached, release := c.hangOn("shard0", x.point, x.field, x.at)
			answer := make(chan bson.M, 1)
			go func() { answer <- c.raw("admin", x.cmd) }()
			reached()
			c.removeEmptyShard("shard1")
			c.addedAgain("shard1", "shardx")
			release()
			select {
			case m := <-answer:
				if m["code"] != x.code {
					t.Errorf("%s: %v", x.cmd, m)
				}
			case <-time.After(time.Minute):
				t.Fatal("no answer")
			}
			c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 5000, "k": 5000}]}`, x.coll))
			for _, coll := range []string{"plain", "s"} {
				want := 20
				if coll == x.coll {
					want++
				}
				if n := len(c.all("db", fmt.Sprintf(`{"find": %q}`, coll))); n != want {
					t.Errorf("%d documents in %s, want %d", n, coll, want)
				}
			}
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		})
	}
}

// The removal of a shard that an operation does not use does not stop it, although it is written to another shard's entry, here the recipient's. A migration and a movePrimary were refused at their
// commit, and had to begin anew.
func TestAnotherShardIsRemovedBeforeTheCommit(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ name, point, field, at, cmd string }{
		{"movePrimary", hangBeforePhase, "phase", "commit", `{"movePrimary": "db", "to": "shard0"}`},
		{"moveChunk", "moveChunkHangAtStep5", "any", "any", `{"moveChunk": "db.s", "find": {"k": 5}, "to": "shard0"}`},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newTestCluster(t, 3)
			c.plainAndSharded("shard1")
			reached, release := c.hangOn("shard1", x.point, x.field, x.at)
			answer := make(chan bson.M, 1)
			go func() { answer <- c.raw("admin", x.cmd) }()
			reached()
			topology := func() any {
				return get(c.all("config", `{"find": "shards", "filter": {"_id": "shard0"}}`)[0], "topologyTime")
			}
			before := topology()
			c.removeEmptyShard("shard2")
			if topology() == before {
				t.Error("the removal has not changed the recipient's entry")
			}
			release()
			select {
			case m := <-answer:
				if m["ok"] != 1.0 {
					t.Errorf("%s: %v", x.cmd, m)
				}
			case <-time.After(time.Minute):
				t.Fatal("no answer")
			}
			for _, coll := range []string{"plain", "s"} {
				if n := len(c.all("db", fmt.Sprintf(`{"find": %q}`, coll))); n != 20 {
					t.Errorf("%d documents in %s, want 20", n, coll)
				}
			}
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		})
	}
}

// While the copies of a new sharded collection are made, one shard is frozen, and another, which has its empty copy already, is replaced by a set that has none. The other set gets a copy before
// it gets chunks: it got the chunks of the former one, and no collection.
func TestShardIsReplacedBesideAFrozenOne(t *testing.T) {
	t.Parallel()
	reached, release := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(reached) })
	c := newHookedCluster(t, 3, clusterHooks{peer: func(set string, s *shardnode.Server) cluster.Peer {
		if set != "shard2" {
			return s.Peer()
		}
		w := &interposedPeer{Peer: s.Peer()}
		w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			if name == "_shardsvrCreateCollectionParticipant" {
				once()
				<-release
			}
			return call()
		})
		return w
	}})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	answer := make(chan bson.M, 1)
	go func() { answer <- c.raw("admin", `{"shardCollection": "db.hashed", "key": {"k": "hashed"}}`) }()
	select {
	case <-reached:
	case m := <-answer:
		t.Fatalf("shard2 is not asked: %v", m)
	}
	c.removeEmptyShard("shard1")
	c.addedAgain("shard1", "shardx")
	close(release)
	select {
	case m := <-answer:
		if m["ok"] != 1.0 {
			t.Errorf("shardCollection: %v", m)
		}
	case <-time.After(time.Minute):
		t.Fatal("no answer")
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.insertKeys("hashed", 1, 50)
	c.expect(c.run("db", `{"count": "hashed"}`)["n"], `50`)
}
