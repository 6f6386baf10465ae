package router_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// heldUpdates is a shard that receives no updates until held is closed.
type heldUpdates struct {
	cluster.Peer
	held chan struct{}
}

func (p *heldUpdates) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	if value.Lookup(m.Body, "update").Str() == "c" {
		select {
		case <-p.held:
		case <-ctx.Done():
			return dst, ctx.Err()
		}
	}
	return p.Peer.Call(ctx, m, dst)
}

// A statement that one of two shards has executed before a resharding changes each document once, and counts it once. The documents of
// that shard used to be changed again on their new shards.
func TestManyDocumentsAcrossAResharding(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(40)
	shard1 := c.shards["shard1"]
	update := `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"m": 1}}, "multi": true}]}`
	bulk := `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {}, "updateMods": {"$inc": {"m": 1}}, "multi": true}], "nsInfo": [{"ns": "db.c"}]}`
	for i, tc := range []struct{ op, db, cmd, count string }{
		{`{"reshardCollection": "db.c", "key": {"_id": "hashed"}, "numInitialChunks": 4}`, "db", update, "n"},
		{`{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 4}`, "admin", bulk, "nMatched"}, // from a hashed key
		{`{"unshardCollection": "db.c", "toShard": "shard1"}`, "db", update, "n"},
	} {
		held := &heldUpdates{Peer: shard1, held: make(chan struct{})}
		c.shards["shard1"] = held
		other := c.through()
		other.expect(other.run("db", `{"count": "c", "query": {}}`)["n"], `40`)
		c.shards["shard1"] = shard1
		matched := make(chan any)
		go func() { matched <- other.raw(tc.db, tc.cmd)[tc.count] }()
		first := c.onShard("shard0", "c")
		if first == 0 || first == 40 {
			t.Fatalf("before %s: %d documents on shard0", tc.op, first)
		}
		await.True(t, "shard0 has executed its part", func() bool {
			m := c.admin(c.shards["shard0"], bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: bson.D{{Key: "m", Value: i + 1}}}, {Key: "$db", Value: "db"}})
			return m["n"] == first
		})
		c.run("admin", tc.op)
		close(held.held)
		c.expect(<-matched, `40`)
		c.expect(c.run("db", fmt.Sprintf(`{"count": "c", "query": {"m": %d}}`, i+1))["n"], `40`)
	}
}
