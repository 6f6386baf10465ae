package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fuzzed is one collection with a single writer, which knows what each document has to be.
type fuzzed struct {
	c    *testCluster
	w    *txnClient
	rnd  *rand.Rand
	docs map[int]fuzzDoc // by _id
	seq  int
	log  []string
	fail map[string]int
}

type fuzzDoc struct {
	k, u, g, v int
}

// key returns a shard key of one of three shards.
func (f *fuzzed) key() int { return []int{-2, -1, 50, 51, 150, 151}[f.rnd.IntN(6)] }

func (f *fuzzed) note(format string, a ...any) {
	f.log = append(f.log, fmt.Sprintf(format, a...))
	if len(f.log) > 400 {
		f.log = f.log[1:]
	}
}

// look reads the document with an _id.
func (f *fuzzed) look(id int) (d fuzzDoc, ok bool) {
	for try := 0; ; try++ {
		m := f.c.runAs(f.w, "db", fmt.Sprintf(`{"find": "c", "filter": {"_id": %d}, "projection": {"pad": 0}}`, id))
		if m["ok"] != 1.0 {
			if try > 200 {
				f.c.t.Fatalf("find %d: %v", id, m)
			}
			_ = cluster.Backoff(f.c.t.Context(), try)
			continue
		}
		list := get(m["cursor"], "firstBatch").(bson.A)
		if len(list) > 1 {
			f.c.t.Fatalf("doubled: %s\n%s", show(list), strings.Join(f.log, "\n"))
		}
		if len(list) == 0 {
			return d, false
		}
		n := func(name string) int {
			v, _ := get(list[0], name).(int32)
			return int(v)
		}
		return fuzzDoc{n("k"), n("u"), n("g"), n("v")}, true
	}
}

// settle reads what an attempt with an unknown outcome has left: of several _ids.
func (f *fuzzed) settle(why bson.M, ids ...int) {
	f.fail[fmt.Sprint(why["code"], why["codeName"])]++
	for _, id := range ids {
		d, ok := f.look(id)
		if ok {
			f.docs[id] = d
		} else {
			delete(f.docs, id)
		}
	}
}

