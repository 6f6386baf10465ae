package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
)

// Statements of every kind that were executed before a collection was resharded, and while it was cloned, answer on their documents' new shards as they did, and have no effect again.
func TestEveryRetryAfterAReshardingAnswersAsTheFirst(t *testing.T) {
	t.Parallel()
	for _, op := range []string{
		`{"reshardCollection": "db.c", "key": {"g": 1, "_id": 1}, "numInitialChunks": 2}`, `{"unshardCollection": "db.c", "toShard": "shard1"}`, `{"unshardCollection": "db.c", "toShard": "shard0"}`,
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(op[2:24], restart), func(t *testing.T) {
				c, free := heldClone(t, func(context.Context, string) {})
				c.fill(40)
				type sent struct {
					w     *txnClient
					cmd   string
					reply bson.M
				}
				var all []sent
				n := 0
				answer := func(m bson.M) string {
					var out []string
					for _, f := range []string{"ok", "n", "nModified", "value", "lastErrorObject", "upserted", "code"} {
						out = append(out, f+" "+show(m[f]))
					}
					return strings.Join(out, " ")
				}
				send := func(cmd string) {
					w := c.txnClient(0)
					w.lsid = fmt.Sprintf(`"lsid": {"id": {"$uuid": "bbbbbbbb-aaaa-4aaa-8aaa-%012d"}}`, n)
					n++
					cmd = fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "1"}}`, cmd[:len(cmd)-1], w.lsid)
					m := c.runAs(w, "db", cmd)
					if m["ok"] != 1.0 || m["writeErrors"] != nil {
						t.Fatalf("%s: %v", cmd, m)
					}
					all = append(all, sent{w, cmd, m})
				}
				every := func(from int) {
					for i, k := range []int{from, from + 20} { // on each shard
						send(fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "k": %d, "g": 1}]}`, 100+k, k))
						send(fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d, "k": %d}, "u": {"$inc": {"n": 1}}}]}`, k, k))
						send(fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d, "k": %d}, "u": {"$inc": {"n": 1}}, "upsert": true}]}`, 200+k, k))
						send(fmt.Sprintf(`{"delete": "c", "deletes": [{"q": {"_id": %d, "k": %d}, "limit": 1}]}`, k+1, k+1))
						send(fmt.Sprintf(`{"findAndModify": "c", "query": {"_id": %d, "k": %d}, "update": {"$inc": {"n": 1}}}`, k+2, k+2))
						send(fmt.Sprintf(`{"findAndModify": "c", "query": {"_id": %d, "k": %d}, "update": {"$inc": {"n": 1}}, "new": true}`, k+3, k+3))
						send(fmt.Sprintf(`{"findAndModify": "c", "query": {"_id": %d, "k": %d}, "remove": true}`, k+4, k+4))
						send(fmt.Sprintf(`{"findAndModify": "c", "query": {"_id": %d, "k": %d}, "update": {"$inc": {"n": 1}}, "new": true, "upsert": true}`, 300+k, k))
						send(fmt.Sprintf(`{"findAndModify": "c", "query": {"_id": %d, "k": %d}, "update": {"$inc": {"g": 1}}}`, k+5, k+5))
						send(fmt.Sprintf(`{"findAndModify": "c", "query": {"_id": %d, "k": %d}, "update": {"$set": {"k": %d}}, "new": true}`, k+6, k+6, []int{25, 5}[i])) // to the other shard
						send(fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d, "k": %d}, "u": {"$set": {"k": %d}, "$inc": {"n": 1}}}]}`, k+7, k+7, []int{25, 5}[i]))
					}
				}
				every(0)
				resharded := c.later("admin", op)
				c.until("the clone has begun", func() bool {
					c.run("db", `{"update": "c", "updates": [{"q": {"k": 19}, "u": {"$inc": {"x": 1}}}, {"q": {"k": 39}, "u": {"$inc": {"x": 1}}}]}`)
					return len(c.buffered("shard0"))+len(c.buffered("shard1")) > 1
				})
				every(10)
				if restart {
					c.restart("shard0")
					c.restart("shard1")
				}
				want := show(c.all("db", `{"find": "c", "sort": {"_id": 1}}`))
				free()
				if m := <-resharded; m["ok"] != 1.0 {
					t.Fatal(m)
				}
				if restart {
					c.restart("shard0")
					c.restart("shard1")
				}
				for _, s := range all {
					m := c.runAs(s.w, "db", s.cmd)
					for try := 0; m["errorLabels"] != nil && try < 20; try++ {
						_ = cluster.Backoff(t.Context(), try)
						m = c.runAs(s.w, "db", s.cmd)
					}
					if got := answer(m); got != answer(s.reply) {
						t.Errorf("%s\nfirst %s\nagain %s %v", s.cmd, answer(s.reply), got, m["errmsg"])
					}
				}
				if got := show(c.all("db", `{"find": "c", "sort": {"_id": 1}}`)); got != want {
					t.Errorf("after the resharding\n%s\nbefore\n%s", got, want)
				}
				c.leftOver()
			})
		}
	}
}

// A large transaction has voted on one shard, and is undecided there, when a resharding begins.
func TestReshardingBesideALargeUndecidedTransaction(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	c := newHookedCluster(t, 3, clusterHooks{peer: func(shard string, s *shardnode.Server) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if shard == "shard1" && string(m.CommandName()) == "_shardsvrReshardingFetchDocuments" {
				once()
			}
			return s.Peer().Call(ctx, m, dst)
		})
	}})
	h := c.holdCommits("shard1")
	c.fill(40)
	w := c.txnClient(0)
	pad := strings.Repeat("y", 1_000_000)
	for i := range 19 {
		if m, code := w.do("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"k": %d}, "u": {"$set": {"t": 1, "pad": %q}}}]}`, 20+i, pad), i == 0); code != 0 {
			t.Fatal(m)
		}
	}
	for _, cmd := range []string{
		`{"update": "c", "updates": [{"q": {"k": 3}, "u": {"$set": {"t": 1}}}]}`, `{"update": "c", "updates": [{"q": {"k": 4}, "u": {"$set": {"k": 25, "t": 1}}}]}`,
		`{"delete": "c", "deletes": [{"q": {"k": 39}, "limit": 1}]}`, `{"insert": "c", "documents": [{"_id": 39, "k": 6, "g": 1, "t": 1}]}`,
	} {
		if m, code := w.do("db", cmd, false); code != 0 {
			t.Fatal(m)
		}
	}
	committed := make(chan int32, 1)
	go func() {
		_, code := w.do("admin", `{"commitTransaction": 1}`, false)
		committed <- code
	}()
	<-h.came
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"g": "hashed"}, "numInitialChunks": 6}`)
	<-asked
	close(h.free)
	if code := <-committed; code != 0 {
		t.Error(code)
	}
	if m := <-resharded; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	got := c.all("db", `{"aggregate": "c", "pipeline": [{"$sort": {"_id": 1}}, {"$set": {"pad": {"$strLenBytes": {"$ifNull": ["$pad", ""]}}}}], "cursor": {}}`)
	sum := map[string]int{}
	for _, d := range got {
		sum[fmt.Sprint(get(d, "t"), " ", get(d, "pad"))]++
	}
	if len(got) != 40 || sum["1 1000000"] != 19 || sum["1 0"] != 3 {
		t.Errorf("%d documents, %v", len(got), sum)
	}
	c.leftOver()
}
