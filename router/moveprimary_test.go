package router_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fillDatabase creates a database on shard0 with collections of each kind.
func (c *testCluster) fillDatabase() {
	c.t.Helper()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("s", 1, 20)
	c.insertKeys("plain", 1, 3000)
	c.run("db", `{"createIndexes": "plain", "indexes": [{"key": {"k": 1}, "name": "k_1", "unique": true}]}`)
	c.run("db", `{"create": "capped", "capped": true, "size": 100000, "max": 5}`)
	c.insertKeys("capped", 1, 10)
	c.run("db", `{"create": "v", "viewOn": "plain", "pipeline": [{"$match": {"k": {"$gte": 0}}}]}`)
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.run("db", `{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:00:00Z"}, "m": 1, "x": 5}]}`)
	c.run("db", `{"create": "empty", "validator": {"k": {"$exists": true}}}`)
}

// databaseIs fails the test if the database is not what fillDatabase created, with the given primary shard.
func (c *testCluster) databaseIs(primary string) {
	c.t.Helper()
	for coll, want := range map[string]int{"s": 20, "plain": 3000, "capped": 5, "v": 1500, "ts": 1, "empty": 0} {
		if got := len(c.all("db", fmt.Sprintf(`{"find": %q, "maxTimeMS": 100000}`, coll))); got != want {
			c.t.Errorf("%d documents in %s, want %d", got, coll, want)
		}
	}
	c.expect(get(c.all("config", `{"find": "databases"}`)[0], "primary"), fmt.Sprintf("%q", primary))
	c.expect(len(c.all("db", `{"listIndexes": "plain"}`)), `2`)
	var names []string
	for _, d := range c.all("db", `{"listCollections": 1, "nameOnly": true}`) {
		names = append(names, get(d, "name").(string))
	}
	slices.Sort(names)
	if got, want := fmt.Sprint(names), "[capped empty plain s system.buckets.ts system.views ts v]"; got != want {
		c.t.Errorf("the collections are %s, want %s", got, want)
	}
	for id := range c.shards {
		if id != primary {
			for _, coll := range []string{"plain", "capped", "empty", "system.views", "system.buckets.ts"} {
				if c.server[id].Node.Engine.Catalog().Lookup("db."+coll) != nil {
					c.t.Errorf("%s is left on %s", coll, id)
				}
			}
		}
	}
	if m := c.raw("db", `{"insert": "empty", "documents": [{"x": 1}]}`); m["writeErrors"] == nil {
		c.t.Errorf("the validator was not copied: %v", m)
	}
}

// A database moves to another shard with all unsharded collections, and back; routers with an older placement find it. Retryable
// writes executed before are known there.
func TestMovePrimary(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.fillDatabase()
	other := c.through()
	other.expect(other.counted("plain", 1), `3000`)
	const inc = `{"update": "plain", "updates": [{"q": {"_id": 7}, "u": {"$inc": {"n": 1}}}], "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}}`
	c.run("db", inc)
	for _, to := range []string{"shard1", "shard2", "shard2", "shard0"} {
		c.run("admin", fmt.Sprintf(`{"movePrimary": "db", "to": %q}`, to))
		c.leftOver()
		c.databaseIs(to)
		other.run("db", `{"update": "plain", "updates": [{"q": {"_id": 8}, "u": {"$inc": {"n": 1}}}]}`)
		c.run("db", inc)
	}
	c.expect(c.all("db", `{"find": "plain", "filter": {"_id": {"$in": [7, 8]}}, "projection": {"n": 1}, "sort": {"_id": 1}}`), `[{"_id":7,"n":1},{"_id":8,"n":4}]`)
	for cmd, code := range map[string]int32{
		`{"movePrimary": "db", "to": "nowhere"}`:   int32(mongoerr.ShardNotFound),
		`{"movePrimary": "db"}`:                    int32(mongoerr.InvalidOptions),
		`{"movePrimary": "admin", "to": "shard1"}`: int32(mongoerr.InvalidOptions),
		`{"movePrimary": "none", "to": "shard1"}`:  int32(mongoerr.NamespaceNotFound),
		`{"movePrimary": "none", "to": "shard0"}`:  int32(mongoerr.NamespaceNotFound), // where a router looks for a database that does not exist: it was ok
	} {
		if m := c.raw("admin", cmd); m["code"] != code {
			t.Errorf("%s: %v", cmd, m)
		}
	}
}

// The donor's primary changes at each phase: the database is completely on the old shard or the new one.
func TestMovePrimaryAtEveryPhase(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.fillDatabase()
	at, to := "shard0", "shard1"
	for _, phase := range []string{"clone", "blockWrites", "enterCriticalSection", "commit", "clean", "exitCriticalSection", "done"} {
		m := c.atPhase(at, phase, "admin", fmt.Sprintf(`{"movePrimary": "db", "to": %q}`, to))
		if m["ok"] != 1.0 && m["code"] != int32(mongoerr.HostUnreachable) {
			t.Errorf("%s: %v", phase, m)
		}
		c.run("admin", fmt.Sprintf(`{"movePrimary": "db", "to": %q, "maxTimeMS": 100000}`, to))
		c.leftOver()
		c.databaseIs(to)
		at, to = to, at
	}
}

