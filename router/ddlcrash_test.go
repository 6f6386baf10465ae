package router_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/configsvr"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// mortal is the transport of a config server that will be killed: its number of calls is limited, and the last one may or
// may not have arrived.
type mortal struct {
	left    *atomic.Int64
	arrives bool
	cluster.Peer
}

var errKilled = errors.New("the config server was killed")

func (p mortal) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	switch n := p.left.Add(-1); {
	case n < 0:
		return dst, errKilled
	case n == 0:
		if p.arrives {
			_, _ = p.Peer.Call(ctx, m, nil)
		}
		return dst, errKilled
	}
	return p.Peer.Call(ctx, m, dst)
}

// withMortalConfig runs a command through the router with a config server that is killed at its nth call and restarted
// afterwards; it reports whether it was killed.
func (c *testCluster) withMortalConfig(n int, db, cmd string) (reply bson.M, killed bool) {
	c.t.Helper()
	var left atomic.Int64
	left.Store(1 << 40)
	die := func(p cluster.Peer) cluster.Peer { return mortal{&left, n%2 == 1, p} }
	start := func(local cluster.Peer, dial func(string, []string) (cluster.Peer, error)) {
		m := configsvr.New(local, cluster.NewRegistry(c.confP, c.router.Clock, dial), c.router.Clock, func() string { return "config:27019" })
		m.Register(c.conf.Service)
		if err := m.Init(context.Background()); err != nil {
			c.t.Fatal(err)
		}
	}
	start(die(c.conf.OwnPeer()), func(set string, hosts []string) (cluster.Peer, error) {
		p, err := c.dial(set, hosts)
		return die(p), err
	})
	left.Store(int64(n/2 + 1))
	reply = c.raw(db, cmd)
	killed = left.Load() <= 0
	start(c.conf.OwnPeer(), c.dial)
	return reply, killed
}

// atEveryStep runs f with a config server that is killed at its first call, its second, and so on until it survives;
// unless all steps are asked for, only at every third one, either before or after the call arrives.
func atEveryStep(t *testing.T, f func(t *testing.T, n int) (killed bool)) {
	t.Helper()
	stride := 3
	if os.Getenv("SHOAL_PROPERTY_ROUNDS") != "" {
		stride = 1
	}
	for n := 0; ; n += stride {
		if n > 400 {
			t.Fatal("the command survives no number of calls")
		}
		if killed := f(t, n); t.Failed() {
			t.Fatalf("step %d", n)
		} else if !killed {
			return
		}
	}
}

