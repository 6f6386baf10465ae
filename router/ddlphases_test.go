package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

const hangBeforePhase = "hangBeforeRunningShardingDDLPhase"

// atPhase sends a command whose coordinator, the shard, steps down before a phase and up again, and returns its reply, or nil
// if its own primary stepped down first.
func (c *testCluster) atPhase(shard, phase, db, cmd string) (reply bson.M) {
	c.t.Helper()
	entered, _ := c.points[shard].Configure(hangBeforePhase, value.NewString("alwaysOn"), value.Doc(value.F("phase", value.NewString(phase))))
	answer := make(chan bson.M, 1)
	go func() { answer <- c.raw(db, cmd) }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := c.points[shard].Register(hangBeforePhase).WaitEntered(ctx, entered+1); err != nil {
		c.t.Fatalf("%s was not reached: %v", phase, err)
	}
	c.restart(shard)
	if _, err := c.points[shard].Configure(hangBeforePhase, value.NewString("off"), nil); err != nil {
		c.t.Fatal(err)
	}
	select {
	case reply = <-answer:
	case <-time.After(2 * time.Minute):
		c.t.Fatalf("no reply to %s", cmd)
	}
	return reply
}

// leftOver fails the test if a state document or a critical section remains.
func (c *testCluster) leftOver() {
	c.t.Helper()
	for id, p := range c.shards {
		for _, coll := range []string{"system.sharding_ddl_coordinators", "collection_critical_sections", "movePrimaryRecipients"} {
			await.State(c.t, fmt.Sprintf("no document is left in %s of %s", coll, id), func() (any, bool) {
				n := c.admin(p, bson.D{{Key: "count", Value: coll}, {Key: "$db", Value: "config"}})["n"]
				return n, n == int32(0)
			})
		}
	}
}

// If the primary changes while a DDL waits for the lock of another one, it does not get the lock before the other one continues on the new primary.
func TestStoredDDLHasItsLocksFirst(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	c.shardedAs("c", 1, 10)
	reached, release := c.hangAt("shard1", "enterCriticalSection")
	dropped, created := make(chan bson.M, 1), make(chan bson.M, 1)
	go func() { dropped <- c.raw("db", `{"drop": "c"}`) }()
	reached()
	go func() {
		m := c.raw("db", `{"create": "c", "capped": true, "size": 4096}`)
		for m["code"] == int32(mongoerr.InterruptedDueToReplStateChange) {
			m = c.raw("db", `{"create": "c", "capped": true, "size": 4096}`)
		}
		created <- m
	}()
	c.until("both have locked the database", func() bool {
		return strings.Contains(c.locks("shard1"), "createCollection")
	})
	c.restart("shard1")
	select {
	case m := <-created:
		t.Errorf("it is created during the drop: %v", m)
	case <-time.After(100 * time.Millisecond):
	}
	release()
	if m := <-dropped; m["ok"] != 1.0 {
		t.Error(m)
	}
	if m := <-created; m["ok"] != 1.0 {
		t.Error(m)
	}
	c.leftOver()
}

// The primary of the coordinating shard changes at each phase of a drop: the drop completes, a repeated one finds nothing,
// and the name can be used.
func TestDropAtEveryPhase(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	for _, phase := range []string{"enterCriticalSection", "dropCollection", "releaseCriticalSection", "done"} {
		c.shardedAs("c", 1, 10)
		m := c.atPhase("shard2", phase, "db", `{"drop": "c"}`)
		if m["ok"] != 1.0 && m["code"] != int32(mongoerr.HostUnreachable) { // if its primary stepped down before the drop was done
			t.Errorf("%s: %v", phase, m)
		}
		if m := c.run("db", `{"drop": "c", "maxTimeMS": 100000}`); m["ok"] != 1.0 {
			t.Errorf("%s, again: %v", phase, m)
		}
		c.leftOver()
		for id := range c.shards {
			if n := c.onShard(id, "c"); n != 0 {
				t.Errorf("%s: %d documents are left on %s", phase, n, id)
			}
		}
		c.insertKeys("c", 2, 2)
		c.expect(c.counted("c", 2), `2`)
		c.run("db", `{"drop": "c", "maxTimeMS": 100000}`)
	}
	c.expect(c.all("config", `{"find": "chunks"}`), `[]`)
}

