package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// countHistory counts the entries of sessions' history that donors send, and the bytes of the largest reply.
func (c *testCluster) countHistory() (entries, largest *atomic.Int64) {
	entries, largest = new(atomic.Int64), new(atomic.Int64)
	for id := range c.shards {
		c.between(id, func(p cluster.Peer) cluster.Peer {
			return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
				at := len(dst)
				out, err := p.Call(ctx, m, dst)
				if err == nil && string(m.CommandName()) == "_getNextSessionMods" {
					entries.Add(int64(value.Count(value.Lookup(out[at:], "oplog").Doc())))
					largest.Store(max(largest.Load(), int64(len(out)-at)))
				}
				return out, err
			})
		})
	}
	return entries, largest
}

// asSession makes a command a retryable write of one of many sessions.
func asSession(cmd string, session, number int) string {
	return fmt.Sprintf(`%s, "lsid": {"id": {"$uuid": "00000000-0000-4000-8000-%012d"}}, "txnNumber": {"$numberLong": "%d"}}`, cmd[:len(cmd)-1], session, number)
}

// adopted counts the entries of other shards' history in a shard's oplog.
func (c *testCluster) adopted(shard string) int32 {
	m := c.admin(c.shards[shard], bson.D{{Key: "count", Value: "oplog.rs"}, {Key: "query", Value: bson.D{{Key: "op", Value: "n"}, {Key: "o.$sessionMigrateInfo", Value: 1}}}, {Key: "$db", Value: "local"}})
	return m["n"].(int32)
}

// A migration used to send the history of all sessions of its shard, again with each chunk. It sends that of the chunk's documents, and the next owner forwards
// what it has received: the third shard knows the statements that the first has executed, whatever restarts in between.
func TestMigrationsSendTheChunksOwnHistory(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			c := newTestCluster(t, 3)
			sent, _ := c.countHistory()
			c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
			c.run("admin", `{"shardCollection": "d.c", "key": {"k": 1}}`)
			c.run("admin", `{"split": "d.c", "middle": {"k": 0}}`)
			c.run("d", `{"insert": "c", "documents": [{"_id": 1, "k": 1, "x": 0}, {"_id": 2, "k": 2, "x": 0}, {"_id": 3, "k": 3}, {"_id": 4, "k": 4, "x": 0}, {"_id": -1, "k": -1, "x": 0}]}`)
			for i := range 50 { // sessions that have written nothing in the chunk
				c.run("d", asSession(`{"update": "c", "updates": [{"q": {"k": -1}, "u": {"$inc": {"x": 1}}}]}`, 1000+i, 1))
				c.run("d", asSession(`{"insert": "other", "documents": [{"k": 1}]}`, 2000+i, 1))
				c.run("d", asSession(`{"insert": "gone", "documents": [{"k": 1}]}`, 3000+i, 1))
			}
			c.run("d", `{"drop": "gone"}`)
			writes := []struct{ cmd, fields, reply string }{
				{`{"insert": "c", "documents": [{"_id": 10, "k": 10}, {"_id": -10, "k": -10}, {"_id": 11, "k": 11}]}`, "n", `3`},
				{`{"update": "c", "updates": [{"q": {"k": 1}, "u": {"$inc": {"x": 1}}}]}`, "nModified", `1`},
				{`{"update": "c", "updates": [{"q": {"k": 20}, "u": {"$inc": {"x": 1}}, "upsert": true}]}`, "n", `1`},
				{`{"delete": "c", "deletes": [{"q": {"k": 3}, "limit": 1}]}`, "n", `1`},
				{`{"findAndModify": "c", "query": {"k": 2}, "update": {"$inc": {"x": 1}}, "new": true}`, "value", `{"_id":2,"k":2,"x":1}`},
				{`{"findAndModify": "c", "query": {"k": 2}, "update": {"$inc": {"x": 1}}}`, "value", `{"_id":2,"k":2,"x":1}`},
				{`{"update": "c", "updates": [{"q": {"k": 4}, "u": {"$set": {"k": 5}}}]}`, "nModified", `1`},
			}
			const statements = 2 + 6
			check := func(when string) {
				t.Helper()
				for i, w := range writes {
					if got := show(c.run("d", asSession(w.cmd, i, 1))[w.fields]); got != w.reply {
						t.Errorf("%s, %s: %s, want %s", when, w.cmd, got, w.reply)
					}
				}
			}
			check("at first")
			want := c.all("d", `{"find": "c", "sort": {"k": 1}}`)
			for hop, to := range []string{"shard1", "shard2", "shard0"} {
				before := sent.Load()
				c.move2(to)
				if got := sent.Load() - before; got < statements || got > 2*statements { // a findAndModify's document is an entry, too
					t.Errorf("%d entries are sent to %s, for %d statements in the chunk", got, to, statements)
				}
				if got := c.adopted(to); to != "shard0" && got != statements {
					t.Errorf("%s has %d entries of others' history, want %d", to, got, statements)
				}
				if restart {
					c.restart(to)
				}
				check(fmt.Sprint("after ", hop+1, " migrations"))
				c.expect(c.all("d", `{"find": "c", "sort": {"k": 1}}`), show(want))
			}
		})
	}
}

