package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// hangAt has DDL that a shard coordinates stop before a phase, and returns a function that waits until one has stopped, and one that makes it continue.
func (c *testCluster) hangAt(shard, phase string) (reached, release func()) {
	c.t.Helper()
	return c.hangOn(shard, hangBeforePhase, "phase", phase)
}

// hangOn is hangAt for a fail point of a node, whose data names in a field where it stops.
func (c *testCluster) hangOn(node, point, field, at string) (reached, release func()) {
	c.t.Helper()
	entered, _ := c.points[node].Configure(point, value.NewString("alwaysOn"), value.Doc(value.F(field, value.NewString(at))))
	reached = func() {
		c.t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := c.points[node].Register(point).WaitEntered(ctx, entered+1); err != nil {
			c.t.Fatalf("%s was not reached: %v", at, err)
		}
	}
	return reached, func() {
		if _, err := c.points[node].Configure(point, value.NewString("off"), nil); err != nil {
			c.t.Error(err)
		}
	}
}

// While a database is copied to its new primary shard, clients write to its collections in every way; documents exchange the keys of
// a unique index, and a capped collection removes its first ones. All of it is on the new shard, in the same order.
func TestMovePrimaryBesideWrites(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.fillDatabase()
	const docs = 3000
	pad := strings.Repeat("x", 600)
	c.run("db", `{"createIndexes": "u", "indexes": [{"key": {"u": 1}, "name": "u_1", "unique": true}]}`)
	var list []string
	for i := range docs {
		if list = append(list, fmt.Sprintf(`{"_id": %d, "u": %d, "pad": %q}`, i, i, pad)); len(list) == 1000 {
			c.run("db", `{"insert": "u", "documents": [`+strings.Join(list, ",")+`]}`)
			list = nil
		}
	}
	c.run("db", `{"create": "full", "capped": true, "size": 100000, "max": 5}`)
	c.run("db", `{"insert": "full", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}, {"_id": 4}, {"_id": 5}]}`)
	reached, release := c.hangAt("shard0", "blockWrites")
	moved := make(chan bson.M, 1)
	go func() { moved <- c.raw("admin", `{"movePrimary": "db", "to": "shard1"}`) }()
	reached()
	// The copy never has more than five documents: only the removals of its source show that the first one is gone, and that the third one is now the last.
	c.run("db", `{"insert": "full", "documents": [{"_id": 6}]}`)
	for _, id := range []int{6, 3} {
		c.run("db", fmt.Sprintf(`{"delete": "full", "deletes": [{"q": {"_id": %d}, "limit": 1}]}`, id))
	}
	c.run("db", `{"insert": "full", "documents": [{"_id": 3}]}`)
	c.run("db", `{"update": "u", "updates": [{"q": {}, "u": {"$set": {"n": 1}}, "multi": true}], "maxTimeMS": 100000}`)
	for i := docs - 1; i >= 0; i -= 1000 { // each takes the key that the next one had
		list = nil
		for j := i; j > i-1000; j-- {
			list = append(list, fmt.Sprintf(`{"q": {"_id": %d}, "u": {"$inc": {"u": 1}}}`, j))
		}
		c.run("db", `{"update": "u", "updates": [`+strings.Join(list, ",")+`], "maxTimeMS": 100000}`)
	}
	c.run("db", `{"delete": "u", "deletes": [{"q": {"_id": {"$lt": 10}}, "limit": 0}]}`)
	c.run("db", `{"insert": "u", "documents": [{"_id": 5, "u": 5, "again": true}, {"_id": "new", "u": "new"}]}`)
	c.insertKeys("capped", 11, 13)
	c.run("db", `{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:00:01Z"}, "m": 1, "x": 6}]}`)
	txn := `"lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAg==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}, "autocommit": false`
	c.run("db", `{"insert": "u", "documents": [{"_id": "txn", "u": "txn"}], "startTransaction": true, `+txn+`}`)
	c.run("db", `{"update": "u", "updates": [{"q": {"_id": 5}, "u": {"$set": {"txn": true}}}], `+txn+`}`)
	c.run("admin", `{"commitTransaction": 1, `+txn+`}`)
	const inc = `{"update": "u", "updates": [{"q": {"_id": 5}, "u": {"$inc": {"once": 1}}}], "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}}`
	c.run("db", inc)
	before := map[string]bson.A{}
	for _, coll := range []string{"u", "capped", "full", "ts"} {
		before[coll] = c.all("db", fmt.Sprintf(`{"find": %q, "sort": %s}`, coll, map[bool]string{true: `{"_id": 1}`, false: `{}`}[coll == "u"]))
	}
	if got := len(before["full"]); got != 4 {
		t.Fatalf("%d documents of the capped collection", got)
	}
	release()
	if m := <-moved; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	c.leftOver()
	c.run("db", inc) // it was executed on the old shard
	for coll, want := range before {
		got := c.all("db", fmt.Sprintf(`{"find": %q, "sort": %s}`, coll, map[bool]string{true: `{"_id": 1}`, false: `{}`}[coll == "u"]))
		if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
			t.Errorf("%s has %d documents that are not the %d that it had: %.300s, want %.300s", coll, len(got), len(want), g, w)
		}
	}
	c.expect(c.all("db", `{"find": "u", "filter": {"_id": 5}}`), `[{"_id":5,"u":5,"again":true,"txn":true,"once":1}]`)
	c.expect(len(c.all("db", `{"find": "u", "filter": {"u": {"$gte": 0}}, "hint": "u_1"}`)), fmt.Sprint(docs-10+1))
}