func (f *fuzzed) retryable(cmd string) bson.M {
	f.w.number++
	return f.c.runAs(f.w, "db", fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "%d"}}`, cmd[:len(cmd)-1], f.w.lsid, f.w.number))
}

func pad(rnd *rand.Rand) string {
	if rnd.IntN(12) > 0 {
		return ""
	}
	return strings.Repeat("x", 500_000+rnd.IntN(2_000_000))
}

func bad(m bson.M) bool {
	return m["ok"] != 1.0 || m["writeErrors"] != nil || m["writeConcernError"] != nil
}

func (f *fuzzed) pick() (int, fuzzDoc, bool) {
	if len(f.docs) == 0 {
		return 0, fuzzDoc{}, false
	}
	n := f.rnd.IntN(len(f.docs))
	for id := range 16 {
		if d, ok := f.docs[id]; ok {
			if n == 0 {
				return id, d, true
			}
			n--
		}
	}
	panic("no document")
}

func (f *fuzzed) step() {
	f.seq++
	seq := f.seq
	switch op := f.rnd.IntN(12); {
	case op < 3: // insert
		id := f.rnd.IntN(16)
		if _, ok := f.docs[id]; ok {
			return
		}
		d := fuzzDoc{f.key(), f.rnd.IntN(4), f.rnd.IntN(6), seq}
		m := f.retryable(fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "k": %d, "u": %d, "g": %d, "v": %d, "pad": %q}]}`, id, d.k, d.u, d.g, seq, pad(f.rnd)))
		f.note("%d insert %d %v: %v", seq, id, d, m["ok"])
		if bad(m) {
			f.settle(m, id)
			return
		}
		f.docs[id] = d
	case op < 5: // delete
		id, d, ok := f.pick()
		if !ok {
			return
		}
		m := f.retryable(fmt.Sprintf(`{"delete": "c", "deletes": [{"q": {"_id": %d, "k": %d}, "limit": 1}]}`, id, d.k))
		f.note("%d delete %d %v: %v n %v", seq, id, d, m["ok"], m["n"])
		if bad(m) {
			f.settle(m, id)
			return
		}
		if m["n"] != int32(1) {
			f.c.t.Errorf("lost: delete of %d %v: %v\n%s", id, d, m, strings.Join(f.log, "\n"))
		}
		delete(f.docs, id)
	case op < 7: // another shard
		id, d, ok := f.pick()
		if !ok {
			return
		}
		to := d
		to.k, to.v = f.key(), seq
		if f.rnd.IntN(2) == 0 {
			to.g = f.rnd.IntN(6)
		}
		m := f.retryable(fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d, "k": %d}, "u": {"$set": {"k": %d, "v": %d, "g": %d, "pad": %q}}}]}`, id, d.k, to.k, seq, to.g, pad(f.rnd)))
		f.note("%d move %d %v to %v: %v n %v", seq, id, d, to, m["ok"], m["n"])
		if bad(m) {
			f.settle(m, id)
			return
		}
		if m["n"] != int32(1) {
			f.c.t.Errorf("lost: update of %d %v: %v\n%s", id, d, m, strings.Join(f.log, "\n"))
		}
		f.docs[id] = to
	case op < 9: // in place
		id, d, ok := f.pick()
		if !ok {
			return
		}
		to := d
		to.g, to.u, to.v = f.rnd.IntN(6), f.rnd.IntN(4), seq
		m := f.retryable(fmt.Sprintf(`{"findAndModify": "c", "query": {"_id": %d, "k": %d}, "update": {"$set": {"u": %d, "v": %d, "g": %d}}, "fields": {"pad": 0}}`, id, d.k, to.u, seq, to.g))
		f.note("%d modify %d %v to %v: %v", seq, id, d, to, m["ok"])
		if bad(m) {
			f.settle(m, id)
			return
		}
		if m["value"] == nil {
			f.c.t.Errorf("lost: update of %d %v: %v\n%s", id, d, m, strings.Join(f.log, "\n"))
			return
		}
		f.docs[id] = to
	default: // two documents exchange their shard keys and unique values in a transaction
		a, x, ok := f.pick()
		if !ok {
			return
		}
		b, y, _ := f.pick()
		if a == b {
			return
		}
		nx, ny := x, y
		nx.k, nx.u, nx.v, ny.k, ny.u, ny.v = y.k, y.u, seq, x.k, x.u, seq
		cmds := []string{
			fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d, "k": %d}, "u": {"$set": {"u": 100, "v": %d}}}]}`, a, x.k, seq),
			fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d, "k": %d}, "u": {"$set": {"k": %d, "u": %d, "v": %d}}}]}`, b, y.k, x.k, x.u, seq),
			fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d, "k": %d}, "u": {"$set": {"k": %d, "u": %d, "v": %d}}}]}`, a, x.k, y.k, y.u, seq),
		}
		for i, cmd := range cmds {
			m, code := f.w.do("db", cmd, i == 0)
			if code != 0 || bad(m) {
				_, _ = f.w.do("admin", `{"abortTransaction": 1}`, false)
				f.note("%d exchange %d %v with %d %v: aborted %v", seq, a, x, b, y, code)
				f.fail[fmt.Sprint("txn ", code)]++
				return
			}
			if m["n"] != int32(1) {
				f.c.t.Errorf("lost: in a transaction, %s: %v\n%s", cmd, m, strings.Join(f.log, "\n"))
			}
		}
		m, code := f.w.do("admin", `{"commitTransaction": 1}`, false)
		f.note("%d exchange %d %v with %d %v: %v", seq, a, x, b, y, code)
		if code != 0 {
			for try := 0; code != 0 && try < 50 && m["errorLabels"] != nil; try++ {
				_ = cluster.Backoff(f.c.t.Context(), try)
				m, code = f.w.do("admin", `{"commitTransaction": 1}`, false)
			}
			f.settle(m, a, b)
			return
		}
		f.docs[a], f.docs[b] = nx, ny
	}
}

func (f *fuzzed) check(when string) {
	f.c.t.Helper()
	var got []string
	for _, d := range f.c.all("db", `{"find": "c", "sort": {"_id": 1}, "projection": {"pad": 0}}`) {
		got = append(got, fmt.Sprint(get(d, "_id"), " ", get(d, "k"), " ", get(d, "u"), " ", get(d, "g"), " ", get(d, "v")))
	}
	var want []string
	for id := range 16 {
		if d, ok := f.docs[id]; ok {
			want = append(want, fmt.Sprint(id, " ", d.k, " ", d.u, " ", d.g, " ", d.v))
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		f.c.t.Errorf("%s:\ngot\n%s\nwant\n%s\nlog\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"), strings.Join(f.log, "\n"))
	}
}

