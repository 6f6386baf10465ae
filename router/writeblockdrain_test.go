package router_test

import (
	"fmt"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Once setUserWriteBlockMode has replied, no user's write comes to be: it waits for those that have begun, and others that have been admitted are refused under their locks.
func TestNoWriteFollowsTheBlock(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.fill(20)
	for round := range 20 {
		var writers, begun sync.WaitGroup
		for i := range 4 {
			w := c.through()
			begun.Add(1)
			writers.Go(func() {
				for n := 0; ; n++ {
					m := w.raw("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"k": %d}, "u": {"$inc": {"n": 1}}}, {"q": {"k": %d}, "u": {"$inc": {"n": 1}}}]}`, i, 10+i))
					if n == 0 {
						begun.Done()
					}
					if errs, _ := m["writeErrors"].(bson.A); m["code"] == int32(mongoerr.UserWritesBlocked) || len(errs) > 0 {
						return
					}
				}
			})
		}
		begun.Wait()
		c.run("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
		sum := func() string {
			return show(c.all("db", `{"aggregate": "c", "pipeline": [{"$group": {"_id": null, "n": {"$sum": "$n"}}}], "cursor": {}}`))
		}
		was := sum()
		writers.Wait()
		if now := sum(); now != was {
			t.Errorf("round %d: after the reply writes were made: %s, then %s", round, was, now)
		}
		c.run("admin", `{"setUserWriteBlockMode": 1, "global": false}`)
	}
}

// Transactions that have written are waited for; they can commit meanwhile, also over shards.
func TestTheBlockWaitsForTransactions(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.fill(20)
	w := c.txnClient(0)
	for i, k := range []int{1, 15} {
		if m, code := w.do("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"k": %d}, "u": {"$set": {"t": 1}}}]}`, k), i == 0); code != 0 {
			t.Fatal(m)
		}
	}
	if m := c.raw("admin", `{"setUserWriteBlockMode": 1, "global": true, "maxTimeMS": 200}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("beside a transaction: %v", m)
	}
	blocked := c.later("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
	if m, code := w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
		t.Errorf("commit: %v", m)
	}
	if m := <-blocked; m["ok"] != 1.0 {
		t.Error(m)
	}
	c.expect(c.run("db", `{"count": "c", "query": {"t": 1}}`)["n"], "2")
	if m := c.raw("db", `{"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"t": 2}}}]}`); m["code"] != int32(mongoerr.UserWritesBlocked) && m["writeErrors"] == nil {
		t.Errorf("a write afterwards: %v", m)
	}
	c.run("admin", `{"setUserWriteBlockMode": 1, "global": false}`)
}