// A new primary continues with the history of sessions where the one that made the clone had stopped. It used to read all of it again, with
// writes blocked.
func TestMovePrimaryGoesOnWithTheHistory(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`)
	const sessions = 300
	inc := func(session int) bson.M {
		return c.run("db", asSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, session, 1))
	}
	for i := range sessions {
		inc(i)
	}
	var adopted, blocked atomic.Int64
	donor := c.shards["shard0"]
	c.between("shard1", func(to cluster.Peer) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if string(m.CommandName()) == "_shardsvrAdoptSessions" {
				n := int64(value.Count(value.Lookup(m.Body, "sessions").Doc()))
				adopted.Add(n)
				if c.admin(donor, bson.D{{Key: "count", Value: "collection_critical_sections"}, {Key: "$db", Value: "config"}})["n"] != int32(0) {
					blocked.Add(n)
				}
			}
			return to.Call(ctx, m, dst)
		})
	})
	c.atPhase("shard0", "blockWrites", "admin", `{"movePrimary": "db", "to": "shard1"}`)
	c.run("admin", `{"movePrimary": "db", "to": "shard1", "maxTimeMS": 100000}`)
	c.leftOver()
	if a, b := adopted.Load(), blocked.Load(); a != sessions || b != 0 {
		t.Errorf("%d entries were sent, %d of them with writes blocked; want %d and 0", a, b, sessions)
	}
	for _, i := range []int{0, sessions - 1} {
		c.expect(inc(i)["retriedStmtIds"], `[0]`)
	}
}

// A move that fails leaves the database where it was, and nothing on the other shard.
func TestFailedMovePrimaryIsUndone(t *testing.T) {
	c := newTestCluster(t, 2)
	var refused atomic.Value
	refused.Store("")
	c.interposed("shard1").through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if refused.CompareAndSwap(name, "") {
			return nil, mongoerr.New(mongoerr.CannotCreateIndex, "refused")
		}
		return call()
	})
	c.fillDatabase()
	for _, name := range []string{"_shardsvrParticipantBlock", "_shardsvrCreateCollectionParticipant", "_shardsvrMovePrimaryStore", "_shardsvrAdoptSessions"} {
		refused.Store(name)
		if name == "_shardsvrAdoptSessions" {
			c.run("db", `{"update": "plain", "updates": [{"q": {"_id": 7}, "u": {"$inc": {"n": 1}}}], "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}}`)
		}
		if m := c.raw("admin", `{"movePrimary": "db", "to": "shard1"}`); m["code"] != int32(mongoerr.CannotCreateIndex) {
			t.Errorf("%s: %v", name, m)
		}
		c.leftOver()
		c.databaseIs("shard0")
	}
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	c.databaseIs("shard1")
}

// A commit that was sent by an earlier primary arrives after the one that is refused, and before the move is undone: the undo has the last word, and the database stays whole.
func TestLateCommitOfAMovePrimaryIsReverted(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	c := newHookedCluster(t, 2, clusterHooks{peer: func(set string, s *shardnode.Server) cluster.Peer {
		to := s.Peer()
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if string(m.CommandName()) != "_configsvrCommitMovePrimary" || sent.Add(1) > 1 {
				return to.Call(ctx, m, dst)
			}
			if _, err := to.Call(ctx, m, nil); err != nil {
				t.Error(err)
			}
			return dst, mongoerr.New(mongoerr.IllegalOperation, "refused")
		})
	}})
	c.fillDatabase()
	if m := c.raw("admin", `{"movePrimary": "db", "to": "shard1"}`); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("%v", m)
	}
	c.leftOver()
	c.databaseIs("shard0")
	c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	c.databaseIs("shard1")
}

