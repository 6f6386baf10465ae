package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Retryable writes are each executed once, and no two of them create the same version of a document, while chunks move.
func TestRetryableWritesBesideMigrations(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	for _, coll := range []string{"reg", "other"} {
		c.run("admin", fmt.Sprintf(`{"shardCollection": "d.%s", "key": {"_id": 1}}`, coll))
		c.run("admin", fmt.Sprintf(`{"split": "d.%s", "middle": {"_id": 0}}`, coll))
	}
	const docs = 8
	for i := range docs {
		c.run("d", fmt.Sprintf(`{"insert": "reg", "documents": [{"_id": %d, "n": 0}]}`, i-docs/2))
	}
	var mu sync.Mutex
	seen := map[[2]int32]int{}
	var done, moved atomic.Int64
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w, rnd := c.txnClient(i), rand.New(rand.NewPCG(uint64(i), 7))
			for time.Now().Before(end) {
				k := int32(rnd.IntN(docs) - docs/2)
				w.number++
				m := c.runAs(w, "d", fmt.Sprintf(`{"findAndModify": "reg", "query": {"_id": %d}, "update": {"$inc": {"n": 1}}, "new": true, %s, "txnNumber": {"$numberLong": "%d"}}`, k, w.lsid, w.number))
				n, ok := get(m["value"], "n").(int32)
				if !ok {
					t.Errorf("%v", m)
					return
				}
				mu.Lock()
				if other, twice := seen[[2]int32{k, n}]; twice {
					t.Errorf("version %d of %d was written by %d and by %d", n, k, other, i)
				}
				seen[[2]int32{k, n}] = i
				mu.Unlock()
				done.Add(1)
			}
		}()
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		mover := command.NewClient(99, "test", "test", nil)
		for i := 0; time.Now().Before(end); i++ {
			coll := []string{"other", "reg"}[i/2%2]
			body, _ := bson.Marshal(bson.D{{Key: "moveChunk", Value: "d." + coll}, {Key: "find", Value: bson.D{{Key: "_id", Value: 1}}},
				{Key: "to", Value: fmt.Sprintf("shard%d", (i+1)%2)}, {Key: "$db", Value: "admin"}})
			if decode(t, c.router.Run(context.Background(), mover, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))["ok"] == 1.0 {
				moved.Add(1)
			}
		}
	}()
	wg.Wait()
	t.Logf("%d writes, %d migrations", done.Load(), moved.Load())
	if done.Load() == 0 || moved.Load() == 0 {
		t.Error("nothing was tried")
	}
}

func (c *testCluster) runAs(w *txnClient, db, cmd string) bson.M {
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		c.t.Error(err)
	}
	body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: db}))
	if err != nil {
		c.t.Error(err)
	}
	return decode(c.t, c.router.Run(fromConnection, w.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
}

// twoHalves shards d.c by _id in two chunks, the upper on shard0 like the lower, with a document in each.
func (c *testCluster) twoHalves() {
	c.t.Helper()
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "d.c", "middle": {"_id": 0}}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": -1, "x": 1}, {"_id": 1, "x": 1}]}`)
}

func (c *testCluster) move(to string) {
	c.t.Helper()
	c.run("admin", fmt.Sprintf(`{"moveChunk": "d.c", "find": {"_id": 1}, "to": %q}`, to))
}

// A range deletion that was executed elsewhere since the deleter read its document is not executed again: the range may
// have come back, with live documents.
func TestOldRangeDeletionsAreNotRepeated(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoHalves()
	entered := c.point("shard0", "suspendRangeDeletion", true)
	c.move("shard1")
	entered() // the deleter has read that the range is to be deleted
	c.move("shard0")
	c.point("shard0", "suspendRangeDeletion", false)
	// The deleter has finished once it begins the next deletion.
	c.move("shard1")
	c.until("the donor has deleted the range", func() bool { return c.rangeDeletions("shard0") == 0 })
	c.expect(c.all("d", `{"find": "c", "sort": {"_id": 1}}`), `[{"_id":-1,"x":1},{"_id":1,"x":1}]`)
}

