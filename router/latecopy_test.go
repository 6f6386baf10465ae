package router_test

import (
	"context"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A migration to a shard that takes no part in a resharding creates the collection there only after the resharding has looked for copies that its commit has to drop: the
// creation is requested late, or the recipient has read before that the collection may be migrated. The copy would stay there under the former UUID.
func TestNoCopyIsMadeBehindAResharding(t *testing.T) {
	t.Parallel()
	for _, late := range []string{"request", "reply"} {
		var armed, asked atomic.Bool
		came, free := make(chan struct{}), make(chan struct{})
		hold := func() {
			close(came)
			<-free
		}
		c := newHookedCluster(t, 3, clusterHooks{out: func(from string) func(cluster.Peer) cluster.Peer {
			return func(to cluster.Peer) cluster.Peer {
				return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
					creates := from == "config" && string(m.CommandName()) == "_shardsvrCreateCollectionParticipant" && value.Lookup(m.Body, "_shardsvrCreateCollectionParticipant").Str() == "db.c"
					if creates && armed.CompareAndSwap(true, false) {
						if asked.Store(true); late == "request" {
							hold()
						}
					}
					reads := from == "shard2" && value.Lookup(m.Body, "find").Str() == "collections"
					dst, err := to.Call(ctx, m, dst)
					if late == "reply" && reads && asked.CompareAndSwap(true, false) {
						hold()
					}
					return dst, err
				})
			}
		}})
		c.config.Points = c.points["config"]
		c.fill(20)
		moved, resharded, other := make(chan bson.M, 1), make(chan bson.M, 1), c.through()
		armed.Store(true)
		go func() { moved <- other.raw("admin", `{"moveChunk": "db.c", "find": {"k": 15}, "to": "shard2"}`) }()
		<-came
		reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", "applying")
		go func() {
			resharded <- c.raw("admin", `{"reshardCollection": "db.c", "key": {"g": 1}, "numInitialChunks": 1, "shardDistribution": [{"shard": "shard0"}]}`)
		}()
		reached()
		close(free)
		if m := <-moved; m["code"] != int32(mongoerr.ConflictingOperationInProgress) {
			t.Errorf("%s: the migration: %v", late, m)
		}
		if l := c.server["shard2"].Node.Engine.Catalog().Lookup("db.c"); l != nil {
			t.Errorf("%s: the recipient has the collection", late)
		}
		release()
		c.expect((<-resharded)["ok"], `1.0`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
	}
}
