package router_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// staleCluster creates three shards and a collection d.c of 300 documents sharded by _id: [0, 100) on shard0, [100, 300)
// on shard1. It also returns the cluster through a router that has read that placement and learns of no later change.
func staleCluster(t *testing.T) (c, stale *testCluster) {
	t.Helper()
	c = newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	for _, at := range []int{100, 200} {
		c.run("admin", fmt.Sprintf(`{"split": "d.c", "middle": {"_id": %d}}`, at))
		c.run("admin", fmt.Sprintf(`{"moveChunk": "d.c", "find": {"_id": %d}, "to": "shard1", "_waitForDelete": true}`, at))
	}
	var docs []string
	for i := range 300 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "x": 0}`, i))
	}
	c.run("d", fmt.Sprintf(`{"insert": "c", "documents": [%s]}`, strings.Join(docs, ",")))
	stale = c.through()
	stale.expect(stale.run("d", `{"count": "c"}`)["n"], `300`)
	return c, stale
}

// moved moves the range that begins at a key to a shard, through the up-to-date router.
func (c *testCluster) moved(at int, to string) {
	c.t.Helper()
	c.run("admin", fmt.Sprintf(`{"moveChunk": "d.c", "find": {"_id": %d}, "to": %q, "_waitForDelete": true}`, at, to))
}

// Multi-document writes by a router with the placement before a completed migration used to go to the shards of the old placement,
// each of which executed its part whatever the version: the shard that had received the range was skipped, and the client
// got a success reply.
func TestMultiWritesByAStaleRouter(t *testing.T) {
	for _, w := range []struct{ name, db, cmd, field string }{
		{"update", "d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, "n"},
		{"unordered", "d", `{"update": "c", "ordered": false, "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, "n"},
		{"bulkWrite", "admin", `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {}, "updateMods": {"$inc": {"x": 1}}, "multi": true}], "nsInfo": [{"ns": "d.c"}]}`, "nMatched"},
		{"delete", "d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`, "n"},
	} {
		t.Run(w.name, func(t *testing.T) {
			c, stale := staleCluster(t)
			c.moved(200, "shard2")
			stale.expect(stale.run(w.db, w.cmd)[w.field], `300`)
			left := `300`
			if w.name == "delete" {
				left = `0`
			}
			c.expect(c.run("d", `{"count": "c", "query": {}}`)["n"], left)
			if left != `0` {
				c.expect(c.run("d", `{"count": "c", "query": {"x": 1}}`)["n"], left)
			}
		})
	}
}

// Statistics and checks through such a router used to skip the shard that had received the range, too.
func TestFiguresByAStaleRouter(t *testing.T) {
	for _, x := range []struct{ cmd, field, want string }{
		{`{"collStats": "c"}`, "count", `300`},
		{`{"dataSize": "d.c", "keyPattern": {"_id": 1}}`, "numObjects", `300`},
		{`{"aggregate": "c", "pipeline": [{"$collStats": {"count": {}}}, {"$group": {"_id": null, "n": {"$sum": "$count"}}}], "cursor": {}}`, "cursor.firstBatch.n", `300`},
	} {
		c, stale := staleCluster(t)
		c.moved(200, "shard2")
		if m := stale.raw("d", x.cmd); show(fieldAt(m, x.field)) != x.want {
			t.Errorf("%s: %v, want %s of %s", x.cmd, m, x.field, x.want)
		}
	}
	c, stale := staleCluster(t)
	c.moved(200, "shard2")
	records := int32(0)
	for _, e := range stale.run("d", `{"validate": "c"}`)["raw"].(bson.D) {
		records += get(e.Value, "nrecords").(int32)
	}
	if records != 300 {
		t.Errorf("validate examines %d documents of 300", records)
	}
}

