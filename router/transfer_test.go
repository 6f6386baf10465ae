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

// txnClient is a client with a session of its own.
type txnClient struct {
	c      *testCluster
	client *command.Client
	lsid   string
	number int
}

func (c *testCluster) txnClient(id int) *txnClient {
	return &txnClient{c: c, client: command.NewClient(int64(id), "test", "test", nil),
		lsid: fmt.Sprintf(`"lsid": {"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAA%cAAQ==", "subType": "04"}}}`, 'A'+id)}
}

// do runs a command of the transaction and returns its error code, 0 for success.
func (w *txnClient) do(db, cmd string, start bool) (bson.M, int32) {
	begin := ""
	if start {
		w.number++
		begin = `, "startTransaction": true, "readConcern": {"level": "snapshot"}`
	}
	var d bson.D
	cmd = fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "%d"}, "autocommit": false%s}`, cmd[:len(cmd)-1], w.lsid, w.number, begin)
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		w.c.t.Error(err)
	}
	body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: db}))
	if err != nil {
		w.c.t.Error(err)
	}
	m := decode(w.c.t, w.c.router.Run(context.Background(), w.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
	code, _ := m["code"].(int32)
	return m, code
}

const accounts, each = 20, 100

// transfer moves money between two accounts. It reports whether it is known to be done.
func (w *txnClient) transfer(rnd *rand.Rand) (done bool, code int32) {
	from, to, amount := rnd.IntN(accounts)-accounts/2, rnd.IntN(accounts)-accounts/2, 1+rnd.IntN(5)
	inc := func(id, by int, start bool) int32 {
		_, code := w.do("d", fmt.Sprintf(`{"update": "acc", "updates": [{"q": {"_id": %d}, "u": {"$inc": {"x": %d}}}]}`, id, by), start)
		return code
	}
	if code := inc(from, -amount, true); code != 0 {
		return false, code
	}
	if code := inc(to, amount, false); code != 0 {
		return false, code
	}
	_, code = w.do("admin", `{"commitTransaction": 1}`, false)
	return code == 0, code
}

// total reads all accounts in one snapshot.
func (w *txnClient) total() (sum, n int64, code int32) {
	m, code := w.do("d", `{"find": "acc", "batchSize": 1000}`, true)
	if code != 0 {
		return 0, 0, code
	}
	for _, d := range get(m["cursor"], "firstBatch").(bson.A) {
		x, _ := get(d, "x").(int32)
		sum += int64(x)
		n++
	}
	w.do("admin", `{"commitTransaction": 1}`, false)
	return sum, n, 0
}

// Money that is transferred between shards is never lost, created or seen twice, while chunks move.
func TestTransfersBetweenShards(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.acc", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "d.acc", "middle": {"_id": 0}}`)
	c.run("admin", `{"moveChunk": "d.acc", "find": {"_id": 1}, "to": "shard1"}`)
	for i := range accounts {
		c.run("d", fmt.Sprintf(`{"insert": "acc", "documents": [{"_id": %d, "x": %d}]}`, i-accounts/2, each))
	}
	var done, seen, moved atomic.Int64
	refused := sync.Map{}
	note := func(code int32) {
		n, _ := refused.LoadOrStore(code, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
	}
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w, rnd := c.txnClient(i), rand.New(rand.NewPCG(uint64(i), 7))
			for time.Now().Before(end) {
				ok, code := w.transfer(rnd)
				if ok {
					done.Add(1)
				} else {
					note(code)
				}
			}
		}()
	}
	for i := range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w := c.txnClient(4 + i)
			for time.Now().Before(end) {
				sum, n, code := w.total()
				switch {
				case code != 0:
					note(code)
				case sum != accounts*each || n != accounts:
					t.Errorf("%d accounts with %d in all, want %d with %d", n, sum, accounts, accounts*each)
					return
				default:
					seen.Add(1)
				}
			}
		}()
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		mover := command.NewClient(99, "test", "test", nil)
		for i := 0; time.Now().Before(end); i++ {
			body, _ := bson.Marshal(bson.D{{Key: "moveChunk", Value: "d.acc"}, {Key: "find", Value: bson.D{{Key: "_id", Value: 1}}},
				{Key: "to", Value: fmt.Sprintf("shard%d", i%2)}, {Key: "$db", Value: "admin"}})
			if decode(t, c.router.Run(context.Background(), mover, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))["ok"] == 1.0 {
				moved.Add(1)
			}
			time.Sleep(100 * time.Millisecond) // transfers get their share of the time between migrations
		}
	}()
	wg.Wait()
	refused.Range(func(code, n any) bool {
		t.Logf("error %d: %d times", code, n.(*atomic.Int64).Load())
		switch code.(int32) {
		case int32(mongoerr.WriteConflict), int32(mongoerr.SnapshotUnavailable), int32(mongoerr.NoSuchTransaction), int32(mongoerr.MigrationConflict), int32(mongoerr.LockTimeout), int32(mongoerr.StaleConfig), int32(mongoerr.PreparedTransactionInProgress), int32(mongoerr.SnapshotTooOld):
		default:
			t.Errorf("transactions were refused with %d", code)
		}
		return true
	})
	t.Logf("%d transfers, %d totals, %d migrations", done.Load(), seen.Load(), moved.Load())
	if sum, n, code := c.txnClient(8).total(); sum != accounts*each || n != accounts || code != 0 {
		t.Errorf("in the end %d accounts with %d in all (%d)", n, sum, code)
	}
	if done.Load() == 0 || seen.Load() == 0 || moved.Load() == 0 {
		t.Error("nothing was tried")
	}
}
