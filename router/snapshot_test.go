package router_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire"
)

// remotePeer is a shard that is in another process than the router: only its replies advance the router's clock.
type remotePeer struct {
	cluster.Peer
	clock, router *cluster.VectorClock
}

func (p remotePeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	out, err := p.Peer.Call(ctx, m, dst)
	p.router.AdvanceCluster(p.clock.ClusterTime())
	return out, err
}

// A read with level snapshot through a router whose clock was behind the newest writes used not to return them, although they were
// acknowledged: the router chose the newest time that it had received.
func TestSnapshotReadsSeeWhatOtherRoutersWrote(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"shardCollection": "d.spread", "key": {"_id": "hashed"}}`)
	late, clock, near := c.through(), cluster.NewVectorClock(time.Now), c.dial
	c.dial = func(set string, hosts []string) (cluster.Peer, error) {
		p, err := near(set, hosts)
		return remotePeer{p, c.clock, clock}, err
	}
	late.router, late.r = c.mongos(clock)
	c.dial = near
	clock.AdvanceCluster(c.clock.ClusterTime())
	c.run("d", `{"create": "v", "viewOn": "spread", "pipeline": []}`)
	for round, coll := range []string{"plain", "spread", "plain", "spread", "v"} {
		if coll != "v" {
			c.run("d", `{"insert": "`+coll+`", "documents": [{}, {}, {}, {}, {}, {}, {}, {}], "writeConcern": {"w": "majority"}}`)
		}
		want := int32(8 * (round/2 + 1))
		if coll == "v" {
			want = 16
		}
		concern := `"readConcern": {"level": "snapshot"}`
		m := late.run("d", `{"aggregate": "`+coll+`", "pipeline": [{"$count": "n"}], "cursor": {}, `+concern+`}`)
		if got := fieldAt(m, "cursor.firstBatch.n"); got != want {
			t.Errorf("round %d, aggregate on %s counts %v, want %d", round, coll, got, want)
		}
		m = late.run("d", `{"find": "`+coll+`", `+concern+`}`)
		if got := len(fieldAt(m, "cursor.firstBatch").(bson.A)); got != int(want) {
			t.Errorf("round %d, find on %s has %d documents, want %d", round, coll, got, want)
		}
		m = late.raw("d", `{"distinct": "`+coll+`", "key": "_id", `+concern+`}`)
		if got := len(m["values"].(bson.A)); got != int(want) {
			t.Errorf("round %d, distinct on %s has %d values, want %d", round, coll, got, want)
		}
		if m["atClusterTime"] == nil {
			t.Errorf("distinct on %s returns no time: %v", coll, m)
		}
	}
}