// The same in a transaction, where the first statement may still be retried, and a later one may not: the client has to
// restart the transaction, and does not get the same error again.
func TestMultiWritesInTransactionsByAStaleRouter(t *testing.T) {
	c, stale := staleCluster(t)
	c.moved(200, "shard2")
	stale.txn([]txnStep{
		{1, true, "d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, 0, "n", "300"},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
	c.expect(c.run("d", `{"count": "c", "query": {"x": 1}}`)["n"], `300`)
	c.moved(200, "shard1")
	w := stale.txnClient(1)
	for try := 0; ; try++ {
		if _, code := w.do("d", `{"find": "c", "filter": {"_id": 250}}`, true); code != 0 { // with the current placement
			t.Fatalf("the first statement: %d", code)
		}
		m, code := w.do("d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, false)
		if code == 0 {
			stale.expect(m["n"], `300`)
			if m, code = w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
				t.Fatal(m)
			}
			break
		}
		if !transient(m) || try == 3 {
			t.Fatalf("try %d: %v", try, m)
		}
	}
	c.expect(c.run("d", `{"count": "c", "query": {"x": 2}}`)["n"], `300`)
}

// transient reports whether a reply has the label with which a client retries its transaction.
func transient(m bson.M) bool {
	labels, _ := m["errorLabels"].(bson.A)
	return slices.Contains(labels, any("TransientTransactionError"))
}

// A transaction whose later statement read a collection that had moved used to be refused with TransientTransactionError, and the
// router kept the stale placement: however often the client retried, it got the same error, until a read outside of a
// transaction refreshed it.
func TestTransactionsThatReadAMovedCollectionLater(t *testing.T) {
	for _, second := range []string{
		`{"find": "c", "filter": {"_id": 250}}`,
		`{"find": "c"}`,
		`{"aggregate": "c", "pipeline": [{"$group": {"_id": null, "n": {"$sum": 1}}}], "cursor": {}}`,
		`{"update": "c", "updates": [{"q": {"_id": 250}, "u": {"$inc": {"x": 1}}}]}`,
		`{"update": "c", "updates": [{"q": {"x": 0}, "u": {"$inc": {"x": 1}}}]}`,
		`{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`,
		`{"insert": "c", "documents": [{"_id": 250.5}]}`,
		`{"findAndModify": "c", "query": {"_id": 250}, "update": {"$inc": {"x": 1}}}`,
	} {
		c, stale := staleCluster(t)
		c.run("admin", `{"shardCollection": "d.other", "key": {"_id": 1}}`)
		c.run("admin", `{"moveChunk": "d.other", "find": {"_id": 1}, "to": "shard1"}`)
		stale.run("d", `{"insert": "other", "documents": [{"_id": 1}]}`)
		c.moved(200, "shard2")
		w, tries := stale.txnClient(1), 0
		for ; tries < 5; tries++ {
			if m, code := w.do("d", `{"find": "other", "filter": {"_id": 1}}`, true); code != 0 {
				if !transient(m) {
					t.Fatal(m)
				}
				continue
			}
			m, code := w.do("d", second, false)
			if code == 0 {
				break
			}
			if !transient(m) {
				t.Fatalf("%s: %v", second, m)
			}
		}
		if tries > 2 {
			t.Errorf("%s: still refused at try %d", second, tries)
		}
	}
}

// Multi-document writes update each document once, whatever moves meanwhile and however stale their router's placement
// is; in transactions, too. Documents that moved from a shard not yet written to one already written used to be missed,
// and those that moved the other way were updated twice.
func TestMultiWritesDuringMigrations(t *testing.T) {
	c, _ := staleCluster(t)
	const docs, chunks, rounds = 300, 12, 20
	for at := docs / chunks; at < docs; at += docs / chunks {
		if at%100 != 0 {
			c.run("admin", fmt.Sprintf(`{"split": "d.c", "middle": {"_id": %d}}`, at))
		}
	}
	var writing, moving sync.WaitGroup
	stop := make(chan struct{})
	var moves, updates atomic.Int64
	moving.Add(1)
	go func() {
		defer moving.Done()
		m, rnd := c.through(), rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-stop:
				return
			default:
			}
			if m.raw("admin", fmt.Sprintf(`{"moveChunk": "d.c", "find": {"_id": %d}, "to": "shard%d"}`, rnd.IntN(docs), rnd.IntN(3)))["ok"] == 1.0 {
				moves.Add(1)
			}
		}
	}()
	run := func(id int, write func(w *txnClient) bool) {
		writing.Add(1)
		go func() {
			defer writing.Done()
			w := c.through().txnClient(id)
			for n := 0; n < rounds && !t.Failed(); {
				if write(w) {
					n++
				}
			}
		}()
	}
	const all = `{"update": "c", "updates": [{"q": {"y": null}, "u": {"$inc": {"x": 1}}, "multi": true}]}`
	for id := range 2 {
		run(id, func(w *txnClient) bool {
			m := w.c.raw("d", all)
			if m["ok"] != 1.0 || m["writeErrors"] != nil || m["n"] != int32(docs) {
				t.Errorf("an update of all: %v", m)
			}
			updates.Add(1)
			return true
		})
	}
	run(2, func(w *txnClient) bool { // inserts and deletes documents that no other client writes
		var some []string
		for i := range 60 {
			some = append(some, fmt.Sprintf(`{"_id": %d.5, "y": 1}`, i*5))
		}
		w.c.run("d", fmt.Sprintf(`{"insert": "c", "ordered": false, "documents": [%s]}`, strings.Join(some, ",")))
		if m := w.c.raw("d", `{"delete": "c", "deletes": [{"q": {"y": 1}, "limit": 0}]}`); m["n"] != int32(60) {
			t.Errorf("a delete of 60: %v", m)
		}
		return true
	})
	for id := 3; id < 5; id++ {
		run(id, func(w *txnClient) bool {
			read := fmt.Sprintf(`{"find": "c", "filter": {"_id": %d}}`, w.number%docs)
			if id == 4 { // the second statement goes to shards that take part already
				if _, code := w.do("d", read, true); code != 0 {
					return false
				}
			}
			m, code := w.do("d", all, id == 3)
			if code != 0 {
				if !transient(m) {
					t.Errorf("an update of all in a transaction: %v", m)
				}
				return false
			}
			if m["n"] != int32(docs) {
				t.Errorf("an update of all in a transaction: %v", m)
			}
			if m, code = w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
				if !transient(m) {
					t.Errorf("a commit: %v", m)
				}
				return false
			}
			updates.Add(1)
			return true
		})
	}
	writing.Wait()
	close(stop)
	moving.Wait()
	if n := c.run("d", fmt.Sprintf(`{"count": "c", "query": {"x": %d}}`, updates.Load()))["n"]; n != int32(docs) {
		t.Errorf("%v of %d documents have all %d updates", n, docs, updates.Load())
	}
	c.expect(c.run("d", `{"count": "c", "query": {"y": 1}}`)["n"], `0`)
	t.Logf("%d updates, %d migrations", updates.Load(), moves.Load())
	if moves.Load() == 0 {
		t.Error("nothing moved")
	}
}