// Two identical drops share one run; a different operation on the name gets an error. While it runs, currentOp and lockInfo of
// its shard show it.
func TestDropsAreJoined(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("alwaysOn"), value.Doc(value.F("phase", value.NewString("dropCollection")))); err != nil {
		t.Fatal(err)
	}
	answers := make(chan bson.M, 2)
	for range 2 {
		go func() { answers <- c.raw("db", `{"drop": "c", "comment": "two of them"}`) }()
	}
	if err := c.points["shard0"].Register(hangBeforePhase).WaitEntered(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	c.until("both drops are at the shard", func() bool {
		ops := c.admin(c.shards["shard0"], bson.D{{Key: "currentOp", Value: 1}, {Key: "command.comment", Value: "two of them"}, {Key: "command._shardsvrDropCollection", Value: bson.D{{Key: "$exists", Value: true}}}, {Key: "$db", Value: "admin"}})
		return len(ops["inprog"].(bson.A)) == 2
	})
	m := c.raw("db", `{"drop": "c", "collectionUUID": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}`)
	if m["code"] != int32(mongoerr.ConflictingOperationInProgress) {
		t.Errorf("another drop: %v", m)
	}
	ops := c.admin(c.shards["shard0"], bson.D{{Key: "currentOp", Value: 1}, {Key: "desc", Value: "ShardingDDLCoordinator"}, {Key: "$db", Value: "admin"}})
	in, _ := ops["inprog"].(bson.A)
	if len(in) != 1 || get(in[0], "ns") != "db.c" || get(in[0], "currentPhase") != "dropCollection" {
		t.Errorf("currentOp: %v", ops)
	}
	locks := fmt.Sprint(c.admin(c.shards["shard0"], bson.D{{Key: "lockInfo", Value: 1}, {Key: "$db", Value: "admin"}})["lockInfo"])
	for _, want := range []string{"{DDLDatabase, db}", "{DDLCollection, db.c}", "dropCollection"} {
		if !strings.Contains(locks, want) {
			t.Errorf("lockInfo has no %s: %s", want, locks)
		}
	}
	if m := c.raw("db", `{"find": "c", "maxTimeMS": 100}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("a read in the critical section: %v", m)
	}
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("off"), nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if m := <-answers; m["ok"] != 1.0 || m["nIndexesWas"] != int32(2) || m["ns"] != "db.c" {
			t.Errorf("%v", m)
		}
	}
	c.leftOver()
}

// Likewise a rename of each kind: the target has the documents of the source alone, on every shard.
func TestRenameAtEveryPhase(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	fill := func(coll string, sharded bool, from int) {
		if sharded {
			c.shardedAs(coll, from, 10)
		} else {
			c.insertKeys(coll, from, 10)
		}
	}
	for _, kind := range [][2]bool{{true, true}, {true, false}, {false, true}} {
		for _, phase := range []string{"blockCrudAndRename", "renameMetadata", "unblockCRUD", "done"} {
			fill("a", kind[0], 1)
			fill("b", kind[1], 2)
			m := c.atPhase("shard2", phase, "admin", `{"renameCollection": "db.a", "to": "db.b", "dropTarget": true}`)
			if m["ok"] != 1.0 && m["code"] != int32(mongoerr.HostUnreachable) {
				t.Errorf("%s: %v", phase, m)
			}
			again := c.raw("admin", `{"renameCollection": "db.a", "to": "db.b", "dropTarget": true, "maxTimeMS": 100000}`)
			if again["ok"] != 1.0 && again["code"] != int32(mongoerr.NamespaceNotFound) {
				t.Errorf("%s, again: %v", phase, again)
			}
			c.leftOver()
			if in, left := c.counted("b", 1), c.counted("b", 2)+c.counted("a", 1); in != 10 || left != 0 {
				t.Errorf("%v at %s: %d documents came, %d are left", kind, phase, in, left)
			}
			for id := range c.shards {
				if n := c.onShard(id, "a"); n != 0 {
					t.Errorf("%s: %d documents under the old name on %s", phase, n, id)
				}
			}
			if kind[0] {
				c.run("admin", `{"moveChunk": "db.b", "find": {"k": 3}, "to": "shard0"}`) // its chunks may move again
			}
			c.run("db", `{"drop": "b", "maxTimeMS": 100000}`)
		}
	}
	c.expect(c.all("config", `{"find": "chunks"}`), `[]`)
}

// Likewise a drop of a database, with collections created in it meanwhile.
func TestDropDatabaseAtEveryPhase(t *testing.T) {
	c := newTestCluster(t, 3)
	for _, phase := range []string{"freezeCollections", "enterCriticalSection", "dropDatabase", "releaseCriticalSection", "done"} {
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
		c.shardedAs("c", 1, 10)
		c.shardedAs("d", 1, 10)
		c.insertKeys("plain", 1, 10)
		m := c.atPhase("shard2", phase, "db", `{"dropDatabase": 1}`)
		if m["ok"] != 1.0 && m["code"] != int32(mongoerr.HostUnreachable) {
			t.Errorf("%s: %v", phase, m)
		}
		c.run("db", `{"dropDatabase": 1, "maxTimeMS": 100000}`)
		c.leftOver()
		for id := range c.shards {
			for _, coll := range []string{"c", "d", "plain"} {
				if n := c.onShard(id, coll); n != 0 {
					t.Errorf("%s: %d documents of %s are left on %s", phase, n, coll, id)
				}
			}
		}
		for _, coll := range []string{"databases", "collections", "chunks"} {
			c.expect(c.all("config", fmt.Sprintf(`{"find": %q}`, coll)), `[]`)
		}
	}
}

// refusesBlock makes a shard refuse one critical section each time that once is set.
func (c *testCluster) refusesBlock(shard string, once *atomic.Bool) {
	c.interposed(shard).through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "_shardsvrParticipantBlock" && once.CompareAndSwap(true, false) {
			return nil, mongoerr.New(mongoerr.Unauthorized, "refused")
		}
		return call()
	})
}

// A run that fails before its final phase is undone: the name can be used as before, and chunks move.
func TestFailedDropIsUndone(t *testing.T) {
	c := newTestCluster(t, 2)
	var refuse atomic.Bool
	c.refusesBlock("shard1", &refuse)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	refuse.Store(true)
	if m := c.raw("db", `{"drop": "c"}`); m["code"] != int32(mongoerr.Unauthorized) {
		t.Errorf("the drop answers %v", m)
	}
	c.leftOver()
	c.expect(c.counted("c", 1), `10`)
	c.insertKeys("other", 2, 2)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 3}, "to": "shard0"}`)
	c.run("db", `{"drop": "c"}`)
}

