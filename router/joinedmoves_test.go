package router_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A migration that is requested again while it is under way, because a reply was lost, is joined; any other one of its shards is refused with an error that names the running
// one. A request with a single bound used to be refused if the donor would choose a different second bound by then.
func TestMigrationsAreJoined(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	c := newWatchedCluster(t, 3, func(shard string, m *wire.Message) error {
		if string(m.CommandName()) == "_shardsvrMoveRange" {
			sent.Add(1)
		}
		return nil
	})
	c.sharded("c", 4)
	c.sharded("other", 4)
	keys := make([]int64, 3000)
	for i := range keys {
		keys[i] = int64(10 + i)
	}
	c.load("c", keys, 1000)
	c.run("admin", `{"configureCollectionBalancing": "db.c", "chunkSize": 1}`)
	const again = `{"moveRange": "db.c", "min": {"_id": 2}, "toShard": "shard1"}`
	started := func() int64 {
		m := c.admin(c.shards["shard0"], bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
		return get(m["shardingStatistics"], "countDonorMoveChunkStarted").(int64)
	}
	before := started()
	entered := c.point("shard0", "moveChunkHangAtStep3", true)
	var wg sync.WaitGroup
	wg.Go(func() { c.run("admin", again) })
	entered()
	// By now a range of the size of a chunk would end elsewhere.
	c.run("db", `{"delete": "c", "deletes": [{"q": {"_id": {"$gte": 10, "$lt": 300}}, "limit": 0}]}`)
	for range 2 {
		wg.Go(func() { c.run("admin", again) })
	}
	c.until("the donor is sent all three requests", func() bool { return sent.Load() == 3 })
	for _, cmd := range []string{
		`{"moveRange": "db.c", "min": {"_id": 2}, "toShard": "shard2"}`, `{"moveRange": "db.c", "min": {"_id": 2}, "max": {"_id": 3}, "toShard": "shard1"}`,
		`{"moveRange": "db.other", "min": {"_id": 2}, "toShard": "shard2"}`, `{"moveRange": "db.c", "min": {"_id": 2}, "toShard": "shard1", "waitForDelete": true}`,
	} {
		m := c.raw("admin", cmd)
		if text := fmt.Sprint(m["errmsg"]); m["code"] != int32(mongoerr.ConflictingOperationInProgress) || !strings.Contains(text, "donating range") || !strings.Contains(text, "namespace db.c to shard1") {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	c.point("shard0", "moveChunkHangAtStep3", false)
	wg.Wait()
	if n := started() - before; n != 1 {
		t.Errorf("%d migrations began", n)
	}
	c.expect(len(c.all("config", `{"find": "changelog", "filter": {"what": "moveChunk.commit"}}`)), `1`)
	c.expect(c.run("db", `{"count": "c"}`)["n"], `2714`)
}
