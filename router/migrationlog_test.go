package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// truncateOplog truncates a node's oplog, once no session state that has not been stored needs it.
func (c *testCluster) truncateOplog(n *shardnode.Node) {
	c.t.Helper()
	at, stored := n.Engine.Visible(), storage.Timestamp(0)
	c.until("sessions are stored, so that the oplog can be truncated", func() bool {
		progress, err := n.Docs.Get("config.system.retryableWrites", value.NewString("complete"))
		if err = errors.Join(err, n.Engine.TruncateOplog()); err != nil {
			c.t.Fatal(err)
		}
		ready := stored >= at // and has released the oplog by now
		stored = storage.Timestamp(value.Lookup(progress, "ts").TimestampU64())
		return ready
	})
}

// writeWhileMoving moves the upper half of d.c to shard1 and writes to it, and writes a multiple of the donor's oplog size
// to another collection, before the recipient asks for changes.
func (c *testCluster) writeWhileMoving(times int) (moved bson.M) {
	c.t.Helper()
	c.twoHalves()
	e := c.server["shard0"].Node.Engine
	e.SetOplogSize(256 << 10)
	entered := c.point("shard1", "migrateThreadHangAtStep4", true)
	var wg sync.WaitGroup
	wg.Go(func() {
		moved = c.raw("admin", `{"moveChunk": "d.c", "find": {"_id": 1}, "to": "shard1", "_waitForDelete": true}`)
	})
	entered() // the range is cloned
	c.run("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 2}}}]}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 2}]}`)
	for i := range times * 3 {
		c.run("d", fmt.Sprintf(`{"insert": "other", "documents": [{"_id": %d, "pad": %q}]}`, i, strings.Repeat("x", 100_000)))
	}
	c.truncateOplog(c.server["shard0"].Node)
	c.point("shard1", "migrateThreadHangAtStep4", false)
	wg.Wait()
	return moved
}

// Writes to a range while it moves are read from the donor's oplog, which keeps them until they have been read. When the
// oplog was truncated meanwhile, the truncated writes used to be lost with the range.
func TestMigrationPinsTheOplog(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	if m := c.writeWhileMoving(2); m["ok"] != 1.0 {
		t.Errorf("%v", m)
	}
	c.expect(c.all("d", `{"find": "c", "sort": {"_id": 1}}`), `[{"_id":-1,"x":1},{"_id":1,"x":2},{"_id":2}]`)
}

// A migration whose position in the oplog has been truncated fails, and the range stays where it was.
func TestMigrationWithoutItsOplogFails(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	if m := c.writeWhileMoving(20); m["ok"] == 1.0 || !strings.Contains(fmt.Sprint(m["errmsg"]), "oplog") {
		t.Errorf("%v", m)
	}
	c.expect(c.all("d", `{"find": "c", "sort": {"_id": 1}}`), `[{"_id":-1,"x":1},{"_id":1,"x":2},{"_id":2}]`)
}

// A cursor on the oplog whose position has been truncated gets an error, tailing or not. One that continued after the
// gap would have shown its reader less than was written.
func TestOplogTailerIsToldOfTheGap(t *testing.T) {
	t.Parallel()
	for _, tail := range []string{"", `, "tailable": true, "awaitData": true`} {
		t.Run(tail, func(t *testing.T) {
			c := newTestCluster(t, 1)
			node := c.server["shard0"].Node
			node.Engine.SetOplogSize(256 << 10)
			c.run("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]}`)
			var d bson.D
			_ = bson.UnmarshalExtJSON([]byte(`{"find": "oplog.rs", "batchSize": 2`+tail+`, "$db": "local"}`), false, &d)
			id := get(c.admin(c.shards["shard0"], d)["cursor"], "id").(int64)
			for i := range 20 {
				c.run("d", fmt.Sprintf(`{"insert": "other", "documents": [{"_id": %d, "pad": %q}]}`, i, strings.Repeat("x", 100_000)))
			}
			c.truncateOplog(node)
			more, _ := bson.Marshal(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "oplog.rs"}, {Key: "$db", Value: "local"}})
			if reply, err := cluster.Run(t.Context(), c.shards["shard0"], more); mongoerr.CodeOf(err) != mongoerr.CappedPositionLost {
				t.Errorf("%v, %.200x", err, reply)
			}
		})
	}
}

// A reply to the recipient ended when it exceeded 4 MB, or after some thousand changed documents whatever their size: a
// large document after small ones, or several large ones that changed meanwhile, made a reply too large for a document,
// and the range could not move between processes.
func TestLargeDocumentsMove(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	donor := &watchedPeer{}
	c.between("shard0", func(to cluster.Peer) cluster.Peer {
		donor.Peer = to
		return donor
	})
	c.twoHalves()
	write := func(id, mb int) {
		c.run("d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$set": {"pad": %q}}, "upsert": true}]}`, id, strings.Repeat("x", mb<<20)))
	}
	sizes := []int{1, 3, 3, 15, 1, 15, 2}
	for i, mb := range sizes {
		write(10+i, mb)
	}
	entered := c.point("shard1", "migrateThreadHangAtStep4", true)
	var moved bson.M
	var wg sync.WaitGroup
	wg.Go(func() {
		moved = c.raw("admin", `{"moveChunk": "d.c", "find": {"_id": 1}, "to": "shard1", "_waitForDelete": true}`)
	})
	entered()
	for i, mb := range sizes { // each is written again, and others are added
		write(10+i, mb)
		write(20+i, mb)
	}
	c.point("shard1", "migrateThreadHangAtStep4", false)
	wg.Wait()
	if moved["ok"] != 1.0 {
		t.Fatalf("%v", moved)
	}
	c.expect(c.all("d", `{"aggregate": "c", "pipeline": [{"$match": {"_id": {"$gte": 10}}}, {"$group": {"_id": null, "n": {"$sum": 1}}}], "cursor": {}}`), `[{"_id":null,"n":14}]`)
	if n := donor.largest.Load(); n < 15<<20 || n > 16<<20+16<<10 {
		t.Errorf("the largest reply has %d bytes", n)
	}
}

// watchedPeer records the size of the largest reply to a migration's recipient.
type watchedPeer struct {
	cluster.Peer
	largest atomic.Int64
}

func (p *watchedPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	out, err := p.Peer.Call(ctx, m, dst)
	if n := int64(len(out) - len(dst)); err == nil && slices.Contains([]string{"_migrateClone", "_transferMods"}, string(m.CommandName())) && n > p.largest.Load() {
		p.largest.Store(n)
	}
	return out, err
}
