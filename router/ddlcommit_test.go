package router_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// gatedPeer holds up the first call of a command.
type gatedPeer struct {
	cluster.Peer
	gate *gate
	of   string
}

type gate struct {
	node, command    string
	arrived, release chan struct{}
	used             chan bool // has an element until the first call
}

func newGate(node, command string) *gate {
	g := &gate{node, command, make(chan struct{}), make(chan struct{}), make(chan bool, 1)}
	g.used <- true
	return g
}

func (w gatedPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	if g := w.gate; g.node == w.of && g.command == string(m.CommandName()) {
		select {
		case <-g.used:
			close(g.arrived)
			select {
			case <-g.release:
			case <-ctx.Done(): // its sender has stepped down
				return dst, ctx.Err()
			}
		default:
		}
	}
	return w.Peer.Call(ctx, m, dst)
}

// A drop and a rename change the catalog and all shards at once. While one of them has yet to do its part nobody sees what the others have done: through any router, neither now nor as of that time; no chunk moves; and
// if the coordinator's primary is another one then, the operation is completed all the same.
func TestCatalogAndShardsChangeAtOnce(t *testing.T) {
	t.Parallel()
	const drop, rename = `{"drop": "c"}`, `{"renameCollection": "db.c", "to": "db.d", "dropTarget": true}`
	for _, x := range []struct{ db, cmd, held, by string }{
		{"db", drop, "config", "_configsvrRemoveCollection"},
		{"db", drop, "shard0", "_shardsvrDropCollectionParticipant"},
		{"db", drop, "shard1", "_shardsvrDropCollectionParticipant"},
		{"admin", rename, "config", "_configsvrRenameCollectionMetadata"},
		{"admin", rename, "shard0", "_shardsvrRenameCollectionParticipant"},
		{"admin", rename, "shard1", "_shardsvrRenameCollectionParticipant"},
	} {
		for _, elected := range []bool{false, true} {
			g := newGate(x.held, x.by)
			c := newHookedCluster(t, 3, clusterHooks{peer: func(set string, s *shardnode.Server) cluster.Peer { return gatedPeer{s.Peer(), g, set} }})
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
			for i, coll := range []string{"c", "d"} {
				c.shardedAs(coll, i+1, 12)
			}
			uuid := c.server["shard1"].Node.Engine.Catalog().Lookup("db.c").UUID
			done := c.later(x.db, x.cmd)
			<-g.arrived
			for id := range c.shards {
				c.until(id+" has done its part", func() bool {
					l := c.server[id].Node.Engine.Catalog().Lookup("db.c")
					return l == nil || l.UUID != uuid || id == x.held
				})
			}
			fresh := c.through()
			names := []string{"c", "d"}
			if x.cmd == drop {
				names = names[:1]
			}
			for _, coll := range names {
				for _, cmd := range []string{`{"find": %q, "maxTimeMS": 100}`, `{"insert": %q, "documents": [{"_id": 1000, "k": 1, "from": 9}], "maxTimeMS": 100}`} {
					for _, r := range []*testCluster{c, fresh} {
						cmd := fmt.Sprintf(cmd, coll)
						m := r.raw("db", cmd)
						if codeOf(m) != int32(mongoerr.MaxTimeMSExpired) {
							t.Errorf("%s, while %s has yet to execute %s: %v: %v", x.cmd, x.held, x.by, cmd, m)
						}
					}
				}
			}
			if m := fresh.raw("admin", `{"moveChunk": "db.c", "find": {"k": 3}, "to": "shard0", "maxTimeMS": 100}`); m["ok"] == 1.0 {
				t.Errorf("%s: %s: a chunk has moved", x.cmd, x.held)
			}
			// All shards have told the router of their parts, and what is held up will have a later time.
			at := c.run("admin", `{"listDatabases": 1}`)["$clusterTime"].(bson.D)[0].Value.(bson.Timestamp)
			c.run("admin", `{"listDatabases": 1}`)
			c.run("config", `{"find": "shards"}`)
			if elected {
				c.restart("shard1")
			}
			close(g.release)
			if m := <-done; m["ok"] != 1.0 {
				t.Errorf("%s: %v", x.cmd, m)
			}
			c.leftOver()
			for _, coll := range names {
				m := c.raw("db", fmt.Sprintf(`{"find": %q, "readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}}`, coll, at.T, at.I))
				if m["code"] != int32(mongoerr.SnapshotUnavailable) {
					t.Errorf("%s: %s as of the time when %s had yet to execute %s: %v", x.cmd, coll, x.held, x.by, m)
				}
			}
			want := map[string]int{"d": 12}
			if x.cmd == drop {
				want = map[string]int{}
				c.expect(c.counted("d", 2), `12`)
			}
			for _, coll := range names {
				if n, other := c.counted(coll, 1), c.counted(coll, 2)+c.counted(coll, 9); n != want[coll] || other != 0 {
					t.Errorf("%s, %s held: %s has %d documents, and %d others", x.cmd, x.held, coll, n, other)
				}
			}
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
		}
	}
}
