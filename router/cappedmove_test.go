package router_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A capped collection moves with its limits, its documents stay in the order of insertion, and it removes the right ones afterwards.
func TestCappedCollectionIsMoved(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "log", "capped": true, "size": 100000, "max": 10}`)
	c.run("db", `{"createIndexes": "log", "indexes": [{"key": {"k": 1}, "name": "k"}]}`)
	for i := range 15 {
		c.run("db", fmt.Sprintf(`{"insert": "log", "documents": [{"_id": %d, "k": %d}]}`, 100-i, i))
	}
	stale := c.through()
	order := func(through *testCluster, want string) {
		t.Helper()
		var got []any
		for _, d := range through.all("db", `{"find": "log", "sort": {"$natural": 1}}`) {
			got = append(got, get(d, "k"))
		}
		c.expect(got, want)
	}
	order(stale, `[5,6,7,8,9,10,11,12,13,14]`)
	for i, to := range []string{"shard1", "shard0", "shard1"} {
		c.run("admin", fmt.Sprintf(`{"moveCollection": "db.log", "toShard": %q}`, to))
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		stale.run("db", fmt.Sprintf(`{"insert": "log", "documents": [{"_id": %d, "k": %d}]}`, 50-i, 15+i))
		want := "["
		for k := 6 + i; k <= 15+i; k++ {
			want += fmt.Sprintf("%d,", k)
		}
		order(c, want[:len(want)-1]+"]")
		stats := c.run("db", `{"collStats": "log"}`)
		c.expect(bson.D{{Key: "capped", Value: stats["capped"]}, {Key: "max", Value: stats["max"]}, {Key: "count", Value: stats["count"]}}, `{"capped":true,"max":10,"count":10}`)
	}
	c.leftOver()
	if m := c.raw("admin", `{"shardCollection": "db.log", "key": {"k": 1}}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Errorf("a capped collection is sharded: %v", m)
	}
}