// A bulkWrite on a sharded collection used to put every error among the results of its operations, including those for which a
// transaction has to be retried: the client saw neither code nor label and gave up.
func TestBulkWritesInTransactionsSayBeginAnew(t *testing.T) {
	const all = `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {}, "updateMods": {"$inc": {"x": 1}}, "multi": true}], "nsInfo": [{"ns": "d.c"}]}`
	c, stale := staleCluster(t)
	c.run("admin", `{"shardCollection": "d.other", "key": {"_id": 1}}`)
	stale.run("d", `{"insert": "other", "documents": [{"_id": 1}]}`)
	c.moved(200, "shard2")
	w := stale.txnClient(1)
	w.do("d", `{"find": "other"}`, true)
	if m, code := w.do("admin", all, false); code == 0 || !transient(m) {
		t.Errorf("after a move: %v", m)
	}
	v := c.txnClient(2)
	v.do("d", `{"update": "c", "updates": [{"q": {"_id": 5}, "u": {"$inc": {"x": 1}}}]}`, true)
	w = c.txnClient(3)
	if m, code := w.do("admin", all, true); code != int32(mongoerr.WriteConflict) || !transient(m) {
		t.Errorf("a write conflict: %v", m)
	}
	if m, code := v.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
		t.Fatal(m)
	}
	c.expect(c.run("d", `{"count": "c", "query": {"x": 1}}`)["n"], `1`)
}