// untilWaiting waits until n operations with the comment "waits" are in progress on the shards.
func (c *testCluster) untilWaiting(n int) {
	c.t.Helper()
	c.until(fmt.Sprint(n, " operations are on the shards"), func() bool {
		found := 0
		for _, shard := range c.shards {
			ops := c.admin(shard, bson.D{{Key: "currentOp", Value: 1}, {Key: "command.comment", Value: "waits"}, {Key: "$db", Value: "admin"}})
			found += len(ops["inprog"].(bson.A))
		}
		return found == n
	})
}

func (c *testCluster) rangeDeletions(shard string) int32 {
	m := c.admin(c.shards[shard], bson.D{{Key: "count", Value: "rangeDeletions"}, {Key: "query", Value: bson.D{}}, {Key: "$db", Value: "config"}})
	return m["n"].(int32)
}

// A read at a time before a range arrived on its shard is served by the shard that owned it then, even if it waited for the critical sections of
// both; a write to it in a transaction of that time is refused.
func TestReadsBeforeARangeArrivedGoToItsOwnerOfThen(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoHalves()
	w := c.txnClient(0)
	m, code := w.do("d", `{"find": "c", "filter": {"_id": -1}}`, true) // which sets the transaction's time
	if code != 0 {
		t.Fatal(m)
	}
	snapshot := c.run("d", `{"find": "c", "filter": {"_id": -1}, "readConcern": {"level": "snapshot"}}`)
	at := get(snapshot["cursor"], "atClusterTime").(bson.Timestamp)
	entered := c.point("shard0", "moveChunkHangAtStep6", true) // committed, and the new owner has not been notified
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		c.move("shard1")
	}()
	entered()
	c.run("admin", `{"flushRouterConfig": 1}`)
	old := fmt.Sprintf(`{"find": "c", "filter": {"_id": 1}, "comment": "waits", "readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}}`, at.T, at.I)
	wg.Go(func() { // which waits for the old owner's critical section
		if m := c.as(command.NewClient(9, "test", "test", nil), "d", old); m["ok"] != 1.0 || show(get(m["cursor"], "firstBatch")) != `[{"_id":1,"x":1}]` {
			t.Errorf("at an earlier time: %v", m)
		}
	})
	wg.Go(func() { // which waits for the new owner's
		const now = `{"find": "c", "filter": {"_id": 1}, "comment": "waits", "readConcern": {"level": "snapshot"}}`
		if m := c.as(command.NewClient(10, "test", "test", nil), "d", now); m["ok"] != 1.0 || show(get(m["cursor"], "firstBatch")) != `[{"_id":1,"x":1}]` {
			t.Errorf("at a later time: %v", m)
		}
	})
	c.untilWaiting(2)
	c.point("shard0", "moveChunkHangAtStep6", false)
	wg.Wait()
	c.run("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 2}}}]}`)
	c.expect(c.all("d", old), `[{"_id":1,"x":1}]`)
	if m, code := w.do("d", `{"find": "c", "filter": {"_id": 1}}`, false); code != 0 || show(get(m["cursor"], "firstBatch")) != `[{"_id":1,"x":1}]` {
		t.Errorf("in a transaction: %v", m)
	}
	if m, code := w.do("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 3}}}]}`, false); code != int32(mongoerr.MigrationConflict) {
		t.Errorf("a write of a transaction: %v", m)
	}
}

// A transaction that begins with a write to a range that is just arriving waits for the end of the new owner's critical section, and continues
// right after it: its snapshot is not before the arrival.
func TestTransactionsBeginRightBehindAMove(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoHalves()
	entered := c.point("shard0", "moveChunkHangAtStep6", true) // committed, and the new owner has not been notified
	var wg sync.WaitGroup
	wg.Go(func() { c.move("shard1") })
	entered()
	c.run("admin", `{"flushRouterConfig": 1}`)
	for i, concern := range []string{"", `, "readConcern": {"level": "local"}`, `, "readConcern": {"level": "majority"}`, `, "readConcern": {"level": "snapshot"}`} {
		w := c.txnClient(i)
		w.number++
		wg.Go(func() {
			if m, code := w.do("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d}], "comment": "waits", "startTransaction": true%s}`, 100+i, concern), false); code != 0 {
				t.Errorf("with%s: %v", concern, m)
			}
			if m, code := w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
				t.Errorf("with%s, commit: %v", concern, m)
			}
		})
	}
	c.untilWaiting(4)
	c.point("shard0", "moveChunkHangAtStep6", false)
	wg.Wait()
}