// Several writers continue while a database moves from shard to shard: at the end it has what they have written, and nothing else.
func TestMovePrimaryBackAndForthBesideWrites(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"createIndexes": "u", "indexes": [{"key": {"u": 1}, "name": "u_1", "unique": true}]}`)
	const writers, each = 4, 50
	model := make([]map[int]int, writers)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	for w := range writers {
		model[w] = map[int]int{}
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for {
				select {
				case <-quit:
					return
				default:
				}
				id := w*each + rnd.IntN(each)
				key, there := model[w][id]
				var m bson.M
				switch other := w*each + rnd.IntN(each); {
				case !there:
					m = c.raw("db", fmt.Sprintf(`{"insert": "u", "documents": [{"_id": %d, "u": %d}]}`, id, id+1000*w))
					key = id + 1000*w
					for _, taken := range model[w] {
						if taken == key {
							m, key = bson.M{"ok": 1.0}, -1 // another document has the key
						}
					}
					if key >= 0 {
						model[w][id] = key
					}
				case other != id && model[w][other] != 0:
					theirs := model[w][other]
					m = c.raw("db", fmt.Sprintf(`{"update": "u", "updates": [{"q": {"_id": %d}, "u": {"$set": {"u": -%d}}}, {"q": {"_id": %d}, "u": {"$set": {"u": %d}}}, {"q": {"_id": %d}, "u": {"$set": {"u": %d}}}]}`,
						id, key+1, other, key, id, theirs))
					model[w][id], model[w][other] = theirs, key
				default:
					m = c.raw("db", fmt.Sprintf(`{"delete": "u", "deletes": [{"q": {"_id": %d}, "limit": 1}]}`, id))
					delete(model[w], id)
				}
				if m["ok"] != 1.0 {
					t.Errorf("a write is refused: %v", m)
					return
				}
			}
		})
	}
	for i := range 6 {
		c.run("admin", fmt.Sprintf(`{"movePrimary": "db", "to": "shard%d"}`, (i+1)%2))
	}
	close(quit)
	wg.Wait()
	want := map[int]int{}
	for _, m := range model {
		for id, key := range m {
			want[id] = key
		}
	}
	got := map[int]int{}
	for _, d := range c.all("db", `{"find": "u"}`) {
		got[int(get(d, "_id").(int32))] = int(get(d, "u").(int32))
	}
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("the documents are %s, want %s", g, w)
	}
	c.leftOver()
}

// The parts that the old primary shard sends may arrive twice, late, and after an attempt that has replaced theirs: each is stored once, in order.
func TestMovePrimaryPartsArriveLate(t *testing.T) {
	c := newTestCluster(t, 2)
	var mu sync.Mutex
	var late [][]byte
	var to cluster.Peer
	again := func(ctx context.Context) {
		mu.Lock()
		all := late
		mu.Unlock()
		for _, cmd := range all {
			_, _ = cluster.Run(ctx, to, cmd)
		}
	}
	c.between("shard1", func(shard cluster.Peer) cluster.Peer {
		to = shard
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			out, err := to.Call(ctx, m, dst)
			if string(m.CommandName()) == "_shardsvrMovePrimaryStore" {
				mu.Lock()
				late = append(late, append([]byte(nil), m.Body...))
				mu.Unlock()
				again(context.Background())
			}
			return out, err
		})
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("plain", 1, 10)
	reached, release := c.hangAt("shard0", "blockWrites")
	moved := make(chan bson.M, 1)
	go func() { moved <- c.raw("admin", `{"movePrimary": "db", "to": "shard1"}`) }()
	reached()
	c.run("db", `{"update": "plain", "updates": [{"q": {"_id": 1}, "u": {"$set": {"late": 1}}}]}`)
	c.run("db", `{"delete": "plain", "deletes": [{"q": {"_id": 2}, "limit": 1}]}`)
	release()
	if m := <-moved; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	c.leftOver()
	c.run("db", `{"delete": "plain", "deletes": [{"q": {"_id": 3}, "limit": 1}]}`)
	again(t.Context())
	c.expect(len(c.all("db", `{"find": "plain"}`)), `8`)
	c.expect(get(c.all("db", `{"find": "plain", "filter": {"_id": 1}}`)[0], "late"), `1`)
	if len(late) < 5 {
		t.Errorf("%d parts were sent", len(late))
	}
}
