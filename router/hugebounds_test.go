package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A chunk of which no part can be moved, because two of its keys do not fit into one document, is marked as jumbo: every round of the balancer used to try
// again, and failed. Other chunks of its collection move; with attemptToBalanceJumboChunks this one does, too, as a whole.
func TestChunksOfHugeKeysAreMarkedJumbo(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"configureCollectionBalancing": "db.c", "chunkSize": 1}`)
	for _, k := range []string{"c", "d", "e"} {
		c.cmd("db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: strings.Repeat(k, 9<<20)}}}}})
	}
	c.run("admin", `{"addShardToZone": "shard1", "zone": "z"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": {"$minKey": 1}}, "max": {"k": {"$maxKey": 1}}, "zone": "z"}`)
	rounds := func(n int) (moved int, failed error) {
		for range n {
			n, err := c.config.BalancerRound(t.Context())
			if moved += n; err != nil {
				failed = err
			}
		}
		return moved, failed
	}
	jumbo := func() int {
		return len(c.all("config", `{"find": "chunks", "filter": {"jumbo": true}, "projection": {"_id": 1}}`))
	}
	moved, err := rounds(4)
	if err != nil {
		t.Errorf("a round failed: %.300v", err)
	}
	if n := jumbo(); n != 1 || moved == 0 {
		t.Errorf("%d ranges were moved, %d chunks are marked as jumbo", moved, n)
	}
	before := c.logged("moveChunk.start")
	if moved, err := rounds(2); moved != 0 || err != nil || c.logged("moveChunk.start") != before {
		t.Errorf("with a chunk that is marked, %d ranges were moved in %d attempts: %.300v", moved, c.logged("moveChunk.start")-before, err)
	}
	c.run("config", `{"update": "settings", "updates": [{"q": {"_id": "balancer"}, "u": {"$set": {"attemptToBalanceJumboChunks": true}}, "upsert": true}]}`)
	if _, err := rounds(3); err != nil {
		t.Errorf("a round that moves jumbo chunks failed: %.300v", err)
	}
	if _, parts := c.parts("c"); parts[0] != 0 || parts[1] != 3 {
		t.Errorf("%v documents on the shards, want all 3 on the second", parts)
	}
}

// logged counts the entries of config.changelog of one kind.
func (c *testCluster) logged(what string) int {
	c.t.Helper()
	return len(c.all("config", fmt.Sprintf(`{"find": "changelog", "filter": {"what": %q}, "projection": {"_id": 1}}`, what)))
}