// shardedAs creates a collection with documents on all shards.
func (c *testCluster) shardedAs(ns string, from, n int) {
	c.t.Helper()
	c.run("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"k": "hashed"}}`, ns))
	c.insertKeys(ns, from, n)
}

// insertKeys inserts n documents with k from -n/2 on; the field from marks their origin.
func (c *testCluster) insertKeys(coll string, from, n int) {
	c.t.Helper()
	docs := bson.A{}
	for k := -n / 2; k < n/2; k++ {
		docs = append(docs, bson.D{{Key: "_id", Value: int32(k)}, {Key: "k", Value: int32(k)}, {Key: "from", Value: int32(from)}})
	}
	c.run("db", fmt.Sprintf(`{"insert": %q, "documents": %s}`, coll, show(docs)))
}

// counted returns how many documents of a collection have a mark, read through the router.
func (c *testCluster) counted(coll string, from int) int {
	c.t.Helper()
	return len(c.all("db", fmt.Sprintf(`{"find": %q, "filter": {"from": %d}, "maxTimeMS": 100000}`, coll, from)))
}

// A config server that is killed during the drop of a sharded collection: the entry was removed first, so that the retried
// drop returned ok and left documents on a shard; and the critical sections were never ended. Now a retry finishes the
// drop, and no operation on the name hangs.
func TestDropWithKilledConfigServer(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	atEveryStep(t, func(t *testing.T, n int) bool {
		c.shardedAs("c", 1, 10)
		c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
		c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": {"$numberLong": "100"}}, "max": {"k": {"$numberLong": "200"}}, "zone": "z"}`)
		_, killed := c.withMortalConfig(n, "db", `{"drop": "c", "maxTimeMS": 300}`)
		if n%4 < 2 {
			c.counted("c", 1) // it returns, whatever it finds
		}
		c.run("db", `{"drop": "c", "maxTimeMS": 100000}`)
		for id := range c.shards {
			if n := c.onShard(id, "c"); n != 0 {
				t.Errorf("%d documents are left on %s", n, id)
			}
		}
		c.expect(c.all("config", `{"find": "tags"}`), `[]`)
		c.insertKeys("c", 2, 2)
		c.expect(c.counted("c", 2), `2`)
		c.expect(c.counted("c", 1), `0`)
		c.run("db", `{"drop": "c", "maxTimeMS": 100000}`)
		return killed
	})
}

// Likewise a config server that is killed during a rename: the retried rename finishes it, and the target has the documents
// of the source alone.
func TestRenameWithKilledConfigServer(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct{ name, source, target string }{
		{"sharded to sharded", "sharded", "sharded"}, {"sharded to plain", "sharded", "plain"}, {"plain to sharded", "plain", "sharded"},
	} {
		t.Run(kind.name, func(t *testing.T) {
			c := newTestCluster(t, 3)
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
			fill := func(coll, kind string, from int) {
				if kind == "sharded" {
					c.shardedAs(coll, from, 10)
				} else {
					c.insertKeys(coll, from, 10)
				}
			}
			atEveryStep(t, func(t *testing.T, n int) bool {
				fill("a", kind.source, 1)
				fill("b", kind.target, 2)
				const rename = `{"renameCollection": "db.a", "to": "db.b", "dropTarget": true, "maxTimeMS": %d}`
				first, killed := c.withMortalConfig(n, "admin", fmt.Sprintf(rename, 300))
				again := c.raw("admin", fmt.Sprintf(rename, 20000))
				if again["ok"] != 1.0 && again["code"] != int32(mongoerr.NamespaceNotFound) || first["ok"] == 1.0 && again["code"] != int32(mongoerr.NamespaceNotFound) {
					t.Errorf("the first %v, again %v", first, again)
				}
				for from, want := range map[int]int{1: 10, 2: 0} {
					if got := c.counted("b", from); got != want {
						t.Errorf("step %d: %d documents of %d in the target, want %d", n, got, from, want)
					}
				}
				if got := c.counted("a", 1); got != 0 {
					t.Errorf("%d documents under the old name", got)
				}
				for id := range c.shards {
					if n := c.onShard(id, "a"); n != 0 {
						t.Errorf("%d documents under the old name on %s", n, id)
					}
				}
				c.run("db", `{"drop": "b", "maxTimeMS": 100000}`)
				return killed
			})
		})
	}
}

// A failing rename changes nothing: it used to drop the target before it checked the source, and emptied a collection that
// was renamed to itself.
func TestRenameLooksAtItsSourceFirst(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	c.shardedAs("other", 2, 10)
	c.run("db", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	c.insertKeys("plain", 3, 4)
	for cmd, code := range map[string]int32{
		`{"renameCollection": "db.misspelt", "to": "db.c", "dropTarget": true}`:                                                                                      int32(mongoerr.NamespaceNotFound),
		`{"renameCollection": "db.c", "to": "db.c", "dropTarget": true}`:                                                                                             int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.c", "to": "db.c"}`:                                                                                                                 int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.v", "to": "db.c", "dropTarget": true}`:                                                                                             int32(mongoerr.CommandNotSupportedOnView),
		`{"renameCollection": "db.c", "to": "db.v", "dropTarget": true}`:                                                                                             int32(mongoerr.NamespaceExists),
		`{"renameCollection": "db.other", "to": "db.c"}`:                                                                                                             int32(mongoerr.NamespaceExists),
		`{"renameCollection": "db.plain", "to": "db.c"}`:                                                                                                             int32(mongoerr.NamespaceExists),
		`{"renameCollection": "db.c", "to": "else.c", "dropTarget": true}`:                                                                                           int32(mongoerr.CommandFailed),
		`{"renameCollection": "db.other", "to": "db.c", "dropTarget": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}`:                         int32(mongoerr.CollectionUUIDMismatch),
		`{"renameCollection": "db.other", "to": "db.c", "dropTarget": true, "collectionUUID": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}`: int32(mongoerr.CollectionUUIDMismatch),
		`{"renameCollection": "db.other", "to": "db.c", "dropTarget": 1}`:                                                                                            int32(mongoerr.TypeMismatch),
		// Sharded collections could be renamed to names that are forbidden for unsharded ones.
		`{"renameCollection": "db.other", "to": "db.system.foo"}`:                       int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.other", "to": "db.system.views"}`:                     int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.other", "to": "db.system.buckets.x"}`:                 int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.other", "to": "config.transactions"}`:                 int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.other", "to": "local.foo"}`:                           int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.system.views", "to": "db.c", "dropTarget": true}`:     int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.plain", "to": "db.system.foo"}`:                       int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.other", "to": "db.` + strings.Repeat("n", 255) + `"}`: int32(mongoerr.IllegalOperation),
		`{"renameCollection": "db.other", "to": "db..x"}`:                               int32(mongoerr.InvalidNamespace),
	} {
		if m := c.raw("admin", cmd); m["code"] != code {
			t.Errorf("%s: %v, want %d", cmd, m, code)
		}
	}
	if m := c.raw("db", `{"drop": "c", "collectionUUID": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}`); m["code"] != int32(mongoerr.CollectionUUIDMismatch) {
		t.Errorf("a drop of another collection: %v", m)
	}
	c.expect(c.counted("c", 1), `10`)
	c.expect(c.counted("other", 2), `10`)
	c.run("admin", `{"renameCollection": "db.plain", "to": "db.c", "dropTarget": true}`)
	c.expect(c.counted("c", 1), `0`)
	c.expect(c.counted("c", 3), `4`)
	c.expect(c.all("config", `{"find": "collections", "projection": {"_id": 1}}`), `[{"_id":"db.other"}]`)
}

// One document in config.shards that is not a shard, written by a client, made the config server fail at each start, so
// that it could not be removed any more.
func TestConfigServerStartsBesideAnEntryThatIsNoShard(t *testing.T) {
	c := newTestCluster(t, 1)
	ctx := context.Background()
	on := func(cmd string) {
		t.Helper()
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
			t.Fatal(err)
		}
		body, _ := bson.Marshal(d)
		if _, err := cluster.Run(ctx, c.confP, body); err != nil {
			t.Fatal(err)
		}
	}
	on(`{"insert": "shards", "documents": [{"_id": "odd", "host": 7}], "$db": "config"}`)
	if err := c.config.Init(ctx); err != nil {
		t.Fatal(err)
	}
	on(`{"delete": "shards", "deletes": [{"q": {"_id": "odd"}, "limit": 1}], "$db": "config"}`)
	if err := c.config.Init(ctx); err != nil {
		t.Fatal(err)
	}
}