// move2 moves the chunk of k: 1.
func (c *testCluster) move2(to string) {
	c.t.Helper()
	c.run("admin", fmt.Sprintf(`{"moveChunk": "d.c", "find": {"k": 1}, "to": %q}`, to))
}

// The same holds for a collection that is resharded or moved, and for a database that gets another primary shard: the history of other collections stays. It is
// found under the collection's new UUID, even after a rename.
func TestMovedCollectionsSendTheirOwnHistory(t *testing.T) {
	for name, cmds := range map[string][]string{
		"movePrimary":    {`{"movePrimary": "d", "to": "shard1"}`},
		"moveCollection": {`{"moveCollection": "d.c", "toShard": "shard1"}`},
		"reshardCollection": {`{"shardCollection": "d.c", "key": {"_id": 1}}`, `{"reshardCollection": "d.c", "key": {"k": 1}, "numInitialChunks": 1, "shardDistribution": [{"shard": "shard1"}]}`,
			`{"renameCollection": "d.c", "to": "d.moved"}`, `{"moveChunk": "d.moved", "find": {"k": 1}, "to": "shard2"}`},
		"reshardCollection in place": {`{"shardCollection": "d.c", "key": {"_id": 1}}`, `{"reshardCollection": "d.c", "key": {"k": 1}, "numInitialChunks": 1, "shardDistribution": [{"shard": "shard0"}]}`,
			`{"renameCollection": "d.c", "to": "d.moved"}`, `{"moveChunk": "d.moved", "find": {"k": 1}, "to": "shard1"}`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t, 3)
			for _, db := range []string{"d", "e"} {
				c.run("admin", fmt.Sprintf(`{"enableSharding": %q, "primaryShard": "shard0"}`, db))
			}
			c.run("d", `{"insert": "c", "documents": [{"_id": 1, "k": 1, "x": 0}, {"_id": 2, "k": 2, "x": 0}, {"_id": 3, "k": 3}]}`)
			coll := "c"
			writes := []struct{ cmd, fields, reply string }{
				{`{"insert": %q, "documents": [{"_id": 10, "k": 10}, {"_id": 11, "k": 11}]}`, "n", `2`},
				{`{"update": %q, "updates": [{"q": {"_id": 1, "k": 1}, "u": {"$inc": {"x": 1}}}]}`, "nModified", `1`},
				{`{"update": %q, "updates": [{"q": {"_id": 20, "k": 20}, "u": {"$inc": {"x": 1}}, "upsert": true}]}`, "n", `1`},
				{`{"delete": %q, "deletes": [{"q": {"_id": 3, "k": 3}, "limit": 1}]}`, "n", `1`},
				{`{"findAndModify": %q, "query": {"_id": 2, "k": 2}, "update": {"$inc": {"x": 1}}, "new": true}`, "value", `{"_id":2,"k":2,"x":1}`},
			}
			const statements = 2 + 4
			check := func(when string) {
				t.Helper()
				for i, w := range writes {
					if got := show(c.run("d", asSession(fmt.Sprintf(w.cmd, coll), i, 1))[w.fields]); got != w.reply {
						t.Errorf("%s, %s: %s, want %s", when, w.cmd, got, w.reply)
					}
				}
			}
			check("at first")
			for i := range 50 { // sessions that have written nothing in the moved collections
				c.run("e", asSession(`{"insert": "other", "documents": [{"k": 1}]}`, 2000+i, 1))
				if name != "movePrimary" {
					c.run("d", asSession(`{"insert": "gone", "documents": [{"k": 1}]}`, 3000+i, 1))
				}
			}
			if name != "movePrimary" {
				c.run("d", `{"drop": "gone"}`)
			}
			want := c.all("d", `{"find": "c", "sort": {"_id": 1}}`)
			for _, cmd := range cmds {
				c.run("admin", cmd)
			}
			if strings.HasPrefix(name, "reshard") {
				coll = "moved"
			}
			if name == "reshardCollection" {
				if got := c.adopted("shard2"); got != statements {
					t.Errorf("the next owner has %d entries of others' history, want %d", got, statements)
				}
			}
			if got := c.adopted("shard1"); got != statements {
				t.Errorf("%d entries of others' history have arrived, want %d", got, statements)
			}
			check("where it is")
			c.restart("shard1")
			check("after a restart")
			c.expect(c.all("d", fmt.Sprintf(`{"find": %q, "sort": {"_id": 1}}`, coll)), show(want))
		})
	}
}

