package router_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// everythingIsListed fails the test if a chunk or a database is on a shard that the cluster does not have.
func (c *testCluster) everythingIsListed() {
	c.t.Helper()
	has := map[any]bool{}
	for _, s := range c.all("config", `{"find": "shards"}`) {
		has[get(s, "_id")] = true
	}
	for coll, field := range map[string]string{"chunks": "shard", "databases": "primary"} {
		for _, d := range c.all("config", fmt.Sprintf(`{"find": %q}`, coll)) {
			if on := get(d, field); !has[on] && get(d, "_id") != "config" {
				c.t.Errorf("config.%s: %v is on %v, which the cluster does not have", coll, show(d), on)
			}
		}
	}
}

// A migration commits after the removal of its recipient has found nothing there: the shard stays. It was removed, with the only chunk.
func TestMigrationCommitsBesideRemoval(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.insertKeys("c", 1, 10)
	other, moved, removed := c.through(), make(chan bson.M, 1), make(chan bson.M, 1)
	entered := c.point("shard0", "moveChunkHangAtStep4", true)
	go func() { moved <- c.raw("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`) }()
	entered()
	c.expect(other.run("admin", `{"removeShard": "shard1"}`)["state"], `"started"`)
	reached, release := c.hangAt("config", "commit")
	go func() { removed <- other.raw("admin", `{"removeShard": "shard1"}`) }()
	reached()
	c.point("shard0", "moveChunkHangAtStep4", false)
	if m := <-moved; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	release()
	c.expect((<-removed)["state"], `"ongoing"`)
	c.everythingIsListed()
	c.expect(c.counted("c", 1), `10`)
}

// A shard is removed while a shardCollection that laid a chunk out there creates the collection on another shard: the chunks are laid out once more. They were
// written, and half of the key space was on no shard.
func TestShardIsRemovedBesideShardCollection(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	w := c.interposed("shard2")
	c.configThrough(func(_ string, to cluster.Peer) cluster.Peer { return to }) // its connections are those of before
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	atCommit, commit := c.hangAt("shard0", "commit")
	other, answer := c.through(), make(chan bson.M, 1)
	go func() {
		answer <- c.raw("admin", `{"shardCollection": "db.c", "key": {"k": "hashed"}, "maxTimeMS": 100000}`)
	}()
	atCommit()
	reached, release := w.held(c, "_shardsvrCreateCollectionParticipant", 1, false)
	commit()
	reached()
	c.until("shard1 is removed", func() bool { return other.run("admin", `{"removeShard": "shard1"}`)["state"] == "completed" })
	release()
	if m := <-answer; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	c.everythingIsListed()
	c.insertKeys("c", 1, 30)
	c.expect(c.counted("c", 1), `30`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.run("db", `{"drop": "c"}`)
}

// Likewise the shard that is to have a collection that is not sharded: the collection is not created.
func TestDataShardIsRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	if err := c.r.Params.SetStartup("enableTestCommands", "1"); err != nil {
		t.Fatal(err)
	}
	w := c.interposed("shard1")
	c.configThrough(func(_ string, to cluster.Peer) cluster.Peer { return to })
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	reached, release := w.held(c, "_shardsvrCreateCollectionParticipant", 1, true)
	other, answer := c.through(), make(chan bson.M, 1)
	go func() { answer <- c.raw("db", `{"createUnsplittableCollection": "c", "dataShard": "shard1"}`) }()
	reached()
	c.until("shard1 is removed", func() bool { return other.run("admin", `{"removeShard": "shard1"}`)["state"] == "completed" })
	release()
	if m := <-answer; m["code"] != int32(mongoerr.ShardNotFound) {
		t.Errorf("%v", m)
	}
	c.everythingIsListed()
	c.leftOver()
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
}

// Of databases whose names differ only in case, one is created, whoever asks for them at the same time. While its entry is written the others neither write theirs nor are
// answered.
func TestNamesThatDifferInCaseAtTheSameTime(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	for round := range 3 {
		c.disk.hold()
		replies := make(chan bson.M, 3)
		for i, name := range []string{"case%d", "CASE%d", "Case%d"} {
			router, db := c.through(), fmt.Sprintf(name, round)
			go func() {
				replies <- router.raw("admin", fmt.Sprintf(`{"enableSharding": %q, "primaryShard": "shard%d"}`, db, i%2))
			}()
		}
		c.until("an entry is written", func() bool { return c.disk.count() > 0 })
		select {
		case m := <-replies:
			t.Errorf("one is answered meanwhile: %v", m)
			replies <- m
		case <-time.After(50 * time.Millisecond): // the others do not write theirs, either
		}
		if n := c.disk.free()["config"]; n != 1 {
			t.Errorf("%d of three write their entry", n)
		}
		created := 0
		for range 3 {
			switch m := <-replies; {
			case m["ok"] == 1.0:
				created++
			case m["code"] != int32(mongoerr.DatabaseDifferCase):
				t.Errorf("%v", m)
			}
		}
		if created != 1 {
			t.Errorf("%d of three databases were created", created)
		}
	}
}

// newSet begins a set that is not a shard yet.
func (c *testCluster) newSet(id string) *shardnode.Server {
	c.t.Helper()
	s := c.opened(shardnode.Config{SetName: id, Host: id + ":27018"})
	if err := s.Initiate(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	return s
}

// A database is created elsewhere after an addShard has found that the cluster does not know its name: the shard is refused, and the database keeps its entry, which
// the shard's used to overwrite. One whose name differs only in case is the same.
func TestDatabaseIsCreatedBesideAddShard(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]mongoerr.Code{"twice": mongoerr.OperationFailed, "TWICE": mongoerr.DatabaseDifferCase} {
		c := newTestCluster(t, 1)
		c.config.Points = c.points["config"]
		s := c.newSet("shardx")
		c.admin(s.Peer(), bson.D{{Key: "insert", Value: "old"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}, {Key: "$db", Value: "twice"}})
		reached, release := c.hangAt("config", "commit")
		added := make(chan error, 1)
		go func() { added <- c.add("shardx", "shardx:27018", s) }()
		reached()
		c.run(name, `{"insert": "new", "documents": [{"_id": 1}]}`)
		release()
		if err := <-added; mongoerr.CodeOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
		c.everythingIsListed()
		c.expect(c.run(name, `{"count": "new"}`)["n"], `1`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
	}
}

// A server that freezes while it is added does not hold up the commit of a movePrimary, in whose critical section nobody reads the database; nor does a shard that
// freezes while it is asked for its size, with a removal behind it.
func TestFrozenServersHoldNoLocks(t *testing.T) {
	t.Parallel()
	for _, frozen := range []string{"addShard", "createDatabase"} {
		c := newTestCluster(t, 3)
		s, w := c.newSet("shardx"), &interposedPeer{}
		asked := map[string]string{"addShard": "shardx", "createDatabase": "shard2"}[frozen]
		c.configThrough(func(set string, to cluster.Peer) cluster.Peer {
			if set != asked {
				return to
			}
			return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
				if by := w.by.Load(); by != nil {
					return (*by)(ctx, string(m.CommandName()), func() ([]byte, error) { return to.Call(ctx, m, dst) })
				}
				return to.Call(ctx, m, dst)
			})
		})
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
		reached, release := w.held(c, "listDatabases", 1, false)
		ended, other := make(chan struct{}), c.through()
		go func() {
			defer close(ended)
			if frozen == "addShard" {
				if err := c.add("shardx", "shardx:27018", s); err != nil {
					t.Error(err)
				}
				return
			}
			c.run("admin", `{"enableSharding": "new"}`)
		}()
		reached()
		for _, x := range []struct{ db, cmd string }{
			{"admin", `{"removeShard": "shard1", "maxTimeMS": 100000}`}, {"admin", `{"removeShard": "shard1", "maxTimeMS": 100000}`}, {"admin", `{"movePrimary": "db", "to": "shard2", "maxTimeMS": 100000}`},
			{"db", `{"insert": "c", "documents": [{"_id": 2}], "maxTimeMS": 100000}`}, {"admin", `{"addShardToZone": "shard0", "zone": "z", "maxTimeMS": 100000}`},
			{"admin", `{"enableSharding": "more", "primaryShard": "shard0", "maxTimeMS": 100000}`},
		} {
			if m := other.raw(x.db, x.cmd); m["ok"] != 1.0 {
				t.Errorf("%s is frozen: %s: %v", frozen, x.cmd, m)
			}
		}
		release()
		<-ended
	}
}

// A shard that is added while users' writes are blocked blocks them before it is listed; it used to let its clients write until the config server compared
// the settings, seconds later. One that is refused after all lets them write again: nobody could drop the database for which it is refused.
func TestShardThatIsAddedBlocksUserWrites(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"", "when they are let through", "while they are blocked"} {
		refused := how != ""
		c := newTestCluster(t, 1)
		c.config.Points = c.points["config"]
		s := c.newSet("shardx")
		c.admin(s.Peer(), bson.D{{Key: "insert", Value: "old"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}, {Key: "$db", Value: "twice"}})
		c.run("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
		blocked := func(want int32) {
			t.Helper()
			n := c.admin(s.Peer(), bson.D{{Key: "count", Value: "user_writes_critical_sections"}, {Key: "query", Value: bson.D{{Key: "blockUserWrites", Value: true}}}, {Key: "$db", Value: "config"}})["n"]
			if n != want {
				t.Errorf("refused %s: %v sections block users' writes, want %d", how, n, want)
			}
		}
		reached, release := c.hangAt("config", "commit")
		added := make(chan error, 1)
		go func() { added <- c.add("shardx", "shardx:27018", s) }()
		reached()
		blocked(1)
		switch how {
		case "when they are let through":
			c.run("admin", `{"setUserWriteBlockMode": 1, "global": false}`)
			c.run("twice", `{"insert": "new", "documents": [{"_id": 1}]}`)
		case "while they are blocked": // the database has been moved from elsewhere, for example
			entry := bson.D{{Key: "_id", Value: "twice"}, {Key: "primary", Value: "shard0"}, {Key: "version", Value: bson.D{{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}, {Key: "timestamp", Value: bson.Timestamp{T: 1}}, {Key: "lastMod", Value: int32(1)}}}}
			c.admin(c.confP, bson.D{{Key: "insert", Value: "databases"}, {Key: "documents", Value: bson.A{entry}}, {Key: "$db", Value: "config"}})
		}
		release()
		if err := <-added; (err != nil) != refused {
			t.Errorf("addShard: %v", err)
		}
		blocked(map[bool]int32{false: 1}[refused])
	}
}
