package main

import (
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// connPoolSync closes the unused connections to other nodes.
func TestConnPoolSync(t *testing.T) {
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{1}})
	shard, router := c.shards[0].members[0], c.routers[0]
	idle := func() int {
		var stats struct {
			Hosts map[string]struct{ Available int }
		}
		if err := router.direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "connPoolStats", Value: 1}}).Decode(&stats); err != nil {
			t.Fatal(err)
		}
		return stats.Hosts[shard.at()].Available
	}
	err := shard.admin(t.Context(), bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "alwaysOn"},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"find"}}, {Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 100}}}})
	if err != nil {
		t.Fatal(err)
	}
	await.State(t, "connections of eight calls at once are idle", func() (int, bool) {
		var calls sync.WaitGroup
		for range 8 {
			calls.Go(func() { _ = router.direct.Database("d").Collection("c").FindOne(t.Context(), bson.D{}).Err() })
		}
		calls.Wait()
		n := idle()
		return n, n >= 4
	})
	if err := router.admin(t.Context(), bson.D{{Key: "connPoolSync", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	if n := idle(); n > 1 { // the pool's minimum may be there again
		t.Errorf("%d connections are idle after connPoolSync", n)
	}
}
