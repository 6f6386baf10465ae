package router_test

import (
	"context"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard that coordinates the commit of a transaction, and has no data any more, is not removed before all participants have executed its decision. One that had not yet asked for the shard
// when it was gone, and aborted what the others had committed.
func TestShardIsNotRemovedBeforeItsDecisionsAreExecuted(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	w := c.interposed("shard0")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "d.c", "middle": {"_id": 0}}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": -1}, {"_id": 1}]}`)
	c.run("admin", `{"moveChunk": "d.c", "find": {"_id": -1}, "to": "shard2", "_waitForDelete": true}`)
	c.txn([]txnStep{
		{1, true, "d", `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$set": {"x": 1}}}]}`, 0, "n", "1"},
		{1, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}`, 0, "n", "1"},
	})
	var cut atomic.Bool
	cut.Store(true)
	w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "commitTransaction" && cut.Load() {
			return nil, mongoerr.New(mongoerr.HostUnreachable, "cut off")
		}
		return call()
	})
	committed := make(chan bson.M, 1)
	go func() {
		committed <- c.raw("admin", `{"commitTransaction": 1, `+txnLSID+`, "txnNumber": {"$numberLong": "1"}, "autocommit": false}`)
	}()
	c.until("the coordinator's own part is committed", func() bool { return len(c.all("d", `{"find": "c", "filter": {"_id": -1, "x": 1}}`)) == 1 })
	c.run("admin", `{"moveChunk": "d.c", "find": {"_id": -1}, "to": "shard1", "_waitForDelete": true}`)
	c.run("admin", `{"removeShard": "shard2"}`)
	if m := c.run("admin", `{"removeShard": "shard2"}`); m["state"] != "ongoing" {
		t.Errorf("it is removed before a participant has heard of its decision: %v", m)
		prepared := func() any {
			return fieldAt(c.admin(w.Peer, bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}}), "transactions.currentPrepared")
		}
		c.until("the participant has ended the transaction", func() bool { return show(prepared()) == "0" })
	}
	cut.Store(false)
	c.until("the shard is removed", func() bool {
		m := c.raw("admin", `{"removeShard": "shard2"}`)
		return m["state"] == "completed" || m["code"] == int32(mongoerr.ShardNotFound)
	})
	c.expect((<-committed)["ok"], `1.0`)
	c.until("both parts are committed", func() bool { return len(c.all("d", `{"find": "c", "filter": {"x": 1}}`)) == 2 })
}
