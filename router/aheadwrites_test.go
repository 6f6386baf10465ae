package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
)

// heldClone makes a cluster of two shards in which no recipient of a resharding gets a document of the other shard before free is called. drains sees requests for the documents
// whose _ids a recipient has stored meanwhile.
func heldClone(t *testing.T, drains func(ctx context.Context, donor string)) (c *testCluster, free func()) {
	t.Helper()
	c, _, free = heldCloneIn(t, clusterHooks{}, drains)
	return c, free
}

// heldCloneIn is heldClone with further hooks; came tells of each request that is held.
func heldCloneIn(t *testing.T, hooks clusterHooks, drains func(ctx context.Context, donor string)) (c *testCluster, came <-chan struct{}, free func()) {
	t.Helper()
	asked := make(chan struct{}, 1000)
	held := make(chan struct{})
	free = sync.OnceFunc(func() { close(held) })
	t.Cleanup(free)
	hooks.peer = func(shard string, s *shardnode.Server) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			switch string(m.CommandName()) {
			case "_shardsvrReshardingFetchDocuments":
				select {
				case asked <- struct{}{}:
				default:
				}
				select {
				case <-held:
				case <-ctx.Done():
					return dst, ctx.Err()
				}
			case "_shardsvrReshardingFetchChanges":
				if !value.Lookup(m.Body, "ids").IsMissing() {
					drains(ctx, shard)
				}
			}
			return s.Peer().Call(ctx, m, dst)
		})
	}
	return newHookedCluster(t, 2, hooks), asked, free
}

// buffered returns the _ids that a shard's recipients of reshardings have stored.
func (c *testCluster) buffered(shard string) (ids []any) {
	c.t.Helper()
	for _, name := range c.buffers(shard) {
		for _, d := range get(c.admin(c.shards[shard], bson.D{{Key: "find", Value: name}, {Key: "batchSize", Value: 1000}, {Key: "$db", Value: "config"}})["cursor"], "firstBatch").(bson.A) {
			ids = append(ids, get(d, "_id"))
		}
	}
	return ids
}

// buffers lists the collections of these _ids.
func (c *testCluster) buffers(shard string) (names []string) {
	c.t.Helper()
	colls := c.admin(c.shards[shard], bson.D{{Key: "listCollections", Value: 1}, {Key: "$db", Value: "config"}})
	for _, coll := range get(colls["cursor"], "firstBatch").(bson.A) {
		if name := get(coll, "name").(string); strings.HasPrefix(name, "localReshardingOplogBuffer") {
			names = append(names, name)
		}
	}
	return names
}

// awaitBuffered waits until both recipients have stored an _id.
func (c *testCluster) awaitBuffered(id any) {
	c.t.Helper()
	for _, shard := range []string{"shard0", "shard1"} {
		c.until("the _id is stored by "+shard, func() bool {
			for _, have := range c.buffered(shard) {
				if have == id {
					return true
				}
			}
			return false
		})
	}
}

