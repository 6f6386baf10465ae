package router_test

import (
	"context"
	"fmt"
	"strings"
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

const blockWrites, allowWrites = `{"setUserWriteBlockMode": 1, "global": true}`, `{"setUserWriteBlockMode": 1, "global": false}`

// blocked returns what a node's users may not do: "", "ddl" or "writes".
func (c *testCluster) blocked(p cluster.Peer) string {
	c.t.Helper()
	m := c.admin(p, bson.D{{Key: "find", Value: "user_writes_critical_sections"}, {Key: "$db", Value: "config"}})
	docs := get(m["cursor"], "firstBatch").(bson.A)
	switch {
	case len(docs) == 0:
		return ""
	case get(docs[0], "blockUserWrites") == true:
		return "writes"
	}
	return "ddl"
}

// untilBlocked waits until a shard, or the config server, has stored what is blocked.
func (c *testCluster) untilBlocked(node, want string) {
	c.t.Helper()
	p := c.shards[node]
	if node == "config" {
		p = c.confP
	}
	c.until(fmt.Sprintf("%s blocks %q", node, want), func() bool { return c.blocked(p) == want })
}

// refusedAsBlocked checks that a command fails because users are blocked.
func (c *testCluster) refusedAsBlocked(what string, m bson.M) {
	c.t.Helper()
	if m["code"] != int32(mongoerr.UserWritesBlocked) {
		c.t.Errorf("%s: %v", what, m)
	}
}

// stillWaits checks that a command has no reply yet.
func (c *testCluster) stillWaits(what string, reply <-chan bson.M) {
	c.t.Helper()
	select {
	case m := <-reply:
		c.t.Fatalf("%s is answered: %v", what, m)
	default:
	}
}

// catalogs shows the sharding catalog, and what each shard has of the databases db and other.
func (c *testCluster) catalogs() string {
	var b strings.Builder
	for _, coll := range []string{"databases", "collections", "chunks"} {
		fmt.Fprintln(&b, show(c.all("config", `{"find": "`+coll+`", "filter": {"_id": {"$ne": "config.system.sessions"}}, "sort": {"_id": 1}}`)))
	}
	for id := range len(c.shards) {
		for _, coll := range c.server[fmt.Sprint("shard", id)].Node.Engine.Catalog().All() {
			if !strings.HasPrefix(coll.NS, "db.") && !strings.HasPrefix(coll.NS, "other.") {
				continue
			}
			fmt.Fprint(&b, id, coll.NS, coll.UUID, bson.Raw(coll.Options))
			for _, x := range coll.Indexes {
				fmt.Fprint(&b, x.Name, x.Ready)
			}
			fmt.Fprintln(&b)
		}
	}
	return b.String()
}

// untilQueued waits until an operation of a shard waits for a lock.
func (c *testCluster) untilQueued(shard string) {
	c.t.Helper()
	c.until("an operation waits for a lock of "+shard, func() bool {
		ops := c.admin(c.shards[shard], bson.D{{Key: "currentOp", Value: 1}, {Key: "waitingForLock", Value: true}, {Key: "$db", Value: "admin"}})
		return len(ops["inprog"].(bson.A)) > 0
	})
}

// ddlUnderWay are operations that stop before a phase.
var ddlUnderWay = []struct{ db, cmd, phase string }{
	{"db", `{"drop": "c"}`, "dropCollection"},
	{"db", `{"dropDatabase": 1}`, "dropDatabase"},
	{"admin", `{"renameCollection": "db.c", "to": "db.d"}`, "renameMetadata"},
	{"admin", `{"shardCollection": "db.plain", "key": {"_id": 1}}`, "createCollection"},
	{"admin", `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 1}}`, "commit"},
	{"admin", `{"movePrimary": "db", "to": "shard1"}`, "clone"},
	{"admin", `{"moveCollection": "db.plain", "toShard": "shard1"}`, "reshardCollection"},
	{"db", `{"collMod": "c", "validator": {"x": {"$ne": 1}}}`, "checkShards"},
	{"db", `{"dropIndexes": "c", "index": "g"}`, "checkShards"},
	{"db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "g": 1}, "name": "made"}]}`, "unfreezeMigrations"},
	{"db", `{"convertToCapped": "plain", "size": 4096}`, "convertCollection"},
}

// readyForDDL creates what one of ddlUnderWay is about.
func (c *testCluster) readyForDDL(cmd string) {
	c.t.Helper()
	c.fill(20)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g"}, {"key": {"k": 1, "g": 1}, "name": "kg"}]}`)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	c.run("other", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	if strings.Contains(cmd, "createIndexes") {
		c.run("db", `{"dropIndexes": "c", "index": "kg"}`)
	}
	if strings.Contains(cmd, "convertToCapped") { // it is a run if the catalog has the collection
		c.run("admin", `{"moveCollection": "db.plain", "toShard": "shard1"}`)
	}
}

// setUserWriteBlockMode waits for DDL that has begun, which is executed to its end on all shards, although it has them do things for it. It used to reply while the DDL went on. Meanwhile no other
// DDL begins, and users write.
func TestTheBlockWaitsForDDL(t *testing.T) {
	t.Parallel()
	for _, x := range ddlUnderWay {
		t.Run(x.cmd, func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.readyForDDL(x.cmd)
			reached, release := c.hangAt("shard0", x.phase)
			ddl := c.later(x.db, x.cmd)
			reached()
			block := c.later("admin", blockWrites)
			c.untilBlocked("shard0", "ddl")
			c.untilBlocked("shard1", "ddl")
			c.refusedAsBlocked("new DDL", c.raw("other", `{"create": "fresh"}`))
			c.refusedAsBlocked("a new database", c.raw("new", `{"create": "fresh"}`))
			c.run("other", `{"insert": "plain", "documents": [{"_id": 2}]}`)
			c.stillWaits("the block", block)
			c.expect(c.blocked(c.confP), `"ddl"`)
			release()
			if m := <-ddl; m["ok"] != 1.0 {
				t.Errorf("%s: %v", x.cmd, m)
			}
			if m := <-block; m["ok"] != 1.0 {
				t.Errorf("the block: %v", m)
			}
			was := c.catalogs()
			c.leftOver()
			if now := c.catalogs(); now != was {
				t.Errorf("after the reply the catalog changed from\n%s\nto\n%s", was, now)
			}
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
			for id, p := range c.shards {
				if is := c.blocked(p); is != "writes" {
					t.Errorf("%s blocks %q", id, is)
				}
			}
			c.run("admin", allowWrites)
			c.run("other", `{"create": "fresh"}`)
		})
	}
}

