package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The primary of a participant, or of the config server, changes before one of a coordinator's phases, and then the coordinator's own: each DDL
// is completed all the same, and nothing is left of it.
func TestParticipantsStepDownAtEveryPhase(t *testing.T) {
	t.Parallel()
	changes := []string{"freezeMigrations", "checkShards", "updateShards", "unfreezeMigrations"}
	states := []string{"initializing", "preparing-to-donate", "cloning", "applying", "blocking-writes", "committing", "done"} // of a resharding, on the config server
	for _, x := range []struct {
		db, cmd string
		phases  []string
	}{
		{"db", `{"drop": "c"}`, []string{"enterCriticalSection", "dropCollection", "releaseCriticalSection"}},
		{"admin", `{"renameCollection": "db.c", "to": "db.d", "dropTarget": true}`, []string{"blockCrudAndRename", "renameMetadata", "unblockCRUD"}},
		{"db", `{"convertToCapped": "moved", "size": 100000}`, []string{"acquireCriticalSection", "copyCollection", "convertCollection", "releaseCriticalSection"}},
		{"admin", `{"shardCollection": "db.plain", "key": {"k": 1}}`, []string{"enterWriteCriticalSection", "createCollection", "enterCriticalSection", "commit", "exitCriticalSection"}},
		{"admin", `{"refineCollectionShardKey": "db.c", "key": {"k": "hashed", "from": 1}}`, []string{"freezeMigrations", "blockCrud", "remoteIndexValidation", "commit", "releaseCritSec", "resumeMigrations"}},
		{"db", `{"collMod": "c", "validator": {"k": {"$exists": true}}}`, changes},
		{"db", `{"createIndexes": "c", "indexes": [{"key": {"from": 1}, "name": "from"}]}`, changes},
		{"db", `{"dropIndexes": "c", "index": "kf"}`, changes},
		{"admin", `{"moveCollection": "db.plain", "toShard": "shard0"}`, states},
		{"admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`, states},
		{"admin", `{"unshardCollection": "db.c", "toShard": "shard1"}`, states},
		{"admin", `{"untrackUnshardedCollection": "db.home"}`, []string{"enterCriticalSection", "commit", "exitCriticalSection"}},
		{"admin", `{"movePrimary": "db", "to": "shard1"}`, []string{"clone", "blockWrites", "enterCriticalSection", "commit", "clean", "exitCriticalSection"}},
		{"db", `{"dropDatabase": 1}`, []string{"freezeCollections", "enterCriticalSection", "dropDatabase", "releaseCriticalSection"}},
	} {
		c := newTestCluster(t, 3)
		c.config.Points = c.points["config"]
		for _, phase := range x.phases {
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
			c.shardedAs("c", 1, 10)
			c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": "hashed", "from": 1}, "name": "kf"}]}`)
			for _, plain := range []string{"moved", "plain", "home"} {
				c.insertKeys(plain, 1, 10)
			}
			c.run("db", `{"createIndexes": "plain", "indexes": [{"key": {"k": 1}, "name": "k"}]}`)
			c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
			for _, to := range []string{"shard1", "shard2"} {
				c.run("admin", fmt.Sprintf(`{"moveCollection": "db.home", "toShard": %q}`, to))
			}
			at := []string{"shard2", hangBeforePhase, "phase"}
			if slices.Contains(states, phase) {
				at = []string{"config", "reshardingPauseCoordinatorAtState", "state"}
			}
			reached, release := c.hangOn(at[0], at[1], at[2], phase)
			answer := make(chan bson.M, 1)
			go func() { answer <- c.raw(x.db, x.cmd) }()
			reached()
			for _, other := range []string{"shard0", "shard1"} {
				c.restart(other)
			}
			c.conf.Node.Services.StepDown()
			if err := c.conf.Node.Services.StepUp(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			release()
			select {
			case m := <-answer:
				if m["ok"] != 1.0 {
					t.Errorf("%s at %s: %v", x.cmd, phase, m)
				}
			case <-time.After(time.Minute):
				t.Fatalf("no reply to %s at %s", x.cmd, phase)
			}
			c.leftOver()
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
			for _, coll := range []string{"c", "d", "moved", "plain", "home"} {
				if n := c.counted(coll, 1); n != 0 && n != 10 {
					t.Errorf("%s at %s: %s has %d documents", x.cmd, phase, coll, n)
				}
			}
			c.run("db", `{"dropDatabase": 1}`)
		}
	}
}

// Two concurrent DDL commands on one name: they are executed one after the other, or one is refused, and the result is consistent.
func TestDDLBesideDDL(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	if err := c.r.Params.SetStartup("enableTestCommands", "1"); err != nil {
		t.Fatal(err)
	}
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	commands := [][2]string{
		{"db", `{"drop": "c"}`}, {"admin", `{"renameCollection": "db.c", "to": "db.d", "dropTarget": true}`}, {"db", `{"collMod": "c", "validator": {"k": {"$exists": true}}}`},
		{"db", `{"convertToCapped": "c", "size": 100000}`}, {"admin", `{"moveCollection": "db.c", "toShard": "shard0"}`}, {"admin", `{"shardCollection": "db.c", "key": {"k": "hashed"}}`},
		{"db", `{"create": "c"}`}, {"db", `{"createUnsplittableCollection": "c"}`}, {"admin", `{"untrackUnshardedCollection": "db.c"}`}, {"admin", `{"movePrimary": "db", "to": "shard0"}`},
		{"admin", `{"unshardCollection": "db.c", "toShard": "shard0"}`}, {"db", `{"dropDatabase": 1}`},
	}
	for i := range commands {
		for j := range i {
			if c.raw("admin", `{"movePrimary": "db", "to": "shard1"}`)["ok"] != 1.0 {
				c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
			}
			c.raw("db", `{"drop": "c"}`)
			c.insertKeys("c", 1, 10)
			c.run("admin", `{"moveCollection": "db.c", "toShard": "shard0"}`)
			answers := make(chan string, 2)
			for _, x := range [][2]string{commands[i], commands[j]} {
				go func() {
					m := c.raw(x[0], x[1])
					if code, _ := m["code"].(int32); code == int32(mongoerr.InternalError) || code == int32(mongoerr.UnknownError) {
						answers <- fmt.Sprintf("%s: %v", x[1], m)
						return
					}
					answers <- ""
				}()
			}
			for range 2 {
				select {
				case odd := <-answers:
					if odd != "" {
						t.Errorf("%s beside %s: %s", commands[i][1], commands[j][1], odd)
					}
				case <-time.After(time.Minute):
					t.Fatalf("%s and %s: one gets no reply", commands[i][1], commands[j][1])
				}
			}
			c.leftOver()
			if bad := c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); len(bad) > 0 {
				t.Errorf("%s beside %s: %s", commands[i][1], commands[j][1], show(bad))
			}
			for _, coll := range []string{"c", "d"} {
				if n := c.counted(coll, 1); n != 0 && n != 10 {
					t.Errorf("%s beside %s: %s has %d documents", commands[i][1], commands[j][1], coll, n)
				}
			}
			c.raw("db", `{"drop": "d"}`)
		}
	}
}

// The longest namespaces: 255 bytes, and 235 bytes for sharded collections.
func TestLongNames(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	long := func(n int, fill string) string { return strings.Repeat(fill, n-len("db.")) }
	a, b := long(255, "a"), long(255, "b")
	c.insertKeys(a, 1, 10)
	if m := c.raw("db", fmt.Sprintf(`{"create": %q}`, a+"a")); m["code"] != int32(mongoerr.InvalidNamespace) {
		t.Errorf("a name of 256 bytes: %v", m)
	}
	c.run("admin", fmt.Sprintf(`{"renameCollection": "db.%s", "to": "db.%s"}`, a, b))
	c.run("db", fmt.Sprintf(`{"aggregate": %q, "pipeline": [{"$out": %q}], "cursor": {}}`, b, a))
	c.run("admin", fmt.Sprintf(`{"moveCollection": "db.%s", "toShard": "shard1"}`, a))
	c.expect(c.counted(a, 1), `10`)
	c.run("db", fmt.Sprintf(`{"collMod": %q, "validator": {"k": {"$exists": true}}}`, a))
	if m := c.raw("db", fmt.Sprintf(`{"convertToCapped": %q, "size": 4096}`, a)); m["code"] != int32(mongoerr.InvalidNamespace) {
		t.Errorf("its copy has no name: %v", m)
	}
	for _, n := range []int{235, 236} {
		name, code := long(n, "s"), int32(0)
		m := c.raw("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"k": 1}}`, name))
		if n > 235 {
			code = int32(mongoerr.InvalidNamespace)
		}
		if got, _ := m["code"].(int32); got != code {
			t.Errorf("a sharded one of %d bytes: %v", n, m)
		}
	}
	c.shardedAs("short", 1, 4)
	if m := c.raw("admin", fmt.Sprintf(`{"renameCollection": "db.short", "to": "db.%s"}`, long(236, "r"))); m["code"] != int32(mongoerr.InvalidNamespace) {
		t.Errorf("a sharded one renamed to 236 bytes: %v", m)
	}
	c.leftOver()
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.run("db", `{"dropDatabase": 1}`)
}