// Clients write all the time while a recipient applies what was written during its clone. It used to store what they wrote beside each part that it applied, and to apply that in the same way, so
// that it never asked donors for what follows, by which the coordinator knows that recipients have caught up.
func TestWritersDoNotKeepARecipientFromCatchingUp(t *testing.T) {
	t.Parallel()
	const tooMany = 50
	var drained atomic.Int32
	var writing sync.Mutex
	var other *testCluster
	c, free := heldClone(t, func(context.Context, string) {
		if drained.Add(1) > tooMany {
			return // the test fails, and ends
		}
		writing.Lock()
		defer writing.Unlock()
		other.run("db", `{"update": "c", "updates": [{"q": {"k": 5}, "u": {"$inc": {"n": 1}}}, {"q": {"k": 15}, "u": {"$inc": {"n": 1}}}]}`)
	})
	c.fill(20)
	other = c.through()
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"g": 1, "_id": 1}, "numInitialChunks": 2}`)
	c.run("db", `{"update": "c", "updates": [{"q": {"k": 3}, "u": {"$inc": {"n": 1}}}]}`)
	c.until("the first write is stored", func() bool { // writes before the clone's time are not
		c.run("db", `{"update": "c", "updates": [{"q": {"k": 3}, "u": {"$inc": {"n": 1}}}, {"q": {"k": 13}, "u": {"$inc": {"n": 1}}}]}`)
		return len(c.buffered("shard0")) >= 2 && len(c.buffered("shard1")) >= 2
	})
	want := show(c.all("db", `{"find": "c", "filter": {"k": {"$nin": [5, 15]}}, "sort": {"_id": 1}}`))
	free()
	if m := <-resharded; m["ok"] != 1.0 {
		t.Error(m)
	}
	if n := drained.Load(); n == 0 || n > 10 {
		t.Errorf("%d requests for documents whose _ids were stored", n)
	}
	if got := show(c.all("db", `{"find": "c", "filter": {"k": {"$nin": [5, 15]}}, "sort": {"_id": 1}}`)); got != want {
		t.Errorf("after the resharding\n%s\nbefore\n%s", got, want)
	}
	c.leftOver()
}

// The _ids of a collection are compared by its collation. A document that is deleted during the clone, and inserted again with another _id that is equal by that, was sent twice in one reply,
// which ended the resharding with a duplicate key.
func TestEqualIDsByCollationAreStoredOnce(t *testing.T) {
	t.Parallel()
	c, free := heldClone(t, func(context.Context, string) {})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "c", "collation": {"locale": "en", "strength": 2}}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}, "collation": {"locale": "simple"}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1", "_waitForDelete": true}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": "a", "k": -1, "g": 5}, {"_id": "b", "k": -2, "g": -5}, {"_id": "c", "k": 1, "g": 5}, {"_id": "d", "k": 2, "g": -5}]}`)
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"g": "hashed"}, "collation": {"locale": "simple"}, "numInitialChunks": 4}`)
	c.until("recipients store what is written", func() bool {
		if len(resharded) > 0 {
			t.Fatal(<-resharded)
		}
		c.run("db", `{"update": "c", "updates": [{"q": {"k": -2}, "u": {"$inc": {"n": 1}}}, {"q": {"k": 2}, "u": {"$inc": {"n": 1}}}]}`)
		return len(c.buffered("shard0")) >= 2 && len(c.buffered("shard1")) >= 2
	})
	for _, id := range []string{"a", "c"} {
		k := map[string]string{"a": "-1", "c": "1"}[id]
		c.run("db", `{"delete": "c", "deletes": [{"q": {"_id": "`+id+`", "k": `+k+`}, "limit": 1}]}`)
		c.awaitBuffered(id)
		c.run("db", `{"insert": "c", "documents": [{"_id": "`+strings.ToUpper(id)+`", "k": `+k+`, "g": 6}, {"_id": "after`+id+`", "k": `+k+`, "g": 7}]}`)
		c.awaitBuffered("after" + id)
	}
	want := show(c.all("db", `{"find": "c", "sort": {"_id": 1}}`))
	free()
	if m := <-resharded; m["ok"] != 1.0 {
		t.Error(m)
	}
	if got := show(c.all("db", `{"find": "c", "sort": {"_id": 1}}`)); got != want {
		t.Errorf("after the resharding\n%s\nbefore\n%s", got, want)
	}
	c.leftOver()
}

// A resharding is aborted while recipients clone, and while they apply what they have stored meanwhile: nothing of that is left.
func TestAbortLeavesNoStoredIDs(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"clone", "drain"} {
		t.Run(phase, func(t *testing.T) {
			var once sync.Once
			draining, aborted := make(chan struct{}), make(chan struct{})
			goOn := sync.OnceFunc(func() { close(aborted) })
			t.Cleanup(goOn)
			c, free := heldClone(t, func(ctx context.Context, _ string) {
				once.Do(func() { close(draining) })
				select {
				case <-aborted:
				case <-ctx.Done():
				}
			})
			c.fill(20)
			resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"g": 1, "_id": 1}, "numInitialChunks": 2}`)
			c.until("recipients have stored writes", func() bool {
				c.run("db", `{"update": "c", "updates": [{"q": {"k": 3}, "u": {"$inc": {"n": 1}}}, {"q": {"k": 13}, "u": {"$inc": {"n": 1}}}]}`)
				return len(c.buffered("shard0")) >= 2 && len(c.buffered("shard1")) >= 2
			})
			want := show(c.all("db", `{"find": "c", "sort": {"_id": 1}}`))
			if phase == "drain" {
				free()
				<-draining
			}
			c.run("admin", `{"abortReshardCollection": "db.c"}`)
			if m := <-resharded; m["ok"] != 0.0 {
				t.Error(m)
			}
			goOn()
			free()
			for _, shard := range []string{"shard0", "shard1"} {
				if left := c.buffers(shard); len(left) > 0 {
					t.Errorf("%s has %q", shard, left)
				}
			}
			if got := show(c.all("db", `{"find": "c", "sort": {"_id": 1}}`)); got != want {
				t.Errorf("after the resharding\n%s\nbefore\n%s", got, want)
			}
			c.leftOver()
		})
	}
}

// The primaries of both shards change while recipients apply what they have stored during the clone: their next ones continue with the rest.
func TestNextPrimaryAppliesTheRestOfWhatIsStored(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	at := []chan struct{}{make(chan struct{}), make(chan struct{})}
	var c *testCluster
	c, free := heldClone(t, func(ctx context.Context, _ string) {
		if i := n.Add(1) - 2; i >= 0 && int(i) < len(at) {
			close(at[i])
			<-ctx.Done() // the recipient steps down
		}
	})
	c.fill(20)
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"g": 1, "_id": 1}, "numInitialChunks": 2}`)
	pad := strings.Repeat("x", 1_500_000)
	set := func(k int) {
		c.run("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"k": %d}, "u": {"$inc": {"n": 1}, "$set": {"pad": %q}}}, {"q": {"k": %d}, "u": {"$inc": {"n": 1}, "$set": {"pad": %q}}}]}`, k, pad, k+10, pad))
	}
	c.until("recipients have stored writes", func() bool {
		set(0)
		return len(c.buffered("shard0")) >= 2 && len(c.buffered("shard1")) >= 2
	})
	for k := range 9 {
		set(k)
	}
	c.run("db", `{"delete": "c", "deletes": [{"q": {"k": 9}, "limit": 1}, {"q": {"k": 19}, "limit": 1}]}`)
	c.awaitBuffered(int32(9))
	c.awaitBuffered(int32(19))
	sum := func() string {
		return show(c.all("db", `{"aggregate": "c", "pipeline": [{"$sort": {"_id": 1}}, {"$set": {"pad": {"$strLenBytes": {"$ifNull": ["$pad", ""]}}}}], "cursor": {}}`))
	}
	want := sum()
	free()
	for i := range at {
		<-at[i]
		for _, shard := range []string{"shard0", "shard1"} {
			c.restart(shard)
		}
	}
	if m := <-resharded; m["ok"] != 1.0 {
		t.Error(m)
	}
	if got := sum(); got != want {
		t.Errorf("after the resharding\n%s\nbefore\n%s", got, want)
	}
	c.leftOver()
}