// The first drops on a shard create the collection of its notes. Concurrent ones do not fail because of each other.
func TestFirstDropsAtOnce(t *testing.T) {
	c := newTestCluster(t, 1)
	const drops = 8
	for i := range drops {
		c.run("d", fmt.Sprintf(`{"create": "c%d"}`, i))
	}
	replies := make(chan bson.M, drops)
	for i := range drops {
		go func() { replies <- c.raw("d", fmt.Sprintf(`{"drop": "c%d"}`, i)) }()
	}
	for range drops {
		if m := <-replies; m["ok"] != 1.0 {
			t.Error(m)
		}
	}
	for _, d := range c.all("config", `{"listCollections": 1}`) {
		if get(d, "name") == "system.droppedCollections" {
			t.Error("the collection of the notes is listed")
		}
	}
}

// Only the statements since the previous part of the history are left for the critical section, however many were executed before.
func TestLongHistoryArrivesBeforeTheCriticalSection(t *testing.T) {
	c := newTestCluster(t, 2)
	sent, largest := c.countHistory()
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"k": 1}}`)
	const sessions, each = 20, 1000
	for s := range sessions {
		var docs []string
		for i := range each {
			docs = append(docs, fmt.Sprintf(`{"_id": "%s%d", "k": %d}`, strings.Repeat("x", 100), s*each+i, s))
		}
		c.run("d", asSession(`{"insert": "c", "documents": [`+strings.Join(docs, ",")+`]}`, s, 1))
	}
	entered := c.point("shard0", "moveChunkHangAtStep4", true) // caught up
	moved := make(chan struct{})
	go func() { defer close(moved); c.move2("shard1") }()
	entered()
	before := sent.Load()
	c.run("d", asSession(`{"update": "c", "updates": [{"q": {"k": 3}, "u": {"$set": {"x": 1}}}]}`, 1000, 1))
	c.point("shard0", "moveChunkHangAtStep4", false)
	<-moved
	if n := sent.Load() - before; before != sessions*each || n != 1 {
		t.Errorf("%d entries were sent before the critical section, and %d then; want %d and 1", before, n, sessions*each)
	}
	if n := largest.Load(); n > 2<<20 {
		t.Errorf("a part of the history has %d bytes", n)
	}
	for _, s := range []int{0, sessions - 1} {
		r := c.run("d", asSession(fmt.Sprintf(`{"insert": "c", "documents": [{"_id": "%s%d", "k": %d}]}`, strings.Repeat("x", 100), s*each, s), s, 1))
		c.expect(r["retriedStmtIds"], `[0]`)
	}
}

// The last part of a chunk's history used to wait, in the critical section, for the commands that used its sessions on the recipient. They may take any time,
// or wait for another command; the chunk's writers do not wait for them, and a retry after them is recognized.
func TestMigrationsDoNotWaitForSessionsInUse(t *testing.T) {
	for _, number := range []int{1, 2} { // the history is of that number, and the commands that use the sessions of number 1
		t.Run(fmt.Sprint("history of number ", number), func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.twoHalves() // both on shard0
			c.run("admin", `{"shardCollection": "d.e", "key": {"_id": 1}}`)
			c.run("d", `{"insert": "e", "documents": [{"_id": 1, "x": 0}]}`)
			c.run("admin", `{"moveChunk": "d.e", "find": {"_id": 1}, "to": "shard1"}`)
			holder := c.txnClient(9)
			if m, code := holder.do("d", `{"update": "e", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, true); code != 0 {
				t.Fatal(m)
			}
			const sessions = 6
			write := `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}], "stmtId": 7}`
			replies := make(chan bson.M, sessions)
			for i := range sessions {
				other := &txnClient{c: c, client: command.NewClient(int64(100+i), "test", "test", nil)}
				go func() {
					replies <- c.runAs(other, "d", asSession(`{"update": "e", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}], "comment": "waits"}`, i, 1))
				}()
			}
			c.untilWaiting(sessions) // for the transaction
			for i := range sessions {
				c.run("d", asSession(write, i, number))
			}
			c.move("shard1")
			if n := len(replies); n != 0 {
				t.Errorf("%d of the commands have ended: %v", n, <-replies)
			}
			if m, code := holder.do("admin", `{"abortTransaction": 1}`, false); code != 0 {
				t.Fatal(m)
			}
			for range sessions {
				if m := <-replies; m["nModified"] != int32(1) {
					t.Errorf("a command that was running: %v", m)
				}
			}
			for i := range sessions {
				c.expect(c.run("d", asSession(write, i, number))["retriedStmtIds"], `[7]`)
			}
			c.expect(c.all("d", `{"find": "c", "filter": {"_id": 1}}`), fmt.Sprintf(`[{"_id":1,"x":%d}]`, 1+sessions))
			c.expect(c.all("d", `{"find": "e"}`), fmt.Sprintf(`[{"_id":1,"x":%d}]`, sessions))
		})
	}
}

// A findAndModify that inserted, and returned the new document, used to return null to a retry on a shard to which the chunk had moved.
func TestRetriedUpsertsReturnTheirDocumentElsewhere(t *testing.T) {
	for _, how := range []string{"restart", "migration"} {
		t.Run(how, func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
			c.run("admin", `{"shardCollection": "d.c", "key": {"k": 1}}`)
			cmd := asSession(`{"findAndModify": "c", "query": {"_id": 1, "k": 1}, "update": {"$set": {"x": 1}}, "upsert": true, "new": true}`, 1, 1)
			want := show(c.run("d", cmd)["value"])
			if how == "restart" {
				c.restart("shard0")
			} else {
				c.move2("shard1")
			}
			if got := show(c.run("d", cmd)["value"]); got != want {
				t.Errorf("the retry returns %s, the first execution %s", got, want)
			}
		})
	}
}
