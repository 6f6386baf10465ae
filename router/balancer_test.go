package router_test

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// The balancer moves nothing outside its active window, no chunk marked as jumbo unless its settings allow it, and does not
// count data that waits for deletion. It used to read only whether it was on or off.
func TestBalancerGoesByItsSettings(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.run("admin", `{"addShardToZone": "shard1", "zone": "z"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"_id": 20}, "max": {"_id": {"$maxKey": 1}}, "zone": "z"}`)
	round := func(settings string, want int) {
		t.Helper()
		c.run("config", fmt.Sprintf(`{"update": "settings", "updates": [{"q": {"_id": "balancer"}, "u": {"_id": "balancer", %s}, "upsert": true}]}`, settings))
		if moved, err := c.config.BalancerRound(context.Background()); err != nil || moved != want {
			t.Errorf("%s: %d moves, %v", settings, moved, err)
		}
	}
	window := func(from, to time.Duration) string {
		now := time.Now()
		return fmt.Sprintf(`"mode": "full", "activeWindow": {"start": %q, "stop": %q}`, now.Add(from).Format("15:04"), now.Add(to).Format("15:04"))
	}
	round(window(2*time.Hour, 3*time.Hour), 0)
	c.run("config", `{"update": "chunks", "updates": [{"q": {"min._id": 20}, "u": {"$set": {"jumbo": true}}}]}`)
	round(window(-time.Hour, time.Hour), 0)
	round(`"mode": "full", "attemptToBalanceJumboChunks": true, "_waitForDelete": true`, 1)
	if a, b := c.onShard("shard0", "c"), c.onShard("shard1", "c"); a != 20 || b != 20 {
		t.Errorf("%d and %d documents on the shards", a, b)
	}
}

// removeShard reports the number of chunks that are too large to be moved: they keep the shard from being drained.
func TestRemoveShardCountsJumboChunks(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.run("admin", `{"split": "db.c", "middle": {"_id": 10}}`)
	c.run("config", `{"update": "chunks", "updates": [{"q": {"min._id": 10}, "u": {"$set": {"jumbo": true}}}]}`)
	shard := get(c.all("config", `{"find": "chunks", "filter": {"min._id": 10}}`)[0], "shard")
	c.run("admin", fmt.Sprintf(`{"removeShard": %q}`, shard))
	left := c.run("admin", fmt.Sprintf(`{"removeShard": %q}`, shard))["remaining"]
	c.expect(get(left, "jumboChunks"), `1`)
	if n := get(left, "chunks").(int64); n < 2 {
		t.Errorf("%d chunks remain", n)
	}
}

// A range that has moved away and is not deleted yet is not counted any more: otherwise the balancer would go on moving
// data off a shard that has already given up its share.
func TestBalancerDoesNotCountOrphans(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 40)
	c.param("shard0", "orphanCleanupDelaySecs", 3600)
	c.run("config", `{"insert": "settings", "documents": [{"_id": "chunksize", "value": 1}]}`)
	pad := make([]byte, 200_000)
	for i := range pad {
		pad[i] = 'x'
	}
	for i := range 40 {
		c.run("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$set": {"pad": %q}}}]}`, i, pad))
	}
	for _, at := range []int{5, 10, 15, 25, 30, 35} {
		c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"_id": %d}}`, at))
	}
	moves := 0
	for range 8 {
		n, err := c.config.BalancerRound(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		moves += n
	}
	a, b := c.onShard("shard0", "c")-c.orphans("shard0", "c"), c.onShard("shard1", "c")
	if moves == 0 || a+b != 40 || a < 15 || b < 10 {
		t.Errorf("%d moves leave %d and %d documents on the shards", moves, a, b)
	}
}