// A request that was admitted before users were blocked, and gets its DDL locks after that, is refused. So is one that this shard executes alone, and that waits for the collection.
func TestDDLThatWaitsForItsLocksIsRefused(t *testing.T) {
	t.Parallel()
	for _, waiting := range []struct{ db, cmd string }{
		{"db", `{"create": "c"}`}, {"db", `{"createIndexes": "c", "indexes": [{"key": {"z": 1}, "name": "z"}]}`}, {"admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`},
		{"db", `{"dropDatabase": 1}`},
	} {
		c := newTestCluster(t, 2)
		c.fill(20)
		reached, release := c.hangAt("shard0", "dropCollection")
		drop := c.later("db", `{"drop": "c"}`)
		reached()
		second := c.later(waiting.db, waiting.cmd)
		c.untilQueued("shard0")
		block := c.later("admin", blockWrites)
		c.untilBlocked("shard0", "ddl")
		release()
		if m := <-drop; m["ok"] != 1.0 {
			t.Errorf("drop: %v", m)
		}
		c.refusedAsBlocked(waiting.cmd, <-second)
		if m := <-block; m["ok"] != 1.0 {
			t.Errorf("the block: %v", m)
		}
		c.expect(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`), `[]`)
		c.expect(len(c.all("config", `{"find": "databases", "filter": {"_id": "db"}}`)), `1`)
		if c.server["shard0"].Node.Engine.Catalog().Lookup("db.c") != nil {
			t.Errorf("%s made a collection", waiting.cmd)
		}
	}
}

// DDL that a shard executes alone has its DDL locks, and waits for a transaction that has written to the collection, when users are blocked.
func TestDDLBehindATransactionIsRefused(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	for i, cmd := range []string{`{"drop": "plain"}`, `{"collMod": "plain", "validator": {"x": {"$ne": 1}}}`} {
		was := c.catalogs()
		w := c.txnClient(i)
		if m, code := w.do("db", `{"update": "plain", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]}`, true); code != 0 {
			t.Fatal(m)
		}
		ddl := c.later("db", cmd)
		c.until(cmd+" waits for the transaction", func() bool { return fmt.Sprint(c.status("shard0", "globalLock.currentQueue.total")) != "0" })
		block := c.later("admin", blockWrites)
		c.untilBlocked("shard0", "ddl")
		c.stillWaits("the block", block)
		if m, code := w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
			t.Fatal(m)
		}
		c.refusedAsBlocked(cmd, <-ddl)
		if m := <-block; m["ok"] != 1.0 {
			t.Errorf("the block: %v", m)
		}
		if now := c.catalogs(); now != was {
			t.Errorf("%s changed the catalog from\n%s\nto\n%s", cmd, was, now)
		}
		c.run("admin", allowWrites)
	}
}

// A database is not created after users have been blocked, although its request was admitted before.
func TestDatabaseThatIsAboutToBeCreated(t *testing.T) {
	t.Parallel()
	var hold atomic.Bool
	came, free := make(chan struct{}, 9), make(chan struct{})
	c := newWatchedCluster(t, 2, func(_ string, m *wire.Message) error {
		if string(m.CommandName()) == "listDatabases" && hold.Load() {
			came <- struct{}{}
			<-free
		}
		return nil
	})
	hold.Store(true)
	insert := c.later("fresh", `{"insert": "c", "documents": [{"_id": 1}]}`)
	<-came
	hold.Store(false)
	c.run("admin", blockWrites)
	close(free)
	if m := <-insert; !strings.Contains(show(m), "User writes blocked") {
		t.Errorf("%v", m)
	}
	c.expect(c.all("config", `{"find": "databases", "filter": {"_id": "fresh"}}`), `[]`)
}

// Index builds that wait for a member, over shards or on one, are aborted, and nothing is left of them.
func TestTheBlockAbortsIndexBuilds(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	x, y := c.addSet("shardx"), c.addSet("shardy")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shardx"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "d.c", "middle": {"_id": 0}}`)
	c.run("admin", `{"moveChunk": "d.c", "find": {"_id": 1}, "to": "shardy", "_waitForDelete": true}`)
	for _, coll := range []string{"c", "plain"} {
		c.run("d", `{"insert": "`+coll+`", "documents": [{"_id": -1, "a": 1}, {"_id": 1, "a": 1}]}`)
	}
	x.lose("shardx:27020")
	y.lose("shardy:27020")
	sharded := c.builtDuring("c", "shardx", "shardy")
	plain := c.builtDuring("plain", "shardx")
	c.run("admin", blockWrites)
	for what, reply := range map[string]<-chan bson.M{"over shards": sharded, "on one": plain} {
		if m := <-reply; m["code"] != int32(mongoerr.IndexBuildAborted) || !strings.Contains(fmt.Sprint(m["errmsg"]), "setUserWriteBlockMode") {
			t.Errorf("createIndexes %s: %v", what, m)
		}
	}
	for _, id := range []string{"shardx", "shardy"} {
		if n := len(c.server[id].Node.Engine.Builds()); n > 0 {
			t.Errorf("%d builds are left on %s", n, id)
		}
		for _, ns := range []string{"d.c", "d.plain"} {
			if l := c.server[id].Node.Engine.Catalog().Lookup(ns); l != nil && l.Index("a") != nil {
				t.Errorf("the index of %s is on %s", ns, id)
			}
		}
	}
	c.leftOver()
	c.run("admin", allowWrites)
	c.run("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}], "commitQuorum": "majority", "writeConcern": {"w": 1}}`)
}

// A shard has elections while users are being blocked: one during its wait for DDL, for which its next primary waits again; and one when DDL is blocked everywhere, and writes are about to be.
func TestElectionsWhileUsersAreBlocked(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.fill(20)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	reached, release := c.hangAt("shard0", "renameMetadata")
	rename := c.later("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
	reached()
	prepared, complete := c.hangOn("config", hangBeforePhase, "phase", "storeOnConfigServer")
	block := c.later("admin", blockWrites)
	c.untilBlocked("shard0", "ddl")
	c.restart("shard0")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := c.points["shard0"].Register(hangBeforePhase).WaitEntered(ctx, 2); err != nil {
		t.Fatalf("the rename is not continued: %v", err)
	}
	c.refusedAsBlocked("new DDL", c.raw("db", `{"create": "fresh"}`))
	for range 3 {
		c.stillWaits("the block", block)
		c.expect(strings.Contains(c.coordinators(), "prepareOnShards"), `true`)
		c.run("db", `{"update": "plain", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]}`)
	}
	release()
	if m := <-rename; m["ok"] != 1.0 {
		t.Errorf("the rename: %v", m)
	}
	prepared()
	c.restart("shard1")
	c.restart("shard0")
	other := c.through() // the router begins anew, too
	c.refusedAsBlocked("new DDL after an election", other.raw("db", `{"create": "fresh"}`))
	other.run("db", `{"insert": "plain", "documents": [{"_id": 2}]}`)
	c.expect(c.blocked(c.shards["shard0"]), `"ddl"`)
	c.expect(c.status("shard0", "repl.userWriteBlockMode"), `1`)
	complete()
	if m := <-block; m["ok"] != 1.0 {
		t.Errorf("the block: %v", m)
	}
	c.expect(c.status("shard0", "repl.userWriteBlockMode"), `2`)
	c.refusedAsBlocked("DDL", c.raw("db", `{"create": "fresh"}`))
	if m := c.raw("db", `{"insert": "plain", "documents": [{"_id": 3}]}`); !strings.Contains(show(m), "User writes blocked") {
		t.Errorf("a write: %v", m)
	}
}

// status returns a field of a shard's serverStatus.
func (c *testCluster) status(shard, field string) any {
	return fieldAt(c.admin(c.shards[shard], bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}}), field)
}

// What a deposed primary of the config server sends late, when its successor has completed the operation and others have followed, is refused: a shard stores what the config server has. It
// used to be set back on this shard alone, until the settings were compared.
func TestLateSettingsAreRefused(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.fill(20)
	part := func(global bool, reason, phase string) msg.Message {
		return &msg.ShardSetUserWriteBlock{Global: global, Reason: reason, Phase: phase}
	}
	const why, other = "Unspecified", "DiskUseThresholdExceeded"
	prepare, complete, end := part(true, why, msg.PrepareBlock), part(true, why, msg.CompleteBlock), part(false, why, msg.CompleteBlock)
	older := &msg.SetUserWriteBlock{Global: true, Reason: why} // of a config server of an earlier version
	check := func(when, blocked string, late map[bool][]msg.Message) {
		t.Helper()
		for accepted, list := range late {
			for _, m := range list {
				_, err := cluster.Run(t.Context(), c.shards["shard1"], msg.Doc(m))
				if want := map[bool]mongoerr.Code{false: mongoerr.ConflictingOperationInProgress}[accepted]; mongoerr.CodeOf(err) != want {
					t.Errorf("%s %s: %v", when, value.ShowDoc(msg.Doc(m)), err)
				}
				if is := c.blocked(c.shards["shard1"]); is != blocked {
					t.Errorf("%s %s makes the shard block %q", when, value.ShowDoc(msg.Doc(m)), is)
				}
			}
		}
	}
	check("at first", "", map[bool][]msg.Message{false: {prepare, complete, older, part(true, other, msg.PrepareBlock)}, true: {end, part(false, other, msg.CompleteBlock)}})
	reached, release := c.hangOn("config", hangBeforePhase, "phase", "storeOnConfigServer")
	block := c.later("admin", blockWrites)
	reached()
	check("before writes are blocked", "ddl", map[bool][]msg.Message{false: {complete, older, end, part(true, other, msg.PrepareBlock)}, true: {prepare}})
	release()
	if m := <-block; m["ok"] != 1.0 {
		t.Errorf("the block: %v", m)
	}
	check("while writes are blocked", "writes", map[bool][]msg.Message{false: {end, part(true, other, msg.CompleteBlock)}, true: {prepare, complete, older}})
	c.run("admin", allowWrites)
	check("afterwards", "", map[bool][]msg.Message{false: {prepare, complete, older}, true: {end}})
	version := func() string {
		m := c.admin(c.shards["shard1"], bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}, {Key: "$db", Value: "admin"}})
		return show(get(m["featureCompatibilityVersion"], "version"))
	}
	for _, x := range []struct{ set, late string }{{"", "8.0"}, {"8.0", "8.2"}, {"8.2", "8.0"}} {
		if x.set != "" {
			c.run("admin", `{"setFeatureCompatibilityVersion": "`+x.set+`", "confirm": true}`)
		}
		was := version()
		_, err := cluster.Run(t.Context(), c.shards["shard1"], msg.Doc(&msg.SetFeatureVersion{Version: x.late, Confirm: true}))
		if now := version(); mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress || now != was {
			t.Errorf("version %s at %s: %v, and then %s", x.late, was, err, now)
		}
	}
}