// A writer moves documents between shards, exchanges their unique values, deletes and inserts them while the collection is resharded, and the primaries of shards change.
func TestReshardingUnderARandomWriter(t *testing.T) {
	t.Parallel()
	rounds := 1 // more, and the same again: SHOAL_ROUNDS, SHOAL_SEED
	if n, err := strconv.Atoi(os.Getenv("SHOAL_ROUNDS")); err == nil {
		rounds = n
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SHOAL_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var slow atomic.Bool
	down := map[string]*atomic.Bool{"config": {}, "shard0": {}, "shard1": {}, "shard2": {}}
	delay := func(ctx context.Context, most int) {
		if slow.Load() {
			_ = cluster.Sleep(ctx, time.Duration(rand.IntN(most))*time.Millisecond)
		}
	}
	c := newHookedCluster(t, 3, clusterHooks{peer: func(shard string, s *shardnode.Server) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if down[shard].Load() {
				return dst, mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
			}
			switch string(m.CommandName()) {
			case "_shardsvrReshardingFetchDocuments":
				delay(ctx, 400)
			case "_shardsvrReshardingFetchChanges":
				delay(ctx, 60)
			}
			dst, err := s.Peer().Call(ctx, m, dst)
			if string(m.CommandName()) == "_shardsvrReshardingFetchChanges" {
				delay(ctx, 60)
			}
			return dst, err
		})
	}})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for i := range 3 {
		c.run("admin", fmt.Sprintf(`{"addShardToZone": "shard%d", "zone": "z%d"}`, i, i))
	}
	f := &fuzzed{c: c, w: c.txnClient(3), rnd: rnd, docs: map[int]fuzzDoc{}, fail: map[string]int{}}
	shards := []string{"shard0", "shard1", "shard2"}
	ended := map[string]int{}
	for round := range rounds {
		slow.Store(false)
		f.docs, f.log = map[int]fuzzDoc{}, nil
		c.run("db", `{"drop": "c"}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		for i, at := range []int{0, 100} {
			c.run("admin", fmt.Sprintf(`{"split": "db.c", "middle": {"k": %d}}`, at))
			c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "find": {"k": %d}, "to": "shard%d", "_waitForDelete": true}`, at, i+1))
		}
		unique := rnd.IntN(2) == 0
		if unique {
			c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "u": 1}, "name": "ku", "unique": true}]}`)
		}
		for range 20 {
			f.step()
		}
		const zones = `"zones": [{"min": {"k": {"$minKey": 1}, "u": {"$minKey": 1}}, "max": {"k": -1, "u": 2}, "zone": "z1"}, {"min": {"k": -1, "u": 2}, "max": {"k": 51, "u": 1}, "zone": "z2"},
			{"min": {"k": 51, "u": 1}, "max": {"k": {"$maxKey": 1}, "u": {"$maxKey": 1}}, "zone": "z0"}]`
		cmd := `{"reshardCollection": "db.c", "key": {"k": 1, "u": 1}, ` + zones + `}`
		switch rnd.IntN(4) {
		case 0:
			cmd = `{"unshardCollection": "db.c", "toShard": "shard1"}`
		case 1, 2:
			if !unique {
				cmd = `{"reshardCollection": "db.c", "key": {"g": "hashed"}, "numInitialChunks": 6}`
			}
		}
		slow.Store(rnd.IntN(4) > 0)
		restarts := 0
		if rnd.IntN(2) == 0 {
			restarts = 1 + rnd.IntN(4)
		}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func(seed uint64) {
			defer close(stopped)
			r := rand.New(rand.NewPCG(seed, 2))
			for range restarts {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(r.IntN(600)) * time.Millisecond):
				}
				id := shards[r.IntN(3)]
				down[id].Store(true) // as a primary that steps down: what is new is refused, what runs is interrupted, and then the services stop
				c.server[id].Node.Services.Interrupt()
				c.server[id].Service.EachOp(func(op *command.Op) {
					if op.Req.Spec != nil && (op.Req.Spec.Primary() || !op.Req.Autocommit.IsMissing()) {
						op.Kill(mongoerr.InterruptedDueToReplStateChange)
					}
				})
				c.restart(id)
				down[id].Store(false)
			}
		}(rnd.Uint64())
		resharded := c.later("admin", cmd)
		var reply bson.M
		steps := 0
		for reply == nil {
			select {
			case reply = <-resharded:
			default:
				f.step()
				steps++
			}
		}
		close(stop)
		<-stopped
		ended[fmt.Sprint(reply["ok"], reply["code"], reply["errmsg"])]++
		for range 5 {
			f.step()
		}
		f.check(fmt.Sprintf("round %d, %s, slow %v, restarts %d: %v", round, cmd, slow.Load(), restarts, reply))
		if t.Failed() {
			break
		}
		if bad := c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); len(bad) > 0 && restarts == 0 {
			t.Errorf("round %d: %s", round, show(bad))
		}
		t.Logf("round %d: %d steps, %d restarts, slow %v, %s", round, steps, restarts, slow.Load(), cmd)
	}
	t.Log(f.fail, ended)
	slow.Store(false)
	c.leftOver()
}
