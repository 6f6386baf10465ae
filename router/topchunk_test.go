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
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// While the chunk that a split makes for another shard moves, it is not split, however much is inserted into it: the move would find no chunk with its bounds.
func TestTopChunkIsNotSplitWhileItMoves(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.smallChunks()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
	c.run("config", `{"update": "settings", "updates": [{"q": {"_id": "autosplit"}, "u": {"_id": "autosplit", "enabled": true}, "upsert": true}]}`)
	c.point("shard0", "moveChunkHangAtStep1", true)
	next := int64(0)
	write := c.ascending("c", &next)
	write(2000)
	await.State(t, "the end of the chunk is about to move", func() (string, bool) {
		write(100)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		return c.chunkList("c"), c.points["shard0"].Register("moveChunkHangAtStep1").WaitEntered(ctx, 1) == nil
	})
	list := c.chunkList("c")
	for range 12 {
		write(500) // much more than a chunk's size each two times, counted for the chunk that waits for its move
	}
	if now := c.chunkList("c"); now != list {
		t.Errorf("chunks %s, were %s when the move began", now, list)
	}
	c.point("shard0", "moveChunkHangAtStep1", false)
	c.until("it has moved", func() bool { return c.onShard("shard1", "c") > 5000 })
	c.expect(c.run("db", `{"count": "c"}`)["n"], fmt.Sprint(next))
}

// A split by an outdated table changes nothing and is not a failure: something else has split the chunk, and its parts are counted separately. Each
// attempt used to be logged as a failure, without the shard reading the table again.
func TestSplitOfAChunkThatIsNoMore(t *testing.T) {
	t.Parallel()
	var deaf atomic.Bool // the shard is not notified of changes
	c := newWatchedCluster(t, 2, func(_ string, m *wire.Message) error {
		if deaf.Load() && string(m.CommandName()) == "_flushRoutingTableCacheUpdates" {
			return mongoerr.New(mongoerr.HostUnreachable, "the shard is not told")
		}
		return nil
	})
	var failed atomic.Pointer[string]
	c.warned = func(msg string, err error) {
		if text := fmt.Sprint(msg, ": ", err); strings.Contains(msg, "could not be split") {
			failed.Store(&text)
		}
	}
	c.smallChunks()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
	next := int64(0)
	write := c.ascending("c", &next)
	write(1500)
	deaf.Store(true)
	c.admin(c.confP, bson.D{{Key: "_configsvrCommitChunkSplit", Value: "db.c"}, {Key: "min", Value: bson.D{{Key: "_id", Value: bson.MinKey{}}}}, {Key: "max", Value: bson.D{{Key: "_id", Value: bson.MaxKey{}}}},
		{Key: "splitPoints", Value: bson.A{bson.D{{Key: "_id", Value: 700}}}}, {Key: "$db", Value: "admin"}})
	c.run("config", `{"update": "settings", "updates": [{"q": {"_id": "autosplit"}, "u": {"_id": "autosplit", "enabled": true}, "upsert": true}]}`)
	await.State(t, "the second part is split", func() (string, bool) {
		write(100)
		return c.chunkList("c"), c.chunks() > 2 || failed.Load() != nil
	})
	if text := failed.Load(); text != nil {
		t.Error(*text)
	}
}

// ascending returns a function that inserts documents with increasing keys, from next on.
func (c *testCluster) ascending(coll string, next *int64) (write func(n int64)) {
	return func(n int64) {
		keys := make([]int64, n)
		for i := range keys {
			keys[i] = *next
			*next++
		}
		c.load(coll, keys, 1000)
	}
}