// A shard that is the primary shard of a database, and has collections that were moved there or unsharded, of that database and of another,
// is drained and removed during writes: none is lost. The balancer moves chunks and such collections.
func TestPrimaryShardIsRemoved(t *testing.T) {
	c := newTestCluster(t, 3)
	c.fillDatabase()
	c.run("admin", `{"enableSharding": "other", "primaryShard": "shard1"}`)
	c.run("other", `{"insert": "moved", "documents": [{"_id": 1}]}`)
	c.shardedAs("unsharded", 1, 10)
	c.run("admin", `{"moveCollection": "other.moved", "toShard": "shard0"}`)
	c.run("admin", `{"unshardCollection": "db.unsharded", "toShard": "shard0"}`)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	written := 0
	names := []string{"db.plain", "db.s", "db.unsharded", "other.moved"}
	wg.Go(func() {
		for ; ; written++ {
			select {
			case <-quit:
				return
			default:
			}
			for _, ns := range names {
				db, coll := cluster.SplitNS(ns)
				if m := c.raw(db, fmt.Sprintf(`{"insert": %q, "documents": [{"_id": %d, "k": %d, "late": true}]}`, coll, 10000+written, 10000+written)); m["ok"] != 1.0 || m["writeErrors"] != nil {
					t.Errorf("a write is refused: %v", m)
					return
				}
			}
		}
	})
	m := c.run("admin", `{"removeShard": "shard0"}`)
	c.expect(m["dbsToMove"], `["db"]`)
	c.expect(m["collectionsToMove"], `["db.unsharded","other.moved"]`)
	c.expect(get(c.run("admin", `{"removeShard": "shard0"}`)["remaining"], "collectionsToMove"), `2`)
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	if m := c.raw("admin", `{"movePrimary": "db", "to": "shard0"}`); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("a move to a shard that is drained: %v", m)
	}
	end := time.Now().Add(60 * time.Second)
	for m["state"] != "completed" {
		if _, err := c.config.BalancerRound(t.Context()); err != nil {
			t.Log(err)
		}
		if m = c.run("admin", `{"removeShard": "shard0"}`); time.Now().After(end) {
			t.Fatalf("it is not drained: %v", m)
		}
	}
	close(quit)
	wg.Wait()
	for _, ns := range names {
		db, coll := cluster.SplitNS(ns)
		if got := len(c.all(db, fmt.Sprintf(`{"find": %q, "filter": {"late": true}}`, coll))); got != written {
			t.Errorf("%d of %d writes are in %s", got, written, ns)
		}
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	t.Logf("%d writes", written)
}

// A shard is not removed before the resharding that took the last collection off it has ended there: the end could not be reported to it any
// more, and no other resharding would begin.
func TestShardIsRemovedAfterResharding(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	c.insertKeys("c", 1, 10)
	c.run("admin", `{"moveCollection": "db.c", "toShard": "shard0"}`)
	c.run("admin", `{"removeShard": "shard0"}`)
	const point = "reshardingPauseCoordinatorAtState"
	c.config.Points = c.points["config"]
	entered, _ := c.points["config"].Configure(point, value.NewString("alwaysOn"), value.Doc(value.F("state", value.NewString("done"))))
	done := make(chan bson.M, 1)
	go func() { done <- c.raw("admin", `{"moveCollection": "db.c", "toShard": "shard1"}`) }()
	if err := c.points["config"].Register(point).WaitEntered(t.Context(), entered+1); err != nil {
		t.Fatal(err)
	}
	if m := c.run("admin", `{"removeShard": "shard0"}`); m["state"] != "ongoing" {
		t.Fatalf("it is removed before the resharding has ended: %v", m)
	}
	if _, err := c.points["config"].Configure(point, value.NewString("off"), nil); err != nil {
		t.Fatal(err)
	}
	c.expect((<-done)["ok"], `1.0`)
	c.expect(c.run("admin", `{"removeShard": "shard0"}`)["state"], `"completed"`)
	c.expect(c.counted("c", 1), `10`)
}

// Change streams of the database return the event of a movePrimary once, also if the coordinating shard has another primary meanwhile.
func TestMovePrimaryEvent(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("plain", 1, 4)
	spec := bson.D{{Key: "showExpandedEvents", Value: true}}
	cur := c.cmd("db", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: spec}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D)
	s := &streamOf{c: c, coll: "$cmd.aggregate"}
	s.take(cur, "firstBatch")
	c.atPhase("shard0", "exitCriticalSection", "admin", `{"movePrimary": "db", "to": "shard1"}`)
	c.leftOver()
	var told []any
	for _, e := range s.rest(1) {
		if kind := field(e, "operationType"); kind != "movePrimary" {
			t.Errorf("an event %v", e)
		}
		told = append(told, field(e, "ns"), field(e, "operationDescription"))
	}
	c.expect(told, `[{"db":"db"},{"from":"shard0","to":"shard1"}]`)
}

// movePrimary takes any name of a shard, and the catalog gets its id.
func TestMovePrimaryToANameOfAShard(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	host := get(c.all("config", `{"find": "shards", "filter": {"_id": "shard1"}}`)[0], "host")
	for range 2 { // the second one finds it there
		c.run("admin", fmt.Sprintf(`{"movePrimary": "db", "to": %q}`, host))
		c.expect(get(c.all("config", `{"find": "databases", "filter": {"_id": "db"}}`)[0], "primary"), `"shard1"`)
	}
	other := &msg.ShardMovePrimary{DB: "db", To: fmt.Sprint(get(c.all("config", `{"find": "shards", "filter": {"_id": "shard0"}}`)[0], "host"))}
	if _, err := cluster.Run(t.Context(), c.shards["shard1"], msg.Doc(other)); mongoerr.CodeOf(err) != mongoerr.ShardNotFound {
		t.Errorf("a shard that is not named by its id: %v", err)
	}
}
