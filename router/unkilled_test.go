package router_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A killCursors that did not reach a shard used to leave a cursor there that a range deletion waited for, until the cursor timed out: forever with
// noCursorTimeout, while its session was used. It is sent again until the shard has received it.
func TestKillCursorsThatWereLostAreSentAgain(t *testing.T) {
	var lost atomic.Bool
	var sent atomic.Int64
	lost.Store(true)
	c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
		if string(m.CommandName()) != "killCursors" {
			return nil
		}
		if sent.Add(1); lost.Load() {
			return mongoerr.New(mongoerr.HostUnreachable, "the connection was lost")
		}
		return nil
	})
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]}`)
	id := get(c.run("d", `{"find": "c", "batchSize": 1, "noCursorTimeout": true}`)["cursor"], "id").(int64)
	c.run("admin", `{"moveRange": "d.c", "min": {"_id": {"$minKey": 1}}, "max": {"_id": {"$maxKey": 1}}, "toShard": "shard1", "forceJumbo": true}`)
	c.run("d", fmt.Sprintf(`{"killCursors": "c", "cursors": [{"$numberLong": "%d"}]}`, id))
	if n := c.rangeDeletions("shard0"); n != 1 {
		t.Errorf("%d range deletions with an open cursor", n)
	}
	c.until("the shard is asked again", func() bool {
		c.r.KillAgain(context.Background())
		return sent.Load() > 1
	})
	lost.Store(false)
	c.until("the range is deleted", func() bool {
		c.r.KillAgain(context.Background())
		return c.rangeDeletions("shard0") == 0
	})
	was := sent.Load()
	if c.r.KillAgain(context.Background()); sent.Load() != was {
		t.Error("killCursors was sent again after a reply")
	}
}