// The first message of a primary arrives late, as on a slow connection, after a successor has blocked users and let them write again.
func TestLateBlockOfADeposedPrimary(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"prepareOnShards", "storeOnShards"} {
		late := &latePeer{command: "_shardsvrSetUserWriteBlockMode", came: make(chan struct{}), free: make(chan struct{}), done: make(chan error, 1)}
		var armed atomic.Bool
		c := newHookedCluster(t, 2, clusterHooks{peer: func(set string, s *shardnode.Server) cluster.Peer {
			if set != "shard1" {
				return s.Peer()
			}
			late.Peer = s.Peer()
			return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
				if armed.Load() {
					return late.Call(ctx, m, dst)
				}
				return late.Peer.Call(ctx, m, dst)
			})
		}})
		c.fill(20)
		reached, release := c.hangOn("config", hangBeforePhase, "phase", phase)
		first := c.later("admin", blockWrites)
		reached()
		armed.Store(true)
		release()
		c.until("the message is on its way", func() bool { return closed(late.came) })
		c.depose()
		<-first
		c.reshardings()
		c.run("admin", blockWrites)
		c.run("admin", allowWrites)
		if err := late.release(); mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
			t.Errorf("%s: the late message: %v", phase, err)
		}
		c.expect(c.blocked(c.shards["shard1"]), `""`)
		c.run("db", `{"insert": "c", "documents": [{"_id": 100, "k": 100}]}`)
	}
}