// Documents are inserted, updated and deleted, and inserted again under the same _id, while the clone is on its way: the copy has what the original
// has, in its order, although the oplog has no entries for what a capped collection has removed.
func TestCappedCollectionIsMovedUnderWrites(t *testing.T) {
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"create": "log", "capped": true, "size": 100000, "max": 20}`)
	put := func(id, k int) {
		t.Helper()
		c.expect(c.run("db", fmt.Sprintf(`{"insert": "log", "documents": [{"_id": %d, "k": %d}]}`, id, k))["n"], `1`)
	}
	for i := range 30 {
		put(i, i)
	}
	const point = "reshardingPauseCoordinatorAtState"
	k := 30
	busy := func() {
		t.Helper()
		put(1000+k, k)
		c.run("db", fmt.Sprintf(`{"delete": "log", "deletes": [{"q": {"k": %d}, "limit": 1}]}`, k-5))
		put(2000+k, k+1)
		c.run("db", fmt.Sprintf(`{"delete": "log", "deletes": [{"q": {"_id": %d}, "limit": 1}]}`, 1000+k))
		put(1000+k, k+2) // after the previous one
		c.run("db", fmt.Sprintf(`{"update": "log", "updates": [{"q": {"k": %d}, "u": {"$set": {"u": %d}}}]}`, k-8, k))
		k += 3
	}
	var want string
	for _, state := range []string{"cloning", "applying", "blocking-writes"} {
		entered, _ := c.points["config"].Configure(point, value.NewString("alwaysOn"), value.Doc(value.F("state", value.NewString(state))))
		done := make(chan bson.M, 1)
		to := map[string]string{"cloning": "shard1", "applying": "shard0", "blocking-writes": "shard1"}[state]
		go func() { done <- c.raw("admin", fmt.Sprintf(`{"moveCollection": "db.log", "toShard": %q}`, to)) }()
		if err := c.points["config"].Register(point).WaitEntered(t.Context(), entered+1); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			busy()
		}
		want = show(c.all("db", `{"find": "log", "sort": {"$natural": 1}}`))
		_, _ = c.points["config"].Configure(point, value.NewString("off"), nil)
		c.expect((<-done)["ok"], `1.0`)
		c.expect(c.all("db", `{"find": "log", "sort": {"$natural": 1}}`), want)
	}
	// And with a writer that does not stop.
	var written atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	writer := c.through()
	go func() {
		defer close(stopped)
		for i := 5000; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if m := writer.raw("db", fmt.Sprintf(`{"insert": "log", "documents": [{"_id": %d, "k": %d}]}`, i, i)); m["n"] != int32(1) {
				t.Errorf("%v", m)
				return
			}
			written.Store(int64(i))
		}
	}()
	for _, to := range []string{"shard0", "shard1"} {
		at := written.Load()
		c.until("the writer goes on", func() bool { return written.Load() > at+30 || t.Failed() })
		c.run("admin", fmt.Sprintf(`{"moveCollection": "db.log", "toShard": %q}`, to))
	}
	close(stop)
	<-stopped
	last := int(written.Load())
	var ids []any
	for _, d := range c.all("db", `{"find": "log", "sort": {"$natural": 1}}`) {
		ids = append(ids, get(d, "_id"))
	}
	list := "["
	for i := last - 19; i <= last; i++ {
		list += fmt.Sprintf("%d,", i)
	}
	c.expect(ids, list[:len(list)-1]+"]")
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// A collection that moveCollection or unshardCollection has placed is made capped where it is: its documents stay, in their order, routers that do not
// know of the change continue to read and write, and the catalog has the copy's UUID.
func TestPlacedCollectionIsMadeCapped(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("moved", 1, 10)
	c.run("db", `{"createIndexes": "moved", "indexes": [{"key": {"k": 1}, "name": "k"}]}`)
	c.shardedAs("unsharded", 1, 10)
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	c.run("admin", `{"unshardCollection": "db.unsharded", "toShard": "shard2"}`)
	c.insertKeys("home", 1, 10)
	for _, to := range []string{"shard1", "shard0"} {
		c.run("admin", fmt.Sprintf(`{"moveCollection": "db.home", "toShard": %q}`, to))
	}
	stale := c.through()
	for _, coll := range []string{"moved", "unsharded", "home"} {
		c.expect(len(stale.all("db", fmt.Sprintf(`{"find": %q}`, coll))), `10`)
		was := c.all("config", fmt.Sprintf(`{"find": "collections", "filter": {"_id": "db.%s"}}`, coll))[0]
		for _, bad := range []struct {
			args string
			code mongoerr.Code
		}{{`"size": 0`, mongoerr.InvalidOptions}, {`"size": 4096, "collectionUUID": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}`, mongoerr.CollectionUUIDMismatch}} {
			if m := c.raw("db", fmt.Sprintf(`{"convertToCapped": %q, %s}`, coll, bad.args)); m["code"] != int32(bad.code) {
				t.Errorf("%s with %s: %v", coll, bad.args, m)
			}
		}
		c.run("db", fmt.Sprintf(`{"convertToCapped": %q, "size": 100000}`, coll))
		c.leftOver()
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		c.expect(len(stale.all("db", fmt.Sprintf(`{"find": %q}`, coll))), `10`)
		stale.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1000, "k": 1000}]}`, coll))
		c.expect(get(c.all("db", fmt.Sprintf(`{"find": %q, "sort": {"$natural": -1}, "limit": 1}`, coll))[0], "k"), `1000`)
		c.expect(len(c.all("db", fmt.Sprintf(`{"listIndexes": %q}`, coll))), `1`)
		stats := c.run("db", fmt.Sprintf(`{"collStats": %q}`, coll))
		c.expect(bson.D{{Key: "capped", Value: stats["capped"]}, {Key: "count", Value: stats["count"]}}, `{"capped":true,"count":11}`)
		is := c.all("config", fmt.Sprintf(`{"find": "collections", "filter": {"_id": "db.%s"}}`, coll))[0]
		for _, field := range []string{"uuid", "lastmodEpoch"} {
			if show(get(was, field)) == show(get(is, field)) {
				t.Errorf("%s: its %s is the same", coll, field)
			}
		}
		c.expect(get(is, "unsplittable"), `true`)
		c.expect(len(c.all("config", `{"find": "chunks"}`)), `3`)
		c.run("db", fmt.Sprintf(`{"convertToCapped": %q, "size": 200000}`, coll)) // once more, of another size
	}
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard2"}`)
	c.expect(c.run("db", `{"collStats": "moved"}`)["capped"], `true`)
	c.shardedAs("sharded", 1, 4)
	if m := c.raw("db", `{"convertToCapped": "sharded", "size": 4096}`); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("a sharded collection: %v", m)
	}
}

// The primaries of the coordinating shard and of the collection's shard change at each phase of a convertToCapped.
func TestPlacedCollectionIsMadeCappedAtEveryPhase(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	for i, phase := range []string{"acquireCriticalSection", "copyCollection", "convertCollection", "releaseCriticalSection", "done"} {
		coll := fmt.Sprintf("c%d", i)
		c.insertKeys(coll, 1, 10)
		c.run("admin", fmt.Sprintf(`{"moveCollection": "db.%s", "toShard": "shard1"}`, coll))
		m := c.atPhase("shard2", phase, "db", fmt.Sprintf(`{"convertToCapped": %q, "size": 100000}`, coll))
		if m["ok"] != 1.0 && m["code"] != int32(mongoerr.HostUnreachable) {
			t.Errorf("%s: %v", phase, m)
		}
		c.restart("shard1")
		c.leftOver()
		c.expect(c.run("db", fmt.Sprintf(`{"collStats": %q}`, coll))["capped"], `true`)
		c.expect(c.counted(coll, 1), `10`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
}
