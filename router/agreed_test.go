package router_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Reads at recent cluster times, through two routers, see every transfer between shards as a whole or not at all. None is
// refused: each shard used to commit a transaction at its own time, and reads at times in between were refused.
func TestReadsAtClusterTimesBesideTransfers(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.acc", "key": {"_id": 1}}`)
	for i, at := range []int{-4, 3} {
		c.run("admin", fmt.Sprintf(`{"split": "d.acc", "middle": {"_id": %d}}`, at))
		c.run("admin", fmt.Sprintf(`{"moveChunk": "d.acc", "find": {"_id": %d}, "to": "shard%d"}`, at, i+1))
	}
	var first bson.Timestamp
	for i := range accounts {
		first = c.run("d", fmt.Sprintf(`{"insert": "acc", "documents": [{"_id": %d, "x": %d}]}`, i-accounts/2, each))["operationTime"].(bson.Timestamp)
	}
	var newest atomic.Pointer[bson.Timestamp]
	newest.Store(&first)
	var done, seen, past atomic.Int64
	end := time.Now().Add(3 * time.Second)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w, rnd := c.txnClient(i), rand.New(rand.NewPCG(uint64(i), 7))
			for time.Now().Before(end) {
				if ok, _ := w.transfer(rnd); ok {
					done.Add(1)
				}
			}
		}()
	}
	wg.Add(1)
	go func() { // writes that advance one shard's time
		defer wg.Done()
		for i := 0; time.Now().Before(end); i++ {
			at := c.run("d", fmt.Sprintf(`{"insert": "other", "documents": [{"_id": %d}]}`, i))["operationTime"].(bson.Timestamp)
			newest.Store(&at)
		}
	}()
	routers := []*testCluster{c, c.through()}
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rnd := rand.New(rand.NewPCG(uint64(i), 8))
			for time.Now().Before(end) {
				at := *newest.Load()
				if back := uint32(rnd.IntN(300)); rnd.IntN(3) > 0 && at.I > back && at.T > first.T {
					at.I -= back
					past.Add(1)
				}
				cmd := `{"find": "acc", "batchSize": 1000`
				if rnd.IntN(2) == 0 {
					cmd = `{"aggregate": "acc", "pipeline": [{"$match": {"x": {"$exists": true}}}], "cursor": {"batchSize": 1000}`
				}
				m := routers[rnd.IntN(2)].raw("d", fmt.Sprintf(`%s, "readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}}`, cmd, at.T, at.I))
				if m["ok"] != 1.0 {
					t.Errorf("a read at %v: %v", at, m)
					return
				}
				sum, n := int32(0), 0
				for _, d := range get(m["cursor"], "firstBatch").(bson.A) {
					sum += get(d, "x").(int32)
					n++
				}
				if sum != accounts*each || n != accounts {
					t.Errorf("at %v: %d accounts with %d in all, want %d with %d", at, n, sum, accounts, accounts*each)
					return
				}
				seen.Add(1)
			}
		}()
	}
	wg.Wait()
	t.Logf("%d transfers, %d reads, %d of them at earlier times", done.Load(), seen.Load(), past.Load())
	if done.Load() == 0 || past.Load() == 0 {
		t.Error("nothing was tried")
	}
}