// An unknown argument of a coordinated command is refused under the command's client-facing name; the coordinator receives only
// the arguments it knows.
func TestCoordinatedCommandsRefuseUnknownArguments(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	for _, x := range []struct {
		db, cmd, text string
		code          mongoerr.Code
	}{
		{"db", `{"drop": "c", "odd": 1}`, "BSON field 'drop.odd' is an unknown field.", mongoerr.IDLUnknownField},
		{"db", `{"dropDatabase": 1, "odd": 1}`, "BSON field 'dropDatabase.odd' is an unknown field.", mongoerr.IDLUnknownField},
		{"admin", `{"renameCollection": "db.c", "to": "db.d", "odd": 1}`, "BSON field 'renameCollection.odd' is an unknown field.", mongoerr.IDLUnknownField},
		{"admin", `{"renameCollection": "db.c", "to": "db.d", "stayTemp": 1}`, "BSON field 'renameCollection.stayTemp' is the wrong type 'int', expected type 'bool'", mongoerr.TypeMismatch},
	} {
		if m := c.raw(x.db, x.cmd); m["code"] != int32(x.code) || m["errmsg"] != x.text {
			t.Errorf("%s: %v", x.cmd, m)
		}
	}
	c.run("admin", `{"renameCollection": "db.c", "to": "db.d", "stayTemp": false, "comment": "known"}`)
	c.expect(len(c.all("db", `{"find": "d"}`)), `1`)
}
